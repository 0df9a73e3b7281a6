"""What models retain of the reference's recall, and gaps attributed to slices of the tokens."""

from recallkit.attribution.run import GapQuestion, gap, gap_path

__all__ = ["GapQuestion", "gap", "gap_path"]
