"""What part of a gap the AR hits hold, the papers' clipping of it, and when such a share means nothing.

Gaps are signed, model minus reference in nats: positive where the model is behind. A share is the fraction of the
overall gap that lies in a slice, below 0 and above 1 as it comes.
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
    """The share as the papers print it: at most 1, and 1 where the model is better overall but worse in the slice.

    A negative share of a positive gap stays negative: the papers clip above only (Zoology, appendix C.1).
    None without a share, which is so where there is no gap or no token in the slice.
    """
    if share is None:
        return None
    return 1.0 if gap < 0 and share < 0 else min(share, 1.0)


def describe_gap(gap: float, hits_share: float | None, interval: tuple[float, float] | None = None) -> list[str]:
    """What to know before quoting the AR hits' share of `gap`, in plain words; empty where it is ordinary.

    `interval` is the confidence interval of `gap`, where there is one; `hits_share` is None where there are no AR hits.
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
    """Whether the share in a row of the gap table means nothing: there is no gap to speak of, or nothing in the slice."""
    return row["gap_share"] is None or not {NO_GAP, NOT_TOLD_FROM_ZERO}.isdisjoint(row["note"].split("; "))
