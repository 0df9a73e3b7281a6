"""HGRN and HGRN-2: recurrences whose forget gates write what they do not keep, above a lower bound
for each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from recallkit.kernels.linear_scan.api import linear_scan
from recallkit.kernels.recurrences.api import gated_linear_attention
from recallkit.models.mixers.api import (
    HeadRecurrence,
    Recurrence,
    State,
    applied,
    gated_flops,
    head_widths,
    linear_flops,
    rms_normed,
    widened,
)

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.choice import Impl


def log_forget_gates(projected: Tensor, bound: Tensor) -> Tensor:
    """The logarithm of a = g + (1 - g) sigmoid(W_f u), exact also where a is nearly 0, in float32
    at least: `projected` is W_f u (..., width), `bound` g (width,).

    g is the same in every channel of a new mixer. In a model of the authors' code
    (flash-linear-attention) a layer's bounds follow from a parameter of all layers, and rise with
    depth from 0; these are read with a checkpoint.
    """
    log_open = functional.logsigmoid(widened(projected))
    bound = bound.to(log_open.dtype)
    return torch.logaddexp(bound.log(), torch.log1p(-bound) + log_open)


def _bound(lower_bound: float, width: int) -> Tensor:
    if not 0 <= lower_bound < 1:
        raise ValueError(f"lower_bound {lower_bound} must be at least 0 and below 1")
    return torch.full((width,), float(lower_bound))


class HGRN(Recurrence):
    """The gated recurrence of HGRN (arXiv 2311.04823, section 3) as its authors' code has it,
    channel by channel in a width of `expand` d.

        h_i = a_i h_i-1 + (1 - a_i) swish(W_i u_i),  y = W_o (norm(h_i) swish(W_g u_i))

    Unlike in the paper h is real. See `log_forget_gates` for a; g is the buffer `lower_bound`.
    """

    lower_bound: Tensor

    def __init__(
        self,
        d_model: int,
        *,
        expand: float = 1.0,
        lower_bound: float = 0.0,
        eps: float = 1e-6,
    ) -> None:
        _, width = head_widths(d_model, 1, expand, expand)
        super().__init__(d_model)
        self.register_buffer("lower_bound", _bound(lower_bound, width))
        self.f_proj = nn.Linear(d_model, width, bias=False)
        self.i_proj = nn.Linear(d_model, width, bias=False)
        self.norm = nn.RMSNorm(width, eps=eps)
        self.out_proj = nn.Linear(width, d_model, bias=False)
        self.g_proj = nn.Linear(d_model, width, bias=False)

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: h (b, width) as `scan`."""
        weight = widened(self.out_proj.weight)
        return {"scan": weight.new_zeros(batch, self.out_proj.in_features)}

    def mix(self, u: Tensor, state: State, impl: Impl = "auto") -> tuple[Tensor, State]:
        """See `Recurrence.mix`: all tokens, in sequence."""
        log_gates = log_forget_gates(self.f_proj(u), self.lower_bound).transpose(0, 1)
        inputs = functional.silu(widened(self.i_proj(u))).transpose(0, 1)
        written = -torch.expm1(log_gates) * inputs
        h, last = linear_scan(log_gates.exp(), written, state.get("scan"), impl=impl)
        gate = functional.silu(self.g_proj(u))
        normed = rms_normed(h.transpose(0, 1), self.norm)
        return applied(self.out_proj, gate * normed.to(gate.dtype)), {"scan": last}

    def state_size(self, t: int) -> int:
        """h, for all t."""
        return self.out_proj.in_features

    def flops(self, t: int) -> int:
        """Of `forward`: for each channel 6 of a, 6 of what is written, 2 of the recurrence, 5 of
        the norm and 5 of the gate."""
        layers = (self.f_proj, self.i_proj, self.g_proj, self.out_proj)
        return linear_flops(t, *layers) + 24 * t * self.out_proj.in_features


class HGRN2(HeadRecurrence):
    """HGRN-2 (arXiv 2404.07904, section 3.2): h becomes a matrix for each of the heads, whose keys
    are what the gates forget.

        S_i = diag(a_i) S_i-1 + (1 - a_i)^T v_i,  o_i = q_i S_i / sqrt(k)
        q = swish(W_q u),  v = W_i u,  y = W_o norm(o)

    Heads h, q and a of k = `key_factor` d/h entries, v of d/h. As in the authors' code
    (flash-linear-attention) the norm is over all heads together. See `log_forget_gates` for a; g is
    the buffer `lower_bound`.
    """

    chunk = 16
    lower_bound: Tensor

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int = 4,
        key_factor: float = 1.0,
        lower_bound: float = 0.0,
        eps: float = 1e-5,
    ) -> None:
        widths = key_width, value_width = head_widths(d_model, num_heads, key_factor, 1.0)
        super().__init__(d_model, num_heads, widths)
        self.register_buffer("lower_bound", _bound(lower_bound, key_width))
        self.f_proj = nn.Linear(d_model, key_width, bias=False)
        self.i_proj = nn.Linear(d_model, value_width, bias=False)
        self.norm = nn.RMSNorm(value_width, eps=eps)
        self.out_proj = nn.Linear(value_width, d_model, bias=False)
        self.q_proj = nn.Linear(d_model, key_width, bias=False)

    def mix(self, u: Tensor, state: State, impl: Impl = "auto") -> tuple[Tensor, State]:
        """See `Recurrence.mix`: all chunks at once except for the states between them."""
        log_gates = log_forget_gates(self.f_proj(u), self.lower_bound)
        q = functional.silu(self.q_proj(u))
        k = -torch.expm1(log_gates).to(q.dtype)
        q, k, v, log_decay = map(self.by_head, (q, k, self.i_proj(u), log_gates))
        o, kv = gated_linear_attention(
            *(q, k, v, log_decay, state.get("kv")),
            scale=self.key_dim**-0.5,
            chunk=self.chunk,
            impl=impl,
        )
        joined = o.transpose(1, 2).flatten(start_dim=2)
        return applied(self.out_proj, rms_normed(joined, self.norm).to(u.dtype)), {"kv": kv}

    def flops(self, t: int) -> int:
        """Of `forward`: 8 of each a, 1 of each key, 4 of each query and 5 of the norm of each value
        beside what `gated_flops` counts."""
        mixing = t * (13 * self.key_dim + 5 * self.value_dim) + gated_flops(self, t)
        layers = (self.q_proj, self.f_proj, self.i_proj, self.out_proj)
        return linear_flops(t, *layers) + self.num_heads * mixing
