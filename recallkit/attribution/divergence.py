"""How far predictions are from the reference's: KL divergence, and agreement of the first choice.

KL(reference | model) and agreement are of every token (`models.paired`), so that they are added up
and resampled as NLLs are. Where an AR hit's bigram first occurs nothing can be recalled: the
divergence there is what the divergence per AR hit is compared with. Then the same in a sentence and
as a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display import cells
from recallkit.display.cells import extremes, some_of
from recallkit.display.tables import Table
from recallkit.measure.labelled import batches, open_scores, open_tokens
from recallkit.measure.ratio import NUM_RESAMPLES, ratio
from recallkit.measure.sums import add_up
from recallkit.slicing.definitions import STANDARD
from recallkit.storage import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.measure.labelled import LabelledTokens, Scores
    from recallkit.slicing.definitions import Slice

QUANTILES = {"kl_p50": 0.5, "kl_p95": 0.95, "kl_p99": 0.99}
"""Columns of quantiles of a slice's tokens, interpolated linearly, as those of all tokens by
llama.cpp's `perplexity --kl-divergence`."""

_TABLES = {"slice": "slices", "distance": "by_distance", "position": "by_position"}
"""What buckets are of, and their table of sums."""


def divergences(
    tokens: Path,
    reference: str,
    files: Mapping[str, Path],
    *,
    slices: Sequence[Slice] = (),
    cluster: str = "document",
    clean: bool = False,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> pl.DataFrame:
    """The table `by_divergence` (`GapTables`): by model, slice, bucket of distance and of position.

    `files`: models and their divergences from the reference. Intervals are those of
    `attribute_gap`, from the same resamples. Raises UserError if a file is not as expected.
    """
    import polars as pl

    labelled = open_tokens(tokens)
    pairs = [(path, column) for path in files.values() for column in ("kl", "agrees")]
    scores = [open_scores(path, labelled, column) for path, column in pairs]
    sums = add_up(labelled, scores, slices, cluster, clean=clean)
    quantiles = _quantiles(labelled, scores[::2], slices, clean=clean)
    num_tokens = sums.tables["slices"]["tokens"].total[0]
    layout, frames = "gap/by_divergence", []
    for place, model in enumerate(files):
        for by, name in _TABLES.items():
            table = sums.tables[name]
            tokens_of_row, kl = table["tokens"], table[f"nll_{2 * place}"]
            blank = schemas.LAYOUTS[layout].keys() - set(table.keys.columns)
            columns: dict[str, Any] = dict.fromkeys(blank) | {
                "reference": reference,
                "model": model,
                "by": by,
                "tokens": tokens_of_row.total,
                "share_of_tokens": tokens_of_row.total / num_tokens,
                "clusters": table.spread.clusters,
                "effective_clusters": table.spread.effective,
            }
            columns |= ratio(kl, tokens_of_row, num_resamples, seed).columns("kl")
            agreement = ratio(table[f"nll_{2 * place + 1}"], tokens_of_row, num_resamples, seed)
            columns |= agreement.columns("agreement")
            if by == "slice":
                first = table[f"first_nll_{2 * place}"]
                of_repeated = {"kl_first": ratio(first, tokens_of_row, 0).value}
                of_repeated |= ratio(kl, first, num_resamples, seed).columns("ratio")
                is_repeated = table.keys["slice"].is_in(["ar_hit", "repeated"]).to_numpy()
                for column, value in of_repeated.items():
                    columns[column] = np.where(is_repeated, value, np.nan)
                columns |= dict(zip(QUANTILES, quantiles[place].T, strict=True))
            frame = schemas.frame_of_columns(layout, table.keys, columns)
            frames.append(frame.filter((pl.col("by") == "slice") | (pl.col("tokens") > 0)))
    return pl.concat(frames)


def _quantiles(
    tokens: LabelledTokens,
    scores: Sequence[Scores],
    slices: Sequence[Slice],
    *,
    clean: bool,
) -> np.ndarray:
    """QUANTILES of the divergence of each model in each slice, (m, K, 3) nats; NaN of no tokens."""
    sets, values = [], []
    for rows in batches(tokens, scores, slices=(*STANDARD, *slices), clean=clean):
        sets.append(rows["slices"].to_numpy())
        values.append(np.stack([rows[f"nll_{number}"].to_numpy() for number in range(len(scores))]))
    bits, every = np.concatenate(sets), np.concatenate(values, axis=1).astype(np.float64)
    quantiles = np.full((len(scores), len(STANDARD) + len(slices), len(QUANTILES)), np.nan)
    for slice_ in range(quantiles.shape[1]):
        inside = bits >> slice_ & 1 == 1
        for model, nats in enumerate(every if inside.any() else ()):
            quantiles[model, slice_] = np.quantile(nats[inside], list(QUANTILES.values()))
    return quantiles


_KL = "#.3g"
_ROUNDING = 1e-6
"""Nats: two ways of computing the same predictions are so far apart, and a ratio of such
divergences says nothing."""


def in_a_sentence(by_divergence: pl.DataFrame) -> str:
    """The ratio of the divergence per AR hit to that where its bigram first occurs, of all models.

    Of divergences that are all rounding, or without AR hits, the divergence per token.
    """
    hits = by_divergence.filter(by="slice", slice="ar_hit").to_dicts()
    reference = hits[0]["reference"]
    known = [row for row in hits if row["ratio"] is not None and row["kl"] > _ROUNDING]
    ratios = {row["model"]: row["ratio"] for row in known}
    if not ratios:
        wholes = by_divergence.filter(by="slice", slice="all")
        nats = extremes(dict(wholes.select("model", "kl").rows()), lambda kl: f"{kl:{_KL}}")
        no_hits = "; there are no AR hits" if hits[0]["kl"] is None else ""
        return f"The KL divergence from {reference} is {nats} nats per token{no_hits}."
    times = extremes(ratios, lambda value: f"{value:.1f}")
    unresolved = [
        row["model"] for row in hits if row not in known or (row["ratio_ci_low"] or 0) <= 1
    ]
    whose = f"{len(ratios):,} models" if len(ratios) > 1 else next(iter(ratios))
    larger = f"On AR hits, the KL divergence of {whose} from {reference} is {times} times that"
    not_shown = f"; it is not significantly larger for {some_of(unresolved)}" if unresolved else ""
    return f"{larger} at the first occurrences of their bigrams{not_shown}."


def divergence_table(by_divergence: pl.DataFrame) -> Table:
    """A row per slice and model: divergence, its ratio to where bigrams first occur, agreement."""
    rows = cells.without_zoo(by_divergence.filter(by="slice").to_dicts())
    names = list(dict.fromkeys(row["slice"] for row in rows))
    return Table.from_rows(
        (
            f"Predictions beside those of {rows[0]['reference']}: KL divergence in nats per token, "
            "and agreement in %"
        ),
        """
            slice model
            share_of_tokens | tokens | z.2f optional1
            kl
            kl | 95 %/interval | #.3g to optional2
            ratio kl_p50 kl_p95 kl_p99 agreement
        """,
        sorted(rows, key=lambda row: names.index(row["slice"])),
        "KL(reference | model): mean, median and further quantiles over tokens. Ratio: the mean "
        "over that at the first occurrences of the same bigrams, where nothing can be recalled. "
        "Agree: both rank the same token first.",
    )
