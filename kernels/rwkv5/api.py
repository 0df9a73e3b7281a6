"""`rwkv5_attention`: linear attention whose key channels have constant decays, with a bonus for the present token.

S_i = diag(w) S_{i-1} + k_i^T v_i        o_i = r_i (S_{i-1} + diag(u) k_i^T v_i)

The time mixing of RWKV-5, "Eagle", arXiv 2404.05892.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.kernels import fla
from recallkit.kernels.choice import Impl, choose
from recallkit.kernels.linear_recurrence import check_chunk, check_shapes

if TYPE_CHECKING:
    from torch import Tensor


def rwkv5_attention(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    bonus: Tensor,
    state: Tensor | None = None,
    *,
    chunk: int = 64,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """o (b, h, t, v) in the type of v, and S (b, h, k, v) after the last token, in float32 or wider.

    Shapes: r and k (b, h, t, k), v (b, h, t, v); `log_decay`, ln w, at most 0, and `bonus` u: (h, k); `state`, S before the first
    token: (b, h, k, v), zeros where None. t may be 0. Sums are in float32 or wider. `chunk`: tokens per chunk
    in "torch"; the last bits of the results depend on it. `impl`: "triton" is flash-linear-attention's `rwkv6` (in
    chunks for half precision, else token by token), without a backward pass here. Raises ValueError for shapes or an
    implementation that do not fit.
    """
    check_shapes(r, k, v, state, names="rkv")
    check_chunk(chunk)
    if r.shape[1] != v.shape[1]:
        raise ValueError(f"r, k and v must have the same number of heads, not {r.shape[1]} and {v.shape[1]}")
    wanted = (k.shape[1], k.shape[3])
    if tuple(log_decay.shape) != wanted or tuple(bonus.shape) != wanted:
        raise ValueError(f"log_decay and bonus must be (h, k) = {wanted}, not {tuple(log_decay.shape)} and {tuple(bonus.shape)}")
    unsupported = fla.obstacle(r, k, v)
    chosen = choose("rwkv5_attention", impl, r, k, v, log_decay, bonus, state, unsupported=unsupported, slower=fla.slowness(r))
    if chosen == "triton" and v.numel():
        from recallkit.kernels.rwkv5.triton_impl import rwkv5_attention_triton

        o, after = rwkv5_attention_triton(r, k, v, log_decay, bonus, state)
        return o, after
    if chosen == "reference":
        from recallkit.kernels.rwkv5.reference import rwkv5_attention_reference

        return rwkv5_attention_reference(r, k, v, log_decay, bonus, state)
    from recallkit.kernels.rwkv5.torch_impl import rwkv5_attention_torch

    return rwkv5_attention_torch(r, k, v, log_decay, bonus, state, chunk)
