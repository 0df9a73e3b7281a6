"""What every torch model shares in scoring: batching, padding, devices, precision, out-of-memory
errors."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from recallkit.errors import UserError
from recallkit.models.devices import batch_ids, memory_errors
from recallkit.models.prefix import begins_with, behind, check_id
from recallkit.models.protocol import Continuation, TokenScores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch
    from torch import Tensor

    from recallkit.kernels.token_nll.reference import TokenNll
    from recallkit.models.compression import Compression
    from recallkit.models.cuda_graphs import CudaGraphs
    from recallkit.models.protocol import Sharing
    from recallkit.models.states import Layout

T = TypeVar("T")

_CUDA_IDS = 1 << 16
"""Ids of a batch on a GPU: more are hardly faster (docs/benchmarks.md)."""

MOST_READING = 1e-4
"""Nats by which the NLL of any token may differ where text is read in chunks with nothing
compressed.

Where logits are large, float32 alone may change it more, how much depends on the processor. Such a
difference is rounding if it is not there in float64, whose rounding is a billionth of float32's.
"""

_PROBED_IDS, _PROBED_CHUNKS = 512, 3

_LEAST_REDUCED = 64
"""Outputs of shorter chunks of a variant are reduced together."""


@dataclass(frozen=True)
class Reading:
    """The state of a model after `num_read` ids, of which the last `since` came after the last
    compression."""

    state: Any
    num_read: int = 0
    since: int = 0


class TorchModel:
    """A torch model as a `ScoringModel`. A subclass implements `forward` and `reduce`."""

    sharing: Sharing = "any"
    """Which sequences may share a batch without changing each other's scores."""
    prompt_chunk = 1 << 62
    """Largest number of prompt ids that are read at once; small where `forward` returns logits for
    all of them."""
    model: Any
    """The module, of a model whose weights are read here."""
    columns: Mapping[str, type] = {"nll": np.float32, "argmax": np.int32, "rank": np.int32}
    """What `reduce` returns, and the types in which it is kept."""
    prefix: tuple[int, ...] = ()
    """Ids that it reads before every text, as context only; see `models.prefix`."""
    compression: Compression | None = None
    """What is done to its state between chunks where it is a variant; see `compress_with`."""
    records_launches = True
    """Whether passes of small models and short texts are recorded as CUDA graphs, on a GPU; see
    `models.cuda_graphs`."""

    def __init__(
        self,
        name: str,
        device: torch.device,
        *,
        vocab_size: int,
        max_length: int | None,
    ) -> None:
        self.name = name
        self.device = device
        self.vocab_size = vocab_size
        self.max_length = max_length

    def forward(
        self,
        inputs: Tensor,
        state: Any = None,
        *,
        carry: bool = False,
    ) -> tuple[Tensor, Any]:
        """The model's outputs for `inputs` (b, t) int64: hidden states (b, t, d) or logits (b, t,
        vocab).

        `state` is the one returned by an earlier call with `carry` for the preceding ids; without
        `carry` the new state may be None. Inputs read with `carry` have the lengths that `pieces`
        returns.
        """
        raise NotImplementedError

    def reduce(self, outputs: Tensor, targets: Tensor) -> TokenNll:
        """NLL, argmax and rank of `targets` (n,) from rows (n, d) or (n, vocab) of the outputs of
        `forward`."""
        raise NotImplementedError

    def logits(self, outputs: Tensor) -> Tensor:
        """The logits (n, vocab) of rows of the outputs of `forward`, float32 or wider."""
        raise NotImplementedError

    def batch_tokens(self, seq_len: int) -> int:
        """Ids of a batch of sequences of `seq_len`; scoring halves it where it does not fit."""
        num_ids = _CUDA_IDS if self.device.type == "cuda" else batch_ids(self.vocab_size)
        return max(1, num_ids // seq_len) * seq_len

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        """See `ScoringModel.score`. Shorter sequences of a batch are padded after their last id,
        which a causal model does not see."""
        return self._with_room(lambda: self._score(ids, offsets, None))

    def score_carrying(self, ids: np.ndarray, offsets: np.ndarray, chunk: int) -> TokenScores:
        """See `CarryingModel.score_carrying`. The outputs of a chunk are reduced before the next
        one is read.

        Raises UserError where the state cannot be carried, and for sequences longer than the
        context.
        """
        self.check_carrying(offsets)
        return self._with_room(lambda: self._score(ids, offsets, chunk))

    def check_carrying(self, offsets: np.ndarray) -> None:
        """Raises UserError where `score_carrying` does."""
        if not self.can_carry:
            problem = "its state cannot be carried from one chunk to the next"
            raise UserError(problem, where=self.name, remedy="read it in windows with --stride")
        longest = int(np.diff(offsets).max() - 1)
        if self.max_length is not None and longest > self.max_length:
            context = f"its context is {self.max_length:,} ids, also with a carried state"
            problem = f"{context}; a sequence has {longest:,}"
            raise UserError(problem, where=self.name, remedy="read it in windows with --stride")

    @property
    def can_carry(self) -> bool:
        """Whether `forward` continues from a state."""
        return True

    def pieces(self, num_inputs: int, chunk: int) -> list[int]:
        """The lengths, in order, in which inputs of `num_inputs` ids are read with the state
        carried: `chunk` at a time."""
        num_full, rest = divmod(num_inputs, chunk)
        return [chunk] * num_full + [rest] * bool(rest)

    def generate(
        self,
        prompts: Sequence[np.ndarray],
        answers: Sequence[np.ndarray],
        most: int,
        is_done: Callable[[int, list[int]], bool],
    ) -> list[Continuation]:
        """See `generation.generate`. Answers alone are scored in one pass; where rows cannot be
        joined, each id takes a pass.

        So it does after prompts of one id, which some models take for a step from an earlier state.
        """
        from recallkit.models.generation import by_scoring, by_stepping

        prompts = [behind(np.asarray(prompt), self.prefix) for prompt in prompts]
        for ids in (*prompts, *answers):
            check_id(self.name, int(np.max(ids, initial=0)), self.vocab_size)
        # Rows from which different ids were evicted cannot be joined, nor a user's own cache
        # copied.
        if self.compression is not None:
            run, nothing = (
                by_stepping if min(map(len, prompts), default=0) > 1 else by_scoring,
                np.empty(0, np.int64),
            )

            def alone(row: int) -> Continuation:
                prompt, answer = [prompts[row]], answers[row]
                ids: list[int] = []
                nll = np.empty(0, np.float32)
                if most:
                    options = (most, lambda _, ids: is_done(row, ids))
                    ids = run(self, prompt, [nothing], *options)[0].ids
                if len(answer):
                    nll = run(self, prompt, [answer], 0, is_done)[0].answer_nll
                return Continuation(ids, nll)

            return [alone(row) for row in range(len(prompts))]
        pairs = zip(prompts, answers, strict=True)
        lengths = [len(prompt) + max(most, len(answer)) for prompt, answer in pairs]
        joins = most and self.sharing != "none" and min(map(len, prompts), default=0) > 1
        run = by_stepping if joins and self.joins_after(max(lengths)) else by_scoring
        return self._with_room(lambda: run(self, prompts, answers, most, is_done))

    @functools.cached_property
    def can_join(self) -> bool:
        """Whether rows that have read any numbers of ids can be continued together, exactly, one id
        at a time; found at first use."""
        return False

    def joins_after(self, num_ids: int) -> bool:
        """`can_join`, also of rows of up to `num_ids` ids."""
        return self.can_join

    def sharing_over(self, lengths: np.ndarray) -> Sharing:
        """Which sequences of these lengths, in ids, may share a batch."""
        return self.sharing

    def join(self, states: Sequence[Any]) -> Any:
        """The joint state of all rows of several states of `forward`, the longest first. Raises
        ValueError where they do not match."""
        return self._layout.join(states)

    def take(self, state: Any, rows: Sequence[int]) -> Any:
        """The state of some of its rows, in this order, as a copy for `forward`."""
        return self._layout.take(state, rows)

    @functools.cached_property
    def _layout(self) -> Layout:
        from recallkit.models.states import find_layout

        shapes = ((1, 2), (2, 2), (1, 3))
        return find_layout(
            *(self.advance(self.to_device(np.zeros(shape, np.int64)))[1] for shape in shapes),
        )

    # ---------------------------------------------------------------------------------- CUDA graphs

    @functools.cached_property
    def _graphs(self) -> CudaGraphs | None:
        from recallkit.models import cuda_graphs

        has_modules = getattr(self, "model", None) is not None
        if not (self.records_launches and has_modules and cuda_graphs.can_record(self.device)):
            return None
        return cuda_graphs.CudaGraphs(self)

    @property
    def has_fixed_state(self) -> bool:
        """Whether its state is tensors alone, whose sizes are those of the number of rows."""
        return False

    def step(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        """`advance` by one id of each row (b, 1); the next step overwrites the outputs and the
        state."""
        if self._graphs is None or self.compression is not None or not self.has_fixed_state:
            return self.advance(inputs, state)
        return self._graphs.run(inputs, state)

    def _with_room(self, run: Callable[[], T]) -> T:
        """What `run` returns; where its memory does not suffice, without graphs, so that they make
        no batch too large."""
        from recallkit.models.cuda_graphs import release_all

        try:
            return run()
        except MemoryError:
            if not release_all():
                raise
        return run()

    # -------------------------------------------------------------------- variants and their states

    @property
    def carries_steps(self) -> bool:
        """Whether its state is carried into single ids alone."""
        return False

    @property
    def is_half(self) -> bool:
        """Whether its weights are in half precision."""
        first = next(weight for weight in self.model.parameters() if weight.is_floating_point())
        return bool(first.dtype.itemsize < 4)

    def initial(self, num_rows: int) -> Any:
        """The state before the first id; None where `forward` makes it."""
        return None

    def compress(self, state: Any, compression: Compression) -> Any:
        """A state of `forward` as it is kept between chunks. Raises UserError where a user's own
        cache cannot be used."""
        return state

    def compress_with(self, compression: Compression) -> None:
        """Makes it a variant, for good.

        Raises UserError where its state cannot be carried or has nothing to compress, and as
        `noise_of_reading` does, on a few ids.
        """
        import torch

        if not self.can_carry:
            raise UserError(
                "its state cannot be carried from one chunk to the next",
                where=self.name,
                remedy=f"leave out {compression.shown}",
            )
        self.compression = compression
        # Rows may influence each other in a user's own cache.
        if compression.make_cache is not None:
            self.sharing = "none"
        with torch.no_grad():
            compression.begin()
            self.compress(
                self.advance(self.to_device(np.zeros((1, 2), np.int64)))[1].state,
                compression,
            )
            compression.has_effect = False  # on text, so far
        wanted = {"cache": compression.policy, "state": compression.rounding}
        for name, lacking in (
            ("cache", "no cache of keys and values of all ids"),
            ("state", "no recurrent state to round"),
        ):
            if wanted[name] is not None and name not in compression.changed:
                raise UserError(
                    f"it has {lacking} here",
                    where=self.name,
                    remedy=f"leave out {compression.shown}",
                )
        length = min(
            _PROBED_CHUNKS * compression.chunk + 2,
            _PROBED_IDS,
            self.max_length or _PROBED_IDS,
        )
        ids = np.random.default_rng(0).integers(self.vocab_size, size=2 * length).astype(np.uint32)
        try:
            self.noise_of_reading(ids, np.array([0, length, 2 * length]))
        except (UserError, ValueError):
            # Some models (RWKV-4 of transformers) mix up the rows of a batch where a single id
            # follows.
            self.sharing = "none"
            self.noise_of_reading(ids, np.array([0, length, 2 * length]))

    def advance(self, inputs: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Outputs of inputs (b, t) that follow a state of `advance`, compressed first where that is
        due, and the state after them."""
        compression = self.compression
        if compression is None:
            return self.forward(inputs, state, carry=True)
        before = Reading(self.initial(len(inputs))) if state is None else state
        if compression.is_due(before.since, before.num_read - len(self.prefix)):
            compression.begin()
            before = Reading(self.compress(before.state, compression), before.num_read)
        outputs, after = self.forward(inputs, before.state, carry=True)
        return outputs, Reading(
            after,
            before.num_read + inputs.shape[1],
            before.since + inputs.shape[1],
        )

    def noise_of_reading(self, ids: np.ndarray, offsets: np.ndarray) -> tuple[float, float]:
        """What reading in a variant's chunks, with nothing compressed, changes in float32 or wider.

        The largest and the mean difference in nats from the NLLs of sequences read at once, which
        is the noise of every comparison. Raises UserError where it is not rounding (MOST_READING):
        what a variant changes would not be compression alone. In half precision nothing is refused.
        """
        compression = self.compression
        assert compression is not None, "a variant"
        at_once, in_chunks = self._read_both_ways(ids, offsets, compression)
        differences = np.abs(in_chunks - at_once)
        if differences.max(initial=0) > MOST_READING and not self.is_half:
            at_once, in_chunks = self._in_float64()._read_both_ways(ids, offsets, compression)
            # NLLs are stored in float32, whose last digit is not part of the difference.
            excess = np.abs(in_chunks - at_once) - np.spacing(at_once)
            if (largest := excess.max()) > MOST_READING:
                chunks = f"read in chunks of {compression.chunk} ids"
                difference = f"its NLLs differ by up to {largest:.1e} nats in float64"
                raise UserError(
                    f"{chunks}, with nothing compressed, {difference}, more than {MOST_READING:g}",
                    where=self.name,
                    remedy="its variants would not show the effect of compression alone",
                )
        return float(differences.max(initial=0)), float(differences.mean())

    def _read_both_ways(
        self,
        ids: np.ndarray,
        offsets: np.ndarray,
        compression: Compression,
    ) -> tuple[np.ndarray, np.ndarray]:
        """NLLs of sequences read at once, and in a variant's chunks with nothing compressed."""
        before = self.compression
        try:
            self.compression = None
            at_once = self.score(ids, offsets).nll
            self.compression = compression.without_effect()
            return at_once, self.score(ids, offsets).nll
        finally:
            self.compression = before

    def _in_float64(self) -> TorchModel:
        """The same model, with a copy of its weights, which computes in float64 throughout."""
        make: Any = type(self)
        exact: TorchModel = make(copy.deepcopy(self.model).double(), self.name, self.device)
        exact.sharing, exact.prefix = self.sharing, self.prefix
        return exact

    def state_bytes(self, ids: np.ndarray) -> int | None:
        """Bytes of the state of one sequence after `ids` (t,), as it is stored, scales and zero
        points included; None if unknown.

        Counted are the tensors that have rows: not what depends on the weights alone, such as the
        taps of a filter.
        """
        from recallkit.models.states import tensors_of

        if not self.can_carry:
            return None
        try:
            axes = self._layout.axes
        except ValueError:
            return None
        tensors = tensors_of(self._state_after(ids))
        if len(tensors) != len(axes):
            return None
        saved = 0 if self.compression is None else self.compression.saved
        rows = [tensor for tensor, axis in zip(tensors, axes, strict=True) if axis is not None]
        return sum(tensor.nbytes for tensor in rows if tensor.dim() > 1) - saved

    def cache_bytes(self, num_ids: int) -> list[int] | None:
        """Bytes of each layer's cache after one sequence of so many ids: of the part of its state
        that grows with them.

        What stays as it is from half of them on, such as a recurrent state or a full window, is
        left out. None where the state cannot be carried, is compressed, or is not divided by layer.
        """
        from recallkit.models.states import grown_bytes

        if not self.can_carry or self.compression is not None:
            return None
        ids = np.zeros(num_ids, np.int64)
        before = self.by_layer(self._state_after(ids[: num_ids // 2]))
        after = self.by_layer(self._state_after(ids))
        if before is None or after is None:
            return None
        return [grown_bytes(*layer) for layer in zip(before, after, strict=True)]

    def by_layer(self, state: Any) -> Sequence[Any] | None:
        """The parts of a state of `forward` that belong to the mixers of each layer; None where it
        is not divided so."""
        return None

    def _state_after(self, ids: np.ndarray) -> Any:
        """The state of one sequence after `ids` (t,), of a variant compressed."""
        import torch

        state: Any = None
        read = 0
        ids = behind(np.asarray(ids), self.prefix)
        with torch.no_grad(), memory_errors(), self.reading():
            if self.compression is not None:
                self.compression.begin()
            for size in self.sizes(len(ids), len(ids)):
                state = self.advance(
                    self.to_device(np.asarray(ids[None, read : read + size], np.int64)),
                    state,
                )[1]
                read += size
            if self.compression is not None and self.compression.once is None:
                self.compression.begin()
                state = self.compress(state.state, self.compression)
        return state

    def reading(self) -> contextlib.AbstractContextManager[Any]:
        """The block in which text is read: a user's own, where a variant has one."""
        return contextlib.nullcontext()

    def sizes(self, num_inputs: int, chunk: int) -> list[int]:
        """The lengths in which inputs are read with the state carried: those of the variant, or
        about `chunk` each.

        The prefix is read with the first of them, and counts in none.
        """
        lead = min(len(self.prefix), num_inputs - 1)
        first, *others = self._sizes_of_text(num_inputs - lead, chunk)
        return [lead + first, *others]

    def _sizes_of_text(self, num_inputs: int, chunk: int) -> list[int]:
        if self.compression is None:
            return self.pieces(num_inputs, chunk)
        once = self.compression.once
        sizes = TorchModel.pieces(self, num_inputs, self.compression.chunk)
        if once and once < num_inputs:
            sizes = [once, num_inputs - once]
        # Some models treat a single first id as a step from whatever they read last.
        if sizes[0] == 1 < num_inputs:
            sizes = [2, *sizes[2:]]
        return [sizes[0]] + [1] * (num_inputs - sizes[0]) if self.carries_steps else sizes

    def _score(self, ids: np.ndarray, offsets: np.ndarray, chunk: int | None) -> TokenScores:
        """Scores sequences in as few batches as `sharing` allows; `chunk` as in `score_carrying`,
        or None."""
        import torch

        check_id(self.name, int(ids.max(initial=0)), self.vocab_size)
        sequences, starts = np.split(ids, offsets[1:-1]), offsets - np.arange(len(offsets))
        values_by_name = {name: np.zeros(starts[-1], dtype) for name, dtype in self.columns.items()}
        lengths = np.diff(offsets)
        shared = groups(lengths, self.sharing_over(lengths))
        parts = itertools.chain.from_iterable(self._alike(sequences, rows) for rows in shared)
        for begun, group in parts:
            inputs, targets, real = padded([sequences[number] for number in group])
            places, start = starts[group][:, None] + np.arange(inputs.shape[1]), 0
            # Not inference_mode: what a live model keeps of this pass, such as tables of angles,
            # could not be trained with afterwards.
            with torch.no_grad(), memory_errors():
                for outputs in self.read(inputs, chunk, begun):
                    read = slice(start, start + outputs.shape[1])
                    mask, start = real[:, read], read.stop
                    rows = outputs.flatten(0, 1) if mask.all() else outputs[self.to_device(mask)]
                    scores = self.reduce(rows, self.to_device(targets[:, read][mask]))
                    for into, values in zip(values_by_name.values(), scores, strict=True):
                        into[places[:, read][mask]] = values.cpu().numpy()
        own = {name: values_by_name.pop(name) for name in TorchModel.columns}
        return TokenScores(**own, beside=values_by_name)

    @property
    def prefixes(self) -> list[tuple[int, ...]]:
        """The prefixes behind which a text is read."""
        return [self.prefix]

    def _alike(
        self,
        sequences: Sequence[np.ndarray],
        group: np.ndarray,
    ) -> Iterator[tuple[tuple[bool, ...], np.ndarray]]:
        """A group in parts: which of its prefixes sequences begin with, and those that begin so."""
        rows: dict[tuple[bool, ...], list[int]] = {}
        for row in group:
            begun = tuple(begins_with(sequences[row], prefix) for prefix in self.prefixes)
            rows.setdefault(begun, []).append(row)
        for begun, places in rows.items():
            yield begun, np.array(places)

    def read(
        self,
        inputs: np.ndarray,
        chunk: int | None,
        begun: tuple[bool, ...],
    ) -> Iterator[Tensor]:
        """The outputs of `forward` for inputs (b, t): at once, or about `chunk` ids of each row at
        a time; a variant's in its chunks.

        They are read behind the prefix, which has no outputs here, unless they have `begun` with
        it.
        """
        import torch

        lead = 0 if begun[0] else len(self.prefix)
        inputs = np.hstack(
            [np.tile(np.array(self.prefix[:lead], inputs.dtype), (len(inputs), 1)), inputs],
        )
        chunk = chunk if self.compression is None else max(self.compression.chunk, _LEAST_REDUCED)
        if chunk is None:
            run = self.forward if self._graphs is None else self._graphs.run
            yield run(self.to_device(inputs))[0][:, lead:]
            return
        state, parts, start, read = None, [], 0, 0
        with self.reading():
            for size in self.sizes(inputs.shape[1], chunk):
                outputs, state = self.advance(self.to_device(inputs[:, read : read + size]), state)
                parts.append(outputs)
                read += size
                # Outputs of short pieces are reduced together: a product of one row takes as long
                # as one of many.
                if read - start >= chunk or read == inputs.shape[1]:
                    yield (outputs if len(parts) == 1 else torch.cat(parts, dim=1))[:, lead:]
                    parts, start, lead = [], read, 0

    def to_device(self, array: np.ndarray) -> Tensor:
        """Copies through page-locked memory to a GPU, so that the copy overlaps with the model."""
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)


def wide(values: Tensor) -> Tensor:
    """The same in float32, or in float64 where they are."""
    import torch

    return values if values.dtype is torch.float64 else values.float()


def padded(sequences: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs and their targets (b, longest) int64, and a mask of the real ones: padding repeats a
    sequence's last pair.

    Ids 5 6 7 and 8 9 give inputs [[5, 6], [8, 8]], targets [[6, 7], [9, 9]], real [[1, 1], [1, 0]].
    """
    lengths = np.array([len(sequence) - 1 for sequence in sequences])
    places = np.arange(lengths.max())
    at = np.minimum(places, lengths[:, None] - 1)
    rows = list(zip(sequences, at, strict=True))
    inputs = np.stack([np.asarray(ids, np.int64)[row] for ids, row in rows])
    targets = np.stack([np.asarray(ids, np.int64)[row + 1] for ids, row in rows])
    return inputs, targets, places < lengths[:, None]


def groups(lengths: np.ndarray, sharing: Sharing) -> list[np.ndarray]:
    """The indices of the sequences of each batch; those of a single id predict nothing."""
    some = np.flatnonzero(lengths > 1)
    if sharing == "none":
        return list(some[:, None])
    if sharing == "equal":
        return [np.flatnonzero(lengths == length) for length in np.unique(lengths[some])]
    return [some] if len(some) else []
