"""`delta_rule`: linear attention that overwrites what its state has for a key, with a decay per head or per key channel.

S_i = A_i S_{i-1} + b_i k_i^T (v_i - k_i A_i S_{i-1}),  A_i = diag(a_i)        o_i = scale q_i S_i

DeltaNet (a = 1, arXiv 2406.06484, section 2.2), Gated DeltaNet (one a per head, arXiv 2412.06464, equation 10), Kimi delta
attention (one per channel, arXiv 2510.26692).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.kernels import fla
from recallkit.kernels.choice import Impl, choose
from recallkit.kernels.linear_recurrence import check_chunk, check_shapes

if TYPE_CHECKING:
    from torch import Tensor


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    log_decay: Tensor | None = None,
    state: Tensor | None = None,
    *,
    scale: float = 1.0,
    chunk: int = 64,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """o (b, h, t, v) in the type of v, and S (b, h, k, v) after the last token, in float32 or wider.

    Shapes: q, k (b, h, t, k), v (b, h, t, v), `strength`, b: (b, h, t); `log_decay`, ln a, at most 0: (b, h, t) or (b, h, t, k),
    a = 1 where None; `state`, S before the first token: (b, h, k, v), zeros where None. t may be 0. No eigenvalue is beyond 1 where
    0 <= b |k|^2 <= 2: give keys of length one. Sums are in float32 or wider. `chunk`: tokens per chunk in "torch"; the last bits
    of the results depend on it. `impl`: "triton" is flash-linear-attention's `delta_rule`, `gated_delta_rule` or `kda` (in chunks for half
    precision, else token by token), without a backward pass here. Raises ValueError for shapes or an implementation that do not fit.
    """
    check_shapes(q, k, v, state)
    check_chunk(chunk)
    _check(k, v, strength, log_decay)
    unsupported, slower = fla.obstacle(q, k, v), fla.slowness(q)
    chosen = choose("delta_rule", impl, q, k, v, strength, log_decay, state, unsupported=unsupported, slower=slower)
    if chosen == "triton" and v.numel():
        from recallkit.kernels.delta_rule.triton_impl import delta_rule_triton

        o, after = delta_rule_triton(q, k, v, strength, log_decay, state, scale)
        return o, after
    if chosen == "reference":
        from recallkit.kernels.delta_rule.reference import delta_rule_reference

        return delta_rule_reference(q, k, v, strength, log_decay, state, scale)
    from recallkit.kernels.delta_rule.torch_impl import delta_rule_torch

    return delta_rule_torch(q, k, v, strength, log_decay, state, scale, chunk)


def _check(k: Tensor, v: Tensor, strength: Tensor, log_decay: Tensor | None) -> None:
    if k.shape[1] != v.shape[1]:
        raise ValueError(f"q, k and v must have the same number of heads, not {k.shape[1]} and {v.shape[1]}")
    if strength.shape != k.shape[:3]:
        raise ValueError(f"strength must be (b, h, t) = {tuple(k.shape[:3])}, not {tuple(strength.shape)}")
    if log_decay is not None and log_decay.shape not in (k.shape[:3], k.shape):
        raise ValueError(f"log_decay must be (b, h, t) or (b, h, t, k) = {tuple(k.shape)}, not {tuple(log_decay.shape)}")
