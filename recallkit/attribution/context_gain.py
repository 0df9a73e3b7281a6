"""What models gain from far context, and the gap split by it, from NLLs with the last ids alone.

A token's gain is G_k = NLL with its last k ids alone - NLL with the full context, in nats. The gap
splits exactly, token by token:

    NLL(model) - NLL(ref) = [NLL_k(model) - NLL_k(ref)] + [G_k(ref) - G_k(model)]
                            the local gap                 the far gap

Key tokens are those of LongPPL (arXiv 2410.23771, section 3.2), whose windows
`scoring.windows.LastIds` has. Beside it the in-context-learning score of Olsson et al.
(2209.11895): how much lower a model's loss is late in the context than early.

Then the same as tables: of all tokens, and by class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recallkit.display import cells
from recallkit.display.cells import counted, shares_of_leads
from recallkit.display.tables import Table
from recallkit.measure.labelled import TokenQuery, all_answers, batches, open_scores, open_tokens
from recallkit.measure.ratio import NUM_RESAMPLES, Sum, are_distinct, ratio
from recallkit.measure.rows import Rows
from recallkit.measure.shares import WholeGap
from recallkit.measure.sums import Clusters, sum_rows
from recallkit.storage import schemas
from recallkit.storage.schemas import declared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.display.cells import Row
    from recallkit.measure.sums import TableSums
    from recallkit.scoring.windows import LastIds

GAINS = 1.0
"""Nats by which an NLL falls at least where a model gains: the probability is e times as high."""

ALPHA, BETA = 2.0, -2.0
"""LongPPL's thresholds in nats: a key token's long-short difference is above ALPHA, and its
log-probability with all context above BETA."""

ALL, KEY_TOKENS = "all", "key_tokens"
CLASSES = {"ar_hit": "AR hit", "other_repeated": "repeated", "not_repeated": "new"}
"""A partition of the tokens, in the order of the query's `kind`, and what tables call it."""

EARLY, LATE = 50, 500
"""Positions of the two tokens of the in-context-learning score: predicted from so many ids."""


def context_rows(who: str = "reference_gains") -> Rows:
    """All tokens and each class: in all, where the reference gains, where not; and key tokens.

    What is null in a row is not asked of its tokens. With `who` "model_gains" the rows' mirrors, in
    which the model takes the reference's place.
    """
    kinds = pl.DataFrame({"slice": [ALL, *CLASSES], "kind": [None, *range(len(CLASSES))]})
    keys = kinds.join(pl.DataFrame({"reference_gains": [None, True, False]}), how="cross")
    key_tokens = pl.DataFrame({"slice": KEY_TOKENS, "is_key": True})
    marks = {"kind": "kind", who: "reference_gains", "is_key": "is_key"}
    are_equal = [pl.col(mark) == pl.col(f"{key}_of_row") for mark, key in marks.items()]
    has = pl.all_horizontal(is_equal.fill_null(value=True) for is_equal in are_equal)
    by = ["kind", "reference_gains", "is_key", "model_gains"]
    return Rows(by, pl.concat([keys, key_tokens], how="diagonal"), has)


