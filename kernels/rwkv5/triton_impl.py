"""`rwkv5_attention` for CUDA GPUs: flash-linear-attention's `rwkv6`, whose decays may depend on the token."""

from __future__ import annotations

import torch
from torch import Tensor

from recallkit.kernels import fla
from recallkit.kernels.linear_recurrence import state_shape


@torch.library.custom_op("recallkit::rwkv5_attention", mutates_args=())
def rwkv5_attention_triton(
    r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, bonus: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Shapes as in `rwkv5_attention`."""
    run = fla.operation("rwkv6", "rwkv6", r)
    r, k, v = (x.transpose(1, 2) for x in (r, k, v))
    s = None if state is None else state.float()
    o, s = run(r, k, v, log_decay.float().expand(k.shape), bonus.float(), scale=1.0, initial_state=s, output_final_state=True)
    return o.transpose(1, 2), s


@rwkv5_attention_triton.register_fake
def _(r: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, bonus: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    o = v.new_empty(v.shape[0], v.shape[2], v.shape[1], v.shape[3])
    return o.transpose(1, 2), v.new_empty(state_shape(r, v), dtype=torch.float32)
