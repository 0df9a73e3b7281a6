"""What is lost where the outputs of a model's mixers are replaced, by slice: which layers recall."""

from recallkit.ablation.run import ablate, ablation_path

__all__ = ["ablate", "ablation_path"]
