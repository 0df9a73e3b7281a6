"""HGRN and HGRN-2: recurrences whose forget gates write what they do not keep, above a lower bound for each layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from recallkit.kernels.linear_scan.api import linear_scan
from recallkit.kernels.recurrences.api import gated_linear_attention
from recallkit.models.mixers.api import Mixer, State, applied, chunk_sizes, doublings, head_widths, linear_flops, widened

if TYPE_CHECKING:
    from torch import Tensor


class _Forgetting(Mixer):
    """What both have: forget gates a = g + (1 - g) sigmoid(W_f u), and an output y = W_o norm(...).

    The bound g (width,) is a buffer: in a model of the authors' code (flash-linear-attention) a layer's bounds follow from a parameter of
    all layers, and rise with depth from 0; here they are read with a checkpoint, and `lower_bound` in every channel of a new mixer.
    """

    lower_bound: Tensor

    def __init__(self, d_model: int, forget_width: int, value_width: int, lower_bound: float, eps: float) -> None:
        super().__init__(d_model)
        if not 0 <= lower_bound < 1:
            raise ValueError(f"lower_bound {lower_bound} must be at least 0 and below 1")
        self.f_proj = nn.Linear(d_model, forget_width, bias=False)
        self.i_proj = nn.Linear(d_model, value_width, bias=False)
        self.register_buffer("lower_bound", torch.full((forget_width,), float(lower_bound)))
        self.norm = nn.RMSNorm(value_width, eps=eps)
        self.out_proj = nn.Linear(value_width, d_model, bias=False)

    def _gates(self, u: Tensor) -> Tensor:
        """a (..., width), as the equation is."""
        bound = self.lower_bound.to(u.dtype)
        return bound + (1 - bound) * torch.sigmoid(self.f_proj(u))

    def _log_gates(self, u: Tensor) -> Tensor:
        """log a (..., width), exact also where a is nearly 0, in float32 at least."""
        log_open = nn.functional.logsigmoid(widened(self.f_proj(u)))
        bound = self.lower_bound.to(log_open.dtype)
        return torch.logaddexp(bound.log(), torch.log1p(-bound) + log_open)

    def _normed(self, o: Tensor) -> Tensor:
        """o (..., value width), normalised over all of it, in float32 at least."""
        o = widened(o)
        return nn.functional.rms_norm(o, o.shape[-1:], self.norm.weight.to(o.dtype), self.norm.eps)


class HGRN(_Forgetting):
    """The gated recurrence of HGRN (arXiv 2311.04823, section 3) as its authors' code has it, channel by channel in a width of `expand` d.

        h_i = a_i h_i-1 + (1 - a_i) swish(W_i u_i),  y = W_o (norm(h_i) swish(W_g u_i))

    Unlike in the paper h is real.
    """

    def __init__(self, d_model: int, *, expand: float = 1.0, lower_bound: float = 0.0, eps: float = 1e-6) -> None:
        _, width = head_widths(d_model, 1, expand, expand)
        super().__init__(d_model, width, width, lower_bound, eps)
        self.g_proj = nn.Linear(d_model, width, bias=False)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: the recurrence, token by token."""
        gates, written = self._gates(u), nn.functional.silu(self.i_proj(u))
        h, outputs = torch.zeros_like(written[:, 0]), []
        for i in range(u.shape[1]):
            h = gates[:, i] * h + (1 - gates[:, i]) * written[:, i]
            outputs.append(h)
        return self._merge(torch.stack(outputs, dim=1), u)

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: h (b, width) as `scan`."""
        return {"scan": widened(self.out_proj.weight).new_zeros(batch, self.out_proj.in_features)}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`: all tokens, in sequence."""
        log_gates = self._log_gates(u).transpose(0, 1)
        written = -torch.expm1(log_gates) * nn.functional.silu(widened(self.i_proj(u))).transpose(0, 1)
        h, last = linear_scan(log_gates.exp(), written, state["scan"])
        return self._merge(h.transpose(0, 1), u), {"scan": last}

    def state_size(self, t: int) -> int:
        """h, for all t."""
        return self.out_proj.in_features

    def flops(self, t: int) -> int:
        """Of `forward`: for each channel 6 of a, 6 of what is written, 2 of the recurrence, 5 of the norm and 5 of the gate."""
        return linear_flops(t, self.f_proj, self.i_proj, self.g_proj, self.out_proj) + 24 * t * self.out_proj.in_features

    def _merge(self, h: Tensor, u: Tensor) -> Tensor:
        gate = nn.functional.silu(self.g_proj(u))
        return applied(self.out_proj, gate * self._normed(h).to(gate.dtype))


