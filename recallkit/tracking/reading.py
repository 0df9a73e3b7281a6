"""One reading of a tracker's text: batches of ids for any number of processes, and the NLLs that
come back, in any order."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recallkit.errors import UsageError, UserError
from recallkit.models.live import evaluating
from recallkit.models.loading import choose_prefix, find_precision, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import LIVE, ModelSpec
from recallkit.ragged import offsets_of
from recallkit.scoring.identity import sequences_of
from recallkit.scoring.scores import BatchLimit, check_finite, score_sequences
from recallkit.scoring.windows import ContextWindow
from recallkit.slicing.pack import write_pack
from recallkit.text.tokenizers import load_slices_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Batch(NamedTuple):
    """Sequences to be read by a model: `ids` int64 (b, t), a shorter one filled up with 0 behind
    its end; `first` is the number of the first of them."""

    first: int
    ids: np.ndarray


class Reading:
    """The pack of a slice directory as a model reads it, and the NLLs of its ids.

    `bos`: what is read before every sequence, `none`, or None for what the slices' tokenizer says.
    `nll` float32 (sequences, seq_len) has -inf where none is there yet.
    """

    def __init__(self, slices: Path, bos: str | None = None) -> None:
        pack, tokenizer = write_pack(slices), sequences_of(slices)["tokenizer"]
        self._ids, self._lengths = np.load(pack / "ids.npy"), np.load(pack / "lengths.npy")
        self._is_id = np.arange(self._ids.shape[1]) < self._lengths[:, None]
        spec = ModelSpec(f"{LIVE}model", bos=bos)
        plan = ModelPlan(spec, tokenizer["vocab_size"], dtype="auto")
        self.prefix = choose_prefix(plan, load_slices_tokenizer(slices, tokenizer))
        self._plan = replace(plan, prefix=self.prefix)
        self._begin()

    def _begin(self) -> None:
        self.nll = np.full(self._is_id[:, 1:].shape, -np.inf, np.float32)

    def batches(self, rank: int, world: int, size: int) -> Iterator[Batch]:
        """Every `world`-th batch of `size` sequences, from number `rank` on: of all processes as
        many, so that those which wait for each other do so equally often. The last ones may repeat
        the first."""
        if not 0 <= rank < world or size < 1:
            problem = f"rank {rank} of {world}, batches of {size}"
            remedy = "give 0 <= rank < world, and size >= 1"
            raise UsageError(problem, where="batches", remedy=remedy)
        number = -(-len(self._ids) // size)
        # 5 batches for ranks 0 and 1: 0 2 4 and 1 3 0.
        for place in range(rank, -(-number // world) * world, world):
            first = place % number * size
            rows = self._ids[first : first + size]
            lead = np.tile(np.array(self.prefix.ids, np.int64), (len(rows), 1))
            yield Batch(first, np.hstack([lead, rows]))

    def add(self, batch: Batch, nlls: Any) -> None:
        """Takes the NLLs (b, t - 1) of a batch, a tensor or an array: those of its ids but the
        first of each sequence. Raises UsageError for another shape."""
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
        plan = replace(self._plan, spec=ModelSpec(model, "model"))
        with evaluating(model):
            scorer = load_model(replace(plan, dtype=find_precision(plan)))
            limit = BatchLimit(scorer.batch_tokens(self._ids.shape[1]))
            ids, offsets = self._ids[self._is_id], offsets_of(self._lengths)
            scores = score_sequences(scorer, ids, offsets, limit, ContextWindow())
        self.nll[self._is_id[:, 1:]] = scores.nll

    def take(self) -> np.ndarray:
        """The NLLs of all processes, float32 (num_rows,); the next reading begins. Where
        torch.distributed is in use, all processes must take them.

        Raises UserError where some are missing, not finite, or negative.
        """
        nll: np.ndarray = _of_all_processes(self.nll)[self._is_id[:, 1:]]
        self._begin()
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


# -------------------------------------------------------------------------------------- processes


def process_group() -> Any:
    """torch.distributed, where this program runs in several processes of it; else None."""
    from torch import distributed

    is_in_use = distributed.is_available() and distributed.is_initialized()
    return distributed if is_in_use and distributed.get_world_size() > 1 else None


def is_first_process() -> bool:
    """Whether this process is the only one, or the first of torch.distributed."""
    group = process_group()
    return group is None or group.get_rank() == 0


@contextlib.contextmanager
def first_process_first() -> Iterator[None]:
    """A block that the first process runs before the others, which then find its files."""
    group = process_group()
    if not is_first_process():
        group.barrier()
    try:
        yield
    finally:
        if group is not None and is_first_process():
            group.barrier()


def _of_all_processes(nll: np.ndarray) -> np.ndarray:
    """The NLLs that any process has; where several have one, the largest."""
    group = process_group()
    if group is None:
        return nll
    import torch

    values = torch.from_numpy(nll)
    if "nccl" in group.get_backend():
        values = values.cuda()
    group.all_reduce(values, group.ReduceOp.MAX)
    together: np.ndarray = values.cpu().numpy()
    return together
