"""Text to sequences of ids: readers, corpora, tokenizers, packing."""
