"""BERT on today's TensorFlow and Keras 3."""

__version__ = "0.1.0"
