"""Synthetic tasks, asked of models in their own vocabulary: multi-query associative recall and
others."""

from recallkit.mqar.run import evaluate_mqar, files_of, plan_mqar
from recallkit.options import MqarOptions

__all__ = ["MqarOptions", "evaluate_mqar", "files_of", "plan_mqar"]
