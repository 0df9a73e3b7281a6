"""`rwkv7_attention`: linear attention that reads its state with one key and takes away what it finds under another.

S_i = diag(a_i) S_{i-1} - w_i^T (e_i S_{i-1}) + k_i^T v_i        o_i = r_i S_i

The time mixing of RWKV-7, "Goose", arXiv 2503.14456, where w_i is e_i times a share of each channel. The state is
multiplied by a diagonal plus any matrix of rank one; `delta_rule` is its case w = k, e = b diag(a) k, with values b v.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.kernels import fla
from recallkit.kernels.choice import Impl, choose
from recallkit.kernels.linear_recurrence import check_chunk, check_shapes

if TYPE_CHECKING:
    from torch import Tensor


def rwkv7_attention(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    erase: Tensor,
    write: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    *,
    chunk: int = 32,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """o (b, h, t, v) in the type of v, and S (b, h, k, v) after the last token, in float32 or wider.

    Shapes: r, k, `erase` e, `write` w and `log_decay`, ln a, at most 0: (b, h, t, k); v (b, h, t, v); `state`, S before the first
    token: (b, h, k, v), zeros where None. t may be 0. Sums are in float32 or wider. `chunk`: tokens per chunk in "torch"; the last
    bits of the results depend on it. `impl`: "triton" is flash-linear-attention's `rwkv7` (in chunks for half precision, else
    token by token), without a backward pass here. Raises ValueError for shapes or an implementation that do not fit.
    """
    check_shapes(r, k, v, state, names="rkv")
    check_chunk(chunk)
    if r.shape[1] != v.shape[1]:
        raise ValueError(f"r, k and v must have the same number of heads, not {r.shape[1]} and {v.shape[1]}")
    for name, x in (("erase", erase), ("write", write), ("log_decay", log_decay)):
        if x.shape != k.shape:
            raise ValueError(f"{name} must have the shape of k, {tuple(k.shape)}, not {tuple(x.shape)}")
    tensors, unsupported = (r, k, v, erase, write, log_decay), fla.obstacle(r, k, v)
    chosen = choose("rwkv7_attention", impl, *tensors, state, unsupported=unsupported, slower=fla.slowness(r))
    if chosen == "triton" and v.numel():
        from recallkit.kernels.rwkv7.triton_impl import rwkv7_attention_triton

        o, after = rwkv7_attention_triton(*tensors, state)
        return o, after
    if chosen == "reference":
        from recallkit.kernels.rwkv7.reference import rwkv7_attention_reference

        return rwkv7_attention_reference(*tensors, state)
    from recallkit.kernels.rwkv7.torch_impl import rwkv7_attention_torch

    return rwkv7_attention_torch(*tensors, state, chunk)
