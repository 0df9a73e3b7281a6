"""RetNet's multi-scale retention: linear attention whose heads forget at fixed rates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.recurrences.api import decayed_attention
from recallkit.models.mixers.api import (
    HeadRecurrence,
    State,
    applied,
    chunk_pairs,
    chunk_sizes,
    head_widths,
    linear_flops,
    widened,
)
from recallkit.models.mixers.linear_attention import log_decays
from recallkit.models.mixers.rotary import rotate
from recallkit.models.mixers.short_conv import (
    convolution_flops,
    initial_history,
    make_short_conv,
    read_convolved,
)

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.choice import Impl

DECAY_EXPONENT = 5


class RetNet(HeadRecurrence):
    """Multi-scale retention (arXiv 2307.08621, equations 5 to 8), heads h with q, k of d/h entries
    and v of `value_factor` d/h.

        S_i = g S_i-1 + k_i^T v_i,  o_i = q_i S_i = sum_j<=i g^(i-j) (q_i.k_j) v_j
        g = 1 - 2^(-5 - head),  y = (swish(W_g u) * norm(o)) W_o
        q and k rotated by their positions, k divided by sqrt(d/h)

    As in the authors' code (torchscale) the norm of each head is a root mean square without weights
    (GroupNorm in the paper), and the frequencies of the rotation are 10000^(-i/(n-1)), i < n =
    d/2h; with `rope_base` B, as fla has it, B^(-i/n). Their division of the scores by row sums is
    left out: the norm undoes it, which is why they call the output invariant to it. `short_conv`
    (not theirs, off by default) applies a causal convolution of that many taps to every channel of
    q, k and v; its last inputs, `recent`, are then part of the state.
    """

    chunk = 128

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int = 4,
        value_factor: float = 2.0,
        eps: float = 1e-6,
        short_conv: int = 0,
        rope_base: float | None = None,
    ) -> None:
        if num_heads < 1 or d_model % (2 * num_heads):
            raise ValueError(f"d_model {d_model} is not a multiple of twice num_heads {num_heads}")
        widths = _, values = head_widths(d_model, num_heads, 1.0, value_factor)
        super().__init__(d_model, num_heads, widths)
        self.eps, half = eps, self.key_dim // 2
        self.base = math.pow(10000, half / max(1, half - 1)) if rope_base is None else rope_base
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, values, bias=False)
        self.g_proj = nn.Linear(d_model, values, bias=False)
        self.out_proj = nn.Linear(values, d_model, bias=False)
        self.short_conv = make_short_conv(2 * d_model + values, short_conv)

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: S (b, h, k, v) as `kv`, and the tokens read, `num_read`."""
        device = self.out_proj.weight.device
        state = super().initial_state(batch)
        state["num_read"] = torch.zeros(batch, dtype=torch.int64, device=device)
        return state | initial_history(self.short_conv, batch)

    def mix(self, u: Tensor, state: State, impl: Impl = "auto") -> tuple[Tensor, State]:
        """See `Recurrence.mix`: chunk by chunk."""
        z = torch.cat([project(u) for project in (self.q_proj, self.k_proj, self.v_proj)], dim=-1)
        z, recent = read_convolved(self.short_conv, z, state)
        widths = [self.d_model, self.d_model, self.num_heads * self.value_dim]
        q, k, v = map(self.by_head, torch.split(z, widths, dim=-1))
        positions = torch.arange(u.shape[1], device=u.device)
        if state:
            positions = state["num_read"][:, None] + positions
            recent["num_read"] = state["num_read"] + u.shape[1]
        q, k = (rotate(x, positions, base=self.base, width=self.key_dim) for x in (q, k))
        log_decay = log_decays(self.num_heads, DECAY_EXPONENT, widened(q))
        o, kv = decayed_attention(
            *(q, k, v, log_decay, state.get("kv")),
            scale=1 / math.sqrt(self.key_dim),
            chunk=self.chunk,
            impl=impl,
        )
        return self._merge(o, u), {"kv": kv} | recent

    def flops(self, t: int) -> int:
        """Of `forward`: rotations, pairs of each chunk, products with S where there are chunks
        before or after; norm and gate."""
        sizes, keys, values = chunk_sizes(t, self.chunk), self.key_dim, self.value_dim
        product = 2 * keys * values
        mixing = t * (7 * keys + 8 * values)
        mixing += chunk_pairs(t, self.chunk) * (2 * keys + 1 + 2 * values)
        mixing += (t - sizes[0]) * (product + keys + values) + (t - sizes[-1]) * (product + keys)
        mixing += max(len(sizes) - 2, 0) * product
        layers = (self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.out_proj)
        convolution = convolution_flops(self.short_conv, t)
        return linear_flops(t, *layers) + convolution + self.num_heads * mixing

    def _merge(self, o: Tensor, u: Tensor) -> Tensor:
        """The heads' outputs (b, h, t, v), each normalised, gated by u and projected."""
        o = widened(o)
        normed = o * torch.rsqrt(o.square().mean(dim=-1, keepdim=True) + self.eps)
        gate = functional.silu(self.g_proj(u))
        joined = normed.transpose(1, 2).flatten(start_dim=2)
        return applied(self.out_proj, gate * joined.to(gate.dtype))
