"""What each ablation of a model loses on AR hits, on rare tokens whose bigram is new, and elsewhere, and what it no longer recalls.

Losses are made of the same sums as a gap's tables, with the model itself as the reference: the NLL without the mixers less the NLL with
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recallkit.display.notebook import Shown
from recallkit.measure.intervals import estimates, number_or_none
from recallkit.measure.labelled import open_scores, open_tokens
from recallkit.measure.shares import WholeGap, gap_intervals, gap_rows
from recallkit.measure.sums import add_up
from recallkit.slicing.definitions import SLICES
from recallkit.storage.schemas import frame_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.intervening.association import AskedHits

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


@dataclass(frozen=True, slots=True, repr=False)
class AblationTables(Shown):
    """What ablations of a model lose. NLLs and losses are in nats per token, positive where the model is worse without the mixers.

    ablation: set of mixers x slice (all, ar_hit, first_rare, repeated_frequent, first_frequent; the last four partition the tokens).
    `loss` = `nll_ablated` - `nll`; `share`: the slice's share of the whole loss; `share_of_tokens`: of the tokens. `void`: the share
    means nothing (`measure.shares.WholeGap`).
    mixers: a row per set, the largest `recall_lost` first. `recall`: what the model as it is recalls by association, nats per AR hit
    (docs/causal.md), of so many `effective_documents`; `recall_lost`: that less what it recalls without the mixers.

    `*_ci_*`: 95 % intervals (`measure.intervals.expanded_interval`), of losses and shares over clusters, of recall over documents, from the
    same resamples for all sets: they are paired.
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
    recalled: np.ndarray,
    hits: AskedHits,
    cluster: str = "document",
    clean: bool = False,
) -> AblationTables:
    """The losses of each of `sets`, from labels and the score files of the model as it is (`intact`) and `ablated` in the same order.

    `recalled` (n, 1 + m): nats of each of the asked `hits`, by the model as it is and without each of m sets. `cluster`: what the
    intervals of losses resample. `clean`: without tokens that are known to be in the training text. Raises UserError where files
    are damaged, or of other sequences.
    """
    labelled = open_tokens(tokens)
    scores = [open_scores(path, labelled) for path in (intact, *ablated)]
    found = add_up(labelled, scores, [SLICES[name] for name in PARTS[1:]], cluster, clean=clean, every_table=False)
    names, table = found.rows["slices"].keys["slice"], found.tables["slices"]
    sums = table.at(np.array([list(names).index(name) for name in ("all", *PARTS)]))
    intervals, recall = gap_intervals({"slices": sums}, {})["slices"], _recall(recalled, hits)
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
        every, of_hits, first = (row["loss"] for row in rows[:3])
        mixers.append({**common, "loss": every, "loss_ar_hit": of_hits, "loss_first_rare": first, **recall[number]})
    mixers.sort(key=lambda row: row["recall_lost"], reverse=True)
    return AblationTables(frame_of("ablation/ablation", slices), frame_of("ablation/mixers", mixers))


def _recall(recalled: np.ndarray, hits: AskedHits) -> list[dict[str, float | None]]:
    """The columns `recall` and `recall_lost` of each of m sets, with intervals."""
    means, (_, effective, freedom) = hits.means(recalled), hits.documents
    lost = means[:, :1] - means[:, 1:]
    whole = estimates("recall", means[0, 0], means[1:, 0], effective, freedom)
    found = [whole | estimates("recall_lost", of[0], of[1:], effective, freedom) for of in lost.T]
    return [{name: number_or_none(float(value)) for name, value in of.items()} | {"effective_documents": effective} for of in found]
