"""What printed perplexities imply, as a terminal and exports show it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.display.cells import extremes, percent
from recallkit.display.tables import Table
from recallkit.papers.arithmetic import NO_AR_PERPLEXITY, REFERENCE

if TYPE_CHECKING:
    from recallkit.display.cells import Row
    from recallkit.papers.arithmetic import PublishedGap, PublishedGroup


def published_json(published: PublishedGap) -> dict[str, Any]:
    """The arithmetic on printed perplexities, row by row."""
    return {
        "groups": [asdict(group) for group in published.groups],
        "rows": published.frame.to_dicts(),
    }


def print_published(published: PublishedGap) -> None:
    """The range of the shares, the tables of all groups, and what is remarkable about their
    rows."""
    notes = []
    for row in published.frame.to_dicts():
        if row["note"] not in ("", REFERENCE):
            void = "no meaningful share: " if row["void"] else ""
            notes.append(f"{_name(published, row)}: {void}{row['note']}")
    tables = list(published_tables(published).values())
    console.print_answer(published_answer(published), tables, notes, full=True)


def published_answer(published: PublishedGap) -> str:
    """The range of the gap shares of all models that are behind their reference, and who is
    neither behind nor ahead."""
    references = {group.name: group.reference for group in published.groups}
    rows = published.frame.to_dicts()
    perplexities = {
        row["group"]: row["all"] for row in rows if row["model"] == references[row["group"]]
    }
    shares, unresolved = {}, []
    for row in rows:
        if row["note"] in (REFERENCE, NO_AR_PERPLEXITY):
            continue
        if row["void"] or row["gap_share"] is None:
            unresolved.append(_name(published, row))
        elif row["all"] > perplexities[row["group"]]:
            shares[_name(published, row)] = row["gap_share"]
    answer = "No model is behind its reference by more than rounding."
    if shares:
        reference = "their references" if len(references) > 1 else published.groups[0].reference
        whose = (
            f"the gaps of {len(shares)} models"
            if len(shares) > 1
            else f"the gap of {next(iter(shares))}"
        )
        answer = f"AR hits carry {extremes(shares, percent)} of {whose} to {reference}."
    return f"{answer} No gap beyond rounding: {'; '.join(unresolved)}." if unresolved else answer


def _name(published: PublishedGap, row: Row) -> str:
    """A model's name, with its group where there are several."""
    return f"{row['group']}, {row['model']}" if len(published.groups) > 1 else str(row["model"])


def _rounded_share(row: Row) -> str:
    """12.3 ± 0.4 %, the greater distance to what the unrounded perplexities can give; the share
    alone where that is not known."""
    share, low, high = row["gap_share"], row["gap_share_low"], row["gap_share_high"]
    if share is None or low is None or high is None:
        return percent(share)
    return f"{100 * share:z.1f} ± {100 * max(high - share, share - low):.1f} %"


_COLUMNS = """
    model
    all               | all     | ,.2f
    ar                | AR hits | ,.2f
    other             | other   | ,.2f
    share             | share   | z.1f struck
    gap_share_clipped
"""


def published_tables(published: PublishedGap) -> dict[str, Table]:
    """For export: a table for each group, named by its number where there are several."""
    tables = [_group_table(published, group) for group in published.groups]
    if len(tables) == 1:
        return {"published": tables[0]}
    return {f"published_{number}": table for number, table in enumerate(tables, 1)}


def _group_table(published: PublishedGap, group: PublishedGroup) -> Table:
    """One row per model, as in the printed table; the share that it states itself, if it states
    any."""
    rows = published.frame.filter(group=group.name).to_dicts()
    is_stated = any(row["printed"] is not None for row in rows)
    is_ranged = any(row["gap_share_low"] is not None for row in rows)
    implied = next(row["implied_ar_share"] for row in rows if row["model"] == group.reference)
    origin = f"by the row of {group.reference}" if group.ar_share == implied else "as given"
    for row in rows:
        row["share"] = None if row["gap_share"] is None else _rounded_share(row)
    columns = f"{_COLUMNS}\n{'printed' if is_stated else ''}"
    caption = f"AR hits are {percent(group.ar_share, 2)} of tokens, {origin}."
    if is_ranged:
        caption += " ±: how far the rounding of the printed perplexities can move a share."
    return Table.from_rows(
        "AR hits' share of the gap, from printed perplexities"
        + (f": {group.name}" if group.name else ""),
        columns,
        rows,
        f"{caption} Clipped: at most 100 %, as the papers report it.",
        groups=[("", 1), ("perplexity", 3), ("share of the gap", 2 + is_stated)],
    )
