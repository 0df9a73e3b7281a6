"""`selective_scan`: the recurrence of Mamba (Gu and Dao 2023, arXiv 2312.00752, section 3,
algorithm 2), for a whole text or one step.

h_i = exp(dt_i A) h_{i-1} + dt_i x_i B_i        y_i = (C_i h_i + D x_i) silu(z_i)

Each of d channels has n state entries; A = `rates`, B = `write`, C = `read`, D = `skip`, z =
`gate`; D and z are optional. A step dt_i is given as it is, or as what a projection returns: with
`dt_bias` and `dt_softplus` it is softplus(dt + bias).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.kernels.choice import Impl, check_shapes, choose
from recallkit.kernels.selective_scan.reference import selective_scan_reference
from recallkit.kernels.selective_scan.torch_impl import (
    selective_scan_step_torch,
    selective_scan_torch,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

MOST_STATE = 32
"""Most state entries per channel, which one or two lanes of a GPU keep in registers."""


def selective_scan(
    x: Tensor,
    dt: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    start: Tensor | None = None,
    *,
    skip: Tensor | None = None,
    gate: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """All steps of texts with time as the first axis -> y (t, b, d), in the type of x, and the
    state after the last step (b, n, d).

    Shapes: x, dt, gate (t, b, d), rates (d, n), write and read (t, b, n), start (b, n, d): the
    state before the first step, zeros where None; skip and dt_bias (d,). Any strides. Steps > 0 and
    rates < 0 give a decaying recurrence, but are not required. rates, start and dt_bias should be
    float32 or wider, and dt where it is a step itself; x, write, read, gate and a projection's dt
    may be half precision. Everything is computed, and the state returned, in the widest of the
    inputs' types, at least float32; y, laid out like x, is rounded once. A row depends on no other
    row, "triton" only on how many there are.
    `impl`: "reference" and "torch" are differentiable in all tensors. "triton" computes in float32,
    for n <= 32, the b d channels in parallel, 32 per warp, and a text sequentially; where t >= 512
    and b d <= 12288, its pieces are read in parallel (`piece_length`), which depends on these sizes
    alone. Raises ValueError for shapes or an implementation that do not fit.
    """
    inputs = (x, dt, rates, write, read, start, skip, gate, dt_bias)
    return _run("selective_scan", impl, selective_scan_torch, inputs, dt_softplus)


def selective_scan_step(
    x: Tensor,
    dt: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    state: Tensor,
    *,
    skip: Tensor | None = None,
    gate: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """One step of each row -> y (b, d) and a new state (b, n, d); `state` is unchanged. As
    `selective_scan`, without the time axis.

    Shapes: x, dt, gate (b, d), rates (d, n), write and read (b, n), state (b, n, d), skip and
    dt_bias (d,).
    """
    x, dt, write, read = (timed.unsqueeze(0) for timed in (x, dt, write, read))
    gate = None if gate is None else gate.unsqueeze(0)
    inputs = (x, dt, rates, write, read, state, skip, gate, dt_bias)
    y, last = _run("selective_scan_step", impl, selective_scan_step_torch, inputs, dt_softplus)
    return y.squeeze(0), last


def _run(
    op: str,
    impl: Impl,
    in_torch: Callable[..., tuple[Tensor, Tensor]],
    inputs: Any,
    dt_softplus: bool,
) -> tuple[Tensor, Tensor]:
    """Checks the inputs, in the order of `selective_scan_torch`'s, and runs the implementation that
    is chosen."""
    x, dt, rates, write, read, start, skip, gate, dt_bias = inputs
    if x.ndim != 3 or rates.ndim != 2 or rates.shape[0] != x.shape[2] or rates.shape[1] == 0:
        shapes = f"{tuple(x.shape)}, {tuple(rates.shape)}"
        raise ValueError(f"x (..., b, d) and rates (d, n) do not fit: {shapes}")
    (t, b, d), n = x.shape, rates.shape[1]
    check_shapes(dt=(dt, (t, b, d)), write=(write, (t, b, n)), read=(read, (t, b, n)))
    check_shapes(
        state=(start, (b, n, d)), skip=(skip, (d,)), gate=(gate, (t, b, d)), dt_bias=(dt_bias, (d,))
    )
    wide = f"a channel's state has {n} entries, more than {MOST_STATE}" if n > MOST_STATE else None
    chosen = choose(op, impl, *inputs, unsupported=wide)
    if chosen == "triton":
        from recallkit.kernels.selective_scan.triton_impl import selective_scan_triton

        y, last = selective_scan_triton(*inputs, dt_softplus)
        return y, last
    run: Callable[..., tuple[Tensor, Tensor]] = (
        selective_scan_reference if chosen == "reference" else in_torch
    )
    return run(*inputs, dt_softplus)
