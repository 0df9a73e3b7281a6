"""`long_conv`: each channel convolved with its own filter, between two gates; y_i depends on inputs
0..i alone.

z = in_gate * u        y_i = out_gate_i * (sum_{s = 0}^{min(i, k - 1)} h_s z_{i-s} + skip z_i) +
bias

All products are elementwise; arguments that are not given are left out. Without gates it is the
long convolution of arXiv 2302.06646; with both, an order of Hyena (arXiv 2302.10866, definition
3.1) and H3's projections around a state space (arXiv 2212.14052, section 3). BaseConv (arXiv
2312.04927, section 4) has its second bias inside the gate: gate the result instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.choice import Impl, check_shapes, choose
from recallkit.kernels.long_conv import reference, torch_impl

if TYPE_CHECKING:
    from torch import Tensor

_HALVES = (torch.float16, torch.bfloat16)

LONGEST_PRODUCT = 8192
"""Most inputs for which the kernel's products, t operations per element, are expected to cost less
than the memory traffic of FFTs."""


def long_conv(
    u: Tensor,
    filters: Tensor,
    *,
    skip: Tensor | None = None,
    bias: Tensor | None = None,
    in_gate: Tensor | None = None,
    out_gate: Tensor | None = None,
    last: int | None = None,
    spectrum: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """u (b, t, c), filters (c, k), tap 0 that of the present input -> (b, last, c): the formula
    above at the last `last` inputs.

    Shapes: in_gate (b, t, c), out_gate (b, last, c), skip and bias (c,); `last` is t where None,
    and taps beyond t are not used. `spectrum`: `filter_spectrum(filters, t)`, which saves "torch"
    one of its three transforms where a filter is applied to many batches; other implementations
    ignore it. Dtypes may differ. Values are summed in float32, in float64 where an input is, and
    returned in that type, or in `out_dtype`.
    `impl`: "torch" multiplies spectra, or sums a few taps or a single output directly, and is
    differentiable in all tensors. "triton" rounds filters (skip added to tap 0) and gated inputs to
    u's dtype, for its products, and for a half-precision `out_dtype` also the sum, before the last
    gate. `auto` chooses it on a GPU for half precision and at most `LONGEST_PRODUCT` inputs. Raises
    ValueError for shapes or an implementation that do not fit.
    """
    last = u.shape[1] if last is None and u.ndim == 3 else last
    _check(u, filters, skip, bias, in_gate, out_gate, last)
    assert last is not None
    tensors = (u, filters, skip, bias, in_gate, out_gate)
    out_dtype = out_dtype or _widest(tensors)
    if 0 in (*u.shape, last):
        return u.new_empty(u.shape[0], last, u.shape[2], dtype=out_dtype)
    chosen = choose("long_conv", impl, *tensors, slower=_what_torch_does_faster(u, last))
    filters = filters[:, : u.shape[1]]
    if chosen == "triton":
        from recallkit.kernels.long_conv.triton_impl import long_conv_triton

        y: Tensor = long_conv_triton(u, filters, skip, bias, in_gate, out_gate, last, out_dtype)
        return y
    if chosen == "torch":
        return torch_impl.long_conv_torch(
            u, filters, skip, bias, in_gate, out_gate, last, spectrum
        ).to(out_dtype)
    return reference.long_conv_reference(u, filters, skip, bias, in_gate, out_gate, last).to(
        out_dtype
    )


def filter_spectrum(filters: Tensor, t: int) -> Tensor:
    """filters (c, k) -> their transform (c, n // 2 + 1), complex, padded as `long_conv` of t inputs
    needs it."""
    return torch_impl.filter_spectrum_torch(filters[:, :t], t)


def _widest(tensors: tuple[Tensor | None, ...]) -> torch.dtype:
    return (
        torch.float64
        if any(x is not None and x.dtype == torch.float64 for x in tensors)
        else torch.float32
    )


def _what_torch_does_faster(u: Tensor, last: int) -> str | None:
    if u.dtype not in _HALVES:
        return "in full precision transforms are faster"
    if u.shape[1] > LONGEST_PRODUCT:
        return f"for more than {LONGEST_PRODUCT} inputs transforms are faster"
    return "one output is a sum, not a matrix product" if last == 1 else None


def _check(
    u: Tensor,
    filters: Tensor,
    skip: Tensor | None,
    bias: Tensor | None,
    in_gate: Tensor | None,
    out_gate: Tensor | None,
    last: int | None,
) -> None:
    if u.ndim != 3 or filters.ndim != 2 or u.shape[2] != filters.shape[0]:
        raise ValueError(
            f"u (b, t, c) and filters (c, k) do not fit: {tuple(u.shape)}, {tuple(filters.shape)}"
        )
    if filters.shape[1] < 1 <= u.shape[1]:
        raise ValueError("a filter has at least 1 tap")
    assert last is not None
    if not 0 <= last <= u.shape[1]:
        raise ValueError(f"last is {last}, and there are {u.shape[1]} outputs")
    (b, _, c) = u.shape
    check_shapes(
        skip=(skip, (c,)),
        bias=(bias, (c,)),
        in_gate=(in_gate, u.shape),
        out_gate=(out_gate, (b, last, c)),
    )
    strange = [
        x.dtype
        for x in (u, filters, skip, bias, in_gate, out_gate)
        if x is not None and not x.dtype.is_floating_point
    ]
    if strange:
        raise ValueError(f"long_conv takes real floating-point tensors, not {strange[0]}")
