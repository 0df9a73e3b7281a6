"""Softmax attention over the keys selected by a rule of positions: strided, fixed, star and random
patterns, windows."""
