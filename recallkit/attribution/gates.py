"""Gates of a comparison, `gap --fail-above`: how far a model may be behind the reference in a
slice, in nats or as a share of the gap."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.attribution.tables import HITS_OF_REPEATED
from recallkit.display.cells import percent
from recallkit.errors import UsageError, UserError
from recallkit.measure.ratio import holm, p_values
from recallkit.measure.rows import ALL
from recallkit.slicing.definitions import STANDARD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.attribution.tables import GapTables
    from recallkit.measure.labelled import LabelledTokens
    from recallkit.slicing.definitions import Slice

OPTION = "--fail-above"
NOT_BEHIND = "the model is not behind the reference overall"
_LIMIT = re.compile(r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(%?)", re.ASCII | re.IGNORECASE)
_USUAL = "ar_hit"
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Gate:
    """The most that a model may be behind the reference in a slice.

    `limit` is a difference in NLL, nats per token of the slice, or with `is_share` a share of the
    gap as a fraction.
    """

    slice: str
    limit: float
    is_share: bool

    def __str__(self) -> str:
        return (
            f"{self.slice}={100 * self.limit:.6g}%"
            if self.is_share
            else f"{self.slice}={self.limit:g}"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """A gate and a model: `value` in the gate's unit, None where the gate cannot be judged, which
    `note` explains."""

    gate: Gate
    model: str
    value: float | None
    is_over: bool
    note: str = ""

    def line(self) -> str:
        """What was measured, beside the limit."""
        gate = self.gate
        if gate.is_share:
            return (
                f"{self.model}: {gate.slice} carries {percent(self.value)} of the gap (limit "
                f"{100 * gate.limit:.6g} %)"
            )
        return (
            f"{self.model}: NLL on {gate.slice} is {self.value:.4g} nats above the reference's "
            f"(limit {gate.limit:g})"
        )

    def to_json(self) -> dict[str, Any]:
        """The gate, the model, the value."""
        measured = "gap_share" if self.gate.is_share else "delta_nll"
        facts = {"slice": self.gate.slice, "measured": measured, "limit": self.gate.limit}
        return {
            "gate": str(self.gate),
            **facts,
            "model": self.model,
            "value": self.value,
            "is_over": self.is_over,
            "note": self.note,
        }


def parse_gate(text: Any) -> Gate:
    """`0.05`, `all=0.02`, `AR hits=30%`: a slice, AR hits if none is named, and nats per token, or
    a percentage of the gap.

    Raises ValueError for anything else, also for a negative limit, an infinite one and NaN, which
    nothing is above.
    """
    name, _, limit = str(text).rpartition("=")
    match = _LIMIT.fullmatch(limit.strip())
    number = math.inf if match is None else float(match[1])
    if match is None or not math.isfinite(number):
        examples = "0.05 (nats per token of the AR hits), all=0.02 or ar_hit=30% (of the gap)"
        raise ValueError(
            f"{str(text)!r} is not a gate; give [SLICE=]LIMIT, 0 or more, such as {examples}"
        )
    is_share = bool(match[2])
    return Gate(name.strip() or _USUAL, number / 100 if is_share else number, is_share)


def resolve_gates(gates: Sequence[Gate], requested: Sequence[Slice]) -> list[Gate]:
    """The gates with their slices' names as in the tables, before anything is measured.

    `requested`: slices besides those of every comparison. A name may be written as it is printed
    (`AR hits`). Raises UsageError for a slice that the comparison does not have, and for a share of
    all tokens.
    """
    names = [slice_.name for slice_ in (*STANDARD, *requested)]
    resolved = []
    for gate in gates:
        plain = "_".join(gate.slice.lower().split())
        name = next(
            (name for name in (gate.slice, plain, plain.removesuffix("s")) if name in names), None
        )
        if name is None:
            remedy = f"choose {', '.join(names)}, or add one with --slice"
            raise UsageError(
                "no such slice in this comparison", where=f"{OPTION} {gate}", remedy=remedy
            )
        if gate.is_share and name == "all":
            remedy = "give nats, such as all=0.02, or a share of another slice"
            raise UsageError(
                "all tokens have 100 % of the gap by definition",
                where=f"{OPTION} {gate}",
                remedy=remedy,
            )
        resolved.append(Gate(name, gate.limit, gate.is_share))
    return list(dict.fromkeys(resolved))


def check_gates(gates: Sequence[Gate], tokens: LabelledTokens) -> None:
    """Raises UserError where a gate is on a slice that labels without training counts do not
    have."""
    of_counts = (gate for gate in gates if gate.slice in HITS_OF_REPEATED.values())
    if not tokens.has_counts and (unknown := next(of_counts, None)):
        problem = "labelled without training counts, so that no token is known to be in this slice"
        remedy = (
            "count its training text with `recallkit gap --train SOURCE`, or judge repeated=LIMIT"
        )
        raise UserError(problem, where=f"{OPTION} {unknown}", remedy=remedy)


def judge_gates(gates: Sequence[Gate], tables: GapTables) -> list[Verdict]:
    """Each gate for each model and all sources: crossed where the value is significantly over the
    limit, at 5 % for all models of a gate.

    Without intervals the value alone decides. A share is judged only where it means something and
    the model is behind the reference overall; a value that is not a number is over any gate. Raises
    UserError where a slice has no tokens to judge by.
    """
    totals = tables.gap.filter(source=ALL).to_dicts()
    # Of a source that is called ALL the rows come later.
    rows = {(row["model"], row["slice"]): row for row in reversed(totals)}
    models = tables.gap["model"].unique(maintain_order=True).to_list()
    verdicts = []
    for gate in gates:
        pairs = [(rows[model, gate.slice], rows[model, "all"]) for model in models]
        verdicts += _judge(gate, pairs)
    return verdicts


def _judge(
    gate: Gate, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> list[Verdict]:
    """The verdicts on models, given by their rows of the gate's slice and of all tokens.

    By the intervals and degrees of freedom of the tables, so that a limit of 0 is crossed just
    where they say that a model is behind.
    """
    name, freedom = (
        ("gap_share", "share_freedom") if gate.is_share else ("delta_nll", "delta_freedom")
    )
    notes = []
    figures = np.full((4, len(pairs)), np.nan)
    for place, (row, total) in enumerate(pairs):
        if row["delta_nll"] is None:
            problem, remedy = (
                f"there are no tokens of {gate.slice} to judge by",
                "slice more text, or name another slice",
            )
            raise UserError(problem, where=OPTION, remedy=remedy)
        note = row["note"] if row["void"] else NOT_BEHIND if total["delta_nll"] <= 0 else ""
        notes.append(note if gate.is_share else "")
        if not notes[-1]:
            columns = (name, f"{name}_ci_low", f"{name}_ci_high", freedom)
            figures[:, place] = [
                np.nan if row[column] is None else row[column] for column in columns
            ]
    value, low, high, degrees = figures
    p = p_values(value, low, high, degrees, gate.limit)
    is_over = ~(value <= gate.limit) & (np.isnan(p) | holm(p))
    return [
        Verdict(
            gate,
            row["model"],
            None if note else float(value[place]),
            is_over=bool(is_over[place]) and not note,
            note=note,
        )
        for place, ((row, _), note) in enumerate(zip(pairs, notes, strict=True))
    ]


def failure_line(verdicts: Sequence[Verdict]) -> str | None:
    """What is over its gate, in one line; None if nothing is."""
    over = [verdict.line() for verdict in verdicts if verdict.is_over]
    more = [f"and {len(over) - _MOST_NAMED} more (see --json)"] if len(over) > _MOST_NAMED else []
    return "; ".join([*over[:_MOST_NAMED], *more]) or None


def unjudged_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """A line for each share that could not be judged."""
    return [
        f"{OPTION} {verdict.gate}: not judged for {verdict.model}: {verdict.note}"
        for verdict in verdicts
        if verdict.value is None
    ]
