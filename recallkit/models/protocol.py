"""The protocol a model meets to be scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy as np


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Per predicted token, flat, sequence by sequence: `nll` float32 nats, `argmax` int32, `rank` int32 (0 = best)."""

    nll: np.ndarray
    argmax: np.ndarray
    rank: np.ndarray


class ScoringModel(Protocol):
    """A causal language model as the pipeline sees it."""

    name: str
    """As given by the user."""
    vocab_size: int
    max_length: int | None
    """Most ids it can be given at once; None where there is no limit."""

    def batch_tokens(self, seq_len: int) -> int:
        """Ids of a batch that fit in memory and keep the device busy; the same on every run on a machine."""
        ...

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        """Scores sequences in one batch: sequence i is `ids[offsets[i]:offsets[i + 1]]`, its first id is context only.

        Returns n - num_sequences values of each kind. Never shows a sequence any padding before its last id.
        """
        ...


class CarryingModel(ScoringModel, Protocol):
    """A recurrent model whose state can be carried: any length in pieces, none of which is forgotten."""

    def score_carrying(self, ids: np.ndarray, offsets: np.ndarray, chunk: int) -> TokenScores:
        """The same values as `score`, the sequences read `chunk` ids at a time with the state carried between."""
        ...


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a model makes of a prompt, and what it gives an answer that is known."""

    ids: list[int]
    """Generated greedily, the id after which the text was complete included."""
    answer_nll: np.ndarray
    """float32 (len(answer),) nats, of each id of the answer after the prompt."""


class GeneratingModel(ScoringModel, Protocol):
    """A model that generates in a faster way than by scoring a text anew for each of its ids."""

    def generate(
        self,
        prompts: Sequence[np.ndarray],
        answers: Sequence[np.ndarray],
        most: int,
        is_done: Callable[[int, list[int]], bool],
    ) -> list[Continuation]:
        """See `recallkit.models.generation.generate`."""
        ...


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model's name and what loading may need beside it."""

    spec: str
    vocab_size: int
    """Entries of the tokenizer in use: a model needs at least as many."""
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    """`name` and `digest` of that tokenizer: counts of another one are refused."""
    counts: Path | None = None
    """Training counts, for control models."""
    counts_id: str | None = None
    """The id of these counts where it is known, so that they are not opened to identify a model."""
    device: str = "auto"
    dtype: str = "float32"
    """`float32`, `bfloat16` or `float16`; `float64` is the precision of checks, on CPU."""
    trust_remote_code: bool = False
    """Whether Python code that comes with a checkpoint may run."""
