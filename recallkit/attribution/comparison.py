"""A comparison read back: the tables that `recallkit gap` wrote, found in their folder and checked to belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit.attribution.tables import GapTables
from recallkit.display.notebook import Shown
from recallkit.errors import UserError
from recallkit.slicing.definitions import parse_slices
from recallkit.storage import artifacts
from recallkit.storage.artifacts import DamagedError
from recallkit.storage.result import read_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.slicing.definitions import Slice

_REMEDY = "make the tables with `recallkit gap REFERENCE MODEL... --slices DIR`"
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """Models compared with a reference, as `recallkit gap` wrote them. `models` are sorted by overall perplexity, the best first.

    `given` are the slices requested besides those of every comparison.

    `slices` is the slice directory of the comparison, if it is available: it contains labels, text and scores.
    """

    folder: Path
    reference: str
    models: list[str]
    tables: GapTables
    manifest: Mapping[str, Any]
    slices: Path | None = None
    given: Sequence[Slice] = ()

    @property
    def totals(self) -> dict[tuple[str, str], dict[str, Any]]:
        """(model, slice) -> row of the gap table, all sources together."""
        # The totals of each model come first: a source that is itself called ALL comes after them.
        rows = reversed(self.tables.gap.to_dicts())
        return {(row["model"], row["slice"]): row for row in rows if row["source"] == "ALL"}

    def source_rows(self, model: str) -> list[dict[str, Any]]:
        """Rows of the gap table of one model and single sources, whatever these are called."""
        rows = [row for row in self.tables.gap.to_dicts() if row["model"] == model]
        wholes = [place for place, row in enumerate(rows) if row["slice"] == "all"]  # the first row of each source; the totals come first
        return rows[wholes[1] :] if len(wholes) > 1 else []


def find_comparison(folder: Path) -> Path:
    """The folder of a comparison: `folder` itself, or the only one in the slice directory `folder`.

    Raises UserError if there is none, or more than one.
    """
    if (folder / "gap.parquet").is_file():
        return folder
    found = sorted(path.parent for path in (folder / "gap").glob("*/gap.parquet"))
    if not found:
        raise UserError("no tables of a comparison here (gap.parquet is missing)", where=folder, remedy=_REMEDY)
    if len(found) > 1:
        named = ", ".join(path.name for path in found[:_MOST_NAMED]) + (" ..." if len(found) > _MOST_NAMED else "")
        raise UserError(f"{len(found)} comparisons here ({named})", where=folder / "gap", remedy="name the folder of one of them")
    return found[0]


def read_comparison(folder: Path, slices: Path | None = None) -> Comparison:
    """Reads the comparison in `folder` (see `find_comparison`).

    `slices` names its slice directory; by default it is the one that contains `folder`, if it is the right one.
    Raises UserError if tables are missing or damaged, or if `slices` are others.
    """
    import polars as pl

    folder = find_comparison(folder)
    with artifacts.unchanged(folder / artifacts.MANIFEST):
        manifest, tables = artifacts.read_manifest(folder / "gap.parquet"), read_tables(GapTables, folder)
    totals = tables.gap.filter((pl.col("source") == "ALL") & (pl.col("slice") == "all")).unique("model", keep="first", maintain_order=True)
    return Comparison(
        folder=folder,
        reference=manifest["reference"],
        models=totals.sort("nll_model", "model")["model"].to_list(),
        tables=tables,
        manifest=manifest,
        slices=_slices_of(folder, manifest, slices),
        given=parse_slices(manifest.get("slice", ())),
    )


def _slices_of(folder: Path, manifest: Mapping[str, Any], named: Path | None) -> Path | None:
    """The slice directory of a comparison: the one that is named, or the one that contains it; None if it is not a slice directory."""
    if named is not None:
        if not _is_labelled_alike(manifest, artifacts.read_manifest(named / "tokens.parquet")):
            raise UserError("not the slices that were compared", where=named, remedy="name the directory that `recallkit gap` was given")
        return named
    # Both the path as written and the resolved path: slices/gap may be a link to another disk, and so may the folder.
    for around in dict.fromkeys([folder.absolute().parent.parent, folder.resolve().parent.parent]):
        try:
            found = artifacts.read_manifest(around / "tokens.parquet")
        except DamagedError:
            raise
        except UserError:
            continue
        if _is_labelled_alike(manifest, found):
            return around
    return None


def _is_labelled_alike(manifest: Mapping[str, Any], tokens: Mapping[str, Any]) -> bool:
    """Whether labels are those of a comparison: of the same sequences, counts (wherever they are) and threshold."""
    return labels_identity(manifest["slices"]) == labels_identity(tokens)


def labels_identity(facts: Mapping[str, Any]) -> list[Any]:
    """Sequences, counts and threshold: what decides the labels; of the facts of the slices in a manifest."""
    counts = facts.get("counts")
    return [facts.get("sequences_digest"), counts and counts.get("id"), facts.get("max_count")]
