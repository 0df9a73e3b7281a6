"""Loops over tokens in the places of flash-linear-attention's functions: that they would be called
as the library documents it."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from recallkit.kernels.recurrences import triton_impl


def stand_in_for_the_library(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Installs the loops, with the arguments that the library's functions take. Returns the names
    that are called from then on."""
    called: list[str] = []

    def listed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *operands, **options: called.append(name) or function(*operands, **options)

    for function in (simple_gla, gla, rwkv6, delta_rule, gated_delta_rule, kda, rwkv7):
        names = [f"{kind}_{function.__name__}" for kind in ("chunk", "fused_recurrent")]
        module = types.SimpleNamespace(**{name: listed(name, function) for name in names})
        monkeypatch.setitem(sys.modules, f"fla.ops.{function.__name__}", module)
    monkeypatch.setattr(triton_impl, "installed", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return called


def recur(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    scale: float,
    s: Tensor | None,
    *,
    bonus: Any = None,
    erase: Any = None,
    write: Any = None,
) -> Any:
    assert q.shape == k.shape
    assert q.shape[:3] == v.shape[:3] == decay.shape[:3]
    assert q.dtype == k.dtype == v.dtype
    assert s is None or s.dtype == torch.float32
    s, outputs = (
        v.new_zeros(len(v), v.shape[2], k.shape[3], v.shape[3], dtype=torch.float32)
        if s is None
        else s,
        [],
    )
    for i in range(q.shape[1]):
        new, before = k[:, i, :, :, None].float() * v[:, i, :, None, :], s
        s = decay[:, i, :, :, None].exp() * s + new
        if erase is not None:
            s = (
                s
                + write[:, i, :, :, None].float()
                * torch.einsum("bhk,bhkv->bhv", erase[:, i].float(), before)[:, :, None, :]
            )
        visible = s if bonus is None else before + bonus[..., None] * new
        outputs.append(scale * (q[:, i, :, :, None] * visible).sum(-2))
    return torch.stack(outputs, 1).to(v.dtype), s


def simple_gla(q, k, v, g, *, scale, initial_state, output_final_state):
    assert output_final_state
    return recur(q, k, v, g[..., None], scale, initial_state)


def gla(q, k, v, g, *, scale, initial_state, output_final_state):
    assert output_final_state
    assert g.shape == k.shape
    return recur(q, k, v, g, scale, initial_state)


def rwkv6(r, k, v, w, u, *, scale, initial_state, output_final_state):
    assert output_final_state
    assert w.shape == k.shape
    assert u.shape == k.shape[2:]
    return recur(r, k, v, w, scale, initial_state, bonus=u)


def delta_rule(q, k, v, *, beta, scale, initial_state, output_final_state, g=None):
    assert output_final_state
    g = torch.zeros_like(beta)[..., None] if g is None else g
    q, k, values = (x.float() for x in (q, k, beta[..., None] * v))
    o, s = recur(
        q,
        k,
        values,
        g,
        scale,
        initial_state,
        erase=-beta[..., None] * g.exp() * k,
        write=k,
    )
    return o.to(v.dtype), s


def gated_delta_rule(q, k, v, *, g, **options):
    assert g.shape == k.shape[:3]
    return delta_rule(q, k, v, g=g[..., None], **options)


def kda(q, k, v, *, g, **options):
    assert g.shape == k.shape
    return delta_rule(q, k, v, g=g, **options)


def rwkv7(*, r, w, k, v, a, b, scale, initial_state, output_final_state):
    assert output_final_state
    assert w.shape == k.shape
    assert a.dtype == b.dtype == v.dtype
    return recur(r, k, v, w, scale, initial_state, erase=a, write=b)
