"""What a tracker is to recallkit: it is opened before the work, and gets the finished result as one record."""

from __future__ import annotations

import contextlib
import io
import warnings
from abc import ABC, abstractmethod
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from recallkit.config import installing
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recallkit.trackers.record import Record

PROJECT = "recallkit"
"""The project where none is named, neither by the user nor by the tracker's own environment variable."""


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
        try:
            metadata.version(each)  # a folder `wandb` of runs would be imported as an empty package
        except metadata.PackageNotFoundError as error:
            raise UserError(f"{each} is not installed", where=where, remedy=remedy) from error
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
