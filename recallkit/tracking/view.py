"""A run's recall by step, as people see it: the answer, the table, the curve."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from recallkit.display import cells
from recallkit.display.cells import percent, resampled, too_few
from recallkit.display.charts import Figure, Style, model_styles, number
from recallkit.display.tables import Table
from recallkit.display.templates import line_chart
from recallkit.display.views import ResultView
from recallkit.tracking.tables import APPEARS, LEAST_GAIN, UNKNOWN, TrackTables

if TYPE_CHECKING:
    from collections.abc import Mapping

    Row = Mapping[str, Any]

_ENDS = ("", "_ci_low", "_ci_high")


class TrackView(ResultView):
    """A tracked run: its recall gain by step."""

    kind, tables_type = "track", TrackTables

    def answer(self) -> str:
        """See `answer`."""
        return answer(self.tables)

    @cached_property
    def display_tables(self) -> dict[str, Table]:
        """A row for each step, and the slices at the last one."""
        return track_tables(self.tables)

    def leading(self) -> int:
        """All of them."""
        return len(self.display_tables)

    def draw(self, tables: Any) -> list[Figure]:
        """The curves."""
        return track_figures(tables)

    def method(self) -> dict[str, str]:
        """The text, what recall gain is, the intervals."""
        number, length = self.manifest["slices"]["num_rows"], self.manifest["slices"]["seq_len"]
        return {
            "Text": f"{number:,} predicted tokens in sequences of up to {length:,}",
            "Recall gain": (
                "mean p(token) of AR hits less that at first occurrences of their bigrams"
            ),
            "95 % intervals": resampled(
                self.tables.track.row(0, named=True), "document", "document"
            ),
        }


def _parts(tables: TrackTables) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of checkpoints by step, and that of the reference, if there is one."""
    rows = tables.track.to_dicts()
    reference = [row for row in rows if row["step"] is None]
    return rows[len(reference) :], reference


# ---------------------------------------------------------------------------------------- answer


def answer(tables: TrackTables) -> str:
    """Whether recall appears, and at which step, is absent, or is not known, and how much there is
    at the last step."""
    steps, _ = _parts(tables)
    first, last, [verdict] = steps[0]["step"], steps[-1], tables.verdict.to_dicts()
    step, least = verdict["step"], f"{100 * LEAST_GAIN:g}"
    now = f"at step {last['step']:,} the recall gain on AR hits is {_gain(last)}"
    if verdict["verdict"] == APPEARS:
        share = ""
        if last["retained"] is not None:
            share = f", {percent(last['retained'], 0)} of {last['reference']}'s"
        return f"Recall {_appears(verdict, first)}: {now}{share}."
    before = "" if step is None else f"; at step {step:,} it was above {least}"
    if verdict["verdict"] != UNKNOWN:
        return f"Recall is absent{' again' * bool(before)}: {now}, below {least}{before}."
    why = f"and its interval contains {least}"
    if last["gain_ci_low"] is None:
        why = f"without an interval: {too_few('AR hits', last['effective_documents'])}"
    return f"It is undecided whether there is recall: {now}, {why}{before}."


def _appears(verdict: Row, first: int) -> str:
    """`appears at step 200 (95 % interval 150 to 300)`; of the first step is only known that recall
    is there."""
    step, low, high = (verdict[f"step{end}"] for end in _ENDS)
    when = f"appears at step {step:,}"
    if step == first:
        when = f"is present at step {step:,}, the first"
    return when if high == first else f"{when} (95 % interval {low:,} to {high:,})"


def _gain(row: Row) -> str:
    """`7.6 points (6.0 to 9.0)`"""
    value, *within = cells.figure(row, "gain").split(" ", 1)
    return " ".join([value, "points", *within])


# ---------------------------------------------------------------------------------------- tables


