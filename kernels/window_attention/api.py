"""`window_attention` and `window_attention_step`: softmax attention to the latest `window` keys,
including the query's own.

y[i] = sum_{j in S(i)} softmax_j(q[i] . k[j] / sqrt(k)) v[j],   S(i) = {max(0, i - window + 1), ...,
i}

(Longformer, arXiv 2004.05150, section 3.1, made causal; Based, arXiv 2402.18668, section 4.2, with
windows of 64 and 128.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.kernels.choice import Impl, check_alike, choose
from recallkit.kernels.window_attention import reference, torch_impl

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.window_attention.state import WindowState


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, window: int, *, impl: Impl = "auto"
) -> Tensor:
    """Attention of a whole text from its first token on: q, k, v (b, h, t, k), q and k already
    rotated -> y (b, h, t, k).

    All of one dtype, which is the result's; sums are in float32 or wider. Costs 2 window t pairs.
    `impl`: "reference" computes query by query, "torch" blocks of tokens, differentiable; "triton"
    is flex_attention through `masked_attention`, compiled for CUDA only: it cannot be interpreted,
    so on CPU it raises. Where the window covers the text, `auto` takes "torch". Raises ValueError
    for shapes, types or an implementation that do not fit.
    """
    check_alike(4, q=q, k=k, v=v)
    _check_window(window)
    covered = (
        "the window covers the text, which is causal attention" if q.shape[2] <= window else None
    )
    chosen = choose(
        "window_attention", impl, q, k, v, unsupported=_flex_obstacle(q), slower=covered
    )
    if chosen == "triton":
        from recallkit.kernels.window_attention.triton_impl import window_attention_triton

        return window_attention_triton(q, k, v, window)
    return (
        torch_impl.window_attention_torch
        if chosen == "torch"
        else reference.window_attention_reference
    )(q, k, v, window)


def window_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: WindowState,
    *,
    rope_base: float = 10000.0,
    rope_width: int,
    inplace: bool = False,
    impl: Impl = "auto",
) -> tuple[Tensor, WindowState]:
    """The next token of each row: q, k, v (b, h, k), not rotated yet -> its output y (b, h, k) and
    the new state.

    q and k are rotated by the row's position, state.num_read: entries i and i + rope_width/2 by the
    angle position * rope_base^(-2 i / rope_width) (RoFormer, arXiv 2104.09864, equation 15), exact
    at any position; entries from `rope_width` on are not rotated. The new key and value replace the
    oldest. Rows may have read different numbers of tokens.

    q, k, v and the rings and y have one dtype; angles are computed in float64, everything else in
    float32 or wider. The given state is unchanged; with `inplace` its rings are overwritten and
    returned with a new `num_read`. Rows are independent.
    `impl`: "reference" computes row by row, "torch" is differentiable (not in place), "triton" is
    one launch that reads and, without `inplace`, writes the rings. Raises ValueError for shapes,
    types or an implementation that do not fit.
    """
    _check_step(q, k, v, state, rope_width, inplace=inplace)
    chosen = choose("window_attention_step", impl, q, k, v, *state)
    if chosen == "triton":
        from recallkit.kernels.window_attention.triton_impl import step_triton

        return step_triton(q, k, v, state, rope_base, rope_width, inplace)
    step = torch_impl.step_torch if chosen == "torch" else reference.step_reference
    return step(q, k, v, state, rope_base, rope_width, inplace)


def _flex_obstacle(q: Tensor) -> str | None:
    """Why `masked_attention` cannot run FlexAttention; None where it can."""
    if not q.is_cuda:
        return (
            "FlexAttention is compiled for CUDA only, and has no interpreter; on CPU use "
            "impl='torch'"
        )
    if q.shape[3] < 16 or 0 in q.shape:
        return (
            "FlexAttention needs heads at least 16 wide, and at least one token, not "
            f"{tuple(q.shape)}"
        )
    return (
        "its table of blocks cannot be computed inside torch.compile"
        if torch.compiler.is_compiling()
        else None
    )


def _check_step(
    q: Tensor, k: Tensor, v: Tensor, state: WindowState, rope_width: int, *, inplace: bool
) -> None:
    keys, values, num_read = state
    check_alike(3, q=q, k=k, v=v)
    b, h, width = q.shape
    if (
        keys.ndim != 4
        or keys.shape != values.shape
        or (*keys.shape[:2], keys.shape[3]) != (b, h, width)
    ):
        raise ValueError(
            f"rings must be ({b}, {h}, window, {width}): keys {tuple(keys.shape)}, values "
            f"{tuple(values.shape)}"
        )
    _check_window(keys.shape[2])
    if not q.dtype == keys.dtype == values.dtype:
        raise ValueError(
            f"the rings must be of the floating type of q, {q.dtype}, not {keys.dtype} and "
            f"{values.dtype}"
        )
    if num_read.shape != (b,) or num_read.dtype != torch.int64:
        raise ValueError(
            f"num_read must be int64 of shape ({b},), not {num_read.dtype} of "
            f"{tuple(num_read.shape)}"
        )
    if not 0 <= rope_width <= width or rope_width % 2:
        raise ValueError(f"rope_width must be even and at most {width}, not {rope_width}")
    if inplace and not (keys.is_contiguous() and values.is_contiguous()):
        raise ValueError("rings that are written in place must be contiguous")


def _check_window(window: int) -> None:
    if window < 1:
        raise ValueError(f"a window of {window} keys sees nothing")
