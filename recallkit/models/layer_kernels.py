"""Our kernels for the recurrent layers of transformers, behind the functions that these layers
call.

transformers' recurrent layers call a few functions of their own module: convolutions of a few taps,
selective scans, delta rules. Where the packages are missing whose kernels these can be (mamba_ssm,
causal_conv1d, fla), they are plain PyTorch, some of them a loop over time. `redirect` puts a switch
before each of them; within `own_kernels` a layer computes by `recallkit.kernels`, and everywhere
else, in other threads and in a user's own training, as before. Projections, norms, caches and masks
stay transformers'.

Which functions there are was read in transformers 5.23; a layer that calls none of them is left
alone.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from recallkit.kernels.linear_scan.api import linear_scan
from recallkit.kernels.recurrences.api import decayed_attention, delta_rule
from recallkit.kernels.rwkv4.api import rwkv4_attention
from recallkit.kernels.rwkv4.reference import Rwkv4State
from recallkit.kernels.selective_scan.api import selective_scan, selective_scan_step
from recallkit.kernels.short_conv.api import short_conv
from recallkit.models.mixers.api import widened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

_switched_on: ContextVar[bool] = ContextVar("recallkit_layer_kernels", default=False)

_LAYER = re.compile(r"\.(\d+)(?:\.|$)")
"""The number of a layer in the name of a module in it."""

_NORM = 1e-6
"""Beside the squared length of a query or key that is divided by its length."""


@contextlib.contextmanager
def own_kernels() -> Iterator[None]:
    """A block in which redirected layers compute by our kernels."""
    token = _switched_on.set(True)
    try:
        yield
    finally:
        _switched_on.reset(token)


def layers_by_kernel(model: torch.nn.Module) -> dict[str, list[int]]:
    """The numbers of the layers that can run on each of our kernels, by its name; empty where none
    can."""
    layers: dict[str, set[int]] = {}
    for name, module in model.named_modules():
        place = _LAYER.search(name)
        for function in _functions(type(module)):
            layers.setdefault(_KERNELS[function][0], set()).add(int(place[1]) if place else 0)
    return {kernel: sorted(numbers) for kernel, numbers in layers.items()}


def redirect(model: torch.nn.Module) -> bool:
    """Puts a switch before every function of transformers that a layer of this model calls and we
    have a kernel for; whether any is."""
    kinds = {type(module) for module in model.modules()}
    places = {(_owner(kind, function), function) for kind in kinds for function in _functions(kind)}
    for owner, function in places:
        present = getattr(owner, function)
        if not hasattr(present, "_is_switch"):
            setattr(owner, function, _switch(present, _KERNELS[function][1]))
    return bool(places)


def _functions(kind: type) -> list[str]:
    """Names of the functions in our table that the forward pass of a module of transformers
    calls."""
    if not kind.__module__.startswith("transformers.models."):
        return []
    names = inspect.unwrap(kind.forward).__code__.co_names  # type: ignore[attr-defined]
    return [name for name in names if name in _KERNELS and hasattr(_owner(kind, name), name)]


def _owner(kind: type, function: str) -> Any:
    """Where a function is looked up: in a class, or in the Python module that has the class."""
    return kind if function in vars(kind) else sys.modules[kind.__module__]


def _switch(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def switch(*args: Any, **options: Any) -> Any:
        # A model that its user compiles is traced through transformers' own function.
        if torch.compiler.is_compiling() or not _switched_on.get():
            return theirs(*args, **options)
        return ours(*args, **options)

    switch._is_switch = True  # type: ignore[attr-defined]
    return switch


# --------------------------------------------------------------- each with transformers' parameters


def _convolve(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> Tensor:
    """u (b, c, t), weight (c, k) -> (b, c, t)."""
    return _convolved(u, None, weight, bias, activation)


def _convolve_on(
    u: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """The same behind the latest inputs (b, c, k or k - 1), which are replaced in place."""
    latest = torch.cat([state, u.to(state.dtype)], dim=-1)
    y = _convolved(u, state[..., state.shape[-1] - weight.shape[1] + 1 :], weight, bias, activation)
    state.copy_(latest[..., -state.shape[-1] :])
    return y


def _convolved(
    u: Tensor,
    history: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
) -> Tensor:
    is_silu = activation in ("silu", "swish")
    before = None if history is None else history.transpose(1, 2)
    y, _ = short_conv(
        u.transpose(1, 2),
        weight,
        bias=bias,
        history=before,
        activation="silu" if is_silu else None,
    )
    if activation is not None and not is_silu:
        from transformers.activations import ACT2FN

        y = ACT2FN[activation](y)
    return y.transpose(1, 2)


def _scan(
    x: Tensor,
    dt: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    D: Tensor | None = None,  # noqa: N803 - as transformers names it
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **_: Any,
) -> Any:
    """x, dt, z (b, d, t), rates (d, n), write, read (b, n, t), D (d,) -> y (b, d, t) and on request
    the last state (b, d, n)."""
    x, dt, write, read = (part.permute(2, 0, 1) for part in (x, dt, write, read))
    y, last = selective_scan(
        *(x, dt, rates, write, read),
        skip=D,
        gate=None if z is None else z.permute(2, 0, 1),
        dt_bias=delta_bias,
        dt_softplus=delta_softplus,
    )
    y = y.permute(1, 2, 0)
    return (y, last.transpose(1, 2)) if return_last_state else y


def _scan_on(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    D: Tensor | None = None,  # noqa: N803 - as transformers names it
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    z: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """One id: state (b, d, n), replaced in place, x, dt, z (b, d), rates (d, n), write, read (b, n)
    -> y (b, d)."""
    y, last = selective_scan_step(
        *(x, dt, rates, write, read, state.transpose(1, 2)),
        skip=D,
        gate=z,
        dt_bias=dt_bias,
        dt_softplus=dt_softplus,
    )
    state.copy_(last.transpose(1, 2))
    return y


def _scan_heads(
    x: Tensor,
    dt: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    chunk_size: int = 0,
    D: Tensor | None = None,  # noqa: N803 - as transformers names it
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **_: Any,
) -> Any:
    """Mamba-2: x (b, t, h, p), dt (b, t, h), write, read (b, t, g, n), states (b, h, p, n) -> y as
    x, wide, and the last state.

    Of each head: rates, D and dt_bias (h,).
    """
    # The bias is added in float32: in bfloat16, steps of 0.001 would be lost in rounding.
    dt = widened(dt) if dt_bias is None else widened(dt) + dt_bias
    dt = (functional.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    start = None if initial_states is None else initial_states.transpose(2, 3)
    operands = _operands(read, write, x * dt.unsqueeze(-1), dtype=x.dtype)
    q, k, v = (part.transpose(1, 2) for part in operands)
    y, last = decayed_attention(q, k, v, (dt * rates).transpose(1, 2), start)
    y = widened(y).transpose(1, 2)
    y = (y if D is None else y + D.unsqueeze(-1) * x).contiguous()
    return (y, last.transpose(2, 3)) if return_final_states else y


def _scan_heads_on(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    rates: Tensor,
    write: Tensor,
    read: Tensor,
    D: Tensor | None = None,  # noqa: N803 - as transformers names it
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    z: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """One id: state (b, h, p, n), replaced in place, x, dt, z (b, h, p), write, read (b, g, n) -> y
    as x.

    Of each head, repeated along p and n: dt, rates (h, p, n), D and dt_bias (h, p).
    """
    y, last = _scan_heads(
        x.unsqueeze(1),
        dt[:, None, :, 0],
        rates[:, 0, 0],
        write.unsqueeze(1),
        read.unsqueeze(1),
        D=None if D is None else D[:, 0],
        dt_bias=None if dt_bias is None else dt_bias[:, 0],
        initial_states=state,
        dt_softplus=dt_softplus,
        return_final_states=True,
    )
    state.copy_(last)
    y = y.squeeze(1).to(x.dtype)
    return y if z is None else functional.silu(z).mul(y)


def _overwrite(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """The delta rule: query, key (b, t, g, k), value (b, t, h, v), decay g (b, t, h) or (b, t, h,
    k), beta (b, t, h) -> o as value."""
    shared = value.shape[2] // key.shape[2]
    q, k = widened(query), widened(key)
    if shared > 1:
        q, k = (part.repeat_interleave(shared, dim=2) for part in (q, k))
    if use_qk_l2norm_in_kernel:
        q, k = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + _NORM) for part in (q, k))
    q, k, v = (part.transpose(1, 2) for part in _operands(q, k, value, dtype=value.dtype))
    strength, log_decay = widened(beta).transpose(1, 2), widened(g).transpose(1, 2)
    o, last = delta_rule(q, k, v, strength, log_decay, initial_state, scale=query.shape[-1] ** -0.5)
    return o.transpose(1, 2).to(value.dtype), last if output_final_state else None


def _operands(*parts: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """Queries, keys and values in float32 or wider; on a GPU, where kernels need one type for all,
    in that of the layer."""
    return (part.to(dtype) if part.is_cuda else widened(part) for part in parts)


def _weigh(
    time_decay: Tensor,
    time_first: Tensor,
    key: Tensor,
    value: Tensor,
    state: Any = None,
    return_state: bool = False,
) -> tuple[Tensor, Any]:
    """RWKV-4: key, value (b, t, d), decay and bonus (d,), state of three (b, d) -> as value, and
    the state where there is one."""
    start = None if state is None else Rwkv4State(*state)
    y, last = rwkv4_attention(
        key.transpose(0, 1),
        value.transpose(0, 1),
        torch.exp(time_decay),
        time_first,
        start,
    )
    return y.transpose(0, 1), list(last) if return_state or state is not None else None


def _accumulate(
    _: Any,
    hidden_states: Tensor,
    recurrent_gate: Tensor,
    reset: Tensor,
    recurrent_states: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """RG-LRU: inputs and decays (b, t, d), reset (b, t, 1), state (b, d) -> as the inputs, and the
    last state in float32 or wider."""
    u, decay = (part.transpose(0, 1) for part in (hidden_states, recurrent_gate * ~reset))
    states, last = linear_scan(decay, u, recurrent_states)
    return states.transpose(0, 1), last


_KERNELS: dict[str, tuple[str, Callable[..., Any]]] = {
    "causal_conv1d_fn": ("short_conv", _convolve),
    "causal_conv1d_update": ("short_conv", _convolve_on),
    "mamba_selective_scan": ("selective_scan", _scan),
    "mamba_selective_state_update": ("selective_scan", _scan_on),
    "mamba2_chunk_scan": ("decayed_attention", _scan_heads),
    "mamba2_selective_state_update": ("decayed_attention", _scan_heads_on),
    "torch_chunk_gated_delta_rule": ("delta_rule", _overwrite),
    "torch_recurrent_gated_delta_rule": ("delta_rule", _overwrite),
    "chunk_kimi_delta_attention": ("delta_rule", _overwrite),
    "recurrent_kimi_delta_attention": ("delta_rule", _overwrite),
    "rwkv_linear_attention": ("rwkv4_attention", _weigh),
    "_rnn_scan": ("linear_scan", _accumulate),
}
"""For each function of transformers, the kernel of ours that computes it, and how."""
