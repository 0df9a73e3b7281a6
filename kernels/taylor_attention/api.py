"""`taylor_attention` and its step: causal attention with a second-order polynomial for the
exponential, and so a state of fixed size.

    y_i = sum_j<=i w_ij v_j / (sum_j<=i w_ij + eps)      w_ij = phi(q_i).phi(k_j) = 1 + s + s^2/2,
    s = q_i.k_j/sqrt(f)

(Based, arXiv 2402.18668, section 4.1.) w is never below 1/2, so that eps has no effect in practice.
The state is the sum of phi(k_j) v_j^T and of phi(k_j), features in the order of `state.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

import torch

from recallkit.kernels.choice import Impl, choose
from recallkit.kernels.taylor_attention import reference, torch_impl
from recallkit.kernels.taylor_attention.state import TaylorState, num_taylor_features, zero_state

if TYPE_CHECKING:
    from torch import Tensor

MOST_FEATURE_DIM = 32
"""Most entries of q and k in the kernels; Based has 16, with 153 packed features; 32 have 561."""


@overload
def taylor_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: TaylorState | None = ...,
    *,
    eps: float = ...,
    impl: Impl = ...,
    final_state: Literal[True] = ...,
) -> tuple[Tensor, TaylorState]: ...
@overload
def taylor_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: TaylorState | None = None,
    *,
    eps: float = ...,
    impl: Impl = ...,
    final_state: bool,
) -> tuple[Tensor, TaylorState | None]: ...
def taylor_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: TaylorState | None = None,
    *,
    eps: float = 1e-12,
    impl: Impl = "auto",
    final_state: bool = True,
) -> tuple[Tensor, TaylorState | None]:
    """Outputs of t tokens after `state` (None: they are the first), and the state after them;
    `state` is unchanged.

    Shapes: q, k (b, h, t, f), v (b, h, t, v), all of one floating type -> y (b, h, t, v) in that
    type, TaylorState. Any strides. Features, sums and normaliser are float32 or wider; kernels
    multiply half-precision operands as they are, with rounded features. `final_state=False` saves
    its computation and returns None instead: for a text of one chunk this is most of the work.
    Results depend on the implementation's chunk size, within rounding. Raises ValueError for
    shapes, types or an implementation that do not fit.
    """
    _check(q, k, v, state, axes=4)
    chosen = choose("taylor_attention", impl, q, k, v, *(state or ()), unsupported=_unsupported(q))
    if chosen == "triton":
        from recallkit.kernels.taylor_attention.triton_impl import taylor_attention_triton

        y, *after = taylor_attention_triton(q, k, v, *(state or (None, None)), eps, final_state)
        return y, TaylorState(*after) if final_state else None
    if chosen == "torch":
        return torch_impl.taylor_attention_torch(q, k, v, state, eps, final_state)
    y, last = reference.taylor_attention_reference(q, k, v, state or zero_state(q, v), eps)
    return y, last if final_state else None


def taylor_attention_step(
    q: Tensor, k: Tensor, v: Tensor, state: TaylorState, *, eps: float = 1e-12, impl: Impl = "auto"
) -> tuple[Tensor, TaylorState]:
    """The output of one token after `state`, and the state after it, which is a new one.

    Shapes: q, k (b, h, f), v (b, h, v), all of one floating type -> y (b, h, v) in that type,
    TaylorState. Raises ValueError as `taylor_attention` does.
    """
    _check(q, k, v, state, axes=3)
    chosen = choose("taylor_attention_step", impl, q, k, v, *state, unsupported=_unsupported(q))
    if chosen == "triton":
        from recallkit.kernels.taylor_attention.triton_impl import taylor_attention_step_triton

        y, *after = taylor_attention_step_triton(q, k, v, *state, eps)
        return y, TaylorState(*after)
    compute = (
        torch_impl.taylor_attention_step_torch
        if chosen == "torch"
        else reference.taylor_attention_step_reference
    )
    return compute(q, k, v, state, eps)


def _unsupported(q: Tensor) -> str | None:
    f = q.shape[-1]
    return f"feature_dim {f} is above {MOST_FEATURE_DIM}" if f > MOST_FEATURE_DIM else None


def _check(q: Tensor, k: Tensor, v: Tensor, state: TaylorState | None, *, axes: int) -> None:
    names = "(b, h, t, f), v (b, h, t, v)" if axes == 4 else "(b, h, f), v (b, h, v)"
    shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
    if q.ndim != axes or q.shape != k.shape or v.shape[:-1] != q.shape[:-1] or not q.shape[-1]:
        raise ValueError(f"q, k {names} do not fit: {shapes}")
    if not v.dtype == q.dtype == k.dtype or not v.dtype.is_floating_point:
        raise ValueError(
            f"q, k and v must have one floating type, not {q.dtype}, {k.dtype}, {v.dtype}"
        )
    if state is None:
        return
    shape, dtype = (
        (*q.shape[:2], num_taylor_features(q.shape[-1])),
        torch.promote_types(v.dtype, torch.float32),
    )
    for name, x, wanted in (("kv", state.kv, (*shape, v.shape[-1])), ("k", state.k, shape)):
        if x.shape != wanted or x.dtype != dtype:
            raise ValueError(
                f"the state's {name} must be {dtype} of shape {wanted}, not {x.dtype} of "
                f"{tuple(x.shape)}"
            )
