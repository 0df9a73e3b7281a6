"""DeltaNet: a linear attention that overwrites what its state has for a key, instead of adding to
it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from recallkit.kernels.recurrences.api import delta_rule
from recallkit.kernels.short_conv.api import short_conv
from recallkit.models.mixers.api import (
    HeadRecurrence,
    State,
    applied,
    chunk_pairs,
    chunk_sizes,
    head_widths,
    linear_flops,
    rms_normed,
    widened,
)

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.choice import Impl

NORM_EPS = 1e-6
"""Added to the squared length of q and of k before they are divided by it."""


class DeltaNet(HeadRecurrence):
    """The delta rule (arXiv 2406.06484, section 2.2), heads h, q and k of k = `key_factor` d/h
    entries, v of `value_factor` d/h.

        S_i = S_i-1 + b_i k_i^T (v_i - k_i S_i-1),   o_i = q_i S_i / sqrt(k)
        q, k, v = silu(conv(W u)), q and k divided by their lengths;   b = sigmoid(W_b u);   y =
            norm(o) W_o

    The norm of each head is a root mean square with weights, as in the authors' code. The state is
    S and the convolution's last inputs. The mixers of the delta rule whose state also decays, and
    whose output has a gate, are made of this one.
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
        widths = key_width, value_width = head_widths(d_model, num_heads, key_factor, value_factor)
        super().__init__(d_model, num_heads, widths)
        if short_conv < 1:
            raise ValueError(f"short_conv is {short_conv}, not a positive number of taps")
        self.widths = [key_width, key_width, value_width]
        channels = sum(self.widths)
        self.qkv = nn.Linear(d_model, channels, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, short_conv, groups=channels, bias=False)
        self.b_proj = nn.Linear(d_model, num_heads, bias=False)
        self._make_gates()
        self.norm = nn.RMSNorm(self.value_dim, eps=eps)
        self.out_proj = nn.Linear(value_width, d_model, bias=False)

    def _make_gates(self) -> None:
        """The parameters of `_log_decay` and `_gated`."""

    def _log_decay(self, u: Tensor) -> Tensor | None:
        """u (b, t, d) -> the logarithms of the decays, (b, h, t) or (b, h, t, k), wide; None where
        nothing decays."""
        return None

    def _gated(self, o: Tensor, u: Tensor) -> Tensor:
        """The heads' normalised outputs o (b, t, h v), wide, gated by u (b, t, d), in the type of
        `out_proj`."""
        return o.to(u.dtype)

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: S (b, h, k, v) as `kv`, and the convolution's last inputs."""
        state = super().initial_state(batch)
        shape = batch, self.conv1d.kernel_size[0] - 1, sum(self.widths)
        return {"conv": state["kv"].new_zeros(shape), **state}

    def mix(self, u: Tensor, state: State, impl: Impl = "auto") -> tuple[Tensor, State]:
        """See `Recurrence.mix`: all chunks at once except for the states between them."""
        taps, history = self.conv1d.weight.squeeze(1), state.get("conv")
        z, latest = short_conv(self.qkv(u), taps, history=history, activation="silu", impl=impl)
        q, k, v = map(self.by_head, torch.split(widened(z), self.widths, dim=-1))
        # q and k have length one.
        q, k = (x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + NORM_EPS) for x in (q, k))
        if z.is_cuda:
            # Kernels need half precision where there is one; on CPU rounding gains nothing.
            q, k, v = (x.to(z.dtype) for x in (q, k, v))
        strength = torch.sigmoid(widened(self.b_proj(u))).transpose(1, 2)
        o, kv = delta_rule(
            *(q, k, v, strength, self._log_decay(u), state.get("kv")),
            scale=1 / math.sqrt(self.key_dim),
            chunk=self.chunk,
            impl=impl,
        )
        normed = rms_normed(o, self.norm).transpose(1, 2).flatten(start_dim=2)
        y = applied(self.out_proj, self._gated(normed, u))
        return y, {"conv": latest, "kv": kv}

    def flops(self, t: int) -> int:
        """Of `forward`: convolution, norms and strengths; each chunk's pairs, its triangular system
        for v and k, and products with S."""
        width, taps = sum(self.widths), self.conv1d.kernel_size[0]
        keys, values = self.key_dim, self.value_dim
        mixing = t * (7 * keys + 4 + 5 * values + 6 * keys * values) + self._decay_flops(t)
        mixing += chunk_pairs(t, self.chunk) * (6 * keys + 4 * values)
        mixing += len(chunk_sizes(t, self.chunk)) * keys * values
        linear = linear_flops(t, self.qkv, self.b_proj, self.out_proj)
        return linear + t * width * (2 * taps + 4) + self.num_heads * mixing

    def _decay_flops(self, t: int) -> int:
        """Operations of the decays of one head: each of two pair weights has one and is multiplied
        by it; k twice, q and k."""
        return 4 * chunk_pairs(t, self.chunk) + 4 * t * self.key_dim
