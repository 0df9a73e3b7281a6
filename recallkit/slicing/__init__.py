"""Predicted tokens labelled: repeated in the context, how far back, how often in training."""

from recallkit.slicing.run import check_sequences, slice_text
from recallkit.slicing.threshold import RareCount

__all__ = ["RareCount", "check_sequences", "slice_text"]
