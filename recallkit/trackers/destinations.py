"""`--log-to`: which trackers there are, how one is named, what one does; a finished result logged to several, none of which can lose it."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit.config import check_installed, installing
from recallkit.display import console
from recallkit.errors import UserError, printable
from recallkit.registry import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from recallkit.trackers.record import Record

TRACKERS = {
    "trackio": "recallkit.trackers.to_trackio:TrackioTracker",
    "wandb": "recallkit.trackers.to_wandb:WandbTracker",
    "mlflow": "recallkit.trackers.to_mlflow:MlflowTracker",
    "tensorboard": "recallkit.trackers.to_tensorboard:TensorboardTracker",
}
"""Name -> its class. The name is also that of its package and of the extra."""

PROJECT = "recallkit"
"""The project where none is named, neither by the user nor by the tracker's own environment variable."""


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
        raise ValueError(f"{str(given)!r} is not a tracker; give one of {', '.join(TRACKERS)}, or NAME:PROJECT")
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


# ------------------------------------------------------------------------------------------------------- what a tracker does


class Tracker(ABC):
    """A tracker that can be logged to.

    Making one imports its package and checks what can be checked without a run (credentials, a store that opens). Raises UserError
    where that fails: before hours of work, not after them. `project`: the user's, None for the default.
    """

    @abstractmethod
    def __init__(self, project: str | None) -> None: ...

    @abstractmethod
    def log(self, record: Record) -> str:
        """Logs a record as a run of its own, or into the run that the calling program has begun; returns where it is, for people.

        Raises whatever the package raises.
        """


def import_package(name: str, *others: str) -> Any:
    """The package of a tracker, whose name is its extra's too; it needs the `others`. Raises UserError if one is missing or broken."""
    where, remedy = f"--log-to {name}", installing(name)
    for each in (name, *others):
        check_installed(each, name, where=where)
    try:
        with quiet():
            return import_module(name)
    except ImportError as error:
        raise UserError(f"{name} cannot be imported ({error})", where=where, remedy=f"reinstall it: {remedy}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A block in which a package prints and warns of nothing: stdout is the result's, and one line says where it was logged."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
