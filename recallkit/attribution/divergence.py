"""How far models' predictions are from the reference's: KL divergence, and how often both rank the same token first.

KL(reference | model) and agreement are of every token (`models.paired`), so that they are added up and resampled as NLLs are. Where an AR
hit's bigram first occurs nothing can be recalled: the divergence there is what the divergence per AR hit is compared with.
Then the same in a sentence and as tables: a row per model, and by slice with quantiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display import cells
from recallkit.display.cells import bounds, or_dash
from recallkit.display.tables import Table
from recallkit.measure.intervals import NUM_RESAMPLES, estimates, freedom_of_ratio
from recallkit.measure.labelled import LabelledTokens, Scores, batches, open_scores, open_tokens
from recallkit.measure.shares import rows_of
from recallkit.measure.sums import RowSums, add_up, resampled
from recallkit.storage import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.slicing.definitions import Slice

    Slices = Mapping[tuple[str, str], Mapping[str, Any]]
    """The rows of slices, by model and slice."""

QUANTILES = {"kl_p50": 0.5, "kl_p95": 0.95, "kl_p99": 0.99, "kl_max": 1.0}
"""Columns of quantiles of a slice's tokens, interpolated linearly, as those of all tokens by llama.cpp's `perplexity --kl-divergence`."""

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
    """The table `by_divergence`: a row for each model and each slice, bucket of distance and of position; see `GapTables`.

    `files`: models and their divergences from the reference. Intervals are those of `attribute_gap`, from the same resamples. Raises
    UserError if a file is not as expected.
    """
    labelled = open_tokens(tokens)
    scores = [open_scores(path, labelled, column) for path in files.values() for column in ("kl", "agrees")]
    sums = add_up(labelled, scores, slices, cluster, clean=clean)
    used = (*_TABLES.values(), "first")
    samples = dict(zip(used, resampled([sums.tables[name] for name in used], num_resamples, seed), strict=True))
    quantiles = _quantiles(labelled, scores[::2], slices, clean=clean)
    made: list[dict[str, Any]] = []
    for place, model in enumerate(files):
        for by, name in _TABLES.items():
            keys, of = sums.rows[name].keys, sums.tables[name]
            kinds = keys["slice"] if "slice" in keys else ["ar_hit" if is_hit else "other" for is_hit in keys["ar_hit"]]
            columns: dict[str, Any] = {**keys, "slice": kinds, "tokens": of.totals[0].astype(int)}
            columns |= {
                "clusters": of.clusters,
                "effective_clusters": of.effective,
                "share_of_tokens": of.totals[0] / sums.tables["slices"].totals[0, 0],
            }
            columns |= _means("kl", of, samples[name], 2 * place) | _means("agreement", of, samples[name], 2 * place + 1)
            if by == "slice":
                columns |= dict(zip(QUANTILES, quantiles[place].T, strict=True))
                columns |= _against_first(of, sums.tables["first"], samples, 2 * place, list(kinds))
            pair = {**dict.fromkeys(schemas.LAYOUTS["gap/by_divergence"]), "reference": reference, "model": model, "by": by}
            made += [pair | row for row in rows_of(columns) if by == "slice" or row["tokens"]]
    return schemas.frame_of("gap/by_divergence", made)


def _means(name: str, of: RowSums, samples: np.ndarray, value: int) -> dict[str, np.ndarray]:
    """Means per token (K,) of value number `value` of the sums, with intervals; `samples` (1 + v, num_resamples, K)."""
    freedom = np.minimum(of.freedom, freedom_of_ratio(of.nlls[value], of.tokens))
    with np.errstate(divide="ignore", invalid="ignore"):
        return estimates(name, of.totals[1 + value] / of.totals[0], samples[1 + value] / samples[0], of.effective, freedom)


def _against_first(
    of: RowSums, first: RowSums, samples: Mapping[str, np.ndarray], value: int, names: list[str]
) -> dict[str, list[float | None]]:
    """The divergence at the first occurrences of the bigrams of AR hits and of repeated tokens, and the ratio to it, by slice."""
    rows = [names.index(name) for name in ("ar_hit", "repeated")]
    freedom = np.minimum(first.freedom, freedom_of_ratio(of.nlls[value][:, rows], first.nlls[value]))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = of.totals[1 + value, rows] / first.totals[1 + value]
        drawn = samples["slices"][1 + value][:, rows] / samples["first"][1 + value]
        found = {"kl_first": first.totals[1 + value] / first.totals[0], **estimates("ratio", ratio, drawn, first.effective, freedom)}
    return {name: [values[rows.index(row)] if row in rows else None for row in range(len(names))] for name, values in found.items()}


def _quantiles(tokens: LabelledTokens, scores: Sequence[Scores], slices: Sequence[Slice], *, clean: bool) -> np.ndarray:
    """QUANTILES of the divergence of each model in each slice, (m, K, 4) nats; NaN of no tokens."""
    values, inside = [], []
    for rows in batches(tokens, scores, slices=slices, clean=clean):
        hit, repeated, sets = (rows[name].to_numpy() for name in ("ar_hit", "repeated", "slices"))
        inside.append(np.stack([np.ones_like(hit), hit, ~hit, repeated, *((sets >> bit & 1).astype(bool) for bit in range(len(slices)))]))
        values.append(np.stack([rows[f"nll_{number}"].to_numpy() for number in range(len(scores))]))
    masks, every = np.concatenate(inside, axis=1), np.concatenate(values, axis=1)
    ranks, none = list(QUANTILES.values()), np.full(len(QUANTILES), np.nan)
    return np.array([[np.quantile(of[mask].astype(np.float64), ranks) if mask.any() else none for mask in masks] for of in every])


_KL, _TIMES = "#.3g", ".2f"
_ROUNDING = 1e-6
"""Nats: two ways of computing the same predictions are so far apart, and a ratio of such divergences says nothing."""
_WHERE_FIRST = "where the bigrams of AR hits first occur"


def in_a_sentence(by_divergence: pl.DataFrame) -> str:
    """How much larger the divergence is per AR hit than where its bigram first occurs, of models of which that is significant.

    If it is of none, that it is not shown to be, and the divergence per token.
    """
    found, models = _slices(by_divergence)
    reference = by_divergence["reference"][0]
    larger = [row for model in models if ((row := found[model, "ar_hit"])["ratio_ci_low"] or 0) > 1 and row["kl"] > _ROUNDING]
    if not larger:
        told = _range([found[model, "all"]["kl"] for model in models], _KL)
        return f"KL divergence from {reference} is {told} nats per token, and not shown to be larger per AR hit than {_WHERE_FIRST}."
    ratios = _range([row["ratio"] for row in larger], ".1f")
    means, firsts = (_range([row[name] for row in larger], _KL) for name in ("kl", "kl_first"))
    whose = f"{len(larger):,} models" if len(larger) == len(models) else f"{len(larger):,} of {len(models):,} models"
    whose = larger[0]["model"] if len(larger) == 1 else whose
    return f"Per AR hit, KL divergence of {whose} from {reference} is {ratios} times that {_WHERE_FIRST}: {means} against {firsts} nats."


def _range(values: Sequence[float], form: str) -> str:
    """The least to the largest, one figure if they read alike."""
    least, most = format(min(values), form), format(max(values), form)
    return least if least == most else f"{least} to {most}"


def divergence_table(by_divergence: pl.DataFrame) -> Table:
    """A row per model: divergence per token, per AR hit and where their bigrams first occur, the ratio, and agreement."""
    found, models = _slices(by_divergence, short=True)
    rows = []
    for model in models:
        whole, hits = found[model, "all"], found[model, "ar_hit"]
        figures = [or_dash(whole["kl"], _KL), or_dash(hits["kl"], _KL), or_dash(hits["kl_first"], _KL), or_dash(hits["ratio"], _TIMES)]
        agreement = [cells.in_percent("agreement")(row) for row in (whole, hits)]
        rows.append([model, *figures, bounds(hits["ratio_ci_low"], hits["ratio_ci_high"]), *agreement])
    return Table(
        f"How far predictions are from those of {by_divergence['reference'][0]}: KL divergence in nats, and agreement in %",
        ["model", "all", "AR\nhits", "first", "ratio", "95 %\ninterval", "agree", "agree,\nAR hits"],
        rows,
        "KL(reference | model), mean per token. First: where the bigrams of AR hits first occur in their sequences, so that nothing can be "
        "recalled; ratio: per AR hit over that. Agree: both rank the same token first.",
        groups=[("", 1), ("KL divergence", 5), ("agreement", 2)],
    )


def slices_table(by_divergence: pl.DataFrame) -> Table:
    """A row per slice and model: the mean divergence with its interval, quantiles, agreement."""
    found, _ = _slices(by_divergence, short=True)
    names = dict.fromkeys(name for _, name in found)
    return Table.of(
        "KL divergence from the reference by slice, nats per token, with quantiles of the tokens",
        {
            "slice": cells.name("slice"),
            "model": cells.name("model"),
            "tokens": cells.share("share_of_tokens", 2),
            "mean": cells.number("kl", _KL),
            "95 % interval": cells.interval("kl", _KL),
            "agree": cells.share("agreement"),
            **dict(zip(("median", "95th", "99th", "largest"), (cells.number(name, _KL) for name in QUANTILES), strict=True)),
        },
        [row for name in names for (_, of), row in found.items() if of == name],
        groups=[("", 3), ("KL divergence", 2), ("", 1), ("percentiles", 4)],
        optional=["tokens", "agree", "largest"],
    )


def _slices(by_divergence: pl.DataFrame, *, short: bool = False) -> tuple[Slices, list[str]]:
    """(model, slice) -> row; and the models, in their order; `short`: as tables name them."""
    rows = by_divergence.filter(by="slice").to_dicts()
    rows = cells.without_zoo(rows) if short else rows
    return {(row["model"], row["slice"]): row for row in rows}, list(dict.fromkeys(row["model"] for row in rows))
