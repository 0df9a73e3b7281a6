"""`gated_linear_attention` for CUDA GPUs: flash-linear-attention's `gla`."""

from __future__ import annotations

import torch
from torch import Tensor

from recallkit.kernels import fla
from recallkit.kernels.linear_recurrence import state_shape


@torch.library.custom_op("recallkit::gated_linear_attention", mutates_args=())
def gated_linear_attention_triton(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Shapes as in `gated_linear_attention`."""
    run = fla.operation("gla", "gla", q)
    # The fourth argument is named `g` in the one of its functions and `gk` in the other.
    given = (x.transpose(1, 2) for x in (q, k, v, log_decay.float()))
    o, s = run(*given, scale=scale, initial_state=None if state is None else state.float(), output_final_state=True)
    return o.transpose(1, 2), s


@gated_linear_attention_triton.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    o = v.new_empty(v.shape[0], v.shape[2], v.shape[1], v.shape[3])
    return o.transpose(1, 2), v.new_empty(state_shape(q, v), dtype=torch.float32)
