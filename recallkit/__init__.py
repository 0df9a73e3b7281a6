"""recallkit: how much of the gap between an efficient language model and an attention model is associative recall."""

__version__ = "0.1.0"
