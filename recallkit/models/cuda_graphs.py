"""CUDA graphs: what a pass launches, recorded once for its shape and replayed.

A launch from Python takes some 10 us, whatever it launches; a replay is one launch. So passes are
replayed where launches take longer than the work. A shape is recorded when it comes for the third
time, and only if a replay with other ids gives the figures of Python's launches to the bit. Where
it does not, or recording fails, as of a pass that reads a result to decide how to go on,
everything is launched from Python, and a line says so.

What Python does in a pass is not done in a replay. So passes of foreign code, of modules with
hooks and of modules that keep tensors of a pass are never recorded, nor is a state that grows.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import warnings
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from recallkit.display import console
from recallkit.errors import UserError
from recallkit.models.devices import empty_cache
from recallkit.models.states import tensors_of
from recallkit.quiet_transformers import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

    Shape = tuple[int | bool, ...]

MOST_WORK = 1 << 30
"""Operations of the products of a pass, for each weight tensor: 10 us at 100 TFLOP/s.

A pass with more of them is not recorded.
"""

MOST_GRAPHS = 8
"""Shapes of a model that are recorded; they share the memory of their passes."""

_RECORDED_AT = 3
"""The pass of a shape after which it is recorded, which takes as long as some three passes."""

_LIBRARIES = frozenset({"torch", "transformers", "recallkit"})
"""Packages whose modules compute the same in every pass."""

_recorders: weakref.WeakSet[CudaGraphs] = weakref.WeakSet()


class CudaGraphs:
    """The passes of a `TorchModel` on a GPU, its `forward`, recorded where that is sound."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.proxy(model)
        self._modules: list[nn.Module] = list(model.model.modules())
        self._tensors = list(_tensors_in(self._modules))
        sizes = [weight.numel() for weight in model.model.parameters()]
        self._most_ids = MOST_WORK * len(sizes) // (2 * max(1, sum(sizes)))
        self._graphs: dict[Shape, _Graph] = {}
        self._passes: Counter[Shape] = Counter()
        packages = {type(module).__module__.partition(".")[0] for module in self._modules}
        self._is_on = packages <= _LIBRARIES
        _recorders.add(self)

    def run(self, inputs: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """`TorchModel.forward` of inputs (b, t), carrying `state` where there is one.

        The tensors of a state must keep their sizes. The next call overwrites what this returns.
        """
        if not self._is_on or inputs.numel() > self._most_ids or self._has_changed():
            return self._launch(inputs, state)
        shape = (*inputs.shape, state is None)
        graph = self._graphs.get(shape)
        if graph is not None and graph.takes(state):
            return graph.replay(inputs, state)
        outputs, after = self._launch(inputs, state)
        self._passes[shape] += 1
        if self._passes[shape] == _RECORDED_AT and len(self._graphs) < MOST_GRAPHS:
            self._record(shape, inputs, state, [outputs, *tensors_of(after)])
        return outputs, after

    def release(self) -> bool:
        """Gives the memory of the graphs back, and records no more; whether there were any."""
        had_graphs = bool(self._graphs)
        self._graphs.clear()
        self._is_on = False
        return had_graphs

    def _launch(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        launched: tuple[Tensor, Any] = self._model.forward(inputs, state, carry=state is not None)
        return launched

    def _has_changed(self) -> bool:
        """Whether modules have hooks, or not the tensors whose addresses are recorded."""
        for module in self._modules:
            if module._forward_hooks or module._forward_pre_hooks or vars(module).get("change"):
                return True
        tensors = itertools.zip_longest(_tensors_in(self._modules), self._tensors)
        return any(now is not before for now, before in tensors)

    def _record(self, shape: Shape, inputs: Tensor, state: Any, expected: list[Tensor]) -> None:
        """Records a pass if a replay gives what is `expected`: outputs, and the state's tensors."""
        attributes = itertools.chain(*(vars(module).values() for module in self._modules))
        if any(isinstance(value, torch.Tensor) for value in attributes):
            self._is_on = False
            return
        problem = "a replay gives different results"
        try:
            with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(inputs.device):
                graph = self._recorded(inputs, state)
                outputs, after = graph.replay(inputs, state)
            if _bits_agree([outputs, *tensors_of(after)], expected):
                self._graphs[shape] = graph
                return
        except (RuntimeError, ValueError, MemoryError, UserError) as error:
            cause = error.__cause__
            problem = first_line(cause if isinstance(cause, RuntimeError) else error)
        self.release()
        remedy = "every kernel is launched from Python, without CUDA graphs"
        console.note(f"{self._model.name}: {remedy} ({problem})")

    def _recorded(self, inputs: Tensor, state: Any) -> _Graph:
        """A graph recorded with other ids, 0, and with the state after them.

        Whatever Python reads of them while it is recorded makes a replay with others differ.
        """
        others = torch.zeros_like(inputs)
        copied = None if state is None else self._model.take(state, range(len(inputs)))
        tensors = tensors_of(copied)

        def run() -> Tensor:
            outputs, after = self._launch(others, copied)
            _copy(tensors_of(after), tensors)
            return outputs

        return _Graph(others, copied, tensors, *record(run, *self._memory))

    @functools.cached_property
    def _memory(self) -> tuple[Any, Any]:
        """The pool that all graphs allocate from, and the stream on which they are recorded."""
        make_stream: Any = torch.cuda.Stream
        return torch.cuda.graph_pool_handle(), make_stream()


@dataclass(frozen=True, slots=True)
class _Graph:
    """A recorded pass: its inputs, state and outputs stay where they are."""

    inputs: Tensor
    state: Any
    tensors: list[Tensor]
    """Of the state."""
    recording: torch.cuda.CUDAGraph
    outputs: Tensor

    def takes(self, state: Any) -> bool:
        """Whether a state is the recorded one, or has such tensors."""
        return state is self.state or _kinds(tensors_of(state)) == _kinds(self.tensors)

    def replay(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The outputs and the state of other inputs, in the place of the last ones."""
        self.inputs.copy_(inputs)
        if state is not self.state:
            _copy(tensors_of(state), self.tensors)
        self.recording.replay()
        return self.outputs, self.state


def record(
    run: Callable[[], Tensor],
    pool: Any,
    stream: torch.cuda.Stream,
) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of what `run` launches, and the tensor that it returns, which a replay fills.

    It runs once before, on the same stream: what a library sets up in its first call cannot be
    recorded. Waiting for a result raises there, because a recording that fails leaves torch's
    allocator in disorder (before 2.12), and its own stream the current one.

    Raises RuntimeError for a pass that cannot be recorded, and what `run` raises.
    """
    graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    mode = torch.cuda.get_sync_debug_mode()
    stream.wait_stream(here)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it misses some: recording does not
        torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream), _unpacked_rows():
            run()
    finally:
        torch.cuda.set_sync_debug_mode(mode)
        here.wait_stream(stream)
    # Other threads, such as those that load data, may use the GPU meanwhile.
    options: Any = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
    try:
        with torch.cuda.graph(graph, **options), _unpacked_rows():
            outputs = run()
    finally:
        torch.cuda.set_stream(here)
    return graph, outputs


@contextlib.contextmanager
def _unpacked_rows() -> Iterator[None]:
    """A block in which transformers takes every row for one text without looking at positions.

    In each pass it waits for that look. While it is recorded it does not look, and makes a mask
    of packed texts, with which attention has other kernels, and so other last bits.
    """
    masks = vars(sys.modules.get("transformers.masking_utils", contextlib))
    look = masks.get("find_packed_sequence_indices")
    if look is None:
        yield
        return
    masks["find_packed_sequence_indices"] = lambda position_ids: None
    try:
        yield
    finally:
        masks["find_packed_sequence_indices"] = look


def can_record(device: torch.device) -> bool:
    """Whether passes on a device can be recorded."""
    return device.type == "cuda"


def release_all() -> bool:
    """Gives the memory of all graphs back, and records no more; whether there were any."""
    had_graphs = [recorder.release() for recorder in list(_recorders)]
    empty_cache()
    return any(had_graphs)


def _tensors_in(modules: list[nn.Module]) -> Iterator[Tensor | None]:
    """The parameters and buffers of the modules, in order."""
    for module in modules:
        yield from module._parameters.values()
        yield from module._buffers.values()


def _copy(values: list[Tensor], places: list[Tensor]) -> None:
    for value, place in zip(values, places, strict=True):
        if value is not place:
            place.copy_(value)


def _kinds(tensors: list[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in tensors]


def _bits_agree(some: list[Tensor], others: list[Tensor]) -> bool:
    """Whether tensors have the same types, sizes and bits: 0 and -0 differ, a NaN is itself."""
    if _kinds(some) != _kinds(others):
        return False
    pairs = zip(some, others, strict=True)
    return all(torch.equal(_bytes(one), _bytes(other)) for one, other in pairs)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)
