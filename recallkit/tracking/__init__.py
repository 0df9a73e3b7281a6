"""How recall develops over the checkpoints of one training run."""

from recallkit.tracking.run import TrackedRun, track

__all__ = ["TrackedRun", "track"]
