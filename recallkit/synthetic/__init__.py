"""Synthetic tasks: made-up sequences of which it is known what must be remembered."""
