"""Softmax attention of each query to a short list of keys of its own: look-ups instead of a matrix."""
