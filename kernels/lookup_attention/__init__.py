"""Softmax attention of each query to its own short list of keys: lookups instead of a matrix of
pairs."""
