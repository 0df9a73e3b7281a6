"""Recall from real documents: SWDE, FDA and SQuAD, evaluated through lm-eval."""

from recallkit.recall.run import RecallOptions, documents_path, evaluate_recall, plan_recall

__all__ = ["RecallOptions", "documents_path", "evaluate_recall", "plan_recall"]
