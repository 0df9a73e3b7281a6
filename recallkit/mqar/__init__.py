"""Multi-query associative recall in a model's own vocabulary."""

from recallkit.mqar.run import MqarOptions, evaluate_mqar, files_of, plan_mqar

__all__ = ["MqarOptions", "evaluate_mqar", "files_of", "plan_mqar"]
