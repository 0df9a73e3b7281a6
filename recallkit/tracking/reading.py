"""One reading of a tracker's text: batches of ids for any number of processes, and the NLLs that
come back, in any order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recallkit.errors import UsageError, UserError
from recallkit.models.live import evaluating
from recallkit.models.loading import choose_prefix, find_precision, load_model
from recallkit.models.protocol import ModelRequest
from recallkit.models.spec import LIVE
from recallkit.ragged import offsets_of
from recallkit.scoring.identity import sequences_of
from recallkit.scoring.scores import BatchLimit, ContextWindow, check_finite, score_sequences
from recallkit.slicing.pack import write_pack
from recallkit.text.tokenizers import load_slices_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Batch(NamedTuple):
    """Sequences to be read by a model: `ids` int64 (b, t), a shorter one filled up with 0 behind its
    end; `first` is the number of the first of them."""

    first: int
    ids: np.ndarray


class Reading:
    """The pack of a slice directory as a model reads it, and the NLLs of its ids.

    `bos`: what is read before every sequence, `none`, or None for what the slices' tokenizer says.
    `nll` float32 (sequences, seq_len) has -inf where none is there yet.
    """

    def __init__(self, slices: Path, bos: str | None = None) -> None:
        pack, used = write_pack(slices), sequences_of(slices)["tokenizer"]
        self._ids, self._lengths = np.load(pack / "ids.npy"), np.load(pack / "lengths.npy")
        self._request = ModelRequest(f"{LIVE}model", used["vocab_size"])
        self.prefix = choose_prefix(self._request, load_slices_tokenizer(slices, used), bos)
        self._places = np.arange(self._ids.shape[1])
        self.nll = self._nothing()

    def _nothing(self) -> np.ndarray:
        return np.full((len(self._ids), self._ids.shape[1] - 1), -np.inf, np.float32)

    @property
    def _is_predicted(self) -> np.ndarray:
        """Of which places of `nll` there is an id."""
        is_predicted: np.ndarray = self._places[1:] < self._lengths[:, None]
        return is_predicted

    def batches(self, rank: int, world: int, size: int) -> Iterator[Batch]:
        """Every `world`-th batch of `size` sequences, from number `rank` on: of all processes as
        many, so that those which wait for each other do so equally often. The last ones may repeat
        the first."""
        if not 0 <= rank < world or size < 1:
            problem = f"rank {rank} of {world}, batches of {size}"
            remedy = "give 0 <= rank < world, and size >= 1"
            raise UsageError(problem, where="batches", remedy=remedy)
        number = -(-len(self._ids) // size)
        for place in range(rank, -(-number // world) * world, world):
            first = place % number * size
            rows = self._ids[first : first + size]
            lead = np.tile(np.array(self.prefix.ids, np.int64), (len(rows), 1))
            yield Batch(first, np.hstack([lead, rows]))

    def add(self, batch: Batch, nlls: Any) -> None:
        """Takes the NLLs (b, t - 1) of a batch, a tensor or an array: those of its ids but the first
        of each sequence. Raises UsageError for another shape."""
        values = _array(nlls)
        rows, length = batch.ids.shape
        if values.shape != (rows, length - 1):
            problem = f"NLLs of the shape {values.shape} for ids of the shape {batch.ids.shape}"
            remedy = f"give ({rows}, {length - 1}): one for each id but the first of a sequence"
            raise UsageError(problem, where="add", remedy=remedy)
        values = values[:, len(self.prefix.ids) :]
        # Undefined values must not look like missing ones.
        self.nll[batch.first : batch.first + rows] = np.where(np.isfinite(values), values, np.inf)

    def read(self, model: Any) -> None:
        """Has a module of this process read all sequences. Raises UserError for one that would give
        wrong NLLs, or whose weights are sharded."""
        if any(hasattr(weight, "full_tensor") for weight in model.parameters()):
            problem = "its weights are sharded over processes"
            remedy = "read tracker.batches() with it on every process, and tracker.add() the NLLs"
            raise UserError(problem, where="model", remedy=remedy)
        request = replace(self._request, dtype="auto", prefix=self.prefix, module=model)
        ids, offsets = self._ids[self._places < self._lengths[:, None]], offsets_of(self._lengths)
        with evaluating(model):
            scorer = load_model(replace(request, dtype=find_precision(request)))
            limit = BatchLimit(scorer.batch_tokens(len(self._places)))
            scores = score_sequences(scorer, ids, offsets, limit, ContextWindow())
        self.nll[self._is_predicted] = scores.nll

    def take(self) -> np.ndarray:
        """The NLLs of all processes, float32 (num_rows,); the next reading begins. Where
        torch.distributed is in use, all processes must take them.

        Raises UserError where some are missing, not finite, or negative.
        """
        nll: np.ndarray = _of_all_processes(self.nll)[self._is_predicted]
        self.nll = self._nothing()
        missing = np.count_nonzero(np.isneginf(nll))
        if missing:
            problem = f"{missing:,} of {len(nll):,} NLLs are missing"
            remedy = "add those of all batches here, or of every rank with torch.distributed"
            raise UserError(problem, where="log", remedy=remedy)
        check_finite("model", nll, 0, offsets_of(self._lengths))
        if nll.min() < -1e-3:  # more than rounding
            raise UserError("log-probabilities, not NLLs", where="log", remedy="multiply by -1")
        return nll


def _array(nlls: Any) -> np.ndarray:
    """A tensor of torch, whole where it is sharded, or any array, as float32."""
    if hasattr(nlls, "full_tensor"):
        nlls = nlls.full_tensor()
    if hasattr(nlls, "detach"):
        nlls = nlls.detach().float().cpu()
    return np.asarray(nlls, np.float32)


def process_group() -> Any:
    """torch.distributed, where this program runs in several processes of it; else None."""
    from torch import distributed

    is_in_use = distributed.is_available() and distributed.is_initialized()
    return distributed if is_in_use and distributed.get_world_size() > 1 else None


def _of_all_processes(nll: np.ndarray) -> np.ndarray:
    """The NLLs that any process has; where several have one, the largest."""
    group = process_group()
    if group is None:
        return nll
    import torch

    on_gpu = "nccl" in group.get_backend()
    values = torch.from_numpy(nll).to("cuda" if on_gpu else "cpu")
    group.all_reduce(values, group.ReduceOp.MAX)
    together: np.ndarray = values.cpu().numpy()
    return together
