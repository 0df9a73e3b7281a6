"""RetNet's multi-scale retention: linear attention whose heads forget at fixed rates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from recallkit.kernels.recurrences.api import decayed_attention
from recallkit.models.mixers.api import Mixer, State, applied, chunk_sizes, head_widths, linear_flops, widened
from recallkit.models.mixers.linear_attention import log_decays
from recallkit.models.mixers.rotary import rotate, rotate_reference
from recallkit.models.mixers.short_conv import ShortConv, read_convolved

if TYPE_CHECKING:
    from torch import Tensor

DECAY_EXPONENT = 5


class RetNet(Mixer):
    """Multi-scale retention (arXiv 2307.08621, equations 5 to 8), heads h with q, k of d/h entries and v of `value_factor` d/h.

        S_i = g S_i-1 + k_i^T v_i,  o_i = q_i S_i = sum_j<=i g^(i-j) (q_i.k_j) v_j,  g = 1 - 2^(-5 - head)
        y = (swish(W_g u) * norm(o)) W_o,  q and k rotated by their positions, k divided by sqrt(d/h)

    As in the authors' code (torchscale) the norm of each head is a root mean square without weights (GroupNorm in the
    paper), and the frequencies of the rotation are 10000^(-i/(n-1)), i < n = d/2h; with `rope_base` B, as fla has it, B^(-i/n).
    Their division of the scores by row sums is left out: the norm undoes it, which is why they call the output invariant to it.
    `short_conv` (not theirs, off by default) applies a causal convolution of that many taps to every channel of q, k and v; its last
    inputs, `recent`, are then part of the state.
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
        super().__init__(d_model)
        if num_heads < 1 or d_model % (2 * num_heads):
            raise ValueError(f"d_model {d_model} is not a multiple of twice num_heads {num_heads}")
        _, values = head_widths(d_model, num_heads, 1.0, value_factor)
        self.num_heads, self.eps = num_heads, eps
        self.key_dim, self.value_dim = d_model // num_heads, values // num_heads
        half = self.key_dim // 2
        self.base = math.pow(10000, half / max(1, half - 1)) if rope_base is None else rope_base
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, values, bias=False)
        self.g_proj = nn.Linear(d_model, values, bias=False)
        self.out_proj = nn.Linear(values, d_model, bias=False)
        self.short_conv = ShortConv(2 * d_model + values, short_conv, bias=False) if short_conv else None

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        z = self._project(u)
        q, k, v = self._split(z if self.short_conv is None else self.short_conv(z))
        o, _ = self._attend(q, k, v, torch.arange(u.shape[1], device=u.device), None)
        return self._merge(o, u)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: the recurrence, token by token."""
        z = self._project(u)
        q, k, v = self._split(widened(z if self.short_conv is None else self.short_conv.reference(z)))
        decays = (1 - 2.0 ** (-DECAY_EXPONENT - torch.arange(self.num_heads, dtype=q.dtype, device=u.device)))[:, None, None]
        state, outputs = q.new_zeros(u.shape[0], self.num_heads, self.key_dim, self.value_dim), []
        for i in range(u.shape[1]):
            q_i, k_i = (rotate_reference(x[:, :, i], i, base=self.base, width=self.key_dim) for x in (q, k))
            state = decays * state + k_i[..., :, None] / math.sqrt(self.key_dim) * v[:, :, i, None, :]
            outputs.append((q_i[..., None] * state).sum(dim=-2))
        return self._merge(torch.stack(outputs, dim=2), u)

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: S (b, h, k, v) as `kv`, and the tokens read, `seen`."""
        weight = self.out_proj.weight
        kv = widened(weight).new_zeros(batch, self.num_heads, self.key_dim, self.value_dim)
        state = {"kv": kv, "seen": torch.zeros(batch, dtype=torch.int64, device=weight.device)}
        return state if self.short_conv is None else state | {"recent": self.short_conv.initial_state(batch)}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`: chunk by chunk."""
        z, recent = read_convolved(self.short_conv, self._project(u), state)
        q, k, v = self._split(z)
        positions = state["seen"][:, None] + torch.arange(u.shape[1], device=u.device)
        o, kv = self._attend(q, k, v, positions, state["kv"])
        return self._merge(o, u), {"kv": kv, "seen": state["seen"] + u.shape[1]} | recent

    def state_size(self, t: int) -> int:
        """S of every head, d times the width of its values; for all t."""
        return self.d_model * self.value_dim

    def flops(self, t: int) -> int:
        """Of `forward`: rotations, pairs of each chunk, products with S where there are chunks before or after; norm and gate."""
        sizes = chunk_sizes(t, self.chunk)
        read, written, product = t - sizes[0], t - sizes[-1], 2 * self.key_dim * self.value_dim
        mixing = t * (7 * self.key_dim + 8 * self.value_dim)
        mixing += sum(size * (size + 1) // 2 for size in sizes) * (2 * self.key_dim + 1 + 2 * self.value_dim)
        mixing += read * (product + self.key_dim + self.value_dim) + written * (product + self.key_dim)
        mixing = self.num_heads * (mixing + max(len(sizes) - 2, 0) * product)
        convolution = 0 if self.short_conv is None else self.short_conv.flops(t)
        return linear_flops(t, self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.out_proj) + convolution + mixing

    def _project(self, u: Tensor) -> Tensor:
        """q, k and v concatenated, (b, t, channels)."""
        return torch.cat([project(u) for project in (self.q_proj, self.k_proj, self.v_proj)], dim=-1)

    def _split(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k: (b, h, t, k) and v: (b, h, t, v)."""
        widths = [self.d_model, self.d_model, self.num_heads * self.value_dim]
        q, k, v = (torch.unflatten(part, -1, (self.num_heads, -1)).transpose(1, 2) for part in torch.split(z, widths, dim=-1))
        return q, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """o of all tokens (b, h, t, v) and S after them; positions: (t,) or (b, t)."""
        q, k = (rotate(x, positions, base=self.base, width=self.key_dim) for x in (q, k))
        logs = log_decays(self.num_heads, DECAY_EXPONENT, widened(q))
        return decayed_attention(q, k, v, logs, state, scale=1 / math.sqrt(self.key_dim), chunk=self.chunk)

    def _merge(self, o: Tensor, u: Tensor) -> Tensor:
        """The heads' outputs (b, h, t, v), each normalised, gated by u and projected."""
        o = widened(o)
        normed = o * torch.rsqrt(o.square().mean(dim=-1, keepdim=True) + self.eps)
        gate = nn.functional.silu(self.g_proj(u))
        return applied(self.out_proj, gate * normed.transpose(1, 2).flatten(start_dim=2).to(gate.dtype))
