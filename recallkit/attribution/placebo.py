"""A placebo for architecture: the reference's own run, stopped where its loss is the model's.

The profile of a gap could be that of *any* model with a higher loss. So the reference's earlier
checkpoints are compared with it in the same way, interpolated to each model's NLL: between two
neighbouring checkpoints the sums of NLLs and of probabilities are mixed in the proportion that
gives the model's NLL over all tokens.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from recallkit.attribution.answer import short_percent
from recallkit.display import cells
from recallkit.display.cells import some_of
from recallkit.display.tables import Table
from recallkit.measure.labelled import open_scores, open_tokens
from recallkit.measure.ratio import ratio
from recallkit.measure.shares import retained
from recallkit.measure.sums import add_up
from recallkit.storage import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import polars as pl

    from recallkit.attribution.answer import Row, Totals
    from recallkit.measure.sums import TableSums

NOT_WORSE = "not significantly worse than the reference, so there is nothing to explain"
TOO_FAR = "worse than every checkpoint"
_NO_RECALL = "the reference's recall gain is not shown to exceed 0.1 points"


def placebos(
    tokens: Path,
    scores: Mapping[str, Path],
    checkpoints: Mapping[str, Path],
    *,
    cluster: str = "document",
    clean: bool = False,
) -> pl.DataFrame:
    """The table `by_placebo`, a row for each model; see `GapTables`.

    `scores`: names and score files, the reference first; `checkpoints`: the same of its earlier
    checkpoints. Raises UserError if a file is not as expected.
    """
    labelled = open_tokens(tokens)
    names = [*scores, *checkpoints]
    files = [open_scores(path, labelled) for path in (*scores.values(), *checkpoints.values())]
    table = add_up(labelled, files, (), cluster, clean=clean, every_table=False).tables["slices"]
    every, hits = table.slice("all"), table.slice("ar_hit")
    nlls = [
        float(every[f"nll_{number}"].total[0] / every["tokens"].total[0])
        for number in range(len(names))
    ]
    run = sorted([0, *range(len(scores), len(names))], key=lambda number: nlls[number])
    rows = []
    for number, model in enumerate(list(scores)[1:], 1):
        row: dict[str, Any] = dict.fromkeys(schemas.LAYOUTS["gap/by_placebo"])
        row |= {"reference": names[0], "model": model, "nll": nlls[number], "void": True}
        is_worse = ratio(every.gap(number), every["tokens"]).low[0] > 0
        row |= {"checkpoint": "", "next_checkpoint": "", "note": TOO_FAR if is_worse else NOT_WORSE}
        pair = [
            pair
            for pair in itertools.pairwise(run)
            if nlls[pair[0]] < nlls[number] <= nlls[pair[1]]
        ]
        if pair and is_worse:
            better, worse = pair[0]
            weight = (nlls[number] - nlls[better]) / (nlls[worse] - nlls[better])
            row |= _figures(every, hits, better, worse, weight)
            row |= {
                "checkpoint": names[worse],
                "next_checkpoint": names[better],
                "weight": weight,
                "note": "",
                "void": False,
            }
        rows.append(row)
    return schemas.frame_of("gap/by_placebo", rows)


def _figures(
    every: TableSums, hits: TableSums, better: int, worse: int, weight: float
) -> dict[str, Any]:
    """Gap share, recall gain and what is retained of a mixture of two checkpoints, `weight` of the
    worse one."""
    of_hits, whole_gap = (
        weight * sums.gap(worse) + (1 - weight) * sums.gap(better) for sums in (hits, every)
    )
    gain = weight * hits.gain(worse) + (1 - weight) * hits.gain(better)
    figures = {
        "gap_share": ratio(of_hits, whole_gap),
        "gain": ratio(gain, hits["tokens"]),
        "retained": retained(gain, hits.gain(0), hits["tokens"]),
    }
    columns: dict[str, Any] = {}
    for name, figure in figures.items():
        columns |= figure.row(name)
    return columns


def in_a_sentence(by_placebo: pl.DataFrame, totals: Totals) -> str:
    """What the reference itself retained at each model's loss, and the AR hits' share of its gap
    there."""
    rows = by_placebo.to_dicts()
    known = [row for row in rows if not row["void"] and row["retained"] is not None]
    unknown = {row["model"]: row["note"] or _NO_RECALL for row in rows if row not in known}
    said = [_beside(row, totals[row["model"], "ar_hit"]) for row in known[:2]]
    more = f"; {len(known) - 2:,} more in the table" * (len(known) > 2)
    sentences = []
    if said:
        sentences.append(f"The reference's own run, as a placebo: {'; '.join(said)}{more}.")
    for reason in dict.fromkeys(unknown.values()):
        models = [model for model, why in unknown.items() if why == reason]
        sentences.append(f"No placebo for {some_of(models)}: {reason}.")
    return " ".join(sentences)


def _beside(row: Row, hits: Row) -> str:
    mine = "unknown" if hits["retained"] is None else short_percent(hits["retained"])
    recall = (
        f"at the loss of {row['model']} it retains {short_percent(row['retained'])} of the "
        f"reference's recall (the model: {mine})"
    )
    return f"{recall}, and AR hits carry {short_percent(row['gap_share'])} of its gap"


def placebo_table(by_placebo: pl.DataFrame, totals: Totals) -> Table:
    """A row per model: its own figures, and those of the reference's run at its loss."""
    rows = []
    for row in by_placebo.to_dicts():
        figures = {f"placebo_{name}": value for name, value in row.items()}
        at = row["note"] or f"{row['checkpoint']}, {row['weight']:.0%}"
        rows.append({**totals[row["model"], "ar_hit"], **figures, "at": at})
    columns = """
        model
        retained  | retained
        placebo_retained
        gap_share | gap/share | z.1f struck
        placebo_gap_share
        at
    """
    caption = (
        "Placebo: the reference's own earlier checkpoints, interpolated to the model's NLL. At: "
        "the worse of two neighbouring checkpoints "
        "and its weight. A model that resembles its placebo has the profile of any model with "
        "its loss."
    )
    return Table.from_rows(
        "AR hits, %: the model, and the reference at the model's loss",
        columns,
        cells.without_zoo(rows),
        caption,
    )
