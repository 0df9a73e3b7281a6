"""Recall from real documents (SWDE, FDA, SQuAD, NQ, TriviaQA and DROP) and of needles in a
haystack."""

from recallkit.options import RecallOptions
from recallkit.recall.run import documents_path, evaluate_recall, plan_recall

__all__ = ["RecallOptions", "documents_path", "evaluate_recall", "plan_recall"]
