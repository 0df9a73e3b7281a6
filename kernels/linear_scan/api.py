"""`linear_scan`: a linear recurrence of each channel by itself, for a whole text.

h_i = a_i h_{i-1} + u_i

The recurrences of HGRN (arXiv 2311.04823, section 3) and of Griffin's RG-LRU (arXiv 2402.19427); a
= `decay`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.kernels.choice import Impl, check_shapes, choose
from recallkit.kernels.linear_scan import reference, torch_impl
from recallkit.kernels.recurrences.chunks import precision

if TYPE_CHECKING:
    from torch import Tensor


def linear_scan(
    decay: Tensor,
    u: Tensor,
    start: Tensor | None = None,
    *,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """All h (t, b, d) of texts with time as the first axis, in the type of u, and the last state
    (b, d).

    Shapes: decay and u (t, b, d), any strides, t may be 0; start (b, d): h before the first token,
    zeros where None. Everything is computed, and the state returned, in the widest of the inputs'
    types, at least float32; h is rounded once. Rows and channels are independent.
    `impl`: "reference" and "torch" are differentiable in all tensors. "triton" computes in float32,
    32 tokens at a time, for decays whose products stay finite, as those of at most 1 do. Raises
    ValueError for shapes or an implementation that do not fit.
    """
    if u.ndim != 3:
        raise ValueError(f"u must be (t, b, d), not of shape {tuple(u.shape)}")
    check_shapes(decay=(decay, u.shape), start=(start, u.shape[1:]))
    chosen = choose("linear_scan", impl, decay, u, start)
    if chosen == "triton":
        from recallkit.kernels.linear_scan.triton_impl import linear_scan_triton

        h, last = linear_scan_triton(decay, u, start)
        return h, last
    wide = precision(decay, u, start)
    begin = u.new_zeros(u.shape[1:], dtype=wide) if start is None else start.to(wide)
    if len(u) == 0:
        return u, begin
    compute = torch_impl.linear_scan_torch if chosen == "torch" else reference.linear_scan_reference
    h = compute(decay.to(wide), u.to(wide), begin)
    return h.to(u.dtype), h[-1]
