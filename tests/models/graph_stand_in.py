"""A stand-in for CUDA graphs on CPU: a block's operations are recorded, and run again in place.

As on a GPU, what Python does in the block is not done in a replay, a number that it reads of a
tensor stays what it was, and reading one by `.item()` fails. Unlike there, the operations are also
done while they are recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from recallkit.models import cuda_graphs


class Graph:
    """In place of `torch.cuda.CUDAGraph`; `recorded` has all of them."""

    recorded: list[Graph]
    modes: list[Any]
    """How waiting for a GPU was to be treated."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self.num_replays = 0
        self.recorded.append(self)

    def replay(self) -> None:
        self.num_replays += 1
        for operation, arguments, listed, results in self.operations:
            again = operation(*arguments, **listed)
            if any(result.alias_info for result in operation._schema.returns):
                continue  # in place, or a view
            for result, value in zip(tree_leaves(results), tree_leaves(again), strict=True):
                if isinstance(result, torch.Tensor):
                    result.copy_(value)


class _Recording(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        results = func(*args, **(kwargs or {}))
        self.graph.operations.append((func, args, kwargs or {}, results))
        return results


class _Stream:
    def wait_stream(self, other: _Stream) -> None:
        """A CPU has one stream."""


@contextlib.contextmanager
def _graph(graph: Graph, **options: Any) -> Iterator[None]:
    assert options["capture_error_mode"] == "thread_local"
    assert graph.modes[-2:] == ["error", 0], "tried before, and no mode is left behind"
    with _Recording(graph):
        yield


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs that are recorded while a test runs, on CPU."""
    Graph.recorded, Graph.modes = [], []
    stand_ins = {
        "CUDAGraph": Graph,
        "graph": _graph,
        "graph_pool_handle": lambda: (0, 1),
        "Stream": _Stream,
        "current_stream": _Stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "set_stream": lambda stream: None,
        "device": lambda device: contextlib.nullcontext(),
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": Graph.modes.append,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(cuda_graphs, "can_record", lambda device: True)
    return Graph.recorded
