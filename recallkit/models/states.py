"""States of models of any structure: their tensors are found by traversal, joined and selected row
by row.

A state is a tensor, or nested lists, tuples, dicts and objects with tensors and numbers; a cache of
transformers is one. The batch axis of each tensor is found by comparing the states of one row and
of two.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """The axes of the tensors of a model's states, in the order in which they are found."""

    axes: list[int | None]
    """The axis of the rows; None in a tensor that does not grow with them."""
    grows: bool
    """Whether a tensor grows with the ids that were read."""

    def join(self, states: Sequence[Any]) -> Any:
        """A new state of all rows. Anything without a batch axis is taken from the first state,
        which has read the most ids.

        Tensors shorter than those of another state get zeros at the left. Raises ValueError for
        states of different structure.
        """
        parts = zip(*map(tensors_of, states), self.axes, strict=True)
        return _with(
            states[0],
            (part[0].clone() if axis is None else _join(part, axis) for *part, axis in parts),
        )

    def take(self, state: Any, rows: Sequence[int]) -> Any:
        """A new state of some rows, in this order; a row may be taken more than once."""
        pairs = zip(tensors_of(state), self.axes, strict=True)
        return _with(state, (_take(tensor, axis, rows) for tensor, axis in pairs))


def find_layout(one: Any, two: Any, longer: Any) -> Layout:
    """The layout, from the states of one row, of two, and of one that has read more ids.

    Raises ValueError where a tensor does not grow along exactly one axis with the number of rows.
    """
    axes: list[int | None] = []
    for small, large in zip(tensors_of(one), tensors_of(two), strict=True):
        sizes = list(zip(small.shape, large.shape, strict=True))
        grown = [axis for axis, (before, after) in enumerate(sizes) if before != after]
        if len(grown) > 1 or any(sizes[axis] != (1, 2) for axis in grown):
            shapes = f"{tuple(small.shape)} and {tuple(large.shape)}"
            raise ValueError(f"rows cannot be distinguished in tensors of {shapes}")
        axes.append(grown[0] if grown else None)
    pairs = zip(tensors_of(one), tensors_of(longer), strict=True)
    grows = any(a.shape != b.shape for a, b in pairs)
    return Layout(axes, grows)


def tensors_of(state: Any) -> list[Tensor]:
    """The tensors of a state, each once, in an order that depends on its structure alone."""
    tensors: list[Tensor] = []

    def see(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    _mapped(state, see, {})
    return tensors


def grown_bytes(shorter: Any, longer: Any) -> int:
    """Bytes of the tensors of the state that has read more ids which are larger than in the
    other."""
    pairs = zip(tensors_of(shorter), tensors_of(longer), strict=True)
    return sum(after.nbytes for before, after in pairs if before.shape != after.shape)


def _with(state: Any, tensors: Iterable[Tensor]) -> Any:
    """A copy of a state with its tensors replaced by these."""
    replaced = iter(tensors)
    return _mapped(state, lambda _: next(replaced), {})


def _mapped(state: Any, change: Callable[[Tensor], Tensor], copies: dict[int, Any]) -> Any:
    """A copy of a state, its tensors replaced; an object that occurs twice in it is one object in
    the copy (`made`), too."""
    if id(state) in copies:
        return copies[id(state)]
    copied = state
    if isinstance(state, torch.Tensor):
        copied = change(state)
    elif isinstance(state, tuple):
        parts = [_mapped(part, change, copies) for part in state]
        copied = type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    elif isinstance(state, list | dict):
        copied = copy.copy(state)
        for key in range(len(state)) if isinstance(state, list) else state:
            copied[key] = _mapped(state[key], change, copies)
    elif hasattr(state, "__dict__") and not callable(state):
        copied = copies[id(state)] = copy.copy(state)
        vars(copied).update(
            {name: _mapped(value, change, copies) for name, value in vars(state).items()},
        )
    copies[id(state)] = copied
    return copied


def _join(parts: Sequence[Tensor], axis: int) -> Tensor:
    shapes = [part.shape for part in parts]
    sizes = [max(sizes) for sizes in zip(*shapes, strict=True)]
    return torch.cat(
        [_padded(part, [*sizes[:axis], part.shape[axis], *sizes[axis + 1 :]]) for part in parts],
        axis,
    )


def _padded(part: Tensor, sizes: Sequence[int]) -> Tensor:
    """A tensor of these sizes with zeros at the left."""
    before = [(size - had, 0) for size, had in zip(sizes, part.shape, strict=True)]
    if tuple(sizes) == part.shape:
        return part
    # torch pads the last axis first.
    return torch.nn.functional.pad(part, list(itertools.chain(*reversed(before))))


def _take(tensor: Tensor, axis: int | None, rows: Sequence[int]) -> Tensor:
    if axis is None:
        return tensor.clone()
    return tensor.index_select(axis, torch.tensor(rows, device=tensor.device))
