"""What a model's state costs: its bytes beside what is lost where recall is needed, for variants of one model or for several models.

Loss is the gap to the reference in nats per token, in classes of tokens that need memory unequally: AR hits, copies from far back, AR hits
whose key has been followed by something else since, and first occurrences, which need none. Based (arXiv 2402.18668, figure 2) draws recall
against the size of the state of trained models; this is the same for real text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.attribution.answer import PPL
from recallkit.display import cells
from recallkit.display.cells import bounds, resampled
from recallkit.display.tables import Table
from recallkit.measure import sums as measure_sums
from recallkit.measure.intervals import estimates, freedom_of_ratio, number_or_none
from recallkit.measure.labelled import open_scores, open_tokens
from recallkit.slicing.definitions import parse_slices
from recallkit.storage import schemas

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import polars as pl

    from recallkit.display.cells import Cell, Row

CLASSES = ("ar_hit", "far", "first", "overwritten", "not_overwritten")
"""Classes of tokens whose loss is measured: columns `loss_CLASS`."""
_FIGURES: dict[str, tuple[Callable[..., Any], list[str]]] = {
    **{f"loss_{name}": (np.positive, [name]) for name in CLASSES},
    "ratio": (np.divide, ["ar_hit", "first"]),
    "overwriting": (np.subtract, ["overwritten", "not_overwritten"]),
}
"""What is made of the losses of some classes."""
_ENDS = ("", "_ci_low", "_ci_high")
_FAR = 128


def far_distance(seq_len: int) -> int:
    """The tokens back beyond which a copy is far: 128, or in short sequences a quarter of them."""
    return min(_FAR, seq_len // 4)


def prices(
    tokens: Path,
    scores: Mapping[str, Path],
    facts: Mapping[str, Row],
    recalled: Mapping[str, Row],
    *,
    cluster: str = "document",
    clean: bool = False,
) -> pl.DataFrame:
    """The table `by_price`, a row for each model; see `GapTables`.

    `scores`: names and score files, the reference first. `facts`: of each its `family`, `state_bytes` and `state_ids`, None where unknown.
    `recalled`: the `points` that models recall in AR hits, with their interval, where that was measured. Intervals are those of
    `attribute_gap`, from the same resamples. Raises UserError if a file is not as expected.
    """
    labelled = open_tokens(tokens)
    slices = parse_slices([f"far=distance > {far_distance(labelled.seq_len)}", "first=NOT repeated", *CLASSES[3:]])
    opened = [open_scores(path, labelled) for path in scores.values()]
    every = [*opened, *(replace(score, column="rank") for score in opened)]
    summed = measure_sums.add_up(labelled, every, slices, cluster, clean=clean, every_table=False)
    sums, place = summed.tables["slices"], {name: number for number, name in enumerate(summed.rows["slices"].keys["slice"])}
    [drawn] = measure_sums.resampled([sums])
    with np.errstate(divide="ignore", invalid="ignore"):
        means = [of[1:] / of[0] for of in (sums.totals, drawn)]  # (2 m, ..., K)

    def estimated(name: str, make: Callable[..., Any], classes: list[str], number: int, less: int | None = None) -> Row:
        """What is made of the means of value `number` over some classes, or of how far above value `less` they are, with its interval."""
        at = [place[class_] for class_ in classes]
        parts = sums.nlls[number] if less is None else sums.nlls[number] - sums.nlls[less]
        freedom = min(sums.freedom[at].min(), freedom_of_ratio(parts[:, at], sums.tokens[:, at]).min())
        values = [of[number] if less is None else of[number] - of[less] for of in means]
        figure, samples = (make(*(of[..., class_] for class_ in at)) for of in values)
        found = estimates(name, figure, samples, sums.effective[at].min(), freedom)
        return {column: number_or_none(float(of)) for column, of in found.items()}

    rows = []
    with np.errstate(divide="ignore", invalid="ignore"):
        for number, model in enumerate(scores):
            row: dict[str, Any] = {**dict.fromkeys(schemas.LAYOUTS["gap/by_price"]), **facts[model], "model": model, "cluster": cluster}
            row |= {"clusters": sums.clusters[0], "effective_clusters": sums.effective[0], "ppl": float(np.exp(means[0][number, 0]))}
            row |= {f"recalled{end}": recalled[model][f"points{end}"] for end in _ENDS if model in recalled}
            row |= estimated("accuracy", np.positive, ["ar_hit"], len(opened) + number)
            for name, (make, classes) in _FIGURES.items() if number else ():
                if name != "ratio" or (row["loss_first_ci_low"] or 0) > 0:  # else it may be any number
                    row |= estimated(name, make, classes, number, 0)
            rows.append(row)
    return schemas.frame_of("gap/by_price", rows)


def answer(by_price: pl.DataFrame) -> str:
    """What AR hits lose, beside first occurrences, with the model that costs them most; then whether overwritten ones lose more or less.

    That is the one with the largest ratio of the two losses where a ratio is above 1, else with the largest loss in AR hits whose interval
    is above 0; where there is none, that is said.
    """
    _, *rows = by_price.to_dicts()

    def selective(row: Row) -> bool:
        return (row["ratio_ci_low"] or 0) > 1

    def is_shown(row: Row) -> bool:
        low = row["loss_ar_hit_ci_low"]
        return (row["loss_ar_hit"] or 0) > 0 if low is None else low > 0

    row = max(rows, key=lambda row: (row["ratio"] if selective(row) else 1, is_shown(row), row["loss_ar_hit"] or 0))
    if row["loss_ar_hit"] is None or row["loss_first"] is None:
        return f"No token is {'an AR hit' if row['loss_ar_hit'] is None else 'a first occurrence'}: there are no two losses to compare."
    hits, first = (_nats(row[name]) for name in ("loss_ar_hit", "loss_first"))
    if row["ratio"] is not None and row["loss_ar_hit_ci_low"] > 0:
        within = f"{_times(row['ratio_ci_low'])} to {_times(row['ratio_ci_high'])} times"
        costs = f"Per token {row['model']} costs AR hits {_times(row['ratio'])} times what it costs first occurrences: "
        costs += f"{hits} against {first} nats (95 % interval {within})."
    else:
        of_hits, of_first = (_within(row, name) for name in ("loss_ar_hit", "loss_first"))
        costs = f"The loss of {row['model']} per token is {hits} nats in AR hits{of_hits}, and {first} in first occurrences{of_first}."
    if len(rows) == 1:
        most = ""
    elif not any(map(is_shown, rows)):
        none = f"{'Neither' if len(rows) == 2 else 'None'} of {len(rows)} models is shown to lose anything in AR hits"
        largest = f"; the largest loss is that of {row['model']}" * (row["loss_ar_hit"] > 0)
        most = f"{none}{largest}. "
    elif not selective(row) and row["loss_ar_hit"] < max(other["loss_ar_hit"] for other in rows):
        most = f"Of {len(rows)} models {row['model']} has the largest loss in AR hits that is shown. "
    else:
        most = f"Of {len(rows)} models {row['model']} costs AR hits most{' in proportion' * selective(row)}. "
    more, less = (row["overwriting_ci_low"] or 0) > 0, (row["overwriting_ci_high"] or 0) < 0
    than = " on AR hits whose key has been followed by something else since than on the others."
    return f"{most}{costs}" + f" It loses {'more' if more else 'less'}{than}" * (more or less)


def _nats(loss: float) -> str:
    """0.0012 -> 0.001, 0.0003 -> 0.0003: a loss that is shown is not printed as none."""
    return f"{loss:.1g}" if 5e-5 <= abs(loss) < 1e-3 else f"{loss:z.3f}"


def _times(ratio: float) -> str:
    """3.57 -> 3.6, 1.234 -> 1.23."""
    return f"{ratio:,.2f}" if ratio < 2 else f"{ratio:,.1f}"


def _within(row: Row, name: str) -> str:
    low, high = row[f"{name}_ci_low"], row[f"{name}_ci_high"]
    return " (of too few documents for an interval)" if low is None else f" (95 % interval {bounds(low, high, 'z.3f')})"


def measured(by_price: pl.DataFrame) -> str:
    """The column of recall that all models have: `recalled` if an intervention measured it, else `accuracy`."""
    return "accuracy" if by_price["recalled"].has_nulls() else "recalled"


def price_table(by_price: pl.DataFrame, seq_len: int) -> Table:
    """What each model loses, beside the bytes of its state; a narrow terminal leaves out overwritten AR hits, then the interval."""
    rows, recall = cells.without_zoo(by_price.to_dicts()), measured(by_price)
    losses, form = {"far\ncopies": "far", "first": "first"}, "z.3f"
    columns: dict[str, Cell] = {
        "model": cells.name("model"),
        "state": lambda row: cells.size(row["state_bytes"]),
        "ppl": cells.number("ppl", PPL),
        "recalled" if recall == "recalled" else "AR hits\nright": cells.in_percent(recall),
        "loss in\nAR hits": cells.number("loss_ar_hit", "z.3f"),
        "95 %\ninterval": cells.interval("loss_ar_hit", "z.3f"),
        **{called: cells.number(f"loss_{name}", form) for called, name in losses.items()},
        "overwritten\nor not": lambda row: ", ".join(cells.or_dash(row[f"loss_{name}"], form) for name in CLASSES[3:]),
    }
    what = "Recalled: points of probability that association adds in AR hits (`recallkit intervene`)."
    if recall == "accuracy":
        what = "Right: % of AR hits that are ranked first; what of it is recall, `recallkit intervene` of these models measures."
    ids = " or ".join(f"{number:,}" for number in sorted({row["state_ids"] for row in rows} - {None}))
    told = f"State: of one sequence after {ids} ids. " if ids else ""
    told += "Of a state that cannot be carried the bytes are unknown. " if None in by_price["state_bytes"] else ""
    told += (
        f"{what} Losses: nats per token. Far copies: bigrams that are more than {far_distance(seq_len)} tokens back; first: first "
        "occurrences; overwritten or not: AR hits whose key has, and has not, been followed by something else since. "
        f"Intervals: {resampled(rows[0])}."
    )
    return Table.of(
        "Bytes of state, and the loss to the reference in nats per token",
        columns,
        rows,
        told,
        groups=[("", 4), ("loss in AR hits", 2), ("loss in other classes", 3)],
        optional=["overwritten\nor not", "95 %\ninterval"],
    )
