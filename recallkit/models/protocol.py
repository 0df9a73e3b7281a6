"""The protocols of models that are scored, and their requests and results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from recallkit.text.special_tokens import NO_PREFIX, Prefix

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np


Dtype = Literal["float32", "bfloat16", "float16", "auto"]
"""Precisions of weights; `auto`: on a GPU the checkpoint's own, on CPU float32."""

Sharing = Literal["any", "equal", "none"]
"""Sequences of `any` lengths, shorter ones padded after their last id; those of `equal` length; or `none`: each is read alone."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Per predicted token, flat, sequence by sequence: `nll` float32 nats, `argmax` int32, `rank` int32 (0 = best).

    `beside`: what a pair of models has besides (`models.paired`), by name.
    """

    nll: np.ndarray
    argmax: np.ndarray
    rank: np.ndarray
    beside: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)

    @property
    def of_model(self) -> dict[str, np.ndarray]:
        """All that models give, by name."""
        return {"nll": self.nll, "argmax": self.argmax, "rank": self.rank, **self.beside}


class ScoringModel(Protocol):
    """A causal language model as the pipeline sees it."""

    name: str
    """As given by the user."""
    vocab_size: int
    max_length: int | None
    """Longest context, in ids of text, behind what it reads before every text; None where there is no limit."""
    prefix: tuple[int, ...]
    """Ids that it reads before every text; see `models.prefix`."""

    def batch_tokens(self, seq_len: int) -> int:
        """Ids per batch that fit in memory and keep the device busy; the same on every run on a machine."""
        ...

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        """Scores sequences in one batch: sequence i is `ids[offsets[i]:offsets[i + 1]]`, its first id is only context.

        Returns n - num_sequences values of each kind. No padding precedes the last id of a sequence, its `prefix` the first.
        """
        ...


class CarryingModel(ScoringModel, Protocol):
    """A recurrent model whose state can be carried: it reads a sequence of any length in chunks, without truncating its context."""

    def score_carrying(self, ids: np.ndarray, offsets: np.ndarray, chunk: int) -> TokenScores:
        """The same values as `score`, with the sequences read `chunk` ids at a time and the state carried from one chunk to the next."""
        ...


@dataclass(frozen=True, slots=True)
class Continuation:
    """A model's continuation of a prompt, and the NLL of a known answer after it."""

    ids: list[int]
    """Generated greedily, including the id that completed the text."""
    answer_nll: np.ndarray
    """float32 (len(answer),), nats of each id of the answer after the prompt."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model before its weights are read; None for what is not."""

    vocab_size: int | None = None
    max_length: int | None = None
    """Longest context, in ids; None also where there is no limit."""
    dtype: str | None = None
    """The precision of the weights in its files."""
    num_weights: int | None = None
    """Weights that the model of its config has."""
    layers: Mapping[str, list[int]] = field(default_factory=dict)
    """The numbers of the layers that a kernel or a mixer of ours computes, by its name."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model's name and what else is needed to load it."""

    spec: str
    vocab_size: int
    """Entries of the tokenizer in use; it may have more than the model, none of which is read (an added pad token)."""
    largest_id: int | None = None
    """The largest id that is read, where it is known: the model must have it."""
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    """`name` and `digest` of that tokenizer: counts made with another one are refused."""
    counts: Path | None = None
    """Training counts, for control models."""
    counts_id: str | None = None
    """The id of these counts where it is known, so that identifying a model need not open them."""
    device: str = "auto"
    dtype: str = "float32"
    """`float32`, `bfloat16`, `float16` or `auto`; `float64` is for checks, on CPU."""
    trust_remote_code: bool = False
    """Whether Python code that comes with a checkpoint may run."""
    cuda_graphs: bool = True
    """Whether a GPU may replay what a pass launches; see `models.cuda_graphs`."""
    prefix: Prefix = NO_PREFIX
    """What it reads before every text; see `models.prefix`."""
    shown: str = ""
    """What messages and results call it, where that is not `spec`."""
    module: Any = None
    """A live model: a torch.nn.Module of this process, `spec` being `live:` and its name."""
    ablation: Any = None
    """An `ablation.Ablation`: the mixers whose outputs are replaced."""
    variant: Any = None
    """A `variants.Variant`: how its cache, state or weights are compressed; None as they are."""
    means: Mapping[str, np.ndarray] | None = field(default=None, compare=False)
    """What replaces them where that is a mean, see `ablation.ablate`."""

    @property
    def name(self) -> str:
        """What messages and results call it."""
        return self.shown or self.spec
