"""NLL, argmax and rank of every predicted token."""

from recallkit.options import ScoringOptions
from recallkit.scoring.run import check_scores, find_scores, plan_scores, score, score_path, score_timings

__all__ = ["ScoringOptions", "check_scores", "find_scores", "plan_scores", "score", "score_path", "score_timings"]
