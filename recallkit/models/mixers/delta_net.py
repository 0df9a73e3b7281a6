"""DeltaNet: a linear attention that overwrites what its state has for a key, instead of adding to it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.recurrences.api import delta_rule
from recallkit.kernels.short_conv.api import short_conv
from recallkit.models.mixers.api import Mixer, State, applied, chunk_sizes, head_widths, linear_flops, widened

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.choice import Impl

NORM_EPS = 1e-6
"""Added to the squared length of q and of k before they are divided by it."""


class DeltaNet(Mixer):
    """The delta rule (arXiv 2406.06484, section 2.2), heads h, q and k of k = `key_factor` d/h entries, v of `value_factor` d/h.

        S_i = S_i-1 + b_i k_i^T (v_i - k_i S_i-1),   o_i = q_i S_i / sqrt(k)
        q, k, v = silu(conv(W u)), q and k divided by their lengths;   b = sigmoid(W_b u);   y = norm(o) W_o

    The norm of each head is a root mean square with weights, as in the authors' code. The state is S and the convolution's last inputs.
    The mixers of the delta rule whose state also decays, and whose output has a gate, are made of this one.
    """

    chunk = 64

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int = 4,
        key_factor: float = 1.0,
        value_factor: float = 1.0,
        short_conv: int = 4,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(d_model)
        key_width, value_width = head_widths(d_model, num_heads, key_factor, value_factor)
        if short_conv < 1:
            raise ValueError(f"short_conv is {short_conv}, not a positive number of taps")
        self.num_heads, self.key_dim, self.value_dim = num_heads, key_width // num_heads, value_width // num_heads
        self.widths = [key_width, key_width, value_width]
        self.qkv = nn.Linear(d_model, sum(self.widths), bias=False)
        self.conv1d = nn.Conv1d(sum(self.widths), sum(self.widths), short_conv, groups=sum(self.widths), padding=short_conv - 1, bias=False)
        self.b_proj = nn.Linear(d_model, num_heads, bias=False)
        self._make_gates()
        self.norm = nn.RMSNorm(self.value_dim, eps=eps)
        self.out_proj = nn.Linear(value_width, d_model, bias=False)

    def _make_gates(self) -> None:
        """The parameters of `_log_decay` and `_gated`."""

    def _log_decay(self, u: Tensor) -> Tensor | None:
        """u (b, t, d) -> the logarithms of the decays, (b, h, t) or (b, h, t, k), wide; None where nothing decays."""
        return None

    def _gated(self, o: Tensor, u: Tensor) -> Tensor:
        """The heads' normalised outputs o (b, t, h v), wide, gated by u (b, t, d), in the type of `out_proj`."""
        return o.to(u.dtype)

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        return self._mix(u, None, None)[0]

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: the recurrence, token by token."""
        return self._mix(u, None, None, "reference")[0]

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: S (b, h, k, v) as `kv`, and the convolution's last inputs, `conv`."""
        like = widened(self.out_proj.weight)
        return {
            "conv": like.new_zeros(batch, self.conv1d.kernel_size[0] - 1, sum(self.widths)),
            "kv": like.new_zeros(batch, self.num_heads, self.key_dim, self.value_dim),
        }

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`: all chunks at once except for the states between them."""
        y, conv, kv = self._mix(u, state["conv"], state["kv"])
        return y, {"conv": conv, "kv": kv}

    def state_size(self, t: int) -> int:
        """S of every head; for all t."""
        return self.num_heads * self.key_dim * self.value_dim

    def flops(self, t: int) -> int:
        """Of `forward`: convolution, norms and strengths; each chunk's pairs, its triangular system for v and k, and products with S."""
        width, taps = sum(self.widths), self.conv1d.kernel_size[0]
        mixing = t * (7 * self.key_dim + 4 + 4 * self.value_dim) + self._decay_flops(t)
        for size in chunk_sizes(t, self.chunk):
            pairs = size * (size + 1) // 2
            mixing += pairs * (4 * self.key_dim + 2 * (self.key_dim + self.value_dim) + 2 * self.value_dim)
            mixing += size * (self.value_dim + 6 * self.key_dim * self.value_dim) + self.key_dim * self.value_dim
        return linear_flops(t, self.qkv, self.b_proj, self.out_proj) + t * width * (2 * taps + 4) + self.num_heads * mixing

    def _decay_flops(self, t: int) -> int:
        """Operations of the decays of one head: each of two pair weights has one and is multiplied by it; k twice, q and k."""
        return sum(size * (size + 1) // 2 * 4 for size in chunk_sizes(t, self.chunk)) + 4 * t * self.key_dim

    def _projected(self, u: Tensor, history: Tensor | None, impl: Impl) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q and k (b, h, t, k), of length one, v (b, h, t, v), the strengths b (b, h, t), wide; the convolution's last inputs."""
        taps = self.conv1d.weight.squeeze(1)
        z, latest = short_conv(self.qkv(u), taps, history=history, activation="silu", impl=impl)
        q, k, v = (torch.unflatten(part, -1, (self.num_heads, -1)).transpose(1, 2) for part in torch.split(widened(z), self.widths, dim=-1))
        q, k = (x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + NORM_EPS) for x in (q, k))
        if z.is_cuda:
            # Kernels need half precision where there is one; on CPU rounding gains nothing.
            q, k, v = (x.to(z.dtype) for x in (q, k, v))
        return q, k, v, torch.sigmoid(widened(self.b_proj(u))).transpose(1, 2), latest

    def _mix(self, u: Tensor, history: Tensor | None, start: Tensor | None, impl: Impl = "auto") -> tuple[Tensor, Tensor, Tensor]:
        """The mixer's output (b, t, d), the convolution's last inputs and S after the last token; `history`, `start`: those before it."""
        q, k, v, strength, latest = self._projected(u, history, impl)
        scale = 1 / math.sqrt(self.key_dim)
        o, kv = delta_rule(q, k, v, strength, self._log_decay(u), start, scale=scale, chunk=self.chunk, impl=impl)
        o = widened(o)
        o = functional.rms_norm(o, (self.value_dim,), self.norm.weight.to(o.dtype), self.norm.eps).transpose(1, 2).flatten(start_dim=2)
        return applied(self.out_proj, self._gated(o, u)), latest, kv
