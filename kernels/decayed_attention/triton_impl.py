"""`decayed_attention` for CUDA GPUs: flash-linear-attention's `simple_gla`."""

from __future__ import annotations

import torch
from torch import Tensor

from recallkit.kernels import fla
from recallkit.kernels.linear_recurrence import state_shape


@torch.library.custom_op("recallkit::decayed_attention", mutates_args=())
def decayed_attention_triton(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Shapes as in `decayed_attention`."""
    b, heads, t, _ = v.shape
    q, k = (x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1) for x in (q, k))
    # Its argument for constant decays, `g_gamma`, gives NaN states after strong decays and a last chunk that is not full (0.6.0).
    gates = log_decay.float().expand(b, t, heads) if log_decay.ndim == 1 else log_decay.float().transpose(1, 2)
    run, s = fla.operation("simple_gla", "simple_gla", q), None if state is None else state.float()
    o, s = run(*(x.transpose(1, 2) for x in (q, k, v)), g=gates, scale=scale, initial_state=s, output_final_state=True)
    return o.transpose(1, 2), s


@decayed_attention_triton.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    o = v.new_empty(v.shape[0], v.shape[2], v.shape[1], v.shape[3])
    return o.transpose(1, 2), v.new_empty(state_shape(q, v), dtype=torch.float32)
