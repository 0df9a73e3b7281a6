"""`rwkv4_attention`: the weighted sum of values of RWKV-4 (arXiv 2305.13048, time mixing as an RNN
cell), channel by channel.

        sum_{j < i} exp(-(i - 1 - j) w + k_j) v_j + exp(u + k_i) v_i
wkv_i = ------------------------------------------------------------        y_i = sigmoid(r_i) wkv_i
        sum_{j < i} exp(-(i - 1 - j) w + k_j)     + exp(u + k_i)

w = `decay`, u = `bonus`, r = `gate`; without a gate y = wkv.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.kernels.choice import Impl, check_shapes, choose
from recallkit.kernels.recurrences.chunks import precision
from recallkit.kernels.rwkv4 import reference, torch_impl
from recallkit.kernels.rwkv4.reference import NOTHING, Rwkv4State, empty_state

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def rwkv4_attention(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor,
    state: Rwkv4State | None = None,
    *,
    gate: Tensor | None = None,
    impl: Impl = "auto",
) -> tuple[Tensor, Rwkv4State]:
    """y (t, b, d) of texts with time as the first axis, in the type of v, and the state after the
    last token.

    Shapes: k, v, gate (t, b, d), decay and bonus (d,), any strides; t may be 0. decay >= 0 and
    finite, preferably in float32: everything is computed, and the state returned, in the widest of
    the inputs' types, at least float32; y is rounded once. A state's exponent may be -inf, which is
    read as `NOTHING`. Rows and channels are independent.
    `impl`: "reference" and "torch" are differentiable, except for the state's exponent, a constant
    in "torch". "triton" computes in float32 and processes a text sequentially: the b d channels run
    in parallel, 32 per warp. Raises ValueError for shapes, types or an implementation that do not
    fit.
    """
    _check(k, v, decay, bonus, state, gate)
    tensors = (k, v, decay, bonus, gate, *(state or ()))
    chosen = choose("rwkv4_attention", impl, *tensors)
    if chosen == "triton":
        from recallkit.kernels.rwkv4.triton_impl import rwkv4_attention_triton

        y, last = rwkv4_attention_triton(k, v, decay, bonus, gate, *(state or (None, None, None)))
        return y, Rwkv4State(last[0], last[1], last[2])
    compute = (
        torch_impl.rwkv4_attention_torch
        if chosen == "torch"
        else reference.rwkv4_attention_reference
    )
    wide = precision(*tensors)
    begin = (
        empty_state(*k.shape[1:], dtype=wide, device=k.device)
        if state is None
        else _finite(state, wide)
    )
    return compute(k, v, decay, bonus, begin, gate)


def _finite(state: Rwkv4State, wide: torch.dtype) -> Rwkv4State:
    numerator, denominator, exponent = (part.to(wide) for part in state)
    return Rwkv4State(numerator, denominator, exponent.clamp(min=NOTHING))


def _check(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor,
    state: Rwkv4State | None,
    gate: Tensor | None,
) -> None:
    if k.ndim != 3:
        raise ValueError(f"k must be (t, b, d), not of shape {tuple(k.shape)}")
    _, b, d = k.shape
    check_shapes(v=(v, k.shape), gate=(gate, k.shape), decay=(decay, (d,)), bonus=(bonus, (d,)))
    check_shapes(
        **{
            f"the state's {name}": (part, (b, d))
            for name, part in zip(Rwkv4State._fields, state or (), strict=state is not None)
        }
    )
    strange = [
        x.dtype
        for x in (k, v, gate, decay, bonus, *(state or ()))
        if x is not None and not x.is_floating_point()
    ]
    if strange:
        raise ValueError(f"rwkv4_attention takes floating-point tensors, not {strange[0]}")
