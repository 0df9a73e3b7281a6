"""`--log-to`: how a tracker is named; a result logged to several, none of which can lose it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit.display import console
from recallkit.errors import printable
from recallkit.trackers.packages import TRACKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from recallkit.trackers.packages import Tracker
    from recallkit.trackers.record import Record


class Destination(NamedTuple):
    """A tracker by name, and the project in it; None for the default."""

    name: str
    project: str | None

    def __str__(self) -> str:
        return self.name if self.project is None else f"{self.name}:{self.project}"


def parse_destination(text: Any) -> Destination:
    """`wandb`, `wandb:PROJECT`. Raises ValueError for an unknown tracker and an empty project."""
    name, colon, project = str(text).partition(":")
    if name not in TRACKERS or (colon and not project.strip()):
        choices = f"give one of {', '.join(TRACKERS)}, or NAME:PROJECT"
        raise ValueError(f"{str(text)!r} is not a tracker; {choices}")
    return Destination(name, project.strip() or None)


def open_trackers(destinations: Iterable[Destination]) -> dict[Destination, Tracker]:
    """The trackers, ready to be logged to.

    Raises UserError where one is not installed, or cannot be logged to.
    """
    return {place: TRACKERS[place.name](place.project) for place in destinations}


def log_result(
    trackers: Mapping[Destination, Tracker],
    make: Callable[[Path], Record],
) -> list[Destination]:
    """Logs a record to every tracker, and says where it is.

    Returns those that failed, each with a line of why. `make` gets a folder for the record's
    pictures. Nothing is raised: the result itself is on the disk.
    """
    with tempfile.TemporaryDirectory(prefix="recallkit-") as folder:
        try:
            record = make(Path(folder))
        except Exception as error:  # noqa: BLE001 - a figure must not cost the result
            return _report(list(trackers), error)
        failed = []
        for destination, tracker in trackers.items():
            try:
                console.note(f"logged to {destination.name}: {tracker.log(record)}")
            except Exception as error:  # noqa: BLE001 - packages raise what they like
                failed += _report([destination], error)
        return failed


def _report(destinations: Sequence[Destination], error: Exception) -> list[Destination]:
    lines = [printable(line) for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    written = "the results are written, and the same command logs them again"
    for destination in destinations:
        console.note(f"--log-to {destination}: not logged ({reason}); {written}")
    return list(destinations)


def log_step(metrics: Mapping[str, float], step: int, writer: Any = None) -> None:
    """Logs numbers of a training step to every run that a program has open.

    `writer` is a SummaryWriter of TensorBoard, which keeps no open run. What a package raises is
    noted, and no more: a training must not end with its log.
    """
    for name, tracker in TRACKERS.items():
        try:
            tracker.log_step(metrics, step, writer)
        except Exception as error:  # noqa: BLE001 - packages raise what they like
            console.note(f"step {step:,} is not logged to {name} ({error}); it is in the table")
