"""Softmax attention over the keys that a rule of positions lets through: strided, fixed, star and random patterns, windows."""
