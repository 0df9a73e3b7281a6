"""A finished result as trackers get it: options, manifest, headline numbers, tables, figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit.config import VERSION
from recallkit.display import console
from recallkit.display.exports import frames_of
from recallkit.display.figure_files import save_figures
from recallkit.errors import redacted
from recallkit.storage import parquet_files
from recallkit.storage.result import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import polars as pl

    from recallkit.display.charts import Figure
    from recallkit.display.tables import Table

MOST_ROWS = 10_000
"""Rows of a table that are logged, as many as W&B shows; the Parquet files contain all."""
_LONGEST_NAME = 120
"""Characters of a run's name: W&B takes 128."""


class Picture(NamedTuple):
    """A figure, drawn: a PNG file that exists while it is logged."""

    title: str
    path: Path


@dataclass(slots=True)
class Record:
    """A result. No text of a corpus, prompt or generation is in it; paths are, in the manifest.

    Tables and figures are named RESULT/NAME.
    """

    command: str
    name: str
    options: dict[str, Any]
    """Those that the user set, as JSON values."""
    manifests: dict[str, Any] = field(default_factory=dict)
    """Of the main tables, by result."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Finite ones."""
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    """They have at most MOST_ROWS rows, and at least one."""
    printed: dict[str, Table] = field(default_factory=dict)
    pictures: dict[str, Picture] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """What determines the run, as one JSON object."""
        several = len(self.manifests) > 1
        manifest = self.manifests if several else next(iter(self.manifests.values()), {})
        return {
            "command": self.command,
            "recallkit_version": VERSION,
            "options": self.options,
            "manifest": manifest,
        }


def make_record(
    command: str,
    options: Mapping[str, Any],
    results: Iterable[tuple[Any, Mapping[str, Table], Path | None]],
    figures: Sequence[Figure],
    folder: Path,
) -> Record:
    """The record of what a command returned. Draws into `folder`.

    `results` are as for an export: frames, tables as printed, the result's folder.
    """
    plain_options = {key: plain(value) for key, value in options.items() if value is not None}
    record = Record(command, command, plain_options)
    main = command
    for number, (result, printed, place) in enumerate(results):
        frames = frames_of(result)
        kind = next((key for key in frames if key in KINDS), next(iter(frames)))
        if number == 0:
            main = kind
            record.name = command if place is None else f"{command}-{place.name}"[:_LONGEST_NAME]
        record.numbers |= headline_numbers(kind, frames)
        for key, frame in frames.items():
            if len(frame):
                record.tables[f"{kind}/{key}"] = _first_rows(f"{kind}/{key}", frame)
        for key, table in printed.items():
            record.printed[f"{kind}/{key}"] = table
        record.manifests |= _manifest(place, kind)
    save_figures(figures, folder)
    for figure in figures:
        picture = Picture(figure.title, folder / f"{figure.name}.png")
        record.pictures[f"{main}/{figure.name}"] = picture
    return record


