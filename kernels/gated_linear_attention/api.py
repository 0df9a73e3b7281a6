"""`gated_linear_attention`: linear attention with a decay per token and key channel.

S_i = diag(a_i) S_{i-1} + k_i^T v_i        o_i = scale q_i S_i

Gated linear attention, arXiv 2312.06635, section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.kernels import fla
from recallkit.kernels.choice import Impl, choose
from recallkit.kernels.linear_recurrence import check_chunk, check_shapes

if TYPE_CHECKING:
    from torch import Tensor


def gated_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    *,
    scale: float = 1.0,
    chunk: int = 16,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """o (b, h, t, v) in the type of v, and S (b, h, k, v) after the last token, in float32 or wider.

    Shapes: q, k and `log_decay`, ln a, at most 0: (b, h, t, k); v (b, h, t, v); `state`, S before the first token: (b, h, k, v),
    zeros where None. t may be 0. Sums are in float32 or wider. `chunk`: tokens per chunk in "torch";
    the last bits of the results depend on it. `impl`: "triton" is flash-linear-attention's `gla` (in chunks for half precision,
    else token by token), without a backward pass here. Raises ValueError for shapes or an implementation that do not fit.
    """
    check_shapes(q, k, v, state)
    check_chunk(chunk)
    if q.shape[1] != v.shape[1]:
        raise ValueError(f"q, k and v must have the same number of heads, not {q.shape[1]} and {v.shape[1]}")
    if log_decay.shape != k.shape:
        raise ValueError(f"log_decay must have the shape of k, {tuple(k.shape)}, not {tuple(log_decay.shape)}")
    unsupported = fla.obstacle(q, k, v)
    chosen = choose("gated_linear_attention", impl, q, k, v, log_decay, state, unsupported=unsupported, slower=fla.slowness(q))
    if chosen == "triton" and v.numel():
        from recallkit.kernels.gated_linear_attention.triton_impl import gated_linear_attention_triton

        o, after = gated_linear_attention_triton(q, k, v, log_decay, state, scale)
        return o, after
    if chosen == "reference":
        from recallkit.kernels.gated_linear_attention.reference import gated_linear_attention_reference

        return gated_linear_attention_reference(q, k, v, log_decay, state, scale)
    from recallkit.kernels.gated_linear_attention.torch_impl import gated_linear_attention_torch

    return gated_linear_attention_torch(q, k, v, log_decay, state, scale, chunk)
