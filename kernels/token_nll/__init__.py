"""Linear layer + cross-entropy per token: negative log-likelihood, argmax and rank, logits never
kept whole."""
