"""NLL, argmax and rank of every predicted token."""

from recallkit.options import ScoringOptions
from recallkit.scoring.check import check_scores
from recallkit.scoring.identity import find_scores, score_path, score_timings
from recallkit.scoring.run import make_scores, plan_scores, score

__all__ = [
    "ScoringOptions",
    "check_scores",
    "find_scores",
    "make_scores",
    "plan_scores",
    "score",
    "score_path",
    "score_timings",
]
