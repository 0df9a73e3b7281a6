"""BaseConv: the convolution that Zoology reduces gated convolutions to, and the one in the Based checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.models.mixers.api import Mixer, State, applied, linear_flops
from recallkit.models.mixers.filters import FILTERS, FilterConv, make_filter
from recallkit.models.mixers.short_conv import ShortConv

if TYPE_CHECKING:
    from torch import Tensor


class BaseConv(Mixer):
    """y = (u W + b1) * (h conv u + b2), * element by element (Zoology, arXiv 2312.04927, section 4: the definition of BaseConv).

    The filter h is a network of its positions ("implicit", or "relu" as in Zoology's listing 2), parameters ("explicit") or a few
    taps ("short", `kernel` of them; `max_length` is then ignored). `frequency`, `fast_decay` and `slow_decay` are those of an
    implicit filter (see `ImplicitFilter`); Zoology's language models have 14, 0.3 and 1.2 (table 15). Zoology's code differs by
    options: activation "silu" on both factors, and `residual`, which adds u to y within the mixer.

    b1 and b2 are one number per channel; with `position_bias` also one per position, (`max_length`, d) as in the definition. They are
    zero at first, and the tokens read, `seen` (b,), are then part of the state.
    """

    def __init__(
        self,
        d_model: int,
        *,
        filter: str = "implicit",  # noqa: A002
        kernel: int = 3,
        max_length: int = 2048,
        frequency: float = 1.0,
        fast_decay: float = 0.3,
        slow_decay: float = 1.5,
        activation: str | None = None,
        residual: bool = False,
        position_bias: bool = False,
    ) -> None:
        super().__init__(d_model)
        if filter != "short" and filter not in FILTERS:
            raise ValueError(f"BaseConv's filter is one of {', '.join(FILTERS)}, short, not {filter}")
        if activation not in (None, "silu"):
            raise ValueError(f"BaseConv's activation is silu or none, not {activation}")
        self.gate = nn.Linear(d_model, d_model, bias=not position_bias)
        self.conv: ShortConv | FilterConv
        if filter == "short":
            self.conv = ShortConv(d_model, kernel, bias=not position_bias)
        else:
            options = {"frequency": frequency, "fast_decay": fast_decay, "slow_decay": slow_decay} if filter == "implicit" else {}
            self.conv = FilterConv(make_filter(filter, d_model, max_length, **options), bias=not position_bias)
        if filter != "short" or position_bias:
            self.max_length = max_length
        self.gate_bias, self.conv_bias = (nn.Parameter(torch.zeros(max_length, d_model)) if position_bias else None for _ in range(2))
        self.activation, self.residual = activation, residual

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.forward`. Raises ValueError for more tokens than `max_length`."""
        if isinstance(self.conv, ShortConv) and self.gate_bias is None:
            return self._with_input(u, self.conv(u, activation=self.activation, gate=self._gate(u)))
        return self._gated(u, applied(self.conv, u), self._first_positions(u))

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        return self._gated(u, self.conv.reference(u), self._first_positions(u))

    def initial_state(self, batch: int) -> State:
        """That of the convolution, or the inputs within reach of a short one; and how many there were, `seen`, with `position_bias`."""
        state = {"inputs": self.conv.initial_state(batch)} if isinstance(self.conv, ShortConv) else self.conv.initial_state(batch)
        if self.gate_bias is not None:
            state["seen"] = torch.zeros(batch, dtype=torch.int64, device=self.gate_bias.device)
        return state

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`. Raises ValueError as `forward` does."""
        if isinstance(self.conv, ShortConv) and self.gate_bias is None:
            gated, inputs = self.conv.read(u, state["inputs"], activation=self.activation, gate=self._gate(u))
            return self._with_input(u, gated), {"inputs": inputs}
        if isinstance(self.conv, ShortConv):
            mixed, inputs = self.conv.read(u, state["inputs"])
            after = {"inputs": inputs}
        else:
            mixed, after = self.conv.read(u, state)
        if self.gate_bias is None:
            return self._gated(u, mixed), after
        positions = state["seen"][:, None] + torch.arange(u.shape[1], device=u.device)
        return self._gated(u, mixed, positions), after | {"seen": state["seen"] + u.shape[1]}

    def state_size(self, t: int) -> int:
        """d kernel for a short filter and d t for a long one, as Zoology's code counts them."""
        return self.conv.state_size() if isinstance(self.conv, ShortConv) else self.d_model * t

    def flops(self, t: int) -> int:
        """Of our forward: the projection, the convolution, their product, as Zoology counts BaseConv; no activation, no residual."""
        biases = 0 if self.gate_bias is None else 2
        return linear_flops(t, self.gate) + self.conv.flops(t) + (1 + biases) * t * self.d_model

    def _gated(self, u: Tensor, mixed: Tensor, positions: Tensor | None = None) -> Tensor:
        """positions: (t,) or (b, t), with `position_bias`."""
        if self.conv_bias is not None and positions is not None:
            mixed = mixed + self._of_positions(self.conv_bias, positions).to(mixed.dtype)
        return self._with_input(u, self._gate(u, positions) * (functional.silu(mixed) if self.activation == "silu" else mixed))

    def _gate(self, u: Tensor, positions: Tensor | None = None) -> Tensor:
        gate: Tensor = self.gate(u)
        if self.gate_bias is not None and positions is not None:
            gate = gate + self._of_positions(self.gate_bias, positions).to(gate.dtype)
        return functional.silu(gate) if self.activation == "silu" else gate

    def _of_positions(self, bias: Tensor, positions: Tensor) -> Tensor:
        if int(positions.max()) >= len(bias):
            raise ValueError(f"{int(positions.max()) + 1} tokens are more than the biases' max_length {len(bias)}")
        return bias[positions]

    def _first_positions(self, u: Tensor) -> Tensor | None:
        return None if self.gate_bias is None else torch.arange(u.shape[1], device=u.device)

    def _with_input(self, u: Tensor, gated: Tensor) -> Tensor:
        return gated + u if self.residual else gated


class GatedShortConv(Mixer):
    """y = out_proj(silu(conv(u1)) * u2), [u1, u2] = in_proj(u), conv a short convolution without bias.

    The BaseConv of the Based code and checkpoints (Based, arXiv 2402.18668, `based/models/mixers/convolution.py`): there
    in_proj maps d to 4 d, so each half and the convolution have 2 d channels (`expand` 2). Parameters `in_proj.{weight,bias}`
    (2 expand d, d), `conv.conv.weight` (expand d, 1, kernel), `out_proj.{weight,bias}` (d, expand d).
    """

    def __init__(self, d_model: int, *, kernel: int = 3, expand: int = 2, bias: bool = True) -> None:
        super().__init__(d_model)
        if expand < 1:
            raise ValueError(f"GatedShortConv's expand is at least 1, not {expand}")
        self.width = expand * d_model
        self.in_proj = nn.Linear(d_model, 2 * self.width, bias=bias)
        self.conv = ShortConv(self.width, kernel, bias=False)
        self.out_proj = nn.Linear(self.width, d_model, bias=bias)

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        mixed, gate = self.in_proj(u).chunk(2, dim=-1)
        return applied(self.out_proj, self.conv(mixed, activation="silu", gate=gate))

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        mixed, gate = self.in_proj(u).chunk(2, dim=-1)
        return applied(self.out_proj, functional.silu(self.conv.reference(mixed)) * gate)

    def initial_state(self, batch: int) -> State:
        """The last inputs, within reach of the convolution."""
        return {"inputs": self.conv.initial_state(batch)}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        mixed, gate = self.in_proj(u).chunk(2, dim=-1)
        gated, inputs = self.conv.read(mixed, state["inputs"], activation="silu", gate=gate)
        return self.out_proj(gated), {"inputs": inputs}

    def state_size(self, t: int) -> int:
        """Kernel x channels, as the Based code allocates it."""
        return self.conv.state_size()

    def flops(self, t: int) -> int:
        """Of our forward: projections, convolution, four for each silu, the product."""
        return linear_flops(t, self.in_proj, self.out_proj) + self.conv.flops(t) + 5 * t * self.width