def _first_rows(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    if len(frame) > MOST_ROWS:
        rows = f"the first {MOST_ROWS:,} of {len(frame):,} rows"
        console.note(f"{name}: {rows} are logged; the Parquet file has all")
    return frame.head(MOST_ROWS)


def _manifest(folder: Path | None, kind: str) -> dict[str, Any]:
    """By the result's name the manifest of its main table, else that of slices in the folder."""
    if folder is not None:
        for path in (folder / f"{kind}.parquet", folder / "tokens.parquet"):
            if path.is_file():
                return {kind: parquet_files.read_manifest(path)}
    return {}


def plain(value: Any) -> Any:
    """An argument as a JSON value.

    What has none is named by its location, else by its type, never by its content.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    location = getattr(value, "location", None)
    if isinstance(location, str):
        return redacted(location)
    is_ours = type(value).__module__.startswith("recallkit.")
    return str(value) if is_ours else type(value).__name__


# ------------------------------------------------------------------------------- headline numbers


class Headline(NamedTuple):
    """Columns of a table that are logged as numbers, named by the columns `keys`.

    Rows whose shares are void have none of these. `where`: only rows with one of these values;
    `unless`: only rows without them.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    where: Mapping[str, str] = {}
    unless: Mapping[str, str] = {}


_RETAINED = ("retained", "retained_ci_low", "retained_ci_high")
_POINTS = ("points", "points_ci_low", "points_ci_high")
_GAP_SHARE = ("gap_share", "gap_share_ci_low", "gap_share_ci_high")
_OF_SLICE, _IN_ALL = ("model", "slice"), {"source": "ALL"}
HEADLINES: Mapping[str, tuple[Headline, ...]] = {
    "gap/gap": (
        Headline(_OF_SLICE, ("ppl_model", "delta_nll"), _IN_ALL),
        Headline(_OF_SLICE, _GAP_SHARE, _IN_ALL, unless={"slice": "all"}),
        Headline(_OF_SLICE, ("gain_model", *_RETAINED), {"slice": "ar_hit", **_IN_ALL}),
    ),
    "intervene/retained": (Headline(_OF_SLICE, (*_RETAINED, "causal_share")),),
    "intervene/intervene": (Headline(_OF_SLICE, ("nll", "recall", *_POINTS)),),
    "ablation/mixers": (Headline(("model", "mixers"), ("loss", "loss_ar_hit", *_RETAINED)),),
    "recall/recall": (
        Headline(
            ("model", "task"),
            ("accuracy", "ci_low", "ci_high", "f1", "answer_nll"),
        ),
    ),
    "metrics/metrics": (Headline(("model", "task", "metric", "filter"), ("value",)),),
    "mqar/mqar": (
        Headline(
            ("model", "pairs"),
            ("accuracy", "accuracy_low", "accuracy_high", "ar_ppl", "filler_ppl"),
        ),
    ),
    "tradeoff/tradeoff": (
        Headline(
            ("task", "model", "size", "width"),
            ("accuracy", "state_bytes", "parameters"),
        ),
    ),
    "training/training": (Headline(("model", "step"), ("loss_nats",)),),
    "profile/profile": (
        Headline(
            ("source",),
            ("repeated_bigrams", "repeated_share", "ar_hit_share"),
            _IN_ALL,
        ),
    ),
    "track/track": (
        Headline(
            ("model",),
            ("nll", "ar_nll", "first_nll", "other_nll", "gain", "retained", "ar_gap"),
        ),
    ),
    "scores/scores": (Headline(("model",), ("nll_nats", "ppl", "accuracy")),),
    "by_source/by_source": (Headline(("source",), ("repeated_share", "ar_hit_share"), _IN_ALL),),
    "published/published": (Headline(("group", "model"), ("gap_share",)),),
}
"""RESULT/TABLE -> what is logged of it. A result's name is its kind's, else its first table's."""


def headline_numbers(result: str, frames: Mapping[str, pl.DataFrame]) -> dict[str, float]:
    """RESULT/KEY/.../COLUMN -> number, of all tables of a result.

    Missing and infinite ones are left out, and shares that are void.
    """
    numbers: dict[str, float] = {}
    for name, frame in frames.items():
        for headline in HEADLINES.get(f"{result}/{name}", ()):
            for row_name, number in _numbers(headline, frame):
                numbers[f"{result}/{row_name}"] = number
    return numbers


def _numbers(headline: Headline, frame: pl.DataFrame) -> Iterator[tuple[str, float]]:
    # Totals come first: they count where a source is called ALL, too.
    columns = headline.keys + tuple(headline.where)
    frame = frame.unique(columns, keep="first", maintain_order=True)
    for row in frame.iter_rows(named=True):
        is_wanted = all(row[column] == value for column, value in headline.where.items())
        is_left_out = any(row[column] == value for column, value in headline.unless.items())
        if is_left_out or not is_wanted:
            continue
        keys = [str(row[key]) for key in headline.keys if row[key] not in (None, "", "none")]
        for column in headline.values:
            number = row[column]
            is_void = row.get("void", False) and "share" in column
            if not is_void and isinstance(number, int | float) and math.isfinite(number):
                yield "/".join([*keys, column]), number
