"""Ablations as text and as a map of losses: without which mixers less recall is retained, and what
is lost by slice."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from recallkit.ablation.tables import LEAST, AblationTables
from recallkit.display import cells
from recallkit.display.cells import figure, or_dash, percent, resampled, some_of, too_few
from recallkit.display.charts import WIDTH, Figure, column, labels, shorten
from recallkit.display.tables import Table
from recallkit.display.templates import heat_map
from recallkit.display.views import ResultView
from recallkit.measure.shares import LEAST_GAIN
from recallkit.models.ablation import heads_of
from recallkit.slicing.view import what_is_rare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Row = Mapping[str, Any]

SLICES = """AR hits, repeated: the bigram is in the context already, rare in training or not. \
New: it is not in the context yet."""


ELIMINATION = (
    "backward elimination: from all layers one is removed at a time, always the one without "
    "which the most recall gain is retained"
)


class AblationView(ResultView):
    """Ablations of a model: without which mixers less recall is retained."""

    kind, tables_type = "ablation", AblationTables

    def answer(self) -> str:
        """See `which_recall`."""
        return which_recall(self.tables)

    @cached_property
    def display_tables(self) -> dict[str, Table]:
        """What is retained without mixers, or with fewer layers, and the losses by slice."""
        return ablation_tables(self.tables, self.manifest)

    def draw(self, tables: Any) -> list[Figure]:
        """The map of losses."""
        return ablation_figures(tables)

    def method(self) -> dict[str, str]:
        """The text, what replaces the outputs, the intervals."""
        slices = self.manifest["slices"]
        return {
            "Text": (
                f"{slices['num_rows']:,} predicted tokens in sequences of up to "
                f"{slices['seq_len']:,}"
            ),
            "Ablation": (
                f"{_what_is_replaced(self.manifest)}; the text is read again, nothing is trained"
            ),
            "95 % intervals": resampled(
                self.tables.mixers.row(0, named=True), which=" with AR hits"
            ),
        }


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
    model, gain = first["model"], f"{figure(first, 'gain')} points"
    if first["gain_ci_low"] is None:
        few = too_few("AR hits", first["effective_clusters"], f"{first['cluster']}s")
        return f"Which mixers recall depends on is unknown: {few}."
    if first["gain_ci_low"] <= LEAST_GAIN:
        return f"{model} shows no significant recall: its recall gain on AR hits is {gain}."
    if first["layers"] is not None:
        return _which_suffice(rows, gain)
    less = [row for row in rows if row["retained_ci_high"] < 1 - LEAST]
    most = ENRICHED * first["share_of_tokens"]
    needed = [row for row in less if not row["void"] and row["loss_share_ci_low"] > most]
    clauses = [f"{_retained(row)} without {_in_text(row)}" for row in _smallest(needed)]
    breaking = [_in_text(row) for row in _smallest(less) if row not in needed]
    answer = f"Of its recall gain of {gain}, {model} retains {', '.join(clauses)}."
    if not clauses:
        answer = (
            f"{model} has a recall gain of {gain}; none of these mixers is shown to serve recall "
            "in particular."
        )
    if breaking:
        answer += (
            f" Without {some_of(breaking)} it {'also ' * bool(clauses)}retains less, but that loss "
            "is not shown to fall on AR hits in particular."
        )
    return answer


def _which_suffice(rows: Sequence[Row], gain: str) -> str:
    """`Layers 1 and 3 of 4 keep 91 % (85 to 95) of the recall gain of m, 40.0 (37.1 to 43.1)
    points, with 50 % of the cache and a loss of 0.12 nats per token.`"""
    first, row = rows[0], rows[-1]
    one, names = "+" not in row["layers"], " and ".join(row["layers"].rsplit("+", 1))
    which = f"Layer{'s' * (not one)} {names.replace('+', ', ')} of {_size(first)} keep{'s' * one}"
    share = row["cache_bytes"] / first["cache_bytes"] if first["cache_bytes"] else 0
    cache = f"{percent(share, 0)} of the cache and " * bool(first["cache_bytes"])
    whose = f"of the recall gain of {row['model']}, {gain}"
    loss = f"a loss of {row['loss']:z.2f} nats per token"
    return f"{which} {_retained(row)} {whose}, with {cache}{loss}."


def _size(row: Row) -> str:
    """How many mixers are left."""
    return str(row["layers"].count("+") + 1)


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
    if rows[0]["layers"] is not None:
        return {"mixers": _trade_off(rows), "ablation": _losses(tables, manifest)}
    rows = [{**row, "without": labelled(row)} for row in rows]
    columns = """
        without retained loss
        loss_ar_hit | AR hits | +z.2f
        loss_share
    """
    caption = (
        f"Retained: in % of the recall gain on AR hits, {figure(rows[0], 'gain')} points. Loss: "
        "nats per token, over all tokens and over AR hits; on them: the share of the total loss "
        f"that falls on AR hits. Intervals: {resampled(rows[0], which=' with AR hits')}."
    )
    mixers = Table.from_rows("Recall retained without mixers", columns, rows, caption)
    return {"mixers": mixers, "ablation": _losses(tables, manifest)}


def _trade_off(rows: Sequence[Row]) -> Table:
    """A line for each number of layers, from all down to the budget."""
    lines = []
    for row in rows:
        which = row["layers"].replace("+", ", ")
        lines.append(
            {**row, "layers": _size(row), "which": which, "gain": row["gain"] - row["gain_lost"]}
        )
    columns = """
        layers which
        gain | gain | z.1f
        retained loss cache_bytes
    """
    caption = (
        f"By {ELIMINATION}. Gain: recall gain on AR hits, points. Loss: nats per token, over all "
        "tokens. Cache: of one sequence, what grows with it in these layers. "
        f"Intervals: {resampled(rows[0], which=' with AR hits')}."
    )
    return Table.from_rows("Recall retained with fewer layers", columns, lines, caption)


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
    """The map of losses: a row per set of mixers, a column per slice."""
    rows = tables.ablation.drop_nulls("loss").to_dicts()
    names = labels(list(dict.fromkeys(map(labelled, rows))))
    drawn = [
        {
            "name": names[labelled(row)],
            "slice": HEADERS[row["slice"]],
            "loss": row["loss"],
            "shown": f"{row['loss']:.2f}",
            "tip": (
                f"without {labelled(row)}, {HEADERS[row['slice']]}: "
                f"{figure(row, 'loss', '.3f ±')} nats per token"
            ),
        }
        for row in rows
    ]
    x = column(
        "slice",
        sort=list(HEADERS.values()),
        axis={"title": "nats per token lost", "orient": "top", "labelAngle": 0},
    )
    y = column("name", sort=list(names.values()), axis={"title": "without"})
    most = max([1e-9, *(row["loss"] for row in rows)])
    scale = {"type": "sqrt", "domain": [0, most], "range": [0, _DARKEST], "clamp": True}
    spec = heat_map(
        drawn,
        x,
        y,
        "loss",
        scale,
        "shown",
        width=WIDTH - 6.5 * max(map(len, names.values())),
        height=18 * len(names),
    )
    caption = (
        f"Nats per token that {shorten(rows[0]['model'], 60)} loses on each slice without each of "
        f"its mixers. Colour grows with the square root of the loss. {SLICES}"
    )
    return [Figure("ablation", "What each mixer is worth, by slice", caption, spec)]
