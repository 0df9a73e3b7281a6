"""A finished result as trackers get it: options, manifest, headline numbers, tables, figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit.config import VERSION
from recallkit.display import console
from recallkit.display.exports import frames_of
from recallkit.display.figure_files import save_figures
from recallkit.errors import redacted
from recallkit.storage import artifacts
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


@dataclass(frozen=True, slots=True)
class Record:
    """A result. No text of a corpus, prompt or generation is in it; paths of this machine are, in the manifest.

    `options` are those given, by name, as JSON values; `manifest` that of the main table; `numbers` finite. `tables` have at most
    MOST_ROWS rows, and at least one; `shown` are the tables as they are printed. Tables and figures are named RESULT/NAME.
    """

    command: str
    name: str
    options: Mapping[str, Any]
    manifest: Mapping[str, Any]
    numbers: Mapping[str, float]
    tables: Mapping[str, pl.DataFrame]
    shown: Mapping[str, Table]
    pictures: Mapping[str, Picture]

    @property
    def config(self) -> dict[str, Any]:
        """What determines the run, as one JSON object."""
        facts = {"command": self.command, "recallkit_version": VERSION}
        return {**facts, "options": dict(self.options), "manifest": dict(self.manifest)}


def make_record(
    command: str,
    options: Mapping[str, Any],
    results: Iterable[tuple[Any, Mapping[str, Table], Path | None]],
    figures: Sequence[Figure],
    folder: Path,
) -> Record:
    """The record of what a command returned: `results` as for an export (frames, tables as printed, folder). Draws into `folder`."""
    numbers: dict[str, float] = {}
    tables: dict[str, pl.DataFrame] = {}
    shown: dict[str, Table] = {}
    manifests: dict[str, Any] = {}
    name, result = command, command
    for number, (found, printed, place) in enumerate(results):
        frames = frames_of(found)
        kind = next((key for key in frames if key in KINDS), next(iter(frames)))
        numbers |= headline_numbers(kind, frames)
        tables |= {f"{kind}/{key}": _first_rows(f"{kind}/{key}", frame) for key, frame in frames.items() if len(frame)}
        shown |= {f"{kind}/{key}": table for key, table in printed.items()}
        manifests |= _manifest(place, kind)
        if number == 0:
            result = kind
            name = command if place is None else f"{command}-{place.name}"[:_LONGEST_NAME]
    save_figures(figures, folder)
    pictures = {f"{result}/{figure.name}": Picture(figure.title, folder / f"{figure.name}.png") for figure in figures}
    given = {key: plain(value) for key, value in options.items() if value is not None}
    manifest = next(iter(manifests.values()), {}) if len(manifests) < 2 else manifests
    return Record(command, name, given, manifest, numbers, tables, shown, pictures)


def _first_rows(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    if len(frame) > MOST_ROWS:
        console.note(f"{name}: the first {MOST_ROWS:,} of {len(frame):,} rows are logged; the Parquet file has all")
    return frame.head(MOST_ROWS)


def _manifest(folder: Path | None, kind: str) -> dict[str, Any]:
    """The manifest of a result's main table, else that of the slices in the folder, by the result's name; empty if there is neither."""
    files = [] if folder is None else [folder / f"{kind}.parquet", folder / "tokens.parquet"]
    return next(({kind: artifacts.read_manifest(path)} for path in files if path.is_file()), {})


def plain(value: Any) -> Any:
    """An argument as a JSON value: what has none is named by its location, else by its type, never by its content."""
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
    return str(value) if type(value).__module__.startswith("recallkit.") else type(value).__name__


# -------------------------------------------------------------------------------------------------------------- headline numbers


class Headline(NamedTuple):
    """Columns of a table that are logged as numbers, named by the columns `keys`. Rows whose shares are void have none of them.

    `where`: only rows with one of these values; `unless`: only rows without them.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    where: Mapping[str, str] = {}
    unless: Mapping[str, str] = {}


_WHOLE = {"source": "ALL"}
HEADLINES: Mapping[str, tuple[Headline, ...]] = {
    "gap/gap": (
        Headline(("model", "slice"), ("ppl_model", "delta_nll"), _WHOLE),
        Headline(("model", "slice"), ("gap_share", "gap_share_ci_low", "gap_share_ci_high"), _WHOLE, unless={"slice": "all"}),
        Headline(("model", "slice"), ("gain_model", "retained", "retained_ci_low", "retained_ci_high"), {"slice": "ar_hit", **_WHOLE}),
    ),
    "intervene/retained": (Headline(("model", "slice"), ("retained", "retained_ci_low", "retained_ci_high", "causal_share")),),
    "intervene/intervene": (Headline(("model", "slice"), ("nll", "recall", "points", "points_ci_low", "points_ci_high")),),
    "ablation/mixers": (Headline(("model", "mixers"), ("loss", "loss_ar_hit", "retained", "retained_ci_low", "retained_ci_high")),),
    "recall/recall": (Headline(("model", "task"), ("accuracy", "ci_low", "ci_high", "f1", "answer_nll")),),
    "metrics/metrics": (Headline(("model", "task", "metric", "filter"), ("value",)),),
    "mqar/mqar": (Headline(("model", "pairs"), ("accuracy", "accuracy_low", "accuracy_high", "ar_ppl", "filler_ppl")),),
    "tradeoff/tradeoff": (Headline(("task", "model", "size", "width"), ("accuracy", "state_bytes", "parameters")),),
    "training/training": (Headline(("model", "step"), ("loss_nats",)),),
    "profile/profile": (Headline(("source",), ("repeated_bigrams", "repeated_share", "ar_hit_share"), _WHOLE),),
    "track/track": (Headline(("model",), ("nll", "ar_nll", "first_nll", "other_nll", "gain", "retained", "ar_gap")),),
    "scores/scores": (Headline(("model",), ("nll_nats", "ppl", "accuracy")),),
    "by_source/by_source": (Headline(("source",), ("repeated_share", "ar_hit_share"), _WHOLE),),
    "published/published": (Headline(("group", "model"), ("gap_share",)),),
}
"""RESULT/TABLE -> what is logged of it. A result is named as its kind is, else as its first table."""


def headline_numbers(result: str, frames: Mapping[str, pl.DataFrame]) -> dict[str, float]:
    """RESULT/KEY/.../COLUMN -> number, of all tables of a result; missing and infinite ones are left out, and shares that are void."""
    found: dict[str, float] = {}
    for name, frame in frames.items():
        for headline in HEADLINES.get(f"{result}/{name}", ()):
            for row_name, number in _numbers(headline, frame):
                found[f"{result}/{row_name}"] = number
    return found


def _numbers(headline: Headline, frame: pl.DataFrame) -> Iterator[tuple[str, float]]:
    frame = frame.unique(headline.keys + tuple(headline.where), keep="first", maintain_order=True)  # totals, where a source is called ALL
    for row in frame.iter_rows(named=True):
        has = [row[column] == value for column, value in headline.where.items()]
        lacks = [row[column] != value for column, value in headline.unless.items()]
        if not all((*has, *lacks)):
            continue
        keys = [str(row[key]) for key in headline.keys if row[key] not in (None, "", "none")]
        for column in headline.values:
            number = row[column]
            is_void = row.get("void", False) and "share" in column
            if not is_void and isinstance(number, int | float) and math.isfinite(number):
                yield "/".join([*keys, column]), number
