"""Text to arrays, answers and scores; runs without TensorFlow wherever it can."""
