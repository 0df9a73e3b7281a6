"""One reading of a tracker's text: batches of ids for any number of processes, and the NLLs that
come back, in any order."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recallkit.display import console
from recallkit.errors import UsageError, UserError
from recallkit.models.live import evaluating
from recallkit.models.loading import choose_prefix, find_precision, load_model, tokenizer_name
from recallkit.models.protocol import ModelRequest
from recallkit.models.spec import LIVE
from recallkit.ragged import offsets_of
from recallkit.scoring.alignment import Translator, align
from recallkit.scoring.identity import read_tokenizer, sequences_of
from recallkit.scoring.scores import BatchLimit, ContextWindow, SequenceScores, check_finite, score_sequences
from recallkit.text.sequences import group_ids, sequence_groups
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
    """The sequences of a slice directory as a model reads them, and the NLLs of its ids.

    `tokenizer`: the model's, where it is not that of the slices; `bos`: what it reads before every
    sequence, `none`, or None for what its tokenizer says. `nll` float32, flat, has -inf where none
    is there yet. Raises UserError for a tokenizer that cannot be read or aligned.
    """

    def __init__(self, slices: Path, tokenizer: Any = None, bos: str | None = None) -> None:
        used = sequences_of(slices)["tokenizer"]
        request = ModelRequest(f"{LIVE}model", used["vocab_size"])
        chosen = read_tokenizer(request, tokenizer_name(tokenizer), slices, used)
        self._request = replace(request, vocab_size=chosen.tokenizer.vocab_size)
        self.prefix = choose_prefix(request, chosen.tokenizer, bos)
        groups = [group_ids(group) for group in sequence_groups(slices / "sequences.parquet")]
        self.ids = np.concatenate([ids for ids, _ in groups])
        self.offsets = offsets_of(np.concatenate([np.diff(offsets) for _, offsets in groups]))
        self._translation = None
        if other := chosen.other(slices, used):
            translator = Translator(load_slices_tokenizer(slices, used), other[1], notify=console.note)
            self._translation = translator.translate(self.ids, self.offsets)
            self.ids, self.offsets = self._translation.ids, self._translation.offsets
        self.nll = self._nothing()

    def _nothing(self) -> np.ndarray:
        return np.full(len(self.ids) - len(self.offsets) + 1, -np.inf, np.float32)

    def batches(self, rank: int, world: int, size: int) -> Iterator[Batch]:
        """Every `world`-th batch of `size` sequences, from number `rank` on: of all processes as
        many, so that those which wait for each other do so equally often. The last ones may repeat
        the first."""
        if not 0 <= rank < world or size < 1:
            problem = f"rank {rank} of {world}, batches of {size}"
            raise UsageError(problem, where="batches", remedy="give 0 <= rank < world, and size >= 1")
        number = -(-(len(self.offsets) - 1) // size)
        for place in range(rank, -(-number // world) * world, world):
            yield self._batch(place % number * size, size)

    def _batch(self, first: int, size: int) -> Batch:
        bounds, lead = self.offsets[first : first + size + 1], len(self.prefix.ids)
        lengths = np.diff(bounds)
        ids = np.zeros((len(lengths), lead + lengths.max()), np.int64)
        ids[:, :lead] = self.prefix.ids
        ids[_filled(ids.shape, lead, lengths)] = self.ids[bounds[0] : bounds[-1]]
        return Batch(first, ids)

    def add(self, batch: Batch, nlls: Any) -> None:
        """Takes the NLLs (b, t - 1) of a batch, a tensor or an array: those of its ids but the first
        of each sequence. Raises UsageError for another shape."""
        values = _array(nlls)
        rows, length = batch.ids.shape
        if values.shape != (rows, length - 1):
            problem = f"NLLs of the shape {values.shape} for ids of the shape {batch.ids.shape}"
            remedy = f"give ({rows}, {length - 1}): one for each id but the first of a sequence"
            raise UsageError(problem, where="add", remedy=remedy)
        bounds = self.offsets[batch.first : batch.first + rows + 1] - np.arange(batch.first, batch.first + rows + 1)
        values = values[_filled(values.shape, len(self.prefix.ids), np.diff(bounds))]
        # Undefined values must not look like missing ones.
        self.nll[bounds[0] : bounds[-1]] = np.where(np.isfinite(values), values, np.inf)

    def read(self, model: Any, device: str) -> None:
        """Has a module of this process read all sequences. Raises UserError for one that would give
        wrong NLLs, or whose weights are sharded."""
        if any(hasattr(weight, "full_tensor") for weight in getattr(model, "parameters", tuple)()):
            problem = "its weights are sharded over processes"
            remedy = "read tracker.batches() with it on every process, and tracker.add() the NLLs"
            raise UserError(problem, where="model", remedy=remedy)
        request = replace(self._request, device=device, dtype="auto", prefix=self.prefix, module=model)
        with evaluating(model):
            scorer = load_model(replace(request, dtype=find_precision(request)))
            limit = BatchLimit(scorer.batch_tokens(int(np.diff(self.offsets).max())), console.note)
            scores = score_sequences(scorer, self.ids, self.offsets, limit, ContextWindow())
        self.nll = scores.nll

    def take(self) -> np.ndarray:
        """The NLLs of all processes, aligned to the tokens of the slices, float32 (num_rows,); the
        next reading begins. Where torch.distributed is in use, all processes must take them.

        Raises UserError where some are missing, or not finite.
        """
        nll, self.nll = _of_all_processes(self.nll), self._nothing()
        missing = np.count_nonzero(np.isneginf(nll))
        if missing:
            problem = f"{missing:,} of {len(nll):,} NLLs are missing"
            remedy = "add those of all batches here, or of every rank with torch.distributed"
            raise UserError(problem, where="log", remedy=remedy)
        check_finite("model", nll, 0, self.offsets)
        if self._translation is None:
            return nll
        unknown = np.full(len(nll), -1, np.int32)
        scores = SequenceScores(nll, unknown, unknown, unknown, unknown.astype(bool))
        return align(self._translation, scores).nll


def _filled(shape: tuple[int, ...], lead: int, lengths: np.ndarray) -> np.ndarray:
    """Which places of rows have ids of the text: behind `lead` others, as many as `lengths` says."""
    places = np.arange(shape[1]) - lead
    filled: np.ndarray = (places >= 0) & (places < lengths[:, None])
    return filled


def _array(nlls: Any) -> np.ndarray:
    """A tensor of torch, whole where it is sharded, or any array, as float32."""
    if hasattr(nlls, "full_tensor"):
        nlls = nlls.full_tensor()
    if hasattr(nlls, "detach"):
        nlls = nlls.detach().float().cpu()
    return np.asarray(nlls, np.float32)


def process_group() -> Any:
    """torch.distributed, where this program runs in several processes of it; else None."""
    distributed = sys.modules.get("torch.distributed")
    is_in_use = distributed is not None and distributed.is_available() and distributed.is_initialized()
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
