"""Repetition in a text: repeated bigrams by source, their distances and positions."""

from recallkit.options import ProfileOptions
from recallkit.profiling.run import profile, profile_slices
from recallkit.profiling.words import stop_words, token_mask, token_texts

__all__ = ["ProfileOptions", "profile", "profile_slices", "stop_words", "token_mask", "token_texts"]
