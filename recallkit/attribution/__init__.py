"""Perplexity gaps between models, attributed to slices of the tokens."""

from recallkit.attribution.comparison import gap, gap_path

__all__ = ["gap", "gap_path"]