class HGRN2(_Forgetting):
    """HGRN-2 (arXiv 2404.07904, section 3.2): h becomes a matrix for each of the heads, whose keys are what the gates forget.

        S_i = diag(a_i) S_i-1 + (1 - a_i)^T v_i,  o_i = q_i S_i / sqrt(k),  q = swish(W_q u),  v = W_i u,  y = W_o norm(o)

    Heads h, q and a of k = `key_factor` d/h entries, v of d/h. As in the authors' code (flash-linear-attention) the norm is over all
    heads together.
    """

    chunk = 16

    def __init__(self, d_model: int, *, num_heads: int = 4, key_factor: float = 1.0, lower_bound: float = 0.0, eps: float = 1e-5) -> None:
        key_width, value_width = head_widths(d_model, num_heads, key_factor, 1.0)
        super().__init__(d_model, key_width, value_width, lower_bound, eps)
        self.num_heads, self.key_dim, self.value_dim = num_heads, key_width // num_heads, value_width // num_heads
        self.q_proj = nn.Linear(d_model, key_width, bias=False)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: the recurrence, token by token."""
        q, v, gates = (self._heads(x) for x in (nn.functional.silu(self.q_proj(u)), self.i_proj(u), self._gates(u)))
        state, outputs = q.new_zeros(u.shape[0], self.num_heads, self.key_dim, self.value_dim), []
        for i in range(u.shape[1]):
            state = gates[:, :, i, :, None] * state + (1 - gates[:, :, i, :, None]) * v[:, :, i, None, :]
            outputs.append((q[:, :, i, :, None] * state).sum(dim=-2) / math.sqrt(self.key_dim))
        return self._merge(torch.stack(outputs, dim=2), u)

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: S (b, h, k, v) as `kv`."""
        return {"kv": widened(self.out_proj.weight).new_zeros(batch, self.num_heads, self.key_dim, self.value_dim)}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`: all chunks at once except for the states between them."""
        log_gates, q = self._log_gates(u), nn.functional.silu(self.q_proj(u))
        k = -torch.expm1(log_gates).to(q.dtype)
        q, k, v, log_gates = (self._heads(x) for x in (q, k, self.i_proj(u), log_gates))
        o, kv = gated_linear_attention(q, k, v, log_gates, state["kv"], scale=1 / math.sqrt(self.key_dim), chunk=self.chunk)
        return self._merge(o, u), {"kv": kv}

    def state_size(self, t: int) -> int:
        """S of every head, for all t."""
        return self.num_heads * self.key_dim * self.value_dim

    def flops(self, t: int) -> int:
        """Of `forward`: 8 of each a, 1 of each key, 4 of each query; each chunk's pairs, two products with S and its decay; the norm.

        Each doubling of a block multiplies q or k of every token by decays, see `kernels.recurrences.chunks.weigh_pairs`.
        """
        mixing = t * ((13 + doublings(t, self.chunk)) * self.key_dim + 5 * self.value_dim + 4 * self.key_dim * self.value_dim)
        for size in chunk_sizes(t, self.chunk):
            mixing += size * (size + 1) // 2 * (2 * self.key_dim + 2 * self.value_dim)
            mixing += self.key_dim * (2 * self.value_dim + 1)
        return linear_flops(t, self.q_proj, self.f_proj, self.i_proj, self.out_proj) + self.num_heads * mixing

    def _heads(self, x: Tensor) -> Tensor:
        """(b, t, h width) -> (b, h, t, width)"""
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def _merge(self, o: Tensor, u: Tensor) -> Tensor:
        """The heads' outputs (b, h, t, v), normalised together and projected."""
        return applied(self.out_proj, self._normed(o.transpose(1, 2).flatten(start_dim=2)).to(u.dtype))
