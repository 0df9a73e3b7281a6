"""Follows the checkpoints of a training run: how recall develops from step to step."""

from recallkit.tracking.run import TrackedRun, track

__all__ = ["TrackedRun", "track"]
