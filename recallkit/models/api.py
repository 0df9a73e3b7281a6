"""The protocol a model meets to be scored, and how a name on the command line becomes one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from recallkit import registry
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
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


CONTROL_MODELS: dict[str, str] = {
    "control:unigram": "recallkit.models.control:UnigramModel",
    "control:bigram": "recallkit.models.control:BigramModel",
    "control:recall": "recallkit.models.control:RecallModel",
}

DESCRIPTIONS: dict[str, str] = {
    "control:unigram": "training frequencies of single tokens: a floor",
    "control:bigram": "interpolated bigram model from the counts table: knows training, remembers no context",
    "control:recall": "control:bigram mixed with a cache of this context's bigrams: its lead over control:bigram is recall",
    "DIRECTORY": "a causal language model that transformers loads: config.json with safetensors (or a weights-only .bin)",
    "FILE.gguf": "a GGUF file, dequantised by transformers",
    "OWNER/NAME": "the same from the Hugging Face hub",
}
"""For `recallkit models`: a line each."""


def identify_model(request: ModelRequest) -> str:
    """A digest of everything that decides the model's numbers, without loading it: weights, precision, counts.

    Raises UserError where there is no such model.
    """
    if _is_control(request.spec):
        from recallkit.models.control import identify_control

        return identify_control(request)
    from recallkit.models.hf import identify_transformers

    return identify_transformers(request)


def _is_control(spec: str) -> bool:
    return spec.startswith("control:")


def load_model(request: ModelRequest) -> ScoringModel:
    """Loads the model that a request names.

    Raises UserError where there is no such model, it cannot be read, or its vocabulary is smaller than the tokenizer's.
    """
    if _is_control(request.spec):
        model: ScoringModel = registry.resolve(CONTROL_MODELS, request.spec, "control model")(request)
    else:
        from recallkit.models.hf import load_transformers

        model = load_transformers(request)
    if model.vocab_size < request.vocab_size:
        raise UserError(
            f"its vocabulary has {model.vocab_size:,} entries, the tokenizer of the slices {request.vocab_size:,}",
            where=request.spec,
            remedy="slice again with this model's tokenizer (--tokenizer)",
        )
    return model
