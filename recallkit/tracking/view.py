"""A run's recall by step, as people see it: the answer, the table, the curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import cells
from recallkit.display.cells import DASH, resampled, too_few
from recallkit.display.charts import Figure, Style, across, line_chart, number
from recallkit.display.exports import Look, command_line
from recallkit.display.tables import Table
from recallkit.models.spec import LIVE
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables
from recallkit.tracking.tables import ABSENT, APPEARS, GONE, LEAST_RECALL, TrackTables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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
    return command_line("track", *named, slices="DIR", samples=manifest["options"]["samples"])


_INTERVAL = cells.interval("recall")


def shown_track(tables: TrackTables) -> dict[str, Table]:
    """A row a step, the reference last."""
    rows = sorted(tables.track.to_dicts(), key=lambda row: row["step"] is None)
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
    return {"track": Table.of("NLL and recall by step", columns, rows, caption)}


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
    at_last = f"at step {last['step']:,} AR hits lose {last['recall']:z.2f} nats without it{within}{beside}"
    if verdict["verdict"] == APPEARS:
        return f"Recall by association {_appears(verdict, steps[0]['step'])}: {at_last}."
    earlier = verdict["step"] is not None
    appeared = f"Recall by association {_appeared(verdict['step'], steps[0]['step'])}" if earlier else ""
    if verdict["verdict"] in (ABSENT, GONE):
        some = "slight" if last["recall_ci_low"] > 0 else "absent"
        is_there = f"{appeared} and is {some} again at the last" if earlier else f"Recall by association is {some}"
        return f"{is_there}: {at_last}, less than {LEAST_RECALL}."
    if last["recall_ci_low"] is None:
        return f"Whether there is recall by association is not known: {at_last}.{_few(last)}"
    where = f"{last['recall_ci_low']:z.2f} and {last['recall_ci_high']:z.2f} lie on either side of {LEAST_RECALL}"
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
_LEAST_RATIO = 30
"""Steps that differ by more are on a logarithmic axis, with step 0 at its left."""


def track_figures(tables: TrackTables) -> list[Figure]:
    """The curve, where there are two checkpoints or more."""
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
    caption += "" if reference is None else f" Dashed: {reference['model']}."
    appears = next(
        (row["step"] for row in tables.verdict.to_dicts() if row["verdict"] == APPEARS and row["step"] != steps[0]["step"]), None
    )
    caption += "" if appears is None else f" Upright: recall by association appears at step {appears:,}."
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
        for name in _CURVES
        for row in steps
    ]
    places = [row["step"] for row in steps]
    least = min((place for place in places if place > 0), default=1)
    scale = {"type": "symlog", "constant": least} if places[-1] >= _LEAST_RATIO * least else {}
    axis = {"values": places, "labelOverlap": True, "labelExpr": "format(datum.value, '~s')", "grid": False}
    x = number("x", "training step", axis=axis, domain=[places[0], places[-1]], nice=False, padding=8, **scale)
    before = []
    if reference is not None:
        for name, style in _STYLES.items():
            before.append(across(style.colour, y=reference[name], strokeDash=[3, 3], opacity=0.8))
    if appears is not None:
        before.append(across("soft", x=appears, tip=f"recall appears at step {appears:,}", strokeDash=[2, 2]))
    y = number("y", "nats per token", zero=True)
    drawn = line_chart(points, list(_CURVES), x, y, *before, styles=_STYLES, shown=_CURVES)
    return [Figure("track", "Recall and NLL by training step", caption, drawn)]
