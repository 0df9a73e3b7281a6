"""`--log-to`: which trackers there are, how one is named, and a finished result logged to several, none of which can lose it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit.display import console
from recallkit.errors import printable
from recallkit.registry import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from recallkit.trackers.record import Record
    from recallkit.trackers.tracker import Tracker

TRACKERS = {
    "trackio": "recallkit.trackers.to_trackio:TrackioTracker",
    "wandb": "recallkit.trackers.to_wandb:WandbTracker",
    "mlflow": "recallkit.trackers.to_mlflow:MlflowTracker",
    "tensorboard": "recallkit.trackers.to_tensorboard:TensorboardTracker",
}
"""Name -> its class. The name is also that of its package and of the extra."""


class Destination(NamedTuple):
    """A tracker by name, and the project in it: for TensorBoard a folder, for MLflow an experiment; None for the default."""

    name: str
    project: str | None

    def __str__(self) -> str:
        return self.name if self.project is None else f"{self.name}:{self.project}"


def parse_destination(given: Any) -> Destination:
    """`wandb`, `wandb:PROJECT`. Raises ValueError for an unknown tracker and an empty project."""
    name, colon, project = str(given).partition(":")
    if name not in TRACKERS or (colon and not project.strip()):
        raise ValueError(f"{str(given)!r} is no tracker; give one of {', '.join(TRACKERS)}, or NAME:PROJECT")
    return Destination(name, project.strip() or None)


def open_trackers(destinations: Iterable[Destination]) -> dict[Destination, Tracker]:
    """The trackers, ready to be logged to. Raises UserError where one is not installed, or cannot be logged to."""
    return {each: resolve(TRACKERS, each.name, "tracker")(each.project) for each in destinations}


def log_result(trackers: Mapping[Destination, Tracker], make: Callable[[Path], Record]) -> list[Destination]:
    """Logs a record to every tracker, and says where it is; returns those that failed, each with a line of why.

    `make` is given a folder for the record's pictures. Nothing is raised: the result itself is on the disk.
    """
    with tempfile.TemporaryDirectory(prefix="recallkit-") as folder:
        try:
            record = make(Path(folder))
        except Exception as error:  # noqa: BLE001 - a figure that cannot be drawn must not cost the result
            return _report(list(trackers), error)
        failed = []
        for destination, tracker in trackers.items():
            try:
                console.note(f"logged to {destination.name}: {tracker.log(record)}")
            except Exception as error:  # noqa: BLE001 - packages raise what they like
                failed += _report([destination], error)
        return failed


def _report(destinations: Sequence[Destination], error: Exception) -> list[Destination]:
    reason = next(iter(printable(line) for line in str(error).splitlines() if line.strip()), type(error).__name__)
    for destination in destinations:
        console.note(f"--log-to {destination}: not logged ({reason}); the results are written, and the same command logs them again")
    return list(destinations)
