"""Checkpoints: the original layout, Hugging Face folders, and the strict merge of their weights."""
