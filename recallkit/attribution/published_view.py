"""The arithmetic on printed perplexities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.attribution.view import ppl
from recallkit.display import console
from recallkit.display.console import percent
from recallkit.display.tables import Table

if TYPE_CHECKING:
    from recallkit.attribution.published import PublishedGap


def published_json(published: PublishedGap) -> dict[str, Any]:
    """The arithmetic on printed perplexities, row by row."""
    return {"reference": published.reference, "ar_share": published.ar_share, "rows": published.frame.to_dicts()}


def print_published(published: PublishedGap) -> None:
    """Printed perplexities with the share of the gap that they imply."""
    console.print_table(published_table(published))
    for row in published.frame.iter_rows(named=True):
        if row["note"]:
            console.print_line(f"{row['model']}: {row['note']}")


def published_table(published: PublishedGap) -> Table:
    """A row a model, as in the table that was given."""
    rows = [
        [row["model"], ppl(row["all"]), ppl(row["ar"]), ppl(row["other"]), percent(row["gap_share"]), percent(row["gap_share_clipped"])]
        for row in published.frame.iter_rows(named=True)
    ]
    return Table(
        "Share of the gap that is associative recall, from printed perplexities",
        ["model", "all", "AR hits", "other", "raw share", "clipped"],
        rows,
        caption=f"AR hits are {percent(published.ar_share, 2)} of tokens, by the row of {published.reference}.",
        groups=[("", 1), ("perplexity", 3), ("gap due to AR hits", 2)],
    )
