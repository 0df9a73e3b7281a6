"""What each ablation of a model loses on AR hits, on rare tokens whose bigram is new, and elsewhere, with intervals by documents.

Made of the same sums as a gap's tables, with the model itself as the reference: what is lost is the NLL without the mixers less the NLL
with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display.notebook import Shown
from recallkit.measure.intervals import expanded_interval, number_or_none, resample_totals
from recallkit.measure.labelled import open_scores, open_tokens
from recallkit.measure.shares import WholeGap, gap_intervals, like_uniform
from recallkit.measure.sums import add_up
from recallkit.slicing.definitions import SLICES
from recallkit.storage.schemas import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.measure.shares import GapIntervals
    from recallkit.measure.sums import RowSums

PARTS = ("ar_hit", "first_rare", "repeated_frequent", "first_frequent")
"""Slices that partition the tokens: the bigram is in the context already or not, and rare in training or not."""

_SLICES = "slices"


@dataclass(frozen=True, slots=True)
class AblatedSet:
    """Mixers that are replaced together: as they are named, their layer if they are in one, their kind (several joined with +)."""

    mixers: str
    kind: str
    layer: int | None


@dataclass(frozen=True, slots=True)
class AblationTables(Shown):
    """What ablations of a model lose. NLLs and losses are in nats per token, positive where the model is worse without the mixers.

    ablation: set of mixers x slice (all, ar_hit, first_rare, repeated_frequent, first_frequent; the last four partition the tokens).
    `loss` = `nll_ablated` - `nll`; `share`: of the whole loss, what is lost in the slice, beside its `share_of_tokens`. `void`: the share
    means nothing (`measure.shares.WholeGap`).
    mixers: a row a set, the largest `specific` first. `specific` = `loss_ar_hit` - `loss_first_rare`: what AR hits lose beyond tokens
    that are as rare and cannot be recalled, because their bigram is new.

    `*_ci_*`: 95 % intervals (`bootstrap.expanded_interval`) over clusters, from the same resamples everywhere, so that they are paired.
    """

    ablation: pl.DataFrame
    mixers: pl.DataFrame


def measure_losses(
    tokens: Path,
    intact: Path,
    ablated: Sequence[Path],
    sets: Sequence[AblatedSet],
    *,
    model: str,
    cluster: str = "document",
    clean: bool = False,
    num_resamples: int = 2000,
    seed: int = 0,
) -> AblationTables:
    """The losses of each of `sets`, from labels and the score files of the model as it is (`intact`) and `ablated` in the same order.

    `cluster`: what intervals resample. `clean`: without tokens that are known to be in the training text. Raises UserError where files
    are damaged, or of other sequences.
    """
    labelled = open_tokens(tokens)
    given = [SLICES[name] for name in PARTS if name != "ar_hit"]
    scores = [open_scores(path, labelled) for path in (intact, *ablated)]
    found = add_up(labelled, scores, given, cluster, clean=clean, every_table=False)
    names = list(found.rows[_SLICES].keys["slice"])
    places = {name: names.index(name) for name in ("all", *PARTS)}
    sums = found.tables[_SLICES]
    losses = _Losses(
        places,
        sums,
        gap_intervals({_SLICES: sums}, {}, num_resamples, seed)[_SLICES],
        _specific_intervals(sums, places["ar_hit"], places["first_rare"], num_resamples, seed),
        (labelled.manifest.get("tokenizer") or {}).get("vocab_size"),
    )
    rows, mixers = [], []
    for number, of_set in enumerate(sets):
        common = {"model": model, "mixers": of_set.mixers, "kind": of_set.kind, "layer": of_set.layer, "cluster": cluster}
        rows += [{**common, "slice": name, **losses.in_slice(number, name)} for name in places]
        mixers.append({**common, **losses.specific(number)})
    mixers.sort(key=lambda row: -np.inf if row["specific"] is None else row["specific"], reverse=True)
    return AblationTables(_frame(rows, "ablation"), _frame(mixers, "mixers"))


@dataclass(frozen=True, slots=True)
class _Losses:
    """Sums and intervals of m sets in K rows, of which `places` names some; of NLLs those of the model as it is are first."""

    places: Mapping[str, int]
    sums: RowSums
    intervals: GapIntervals
    specific_intervals: np.ndarray  # (2, m)
    vocab_size: int | None

    @property
    def tokens(self) -> np.ndarray:
        """(K,)"""
        found: np.ndarray = self.sums.tokens.sum(axis=0)
        return found

    @property
    def nlls(self) -> np.ndarray:
        """(1 + m, K) summed, nats."""
        found: np.ndarray = self.sums.nlls.sum(axis=1)
        return found

    def in_slice(self, number: int, name: str) -> dict[str, Any]:
        """The figures of set `number` in a slice."""
        place, whole = self.places[name], self.places["all"]
        tokens, nlls = self.tokens, self.nlls
        losses = nlls[1 + number] - nlls[0]
        bounds = self.intervals.delta_nll[:, number, whole].tolist()
        interval = None if np.isnan(bounds).any() else (bounds[0], bounds[1])
        # Only of the model as it is: that one without a mixer predicts nothing is what an ablation may find.
        uniform = like_uniform(float(nlls[0, whole] / tokens[whole]), -np.inf, self.vocab_size)
        judged = WholeGap(float(losses[whole]), interval, uniform, float(self.sums.effective[whole]))
        void = judged.why_void(share_of_tokens=tokens[place] / tokens[whole], effective=float(self.sums.effective[place]))
        share = None if name == "all" or not losses[whole] else float(losses[place] / losses[whole])
        ends = (np.nan, np.nan) if share is None else self.intervals.share[:, number, place]
        return {
            "tokens": int(tokens[place]),
            "share_of_tokens": float(tokens[place] / tokens[whole]),
            "nll": self._mean(nlls[0], place),
            "nll_ablated": self._mean(nlls[1 + number], place),
            "loss": self._mean(losses, place),
            **_ends("loss", self.intervals.delta_nll[:, number, place]),
            "share": share,
            **_ends("share", ends),
            "void": share is None or bool(void),
            "clusters": int(self.sums.clusters[place]),
            "effective_clusters": float(self.sums.effective[place]),
        }

    def specific(self, number: int) -> dict[str, Any]:
        """What set `number` loses on AR hits, and beyond new, rare bigrams."""
        losses = self.nlls[1 + number] - self.nlls[0]
        every, hits, first = (self._mean(losses, self.places[name]) for name in ("all", "ar_hit", "first_rare"))
        difference = None if hits is None or first is None else hits - first
        ends = _ends("specific", self.specific_intervals[:, number])
        return {"loss": every, "loss_ar_hit": hits, "loss_first_rare": first, "specific": difference, **ends}

    def _mean(self, sums: np.ndarray, place: int) -> float | None:
        return float(sums[place] / self.tokens[place]) if self.tokens[place] else None


def _specific_intervals(sums: RowSums, hits: int, first: int, num_resamples: int, seed: int) -> np.ndarray:
    """Intervals (2, m) of the mean loss of row `hits` less that of row `first`, both resampled together."""
    rows = [hits, first]
    losses = sums.nlls[1:][..., rows] - sums.nlls[:1][..., rows]  # (m, g, 2)
    [drawn] = resample_totals([np.hstack([sums.tokens[:, rows], *losses])], num_resamples, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = drawn[:, 2:].reshape(num_resamples, -1, 2) / drawn[:, None, :2]
    return expanded_interval(means[..., 0] - means[..., 1], sums.effective[rows].min(), sums.freedom[rows].min())


def _ends(name: str, bounds: Any) -> dict[str, float | None]:
    return {f"{name}_ci_low": number_or_none(bounds[0]), f"{name}_ci_high": number_or_none(bounds[1])}


def _frame(rows: list[dict[str, Any]], name: str) -> pl.DataFrame:
    import polars as pl

    types = {"text": pl.String, "whole": pl.Int64, "real": pl.Float64, "flag": pl.Boolean}
    return pl.DataFrame(rows, schema={column: types[of.type] for column, of in LAYOUTS[f"ablation/{name}"].items()})
