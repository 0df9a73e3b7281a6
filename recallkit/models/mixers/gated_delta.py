"""Gated DeltaNet and DeltaNet: a linear attention that overwrites what its state has for a key, instead of adding to it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.linear_recurrence import by_chunks, weigh_pairs
from recallkit.kernels.short_conv.api import short_conv
from recallkit.models.mixers.api import Mixer, State, applied, chunk_sizes, linear_flops, widened
from recallkit.models.mixers.mamba import initial_dt_bias

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.choice import Impl

A_RANGE = (1e-3, 16.0)
"""The range of the initial rates -A of the heads, uniform: the authors draw from 0 to 16, whose logarithm is not finite at 0."""
NORM_EPS = 1e-6
"""Added to the squared length of q and of k before they are divided by it."""


class GatedDelta(Mixer):
    """The gated delta rule (arXiv 2412.06464, equation 10), heads h, q and k of k = `key_factor` d/h entries, v of `value_factor` d/h.

        S_i = a_i (I - b_i k_i^T k_i) S_i-1 + b_i k_i^T v_i,   o_i = q_i S_i / sqrt(k)
        q, k, v = silu(conv(W u)), q and k divided by their lengths;   b = sigmoid(W_b u),   a = exp(-exp(A_log) softplus(W_a u + dt_bias))
        y = (swish(W_g u) * norm(o)) W_o

    The norm of each head is a root mean square with weights, as in the authors' code. `gated=False` is DeltaNet (arXiv 2406.06484, section
    2.2): a = 1 and no W_g. The state is S and the convolution's last inputs.

    `forward` computes the chunks of a sequence together (arXiv 2406.06484, section 3; 2412.06464, section 3.3). In a chunk that begins with
    the state S, with D_ij = a_j+1 ... a_i and d_i = a_1 ... a_i, the rows v'_i that are written, S_i = d_i S + sum_j<=i D_ij k_j^T v'_j,
    solve the triangular system (I + L) V' = diag(b) (V - diag(d) K S), L_ij = b_i D_ij k_i.k_j for j < i.
    """

    chunk = 64

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int = 4,
        key_factor: float = 0.75,
        value_factor: float = 1.5,
        short_conv: int = 4,
        gated: bool = True,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(d_model)
        key_width, value_width = int(d_model * key_factor), int(d_model * value_factor)
        if num_heads < 1 or key_width < 1 or value_width < 1 or key_width % num_heads or value_width % num_heads:
            raise ValueError(f"num_heads {num_heads} does not divide widths of {key_width} (keys) and {value_width} (values)")
        if short_conv < 1:
            raise ValueError(f"short_conv is {short_conv}, not a positive number of taps")
        self.num_heads, self.key_dim, self.value_dim = num_heads, key_width // num_heads, value_width // num_heads
        self.widths = [key_width, key_width, value_width]
        self.qkv = nn.Linear(d_model, sum(self.widths), bias=False)
        self.conv1d = nn.Conv1d(sum(self.widths), sum(self.widths), short_conv, groups=sum(self.widths), padding=short_conv - 1, bias=False)
        self.b_proj = nn.Linear(d_model, num_heads, bias=False)
        self.a_proj = nn.Linear(d_model, num_heads, bias=False) if gated else None
        self.g_proj = nn.Linear(d_model, value_width, bias=False) if gated else None
        if gated:
            self.A_log = nn.Parameter(torch.empty(num_heads).uniform_(*A_RANGE).log())
            self.dt_bias = nn.Parameter(initial_dt_bias(num_heads))
        self.norm = nn.RMSNorm(self.value_dim, eps=eps)
        self.out_proj = nn.Linear(value_width, d_model, bias=False)

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        return self._mix(u, None, None)[0]

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: the recurrence, token by token."""
        q, k, v, strength, log_decay, _ = self._projected(u, None, "reference")
        state, outputs = q.new_zeros(u.shape[0], self.num_heads, self.key_dim, self.value_dim), []
        for i in range(u.shape[1]):
            q_i, k_i, v_i, b_i = (x[:, :, i, :, None] for x in (q, k, v, strength))
            state = torch.exp(log_decay[:, :, i, :, None]) * state
            found = (k_i * state).sum(dim=-2)
            state = state + b_i * k_i * (v_i[..., 0] - found)[..., None, :]
            outputs.append((q_i * state).sum(dim=-2))
        return self._merge(torch.stack(outputs, dim=2), u)

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
        """Of `forward`: convolution, norms and gates; each chunk's pairs, its triangular system for v and k, and products with S."""
        width, taps = sum(self.widths), self.conv1d.kernel_size[0]
        mixing = t * (7 * self.key_dim + 4 + (9 if self.a_proj is not None else 0) + (9 if self.g_proj is not None else 4) * self.value_dim)
        for size in chunk_sizes(t, self.chunk):
            pairs = size * (size + 1) // 2
            mixing += pairs * (4 * self.key_dim + 4 + 2 * (self.key_dim + self.value_dim) + 2 * self.value_dim)
            mixing += size * (2 * self.key_dim + self.value_dim + 6 * self.key_dim * self.value_dim) + self.key_dim * self.value_dim
        layers = [layer for layer in (self.qkv, self.b_proj, self.a_proj, self.g_proj, self.out_proj) if layer is not None]
        return linear_flops(t, *layers) + t * width * (2 * taps + 4) + self.num_heads * mixing

    def _projected(self, u: Tensor, history: Tensor | None, impl: Impl = "auto") -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, scaled, and k (b, h, t, k), v (b, h, t, v), the strengths b and the logarithms of a (b, h, t, 1), wide; new history."""
        taps = self.conv1d.weight.squeeze(1)
        z, latest = short_conv(self.qkv(u), taps, history=history, activation="silu", impl=impl)
        q, k, v = (torch.unflatten(part, -1, (self.num_heads, -1)).transpose(1, 2) for part in torch.split(widened(z), self.widths, dim=-1))
        q, k = (x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + NORM_EPS) for x in (q, k))
        strength = torch.sigmoid(widened(self.b_proj(u))).transpose(1, 2).unsqueeze(-1)
        if self.a_proj is None:
            return q / math.sqrt(self.key_dim), k, v, strength, torch.zeros_like(strength), latest
        # The bias is added in float32: in bfloat16, steps of 0.001 would be lost in rounding.
        dt = functional.softplus(widened(self.a_proj(u)) + self.dt_bias)
        log_decay = (-torch.exp(widened(self.A_log)) * dt).transpose(1, 2).unsqueeze(-1)
        return q / math.sqrt(self.key_dim), k, v, strength, log_decay, latest

    def _mix(self, u: Tensor, history: Tensor | None, start: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The mixer's output (b, t, d), the convolution's last inputs and S after the last token; `history`, `start`: those before it."""
        q, k, v, strength, log_decay, latest = self._projected(u, history)
        with torch.autocast(u.device.type, enabled=False):
            o, kv = by_chunks(_attend, self.chunk, start, v, q, k, strength, log_decay)
        return self._merge(o, u), latest, kv

    def _merge(self, o: Tensor, u: Tensor) -> Tensor:
        """The heads' outputs (b, h, t, v), each normalised, gated by u where there is a gate, and projected."""
        o = functional.rms_norm(o, (self.value_dim,), self.norm.weight.to(o.dtype), self.norm.eps).transpose(1, 2).flatten(start_dim=2)
        if self.g_proj is None:
            return applied(self.out_proj, o.to(u.dtype))
        gate = functional.silu(self.g_proj(u))
        return applied(self.out_proj, gate * o.to(gate.dtype))


def _attend(v: Tensor, q: Tensor, k: Tensor, strength: Tensor, log_decay: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """n chunks: v (b, h, n, c, v), q, k (b, h, n, c, k), strength and log_decay (b, h, n, c, 1), state (b, h, k, v)."""
    a = log_decay.exp()
    between, since_start, until_end, whole = weigh_pairs(a, torch.ones_like(a), log_decay, torch.ones_like(a).squeeze(-1))
    system = strength * between * (k @ k.transpose(-1, -2))
    seen = between * (q @ k.transpose(-1, -2))
    right = torch.cat([strength * v, strength * since_start * k], dim=-1)
    # Only what is below the diagonal of the system is read.
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    written, removed = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    q, k = q * since_start, (k * until_end).transpose(-1, -2)
    outputs = []
    for i in range(v.shape[2]):
        new = written[:, :, i] if state is None else written[:, :, i] - removed[:, :, i] @ state
        o, added = seen[:, :, i] @ new, k[:, :, i] @ new
        outputs.append(o if state is None else o + q[:, :, i] @ state)
        state = added if state is None else torch.addcmul(added, whole[:, :, i], state)
    assert state is not None
    return torch.stack(outputs, dim=2), state
