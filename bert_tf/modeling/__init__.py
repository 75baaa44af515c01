"""BERT as Keras 3 layers; keras and numpy only, so that it runs on each of Keras's backends."""
