"""The AR hits' part of a gap, the papers' clipping of it, and when such a share is meaningless.

Gaps are signed, model minus reference in nats: positive if the model is worse. A share is the fraction of the
overall gap that is in a slice; it is not clipped and may be below 0 or above 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_GAP = "no gap overall"
NOT_TOLD_FROM_ZERO = "overall gap cannot be told from zero"
MODEL_BETTER = "model is better than the reference overall: shares are of its lead"
WORSE_ON_HITS = "model is better overall but worse on AR hits"
WORSE_ON_OTHER = "model is better overall but worse on the other tokens"
BETTER_ON_HITS = "negative share: model is better on AR hits"
BETTER_ON_OTHER = "share above 100 %: model is better on the other tokens"


def clipped_share(gap: float, share: float | None) -> float | None:
    """The share as the papers report it: at most 1, and 1 if the model is better overall but worse in the slice.

    A negative share of a positive gap stays negative: the papers clip above only (Zoology, appendix C.1).
    None without a share, that is, if there is no gap or no token in the slice.
    """
    if share is None:
        return None
    return 1.0 if gap < 0 and share < 0 else min(share, 1.0)


def describe_gap(gap: float, hits_share: float | None, interval: tuple[float, float] | None = None) -> list[str]:
    """What to know before quoting the AR hits' share of `gap`; empty if nothing is unusual.

    `interval` is the confidence interval of `gap`, if there is one; `hits_share` is None if there are no AR hits.
    """
    if gap == 0:
        return [NO_GAP]
    notes = [NOT_TOLD_FROM_ZERO] if interval is not None and interval[0] <= 0 <= interval[1] else []
    opposed_on_hits = hits_share is not None and hits_share < 0
    opposed_on_other = hits_share is not None and hits_share > 1
    if gap < 0:
        notes.append(WORSE_ON_HITS if opposed_on_hits else WORSE_ON_OTHER if opposed_on_other else MODEL_BETTER)
    elif opposed_on_hits:
        notes.append(BETTER_ON_HITS)
    elif opposed_on_other:
        notes.append(BETTER_ON_OTHER)
    return notes


def is_void(row: Mapping[str, Any]) -> bool:
    """Whether the share in a row of the gap table is meaningless: the gap is negligible, or no token is in the slice."""
    return row["gap_share"] is None or not {NO_GAP, NOT_TOLD_FROM_ZERO}.isdisjoint(row["note"].split("; "))
