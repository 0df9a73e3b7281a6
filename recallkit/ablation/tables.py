"""What each ablation of a model loses on AR hits, on rare tokens whose bigram is new, and elsewhere, with intervals by documents.

Made of the same sums as a gap's tables, with the model itself as the reference: what is lost is the NLL without the mixers less the NLL
with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recallkit.display.notebook import Shown
from recallkit.measure.intervals import estimates, number_or_none
from recallkit.measure.labelled import open_scores, open_tokens
from recallkit.measure.shares import WholeGap, gap_intervals, gap_rows
from recallkit.measure.sums import add_up, resampled
from recallkit.slicing.definitions import SLICES
from recallkit.storage.schemas import frame_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.measure.sums import RowSums

PARTS = ("ar_hit", "first_rare", "repeated_frequent", "first_frequent")
"""Slices that partition the tokens: the bigram is in the context already or not, and rare in training or not."""

_RENAMED = {
    "nll_reference": "nll",
    "nll_model": "nll_ablated",
    "delta_nll": "loss",
    "delta_ci_low": "loss_ci_low",
    "delta_ci_high": "loss_ci_high",
    "gap_share": "share",
    "ci_low": "share_ci_low",
    "ci_high": "share_ci_high",
}
"""Columns of a gap between the model as it is and without mixers, and what they are called here."""


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
    names, table = found.rows["slices"].keys["slice"], found.tables["slices"]
    sums = table.at(np.array([list(names).index(name) for name in ("all", *PARTS)]))
    intervals, specific = gap_intervals({"slices": sums}, {})["slices"], _specific(sums)
    slices, mixers = [], []
    for number, of_set in enumerate(sets):
        common = {"model": model, "mixers": of_set.mixers, "kind": of_set.kind, "layer": of_set.layer, "cluster": cluster}
        rows = gap_rows({"slice": ("all", *PARTS)}, sums, sums.totals[:, :1], 1 + number, intervals)
        # Only the model as it is is compared with a guess: that one without a mixer predicts nothing is what an ablation may find.
        whole = WholeGap.of({**rows[0], "nll_model": -np.inf}, labelled.vocab_size)
        for row in rows:
            why = whole.why_void(share_of_tokens=row["share_of_tokens"], effective=row["effective_clusters"])
            row |= {new: row[name] for name, new in _RENAMED.items()}
            row["void"] = row["share"] is None or row["slice"] == "all" or bool(why)
            if row["share"] is None or row["slice"] == "all":
                row |= dict.fromkeys(("share", "share_ci_low", "share_ci_high"))
        slices += [{**common, **row} for row in rows]
        every, hits, first = (row["loss"] for row in rows[:3])
        of_specific = {name: number_or_none(values[number]) for name, values in specific.items()}
        mixers.append({**common, "loss": every, "loss_ar_hit": hits, "loss_first_rare": first, **of_specific})
    mixers.sort(key=lambda row: -np.inf if row["specific"] is None else row["specific"], reverse=True)
    return AblationTables(frame_of("ablation/ablation", slices), frame_of("ablation/mixers", mixers))


def _specific(sums: RowSums) -> dict[str, np.ndarray]:
    """What each of m sets loses on AR hits beyond new, rare bigrams, (m,), with its interval; both are resampled together: paired."""
    pair = sums.at(np.array([1, 2]))

    def beyond(totals: np.ndarray) -> np.ndarray:
        """Of totals (2 + m, ..., 2): tokens, NLLs of the model as it is, those of the ablated ones."""
        with np.errstate(divide="ignore", invalid="ignore"):
            losses = (totals[2:] - totals[1]) / totals[0]
        found: np.ndarray = losses[..., 0] - losses[..., 1]
        return found

    [drawn] = resampled([pair])
    return estimates("specific", beyond(pair.totals), beyond(drawn).T, pair.effective.min(), pair.freedom.min())
