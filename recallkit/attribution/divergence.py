"""How far models' predictions are from the reference's: KL divergence, and how often both rank the same token first.

KL(reference | model) and agreement are of every token (`models.paired`), so that they are added up and resampled as NLLs are. Where an AR
hit's bigram first occurs nothing can be recalled: the divergence there is what the divergence per AR hit is compared with.
Then the same in a sentence and as a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display import cells
from recallkit.display.cells import DASH, bounds
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

    from recallkit.display.cells import Row
    from recallkit.slicing.definitions import Slice

QUANTILES = {"kl_p50": 0.5, "kl_p95": 0.95, "kl_p99": 0.99}
"""Columns of quantiles of a slice's tokens, interpolated linearly, as those of all tokens by llama.cpp's `perplexity --kl-divergence`."""

_TABLES = {"slice": "slices", "distance": "by_distance", "position": "by_position"}
"""What buckets are of, and their table of sums."""
_WITH_FIRST = ["ar_hit", "repeated"]
"""Slices with a divergence where their bigrams first occur, in the order of the sums of that."""


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
    used = [sums.tables[name] for name in (*_TABLES.values(), "first")]
    *samples, of_first = resampled(used, num_resamples, seed)
    quantiles = _quantiles(labelled, scores[::2], slices, clean=clean)
    made: list[dict[str, Any]] = []
    for place, model in enumerate(files):
        kl, agreement = 1 + 2 * place, 2 + 2 * place  # of the sums, of which the first is of tokens
        for (by, name), drawn in zip(_TABLES.items(), samples, strict=True):
            keys, of = sums.rows[name].keys, sums.tables[name]
            kinds = keys["slice"] if "slice" in keys else ["ar_hit" if is_hit else "other" for is_hit in keys["ar_hit"]]
            columns: dict[str, Any] = {**keys, "slice": kinds, "tokens": of.totals[0].astype(int)}
            columns |= {"clusters": of.clusters, "effective_clusters": of.effective}
            columns |= {"share_of_tokens": of.totals[0] / sums.tables["slices"].totals[0, 0]}
            columns |= _ratio("kl", (of, drawn, kl), (of, drawn, 0)) | _ratio("agreement", (of, drawn, agreement), (of, drawn, 0))
            if by == "slice":
                rows, first = np.array([list(kinds).index(slice_) for slice_ in _WITH_FIRST]), sums.tables["first"]
                against = _ratio("ratio", (of.at(rows), drawn[..., rows], kl), (first, of_first, kl))
                against["kl_first"] = _ratio("kl", (first, of_first, kl), (first, of_first, 0))["kl"]
                columns |= dict(zip(QUANTILES, quantiles[place].T, strict=True))
                places = range(len(kinds))
                columns |= {column: [dict(zip(rows, of, strict=True)).get(row) for row in places] for column, of in against.items()}
            pair = {**dict.fromkeys(schemas.LAYOUTS["gap/by_divergence"]), "reference": reference, "model": model, "by": by}
            made += [pair | row for row in rows_of(columns) if by == "slice" or row["tokens"]]
    return schemas.frame_of("gap/by_divergence", made)


def _ratio(name: str, above: tuple[RowSums, np.ndarray, int], below: tuple[RowSums, np.ndarray, int]) -> dict[str, np.ndarray]:
    """The ratio of two sums of K rows with its interval; each is a number among those of a table, which comes with its resamples."""
    (of, drawn, value), (per, per_drawn, base) = above, below
    freedom = np.minimum(per.freedom, freedom_of_ratio(of.by_group[value], per.by_group[base]))
    with np.errstate(divide="ignore", invalid="ignore"):
        return estimates(name, of.totals[value] / per.totals[base], drawn[value] / per_drawn[base], per.effective, freedom)


def _quantiles(tokens: LabelledTokens, scores: Sequence[Scores], slices: Sequence[Slice], *, clean: bool) -> np.ndarray:
    """QUANTILES of the divergence of each model in each slice, (m, K, 3) nats; NaN of no tokens."""
    values, inside = [], []
    for rows in batches(tokens, scores, slices=slices, clean=clean):
        hit, repeated, sets = (rows[name].to_numpy() for name in ("ar_hit", "repeated", "slices"))
        inside.append(np.stack([np.ones_like(hit), hit, ~hit, repeated, *((sets >> bit & 1).astype(bool) for bit in range(len(slices)))]))
        values.append(np.stack([rows[f"nll_{number}"].to_numpy() for number in range(len(scores))]))
    masks, every = np.concatenate(inside, axis=1), np.concatenate(values, axis=1).astype(np.float64)
    ranks, none = list(QUANTILES.values()), np.full(len(QUANTILES), np.nan)
    return np.array([[np.quantile(of[mask], ranks) if mask.any() else none for mask in masks] for of in every])


_KL = "#.3g"
_ROUNDING = 1e-6
"""Nats: two ways of computing the same predictions are so far apart, and a ratio of such divergences says nothing."""


def in_a_sentence(by_divergence: pl.DataFrame) -> str:
    """How much larger the divergence is per AR hit than where its bigram first occurs, of models of which that is significant.

    If it is of none, that it is not shown to be, and the divergence per token.
    """
    hits, first = by_divergence.filter(by="slice", slice="ar_hit").to_dicts(), "where the bigrams of AR hits first occur"
    larger = [row for row in hits if (row["ratio_ci_low"] or 0) > 1 and row["kl"] > _ROUNDING]
    if not larger:
        every = _range(by_divergence.filter(by="slice", slice="all").to_dicts(), "kl", _KL)
        than = "; there are no AR hits" if hits[0]["kl"] is None else f", and not shown to be larger per AR hit than {first}"
        return f"KL divergence from {hits[0]['reference']} is {every} nats per token{than}."
    many = f"{len(larger):,} models" if len(larger) == len(hits) else f"{len(larger):,} of {len(hits):,} models"
    whose = many if len(larger) > 1 else larger[0]["model"]
    ratios, means, firsts = _range(larger, "ratio", ".1f"), _range(larger, "kl", _KL), _range(larger, "kl_first", _KL)
    said = f"Per AR hit, KL divergence of {whose} from {hits[0]['reference']} is {ratios} times that {first}"
    return f"{said}: {means} against {firsts} nats."


def _range(rows: Sequence[Row], name: str, form: str) -> str:
    """The least to the largest, one figure if they read alike."""
    least, most = (format(of(row[name] for row in rows), form) for of in (min, max))
    return least if least == most else f"{least} to {most}"


def divergence_table(by_divergence: pl.DataFrame) -> Table:
    """A row per slice and model: divergence with its interval and quantiles, the ratio to where bigrams first occur, agreement."""
    rows = cells.without_zoo(by_divergence.filter(by="slice").to_dicts())
    names = list(dict.fromkeys(row["slice"] for row in rows))

    def ratio(row: Row) -> str:
        return DASH if row["ratio"] is None else f"{row['ratio']:.2f} ({bounds(row['ratio_ci_low'], row['ratio_ci_high'])})"

    return Table.of(
        f"How far predictions are from those of {rows[0]['reference']}: KL divergence in nats per token, and agreement in %",
        {
            "slice": cells.name("slice"),
            "model": cells.name("model"),
            "tokens": cells.share("share_of_tokens", 2),
            "mean": cells.number("kl", _KL),
            "95 %\ninterval": cells.interval("kl", _KL),
            "ratio\nto first": ratio,
            **{f"{100 * rank:.0f} %": cells.number(name, _KL) for name, rank in QUANTILES.items()},
            "agree": cells.in_percent("agreement"),
        },
        sorted(rows, key=lambda row: names.index(row["slice"])),
        "KL(reference | model), its mean, the median and further quantiles of the tokens. Ratio: to the mean where the same bigrams first "
        "occur in their sequences, so that nothing can be recalled. Agree: both rank the same token first.",
        optional=["tokens", "95 %\ninterval"],
    )
