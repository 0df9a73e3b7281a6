"""What a model's state costs: its bytes beside the recall it retains, for variants of one model or
for several models.

Based (arXiv 2402.18668, figure 2) draws recall against the size of the state of trained models;
this is the same for real text. Beside it what first occurrences lose, which need no memory of the
text.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from recallkit.attribution.answer import short_percent
from recallkit.display import cells
from recallkit.display.cells import bounds, extremes, resampled
from recallkit.display.tables import Table
from recallkit.measure.labelled import open_scores, open_tokens
from recallkit.measure.ratio import ratio
from recallkit.measure.shares import retained
from recallkit.measure.sums import add_up
from recallkit.slicing.definitions import parse_slices
from recallkit.storage import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import polars as pl

    from recallkit.display.cells import Row


def prices(
    tokens: Path,
    scores: Mapping[str, Path],
    facts: Mapping[str, Row],
    *,
    cluster: str = "document",
    clean: bool = False,
) -> pl.DataFrame:
    """The table `by_price`, a row for each model; see `GapTables`.

    `scores`: names and score files, the reference first. `facts`: of each its `family`,
    `state_bytes` and `state_ids`, None where unknown. Raises UserError if a file is not as
    expected.
    """
    labelled = open_tokens(tokens)
    files = [open_scores(path, labelled) for path in scores.values()]
    first = parse_slices(["first=NOT repeated"])
    table = add_up(labelled, files, first, cluster, clean=clean, every_table=False).tables["slices"]
    every, hits, first_occurrences = (table.slice(name) for name in ("all", "ar_hit", "first"))
    rows = []
    for number, model in enumerate(scores):
        row: dict[str, Any] = {
            **dict.fromkeys(schemas.LAYOUTS["gap/by_price"]),
            **facts[model],
            "model": model,
            "cluster": cluster,
        }
        row |= {
            "clusters": every.spread.clusters[0],
            "effective_clusters": every.spread.effective[0],
        }
        row["ppl"] = math.exp(every[f"nll_{number}"].total[0] / every["tokens"].total[0])
        row |= ratio(hits.gain(number), hits["tokens"]).row("gain")
        if number:
            row |= retained(hits.gain(number), hits.gain(0), hits["tokens"]).row("retained")
            row |= ratio(hits.gap(number), hits["tokens"]).row("loss_ar_hit")
            row |= ratio(first_occurrences.gap(number), first_occurrences["tokens"]).row(
                "loss_first"
            )
        rows.append(row)
    return schemas.frame_of("gap/by_price", rows)


def answer(by_price: pl.DataFrame) -> str:
    """What is retained beside what first occurrences lose: of one model with intervals, of several
    the range over all."""
    reference, *rows = by_price.to_dicts()
    known = {row["model"]: row["retained"] for row in rows if row["retained"] is not None}
    if not known:
        return (
            f"The recall gain of {reference['model']} on AR hits is not shown to exceed 0.1 "
            "points, so what is retained is unknown."
        )
    losses = {row["model"]: row["loss_first"] for row in rows if row["loss_first"] is not None}
    if len(rows) > 1:
        first = (
            f"; their loss where a bigram first occurs is {extremes(losses, _nats)} nats per token"
            if losses
            else ""
        )
        return (
            f"{len(rows):,} models retain {extremes(known, short_percent)} of the recall of "
            f"{reference['model']}{first}."
        )
    [row] = rows
    size = (
        f" with {cells.size(row['state_bytes'])} of state" if row["state_bytes"] is not None else ""
    )
    within = bounds(100 * row["retained_ci_low"], 100 * row["retained_ci_high"], "z.0f")
    recall = (
        f"{row['model']}{size} retains {short_percent(row['retained'])} of the recall of "
        f"{reference['model']} ({within})"
    )
    if row["loss_first"] is None:
        return f"{recall}."
    low, high = row["loss_first_ci_low"], row["loss_first_ci_high"]
    ends = "" if low is None else f" ({_nats(low)} to {_nats(high)})"
    return (
        f"{recall}; its loss where a bigram first occurs is {_nats(row['loss_first'])} nats per "
        f"token{ends}."
    )


def _nats(loss: float) -> str:
    """0.0012 -> 0.001, 0.0003 -> 0.0003: a small loss is not printed as none."""
    return f"{loss:.1g}" if 5e-5 <= abs(loss) < 1e-3 else f"{loss:z.3f}"


def price_table(by_price: pl.DataFrame) -> Table:
    """What each model retains and loses, beside the bytes of its state."""
    rows = cells.without_zoo(by_price.to_dicts())
    columns = """
        model state_bytes ppl
        gain | gain,/points | z.1f
        retained loss_ar_hit loss_first
    """
    numbers = {row["state_ids"] for row in rows} - {None}
    ids = " or ".join(f"{number:,}" for number in sorted(numbers))
    caption = f"State: of one sequence after {ids} ids. " if ids else ""
    if None in by_price["state_bytes"]:
        unknown = "where it cannot be carried, and of recorded NLLs"
        caption += f"The size of a state is unknown {unknown}. "
    caption += (
        "Gain: p(token) on AR hits less p at the first occurrence of the same bigram. Loss: NLL "
        "above the reference's, nats per token. "
        f"Intervals: {resampled(rows[0])}."
    )
    title = "Bytes of state, and recall retained of the reference's"
    return Table.from_rows(title, columns, rows, caption)
