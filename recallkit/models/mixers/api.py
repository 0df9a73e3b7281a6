"""What every sequence mixer gives: a causal map of a sequence, in parallel or a token at a time, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

State = dict[str, "Tensor"]
"""What a mixer remembers of the tokens so far: tensors with the batch first, so that rows can be joined and taken.

What grows with the tokens read grows along one axis, the latest last; an entry that a row lacks is zeros at the left.
"""


class Mixer(nn.Module):
    """A causal sequence mixer (b, t, d) -> (b, t, d): output i depends on inputs 0..i of its own row alone.

    `forward` is the fast way, `reference` the readable one, `step` the recurrent one: all three give the same values.
    """

    needs_ids: ClassVar[bool] = False
    """Whether what is mixed depends on the token ids, too (repeated tokens): they are then given as `ids`."""
    max_length: int | None = None
    """Most tokens of a sequence, where a filter is that long; None where there is no limit."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """u: (b, t, d), ids: (b, t) int64 -> (b, t, d), at once for all t."""
        raise NotImplementedError

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """The same, written as the equation is, in the precision of `u` and the parameters."""
        raise NotImplementedError

    def initial_state(self, batch: int) -> State:
        """The state before the first token."""
        raise NotImplementedError

    def step(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """u: (b, d), the next token of each row, ids: (b,) -> its output (b, d) and a new state; `state` is unchanged."""
        raise NotImplementedError

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """u: (b, t, d), the next t >= 1 tokens of each row -> their outputs (b, t, d) and a new state; `state` is unchanged."""
        outputs = []
        for i in range(u.shape[1]):
            y, state = self.step(u[:, i], state, None if ids is None else ids[:, i])
            outputs.append(y)
        return torch.stack(outputs, dim=1), state

    def state_size(self, t: int) -> int:
        """Elements that the state of one sequence holds after t tokens, as the papers count them."""
        raise NotImplementedError

    def flops(self, t: int) -> int:
        """Floating-point operations of `forward` on one sequence of t tokens: a multiplication and an addition are two."""
        raise NotImplementedError

    def auxiliary_loss(self) -> Tensor | None:
        """What the last `forward` adds to the training loss (a scalar), where learning to select needs it; else None."""
        return None


def linear_flops(t: int, *layers: nn.Module) -> int:
    """Operations of linear layers applied to each of t tokens: two for each weight, one for each bias."""
    total = 0
    for layer in layers:
        assert isinstance(layer, nn.Linear)
        total += t * layer.out_features * (2 * layer.in_features + (layer.bias is not None))
    return total
