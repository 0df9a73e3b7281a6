"""The chart of slices: what share of each source repeats a bigram of its context, and what share is AR hits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.display.cells import counted, percent
from recallkit.display.charts import MOST_SOURCES, TIP, WIDTH, Colour, Figure, column, labels, layer, not_drawn, plot, share

if TYPE_CHECKING:
    import polars as pl

_KINDS = {"repeated": "repeated bigrams", "ar_hit": "AR hits"}


def slice_figures(summary: pl.DataFrame) -> list[Figure]:
    """One chart of the largest sources; `summary` is the result of `summarise_slices`, ALL first."""
    whole, *sources = summary.to_dicts()
    rows = [whole, *sources[:MOST_SOURCES]] if len(sources) > 1 else [whole]
    hits = "" if whole["ar_hit_share"] is None else ", and of AR hits, which are repeated and rare in training"
    rest = not_drawn([row["source"] for row in sources[len(rows) - 1 :]]) if len(sources) > 1 else ""
    by_source = ", by source" * (len(rows) > 1)
    caption = f"Share of predicted tokens that repeat a bigram of their context{hits}{by_source}.{rest}"
    names = labels([row["source"] for row in rows])
    drawn = []
    for kind, named in _KINDS.items():
        for row in rows:
            if (found := row[f"{kind}_share"]) is not None:
                tip = f"{row['source']}: {percent(found, 2)} {named} of {counted(row['tokens'], 'token')}"
                drawn.append({"name": names[row["source"]], "kind": named, "share": found, "tip": tip})
    kinds = [named for named in _KINDS.values() if any(row["kind"] == named for row in drawn)]
    colour = column("kind", scale={"domain": kinds, "range": [Colour("rest"), Colour("hits")][: len(kinds)]})
    channels = {
        "x": share("share", "share of tokens", zero=True),
        "y": column("name", sort=list(names.values()), axis={"title": None}),
        **TIP,
    }
    bars = [
        layer("bar", f"datum.kind === '{named}'", channels={**channels, "color": colour}, height=height)
        for named, height in zip(kinds, (15, 9), strict=False)
    ]
    spec = plot(drawn, *bars, width=WIDTH + 30 - 6.5 * max(map(len, names.values())), height=24 * len(rows))
    title = "Repeated tokens" if whole["ar_hit_share"] is None else "Repeated tokens and AR hits"
    return [Figure("slices", f"{title}{' by source' * (len(rows) > 1)}", caption, spec)]
