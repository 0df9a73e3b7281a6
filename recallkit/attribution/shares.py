"""The AR hits' part of a gap, the papers' clipping of it, and when such a share is void: it means nothing.

Gaps are signed, model minus reference in nats: positive if the model is worse. A share is the fraction of the
overall gap that is in a slice; it is not clipped and may be below 0 or above 1. A share says where a gap lies, not why.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from recallkit.attribution.bootstrap import MIN_CLUSTERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NO_GAP = "no gap overall"
NOT_TOLD_FROM_ZERO = "overall gap cannot be told from zero"
MODEL_LIKE_UNIFORM = "model predicts no better than a uniform guess"
REFERENCE_LIKE_UNIFORM = "reference predicts no better than a uniform guess"
FEW_CLUSTERS = f"text of effectively fewer than {MIN_CLUSTERS} {{}}s: no interval"
ALL_TOKENS = "a slice of all tokens: its share is 100 % by definition"
MODEL_BETTER = "model is better than the reference overall: shares are of its lead"
WORSE_ON_HITS = "model is better overall but worse on AR hits"
WORSE_ON_OTHER = "model is better overall but worse on the other tokens"
BETTER_ON_HITS = "negative share: model is better on AR hits"
BETTER_ON_OTHER = "share above 100 %: model is better on the other tokens"
SHARE_LIKE_NOTHING = "negative share, but by its interval it may be positive"
SHARE_LIKE_ALL = "share above 100 %, but by its interval it may be below"

_VOID = (NO_GAP, NOT_TOLD_FROM_ZERO, MODEL_LIKE_UNIFORM, REFERENCE_LIKE_UNIFORM, ALL_TOKENS, FEW_CLUSTERS.partition("{")[0])
"""What notes begin with that say why a share means nothing."""


def clipped_share(gap: float, share: float | None) -> float | None:
    """The share as the papers report it: at most 1, and 1 if the model is better overall but worse in the slice.

    A negative share of a positive gap stays negative: the papers clip above only (Zoology, appendix C.1).
    None without a share, that is, if there is no gap or no token in the slice.
    """
    if share is None:
        return None
    return 1.0 if gap < 0 and share < 0 else min(share, 1.0)


def enrichment(share: float | None, share_of_tokens: float) -> float | None:
    """How many times as much of the gap lies in a slice as it has of the tokens: 1 if the gap is the same for every token."""
    return None if share is None or not share_of_tokens else share / share_of_tokens


def like_uniform(nll_reference: float, nll_model: float, vocab_size: int | None) -> list[str]:
    """Notes on those of a pair whose mean NLL (nats per token) is no lower than that of a uniform guess, ln `vocab_size`."""
    uniform = math.log(vocab_size) if vocab_size else math.inf
    found = ((nll_reference, REFERENCE_LIKE_UNIFORM), (nll_model, MODEL_LIKE_UNIFORM))
    return [note for nll, note in found if nll >= uniform]


def describe_gap(
    gap: float,
    hits_share: float | None,
    interval: tuple[float, float] | None = None,
    uniform: Sequence[str] = (),
    share_interval: tuple[float, float] | None = None,
) -> list[str]:
    """What to know before quoting the AR hits' share of `gap`; empty if nothing is unusual.

    `interval` is the confidence interval of `gap`, if there is one, `share_interval` that of the share; `hits_share` is None if there are
    no AR hits; `uniform` are the notes of `like_uniform`. Where a share is void, only why is said. Which model is better on AR hits, or on
    the other tokens, is said only where the share's interval says the same.
    """
    if gap == 0:
        return [*uniform, NO_GAP]
    if interval is not None and interval[0] <= 0 <= interval[1]:
        return [*uniform, NOT_TOLD_FROM_ZERO]
    if uniform:
        return list(uniform)
    notes = []
    opposed_on_hits = hits_share is not None and hits_share < 0
    opposed_on_other = hits_share is not None and hits_share > 1
    low, high = share_interval or (hits_share or 0.0,) * 2
    if (opposed_on_hits and high >= 0) or (opposed_on_other and low <= 1):
        notes += [*([MODEL_BETTER] if gap < 0 else []), SHARE_LIKE_NOTHING if opposed_on_hits else SHARE_LIKE_ALL]
    elif gap < 0:
        notes.append(WORSE_ON_HITS if opposed_on_hits else WORSE_ON_OTHER if opposed_on_other else MODEL_BETTER)
    elif opposed_on_hits:
        notes.append(BETTER_ON_HITS)
    elif opposed_on_other:
        notes.append(BETTER_ON_OTHER)
    return notes


def is_void(row: Mapping[str, Any]) -> bool:
    """Whether the share in a row of a table means nothing, by its note: such a figure is struck out wherever it is shown.

    The gap is zero or cannot be told from it, a model predicts no better than a uniform guess, the slice has all tokens, or none, or
    there is too little text for an interval.
    """
    return row["gap_share"] is None or bool(void_notes(row))


def void_notes(row: Mapping[str, Any]) -> list[str]:
    """Those notes of a row by which its share is void."""
    return [note for note in row["note"].split("; ") if note.startswith(_VOID)]
