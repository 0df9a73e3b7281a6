"""The measure on one page: the figures of any rows of tokens, from labels and NLLs, by their
definitions alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats

RESAMPLES = 60
EVERY = pl.col("position") > 0
VALUES = pl.col("tokens", r"^(first_)?(nll|p)_\d+$")


class Oracle:
    """Tokens with the NLLs and probabilities of models 0 (the reference), 1 ..., and those at first
    occurrences."""

    def __init__(
        self,
        labels: Path,
        scores: Sequence[Path],
        cluster: str = "document",
        *,
        clean: bool = False,
    ) -> None:
        tokens = pl.read_parquet(labels).with_columns(pl.col("source").cast(pl.String), tokens=1.0)
        first = np.arange(len(tokens)) - tokens["first_distance"].fill_null(0).to_numpy()
        for model, path in enumerate(scores):
            nll = pl.read_parquet(path)["nll"].to_numpy().astype(np.float64)
            for name, value in (("nll", nll), ("p", np.exp(-nll))):
                columns = {f"{name}_{model}": value, f"first_{name}_{model}": value[first]}
                tokens = tokens.with_columns(pl.Series(*column) for column in columns.items())
        self.tokens = tokens.filter(in_training=0) if clean else tokens
        self._cluster = cluster
        number = self.tokens[cluster].n_unique()
        draws = np.random.Generator(np.random.PCG64(0)).integers(0, number, (RESAMPLES, number))
        self._times = np.stack([np.bincount(drawn, minlength=number) for drawn in draws])

    def sums(self, part: pl.Expr) -> dict[str, np.ndarray]:
        """Tokens and values by cluster, where `part` of each token counts."""
        added = (VALUES * part.cast(pl.Float64).fill_null(0.0)).sum()
        sums = self.tokens.group_by(self._cluster, maintain_order=True).agg(added)
        return {name: sums[name].to_numpy() for name in sums.columns[1:]}

    def ratio(self, parts: np.ndarray, wholes: np.ndarray, *sizes: np.ndarray) -> list[float]:
        """A ratio of two sums, and the expanded percentiles of it over resampled clusters of these
        `sizes`."""
        if wholes.sum() == 0 or sizes[0].sum() == 0:
            return [math.nan] * 3
        value = parts.sum() / wholes.sum()
        number = min(map(effective, sizes))
        if number < 5:
            return [value, math.nan, math.nan]
        moves = parts - value * wholes
        moves[abs(moves) < 1e-9 * abs(parts).max()] = 0
        freedom = min(effective(size**2) - 1 for size in (*sizes, moves) if size.any())
        tail = stats.norm.cdf(np.sqrt(number / (number - 1)) * stats.t.ppf(0.025, max(1, freedom)))
        with np.errstate(divide="ignore", invalid="ignore"):
            samples = (self._times @ parts) / (self._times @ wholes)
        return [value, *np.quantile(samples[np.isfinite(samples)], [tail, 1 - tail])]

    def figures(self, part: pl.Expr, whole: pl.Expr, model: int) -> dict[str, float]:
        """The figures of a row for the reference and a model; shares are of the row `whole`."""
        own, every = self.sums(part), self.sums(whole)
        tokens, number = own["tokens"], own["tokens"].sum()
        gap, whole_gap = (sums[f"nll_{model}"] - sums["nll_0"] for sums in (own, every))
        first_gap = own[f"first_nll_{model}"] - own["first_nll_0"]
        reference, gain = (own[f"p_{scores}"] - own[f"first_p_{scores}"] for scores in (0, model))
        ratios = {
            "delta_nll": self.ratio(gap, tokens, tokens),
            "gap_share": self.ratio(gap, whole_gap, tokens, every["tokens"]),
            "control_share": self.ratio(first_gap, whole_gap, tokens, every["tokens"]),
            "gain_reference": self.ratio(reference, tokens, tokens),
            "gain_model": self.ratio(gain, tokens, tokens),
            "retained": self.ratio(gain, reference, tokens),
        }
        if not ratios["gain_reference"][1] > 0.001:
            ratios["retained"] = [math.nan] * 3
        figures = {
            f"{name}{end}": value
            for name, values in ratios.items()
            for end, value in zip(("", "_ci_low", "_ci_high"), values, strict=True)
        }
        for name in ("nll", "p", "first_p"):
            for side, scores in (("reference", 0), ("model", model)):
                figures[f"{name}_{side}"] = (
                    own[f"{name}_{scores}"].sum() / number if number else math.nan
                )
        return figures | {
            "tokens": number,
            "share_of_tokens": number / every["tokens"].sum(),
            "clusters": (tokens > 0).sum(),
            "effective_clusters": effective(tokens),
            **{f"ppl_{side}": np.exp(figures[f"nll_{side}"]) for side in ("reference", "model")},
        }


def effective(sizes: np.ndarray) -> float:
    """How many clusters of equal size tell as much: (sum n)^2 / sum n^2."""
    return sizes.sum() ** 2 / (sizes**2).sum() if sizes.any() else 0.0
