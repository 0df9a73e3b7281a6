"""A model and a reference that read the same text side by side: KL divergence of their predictions,
and the scores of both.

    KL(reference | model) = sum over the entries v of the vocabulary of p(v) [log p(v) - log q(v)],
        in nats

p is the reference's prediction after some ids, q the model's. Logits are made and reduced for a few
rows at a time, and never kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.errors import UserError
from recallkit.kernels.token_nll.api import logits_nll
from recallkit.models.torch_model import TorchModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from recallkit.models.protocol import ScoringModel, Sharing

_LOGITS, _CUDA_LOGITS, _LEAST_ROWS = 1 << 23, 1 << 26, 128
"""Logits of a model in memory at a time: a step of few rows takes longer for each."""


class PairedModel(TorchModel):
    """A model beside its reference. Its scores are the model's, and `beside` them `kl`, in nats,
    and the reference's scores.

    Predictions are compared over the `num_entries` of the tokenizer: what a padded vocabulary has
    beyond them is left out, and the rest normalised. Raises UserError for a model that gives no
    logits, and for two on different devices.
    """

    beside: Mapping[str, type] = {
        "kl": np.float32,
        "nll_reference": np.float32,
        "argmax_reference": np.int32,
        "rank_reference": np.int32,
    }
    columns: Mapping[str, type] = {**TorchModel.columns, **beside}

    def __init__(self, model: ScoringModel, reference: ScoringModel, num_entries: int) -> None:
        for one in (model, reference):
            if not isinstance(one, TorchModel):
                what = "no predictions over the whole vocabulary"
                problem = f"it gives {what}, which a divergence needs"
                raise UserError(
                    problem,
                    where=one.name,
                    remedy="name models whose weights are read here, or leave out --divergence",
                )
        assert isinstance(model, TorchModel), "checked above"
        assert isinstance(reference, TorchModel), "checked above"
        if model.device != reference.device:
            other = f"the reference {reference.name} on {reference.device}"
            problem = f"it is on {model.device}, {other}"
            raise UserError(problem, where=model.name, remedy="give both the same device")
        both = self._both = model, reference
        longest = min(
            (one.max_length for one in both if one.max_length is not None),
            default=None,
        )
        known = min(num_entries, *(model.vocab_size for model in both))
        super().__init__(model.name, model.device, vocab_size=known, max_length=longest)

    def sharing_over(self, lengths: np.ndarray) -> Sharing:
        """See `TorchModel.sharing_over`: what holds for both."""
        return min(
            (model.sharing_over(lengths) for model in self._both),
            key=("none", "equal", "any").index,
        )

    @property
    def prefixes(self) -> list[tuple[int, ...]]:
        """See `TorchModel.prefixes`: of either of them, which reads behind its own."""
        return [model.prefix for model in self._both]

    def batch_tokens(self, seq_len: int) -> int:
        """See `ScoringModel.batch_tokens`: what fits for either of them."""
        return min(one.batch_tokens(seq_len) for one in self._both)

    def check_carrying(self, offsets: np.ndarray) -> None:
        """See `TorchModel.check_carrying`, of either of them."""
        for one in self._both:
            one.check_carrying(offsets)

    def read(
        self,
        inputs: np.ndarray,
        chunk: int | None,
        begun: tuple[bool, ...],
    ) -> Iterator[Tensor]:
        """See `TorchModel.read`: the outputs of the model, and behind each those of the reference
        (b, t, d + d')."""
        import torch

        outputs = []
        for model, has_begun in zip(self._both, begun, strict=True):
            outputs.append(torch.cat(list(model.read(inputs, chunk, (has_begun,))), dim=1))
        self._width = outputs[0].shape[2]
        yield torch.cat(outputs, dim=2)

    def reduce(self, outputs: Tensor, targets: Tensor) -> Any:
        """See `TorchModel.reduce`: the values of `columns`."""
        import torch

        most = _CUDA_LOGITS if outputs.is_cuda else _LOGITS
        step = max(_LEAST_ROWS, most // max(one.vocab_size for one in self._both))
        parts = []
        pieces = torch.split(outputs, step), torch.split(targets, step)
        for rows, answers in zip(*pieces, strict=True):
            q, p = (
                one.logits(part)
                for one, part in zip(
                    self._both,
                    rows.tensor_split([self._width], 1),
                    strict=True,
                )
            )
            scores = logits_nll(q, answers), logits_nll(p, answers)
            log_q = self._log_sums(q, answers, scores[0][0])
            log_p = self._log_sums(p, answers, scores[1][0])
            kl = divergence(p[:, : self.vocab_size], q[:, : self.vocab_size], log_p, log_q)
            parts.append((*scores[0], kl, *scores[1]))
        return [torch.cat(values) for values in zip(*parts, strict=True)]

    def _log_sums(self, logits: Tensor, targets: Tensor, nll: Tensor) -> Tensor:
        """The logarithms of the sums of exponentials of the logits of the tokenizer's entries, (n,
        1)."""
        if logits.shape[1] > self.vocab_size:
            return logits[:, : self.vocab_size].logsumexp(1, keepdim=True)
        return logits.gather(1, targets[:, None]) + nll[:, None]  # in the NLL already


def divergence(p: Tensor, q: Tensor, log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p | q), nats (n,), of logits (n, vocab) with the logarithms (n, 1) of their sums of
    exponentials; the logits are overwritten.

    New tensors would take several times as long, and so would `log_softmax`, whose exponentials are
    summed already.
    """
    import torch

    p -= log_p
    q -= log_q
    terms = torch.sub(p, q, out=q).mul_(p.exp_())
    total = terms.sum(1)
    if total.isnan().any():  # 0 (log 0 - log q) is 0
        total = terms.nansum(1)
    return total.clamp_(min=0)
