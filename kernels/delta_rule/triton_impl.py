"""`delta_rule` for CUDA GPUs: flash-linear-attention's `delta_rule`, `gated_delta_rule` or `kda`, by the decays that there are."""

from __future__ import annotations

import torch
from torch import Tensor

from recallkit.kernels import fla
from recallkit.kernels.linear_recurrence import state_shape


@torch.library.custom_op("recallkit::delta_rule", mutates_args=())
def delta_rule_triton(
    q: Tensor, k: Tensor, v: Tensor, strength: Tensor, log_decay: Tensor | None, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Shapes as in `delta_rule`."""
    name = "delta_rule" if log_decay is None else "gated_delta_rule" if log_decay.ndim == 3 else "kda"
    run, decays = fla.operation(name, name, q), {} if log_decay is None else {"g": log_decay.float().transpose(1, 2)}
    q, k, v, strength = (x.transpose(1, 2) for x in (q, k, v, strength.float()))
    s = None if state is None else state.float()
    o, s = run(q, k, v, beta=strength, **decays, scale=scale, initial_state=s, output_final_state=True)
    return o.transpose(1, 2), s


@delta_rule_triton.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, strength: Tensor, log_decay: Tensor | None, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    o = v.new_empty(v.shape[0], v.shape[2], v.shape[1], v.shape[3])
    return o.transpose(1, 2), v.new_empty(state_shape(q, v), dtype=torch.float32)
