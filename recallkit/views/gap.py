"""The gap and what it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit import artifacts, console
from recallkit.console import percent
from recallkit.errors import UserError
from recallkit.tables import Table
from recallkit.views.text import what_is_rare

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from recallkit.stages.gap import GapTables


_MOST_ROWS = 20
_MOST_COLUMNS = 3
"""Sources and models in the table by source: what a terminal shows; the Parquet file has all of them."""


def gap_json(tables: GapTables, out: Path) -> dict[str, Any]:
    """The gap table row by row, as in `gap.parquet`."""
    return {
        "path": str(out),
        "gap": tables.gap.to_dicts(),
        "by_threshold": tables.by_threshold.to_dicts(),
        "inexact": artifacts.read_manifest(out / "gap.parquet")["inexact"],
    }


def worst_ar_gap(tables: GapTables) -> float:
    """The largest difference in NLL (nats) on AR hits, over all sources, of any model to the reference.

    Raises UserError where there are no AR hits to judge by.
    """
    import polars as pl

    worst = tables.gap.filter((pl.col("source") == "ALL") & (pl.col("slice") == "ar_hit"))["delta_nll"].max()
    if not isinstance(worst, float):
        raise UserError("there are no AR hits to judge by", where="--fail-above")
    return worst


def print_gap(tables: GapTables, slices: Mapping[str, Any], out: Path) -> None:
    """Perplexities of every model overall, on AR hits and on other tokens, and the share of the gap with its interval."""
    cells = {(row["model"], row["source"], row["slice"]): row for row in tables.gap.iter_rows(named=True)}
    models = list(dict.fromkeys(model for model, _, _ in cells))
    first = cells[models[0], "ALL", "all"]
    share = cells[models[0], "ALL", "ar_hit"]["share_of_tokens"]
    rows = [[first["reference"], *(ppl(cells[models[0], "ALL", s]["ppl_reference"]) for s in ("all", "ar_hit", "other")), "", "reference"]]
    notes = []
    for model in models:
        row = cells[model, "ALL", "ar_hit"]
        rows.append(
            [
                model,
                *(ppl(cells[model, "ALL", s]["ppl_model"]) for s in ("all", "ar_hit", "other")),
                percent(row["gap_share"]),
                interval(row),
            ]
        )
        notes += [f"{model}: {row['note']}"] if row["note"] else []
    caption = f"AR hits are {percent(share, 2)} of {first['tokens']:,} tokens. {what_is_rare(slices)}"
    console.print_table(
        Table(
            "Perplexity, and the share of the gap to the reference that lies in AR hits",
            ["model", "all", "AR hits", "other", "AR share", "95 % interval"],
            rows,
            caption=caption,
        )
    )
    for line in [*_bits_per_byte([cells[model, "ALL", "all"] for model in models]), *_inexact(out), *notes]:
        console.stdout().print(line, markup=False)
    if len({source for _, source, _ in cells}) > 2 and len(models) <= _MOST_COLUMNS:
        _print_by_source(cells, models)
    console.stdout().print(f"Tables (Parquet): {out}", markup=False, soft_wrap=True)


def _bits_per_byte(rows: list[Mapping[str, Any]]) -> list[str]:
    """One line: what compares models with different tokenizers. Nothing where the bytes are not known."""
    if rows[0]["bpb_reference"] is None:
        return []
    pairs = [(rows[0]["reference"], rows[0]["bpb_reference"]), *((row["model"], row["bpb_model"]) for row in rows)]
    return ["Bits per byte: " + ", ".join(f"{model} {bits:.3f}" for model, bits in pairs)]


def _inexact(out: Path) -> list[str]:
    """A line for each model with a tokenizer of its own: how much of the text its tokens part elsewhere."""
    found = artifacts.read_manifest(out / "gap.parquet")["inexact"]
    return [
        f"{model}: a tokenizer of its own; {percent(share['all'])} of tokens, {percent(share.get('ar_hit'))} of AR hits do not begin and "
        "end where its tokens do"
        for model, share in found.items()
    ]


def _print_by_source(cells: Mapping[tuple[str, str, str], Mapping[str, Any]], models: list[str]) -> None:
    """The share of the gap by source, a column a model."""
    whole = {source: cell["tokens"] for (model, source, kind), cell in cells.items() if (model, kind) == (models[0], "all")}
    sources = {source: tokens for source, tokens in whole.items() if source != "ALL"}
    largest = sorted(sources, key=lambda source: (-sources[source], source))[:_MOST_ROWS]
    rows = []
    for source in largest:
        shares = [percent(cells[model, source, "ar_hit"]["gap_share"]) for model in models]
        rows.append([source, f"{sources[source]:,}", percent(cells[models[0], source, "ar_hit"]["share_of_tokens"], 2), *shares])
    hidden = len(sources) - len(largest)
    console.print_table(
        Table(
            "AR share of the gap by source",
            ["source", "tokens", "AR hits", *models],
            rows,
            caption=f"{hidden:,} smaller sources: see the Parquet file." if hidden else None,
        )
    )


def ppl(value: float | None) -> str:
    """A perplexity; a dash where there is none."""
    return "–" if value is None else f"{value:,.2f}"


def interval(row: Mapping[str, Any]) -> str:
    """The 95 % interval of a share, in per cent; a dash where there is none."""
    low, high = row["ci_low"], row["ci_high"]
    return "–" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f} %"
