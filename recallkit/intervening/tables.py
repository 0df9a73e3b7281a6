"""Causal recall: what models lose where earlier occurrences are broken up, and what part of a gap
that is.

With NLLs of a token in the text and in the changed text, in nats: what is lost by a change is the
second less the first; tau is what is lost by `moved` less what is lost by `moved_placebo`; causal
recall is the same difference in probability, p = exp(-NLL): how much less probable the token is
under `moved` than under `moved_placebo`. Every mean is a ratio of two sums over documents, of
weight x measure and of weights, where a sample weighs as many tokens as it represents, so that the
weights of a slice of N tokens add up to N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recallkit.display.notebook import NotebookResult
from recallkit.intervening.changes import CHANGES
from recallkit.intervening.sampling import FIRST_RARE
from recallkit.measure.labelled import RowReader, open_scores, open_tokens
from recallkit.measure.ratio import are_distinct, ratio
from recallkit.measure.rows import Rows, log2_bucket
from recallkit.measure.shares import WholeGap, gap_figures, retained
from recallkit.measure.sums import add_up, sum_rows
from recallkit.slicing.definitions import STANDARD
from recallkit.storage.schemas import frame_of, frame_of_columns, read_frame

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.measure.labelled import LabelledTokens
    from recallkit.measure.sums import Sums, TableSums
    from recallkit.slicing.definitions import Slice

# Columns with intervals: the mean NLL in the text, what each change loses, `span` less `placebo`,
# tau, and causal recall.
MEASURES = ("nll", *CHANGES, "use", "recall", "points")

# The slice of all repeated bigrams, and those that it is made of.
REPEATED, SPLIT_OF_REPEATED = "repeated", ("ar_hit", "repeated_frequent")


# What each table has a row per bucket of; the first one has a single bucket, as `all` is 0.
_BUCKETED = {"intervene": "all", "by_distance": "distance", "by_count": "train_count"}


@dataclass(frozen=True, slots=True, repr=False)
class InterveneTables(NotebookResult):
    """What models lose by changes of their context, with 95 % intervals `*_ci_low`, `*_ci_high`
    over documents.

    intervene: model x slice, the reference first: `tokens` that the `samples` represent,
    `documents` with samples and their effective number. In nats per token: `nll`, what is lost by
    each of CHANGES, `use` (`span` less `placebo`), `recall` (`moved` less `moved_placebo`).
    `points`: causal recall, how much less probable tokens are under `moved` than under
    `moved_placebo`, a fraction. Slice `repeated`: ar_hit and repeated_frequent together.
    by_distance, by_count: the same by distance of the latest earlier occurrence and by training
    count (`low`..`high`, both included).
    retained: model x slice: `retained`, the model's causal recall over the reference's, null where
    the reference's is not shown to be above 0. `gap`, of all tokens, in nats per token;
    `causal_share`, the part of it that is causal recall in the slice: how much more nats the
    reference's recall is worth, over the whole gap. `void`: this share means nothing, which `note`
    explains. first_rare is the control: what the share of the AR hits would be with what first
    occurrences lose.
    """

    intervene: pl.DataFrame
    by_distance: pl.DataFrame
    by_count: pl.DataFrame
    retained: pl.DataFrame


def measure(
    tokens: LabelledTokens,
    changed: Path,
    names: Sequence[str],
    files: Sequence[tuple[Path, Path]],
    slices: Sequence[Slice],
) -> InterveneTables:
    """The tables of models, the reference first, from the scores of each (`files`) of the text and
    of that in the folder `changed`.

    Columns of changes that were not made are null. Raises UserError if scores are damaged or of
    other text.
    """
    scores = [open_scores(path, tokens) for path, _ in files]
    text = add_up(tokens, scores, slices, every_table=False)
    is_compared = pl.col("position") > max(score.read_exactly for score in scores)
    sampled = read_frame(changed / "samples.parquet").filter(is_compared, excluded="")
    measures = read_measures(sampled, tokens, open_tokens(changed / "tokens.parquet"), files)
    return make_tables(names, sampled, measures, text, tokens.vocab_size)


def read_measures(
    sampled: pl.DataFrame,
    tokens: LabelledTokens,
    changed: LabelledTokens,
    files: Sequence[tuple[Path, Path]],
) -> dict[str, np.ndarray]:
    """The MEASURES of n sampled tokens under each of m models, float64 (n, m) each; NaN where a
    change was not made.

    `files`: each model's scores of the text and of the changed text.
    """
    before = np.stack([_nlls(path, tokens)[sampled["row"].to_numpy()] for path, _ in files], axis=1)
    again = np.stack([_nlls(path, changed) for _, path in files], axis=1)
    after = {change: again[sampled[f"{change}_row"].to_numpy()] for change in CHANGES}
    lost = {change: nlls - before for change, nlls in after.items()}
    return {
        "nll": before,
        **lost,
        "use": lost["span"] - lost["placebo"],
        "recall": lost["moved"] - lost["moved_placebo"],
        "points": np.exp(-after["moved_placebo"]) - np.exp(-after["moved"]),
    }


def _nlls(path: Path, tokens: LabelledTokens) -> np.ndarray:
    """All NLLs of a score file, and NaN for row -1, of a change that was not made; float64 (n +
    1,)."""
    rows = RowReader(open_scores(path, tokens).path, ["nll"]).read(0, tokens.num_rows)
    return np.append(rows["nll"].to_numpy(), np.nan)


# ------------------------------------------------------------------------------------------- tables


def make_tables(
    names: Sequence[str],
    sampled: pl.DataFrame,
    measures: Mapping[str, np.ndarray],
    text: Sums,
    vocab_size: int,
) -> InterveneTables:
    """The tables of m models (`names`, the reference first) from n `sampled` tokens, in any order.

    `measures`: (n, m) each, as `read_measures` has them; `text`: the sums of the whole text, of the
    same slices.
    """
    parts = {name: [name] for name in sampled["slice"].unique(maintain_order=True)}
    if {*SPLIT_OF_REPEATED} <= parts.keys():
        parts.setdefault(REPEATED, [*SPLIT_OF_REPEATED])
    rows = sampled.select(
        "slice",
        "distance",
        "train_count",
        pl.lit(0).alias("all"),
        cluster="document",
        tokens=_weights(text),
    )
    columns = {"samples": np.ones(len(rows))}
    for measure, values in measures.items():
        weighted = values * rows["tokens"].to_numpy()[:, None]
        columns |= {f"{measure}_{model}": weighted[:, model] for model in range(len(names))}
    rows = rows.hstack(pl.DataFrame(columns))
    slices = pl.DataFrame({"slice": [*parts], "parts": [*parts.values()]})
    sums = {table: _sums(rows, by, slices, text, [*columns]) for table, by in _BUCKETED.items()}
    frames = {table: _lost(table, part, names) for table, part in sums.items()}
    every = text.tables["slices"].slice("all")
    return InterveneTables(
        **frames,
        retained=_retained(sums["intervene"], every, names, vocab_size),
    )


def _weights(text: Sums) -> pl.Expr:
    """How many tokens of its slice each sample represents, where some are excluded.

    First occurrences represent the slice whose tokens' places they borrow, the first of the others.
    """
    requested = text.tables["slices"]
    sizes = dict(
        [*zip(requested.keys["slice"], requested["tokens"].total, strict=True)][len(STANDARD) :],
    )
    sizes[FIRST_RARE] = next(size for name, size in sizes.items() if name != FIRST_RARE)
    size = pl.col("slice").replace_strict(sizes, return_dtype=pl.Float64)
    return size * pl.col("weight") / pl.col("weight").sum().over("slice")


def _sums(
    rows: pl.DataFrame,
    column: str,
    slices: pl.DataFrame,
    text: Sums,
    columns: Sequence[str],
) -> TableSums:
    """The sums of weighted `rows` by slice and bucket of a column: `low`..`high`, for 3 and 4 that
    is 3..4."""
    rows = rows.with_columns(high=pl.Series((1 << log2_bucket(rows[column].to_numpy())) >> 1))
    low = pl.min_horizontal("high", pl.col("high") // 2 + 1)
    buckets = rows.select(pl.col("high").unique().sort()).with_columns(low=low)
    has = pl.col("slice").is_in("parts") & (pl.col("high") == pl.col("high_of_row"))
    keys = Rows(["slice", "high"], slices.join(buckets, how="cross"), has)
    sums = sum_rows(keys, rows, text.clusters, columns)
    return sums.take(np.flatnonzero(sums.spread.clusters))


def _lost(table: str, sums: TableSums, names: Sequence[str]) -> pl.DataFrame:
    """The mean of every measure in every row, model by model."""
    frames = []
    for model, name in enumerate(names):
        columns = {"model": name, **_about(sums)}
        for measure in MEASURES:
            columns |= ratio(sums[f"{measure}_{model}"], sums["tokens"]).columns(measure)
        frames.append(frame_of_columns(f"intervene/{table}", sums.keys, columns))
    return pl.concat(frames)


def _about(sums: TableSums) -> dict[str, Any]:
    """What there is in each row."""
    return {
        "tokens": np.rint(sums["tokens"].total),
        "samples": sums["samples"].total,
        "documents": sums.spread.clusters,
        "effective_documents": sums.spread.effective,
    }


def _retained(
    sums: TableSums,
    every: TableSums,
    names: Sequence[str],
    vocab_size: int,
) -> pl.DataFrame:
    """What each model retains of the reference's causal recall in each slice, and what part of its
    gap that is."""
    about = _about(sums)
    about |= {
        "reference": names[0],
        "share_of_tokens": about["tokens"] / every["tokens"].total,
        "note": "",
        "void": False,
    }
    frames = [frame_of("intervene/retained", [])]
    for model, gap in enumerate(_whole_gaps(every, names, vocab_size), 1):
        recall = retained(sums[f"points_{model}"], sums["points_0"], sums["tokens"])
        share = ratio(sums["recall_0"] - sums[f"recall_{model}"], every.gap(model))
        columns = {
            **about,
            "model": names[model],
            "gap": gap.gap,
            **recall.columns("retained"),
            **share.columns("causal_share"),
        }
        frame = frame_of_columns("intervene/retained", sums.keys, columns)
        rows = frame.with_columns(effective_clusters="effective_documents").to_dicts()
        note = pl.Series([gap.why_void(row, row["slice"]) for row in rows])
        frames.append(frame.with_columns(note=note, void=note != ""))
    return pl.concat(frames)


def _whole_gaps(every: TableSums, names: Sequence[str], vocab_size: int) -> list[WholeGap]:
    """The gaps of all tokens between the models and the first one, from `every`, of one row."""
    gaps = {model: ratio(every.gap(model), every["tokens"]) for model in range(1, len(names))}
    judged = []
    for model in gaps:
        row = {name: values[0] for name, values in gap_figures(every, every, model).items()}
        row["is_distinct"] = are_distinct([*gaps.values()])[model - 1, 0]
        judged.append(WholeGap.from_row(row, vocab_size))
    return judged
