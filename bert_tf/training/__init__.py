"""The training loop: strategy, step, life in an output folder, progress."""
