"""Command-line tools: python -m bert_tf.cli.<name>."""
