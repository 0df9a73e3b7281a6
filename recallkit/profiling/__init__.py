"""What a text repeats."""

from recallkit.profiling.run import ProfileOptions, profile, profile_slices, stop_words, token_mask, token_texts

__all__ = ["ProfileOptions", "profile", "profile_slices", "stop_words", "token_mask", "token_texts"]
