"""`rwkv7_attention` for CUDA GPUs: flash-linear-attention's `rwkv7`."""

from __future__ import annotations

import torch
from torch import Tensor

from recallkit.kernels import fla
from recallkit.kernels.linear_recurrence import state_shape


@torch.library.custom_op("recallkit::rwkv7_attention", mutates_args=())
def rwkv7_attention_triton(
    r: Tensor, k: Tensor, v: Tensor, erase: Tensor, write: Tensor, log_decay: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Shapes as in `rwkv7_attention`."""
    run = fla.operation("rwkv7", "rwkv7", r)
    r, k, v, a, b, w = (x.transpose(1, 2) for x in (r, k, v, -erase.to(r.dtype), write.to(r.dtype), log_decay.float()))
    s = None if state is None else state.float()
    o, s = run(r=r, w=w, k=k, v=v, a=a, b=b, scale=1.0, initial_state=s, output_final_state=True)
    return o.transpose(1, 2), s


@rwkv7_attention_triton.register_fake
def _(r: Tensor, k: Tensor, v: Tensor, erase: Tensor, write: Tensor, log_decay: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    o = v.new_empty(v.shape[0], v.shape[2], v.shape[1], v.shape[3])
    return o.transpose(1, 2), v.new_empty(state_shape(r, v), dtype=torch.float32)
