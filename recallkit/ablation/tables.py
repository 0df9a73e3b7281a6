"""What a model retains of its recall without sets of its mixers, and what it loses by slice.

Both are figures of a gap with the model itself as the reference: its NLL without the mixers less
that with them, and its recall gain without them over that with them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from recallkit.display.notebook import NotebookResult
from recallkit.measure.labelled import open_scores
from recallkit.measure.ratio import are_distinct, ratio
from recallkit.measure.shares import WholeGap, gap_figures
from recallkit.measure.sums import add_up
from recallkit.slicing.definitions import SLICES
from recallkit.storage.schemas import frame_of_columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.measure.labelled import LabelledTokens

PARTS = ("ar_hit", "first_rare", "repeated_frequent", "first_frequent")
"""Slices that partition the tokens: the bigram is in the context already or not, and rare in
training or not."""

LEAST = 0.05
"""How much of the recall gain is lost without mixers that are needed, by the interval: of that of
the model as it is; in a search of heads, of what is lost without the group that matters most."""

_RENAMED = {
    "delta_nll": "loss",
    "gap_share": "loss_share",
    "gain_reference": "gain",
    "nll_reference": "nll",
    "nll_model": "nll_ablated",
}
"""Figures of a gap between the model as it is and without mixers, and what they are called here."""


@dataclass(frozen=True, slots=True)
class AblatedSet:
    """Mixers or heads that are replaced together.

    mixers: as they are named. kind: theirs, several joined with +. layer: theirs if they are in
    one. parts: each mixer or head, separated by blanks. layers: of a budget the mixers that are
    left, joined with +, and the bytes of their caches.
    """

    mixers: str
    kind: str
    layer: int | None
    parts: str
    layers: str | None = None
    cache_bytes: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class AblationTables(NotebookResult):
    """What a model retains of its recall without mixers, and what it loses. Losses are in nats per
    token, positive where it is worse.

    mixers: a row per set, the largest `gain_lost` first. `gain`: the model's recall gain on AR hits
    as it is, a fraction; `gain_lost`: that less its gain without the mixers; `retained`: its gain
    without them over that as it is, null where its recall is not significant. `loss` of all tokens,
    `loss_ar_hit` of AR hits, which are `share_of_tokens` and have `loss_share` of the whole loss.
    ablation: set of one mixer or more x slice (all, ar_hit, first_rare, repeated_frequent,
    first_frequent; the last four partition the tokens). `loss` = `nll_ablated` - `nll`;
    `loss_share`: the slice's share of the whole loss; `share_of_tokens`: of the tokens.

    With a budget the rows of `mixers` are the path of backward elimination, from `none` down to the
    budget: `layers` are the mixers that are left, joined with +, and `cache_bytes` of one sequence
    those of their caches; else null.

    `void`: the share of the loss means nothing, which `note` explains (`measure.shares.WholeGap`).
    `*_ci_*`: 95 % intervals (`measure.ratio.ratio`) over `clusters`, from the same resamples for
    all sets: they are paired.
    """

    ablation: pl.DataFrame
    mixers: pl.DataFrame


def measure_losses(
    tokens: LabelledTokens,
    files: Sequence[Path],
    sets: Sequence[AblatedSet],
    model: str,
    cluster: str = "document",
    *,
    clean: bool = False,
) -> AblationTables:
    """What is lost without each of `sets`, from labels and score files: of the model as it is, then
    without each set.

    `cluster`: what intervals resample.
    `clean`: without tokens that are known to be in the training text. Raises UserError where files
    are damaged, or of other sequences.
    """
    scores = [open_scores(file, tokens) for file in files]
    slices = [SLICES[name] for name in PARTS if name != "ar_hit"]
    sums = add_up(tokens, scores, slices, cluster, clean=clean, every_table=False)
    table = sums.tables["slices"].slice("all", *PARTS)
    every, hits = table.slice("all"), table.slice("ar_hit")
    gaps = [ratio(every.gap(number), every["tokens"]) for number in range(1, len(files))]
    by_slice, by_set = [], []
    for number, (ablated, is_distinct) in enumerate(zip(sets, are_distinct(gaps), strict=True), 1):
        names = {"model": model, "cluster": cluster, **asdict(ablated)}
        figures = gap_figures(table, every, number)
        columns = {_renamed(name): values for name, values in figures.items()}
        columns |= _notes(figures, is_distinct[0], tokens.vocab_size, cluster)
        if ablated.parts:
            by_slice.append(frame_of_columns("ablation/ablation", table.keys, names | columns))
        of_hits = {name: values[1:2] for name, values in columns.items()}
        of_hits |= {"loss": columns["loss"][:1], "loss_ar_hit": of_hits["loss"]}
        of_hits |= ratio(hits.gain(0) - hits.gain(number), hits["tokens"]).columns("gain_lost")
        by_set.append(frame_of_columns("ablation/mixers", hits.keys, names | of_hits))
    return AblationTables(pl.concat(by_slice), pl.concat(by_set))


def _renamed(name: str) -> str:
    """`delta_nll_ci_low` -> `loss_ci_low`."""
    figure, end, which = name.partition("_ci_")
    return _RENAMED.get(figure, figure) + end + which


def _notes(
    figures: Mapping[str, np.ndarray],
    is_distinct: float,
    vocab_size: int,
    cluster: str,
) -> dict[str, np.ndarray]:
    """The columns `note` and `void` of all tokens and PARTS."""
    rows = pl.DataFrame(figures).to_dicts()
    # The ablated model is not compared with a guess: that it predicts nothing may be the finding.
    # Without an interval (NaN) the gap is not known to be zero.
    judged = {"nll_model": -np.inf, "is_distinct": is_distinct != 0}
    gap = WholeGap.from_row(rows[0] | judged, vocab_size, cluster)
    notes = [gap.why_void(row, name) for name, row in zip(("all", *PARTS), rows, strict=True)]
    return {"note": np.array(notes), "void": np.array(notes) != ""}
