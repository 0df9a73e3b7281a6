"""Hyena: long convolutions with implicit filters between gates, on projections smoothed by a short convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from recallkit.kernels.long_conv.api import long_conv
from recallkit.models.mixers.api import Mixer, State, applied, constant_taps, conv_flops, linear_flops, widened
from recallkit.models.mixers.filters import ImplicitFilter
from recallkit.models.mixers.short_conv import ShortConv

if TYPE_CHECKING:
    from torch import Tensor


class Hyena(Mixer):
    """z_0 = v;  z_n = x_n * (h_n conv z_{n-1} + D_n z_{n-1}), n = 1..N;  y = out_proj(z_N)  (arXiv 2302.10866, definition 3.1).

    [x_N, ..., x_1, v] = short_conv(in_proj(u)): N + 1 projections, each channel smoothed by `short_kernel` taps. As in the
    authors' code, the first gate also precedes a convolution, so that N = `order` projections gate N - 1 long
    convolutions: z_n = h_n conv (x_n * z_{n-1}) + D_n (x_n * z_{n-1}) for n = 1..N-1, and y = out_proj(x_N * z_{N-1}). At
    order 2 this is H3's form: y = out_proj(x_2 * (h conv (x_1 * v) + D (x_1 * v))). `features`, `width`, `layers`,
    `frequency`, `fast_decay` and `slow_decay` are the filters' (see `ImplicitFilter`).
    """

    def __init__(
        self,
        d_model: int,
        *,
        order: int = 2,
        max_length: int = 2048,
        short_kernel: int = 3,
        features: int = 3,
        width: int = 64,
        layers: int = 2,
        frequency: float = 1.0,
        fast_decay: float = 0.3,
        slow_decay: float = 1.5,
    ) -> None:
        super().__init__(d_model)
        if order < 2:
            raise ValueError(f"Hyena's order is at least 2, not {order}")
        self.order, self.max_length = order, max_length
        self.in_proj = nn.Linear(d_model, (order + 1) * d_model)
        self.short_conv = ShortConv((order + 1) * d_model, short_kernel)
        self.filters = ImplicitFilter(
            (order - 1) * d_model,
            max_length,
            features=features,
            width=width,
            layers=layers,
            frequency=frequency,
            fast_decay=fast_decay,
            slow_decay=slow_decay,
        )
        self.skip = nn.Parameter(torch.randn(order - 1, d_model))
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.forward`. Raises ValueError for more tokens than `max_length`."""
        *gates, z = self._parts(self.short_conv(self.in_proj(u)))
        taps = constant_taps(self.filters, self.filters, u.shape[1])
        filters, last = self._by_order(taps), self.order - 2
        for n, gate in enumerate(reversed(gates[1:])):
            out_gate = gates[0] if n == last else None
            z = long_conv(z, filters[n], skip=self.skip[n], in_gate=gate, out_gate=out_gate, out_dtype=z.dtype)
        return applied(self.out_proj, z)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        *gates, z = self._parts(self.short_conv.reference(self.in_proj(u)))
        for gate, taps, skip in zip(reversed(gates[1:]), self._by_order(self.filters(u.shape[1])), self.skip, strict=True):
            z = gate * z
            z = long_conv(z, taps, out_dtype=z.dtype, impl="reference") + skip * z
        return applied(self.out_proj, gates[0] * z)

    def initial_state(self, batch: int) -> State:
        """The last inputs, within reach of the short convolution, all inputs of each long one (b, order - 1, T, d), and all its taps."""
        taps = self.filters(self.max_length)
        inputs = taps.new_zeros(batch, self.order - 1, 0, self.d_model)
        return {"short": self.short_conv.initial_state(batch), "inputs": inputs, "taps": taps}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        parts, short = self.short_conv.read(self.in_proj(u), state["short"])
        *gates, z = self._parts(parts)
        history, inputs = state["inputs"], []
        length = history.shape[2] + u.shape[1]
        self.filters.check_length(length)
        filters = self._by_order(state["taps"][:, :length])
        for n, gate in enumerate(reversed(gates[1:])):
            inputs.append(torch.cat([history[:, n], (widened(gate) * widened(z)).to(history.dtype)], dim=1))
            # The first inputs stay in their narrow type, so that a kernel can be used.
            whole = inputs[-1] if history.shape[2] else inputs[-1].to(z.dtype)
            z = long_conv(whole, filters[n], skip=self.skip[n], last=u.shape[1], out_dtype=z.dtype)
        return self.out_proj(gates[0] * z), {"short": short, "inputs": torch.stack(inputs, dim=1), "taps": state["taps"]}

    def state_size(self, t: int) -> int:
        """(order - 1) d t, as Zoology's code counts its order of two; neither counts the history of the short convolution."""
        return (self.order - 1) * self.d_model * t

    def flops(self, t: int) -> int:
        """Of our forward: projections, short convolution, filters, long convolutions, skips and gates."""
        convolutions = (self.order - 1) * (conv_flops(t, t, self.d_model) + 2 * t * self.d_model)
        gates = self.order * t * self.d_model
        return linear_flops(t, self.in_proj, self.out_proj) + self.short_conv.flops(t) + self.filters.flops(t) + convolutions + gates

    def _by_order(self, taps: Tensor) -> Tensor:
        """One network computes the filters of all orders, interleaved by channel: ((order - 1) d, t) -> (order - 1, d, t)."""
        return torch.unflatten(taps, 0, (self.d_model, self.order - 1)).transpose(0, 1)

    def _parts(self, projected: Tensor) -> tuple[Tensor, ...]:
        """(b, t, (order + 1) d) -> the gates x_N, ..., x_1 and v, each (b, t, d)."""
        return projected.chunk(self.order + 1, dim=-1)
