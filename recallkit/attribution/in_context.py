"""The in-context-learning score of Olsson et al. (2209.11895): how much lower a model's loss is late in the context than early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.measure.intervals import effective_number, expanded_interval, freedom_of, number_or_none, resample_totals
from recallkit.measure.labelled import batches, open_scores, open_tokens
from recallkit.measure.sums import Clusters

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from recallkit.measure.labelled import LabelledTokens, Scores

EARLY, LATE = 50, 500
"""Positions of the two tokens: predicted from so many ids."""


def in_context_scores(
    tokens: Path,
    scores: Mapping[str, Path],
    *,
    cluster: str = "document",
    clean: bool = False,
    num_resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Any] | None:
    """For each model the mean NLL at position `late` less that at `early`, in nats, over the sequences that have both.

    `late` is LATE, or the last position of shorter sequences: the figure is then not the paper's, and comparable only among models on
    the same sequences. Intervals by `cluster`. None where sequences are shorter than twice EARLY, or none is whole.
    Returns `early`, `late`, `sequences`, and under `models` by name `score`, `ci_low`, `ci_high`.
    """
    labelled = open_tokens(tokens)
    late = min(LATE, labelled.seq_len)
    if late < 2 * EARLY:
        return None
    opened = [open_scores(path, labelled) for path in scores.values()]
    position, groups, nlls = _tokens_at(labelled, opened, late, cluster, clean=clean)
    if not position.size:
        return None
    at = np.stack([position == EARLY, position == late])
    number = int(groups.max()) + 1
    sums = np.stack([np.bincount(groups, values * mark, number) for mark in at for values in (np.ones(len(position)), *nlls)], axis=1)
    [samples] = resample_totals([sums[sums.any(axis=1)]], num_resamples, seed)
    sizes = sums[:, [0, len(opened) + 1]]
    effective, freedom = effective_number(sizes).min(), freedom_of(sizes).min()
    found = _differences(sums.sum(axis=0)[None], len(opened))[0]
    low, high = expanded_interval(_differences(samples, len(opened)), effective, freedom)
    ends = zip(scores, found, low, high, strict=True)
    models = {name: {"score": float(value), "ci_low": number_or_none(a), "ci_high": number_or_none(b)} for name, value, a, b in ends}
    return {"early": EARLY, "late": late, "sequences": int(at[1].sum()), "models": models}


def _differences(sums: np.ndarray, num_models: int) -> np.ndarray:
    """The mean of the late tokens less that of the early ones, (rows, m), of sums of tokens and NLLs of both (rows, 2 + 2 m)."""
    early, late = sums[:, : num_models + 1], sums[:, num_models + 1 :]
    with np.errstate(divide="ignore", invalid="ignore"):
        found: np.ndarray = late[:, 1:] / late[:, :1] - early[:, 1:] / early[:, :1]
    return found


def _tokens_at(
    tokens: LabelledTokens, scores: list[Scores], late: int, cluster: str, *, clean: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions, groups (n,) and NLLs float64 (m, n) of the tokens at the two positions of sequences that have both."""
    clusters, parts = Clusters(tokens, cluster), []
    for batch in batches(tokens, scores, ["sequence"], cluster=cluster, clean=clean):
        found = batch.ask("find_positions", early=EARLY, late=late)
        nlls = [found[f"nll_{number}"].to_numpy().astype(np.float64) for number in range(len(scores))]
        parts.append(np.stack([found["position"].to_numpy(), clusters.group(clusters.of(found)), *nlls]))
    position, group, *nlls = np.concatenate(parts, axis=1)
    return position, group.astype(np.int64), np.stack(nlls)
