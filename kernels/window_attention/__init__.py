"""Causal attention to the latest keys: for a whole text, and for the next token of each row with a
ring of keys and values."""
