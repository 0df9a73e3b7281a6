"""CUDA graphs: what a pass of a model launches, recorded once for a shape and replayed, where launches take longer than their work.

A launch from Python takes some 10 us, whatever it launches; a replay is one launch. A shape is recorded when it comes for the third
time, and only if a replay with other ids gives the figures of Python's launches to the bit. Where it does not, or recording fails,
as in a pass that reads a result to decide how to go on, everything is launched from Python, and a line says so.

What Python does in a pass is not done in a replay: passes of foreign code, of modules with hooks and of modules that keep tensors
of a pass are never recorded, nor are those whose state grows.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
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

    from recallkit.models.torch_model import TorchModel

MOST_WORK = 1 << 30
"""Operations of the products of a pass for each of the model's weights: 10 us at 100 TFLOP/s. Longer passes are not recorded."""

MOST_GRAPHS = 8
"""Shapes of a model that are recorded; all share the memory of the largest."""

_RECORDED_AT = 3
"""The pass of a shape after which it is recorded, which takes as long as some three passes."""

_LIBRARIES = frozenset({"torch", "transformers", "recallkit"})
"""Packages whose modules compute the same in every pass."""

_recorders: weakref.WeakSet[CudaGraphs] = weakref.WeakSet()


class CudaGraphs:
    """The passes of a model on a GPU, `TorchModel.forward`, recorded where that is sound."""

    def __init__(self, model: TorchModel) -> None:
        self._model = weakref.proxy(model)
        self._modules: list[nn.Module] = list(model.model.modules())
        self._tensors = list(_tensors_in(self._modules))
        sizes = [weight.numel() for weight in model.model.parameters()]
        self._most_ids = MOST_WORK * len(sizes) // (2 * max(1, sum(sizes)))
        self._graphs: dict[tuple[int | bool, ...], _Graph] = {}
        self._passes: Counter[tuple[int | bool, ...]] = Counter()
        self._is_on = all(type(module).__module__.partition(".")[0] in _LIBRARIES for module in self._modules)
        _recorders.add(self)

    def run(self, inputs: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """`TorchModel.forward` of inputs (b, t), with the state carried where there is one: the next call overwrites what it returns.

        `state` is one whose tensors keep their sizes.
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
        outputs: tuple[Tensor, Any] = self._model.forward(inputs, state, carry=state is not None)
        return outputs

    def _has_changed(self) -> bool:
        """Whether modules have hooks, or other tensors than at first: a graph has the addresses of those that it was recorded with."""
        if any(each._forward_hooks or each._forward_pre_hooks or vars(each).get("change") for each in self._modules):
            return True
        tensors = itertools.zip_longest(_tensors_in(self._modules), self._tensors)
        return any(now is not before for now, before in tensors)

    def _record(self, shape: tuple[int | bool, ...], inputs: Tensor, state: Any, expected: list[Tensor]) -> None:
        """Records a pass if a replay gives what is `expected`: the outputs and the state of these inputs."""
        if any(isinstance(value, torch.Tensor) for module in self._modules for value in vars(module).values()):
            self._is_on = False  # what a module keeps would not be of the last pass
            return
        problem = "a replay gives other figures"
        try:
            with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(inputs.device):
                graph = self._recorded(inputs, state)
                outputs, after = graph.replay(inputs, state)
            if _bits_agree([outputs, *tensors_of(after)], expected):
                self._graphs[shape] = graph
                return
        except (RuntimeError, ValueError, MemoryError, UserError) as error:
            problem = first_line(error.__cause__ if isinstance(error.__cause__, RuntimeError) else error)
        self.release()
        console.note(f"{self._model.name}: every kernel is launched from Python, without CUDA graphs ({problem})")

    def _recorded(self, inputs: Tensor, state: Any) -> _Graph:
        """A graph recorded with other ids, 0, and the state after them, so that what a pass reads of either does not go unnoticed."""
        others = torch.zeros_like(inputs)
        copied = None if state is None else self._model.take(state, range(len(inputs)))
        tensors = tensors_of(copied)

        def run() -> Tensor:
            outputs, after = self._launch(others, copied)
            _copy(tensors_of(after), tensors)
            return outputs

        return _Graph(others, copied, tensors, *record(run, *self._memory))

    @functools.cached_property
    def _memory(self) -> tuple[Any, torch.cuda.Stream]:
        """What all graphs allocate from, and the stream that they are recorded on."""
        return torch.cuda.graph_pool_handle(), torch.cuda.Stream()


@dataclass(frozen=True, slots=True)
class _Graph:
    """A recorded pass: its inputs, state and outputs are always at the same addresses."""

    inputs: Tensor
    state: Any
    tensors: list[Tensor]
    """Of the state."""
    recording: torch.cuda.CUDAGraph
    outputs: Tensor

    def takes(self, state: Any) -> bool:
        """Whether a state is the recorded one, or its tensors are like those."""
        return state is self.state or _kinds(tensors_of(state)) == _kinds(self.tensors)

    def replay(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The outputs and the state of other inputs, in the place of the last ones."""
        self.inputs.copy_(inputs)
        if state is not self.state:
            _copy(tensors_of(state), self.tensors)
        self.recording.replay()
        return self.outputs, self.state


def record(run: Callable[[], Tensor], pool: Any, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of what `run` launches, and the tensor that it returns, which a replay fills. RuntimeError where it cannot be recorded.

    Before, it runs once on the same stream: what a library sets up in its first call cannot be recorded. Waiting for a result raises
    there, because a recording that fails leaves torch's allocator in disorder (before 2.12), and its own stream the current one.
    """
    graph, here, mode = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.get_sync_debug_mode()
    stream.wait_stream(here)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream), _unpacked_rows():
            run()
    finally:
        torch.cuda.set_sync_debug_mode(mode)
        here.wait_stream(stream)
    try:
        # Other threads, such as those that load data, may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"), _unpacked_rows():
            outputs = run()
    finally:
        torch.cuda.set_stream(here)
    return graph, outputs


@contextlib.contextmanager
def _unpacked_rows() -> Iterator[None]:
    """A block in which transformers takes every row for one text, as ours are, without looking at its positions.

    In each pass it waits for a look at them. While it is recorded it takes none and makes a mask for packed texts, with which
    attention has other kernels, and so other last bits.
    """
    masks = sys.modules.get("transformers.masking_utils")
    looks = getattr(masks, "find_packed_sequence_indices", None)
    if looks is not None:
        vars(masks)["find_packed_sequence_indices"] = lambda position_ids: None
    try:
        yield
    finally:
        if looks is not None:
            vars(masks)["find_packed_sequence_indices"] = looks


def can_record(device: torch.device) -> bool:
    """Whether passes on a device can be recorded."""
    return device.type == "cuda"


def release_all() -> bool:
    """Gives the memory of all graphs back, and records no more; whether there were any."""
    had_graphs = [recorder.release() for recorder in list(_recorders)]
    empty_cache()
    return any(had_graphs)


def _tensors_in(modules: list[nn.Module]) -> Iterator[Tensor | None]:
    """The parameters and buffers of each of the modules, in order."""
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
    """Whether tensors are of the same bits, sizes and types: 0 differs from -0, and a NaN agrees with itself."""
    if _kinds(some) != _kinds(others):
        return False
    bits = ([tensor.contiguous().view(torch.uint8) for tensor in tensors] for tensors in (some, others))
    return all(map(torch.equal, *bits))
