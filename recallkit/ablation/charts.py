"""The chart of ablations: what each set of mixers is worth in each slice, as a map of its losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display.charts import TIP, WIDTH, Figure, column, labels, layer, plot, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.ablation.tables import AblationTables
    from recallkit.display.charts import Spec

    Row = Mapping[str, Any]

HEADERS = {
    "all": "all",
    "ar_hit": "AR hits",
    "first_rare": "new, rare",
    "repeated_frequent": "repeated",
    "first_frequent": "new",
}
"""What the slices are called where there is little room."""
SLICES = "AR hits and repeated: the bigram is in the context already, rare in training or not; new: it is not."
_DARKEST = 0.8
"""Opacity of the largest loss: figures can be read on it, in light and in dark."""


def ablation_figures(tables: AblationTables) -> list[Figure]:
    """The map of losses: a row per set of mixers, a column per slice."""
    rows = tables.ablation.to_dicts()
    caption = (
        "Nats per token lost on each slice without each of the model's mixers; the darker, the more, by the square root. "
        f"The model is {shorten(rows[0]['model'], 60)}. "
        f"{SLICES}"
    )
    return [Figure("ablation", "What each mixer is worth, by slice", caption, _drawn(rows))]


def labelled(row: Row) -> str:
    """`3 mamba`; of mixers of several layers only what they are named."""
    return str(row["mixers"]) if row["layer"] is None else f"{row['layer']} {row['kind']}"


def _drawn(rows: Sequence[Row]) -> Spec:
    names, drawn = labels(list(dict.fromkeys(map(labelled, rows)))), []
    for row in (row for row in rows if row["loss"] is not None):
        loss, low, high = row["loss"], row["loss_ci_low"], row["loss_ci_high"]
        ends = "" if low is None else f" ({low:.2f} to {high:.2f})"
        tip = f"without {labelled(row)}, {HEADERS[row['slice']]}: {loss:.3f} nats per token{ends}"
        drawn.append({"name": names[labelled(row)], "slice": HEADERS[row["slice"]], "loss": loss, "shown": f"{loss:.2f}", "tip": tip})
    plain: Spec = {"ticks": False, "domain": False}
    x = column("slice", sort=list(HEADERS.values()), axis={"title": "nats per token lost", "orient": "top", "labelAngle": 0, **plain})
    y = column("name", sort=list(names.values()), axis={"title": "without", **plain})
    most = max((cell["loss"] for cell in drawn), default=0.0)
    scale = {"type": "sqrt", "domain": [0, max(most, 1e-9)], "range": [0, _DARKEST], "clamp": True}
    opacity = column("loss", "quantitative", scale=scale, legend=None)
    return plot(
        drawn,
        layer("rect", channels={"x": x, "y": y, "opacity": opacity, **TIP}, color="m0", stroke="page"),
        layer("text", channels={"x": x, "y": y, "text": column("shown")}),
        width=WIDTH - 6.5 * max(map(len, names.values())),
        height=18 * len(names),
    )
