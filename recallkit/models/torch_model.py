"""What every torch model shares when it is scored: batches, padding, devices, precision, running out of memory."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.errors import UserError
from recallkit.models.api import TokenScores

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import Tensor

    from recallkit.kernels.token_nll.api import TokenNll

_MOST_CPU_TOKENS = 1 << 13
_MOST_CUDA_TOKENS = 1 << 16

_FEW_TOKENS = 64
"""Matrix products of fewer rows may differ in the last bit between numbers of threads: they get one thread."""


def choose_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:1`. Raises UserError for a card that is not there."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError("no such device", where=name, remedy="use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA card that this torch can use", where=name, remedy="use --device cpu, or install a CUDA build of torch")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"no such card, there are {torch.cuda.device_count()}", where=name, remedy="use a smaller number")
    return device


def choose_dtype(name: str) -> torch.dtype:
    """The torch dtype of `float32`, `bfloat16`, `float16` or `float64`."""
    import torch

    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}[name]


class TorchModel:
    """A torch model behind `ScoringModel`. A subclass gives `forward` and `reduce`."""

    def __init__(self, name: str, device: torch.device, *, vocab_size: int, max_length: int | None) -> None:
        self.name = name
        self.device = device
        self.vocab_size = vocab_size
        self.max_length = max_length

    def forward(self, inputs: Tensor, state: Any = None, *, carry: bool = False) -> tuple[Tensor, Any]:
        """What is known of the id after each of `inputs` (b, t) int64: hidden states (b, t, d) or logits (b, t, vocab).

        `state` is what an earlier call with `carry` gave for the ids before; without `carry` the new state may be None.
        """
        raise NotImplementedError

    def reduce(self, outputs: Tensor, targets: Tensor) -> TokenNll:
        """NLL, argmax and rank of `targets` (n,) from rows (n, d) or (n, vocab) of what `forward` gave."""
        raise NotImplementedError

    def bytes_per_token(self, seq_len: int) -> int:
        """A generous bound of the memory that one id of a batch of sequences of `seq_len` takes, in bytes."""
        return 1 << 17

    def batch_tokens(self, seq_len: int) -> int:
        """From the memory of the device and the widest activations of one layer; the same on every run."""
        import torch

        if self.device.type == "cuda":
            memory, most = torch.cuda.get_device_properties(self.device).total_memory, _MOST_CUDA_TOKENS
        else:
            memory, most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), _MOST_CPU_TOKENS
        fitting = max(1, memory // 8 // self.bytes_per_token(seq_len))
        return int(max(seq_len, min(most, 1 << (fitting.bit_length() - 1))))

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        """See `ScoringModel.score`. Shorter sequences of a batch are padded behind their last id, which no causal model sees."""
        return self._score(ids, offsets, None)

    def score_carrying(self, ids: np.ndarray, offsets: np.ndarray, chunk: int) -> TokenScores:
        """See `CarryingModel.score_carrying`."""
        return self._score(ids, offsets, chunk)

    def _score(self, ids: np.ndarray, offsets: np.ndarray, chunk: int | None) -> TokenScores:
        import torch

        inputs, real, targets = _padded(ids, offsets)
        with torch.inference_mode(), _memory_errors(), _threads_for(inputs.size):
            given = self._to_device(inputs)
            outputs = self.forward(given)[0] if chunk is None else self._forward_carrying(given, chunk)
            rows = outputs.flatten(0, 1) if real is None else outputs[self._to_device(real)]
            scores = self.reduce(rows, self._to_device(targets))
            return TokenScores(scores.nll.cpu().numpy(), scores.argmax.int().cpu().numpy(), scores.rank.int().cpu().numpy())

    def _forward_carrying(self, inputs: Tensor, chunk: int) -> Tensor:
        import torch

        state, outputs = None, []
        for piece in torch.split(inputs, chunk, dim=1):
            output, state = self.forward(piece, state, carry=True)
            outputs.append(output)
        return torch.cat(outputs, dim=1)

    def _to_device(self, array: np.ndarray) -> Tensor:
        """Through page-locked memory to a card, so that the copy runs beside the model."""
        import torch

        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor


def _padded(ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Inputs (b, longest) int64, which of them are real (None: all), and the flat targets of the real ones, int64.

    The fill repeats the sequence's own last input.
    """
    lengths = np.diff(offsets) - 1
    longest = int(lengths.max())
    places = np.arange(longest)
    at = offsets[:-1, None] + np.minimum(places, lengths[:, None] - 1)
    is_first = np.zeros(len(ids), bool)
    is_first[offsets[:-1]] = True
    real = None if (lengths == longest).all() else places < lengths[:, None]
    return ids[at].astype(np.int64), real, ids[~is_first].astype(np.int64)


@contextlib.contextmanager
def _threads_for(num_tokens: int) -> Iterator[None]:
    """One thread for a handful of tokens, so that the bits of a result do not depend on how many threads there are."""
    import torch

    threads = torch.get_num_threads()
    if num_tokens < _FEW_TOKENS and threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def _memory_errors() -> Iterator[None]:
    """Turns torch's ways of running out of memory into MemoryError."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise MemoryError from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error) or "not enough memory" in str(error):
            raise MemoryError from error
        raise
