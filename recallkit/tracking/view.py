"""A run's recall by step, as people see it: the answer, the table, the curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import cells
from recallkit.display.cells import DASH, resampled, too_few
from recallkit.display.charts import Figure, Style, across, line_chart, number
from recallkit.display.exports import Look, command_line
from recallkit.display.tables import Table
from recallkit.models.spec import LIVE
from recallkit.scoring.scores import last_options
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables
from recallkit.tracking.tables import ABSENT, APPEARS, GONE, LEAST_RECALL, TrackTables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.display.charts import Spec

    Row = Mapping[str, Any]


def look(folder: Path, tables: TrackTables | None = None) -> Look:
    """The tracked run in a folder as people see it: its table is read unless it is given."""
    tables, manifest = tables or read_tables(TrackTables, folder), artifacts.read_manifest(folder / "track.parquet")
    return Look(
        folder,
        "track",
        tables,
        shown_track(tables),
        track_figures,
        answer(tables),
        method(tables, manifest),
        command(manifest),
        leading=1 if tables.by_context is None else 2,
        facts={"samples": manifest["options"]["samples"], "asked": manifest["asked"]},
    )


def method(tables: TrackTables, manifest: Mapping[str, Any]) -> dict[str, str]:
    """How it was measured: the text, what recall is, the intervals."""
    slices, first = manifest["slices"], tables.track.row(0, named=True)
    return {
        "Text": f"{slices['num_rows']:,} predicted tokens in sequences of up to {slices['seq_len']:,}; "
        f"{first['ar_hits']:,} of {first['tokens']:,} tokens are AR hits",
        "Recall": f"by association: what {manifest['asked']:,} AR hits lose when ids of their earlier matches are swapped with others, "
        "less the effect of as many swaps elsewhere, in nats per token",
        "95 % intervals": resampled(first, "document", "document"),
    }


def command(manifest: Mapping[str, Any]) -> str:
    """The command that makes it again, where the checkpoints are files; empty for those of a running program."""
    if any(source.startswith(LIVE) for source in manifest["sources"]):
        return ""
    named = [
        source if source.endswith(name) else f"{name}={source}"
        for name, source in zip(manifest["models"], manifest["sources"], strict=True)
    ]
    options = manifest["options"]
    return command_line("track", *named, slices="DIR", samples=options["samples"], **last_options(options.get("context_gain") or []))


_INTERVAL = cells.interval("recall")


def shown_track(tables: TrackTables) -> dict[str, Table]:
    """A row a step, the reference last; and what is gained from far context, where that is asked."""
    rows = sorted(tables.track.to_dicts(), key=_place)
    first = rows[0]
    nats = {"AR hits": "ar_nll", "first": "first_nll", "other": "other_nll", "recall": "recall"}
    columns = {
        "step": lambda row: str(row["model"]) if row["step"] is None else f"{row['step']:,}",
        **{header: cells.number(column, "z.2f") for header, column in nats.items()},
        "95 % interval": _INTERVAL,
    }
    if first["reference"] is not None:
        columns["gap in AR hits"] = lambda row: DASH if row["step"] is None else f"{row['ar_gap']:z.2f}"
    measured = f" Intervals: {resampled(first, 'document', 'document')}."
    caption = (
        f"NLLs, nats per token, of {first['ar_hits']:,} AR hits of {first['tokens']:,} tokens. First: the first occurrences of the hits' "
        "bigrams in their sequences. Recall: what hits lose when the ids of their earlier matches are separated, beyond the effect of "
        f"as many moves elsewhere.{_few(first) or measured}"
    )
    caption += "" if first["reference"] is None else " Last row: the reference."
    return {"track": Table.of("NLL and recall by step", columns, rows, caption), **_far_table(tables)}


_GAINS = {"all": "all", "ar_hit": "AR hits", "other_repeated": "other repeated", "not_repeated": "not repeated"}
"""Classes of tokens (docs/context.md), and what they are called."""


def _gains(tables: TrackTables) -> dict[int, list[dict[str, Any]]]:
    """For each number of last ids what each step gains, by class, and the reference (step null), with the ends of intervals."""
    found: dict[int, dict[int | None, dict[str, Any]]] = {}
    for row in [] if tables.by_context is None else tables.by_context.to_dicts():
        if row["slice"] in _GAINS and row["reference_gains"] is None:
            for step, of in ((row["step"], "model"), (None, "reference")):
                gained = found.setdefault(row["last"], {}).setdefault(step, {"model": row[of], "step": step, "stride": row["stride"]})
                gained |= {f"{row['slice']}{end}": row[f"gain_{of}{end}"] for end in ("", "_ci_low", "_ci_high")}
    return {last: sorted(steps.values(), key=_place) for last, steps in sorted(found.items())}


def _place(row: Row) -> tuple[bool, int]:
    """Steps in order, the reference last."""
    return row["step"] is None, row["step"] or 0


def _far_table(tables: TrackTables) -> dict[str, Table]:
    """A row for each number of last ids and step."""
    rows = [{"last": last, **row} for last, steps in _gains(tables).items() for row in steps]
    if not rows:
        return {}
    columns = {"last": cells.number("last"), "step": lambda row: str(row["model"]) if row["step"] is None else f"{row['step']:,}"}
    for name, header in _GAINS.items():
        columns[header.replace(" ", "\n")] = cells.number(name, "z.3f")
        columns |= {"95 % interval": cells.interval("ar_hit", "z.3f")} if name == "ar_hit" else {}
    sees = ", ".join(dict.fromkeys(cells.span(row["last"], row["last"] + row["stride"] - 1) for row in rows))
    caption = f"Gain, nats per token: NLL with the last ids alone ({sees} of them) less NLL with the full context. "
    caption += "Last row: the reference." if len({row["last"] for row in rows}) == 1 else "Last row of each number of ids: the reference."
    return {"by_context": Table.of("What is gained from context further back than the last ids, by step", columns, rows, caption)}


def _few(row: Row) -> str:
    """Why there is no interval, after a space; empty if there is one."""
    if row["recall_ci_low"] is not None:
        return ""
    return f" No interval: {too_few('AR hits', row['effective_documents'])}."


def answer(tables: TrackTables) -> str:
    """One sentence: whether recall appears, and at which step, is absent, or is not known, and how much there is at the last one."""
    rows = tables.track.to_dicts()
    steps = sorted((row for row in rows if row["step"] is not None), key=lambda row: row["step"])
    if not steps:
        return "No checkpoint is scored yet."
    last, verdict = steps[-1], tables.verdict.row(0, named=True)
    reference = next((row for row in rows if row["step"] is None), None)
    beside = "" if reference is None else f"; {reference['model']} recalls {reference['recall']:z.2f}"
    within = "" if last["recall_ci_low"] is None else f" ({_INTERVAL(last)})"
    at_last = f"at step {last['step']:,} AR hits lose {last['recall']:z.2f} nats without it{within}"
    if verdict["verdict"] == APPEARS:
        return f"Recall by association {_appears(verdict, steps[0]['step'])}: {at_last}{beside}."
    earlier = verdict["step"] is not None
    appeared = f"Recall by association {_appeared(verdict['step'], steps[0]['step'])}" if earlier else ""
    if verdict["verdict"] in (ABSENT, GONE):
        some = "slight" if last["recall_ci_low"] > 0 else "absent"
        is_there = f"{appeared} and is {some} again at the last" if earlier else f"Recall by association is {some}"
        return f"{is_there}: {at_last}, less than {LEAST_RECALL}{beside}."
    if last["recall_ci_low"] is None:
        return f"Whether there is recall by association is not known: {at_last}{beside}.{_few(last)}"
    where = f"{last['recall_ci_low']:z.2f} and {last['recall_ci_high']:z.2f} lie on either side of {LEAST_RECALL}{beside}"
    if earlier:
        return f"{appeared}; whether it is still there at the last is not known: {at_last}, and {where}."
    return f"Whether there is recall by association is not known: {at_last}, and {where}."


def _appears(verdict: Row, first: int) -> str:
    """`appears at step 200 (95 % interval 150 to 300)`; of the first step is only known that recall is there."""
    step, low, high = (verdict[name] for name in ("step", "step_ci_low", "step_ci_high"))
    if high == first:
        return f"is there from step {first:,} on, the first"
    ends = f"{low:,}{', the first,' if low == first else ''} to {'later than the last' if high is None else f'{high:,}'}"
    return f"{'is there from' if step == first else 'appears at'} step {step:,}{' on' if step == first else ''} (95 % interval {ends})"


def _appeared(step: int, first: int) -> str:
    return f"was there at step {step:,}, the first," if step == first else f"appeared at step {step:,}"


# ------------------------------------------------------------------------------------------------------------- charts

_CURVES = {"recall": "recalled", "ar_nll": "AR hits", "first_nll": "their first occurrences", "other_nll": "other tokens"}
_STYLES = {
    "recall": Style("m0", (5, 3), "triangle-up"),
    "ar_nll": Style("hits", (1, 0), "circle"),
    "first_nll": Style("ink", (1, 0), "diamond"),
    "other_nll": Style("rest", (1, 0), "square"),
}
_GAIN_STYLES = {
    "ar_hit": Style("hits", (1, 0), "circle"),
    "other_repeated": Style("ink", (1, 0), "diamond"),
    "not_repeated": Style("rest", (1, 0), "square"),
}
_LEAST_RATIO = 30
"""Steps that differ by more are on a logarithmic axis, with step 0 at its left."""


def track_figures(tables: TrackTables) -> list[Figure]:
    """The curves, where there are two checkpoints or more."""
    rows = tables.track.to_dicts()
    steps = sorted((row for row in rows if row["step"] is not None), key=lambda row: row["step"])
    if len(steps) < 2:
        return []
    reference = next((row for row in rows if row["step"] is None), None)
    bands = " (bands: 95 % over documents)" * any(row[f"{name}_ci_low"] is not None for row in steps for name in _CURVES)
    caption = (
        f"By training step{bands}, what is recalled by association, nats lost in AR hits without it, and NLLs "
        "of AR hits, of the first occurrences of their bigrams, where nothing can be recalled, and of other tokens."
    )
    dashed = "" if reference is None else f" Dashed: {reference['model']}."
    caption += dashed
    appears = next(
        (row["step"] for row in tables.verdict.to_dicts() if row["verdict"] == APPEARS and row["step"] != steps[0]["step"]), None
    )
    caption += "" if appears is None else f" Upright: recall by association appears at step {appears:,}."
    before = [across("soft", x=appears, tip=f"recall appears at step {appears:,}", strokeDash=[2, 2])] if appears is not None else []
    drawn = [Figure("track", "Recall and NLL by training step", caption, _curves(rows, _CURVES, _STYLES, "nats per token", *before))]
    for last, gains in _gains(tables).items():
        caption = (
            f"By training step{bands}, NLL with the last {last:,} ids alone less NLL with the full context. Every token is an AR hit, "
            f"other repeated or not repeated.{dashed}"
        )
        curves = {name: _GAINS[name] for name in _GAIN_STYLES}
        of = _curves(gains, curves, _GAIN_STYLES, "nats per token gained")
        drawn.append(Figure(f"context-{last}", f"What is gained from further back than {last:,} ids", caption, of))
    return drawn


def _curves(rows: Sequence[Row], curves: Mapping[str, str], styles: Mapping[str, Style], axis: str, *before: Spec) -> Spec:
    """A line for each of `curves`, columns of the rows and what they are called, by step; the reference's are dashed, across the plot."""
    steps = sorted((row for row in rows if row["step"] is not None), key=_place)
    points = [
        {
            "model": name,
            "x": row["step"],
            "y": row[name],
            "low": row[f"{name}_ci_low"],
            "high": row[f"{name}_ci_high"],
            "at": f"step {row['step']:,}",
            "shown": f"{row[name]:z.2f} nats",
        }
        for name in curves
        for row in steps
        if row[name] is not None
    ]
    places = [row["step"] for row in steps]
    least = min((place for place in places if place > 0), default=1)
    scale = {"type": "symlog", "constant": least} if places[-1] >= _LEAST_RATIO * least else {}
    ticks = {"values": places, "labelOverlap": True, "labelExpr": "format(datum.value, '~s')", "grid": False}
    x = number("x", "training step", axis=ticks, domain=[places[0], places[-1]], nice=False, padding=8, **scale)
    dashed = [
        across(styles[name].colour, y=row[name], strokeDash=[3, 3], opacity=0.8)
        for row in rows
        for name in curves
        if row["step"] is None and row[name] is not None
    ]
    return line_chart(points, list(curves), x, number("y", axis, zero=True), *dashed, *before, styles=styles, shown=curves)
