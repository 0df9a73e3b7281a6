"""A comparison read back: the tables that `gap` wrote, checked to belong together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from recallkit.attribution.tables import GapTables, has_counts, hit_of, rows_by_slice
from recallkit.display.notebook import NotebookResult
from recallkit.errors import UserError
from recallkit.measure.rows import ALL, count_cuts
from recallkit.slicing.definitions import parse_slices
from recallkit.storage import parquet_files, records
from recallkit.storage.artifacts import DamagedError
from recallkit.storage.result import read_result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recallkit.slicing.definitions import Slice

_REMEDY = "make the tables with `recallkit gap REFERENCE MODEL... --slices DIR`"
_MOST_NAMED = 5
"""Comparisons that an error names."""


@dataclass(frozen=True, repr=False)
class Comparison(NotebookResult):
    """Models compared with a reference, as `recallkit gap` wrote them.

    `models` are sorted by overall perplexity, the best first. `slices` is the slice directory of
    the comparison, if it is available: it contains labels, text and scores. `requested` are the
    slices besides those of every comparison.
    """

    folder: Path
    reference: str
    models: list[str]
    tables: GapTables
    manifest: records.Gap
    slices: Path | None = None
    requested: Sequence[Slice] = ()

    @cached_property
    def totals(self) -> dict[tuple[str, str], dict[str, Any]]:
        """(model, slice) -> row of the gap table, all sources together."""
        rows = rows_by_slice(self.tables.gap)
        return {(model, name): row for (model, source, name), row in rows.items() if source == ALL}

    @property
    def counts(self) -> records.Counts | None:
        """The training counts; None if it is not known how often bigrams occur in training."""
        return self.manifest["slices"]["counts"]

    @property
    def max_count(self) -> int:
        """Largest training count of an AR hit; 0 if it is not known."""
        return self.manifest["slices"]["max_count"] or 0

    @property
    def has_counts(self) -> bool:
        """See `tables.has_counts`."""
        return has_counts(self.manifest["slices"])

    @property
    def hit(self) -> str:
        """See `tables.hit_of`."""
        return hit_of(self.manifest["slices"])

    def source_rows(self, model: str) -> list[dict[str, Any]]:
        """Rows of the gap table of one model and single sources, whatever these are called."""
        rows = self.tables.gap.filter(model=model).to_dicts()
        # Each source begins with the row of all its tokens; the totals come first.
        starts = [place for place, row in enumerate(rows) if row["slice"] == "all"]
        return rows[starts[1] :] if len(starts) > 1 else []


def find_comparison(folder: Path) -> Path:
    """The folder of a comparison: `folder` itself, or the only one in the slice directory `folder`.

    Raises UserError if there is none, or more than one.
    """
    if (folder / "gap.parquet").is_file():
        return folder
    folders = sorted(path.parent for path in (folder / "gap").glob("*/gap.parquet"))
    if not folders:
        problem = "no tables of a comparison here (gap.parquet is missing)"
        raise UserError(problem, where=folder, remedy=_REMEDY)
    if len(folders) > 1:
        names = ", ".join(path.name for path in folders[:_MOST_NAMED])
        rest = " ..." if len(folders) > _MOST_NAMED else ""
        problem = f"{len(folders)} comparisons here ({names}{rest})"
        raise UserError(problem, where=folder / "gap", remedy="name the folder of one of them")
    return folders[0]


def read_comparison(folder: Path, slices: Path | None = None) -> Comparison:
    """Reads the comparison in `folder` (see `find_comparison`).

    `slices` names its slice directory; by default it is the one that contains `folder`, if it is
    the right one. Raises UserError if tables are missing or damaged, or if `slices` are others.
    """
    folder = find_comparison(folder)
    manifest, tables = read_result(records.Gap, GapTables, folder)
    totals = tables.gap.filter(source=ALL, slice="all")
    totals = totals.unique("model", keep="first", maintain_order=True)
    _check_alike(manifest, {*totals["reference"], *totals["model"]}, tables, folder)
    return Comparison(
        folder=folder,
        reference=manifest["reference"],
        models=totals.sort("nll_model", "model")["model"].to_list(),
        tables=tables,
        manifest=manifest,
        slices=_slices_of(folder, manifest, slices),
        requested=parse_slices(manifest.get("slice", ())),
    )


def _check_alike(manifest: records.Gap, models: set[str], tables: GapTables, folder: Path) -> None:
    """Raises UserError unless the manifest is of the models and labels of the tables."""
    labels, is_known = manifest["slices"], True
    if has_counts(labels):
        most = count_cuts(labels["max_count"] or 0)["most"]
        is_known = most in tables.by_threshold["threshold"].to_list()
    if models != {*manifest["scores"]} or not is_known:
        problem = "its manifest is of other models or labels than its tables"
        raise UserError(problem, where=folder, remedy="make it again with --force")


def _slices_of(folder: Path, manifest: records.Gap, slices: Path | None) -> Path | None:
    """The slice directory of a comparison: the one that is named, or the one that contains it; None
    if it is not a slice directory."""
    if slices is not None:
        tokens = parquet_files.read_manifest(slices / "tokens.parquet", records.Tokens)
        if not are_alike(manifest["slices"], tokens):
            remedy = "name the directory that `recallkit gap` was given"
            raise UserError("not the slices that were compared", where=slices, remedy=remedy)
        return slices
    # Both the path as written and the resolved path: slices/gap may be a link to another disk, and
    # so may the folder.
    parents = [folder.absolute().parent.parent, folder.resolve().parent.parent]
    for parent in dict.fromkeys(parents):
        try:
            tokens = parquet_files.read_manifest(parent / "tokens.parquet", records.Tokens)
        except DamagedError:
            raise
        except UserError:
            continue
        if are_alike(manifest["slices"], tokens):
            return parent
    return None


def are_alike(labels: records.Labels, others: records.Labels) -> bool:
    """Whether two records of labels are of the same sequences, counts (wherever they are) and
    threshold."""
    return _identity(labels) == _identity(others)


def _identity(labels: records.Labels) -> tuple[Any, ...]:
    counts = labels["counts"]
    return labels["sequences_digest"], counts and counts["id"], labels["max_count"]
