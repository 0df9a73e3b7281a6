"""How recall develops in a training run: `track` scores its checkpoints, step by step.

Experiment trackers, to which any command sends its results, are in `trackers`.
"""

from recallkit.tracking.run import TrackedRun, track

__all__ = ["TrackedRun", "track"]
