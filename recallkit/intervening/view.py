"""What models lose where earlier occurrences are changed, and how much of a gap is recall, as people see it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from recallkit.display import cells
from recallkit.display.cells import (
    DASH,
    counted,
    percent,
    percent_range,
    resampled,
    share_range,
    shares_of_leads,
    too_few,
)
from recallkit.display.exports import Look, command_line
from recallkit.display.tables import Table
from recallkit.intervening.changed_text import FIRST_RARE
from recallkit.intervening.charts import intervene_figures
from recallkit.intervening.tables import REPEATED, InterveneTables
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Row = Mapping[str, Any]

_NAMES = {
    "ar_hit": "AR hits",
    "repeated_frequent": "other repeated bigrams",
    REPEATED: "all repeated bigrams",
    FIRST_RARE: "rare first occurrences",
}
_MOST_SAID = 2


def look(folder: Path, tables: InterveneTables | None = None) -> Look:
    """The intervention in a folder as people see it: its tables are read unless they are given."""
    tables, manifest = tables or read_tables(InterveneTables, folder), artifacts.read_manifest(folder / "intervene.parquet")
    return Look(
        folder,
        "intervene",
        tables,
        _shown(tables, manifest),
        intervene_figures,
        answer(tables),
        method(tables, manifest),
        command(manifest),
        lines=_notes(tables),
        facts={name: manifest[name] for name in ("samples", "design", "changes", "seed", "excluded", "changed_text", "changed_tokens")},
    )


def recalled_shares(tables: InterveneTables | None) -> dict[str, Row]:
    """By model the row that says how much of its gap would be gone if neither could recall in AR hits, where that means something."""
    rows = [] if tables is None else tables.recall_share.filter(slice="ar_hit", void=False).to_dicts()
    return {row["model"]: row for row in rows}


def recalled_points(tables: InterveneTables | None) -> dict[str, Row]:
    """By model the row that says what it recalls by association in AR hits, its `points` with their interval."""
    return {} if tables is None else {row["model"]: row for row in tables.intervene.filter(slice="ar_hit").to_dicts()}


def method(tables: InterveneTables, manifest: Row) -> dict[str, str]:
    """How it was measured: the sample, the changes, the intervals."""
    first, slices = tables.intervene.row(0, named=True), manifest["slices"]
    return {
        "Text": f"{slices['num_rows']:,} predicted tokens in sequences of up to {slices['seq_len']:,}; of each slice up to "
        f"{manifest['samples']:,} tokens sampled with seed {manifest['seed']}",
        "Changes": _method(manifest),
        "95 % intervals": resampled(first, "document", "document"),
    }


def command(manifest: Row) -> str:
    """The command that makes it again."""
    from recallkit.intervening.changed_text import DEFAULT_SLICES

    options = manifest["options"]
    given = () if tuple(options["slices"]) == DEFAULT_SLICES else tuple(options["slices"])
    more = {name: options[name] for name in ("samples", "design", "changes", "seed")}
    return command_line("intervene", *manifest["models"], slices="DIR", slice=given, **more)


def _shown(tables: InterveneTables, manifest: Row) -> dict[str, Table]:
    """The tables by name: shares of the gap of several models, and what each slice loses."""
    slices = tables.intervene["slice"].unique(maintain_order=True).to_list()
    shown = _share_tables(tables) | {f"lost_{slice_}": _lost_table(tables, slice_) for slice_ in slices}
    last = f"lost_{slices[-1]}"
    shown[last] = dataclasses.replace(shown[last], caption=f"{shown[last].caption} {_method(manifest)}")
    return shown


def answer(tables: InterveneTables) -> str:
    """What models recall in the first slice, and what would become of their gaps to the reference without that; of many the range."""
    slice_ = tables.intervene["slice"][0]
    recalled = {row["model"]: row for row in tables.intervene.filter(slice=slice_).to_dicts()}
    pairs = tables.recall_share.filter(slice=slice_).to_dicts()
    if not pairs:
        return " ".join(_of_model(row) for row in list(recalled.values())[:_MOST_SAID])
    shown = [row for row in pairs if row["gap"] > 0 and not row["void"] and row["recall_share_ci_low"] > 0 and row["recall_share"] <= 1]
    if len(pairs) > _MOST_SAID and len(shown) > 1:
        return _of_several(shown, len(pairs), recalled)
    return " ".join(f"{_of_gap(row)}{_of_points(row, recalled)}" for row in pairs[:_MOST_SAID])


def _of_several(shown: Sequence[Row], number: int, recalled: Mapping[str, Row]) -> str:
    """Of the `shown` ones of a `number` of models where their gaps lie, what would be gone of each, and what they recall."""
    reference, points = shown[0]["reference"], sorted((recalled[row["model"]] for row in shown), key=lambda row: row["points"] or 0)
    whose = f"{number} models" if len(shown) == number else f"{len(shown)} of {number} models"
    return (
        f"{share_range(row['gap_share'] for row in shown)} of what {whose} lose to {reference} lies in "
        f"{_called(shown[0]['slice'])}, and {share_range(row['recall_share'] for row in shown)} would be gone if neither could recall by "
        f"association there: they recall {_points(points[0])} to {_points(points[-1])} points of probability, {reference} "
        f"{_points(recalled[reference])}."
    )


def _of_model(row: Row) -> str:
    """Whether a model recalls, where there is nothing to compare it with."""
    model, called = row["model"], _called(row["slice"])
    points = f"{_points(row)} points of probability, {row['recall']:z.2f} nats"
    if row["recall_ci_low"] is None:
        return f"{model} recalls {points} in {called}, of too few documents for an interval."
    within = f"{points} (95 % interval {_LOST['95 % interval'](row)})"
    if row["recall_ci_low"] > 0:
        return f"{model} recalls by association in {called}: {within}."
    return f"{model} is not shown to recall by association in {called}: {within}."


def _of_gap(row: Row) -> str:
    """Where a gap or a lead lies, and what would be left of it without recall; nothing where its shares mean nothing."""
    if row["void"]:
        return ""
    place, gap = ("behind", "the gap") if row["gap"] > 0 else ("ahead of", "its lead")
    low, high = row["recall_share_ci_low"], row["recall_share_ci_high"]
    if low > 0:
        would = f"{percent(row['recall_share'])} ({percent_range(low, high)}) would be gone"
    elif high < 0:
        would = f"it would be {percent(-row['recall_share'])} larger ({percent_range(-high, -low)})"
    else:
        would = f"it is not shown to be smaller or larger ({percent_range(low, high)} gone)"
    lies = f"{percent(row['gap_share'])} of {gap} lies in {_called(row['slice'])}"
    return f"{row['model']} is {place} {row['reference']}: {lies}, and {would} if neither could recall by association there. "


def _of_points(row: Row, recalled: Mapping[str, Row]) -> str:
    """Which of the two recalls more, in probability."""
    model, reference = row["model"], row["reference"]
    mine, theirs = (_points(recalled[name]) for name in (model, reference))
    if row["points_difference_ci_low"] is None:
        return f"{model} recalls {mine} points of probability, {reference} {theirs}, of too few documents to compare them."
    if _recall_alike(row):
        return f"{model} and {reference} are not shown to recall differently: {mine} and {theirs} points of probability."
    more_or_less = "more" if row["points_difference_ci_low"] > 0 else "less"
    return f"{model} recalls {more_or_less}: {mine} points of probability, {reference} {theirs}."


def _recall_alike(row: Row) -> bool:
    """Whether the points of a model and the reference are not shown to differ."""
    low, high = row["points_difference_ci_low"], row["points_difference_ci_high"]
    return low is not None and bool(low <= 0 <= high)


def _called(slice_: str) -> str:
    """What is measured of a slice: of those that were asked for the tokens that repeat a bigram, since only these can be changed."""
    return _NAMES.get(slice_, f"repeated bigrams of {slice_}")


def _points(row: Row) -> str:
    """What is recalled, in points of probability; a dash where that is not known."""
    return DASH if row["points"] is None else f"{100 * row['points']:z.1f}"


_RECALL = {
    "model": cells.name("model"),
    "points": _points,
    "lies in": cells.valid(cells.share("gap_share")),
    "recalled": cells.valid(cells.share("recall_share")),
    "95 % interval": cells.share_interval("recall_share_ci_low", "recall_share_ci_high"),
}
_LOST = {
    "model": cells.name("model"),
    "NLL": cells.number("nll", "z.2f"),
    "floor": cells.number("floor", "z.2f"),
    "completion": cells.number("completion", "z.2f"),
    "key": cells.number("key", "z.2f"),
    "any use": cells.number("use", "z.2f"),
    "recalled": cells.number("recall", "z.2f"),
    "95 % interval": cells.interval("recall"),
}
_OF_OTHERS = ("completion", "key", "any use")
"""Columns of other changes than those that tell what is recalled by association."""


def _with_shares(tables: InterveneTables) -> list[str]:
    """The slices whose shares are shown: not the control's, nor those of a part of all repeated bigrams beside AR hits."""
    slices = tables.recall_share["slice"].unique(maintain_order=True).to_list()
    return [slice_ for slice_ in slices if slice_ != FIRST_RARE and not (slice_ == "repeated_frequent" and REPEATED in slices)]


