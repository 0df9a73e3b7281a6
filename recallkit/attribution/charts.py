"""Charts of a comparison: where models differ from the reference, what makes up the gap, and what it depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.attribution.chart_lines import by_count, by_distance, by_match, by_position
from recallkit.attribution.chart_rows import gap_parts, perplexities
from recallkit.attribution.chart_shares import by_partition, by_slice, by_source, by_threshold

if TYPE_CHECKING:
    from recallkit.attribution.comparison import Comparison
    from recallkit.display.chart_theme import Figure

_MAKERS = (perplexities, gap_parts, by_partition, by_slice, by_count, by_distance, by_match, by_position, by_source, by_threshold)


def figures(comparison: Comparison) -> list[Figure]:
    """Every chart of a comparison that has something to show, in the order of a report."""
    return [figure for maker in _MAKERS if (figure := maker(comparison)) is not None]
