"""`short_conv`: each channel's weighted sum of its last few inputs, a part of many mixers or a
mixer by itself.

y_i = act(bias + sum_{s < k} taps[:, k - 1 - s] u_{i - s}) * gate_i        act: identity or silu

BaseConv (Zoology, arXiv 2312.04927, section 4) is such a sum with a gate; Mamba (arXiv 2312.00752,
figure 3) has one with silu.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.choice import Impl, check_shapes, choose
from recallkit.kernels.short_conv import reference, torch_impl

if TYPE_CHECKING:
    from torch import Tensor

MOST_TAPS = 8
"""Most taps of the GPU kernel, which keeps them in registers, each with an input."""


def short_conv(
    u: Tensor,
    taps: Tensor,
    *,
    bias: Tensor | None = None,
    history: Tensor | None = None,
    activation: str | None = None,
    gate: Tensor | None = None,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """-> y (b, t, c), in the type and memory layout of u, and the new history: the last k - 1
    inputs (b, k - 1, c).

    Shapes: u, gate (b, t, c), taps (c, k) with that of the present input last, as nn.Conv1d keeps
    them, bias (c,), history (b, k - 1, c): the inputs before the first, zeros where None;
    `activation`: "silu" or None. Any strides: with time first in memory, pass and receive
    transposed views. The new history has the type of the old one, of u where there is none, and is
    a copy. Everything is computed in the widest of the types of u, taps, bias and history, at least
    float32, and rounded once.
    `impl`: "reference" and "torch" are differentiable in all tensors; "triton" takes up to 8 taps,
    in one pass over memory. Raises ValueError for shapes, an activation or an implementation that
    do not fit.
    """
    _check(u, taps, bias, history, activation, gate)
    k = taps.shape[1]
    long = f"{k} taps are more than {MOST_TAPS}" if k > MOST_TAPS else None
    chosen = choose("short_conv", impl, u, taps, bias, history, gate, unsupported=long)
    if chosen == "triton":
        from recallkit.kernels.short_conv.triton_impl import short_conv_triton

        y, latest = short_conv_triton(u, taps, bias, history, activation == "silu", gate)
        return y, latest
    compute = torch_impl.short_conv_torch if chosen == "torch" else reference.short_conv_reference
    return compute(u, taps, bias, history, activation, gate), _latest_inputs(u, history, k - 1)


def _latest_inputs(u: Tensor, history: Tensor | None, length: int) -> Tensor:
    """The last `length` of the inputs in `history` and u: a copy, so that it does not keep the
    whole text in memory."""
    dtype = u.dtype if history is None else history.dtype
    missing = max(0, length - u.shape[1])
    recent = u[:, u.shape[1] - length + missing :]
    if missing == 0:
        return recent.to(dtype, copy=True, memory_format=torch.contiguous_format)
    before = (
        u.new_zeros(u.shape[0], missing, u.shape[2], dtype=dtype)
        if history is None
        else history[:, length - missing :]
    )
    return torch.cat([before, recent.to(dtype)], dim=1)


def _check(
    u: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    history: Tensor | None,
    activation: str | None,
    gate: Tensor | None,
) -> None:
    if u.ndim != 3 or taps.ndim != 2 or taps.shape[0] != u.shape[2] or taps.shape[1] == 0:
        raise ValueError(
            f"u (b, t, c) and taps (c, k) do not fit: {tuple(u.shape)}, {tuple(taps.shape)}"
        )
    (b, t, c), k = u.shape, taps.shape[1]
    check_shapes(bias=(bias, (c,)), history=(history, (b, k - 1, c)), gate=(gate, (b, t, c)))
    if activation not in (None, "silu"):
        raise ValueError(f"activation must be 'silu' or None, not {activation!r}")
