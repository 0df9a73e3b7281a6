"""Recall from real documents: SWDE, FDA, SQuAD, NQ, TriviaQA and DROP, evaluated through lm-eval."""

from recallkit.recall.run import CENTRED_TOKENS, RecallOptions, documents_path, evaluate_recall, plan_recall

__all__ = ["CENTRED_TOKENS", "RecallOptions", "documents_path", "evaluate_recall", "plan_recall"]
