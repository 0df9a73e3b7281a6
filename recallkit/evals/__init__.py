"""Recall evaluations: rows of text, key and value, prompts made of them, and what answers them."""
