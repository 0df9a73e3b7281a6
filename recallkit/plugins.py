"""What other installed packages add, by entry points: models, mixers, slices, synthetic tasks and
caches, each named PACKAGE.NAME.

Group `recallkit.models`, name `tiny` and value `acme.models:make` of the package `acme-recall` are
the model `acme-recall.tiny`. The function of a model, task or cache is used as FILE.py:FUNCTION is;
a mixer is a class; a slice is a string, its expression.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, NamedTuple

from recallkit import events
from recallkit.errors import UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FUNCTIONS = {"models": "model", "tasks": "synthetic task", "caches": "cache"}
OBJECTS = {"mixers": "mixer", "slices": "slice"}
"""Kinds of plug-ins by their group, after `recallkit.`: functions whose file is run as a user's own
is, and objects that are imported."""


class Plugin(NamedTuple):
    """An entry point: what it adds, under which name, and the package and version that it comes
    from."""

    kind: str
    name: str
    origin: str
    entry: EntryPoint

    def function(self) -> str:
        """The same as FILE.py:FUNCTION. Raises UserError where the module is not to be found."""
        return f"{self.file()}:{self.entry.attr}"

    def file(self) -> str:
        """The file of its module. Raises UserError where that is not to be found."""
        try:
            spec = importlib.util.find_spec(self.entry.module)
        except Exception as error:
            raise self._fault(error) from error
        file = spec.origin if spec is not None else None
        if file is None or not file.endswith(".py"):
            raise UserError(
                f"no module {self.entry.module}",
                where=self.name,
                remedy=f"install {self.origin} again",
            )
        return file

    def load(self) -> object:
        """The object, imported. Raises UserError for whatever its module raises."""
        try:
            return self.entry.load()
        except Exception as error:
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> UserError:
        return UserError(
            f"{self.origin} raised {type(error).__name__}: {error}",
            where=self.name,
            remedy="fix it, or uninstall it",
        )


@functools.cache
def installed() -> dict[str, Plugin]:
    """The plug-ins by their names."""
    from importlib.metadata import entry_points

    plugins = {}
    for group, kind in {**FUNCTIONS, **OBJECTS}.items():
        for entry in entry_points(group=f"recallkit.{group}"):
            if entry.dist is not None:
                name = f"{entry.dist.name}.{entry.name}"
                plugins[name] = Plugin(kind, name, f"{entry.dist.name} {entry.dist.version}", entry)
    return dict(sorted(plugins.items()))


def describe(*kinds: str) -> list[tuple[str, str]]:
    """Name, and what it is and where it is from, of every plug-in of these kinds that can be
    imported; a note says which cannot."""
    rows = []
    for name, plugin in installed().items():
        if plugin.kind not in kinds:
            continue
        try:
            plugin.load()
        except UserError as error:
            events.note(error.line())
        else:
            rows.append((name, f"{plugin.kind} of {plugin.origin}"))
    return rows


def find(name: str, *kinds: str) -> Plugin | None:
    """The plug-in of one of these kinds that a name means."""
    plugin = installed().get(name) if "." in name else None
    return plugin if plugin is not None and plugin.kind in kinds else None


def find_function(name: str) -> Plugin | None:
    """The model, task or cache that a name means."""
    return find(name, *FUNCTIONS.values())
