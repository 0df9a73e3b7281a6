"""H3: a shift and a diagonal state space model between three projections, multiplied like a linear
attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from recallkit.kernels.long_conv.api import long_conv
from recallkit.models.mixers.api import Mixer, State, applied, conv_flops, linear_flops, widened
from recallkit.models.mixers.s4d import DiagonalSSM, check_even

if TYPE_CHECKING:
    from torch import Tensor


class H3(Mixer):
    """y = out_proj(q * ssm_diag(ssm_shift(k) * v)), q, k, v projections of u (arXiv 2212.14052,
    section 3, algorithm 1).

    Of each head of p = `head_dim` channels, at each token:

        K' = shift(K) (p),   M = K' V^T (p, p),   S = diag(M) + D M,   y = Q^T S (p)

    diag: the head's diagonal state space (`state` / 2 poles with their conjugates, bilinear) on
    each entry.
    shift: its state is the last `state` inputs (B = e_1), so it is a convolution with `state`
    learned taps C, plus a skip.
    """

    def __init__(self, d_model: int, *, state: int = 64, head_dim: int = 1) -> None:
        super().__init__(d_model)
        if head_dim < 1 or d_model % head_dim:
            raise ValueError(f"H3's head_dim {head_dim} does not divide d_model {d_model}")
        check_even(state)
        self.state, self.head_dim, self.num_heads = state, head_dim, d_model // head_dim
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d_model, d_model) for _ in range(3))
        bound = 1 / math.sqrt(state)
        self.shift = nn.Parameter(torch.empty(d_model, state).uniform_(-bound, bound))
        self.shift_skip = nn.Parameter(torch.randn(d_model))
        self.ssm = DiagonalSSM(self.num_heads, state // 2, discretization="bilinear")
        self.skip = nn.Parameter(torch.randn(self.num_heads))
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        k = self.k_proj(u)
        products = self._products(
            long_conv(k, self.shift, skip=self.shift_skip, out_dtype=k.dtype),
            u,
        )
        return self._queried(self.ssm(products.flatten(0, 2)).view_as(products), products, u)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        k = self.k_proj(u)
        products = self._products(
            long_conv(k, self.shift, skip=self.shift_skip, impl="reference"),
            u,
        )
        return self._queried(
            self.ssm.reference(products.flatten(0, 2)).view_as(products),
            products,
            u,
        )

    def initial_state(self, batch: int) -> State:
        """The last keys, within reach of the shift (b, state - 1, d), and each entry's poles' sums
        (b, p, p, h, poles, 2)."""
        weight = widened(self.shift)
        return {
            "keys": weight.new_zeros(batch, self.state - 1, self.d_model),
            "poles": self.ssm.initial_state(batch, self.head_dim, self.head_dim),
        }

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        k = self.k_proj(u)
        keys = torch.cat([state["keys"], k.to(state["keys"].dtype)], dim=1)
        # Keys are kept in a wider type than the inputs': a kernel needs them in the narrow one
        # again.
        shifted = long_conv(
            keys.to(k.dtype),
            self.shift,
            skip=self.shift_skip,
            last=u.shape[1],
            out_dtype=k.dtype,
        )
        products = self._products(shifted, u)
        mixed, poles = self.ssm.read(products.flatten(0, 2), state["poles"].flatten(0, 2))
        y = self._queried(mixed.view_as(products), products, u)
        return y, {"keys": keys[:, u.shape[1] :], "poles": poles.view_as(state["poles"])}

    def state_size(self, t: int) -> int:
        """d p `state`: the poles' sums, as Zoology's code counts them at p = 1; neither counts the
        shift's last keys."""
        return self.d_model * self.head_dim * self.state

    def flops(self, t: int) -> int:
        """Of our forward: projections, shift, outer products, their state spaces and skips,
        queries."""
        entries = t * self.d_model * self.head_dim
        shift = conv_flops(t, self.state, self.d_model) + 2 * t * self.d_model
        projections = linear_flops(t, self.q_proj, self.k_proj, self.v_proj, self.out_proj)
        return projections + shift + self.ssm.flops(t, self.head_dim**2) + 5 * entries

    def _products(self, shifted: Tensor, u: Tensor) -> Tensor:
        """The outer products of the shifted keys with the values: (b, p, p, t, h)."""
        keys = self._by_head(shifted)
        return keys.unsqueeze(2) * self._by_head(self.v_proj(u)).unsqueeze(1)

    def _queried(self, mixed: Tensor, products: Tensor, u: Tensor) -> Tensor:
        """mixed: (b, p, p, t, h), the state spaces' outputs -> (b, t, d)."""
        q = self.q_proj(u)
        answers = (self._by_head(q).unsqueeze(2) * (mixed + self.skip * products)).sum(1)
        return applied(self.out_proj, answers.permute(0, 2, 3, 1).flatten(2).to(q.dtype))

    def _by_head(self, x: Tensor) -> Tensor:
        """(b, t, d) -> (b, p, t, h): a head's channels are contiguous."""
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).permute(0, 3, 1, 2)
