"""A published table of perplexities, attributed without the models: each row is `model, all, ar, other`.

The share of AR hits, which papers state rarely and not always correctly, follows from the reference's own three perplexities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit.attribution.shares import clipped_share, describe_gap, enrichment
from recallkit.errors import UserError, lacks_resources

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

REFERENCE = "reference"
NO_AR_PERPLEXITY = "no perplexity on AR hits"


@dataclass(frozen=True, slots=True)
class PublishedGap:
    """The attribution of a published table, and the share of AR hits among tokens on which it is based.

    frame: one row per model, in the table's order: model; all, ar, other (perplexities, as given); implied_ar_share (fraction
    of tokens, from the row's own three perplexities); gap_share and gap_share_clipped (fractions of the gap to the
    reference, null on its own row); enrichment (gap_share over `ar_share`); note.
    """

    frame: pl.DataFrame
    reference: str
    ar_share: float


@dataclass(frozen=True, slots=True)
class _Row:
    model: str
    all: float
    ar: float | None
    other: float | None


def attribute_published(table: Path, *, reference: str | None = None, ar_share: float | None = None) -> PublishedGap:
    """Attributes the gaps in `table` (CSV, TSV or Parquet; `other` may be empty) to the row `reference`, or to the first.

    With p the share of AR hits among tokens, log all = p log ar + (1 - p) log other. p is solved on the reference's row
    unless `ar_share` (a fraction) gives it; a model's share of the gap in AR hits is then
    p (log ar - log ar_ref) / (log all - log all_ref) (Zoology section 3.1 and appendix C.1).

    Raises UserError for a table without the necessary columns or rows, perplexities that are not positive numbers, a
    reference that is not in the table or lacks what p needs, and a p outside (0, 1).
    """
    rows = _read_rows(table)
    chosen = _find_reference(table, rows, reference)
    if chosen.ar is None:
        raise UserError(f"row {chosen.model}: no perplexity in column ar", where=table, remedy="the reference needs all and ar")
    share = _share_of_tokens(table, chosen) if ar_share is None else ar_share
    if not 0 < share < 1:
        derived = f"check the perplexities of {chosen.model} (all lies between ar and other), or give the share with --ar-share"
        remedy = derived if ar_share is None else "give it as a fraction: 0.07 for 7 %"
        raise UserError(f"the share of AR hits is {share:.4g}, not between 0 and 1", where=table, remedy=remedy)
    return PublishedGap(_frame([_attribute(row, chosen, share) for row in rows]), chosen.model, share)


def implied_ar_share(ppl_all: float, ppl_ar: float, ppl_other: float) -> float | None:
    """The share p of AR hits among tokens with log all = p log ar + (1 - p) log other; None where ar equals other."""
    spread = math.log(ppl_ar) - math.log(ppl_other)
    return None if spread == 0 else (math.log(ppl_all) - math.log(ppl_other)) / spread


def _share_of_tokens(table: Path, row: _Row) -> float:
    """p as implied by the reference's row."""
    implied = None if row.other is None or row.ar is None else implied_ar_share(row.all, row.ar, row.other)
    if implied is None:
        problem = "no perplexity in column other" if row.other is None else "ar and other are equal"
        remedy = "fill it in, or give the share of AR hits with --ar-share"
        raise UserError(f"row {row.model}: {problem}, so the share of AR hits cannot be derived", where=table, remedy=remedy)
    return implied


def _attribute(row: _Row, reference: _Row, ar_share: float) -> dict[str, Any]:
    implied = None if row.ar is None or row.other is None else implied_ar_share(row.all, row.ar, row.other)
    result = {"model": row.model, "all": row.all, "ar": row.ar, "other": row.other, "implied_ar_share": implied}
    none = dict.fromkeys(("gap_share", "gap_share_clipped", "enrichment"))
    if row is reference:
        return {**result, **none, "note": REFERENCE}
    if row.ar is None or reference.ar is None:
        return {**result, **none, "note": NO_AR_PERPLEXITY}
    gap = math.log(row.all) - math.log(reference.all)
    share = None if gap == 0 else ar_share * (math.log(row.ar) - math.log(reference.ar)) / gap
    shares = {"gap_share": share, "gap_share_clipped": clipped_share(gap, share), "enrichment": enrichment(share, ar_share)}
    return {**result, **shares, "note": "; ".join(describe_gap(gap, share))}


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    import polars as pl

    schema = {name: pl.String if name in ("model", "note") else pl.Float64 for name in rows[0]}
    return pl.DataFrame(rows, schema=schema)


def _find_reference(table: Path, rows: Sequence[_Row], name: str | None) -> _Row:
    if name is None:
        return rows[0]
    for row in rows:
        if row.model == name:
            return row
    raise UserError(f"no row of model {name}", where=table, remedy=f"name one of {', '.join(row.model for row in rows)}")


def _read_rows(table: Path) -> list[_Row]:
    """The rows of `table`, checked."""
    frame = _read_frame(table)
    for column in ("model", "all", "ar"):
        if column not in frame.columns:
            found = ", ".join(frame.columns)
            raise UserError(f"no column {column} (found: {found})", where=table, remedy="the columns are model, all, ar, other")
    if frame.is_empty():
        raise UserError("no rows", where=table, remedy="give a row a model: model, all, ar, other")
    rows: list[_Row] = []
    for line in frame.iter_rows(named=True):
        model = str(line["model"] or "").strip()
        if not model:
            raise UserError(f"row {len(rows) + 1} has no model", where=table, remedy="name the model of each row")
        if any(row.model == model for row in rows):
            raise UserError(f"two rows of model {model}", where=table, remedy="keep one, or rename one")
        everything, hits, other = (_perplexity(table, model, column, line.get(column)) for column in ("all", "ar", "other"))
        if everything is None:
            raise UserError(f"row {model}: no perplexity in column all", where=table, remedy="fill it in, or leave the row out")
        rows.append(_Row(model, everything, hits, other))
    return rows


def _perplexity(table: Path, model: str, column: str, value: object) -> float | None:
    """The perplexity in a field; None if it is empty."""
    if value is None or not str(value).strip():
        return None
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise UserError(f"row {model}: {column} is {value!r}, not a positive number", where=table, remedy="perplexities are > 0")
    return number


def _read_frame(table: Path) -> pl.DataFrame:
    """The table as text (CSV, TSV) or as it is (Parquet), with column names in lower case."""
    import polars as pl

    try:
        if table.suffix == ".parquet":
            frame = pl.read_parquet(table, glob=False)
        else:
            frame = pl.read_csv(table, separator="\t" if table.suffix == ".tsv" else ",", infer_schema=False, glob=False)
    except FileNotFoundError:
        raise UserError("no such file", where=table, remedy="give a CSV, TSV or Parquet file") from None
    except pl.exceptions.NoDataError:
        raise UserError("an empty file", where=table, remedy="the columns are model, all, ar, other") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        if lacks_resources(error):
            raise
        raise UserError(f"not a readable table ({error})", where=table, remedy="give a CSV, TSV or Parquet file") from error
    names = {name: name.strip().lower() for name in frame.columns}
    if len(set(names.values())) < len(names):
        raise UserError("two columns of one name", where=table, remedy="the columns are model, all, ar, other")
    return frame.rename(names)
