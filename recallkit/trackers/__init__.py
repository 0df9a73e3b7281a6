"""Results in experiment trackers: trackio, Weights & Biases, MLflow, TensorBoard."""

from recallkit.trackers.destinations import Destination, log_result, open_trackers, parse_destination

__all__ = ["Destination", "log_result", "open_trackers", "parse_destination"]
