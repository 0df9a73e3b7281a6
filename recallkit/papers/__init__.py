"""Printed perplexities: what part of a gap AR hits carry by a paper's own table, without its
models."""