def _share_tables(tables: InterveneTables) -> dict[str, Table]:
    """For each slice, or AR hits and all repeated bigrams, a table of one row per model; the first one explains and has the control."""
    shown = _with_shares(tables)
    return {f"share_{slice_}": _share_table(tables, slice_, explained=slice_ == shown[0]) for slice_ in shown}


def _share_table(tables: InterveneTables, slice_: str, *, explained: bool) -> Table:
    """What each model recalls in a slice, and how much of its gap would be gone without that."""
    rows, called = tables.recall_share.filter(slice=slice_).to_dicts(), _called(slice_)
    reference, points = rows[0]["reference"], {row["model"]: row["points"] for row in tables.intervene.filter(slice=slice_).to_dicts()}
    first = {**dict.fromkeys(rows[0]), "model": reference, "void": False}
    told = f"Lies in: the share of the gap to {reference} in {called} ({percent(rows[0]['share_of_tokens'], 2)} of tokens)."
    if explained:
        told += (
            " Recalled: how much of the gap would be gone if neither could recall by association there. Points: how much less probable the "
            "tokens are once the ids of earlier matches are separated, beyond the effect of as many moves elsewhere."
        )
        if known := [row["recall_share"] for row in tables.recall_share.filter(slice=FIRST_RARE, void=False).to_dicts()]:
            found = percent(known[0]) if len(known) == 1 else percent_range(min(known), max(known))
            told += f" Control: around rare first occurrences, where nothing can be recalled, it is {found} of the gap."
    ahead = [row["model"] for row in rows if row["gap"] < 0 and not row["void"]]
    told += shares_of_leads(ahead)
    return Table.of(
        f"Is it recall? {called[0].upper()}{called[1:]}",
        {name: cell for name, cell in _RECALL.items() if name != "points" or points},
        [{**row, "points": points.get(row["model"])} for row in (first, *rows)],
        told,
    )


