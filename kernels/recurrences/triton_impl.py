"""The recurrences on CUDA GPUs, by flash-linear-attention (extra `gpu`).

The library is imported when one of its kernels first runs. Its tensors are (b, t, h, width), its
states (b, h, k, v) in float32; it tunes itself, so that the last bit of a result may differ between
GPUs.
"""

from __future__ import annotations

import importlib
import importlib.util

import torch
from torch import Tensor

_INSTALLED = importlib.util.find_spec("fla") is not None

RECURRENT_TOKENS = 64
"""Texts of at most this many tokens are processed one by one, entirely in float32, as in the
library's own layers."""


def installed() -> bool:
    """Whether the library is installed."""
    return _INSTALLED


def obstacle(*tensors: Tensor) -> str | None:
    """Why the library cannot process these queries, keys and values; None where it can."""
    if not installed():
        return "it needs flash-linear-attention: pip install 'recallkit-lm[gpu]'"
    if len({tensor.dtype for tensor in tensors}) > 1:
        return (
            "it needs one type for all, not "
            f"{', '.join(str(tensor.dtype)[6:] for tensor in tensors)}"
        )
    return None


def slowness(q: Tensor) -> str | None:
    """Why PyTorch is preferable for these queries (b, h, t, k); None where it is not."""
    if q.dtype == torch.float32 and q.shape[2] > RECURRENT_TOKENS:
        return (
            "flash-linear-attention rounds the products of float32 chunks to TF32, and its exact "
            "kernels go token by token"
        )
    return None


def decayed_attention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Shapes as in `api`, here and below."""
    b, heads, t, _ = v.shape
    q, k = (
        x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
        for x in (q, k)
    )
    # Its argument for constant decays, `g_gamma`, gives NaN states after strong decays and a last
    # chunk that is not full (0.6.0).
    gates = log_decay.view(-1, 1).expand(b, heads, t) if log_decay.ndim == 1 else log_decay
    return _of_tokens("simple_gla", "q k v g", [q, k, v, gates.float()], state, scale)


def gated_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """`gla`, whose fourth argument is named `g` in one of its functions and `gk` in the other."""
    return _of_tokens("gla", "", [q, k, v, log_decay.float()], state, scale)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    log_decay: Tensor | None,
    state: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`delta_rule`, `gated_delta_rule` or `kda`, by the decays that there are."""
    if log_decay is None:
        return _of_tokens("delta_rule", "q k v beta", [q, k, v, strength.float()], state, scale)
    family = "gated_delta_rule" if log_decay.ndim == 3 else "kda"
    return _of_tokens(
        family, "q k v beta g", [q, k, v, strength.float(), log_decay.float()], state, scale
    )


def rwkv5_attention(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    bonus: Tensor,
    state: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`rwkv6`, whose decays may depend on the token."""
    decays = log_decay.float()[:, None].expand(k.shape)
    return _of_tokens("rwkv6", "r k v w u", [r, k, v, decays], state, scale, bonus.float())


def rwkv7_attention(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    erase: Tensor,
    write: Tensor,
    log_decay: Tensor,
    state: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`rwkv7`, which adds what is read with its `a` under its `b`."""
    return _of_tokens(
        "rwkv7",
        "r k v a b w",
        [r, k, v, -erase.to(r.dtype), write.to(r.dtype), log_decay.float()],
        state,
        scale,
    )


def _of_tokens(
    family: str,
    names: str,
    tensors: list[Tensor],
    state: Tensor | None,
    scale: float,
    *constant: Tensor,
) -> tuple[Tensor, Tensor]:
    """`tensors`: (b, h, t, ...), of which the first three are q, k and v; `constant`: as the
    library takes it."""
    o, s = fla_operation(
        family, names, [*(x.transpose(1, 2) for x in tensors), *constant], state, scale
    )
    return o.transpose(1, 2), s


@torch.library.custom_op("recallkit::fla_operation", mutates_args=())
def fla_operation(
    family: str, names: str, tensors: list[Tensor], state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """The function of `fla.ops.<family>` for these texts: in chunks, or token by token. `names`: of
    the arguments; "": in order."""
    q = tensors[0]
    kind = (
        "fused_recurrent" if q.dtype == torch.float32 or q.shape[1] <= RECURRENT_TOKENS else "chunk"
    )
    run = getattr(importlib.import_module(f"fla.ops.{family}"), f"{kind}_{family}")
    options = {
        "scale": scale,
        "initial_state": None if state is None else state.float(),
        "output_final_state": True,
    }
    arguments = dict(zip(names.split(), tensors, strict=True)) if names else {}
    o, s = run(**arguments, **options) if arguments else run(*tensors, **options)
    return o, s


@fla_operation.register_fake
def _(
    family: str, names: str, tensors: list[Tensor], state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    q, _, v = tensors[:3]
    return v.new_empty(v.shape), v.new_empty(
        v.shape[0], v.shape[2], q.shape[3], v.shape[3], dtype=torch.float32
    )
