"""A model and a reference that read the same text side by side: KL divergence of their predictions, and the scores of both.

    KL(reference | model) = sum over the entries v of the vocabulary of p(v) [log p(v) - log q(v)], in nats

p is the reference's prediction after some ids, q the model's. Logits are made and reduced for a few rows at a time, and never kept.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from recallkit.errors import UserError
from recallkit.kernels.token_nll.api import logits_nll
from recallkit.models.devices import memory_errors
from recallkit.models.protocol import TokenScores
from recallkit.models.torch_model import TorchModel, groups, padded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from recallkit.models.protocol import ScoringModel

_LOGITS, _LEAST_ROWS = 1 << 20, 128
"""Logits of a model in memory at a time: on CPU few enough for its caches, but of rows enough for a fast product."""
_CUDA_LOGITS = 1 << 26

BESIDE: Mapping[str, type] = {"kl": np.float32, "nll_reference": np.float32, "argmax_reference": np.int32, "rank_reference": np.int32}
"""What a pair's scores have besides the model's own, and their types."""


@dataclass(frozen=True, slots=True)
class PairedScores(TokenScores):
    """Per predicted token, flat: the `TokenScores` of the model and of the reference, and `kl` float32 nats, never below 0."""

    kl: np.ndarray
    nll_reference: np.ndarray
    argmax_reference: np.ndarray
    rank_reference: np.ndarray


class PairedModel:
    """A model beside its reference, as a `CarryingModel` whose scores are `PairedScores`.

    Predictions are compared over the `num_entries` of the tokenizer: what a padded vocabulary has beyond them is left out, and the rest
    normalised. Raises UserError for a model that gives no logits, and for two on different devices.
    """

    beside = BESIDE

    def __init__(self, model: ScoringModel, reference: ScoringModel, num_entries: int) -> None:
        for each in (model, reference):
            if not isinstance(each, TorchModel):
                problem = "it gives no predictions over the whole vocabulary, which a divergence needs"
                raise UserError(problem, where=each.name, remedy="name models whose weights are read here, or leave out --divergence")
        assert isinstance(model, TorchModel), "checked above"
        assert isinstance(reference, TorchModel), "checked above"
        if model.device != reference.device:
            problem = f"it is on {model.device}, the reference {reference.name} on {reference.device}"
            raise UserError(problem, where=model.name, remedy="give both the same device")
        self.name, self.vocab_size, self.num_entries = model.name, num_entries, num_entries
        self._both = model, reference
        self.sharing = min((model.sharing, reference.sharing), key=("none", "equal", "any").index)
        self.max_length = min((each.max_length for each in self._both if each.max_length is not None), default=None)

    def batch_tokens(self, seq_len: int) -> int:
        """See `ScoringModel.batch_tokens`: what fits for either of them."""
        return min(each.batch_tokens(seq_len) for each in self._both)

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> PairedScores:
        """See `ScoringModel.score`."""
        return self._score(ids, offsets, None)

    def score_carrying(self, ids: np.ndarray, offsets: np.ndarray, chunk: int) -> PairedScores:
        """See `CarryingModel.score_carrying`. Raises UserError as that of either of them does."""
        for each in self._both:
            each.check_carrying(offsets)
        return self._score(ids, offsets, chunk)

    def _score(self, ids: np.ndarray, offsets: np.ndarray, chunk: int | None) -> PairedScores:
        import torch

        sequences = np.split(ids, offsets[1:-1])
        types = {"nll": np.float32, "argmax": np.int32, "rank": np.int32, **BESIDE}
        found: dict[str, np.ndarray] = {each.name: np.zeros(len(ids) - len(sequences), types[each.name]) for each in fields(PairedScores)}
        starts = offsets - np.arange(len(offsets))
        for group in groups(np.diff(offsets), self.sharing):
            inputs, targets, real = padded([sequences[number] for number in group])
            places = np.concatenate([np.arange(starts[number], starts[number + 1]) for number in group])
            with torch.no_grad(), memory_errors():
                outputs = [torch.cat(list(each.read(inputs, chunk)), dim=1) for each in self._both]
                mask = self._both[0].to_device(real)
                rows = [of[mask] for of in outputs]
                scores = self._reduce(rows[0], rows[1], self._both[0].to_device(targets[real]))
            for into, values in zip(found.values(), scores, strict=True):
                into[places] = values
        return PairedScores(**found)

    def _reduce(self, rows: Tensor, of_reference: Tensor, targets: Tensor) -> list[np.ndarray]:
        """The columns of `PairedScores` (n,) of rows (n, ...) of the outputs of both."""
        import torch

        model, reference = self._both
        step = max(1, _CUDA_LOGITS // model.vocab_size) if rows.is_cuda else max(_LEAST_ROWS, _LOGITS // model.vocab_size)
        parts = []
        for some, theirs, of in zip(*(torch.split(each, step) for each in (rows, of_reference, targets)), strict=True):
            q, p = model.logits(some), reference.logits(theirs)
            scores = logits_nll(q, of), logits_nll(p, of)
            parts.append((*scores[0], self._divergence(p, q), *scores[1]))
        return [torch.cat(values).cpu().numpy() for values in zip(*parts, strict=True)]

    def _divergence(self, reference: Tensor, model: Tensor) -> Tensor:
        """KL(reference | model) of logits (n, ...), nats (n,). The logits are overwritten: new tensors would take several times as long."""
        import torch

        log_p, log_q = reference[:, : self.num_entries], model[:, : self.num_entries]
        for each in (log_p, log_q):
            torch.log_softmax(each, 1, out=each)
        terms = torch.sub(log_p, log_q, out=log_q).mul_(log_p.exp_())
        return terms.nansum(1).clamp_(min=0)  # 0 (log 0 - log q) is 0, not NaN
