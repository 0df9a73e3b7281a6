"""`taylor_attention` chunk by chunk: for CPU, and for gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.kernels.linear_attention import (
    CHUNK,
    LinearState,
    linear_attention_chunked,
    linear_attention_step,
)
from recallkit.kernels.taylor_attention.state import TaylorState, taylor_features, taylor_scores

if TYPE_CHECKING:
    from torch import Tensor


class _Taylor:
    """The feature map for the chunked form."""

    def __call__(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return taylor_features(x)

    def scores(self, q: Tensor, k: Tensor, positions: Tensor | None = None) -> Tensor:
        return taylor_scores(q, k)


def taylor_attention_torch(
    q: Tensor, k: Tensor, v: Tensor, state: TaylorState | None, eps: float, final_state: bool
) -> tuple[Tensor, TaylorState | None]:
    """Shapes as in `taylor_attention`, in float32 or wider."""
    before = None if state is None else LinearState(*state)
    y, after = linear_attention_chunked(
        q, k, v, before, _Taylor(), eps=eps, chunk=CHUNK, final_state=final_state
    )
    return y.to(v.dtype), None if after is None else _taylor_state(after)


def taylor_attention_step_torch(
    q: Tensor, k: Tensor, v: Tensor, state: TaylorState, eps: float
) -> tuple[Tensor, TaylorState]:
    """Shapes as in `taylor_attention_step`."""
    y, after = linear_attention_step(q, k, v, LinearState(*state), _Taylor(), eps=eps)
    return y.to(v.dtype), _taylor_state(after)


def _taylor_state(state: LinearState) -> TaylorState:
    assert state.k is not None
    return TaylorState(state.kv, state.k)
