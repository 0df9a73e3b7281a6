"""Parts of the sentences that answer a page's question: intervals, differences in points, and which models are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from recallkit.display.console import percent_range

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Row = TypeVar("Row", bound=Mapping[str, Any])


def interval_told(low: float | None, high: float | None) -> str:
    """0.07, 0.08 -> `95 % interval 7.0 to 8.0 %`; without one it says so."""
    return "no interval" if low is None or high is None else f"95 % interval {percent_range(low, high)}"


def points_told(difference: float, low: float | None, high: float | None) -> str:
    """-0.3, -0.4, -0.2 -> `30.0 points fewer, 95 % interval 20.0 to 40.0`; where the interval contains 0 it says so."""
    more = "more" if difference >= 0 else "fewer"
    said = f"{100 * abs(difference):.1f} points {more}"
    if low is None or high is None:
        return f"{said}, no interval"
    if low <= 0 <= high:
        return f"{said}, which cannot be told from none: 95 % interval {100 * low:+.1f} to {100 * high:+.1f}"
    ends = sorted((abs(low), abs(high)))
    return f"{said}, 95 % interval {100 * ends[0]:.1f} to {100 * ends[1]:.1f}"


def nearest_and_farthest(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows with the least and the largest absolute value in a column; all if there are at most two."""
    placed = sorted(rows, key=lambda row: abs(row[name]))
    return placed if len(placed) <= 2 else [placed[0], placed[-1]]
