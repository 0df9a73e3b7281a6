"""Predicted tokens labelled: repeated in the context, how far back, how often in training."""

from recallkit.slicing.run import RareCount, slice_text

__all__ = ["RareCount", "slice_text"]