def _lost_table(tables: InterveneTables, slice_: str) -> Table:
    rows = tables.intervene.filter(slice=slice_).to_dicts()
    first, called = rows[0], _called(slice_)
    told = f"{first['samples']:,} of {first['tokens']:,} tokens, of {counted(first['documents'], 'document')}"
    if first["excluded"]:
        told += (
            f"; {first['excluded']:,} more could not be changed and count as the rest: if they recalled nothing, or twice as much, recall "
            f"would be {percent(first['excluded_share'])} smaller or larger"
        )
    title = f"Nats lost in {called} where earlier occurrences are changed"
    if slice_ == FIRST_RARE:
        title = f"Control: nats lost in {called}, where nothing can be recalled, by the same changes"
    for row in rows:
        row["floor"] = None if row["nll"] is None else row["nll"] + row["moved"]
    columns = {header: cell for header, cell in _LOST.items() if header not in _OF_OTHERS or rows[0]["use"] is not None}
    return Table.of(title, columns, rows, f"{told}.")


def _method(manifest: Row) -> str:
    """What the columns mean, and what it cost."""
    passes = manifest["changed_tokens"] / manifest["slices"]["num_rows"]
    others = (
        "Completion: the last id of each earlier occurrence is replaced; key: the id before it; any use: the whole match, less the "
        "effect of as many replacements elsewhere. "
    ) * (manifest["changes"] == "all")
    return (
        f"{others}Recalled: every second id of each match is swapped with one elsewhere, less the effect of as many swaps elsewhere; "
        f"floor: the NLL then. Design: {manifest['design']}, {passes:.1f} times the text read."
    )


def _notes(tables: InterveneTables) -> list[str]:
    """Why shares mean nothing, once per model and reason; why there are no intervals."""
    shown = _with_shares(tables)
    void: dict[tuple[str, str], list[str]] = {}
    for row in tables.recall_share.to_dicts():
        if row["note"] and row["slice"] in shown:
            void.setdefault((row["model"], row["note"]), []).append(row["slice"])
    lines = []
    for (model, note), slices in void.items():
        which = "the shares mean" if slices == shown else f"the share in {' and '.join(map(_called, slices))} means"
        lines.append(f"{model}: {which} nothing: {note}")
    few = {row["slice"]: row["effective_documents"] for row in tables.intervene.to_dicts() if row["recall_ci_low"] is None}
    lines += [f"No interval: {too_few(_called(slice_), effective)}." for slice_, effective in few.items()]
    return lines
