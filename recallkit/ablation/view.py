"""Ablations as text and as a map of losses: without which mixers less recall is retained, and what
is lost by slice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.ablation.tables import LEAST, AblationTables
from recallkit.display import cells
from recallkit.display.cells import or_dash, percent, resampled, some_of, too_few
from recallkit.display.charts import (
    TIP,
    WIDTH,
    Figure,
    column,
    labels,
    layer,
    line_chart,
    number,
    plot,
    share,
    shorten,
)
from recallkit.display.exports import Look, command_line
from recallkit.display.tables import Table
from recallkit.models.ablation import heads_of
from recallkit.slicing.view import what_is_rare
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.display.charts import Spec

    Row = Mapping[str, Any]

SLICES = """AR hits, repeated: the bigram is in the context already, rare in training or not. \
New: it is not in the context yet."""


ELIMINATION = (
    "backward elimination: from all layers one is removed at a time, that without which most of the recall gain is retained"
)


def look(folder: Path, tables: AblationTables | None = None) -> Look:
    """The ablations in a folder as people see them: their tables are read unless they are given."""
    tables = tables or read_tables(AblationTables, folder)
    manifest = artifacts.read_manifest(folder / "ablation.parquet")
    return Look(
        folder,
        "ablation",
        tables,
        ablation_tables(tables, manifest),
        ablation_figures,
        which_recall(tables),
        method(tables, manifest),
        command(manifest),
    )


def method(tables: AblationTables, manifest: Mapping[str, Any]) -> dict[str, str]:
    """How it was measured: the text, what replaces the outputs, the intervals."""
    slices = manifest["slices"]
    return {
        "Text": f"{slices['num_rows']:,} predicted tokens in sequences of up to {slices['seq_len']:,}",
        "Ablation": f"{_what_is_replaced(manifest)}; the text is read again, nothing is trained",
        **({} if tables.budget is None else {"Layers": ELIMINATION}),
        "95 % intervals": resampled(tables.mixers.row(0, named=True), which=" with AR hits"),
    }


def command(manifest: Mapping[str, Any]) -> str:
    """The command that makes it again."""
    options = manifest["options"]
    cluster = None if options["cluster"] == "document" else options["cluster"]
    more = {
        "heads": options["heads"],
        "budget": options["budget"],
        "by": options["by"],
        "cluster": cluster,
        "clean": options["clean"],
    }
    return command_line("ablate", manifest["model"], slices="DIR", mixers=options["mixers"], **more)


def _what_is_replaced(manifest: Mapping[str, Any]) -> str:
    options = manifest["options"]
    what = "heads" if options["heads"] else "mixers"
    instead = "their mean over the text" if options["by"] == "mean" else "zero"
    return f"the outputs of {what} are replaced by {instead}"


# ---------------------------------------------------------------------------------------- answer

ENRICHED = 2.0
"""How many times as much of a loss as of the tokens AR hits must have at least, by its interval: a
model that breaks recalls nothing, either."""


def which_recall(tables: AblationTables) -> str:
    """Without which mixers less of the recall gain is retained, by more than LEAST, and AR hits
    lose in particular (ENRICHED).

    Of a set and a part of it the part is named.
    """
    rows = tables.mixers.to_dicts()
    first = rows[0]
    model, gain = first["model"], f"{_GAIN(first)} points"
    if first["gain_ci_low"] is None:
        few = too_few("AR hits", first["effective_clusters"], f"{first['cluster']}s")
        return f"Which mixers recall depends on is unknown: {few}."
    if first["gain_ci_low"] <= 0:
        return f"{model} shows no significant recall: its recall gain on AR hits is {gain}."
    if tables.budget is not None:
        return _which_suffice(model, gain, tables.budget.to_dicts())
    less = [row for row in rows if row["retained_ci_high"] < 1 - LEAST]
    most = ENRICHED * first["share_of_tokens"]
    needed = [row for row in less if not row["void"] and row["loss_share_ci_low"] > most]
    named = [f"{_retained(row)} without {_in_text(row)}" for row in _smallest(needed)]
    breaking = [_in_text(row) for row in _smallest(less) if row not in needed]
    answer = f"Of its recall gain of {gain}, {model} retains {', '.join(named)}."
    if not named:
        answer = f"{model} has a recall gain of {gain}; none of these mixers is shown to serve recall in particular."
    if breaking:
        answer += (
            f" Without {some_of(breaking)} it {'also ' * bool(named)}retains less, but that loss "
            "is not shown to fall on AR hits in particular."
        )
    return answer


def _which_suffice(model: str, gain: str, rows: Sequence[Row]) -> str:
    """`Layers 1 and 3 of 4 keep 91 % (85 to 95) of the recall gain of m, 40.0 (37.1 to 43.1) points,
    with 50 % of the cache and a loss of 0.12 nats per token.`"""
    row = rows[-1]
    *others, last = row["layers"].split("+")
    which = f"Layers {', '.join(others)} and {last}" if others else f"Layer {last}"
    cache = "" if row["cache_share"] is None else f"{percent(row['cache_share'], 0)} of the cache and "
    return (
        f"{which} of {rows[0]['size']} {'keep' if others else 'keeps'} {_retained(row)} of the recall gain of {model}, {gain}, with "
        f"{cache}a loss of {row['loss']:z.2f} nats per token."
    )


_GAIN = cells.with_interval("gain", "z.1f", 100)


def _retained(row: Row) -> str:
    """`41 % (36 to 47)`"""
    value, low, high = (100 * row[f"retained{end}"] for end in ("", "_ci_low", "_ci_high"))
    return f"{value:z.0f} % ({cells.bounds(low, high, 'z.0f')})"


def _smallest(rows: Sequence[Row]) -> list[Row]:
    """The rows that have no other one as a part."""
    smallest = []
    for row in rows:
        parts = set(row["parts"].split())
        if not any(set(other["parts"].split()) < parts for other in rows):
            smallest.append(row)
    return smallest


def labelled(row: Row) -> str:
    """`3 mamba`, `3 mamba h0-1`; of mixers of several layers only what they are named."""
    if row["layer"] is None or "+" in row["mixers"]:
        return str(row["mixers"])
    heads = heads_of(row["mixers"])
    which = "" if heads is None else f" {row['mixers'].rpartition('.')[2]}"
    return f"{row['layer']} {row['kind']}{which}"


def _in_text(row: Row) -> str:
    return f"layer {labelled(row)}" if row["layer"] is not None else labelled(row)


# ---------------------------------------------------------------------------------------- tables


def ablation_tables(tables: AblationTables, manifest: Mapping[str, Any]) -> dict[str, Table]:
    """What is printed, by file name."""
    rows = tables.mixers.to_dicts()
    columns = {
        "without": labelled,
        "retained, %": cells.with_interval("retained", "z.0f", 100),
        "loss": cells.number("loss", "+z.2f"),
        "AR hits": cells.number("loss_ar_hit", "+z.2f"),
        "on them": cells.valid(cells.share("loss_share")),
    }
    caption = (
        f"Retained: in % of the recall gain on AR hits, {_GAIN(rows[0])} points. Loss: nats per token, over all tokens and over AR "
        f"hits; on them: the share of the total loss that falls on AR hits. Intervals: {resampled(rows[0], which=' with AR hits')}."
    )
    mixers = Table.of("Recall retained without mixers", columns, rows, caption)
    shown = {"mixers": mixers, "ablation": _losses(tables, manifest)}
    return shown if tables.budget is None else {"budget": _budget(tables.budget, rows[0]), **shown}


def _budget(frame: pl.DataFrame, row: Row) -> Table:
    """A line for each number of layers: the trade-off."""
    columns = {
        "layers": cells.number("size"),
        "which": lambda row: row["layers"].replace("+", ", "),
        "retained, %": cells.with_interval("retained", "z.0f", 100),
        "gain": lambda row: or_dash(None if row["gain"] is None else 100 * row["gain"], "z.1f"),
        "loss": cells.number("loss", "+z.2f"),
        "cache": lambda row: cells.size(row["cache_bytes"]),
        "of all": cells.share("cache_share", 0),
    }
    caption = (
        f"By {ELIMINATION}. Gain: recall gain, points. Loss: nats per token, over all tokens. Cache: of one sequence, what grows with it in "
        f"these layers. Intervals: {resampled(row, which=' with AR hits')}."
    )
    return Table.of("Recall retained with fewer layers", columns, frame.to_dicts(), caption)


def _losses(tables: AblationTables, manifest: Mapping[str, Any]) -> Table:
    rows = tables.ablation.to_dicts()
    sets = [rows[start : start + len(HEADERS)] for start in range(0, len(rows), len(HEADERS))]
    lines = [_line("unchanged (NLL)", sets[0], "nll", ".2f")]
    lines += [_line(labelled(of_set[0]), of_set, "loss", "+z.2f") for of_set in sets]
    lines.append(["share of tokens", *(percent(row["share_of_tokens"]) for row in sets[0])])
    what = _what_is_replaced(manifest)
    caption = f"{what[0].upper()}{what[1:]}. {SLICES} {what_is_rare(manifest['slices'])}"
    return Table(
        f"Loss of {rows[0]['model']}, nats per token",
        ["without", *HEADERS.values()],
        lines,
        caption,
    )


def _line(label: str, rows: Sequence[Row], name: str, form: str) -> list[str]:
    """A column of the rows of a set, slice by slice."""
    return [label, *(or_dash(row[name], form) for row in rows)]


# ---------------------------------------------------------------------------------------- charts

HEADERS = {
    "all": "all",
    "ar_hit": "AR hits",
    "first_rare": "new, rare",
    "repeated_frequent": "repeated",
    "first_frequent": "new",
}
"""What the slices are called where there is little room."""
_DARKEST = 0.8
"""Opacity of the largest loss: figures can be read on it, in light and in dark."""


def ablation_figures(tables: AblationTables) -> list[Figure]:
    """The map of losses: a row per set of mixers, a column per slice; of a budget first the trade-off."""
    rows = tables.ablation.drop_nulls("loss").to_dicts()
    names = labels(list(dict.fromkeys(map(labelled, rows))))
    drawn = []
    for row in rows:
        loss, header = row["loss"], HEADERS[row["slice"]]
        tip = f"without {labelled(row)}, {header}: {_LOSS(row)} nats per token"
        drawn.append(
            {
                "name": names[labelled(row)],
                "slice": header,
                "loss": loss,
                "shown": f"{loss:.2f}",
                "tip": tip,
            }
        )
    plain: Spec = {"ticks": False, "domain": False}
    x = column(
        "slice",
        sort=list(HEADERS.values()),
        axis={"title": "nats per token lost", "orient": "top", "labelAngle": 0, **plain},
    )
    y = column("name", sort=list(names.values()), axis={"title": "without", **plain})
    most = max([1e-9, *(row["loss"] for row in rows)])
    scale = {"type": "sqrt", "domain": [0, most], "range": [0, _DARKEST], "clamp": True}
    opacity = column("loss", "quantitative", scale=scale, legend=None)
    spec = plot(
        drawn,
        layer("rect", channels={"x": x, "y": y, "opacity": opacity, **TIP}, color="m0", stroke="page"),
        layer("text", channels={"x": x, "y": y, "text": column("shown")}),
        width=WIDTH - 6.5 * max(map(len, names.values())),
        height=18 * len(names),
    )
    caption = (
        f"Nats per token that {shorten(rows[0]['model'], 60)} loses on each slice without each of "
        f"its mixers. Colour grows with the square root of the loss. {SLICES}"
    )
    by_slice = Figure("ablation", "What each mixer is worth, by slice", caption, spec)
    return [by_slice] if tables.budget is None else [*_trade_off(tables.budget), by_slice]


def _trade_off(frame: pl.DataFrame) -> list[Figure]:
    """What is retained by the number of layers, where there is recall."""
    rows = frame.drop_nulls("retained").to_dicts()
    if not rows:
        return []
    model = rows[0]["model"]
    points = [
        {
            "model": model,
            "x": row["size"],
            "y": row["retained"],
            "low": row["retained_ci_low"],
            "high": row["retained_ci_high"],
            "at": f"{row['layers'].replace('+', ', ')} ({cells.size(row['cache_bytes'])})",
            "shown": f"{_retained(row)} retained",
        }
        for row in rows
    ]
    x = number("x", "layers", axis={"tickMinStep": 1, "format": "d"})
    spec = line_chart(points, [model], x, share("y", "retained", zero=True))
    caption = f"Recall gain retained by the number of layers that are left, with 95 % intervals; {ELIMINATION}."
    return [Figure("budget", "Recall retained with fewer layers", caption, spec, [model])]


_LOSS = cells.with_interval("loss", ".3f")