def context_gains(
    tokens: Path,
    full: Mapping[str, Path],
    last: Mapping[LastIds, Sequence[Path]],
    *,
    cluster: str = "document",
    clean: bool = False,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> pl.DataFrame:
    """The table `by_context` (`GapTables`): the rows of `context_rows` by model and number of ids.

    `full`: names and score files with the full context, the reference first; `last`: those with the
    last ids alone, in the same order. Intervals are those of `attribute_gap`, from the same
    resamples. Raises UserError if a file is not as expected.
    """
    labelled, (reference, *models) = open_tokens(tokens), full
    files = [path for paths in (full.values(), *last.values()) for path in paths]
    scores = [open_scores(path, labelled) for path in files]
    # Of three models files 0 1 2 are with the full context, 3 4 5 with the first number of ids:
    # the pairs are 0 1 3 4 and 0 2 3 5.
    starts = range(len(full), len(files), len(full))
    pairs = [(0, model, start, start + model) for start in starts for model in range(1, len(full))]
    thresholds = {"gains": GAINS, "alpha": ALPHA, "beta": BETA}
    queries = [TokenQuery("sum_by_gain", thresholds, pair) for pair in pairs]
    by_pair = all_answers(queries, batches(labelled, scores, cluster=cluster, clean=clean))
    clusters = Clusters(labelled, cluster)
    clusters.restrict(by_pair[0]["cluster"])
    sums = [sum_rows(context_rows(), answer, clusters) for answer in by_pair]
    mirrors = [sum_rows(context_rows("model_gains"), answer, clusters) for answer in by_pair]
    gaps = [ratio(table.gap(1), table["tokens"], num_resamples, seed) for table in sums]
    rows = []
    for number, model in enumerate(models):
        for place, ids in enumerate(last):
            first = place * len(models)  # of the pairs with so many ids, which are tested together
            [is_distinct, *_] = are_distinct(gaps[first : first + len(models)])[number]
            figures = _figures(sums[first + number], mirrors[first + number], num_resamples, seed)
            names = {"reference": reference, "model": model, "last": ids.ids, "stride": ids.stride}
            keys = sums[first + number].keys
            table = schemas.frame_of_columns("gap/by_context", keys, names | figures).to_dicts()
            table[0]["is_distinct"] = None if np.isnan(is_distinct) else bool(is_distinct)
            whole_gap = WholeGap.from_row(table[0], labelled.vocab_size, cluster)
            for row in table:
                # a far share of 100 % is in no row by definition
                note = whole_gap.why_void(row, ALL)
                rows.append({**row, "note": note, "void": row["far_share"] is None or bool(note)})
    return schemas.frame_of("gap/by_context", rows)


def _figures(sums: TableSums, mirror: TableSums, num_resamples: int, seed: int) -> dict[str, Any]:
    """Columns of the rows of one model and number of ids: nats per token, shares of the whole gap.

    NLLs 0 and 1 are those of reference and model with the full context, 2 and 3 with the last ids.
    """
    tokens, gap = sums["tokens"], sums.gap(1)
    whole_gap, local_gap = gap.at([0]), sums["nll_3"] - sums["nll_2"]
    far_gap = gap - local_gap
    mirrored = mirror["nll_3"] - mirror["nll_2"] - mirror.gap(1)
    ratios = {
        "delta_nll": (gap, tokens),
        "context_gain_reference": (sums["nll_2"] - sums["nll_0"], tokens),
        "context_gain_model": (sums["nll_3"] - sums["nll_1"], tokens),
        "local_gap": (local_gap, tokens),
        "far_gap": (far_gap, tokens),
        "gap_share": (gap, whole_gap),
        "far_share": (far_gap, whole_gap),
        # A sum over all tokens, of what is 0 where the model does not gain: it may gain nowhere.
        "mirror_share": (Sum(mirrored.by_group, whole_gap.spread), whole_gap),
    }
    columns: dict[str, Any] = {
        "clusters": sums.spread.clusters,
        "effective_clusters": sums.spread.effective,
        "tokens": tokens.total,
        "share_of_tokens": tokens.total / tokens.total[0],
        "note": "",
        "void": False,
    }
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for number, side in enumerate(("reference", "model")):
            columns[f"nll_{side}"] = sums[f"nll_{number}"].total / tokens.total
            columns[f"ppl_{side}"] = np.exp(columns[f"nll_{side}"])
    for name, (part, of_whole) in ratios.items():
        columns |= ratio(part, of_whole, num_resamples, seed).columns(name)
    has_mirror = sums.keys["reference_gains"].fill_null(value=False).to_numpy()
    for name in ("mirror_share", "mirror_share_ci_low", "mirror_share_ci_high"):
        columns[name] = np.where(has_mirror, columns[name], np.nan)
    return columns


def in_context_scores(
    tokens: Path,
    scores: Mapping[str, Path],
    *,
    cluster: str = "document",
    clean: bool = False,
) -> dict[str, Any] | None:
    """Each model's mean NLL, in nats, at position `late` less that at `early`, where both are.

    `late` is LATE, or the last position of shorter sequences: the figure is then not the paper's,
    and comparable only among models on the same sequences. Intervals by `cluster`, that of a
    sequence's late token. None where sequences are shorter than twice EARLY, or none is whole.
    Returns `early`, `late`, `sequences`, and under `models` by name `score` with its interval.
    """
    labelled = open_tokens(tokens)
    late = min(LATE, labelled.seq_len)
    if late < 2 * EARLY:
        return None
    opened = [open_scores(path, labelled) for path in scores.values()]
    query = TokenQuery("sum_early_late", {"early": EARLY, "late": late})
    rows = batches(labelled, opened, ["sequence"], cluster=cluster, clean=clean)
    [answer] = all_answers([query], rows)
    if answer.is_empty():
        return None
    clusters = Clusters(labelled, cluster)
    clusters.restrict(answer["cluster"])
    is_end = pl.col("is_late") == pl.col("is_late_of_row")
    ends = Rows(["is_late"], pl.DataFrame({"is_late": [False, True]}), is_end)
    sums = sum_rows(ends, answer, clusters)
    sequences, models = sums["tokens"].at([1]), {}
    for number, name in enumerate(scores):
        nlls = sums[f"nll_{number}"]
        models[name] = ratio(nlls.at([1]) - nlls.at([0]), sequences).row("score")
    return {"early": EARLY, "late": late, "sequences": int(sequences.total[0]), "models": models}


# ------------------------------------------------------------------------------------------ tables


def gains_table(by_context: pl.DataFrame, in_context: Mapping[str, Any] | None) -> Table:
    """The reference and each model, for each number of last ids: gain, far share, LongPPL."""
    totals, key_tokens = (_rows_of(by_context, slice_) for slice_ in (ALL, KEY_TOKENS))
    reference, models = totals[0]["reference"], list(dict.fromkeys(row["model"] for row in totals))
    rows = []
    blank = {"far_share": "reference", "far_share_ci_low": None, "void": False}
    for total, keys in zip(totals, key_tokens, strict=True):
        for side in ("reference", "model") if total["model"] == models[0] else ("model",):
            row = {**total, "model": total[side], **(blank if side == "reference" else {})}
            row["context_gain"] = total[f"context_gain_{side}"]
            row["long_ppl"] = keys[f"ppl_{side}"]
            rows.append(row)
    windows, numbers = [], []
    for total, keys in zip(totals, key_tokens, strict=True):
        ids, most = total["last"], total["last"] + total["stride"] - 1
        windows.append(f"{ids:,}" if ids == most else f"{ids:,} to {most:,}")
        numbers.append(f"{keys['tokens']:,}")
    caption = (
        f"Gain: NLL with only the last ids as context ({', '.join(dict.fromkeys(windows))} of "
        "them) less NLL with the full context. A model's gap is its gap with only the last ids "
        "plus the difference in gain; far share: that difference over the gap. LongPPL: "
        f"perplexity of the reference's key tokens ({' / '.join(numbers[:: len(models)])}), whose "
        f"NLL with the full context is below {-BETA:g} and has fallen by more than "
        f"{ALPHA:g}.{_leads(totals)}"
    )
    if in_context is not None:
        caption += f"\n{_in_context([reference, *models], in_context)}"
    return Table.from_rows(
        "Gain from context before the last ids, in nats per token, and its part of the gap in %",
        "model last context_gain far_share long_ppl",
        rows,
        caption,
    )


def far_table(by_context: pl.DataFrame) -> Table:
    """Each model's far share by class, and, with its mirror, where the reference gains."""
    rows = _rows_of(by_context, *CLASSES)
    gaining = _rows_of(by_context, *CLASSES, gains=True)
    gains, mirror = (
        declared(name)._replace(form="z.1f struck") for name in ("far_share", "mirror_share")
    )
    caption = (
        "Every token is an AR hit, the end of another repeated bigram, or new: the end of no "
        "repeated bigram. Gains: the share of the tokens on which the reference gains at least "
        f"{GAINS:g} nat. The reference's own scores select them, so it does better on them partly "
        "by chance. Mirror: the same share with model and reference exchanged."
        f"{_leads(_rows_of(by_context, ALL))}"
    )
    for row, where_gained in zip(rows, gaining, strict=True):
        row |= {
            "class": CLASSES[row["slice"]],
            "gains": cells.cell(where_gained, gains),
            "mirror": cells.cell(where_gained, mirror),
        }
    columns = "model last class share_of_tokens far_share gains mirror"
    return Table.from_rows(
        "The far gap by class of token, in % of the whole gap", columns, rows, caption
    )


def _rows_of(
    by_context: pl.DataFrame, *slices: str, gains: bool | None = None
) -> list[dict[str, Any]]:
    """The rows of these slices, for one number of last ids after another."""
    is_one = pl.col("slice").is_in(slices) & pl.col("reference_gains").eq_missing(gains)
    return by_context.filter(is_one).sort("last", maintain_order=True).to_dicts()


def _leads(totals: Sequence[Row]) -> str:
    """Which models have shares of a lead, after a space, by their rows of all tokens."""
    leads = [total["model"] for total in totals if not total["void"] and total["delta_nll"] < 0]
    return shares_of_leads(leads)


def _in_context(names: Sequence[str], in_context: Mapping[str, Any]) -> str:
    """A sentence with every model's in-context-learning score."""
    late, early = in_context["late"], in_context["early"]
    score = "In-context-learning score"
    if late != LATE:
        score = f"Like the in-context-learning score, which uses position {LATE}"
    scores = ", ".join(
        f"{name} {cells.figure(in_context['models'][name], 'score')}" for name in names
    )
    sequences = counted(in_context["sequences"], "sequence")
    what = f"NLL at position {late} less that at position {early}"
    return f"{score}: {what}, of {sequences}: {scores}."