def track_tables(tables: TrackTables) -> dict[str, Table]:
    """A row for each step, the reference last."""
    steps, reference = _parts(tables)
    first = steps[0]
    columns = f"""
        step ar_nll first_nll other_nll gain
        {"retained" if reference else ""}
        {"causal" if first["causal"] is not None else ""}
    """
    rows = [*steps, *({**row, "step": row["model"]} for row in reference)]
    caption = (
        f"NLL, nats per token, of {first['ar_hits']:,} AR hits among {first['tokens']:,} tokens, "
        "of the first occurrences of their bigrams, and of all other tokens. Gain: p(token) on AR "
        "hits less p at those first occurrences. Intervals: "
        f"{resampled(first, 'document', 'document')}.{' Last row: the reference.' * len(reference)}"
    )
    by_name = {"track": Table.from_rows("Recall gain and NLL by step", columns, rows, caption)}
    if tables.by_slice is not None:
        last = tables.by_slice.filter(step=steps[-1]["step"]).to_dicts()
        by_name["by_slice"] = Table.from_rows(
            "Slices at the last step", _OF_SLICES, last, _ABOUT_SLICES
        )
    return by_name


_OF_SLICES = """
    slice tokens
    nll | NLL | z.2f ±
    gain efficiency
"""
_ABOUT_SLICES = (
    "Efficiency: 1 less the summed NLL over that at first occurrences of the bigrams, of slices "
    "whose tokens all repeat one. Earlier steps: by_slice.parquet."
)


# ---------------------------------------------------------------------------------------- charts

_GAIN, _NLL = "recall gain, points", "NLL, nats per token"
_CURVES = {
    "gain": ("recall gain", Style("m0", (1, 0), "triangle-up")),
    "level": ("the reference's", Style("m1", (3, 3), "triangle-down")),
    "ar_nll": ("AR hits", Style("hits", (1, 0), "circle")),
    "first_nll": ("their first occurrences", Style("ink", (1, 0), "diamond")),
    "other_nll": ("other tokens", Style("rest", (1, 0), "square")),
}
"""The curves, columns of the table and the reference's gain: what they are called, and how they are
drawn."""


def track_figures(tables: TrackTables) -> list[Figure]:
    """The curves, where there are two checkpoints or more."""
    rows, reference = _parts(tables)
    if len(rows) < 2:
        return []
    bands = " (bands: 95 % intervals)" * any(row["gain_ci_low"] is not None for row in rows)
    caption = (
        f"Recall gain on AR hits by training step{bands}, and the NLL of AR hits, of the first "
        "occurrences of their bigrams, where nothing can be recalled, and of other tokens."
    )
    for row in reference:
        caption += f" Dashed: {row['model']}."
        rows = [{**step, "level": row["gain"]} for step in rows]
    names = [name for name in _CURVES if name in rows[0]]
    points = [_point(row, name) for name in names for row in rows]
    steps = [row["step"] for row in rows]
    ticks = {
        "values": steps,
        "labelOverlap": True,
        "labelExpr": "format(datum.value, '~s')",
        "grid": False,
    }
    least = steps[0] or steps[1]
    # Steps that differ much are on a logarithmic axis, with step 0 at its left.
    scale = {"type": "symlog", "constant": least} if steps[-1] > 30 * least else {}
    x = number("x", "training step", axis=ticks, nice=False, padding=8, **scale)
    drawn = line_chart(
        points,
        names,
        x,
        number("y", zero=True),
        styles={name: _CURVES[name][1] for name in names},
        legend={name: _CURVES[name][0] for name in names},
        panels=[_GAIN, _NLL],
        resolve={"scale": {"y": "independent"}},
        height=150,
    )
    figures = [Figure("track", "Recall gain and NLL by training step", caption, drawn)]
    if tables.by_slice is not None:
        rows = tables.by_slice.drop_nulls("step").to_dicts()
        points = [{**_point(row, "nll"), "model": row["slice"]} for row in rows]
        names = list(dict.fromkeys(row["slice"] for row in rows))
        y = number("y", _NLL, zero=True)
        drawn = line_chart(points, names, x, y, styles=model_styles(names))
        title = "NLL of slices by training step"
        figures.append(Figure("by_slice", title, f"{title}{bands}.", drawn))
    return figures


def _point(row: Row, curve: str) -> dict[str, Any]:
    """A point of a curve, in points or nats, with the ends of its interval."""
    panel, scale, unit = (_NLL, 1, "nats") if curve.endswith("nll") else (_GAIN, 100, "points")
    ends = [row.get(f"{curve}{end}") for end in _ENDS]
    y, low, high = (None if end is None else scale * end for end in ends)
    place = {"model": curve, "panel": panel, "x": row["step"], "y": y, "low": low, "high": high}
    return {**place, "at": f"step {row['step']:,}", "shown": f"{y:z.2f} {unit}"}
