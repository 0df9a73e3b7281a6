"""What sets of mixers and slices are called in tables and pictures of ablations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

HEADERS = {
    "all": "all",
    "ar_hit": "AR hits",
    "first_rare": "new, rare",
    "repeated_frequent": "repeated",
    "first_frequent": "new",
}
"""What the slices are called where there is little room."""

SLICES_TOLD = "AR hits and repeated: the bigram is in the context already, rare in training or not; new: it is not."


def labelled(row: Mapping[str, Any]) -> str:
    """`3 mamba`; of mixers of several layers only what they are named."""
    return row["mixers"] if row["layer"] is None else f"{row['layer']} {row['kind']}"
