"""A model as it is identified and loaded: what the user named, its options resolved, and what was
found out about it. It is the only carrier of a model behind its `ModelSpec`, and workers get it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from recallkit.text.special_tokens import NO_PREFIX, Prefix

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from recallkit.models.ablation import Ablation
    from recallkit.models.spec import ModelSpec
    from recallkit.models.variants import Variant
    from recallkit.options import ModelOptions


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model, and what is needed to identify and load it; it can be pickled unless it is live."""

    spec: ModelSpec
    vocab_size: int = 0
    """Entries of the tokenizer in use; it may have more than the model, none of which is read (an
    added pad token). 0 where it is not known yet."""
    largest_id: int | None = None
    """The largest id that is read, where it is known: the model must have it."""
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    """`name` and `digest` of that tokenizer: counts made with another one are refused."""
    counts: Path | None = None
    """Training counts, for control models."""
    counts_id: str | None = None
    """The id of these counts where it is known: identifying a model need not open them."""
    device: str = "auto"
    dtype: str = "float32"
    """`float32`, `bfloat16`, `float16` or `auto`; `float64` is for checks, on CPU."""
    trust_remote_code: bool = False
    """Whether Python code that comes with a checkpoint may run."""
    cuda_graphs: bool = True
    """Whether a GPU may replay what a pass launches; see `models.cuda_graphs`."""
    prefix: Prefix = NO_PREFIX
    """What it reads before every text; see `models.prefix`."""
    digest: str = ""
    """`loading.identify_model` of it, where that is known: of files that must not change."""
    means: Mapping[str, np.ndarray] | None = field(default=None, compare=False)
    """What replaces the outputs of ablated mixers where that is a mean, see `ablation.ablate`."""

    @classmethod
    def with_options(cls, spec: ModelSpec, options: ModelOptions, /, **known: Any) -> Self:
        """The plan of a model, whose own options come before those of a command; `known` are other
        fields."""
        return cls(
            spec=spec,
            device=spec.device or options.device,
            trust_remote_code=options.trust_remote_code,
            cuda_graphs=not options.no_cuda_graphs,
            **known,
        )

    @property
    def location(self) -> str:
        """Where the model is, as `kinds.kind_of` takes it."""
        return self.spec.location

    @property
    def name(self) -> str:
        """What messages and results call it."""
        return self.spec.shown

    @property
    def module(self) -> Any:
        """A live model: a torch.nn.Module of this process."""
        return self.spec.path if self.spec.is_live else None

    @property
    def ablation(self) -> Ablation | None:
        """The mixers whose outputs are replaced."""
        return self.spec.ablation

    @property
    def variant(self) -> Variant | None:
        """How its cache, state or weights are compressed; None as they are."""
        return self.spec.variant
