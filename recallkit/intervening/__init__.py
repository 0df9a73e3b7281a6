"""What a model loses where the earlier occurrences of a bigram are changed: whether it recalls."""

from recallkit.intervening.run import intervene, intervention_path
from recallkit.options import InterventionOptions

__all__ = ["InterventionOptions", "intervene", "intervention_path"]
