"""Causal attention to the latest keys: a whole text, and the next token of each row with a ring of keys and values."""
