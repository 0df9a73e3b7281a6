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
from recallkit.measure.shares import WholeGap, gap_figures, gap_intervals, like_uniform
from recallkit.measure.sums import add_up
from recallkit.slicing.definitions import SLICES
from recallkit.storage.schemas import frame_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.measure.sums import Sums

PARTS = ("ar_hit", "first_rare", "repeated_frequent", "first_frequent")
"""Slices that partition the tokens: the bigram is in the context already or not, and rare in training or not."""


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

    `*_ci_*`: 95 % intervals (`measure.intervals.expanded_interval`) over clusters, from the same resamples everywhere: they are paired.
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
) -> AblationTables:
    """The losses of each of `sets`, from labels and the score files of the model as it is (`intact`) and `ablated` in the same order.

    `cluster`: what intervals resample. `clean`: without tokens that are known to be in the training text. Raises UserError where files
    are damaged, or of other sequences.
    """
    labelled = open_tokens(tokens)
    scores = [open_scores(path, labelled) for path in (intact, *ablated)]
    found = add_up(labelled, scores, [SLICES[name] for name in PARTS[1:]], cluster, clean=clean, every_table=False)
    losses = _Losses(found, labelled.vocab_size)
    slices, mixers = [], []
    for number, of_set in enumerate(sets):
        common = {"model": model, "mixers": of_set.mixers, "kind": of_set.kind, "layer": of_set.layer, "cluster": cluster}
        by_slice = losses.by_slice(number)
        slices += [{**common, **row} for row in by_slice]
        every, hits, first = (row["loss"] for row in by_slice[:3])
        mixers.append({**common, "loss": every, "loss_ar_hit": hits, "loss_first_rare": first, **losses.specific(number)})
    mixers.sort(key=lambda row: -np.inf if row["specific"] is None else row["specific"], reverse=True)
    return AblationTables(frame_of("ablation/ablation", slices), frame_of("ablation/mixers", mixers))


class _Losses:
    """The losses of m sets by slice, from the sums of the model as it is and of m ablated ones."""

    def __init__(self, found: Sums, vocab_size: int | None) -> None:
        names, self._sums = list(found.rows["slices"].keys["slice"]), found.tables["slices"]
        self._places = {name: names.index(name) for name in ("all", *PARTS)}
        self._tokens, self._nlls = self._sums.tokens.sum(axis=0), self._sums.nlls.sum(axis=1)
        self._intervals = gap_intervals({"slices": self._sums}, {})["slices"]
        self._vocab_size = vocab_size
        # AR hits less first occurrences, resampled together: both losses are paired.
        pair = [self._places["ar_hit"], self._places["first_rare"]]
        by_group = np.stack([self._sums.tokens, *(self._sums.nlls[1:] - self._sums.nlls[0])], axis=1)[..., pair]  # (g, 1 + m, 2)
        [drawn] = resample_totals([by_group.reshape(len(by_group), -1)])
        samples = np.concatenate([by_group.sum(axis=0)[None], drawn.reshape(-1, *by_group.shape[1:])])
        with np.errstate(divide="ignore", invalid="ignore"):
            means = samples[:, 1:] / samples[:, :1]  # (1 + r, m, 2), the text itself first
        specific = means[..., 0] - means[..., 1]
        ends = expanded_interval(specific[1:], self._sums.effective[pair].min(), self._sums.freedom[pair].min())
        self._specific = np.stack([specific[0], *ends])

    def specific(self, number: int) -> dict[str, float | None]:
        """What set `number` loses on AR hits beyond new, rare bigrams."""
        names = ("specific", "specific_ci_low", "specific_ci_high")
        return {name: number_or_none(value) for name, value in zip(names, self._specific[:, number], strict=True)}

    def by_slice(self, number: int) -> list[dict[str, Any]]:
        """The figures of set `number` in all tokens, then in each of PARTS."""
        reference, ablated, whole = self._nlls[0], self._nlls[1 + number], self._places["all"]
        figures = gap_figures(self._tokens, reference, ablated, self._tokens[whole], ablated[whole] - reference[whole])
        loss, share = self._intervals.delta_nll[:, number], self._intervals.share[:, number]
        columns = {
            "share_of_tokens": figures["share_of_tokens"],
            "nll": figures["nll_reference"],
            "nll_ablated": figures["nll_model"],
            **dict(zip(("loss", "loss_ci_low", "loss_ci_high"), (figures["delta_nll"], *loss), strict=True)),
            **dict(zip(("share", "share_ci_low", "share_ci_high"), (figures["gap_share"], *share), strict=True)),
        }
        # Only of the model as it is: that one without a mixer predicts nothing is what an ablation may find.
        uniform = like_uniform(figures["nll_reference"][whole], -np.inf, self._vocab_size)
        interval = None if np.isnan(loss[:, whole]).any() else (float(loss[0, whole]), float(loss[1, whole]))
        judged = WholeGap(float(figures["delta_nll"][whole]), interval, uniform, float(self._sums.effective[whole]))
        rows = []
        for name, place in self._places.items():
            row: dict[str, Any] = {"slice": name, "tokens": int(self._tokens[place])}
            row |= {column: number_or_none(values[place]) for column, values in columns.items()}
            if name == "all" or row["share"] is None:
                row |= dict.fromkeys(("share", "share_ci_low", "share_ci_high"))
            effective = float(self._sums.effective[place])
            why = judged.why_void(share_of_tokens=row["share_of_tokens"], effective=effective)
            row |= {"clusters": int(self._sums.clusters[place]), "effective_clusters": effective}
            rows.append({**row, "void": row["share"] is None or bool(why)})
        return rows
