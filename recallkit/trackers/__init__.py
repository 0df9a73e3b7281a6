"""Sends the results of any command to experiment trackers: trackio, W&B, MLflow, TensorBoard.

The command `track`, which scores the checkpoints of a training run, is in `tracking`.
"""

from recallkit.trackers.destinations import (
    Destination,
    log_result,
    log_step,
    open_trackers,
    parse_destination,
)

__all__ = ["Destination", "log_result", "log_step", "open_trackers", "parse_destination"]
