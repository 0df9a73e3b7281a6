"""GSS: a diagonal state space in a narrow space, gated in a wide one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.models.mixers.api import applied, linear_flops
from recallkit.models.mixers.s4d import DiagonalSSM, StateSpaceMixer

if TYPE_CHECKING:
    from torch import Tensor


class GSS(StateSpaceMixer):
    """y = out_proj((widen(k conv w + D w)) * gelu(gate(u))), w = norm(gelu(narrow(u)))  (arXiv
        2206.13947, section 3, figure 1).

    narrow maps d to `width` channels (d / 4), gate and widen map to `expand` d, out_proj back to d;
    norm is a layer norm. k is the kernel of the simplified DSS: `state` poles that all channels
    share, without conjugates, a step of 1, initialised with random poles; see `DiagonalSSM`. The
    norm before and the residual after it, part of the paper's layer, are in the block here.
    """

    def __init__(
        self,
        d_model: int,
        *,
        state: int = 512,
        width: int | None = None,
        expand: int = 4,
    ) -> None:
        super().__init__(d_model)
        self.width = max(d_model // 4, 1) if width is None else width
        if self.width < 1 or expand < 1:
            raise ValueError(
                f"GSS has a width and an expand of at least 1, not {width} and {expand}",
            )
        self.narrow = nn.Linear(d_model, self.width, bias=False)
        self.gate = nn.Linear(d_model, expand * d_model, bias=False)
        self.norm = nn.LayerNorm(self.width)
        self.ssm = DiagonalSSM(self.width, state, simplified=True)
        self.skip = nn.Parameter(torch.randn(self.width))
        self.widen = nn.Linear(self.width, expand * d_model, bias=False)
        self.out_proj = nn.Linear(expand * d_model, d_model, bias=False)

    def flops(self, t: int) -> int:
        """Of our forward: projections, eight for each gelu and the norm, kernel, convolution, skip,
        gate."""
        gate_width = self.gate.out_features
        projections = linear_flops(t, self.narrow, self.gate, self.widen, self.out_proj)
        pointwise = t * ((8 + 8 + 2) * self.width + (8 + 1) * gate_width)
        return projections + self.ssm.flops(t) + pointwise

    def inputs(self, u: Tensor) -> Tensor:
        return applied(self.norm, functional.gelu(self.narrow(u)))

    def outputs(self, mixed: Tensor, w: Tensor, u: Tensor) -> Tensor:
        gate = functional.gelu(self.gate(u))
        return applied(self.out_proj, self.widen((mixed + self.skip * w).to(gate.dtype)) * gate)
