"""What a model loses where the earlier occurrences of a bigram are broken up: whether it recalls by
association.

`intervene` changes the text and leaves the model as it is; `ablation` does the reverse.
"""

from recallkit.intervening.run import (
    finished_intervention,
    intervene,
    intervention_path,
    score_share,
)
from recallkit.options import InterventionOptions

__all__ = [
    "InterventionOptions",
    "finished_intervention",
    "intervene",
    "intervention_path",
    "score_share",
]
