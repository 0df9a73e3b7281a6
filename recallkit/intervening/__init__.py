"""What a model loses where the earlier occurrences of a bigram are changed: whether it recalls."""

from recallkit.intervening.changed_text import BUILTIN_SAMPLES, SAMPLES, InterventionOptions
from recallkit.intervening.run import intervene, intervention_path

__all__ = ["BUILTIN_SAMPLES", "SAMPLES", "InterventionOptions", "intervene", "intervention_path"]
