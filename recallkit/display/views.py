"""A result as people see it: its sentence, its tables, its notes, its charts; printed, as JSON,
exported, on a page."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from recallkit.display import console
from recallkit.display.exports import frames_of
from recallkit.storage import parquet_files
from recallkit.storage.artifacts import MANIFEST
from recallkit.storage.result import read_tables
from recallkit.storage.timings import read_timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.display.charts import Figure
    from recallkit.display.tables import Table


class Measured(NamedTuple):
    """A figure of a model: the hub's name of the metric (`perplexity`), ours, and what it was
    measured on, a hub id or other name."""

    model: str
    metric: str
    name: str
    value: float
    dataset: str


class ResultView:
    """The result of a `kind` in a folder. Its tables, a dataclass of frames, and its manifest are
    read unless they are passed.

    A kind of result says what is its own: `answer`, `display_tables`, `draw`, `notes`, `method`,
    `command` ...
    """

    kind: ClassVar[str]
    tables_type: ClassVar[type]
    for_parquet_alone: ClassVar[Sequence[str]] = ()

    def __init__(
        self, folder: Path, tables: Any = None, manifest: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = folder
        if manifest is not None:
            self.manifest = manifest
        self.tables: Any = read_tables(self.tables_type, folder) if tables is None else tables

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """What is known of how it was made."""
        return parquet_files.read_manifest(self.folder / f"{self.kind}.parquet")

    # ----------------------------------------------------------------------------- what a kind says

    def answer(self) -> str:
        """What it says, in a sentence or two."""
        raise NotImplementedError

    @cached_property
    def display_tables(self) -> Mapping[str, Table]:
        """Its tables for people by name, as an export and a page have them, the first one first."""
        raise NotImplementedError

    def terminal_tables(self) -> Sequence[Table]:
        """Those of a terminal, if these are others."""
        return list(self.display_tables.values())

    def draw(self, tables: Any) -> Sequence[Figure]:
        """Its charts, or those of a part of its tables."""
        raise NotImplementedError

    def leading(self) -> int:
        """How many tables a terminal always has; the others are printed with --full."""
        return 1

    def notes(self) -> Sequence[str]:
        """What a terminal says below the tables."""
        return ()

    def brief(self) -> int:
        """How many notes a terminal always has."""
        return console.MOST_NOTES

    def places(self) -> Mapping[str, Path]:
        """Where else a part of it is."""
        return {}

    def facts(self) -> Mapping[str, Any]:
        """What JSON has besides the tables."""
        return {}

    def method(self) -> Mapping[str, str]:
        """How it was measured, by name."""
        return {}

    def files(self) -> Sequence[str]:
        """What a page reads besides its tables."""
        return ()

    def measured(self) -> Sequence[Measured]:
        """Figures for model cards."""
        return ()

    # ----------------------------------------------------------------------- the same for all kinds

    @property
    def command(self) -> str:
        """The command that was typed to make it; empty if a program did."""
        return (self.timings or {}).get("command") or ""

    @property
    def timings(self) -> dict[str, Any] | None:
        """How long it took, where and when, if that is known."""
        return read_timings(self.folder / MANIFEST, kind=self.kind)

    @property
    def frames(self) -> dict[str, pl.DataFrame]:
        """Its frames by name, but those that are for Parquet alone."""
        return {
            name: frame
            for name, frame in frames_of(self.tables).items()
            if name not in self.for_parquet_alone
        }

    def figures(self, models: Sequence[str] = ()) -> Sequence[Figure]:
        """What can be drawn of it, of some `models` or of all."""
        if not models:
            return self.draw(self.tables)
        parts = {}
        for name, frame in frames_of(self.tables).items():
            if "model" in frame.columns:
                parts[name] = frame.filter(frame["model"].is_in(list(models)))
        if parts and all(frame.is_empty() for frame in parts.values()):
            return []
        return self.draw(dataclasses.replace(self.tables, **parts) if parts else self.tables)

    def print(self, *others: ResultView, full: bool = False) -> None:
        """The answer, the first table and notes, and where the rest is; or, `full`, all there
        is, also of `others`."""
        tables, notes = list(self.terminal_tables()), list(self.notes())
        for other in others:
            tables += other.terminal_tables()
            notes += [other.answer(), *other.notes()]
        console.print_answer(
            self.answer(),
            tables,
            notes,
            full=full,
            leading=self.leading(),
            brief=self.brief(),
            places={"tables": self.folder, **(self.places() if full else {})},
        )

    def json(self) -> dict[str, Any]:
        """Facts of its run, the tables row by row, how long it took."""
        rows = {name: frame.to_dicts() for name, frame in self.frames.items()}
        return {"path": str(self.folder), **self.facts(), **rows, "timings": self.timings}
