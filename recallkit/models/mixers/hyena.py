"""Hyena: a long convolution with an implicit filter between gates, on projections smoothed by a
short convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from recallkit.kernels.long_conv.api import long_conv
from recallkit.models.mixers.api import (
    Mixer,
    State,
    applied,
    constant_taps,
    conv_flops,
    linear_flops,
    widened,
)
from recallkit.models.mixers.filters import ImplicitFilter
from recallkit.models.mixers.short_conv import ShortConv

if TYPE_CHECKING:
    from torch import Tensor


class Hyena(Mixer):
    """y = out_proj(x_2 * (h conv z + D z)), z = x_1 * v  (arXiv 2302.10866, definition 3.1).

    [x_2, x_1, v] = short_conv(in_proj(u)), each channel smoothed by `short_kernel` taps. This is
    order 2 as the authors' code has it, where the first gate also precedes the convolution; Zoology
    and Based use no other. `frequency`, `fast_decay` and `slow_decay` are the filter's (see
    `ImplicitFilter`).
    """

    def __init__(
        self,
        d_model: int,
        *,
        max_length: int = 2048,
        short_kernel: int = 3,
        frequency: float = 1.0,
        fast_decay: float = 0.3,
        slow_decay: float = 1.5,
    ) -> None:
        super().__init__(d_model)
        self.max_length = max_length
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.short_conv = ShortConv(3 * d_model, short_kernel)
        options = {"frequency": frequency, "fast_decay": fast_decay, "slow_decay": slow_decay}
        self.filters = ImplicitFilter(d_model, max_length, **options)
        self.skip = nn.Parameter(torch.randn(1, d_model))  # an axis of orders, as in checkpoints
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.forward`. Raises ValueError for more tokens than `max_length`."""
        outer, inner, v = self.short_conv(self.in_proj(u)).chunk(3, dim=-1)
        taps = constant_taps(self.filters, self.filters, u.shape[1])
        gates: Any = {"in_gate": inner, "out_gate": outer}
        y = long_conv(v, taps, skip=self.skip[0], out_dtype=v.dtype, **gates)
        return applied(self.out_proj, y)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        outer, inner, v = self.short_conv.reference(self.in_proj(u)).chunk(3, dim=-1)
        z = inner * v
        convolved = long_conv(z, self.filters(u.shape[1]), out_dtype=z.dtype, impl="reference")
        return applied(self.out_proj, outer * (convolved + self.skip[0] * z))

    def initial_state(self, batch: int) -> State:
        """The last inputs, within reach of the short convolution, all inputs of the long one
        (b, T, d), and all its taps."""
        taps = self.filters(self.max_length)
        inputs = taps.new_zeros(batch, 0, self.d_model)
        return {"short": self.short_conv.initial_state(batch), "inputs": inputs, "taps": taps}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        parts, short = self.short_conv.read(self.in_proj(u), state["short"])
        outer, inner, v = parts.chunk(3, dim=-1)
        history, taps = state["inputs"], state["taps"]
        z = (widened(inner) * widened(v)).to(history.dtype)
        inputs = torch.cat([history, z], dim=1)
        self.filters.check_length(inputs.shape[1])
        # The first inputs stay in their narrow type, so that a kernel can be used.
        text = inputs if history.shape[1] else inputs.to(v.dtype)
        options: Any = {"skip": self.skip[0], "last": u.shape[1], "out_dtype": v.dtype}
        y = long_conv(text, taps[:, : inputs.shape[1]], **options)
        after = {"short": short, "inputs": inputs, "taps": taps}
        return applied(self.out_proj, outer * y), after

    def state_size(self, t: int) -> int:
        """d t, as Zoology's code counts it; it does not count the history of the short
        convolution."""
        return self.d_model * t

    def flops(self, t: int) -> int:
        """Of our forward: projections, short convolution, filter, long convolution, skip, gates."""
        convolutions = self.short_conv.flops(t) + self.filters.flops(t)
        convolutions += conv_flops(t, t, self.d_model)
        linear = linear_flops(t, self.in_proj, self.out_proj)
        return linear + convolutions + 4 * t * self.d_model
