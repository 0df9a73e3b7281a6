"""The protocol a model meets to be scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from torch import Tensor

    from recallkit.kernels.token_nll.result import TokenNll

Sharing = Literal["any", "equal", "none"]
"""Sequences of `any` lengths, shorter ones padded behind their last id; those of `equal` length; or `none`: each is read alone."""


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


class SteppingModel(ScoringModel, Protocol):
    """A model that reads a prompt once and goes on from its state in single steps; see `TorchModel` for what each method does."""

    sharing: Sharing
    prompt_chunk: int

    @property
    def joining(self) -> Sharing | None: ...  # noqa: D102
    def forward(self, inputs: Tensor, state: Any = None, *, carry: bool = False) -> tuple[Tensor, Any]: ...  # noqa: D102
    def reduce(self, outputs: Tensor, targets: Tensor) -> TokenNll: ...  # noqa: D102
    def pick(self, outputs: Tensor) -> Tensor: ...  # noqa: D102
    def pieces(self, num_inputs: int, chunk: int) -> list[int]: ...  # noqa: D102
    def check_room(self, state: Any, num_rows: int, wanted_rows: int) -> None: ...  # noqa: D102
    def join(self, states: Sequence[Any]) -> Any: ...  # noqa: D102
    def take(self, state: Any, rows: Sequence[int]) -> Any: ...  # noqa: D102
    def to_device(self, array: np.ndarray) -> Tensor: ...  # noqa: D102


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
