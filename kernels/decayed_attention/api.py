"""`decayed_attention`: linear attention with one decay per head, constant or token-dependent.

S_i = a_i S_{i-1} + k_i^T v_i        o_i = scale q_i S_i = scale sum_{j<=i} (prod_{j<l<=i} a_l) (q_i.k_j) v_j

Constant decays are the retention of RetNet (arXiv 2307.08621, equations 5 to 8), token-dependent decays the state space duality
of Mamba-2 (arXiv 2405.21060, section 6), where q, k, v are its C, B and dt x, and ln a_i = dt_i A.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.kernels import fla
from recallkit.kernels.choice import Impl, choose
from recallkit.kernels.linear_recurrence import check_chunk, check_shapes

if TYPE_CHECKING:
    from torch import Tensor


def decayed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    *,
    scale: float = 1.0,
    chunk: int = 64,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """o (b, h, t, v) in the type of v, and S (b, h, k, v) after the last token, in float32 or wider.

    Shapes: q and k (b, g, t, k), v (b, h, t, v); `log_decay`, ln a, at most 0: (h,) or (b, h, t); `state`, S before the first
    token: (b, h, k, v), zeros where None. Successive heads of v share a q and k where g < h divides h. t may be 0.
    Sums are in float32 or wider. `chunk`: tokens per chunk in "torch"; the last bits of the results depend on it.
    `impl`: "triton" is flash-linear-attention's `simple_gla` (in chunks for half precision, else token by token), without a
    backward pass here. Raises ValueError for shapes or an implementation that do not fit.
    """
    check_shapes(q, k, v, state)
    check_chunk(chunk)
    b, h, t, _ = v.shape
    if tuple(log_decay.shape) not in ((h,), (b, h, t)):
        raise ValueError(f"log_decay must be (h,) = {(h,)} or (b, h, t) = {(b, h, t)}, not {tuple(log_decay.shape)}")
    chosen = choose("decayed_attention", impl, q, k, v, log_decay, state, unsupported=fla.obstacle(q, k, v), slower=fla.slowness(q))
    if chosen == "triton" and v.numel():
        from recallkit.kernels.decayed_attention.triton_impl import decayed_attention_triton

        o, after = decayed_attention_triton(q, k, v, log_decay, state, scale)
        return o, after
    if chosen == "reference":
        from recallkit.kernels.decayed_attention.reference import decayed_attention_reference

        return decayed_attention_reference(q, k, v, log_decay, state, scale)
    from recallkit.kernels.decayed_attention.torch_impl import decayed_attention_torch

    return decayed_attention_torch(q, k, v, log_decay, state, scale, chunk)
