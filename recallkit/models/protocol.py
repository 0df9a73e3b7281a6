"""The protocols of models that are scored, and what they return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np


Dtype = Literal["float32", "bfloat16", "float16", "auto"]
"""Precisions of weights; `auto`: on a GPU the checkpoint's own, on CPU float32."""

Sharing = Literal["any", "equal", "none"]
"""Sequences of `any` lengths, shorter ones padded after their last id; those of `equal` length; or
`none`: each is read alone."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Per predicted token, flat, sequence by sequence: `nll` float32 nats, `argmax` int32, `rank`
    int32 (0 = best).

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
    """Longest context, in ids of text, behind what it reads before every text; None where there is
    no limit."""
    prefix: tuple[int, ...]
    """Ids that it reads before every text; see `models.prefix`."""

    def batch_tokens(self, seq_len: int) -> int:
        """Ids per batch that fit in memory and keep the device busy; the same on every run on a
        machine."""
        ...

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        """Scores sequences in one batch: sequence i is `ids[offsets[i]:offsets[i + 1]]`, its first
        id is only context.

        Returns n - num_sequences values of each kind. No padding precedes the last id of a
        sequence, its `prefix` the first.
        """
        ...


class CarryingModel(ScoringModel, Protocol):
    """A recurrent model whose state can be carried: it reads a sequence of any length in chunks,
    without truncating its context."""

    def score_carrying(self, ids: np.ndarray, offsets: np.ndarray, chunk: int) -> TokenScores:
        """The same values as `score`, with the sequences read `chunk` ids at a time and the state
        carried from one chunk to the next."""
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
