"""Causal recall as people see it: the answer, what each model retains, and the nats that every
change costs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from recallkit.display import cells
from recallkit.display.cells import (
    bounds,
    counted,
    extremes,
    resampled,
    shares_of_leads,
    some_of,
)
from recallkit.display.tables import Table
from recallkit.display.views import ResultView
from recallkit.intervening.charts import intervene_figures
from recallkit.intervening.sampling import FIRST_RARE
from recallkit.intervening.tables import REPEATED, InterveneTables
from recallkit.storage.schemas import chosen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.display.charts import Figure

    Row = Mapping[str, Any]

_NAMES = {
    "ar_hit": "AR hits",
    "repeated_frequent": "other repeated bigrams",
    REPEATED: "all repeated bigrams",
    FIRST_RARE: "rare first occurrences (control)",
}


class InterventionView(ResultView):
    """An intervention: how much of their recall models lose, and what the changes cost."""

    kind, tables_type = "intervene", InterveneTables

    def answer(self) -> str:
        """See `answer`."""
        return answer(self.tables)

    @cached_property
    def display_tables(self) -> dict[str, Table]:
        """What is retained in each slice, and the nats that are lost there."""
        slices = self.tables.intervene["slice"].unique(maintain_order=True).to_list()
        retained = {
            f"retained_{slice_}": _retained_table(self.tables, slice_)
            for slice_ in slices
            if slice_ != FIRST_RARE
        }
        return retained | {f"lost_{slice_}": _lost_table(self.tables, slice_) for slice_ in slices}

    def draw(self, tables: Any) -> list[Figure]:
        """Causal recall by model, by distance and by training count."""
        return intervene_figures(tables)

    def notes(self) -> list[str]:
        """Why shares mean nothing, and what the changes are."""
        return [*self._void_notes(), _changes(self.manifest)]

    def brief(self) -> int:
        """Only why shares mean nothing."""
        return len(self._void_notes())

    def facts(self) -> dict[str, Any]:
        """Options, and how many samples could not be changed."""
        return {**self.manifest["options"], "excluded": self.manifest["excluded"]}

    def method(self) -> dict[str, str]:
        """The sample, the changes, the intervals."""
        text, samples = self.manifest["slices"]["num_rows"], self.manifest["options"]["samples"]
        return {
            "Text": f"{text:,} predicted tokens; of each slice up to {samples:,} sampled",
            "Changes": _changes(self.manifest),
            "95 % intervals": resampled(
                self.tables.intervene.row(0, named=True), "document", "document"
            ),
        }

    def _void_notes(self) -> list[str]:
        """A line for all models whose shares mean nothing for the same reason."""
        models = pl.col("model").unique(maintain_order=True)
        void = (
            self.tables.retained.filter(void=True).group_by("note", maintain_order=True).agg(models)
        )
        return [
            f"{some_of(names)}: no meaningful share of the gap: {why}" for why, names in void.rows()
        ]


def causal_recall(tables: InterveneTables, slice_: str = "ar_hit") -> dict[str, dict[str, Any]]:
    """By model, the reference first, its row of a slice: `points`, and of others `retained` and
    `causal_share`, with intervals.

    Empty if the slice was not sampled.
    """
    # Without the reference, in whose row these columns are null.
    retained = tables.retained.filter(slice=slice_)
    lost = tables.intervene.filter(slice=slice_)
    rows = lost.join(retained, on="model", how="left", maintain_order="left")
    return {row["model"]: row for row in rows.to_dicts()}


# ------------------------------------------------------------------------------------------- answer


def _rows(tables: InterveneTables, slice_: str) -> list[dict[str, Any]]:
    """The rows of `causal_recall`; models of the zoo by their short names, where there are no
    others."""
    return cells.without_zoo([*causal_recall(tables, slice_).values()])


def answer(tables: InterveneTables) -> str:
    """What models lose in the first slice, what they retain of the reference's recall, and what
    part of their gaps that is."""
    slice_ = tables.intervene["slice"][0]
    first, *others = _rows(tables, slice_)
    bigrams = "a rare bigram" if slice_ == "ar_hit" else _called(slice_)
    said = (
        f"When earlier occurrences of {bigrams} are broken up, {first['model']} loses "
        f"{_over([first], 'points', 'z.1f', ' points of probability')}"
    )
    if not others:
        return f"{said}."
    who = others[0]["model"] if len(others) == 1 else f"the other {len(others):,} models"
    return (
        f"{said}, {who} {_over(others, 'points', 'z.1f')}: "
        f"{_retained(first, others)}.{_of_gaps(tables, others)}"
    )


def _over(rows: Sequence[Row], column: str, form: str, unit: str = "") -> str:
    """A fraction times 100: of one row with its interval, `8 % (5 to 12)`; of several from the
    least to the most."""

    def text(value: float) -> str:
        return f"{100 * value:{form}}{unit}"

    if len(rows) > 1:
        return extremes({row["model"]: row[column] for row in rows}, text)
    value, low, high = (rows[0][f"{column}{end}"] for end in ("", "_ci_low", "_ci_high"))
    within = "" if low is None else f" ({bounds(100 * low, 100 * high, form)})"
    return f"{text(value)}{within}"


def _retained(first: Row, others: Sequence[Row]) -> str:
    """What is retained of the reference's causal recall, or why that is not known; of several,
    whose recall is not significant."""
    if others[0]["retained"] is None:
        return (
            f"{first['model']}'s causal recall is not shown to exceed 0.1 points, so what is "
            "retained is unknown"
        )
    recall = f"{_over(others, 'retained', 'z.0f', ' %')} of {first['model']}'s causal recall"
    if len(others) == 1:
        return f"{others[0]['model']} retains {recall}"
    unresolved = [row["model"] for row in others if row["points_ci_low"] <= 0]
    none = f"; no significant recall: {some_of(unresolved)}" if unresolved else ""
    return f"they retain {recall}{none}"


def _of_gaps(tables: InterveneTables, others: Sequence[Row]) -> str:
    """What part of their gaps the difference is, after a space; empty if no share means
    anything."""
    known = [row for row in others if row["void"] is False]
    void = [row for row in others if row["void"]]
    if not known:
        return ""
    names = some_of([row["model"] for row in void])
    none = f"; no share is meaningful for {names}" if void else ""
    share = _over(known, "causal_share", "z.1f", " %")
    return f" The difference in nats is {share} of the gap{_control(tables)}{none}.{_leads(known)}"


def _control(tables: InterveneTables) -> str:
    """The share around rare first occurrences, where nothing can be recalled, after a semicolon;
    empty if it is not known."""
    rows = [row for row in _rows(tables, FIRST_RARE) if row["void"] is False]
    return (
        f"; at rare first occurrences (control), {_over(rows, 'causal_share', 'z.1f', ' %')}"
        if rows
        else ""
    )


def _leads(rows: Sequence[Row]) -> str:
    """Which of the shares are of a lead, after a space."""
    return shares_of_leads(row["model"] for row in rows if not row["void"] and row["gap"] < 0)


def _called(slice_: str) -> str:
    """What is changed of a slice: of a user's the tokens that repeat a bigram, since only these can
    be."""
    return _NAMES.get(slice_, f"repeated bigrams of {slice_}")


# ------------------------------------------------------------------------------------------- tables


def _retained_table(tables: InterveneTables, slice_: str) -> Table:
    """The causal recall of each model, what that is of the reference's, and what the difference is
    of the gap."""
    rows, called = _rows(tables, slice_), _called(slice_)
    caption = (
        f"Points of probability that {called} lose when their earlier occurrences are broken up, "
        "less the loss from equally many swaps elsewhere in the text. Retained: in % of "
        f"{rows[0]['model']}'s. Of the gap: the difference in nats, in % of the gap of all tokens"
        f"{_control(tables)}.{_leads(rows[1:])}"
    )
    columns = """
        model points
        retained | retained,/%
        causal_share
    """
    return Table.from_rows(f"Causal recall: {called}", columns, rows, caption)


def _lost_table(tables: InterveneTables, slice_: str) -> Table:
    """The nats that each change costs."""
    rows = tables.intervene.filter(slice=slice_).to_dicts()
    first = rows[0]
    caption = (
        f"{first['samples']:,} samples from {counted(first['documents'], 'document')} represent "
        f"{first['tokens']:,} tokens."
    )
    for row in rows:
        row["floor"] = row["nll"] + row["moved"]
    of_changes = chosen("model nll floor completion key use recall")
    columns = [column for column in of_changes if first[column.name] is not None]
    title = f"Nats lost when the text before {_called(slice_)} is changed"
    return Table.from_rows(title, columns, cells.without_zoo(rows), caption)


def _changes(manifest: Row) -> str:
    """What the columns mean, and what it cost."""
    options = manifest["options"]
    others = (
        "Completion: the loss when the last id of each earlier occurrence is replaced; key: when "
        "the id before it is; any use: when the whole match is, less the loss from equally many "
        "replacements elsewhere. "
    ) * (options["changes"] == "all")
    return (
        f"{others}Causal recall: the loss when every second id of each match is swapped with one "
        "elsewhere, less the loss from equally many swaps elsewhere. Floor: the NLL after the "
        f"swaps. Design: {options['design']}, which read "
        f"{manifest['changed_tokens'] / manifest['slices']['num_rows']:.1f} times the text; "
        f"{counted(sum(manifest['excluded'].values()), 'more sample')} could not be changed."
    )
