"""Multi-query associative recall in a model's own vocabulary."""

from recallkit.mqar.run import evaluate_mqar, files_of, plan_mqar
from recallkit.options import MqarOptions

__all__ = ["MqarOptions", "evaluate_mqar", "files_of", "plan_mqar"]
