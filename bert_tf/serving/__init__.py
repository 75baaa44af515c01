"""A trained model as a local web page and a JSON API (python -m bert_tf.cli.serve)."""
