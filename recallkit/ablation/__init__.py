"""What is lost, by slice, where the outputs of a model's mixers are replaced: which layers recall.

`ablate` changes the model and leaves the text as it is; `intervening` does the reverse.
"""

from recallkit.ablation.run import AblationQuestion, ablate, ablation_path

__all__ = ["AblationQuestion", "ablate", "ablation_path"]
