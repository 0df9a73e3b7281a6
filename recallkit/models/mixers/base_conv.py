"""BaseConv: the convolution that Zoology reduces gated convolutions to, and the one in the Based
checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional

from recallkit.models.mixers.api import Mixer, State, applied, linear_flops
from recallkit.models.mixers.filters import FilterConv, ImplicitFilter
from recallkit.models.mixers.short_conv import ShortConv

if TYPE_CHECKING:
    from torch import Tensor


class BaseConv(Mixer):
    """y = (u W + b1) * (h conv u + b2), * element by element (Zoology, arXiv 2312.04927, section 4:
    the definition of BaseConv).

    The filter h is a network of its positions ("implicit") or a few taps ("short", `kernel` of
    them; `max_length` is then ignored). `frequency`, `fast_decay` and `slow_decay` are those of an
    implicit filter (see `ImplicitFilter`); Zoology's language models have 14, 0.3 and 1.2 (table
    15). b1 and b2 are one number per channel; the definition has one per position, too.
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
    ) -> None:
        super().__init__(d_model)
        if filter not in ("implicit", "short"):
            raise ValueError(f"BaseConv's filter is implicit or short, not {filter}")
        self.gate = nn.Linear(d_model, d_model)
        self.conv: ShortConv | FilterConv
        if filter == "short":
            self.conv = ShortConv(d_model, kernel)
        else:
            options = {"frequency": frequency, "fast_decay": fast_decay, "slow_decay": slow_decay}
            filters = ImplicitFilter(d_model, max_length, **options)
            self.conv = FilterConv(filters, bias=True)
            self.max_length = max_length

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.forward`. Raises ValueError for more tokens than `max_length`."""
        gate = applied(self.gate, u)
        if isinstance(self.conv, ShortConv):
            return applied(self.conv, u, gate=gate)
        return gate * applied(self.conv, u)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        return applied(self.gate, u) * self.conv.reference(u)

    def initial_state(self, batch: int) -> State:
        """That of the convolution, or the inputs within reach of a short one."""
        state = self.conv.initial_state(batch)
        return state if isinstance(state, dict) else {"inputs": state}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`. Raises ValueError as `forward` does."""
        gate = applied(self.gate, u)
        if isinstance(self.conv, ShortConv):
            y, inputs = self.conv.read(u, state["inputs"], gate=gate)
            return y, {"inputs": inputs}
        mixed, after = self.conv.read(u, state)
        return gate * mixed, after

    def state_size(self, t: int) -> int:
        """d kernel for a short filter and d t for a long one, as Zoology's code counts them."""
        return self.conv.state_size() if isinstance(self.conv, ShortConv) else self.d_model * t

    def flops(self, t: int) -> int:
        """Of our forward: the projection, the convolution, their product, as Zoology counts
        BaseConv."""
        return linear_flops(t, self.gate) + self.conv.flops(t) + t * self.d_model


class GatedShortConv(Mixer):
    """y = out_proj(silu(conv(u1)) * u2), [u1, u2] = in_proj(u), conv a short convolution without
    bias.

    The BaseConv of the Based code and checkpoints (Based, arXiv 2402.18668,
    `based/models/mixers/convolution.py`): there in_proj maps d to 4 d, so each half and the
    convolution have 2 d channels (`expand` 2). Parameters `in_proj.{weight,bias}` (2 expand d, d),
    `conv.conv.weight` (expand d, 1, kernel), `out_proj.{weight,bias}` (d, expand d).
    """

    def __init__(
        self,
        d_model: int,
        *,
        kernel: int = 3,
        expand: int = 2,
        bias: bool = True,
    ) -> None:
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
        linear = linear_flops(t, self.in_proj, self.out_proj)
        return linear + self.conv.flops(t) + 5 * t * self.width
