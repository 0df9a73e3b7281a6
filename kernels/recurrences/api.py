"""Linear attention with a matrix-valued state S (k, v), which every token fades, adds to, and may
overwrite.

    decayed_attention        S_i = a_i S_{i-1} + k_i^T v_i                           o_i = scale q_i
    S_i gated_linear_attention   S_i = diag(a_i) S_{i-1} + k_i^T v_i                     o_i = scale
    q_i S_i delta_rule               S_i = A_i S_{i-1} + b_i k_i^T (v_i - k_i A_i S_{i-1})   o_i =
    scale q_i S_i,   A_i = diag(a_i) rwkv5_attention          S_i = diag(w) S_{i-1} + k_i^T v_i
    o_i = r_i (S_{i-1} + diag(u) k_i^T v_i) rwkv7_attention          S_i = diag(a_i) S_{i-1} - w_i^T
    (e_i S_{i-1}) + k_i^T v_i                          o_i = r_i S_i

All take q or r and k (b, h, t, k), v (b, h, t, v) and `state`, S before the first token: (b, h, k,
v), zeros where None, and return o (b, h, t, v) in the type of v, and S after the last token, in
float32 or wider. t may be 0. Decays are given as logarithms, at most 0. Sums are in float32 or
wider. `chunk`: tokens per chunk in "torch"; the last bits of the results depend on it. `impl`:
"triton" is flash-linear-attention (in chunks for half precision, else token by token), without a
backward pass here. They raise ValueError for shapes or an implementation that do not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.kernels.choice import Impl, check_shapes, choose

if TYPE_CHECKING:
    from torch import Tensor


def decayed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    *,
    scale: float = 1.0,
    chunk: int = 64,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """One decay per head, constant or token-dependent: `log_decay`, ln a: (h,) or (b, h, t).

    Constant decays are the retention of RetNet (arXiv 2307.08621, equations 5 to 8),
    token-dependent decays the state space duality of Mamba-2 (arXiv 2405.21060, section 6), where
    q, k, v are its C, B and dt x, and ln a_i = dt_i A. Successive heads of v share a q and k (b, g,
    t, k) where g < h divides h.
    """
    b, h, t, _ = v.shape
    check_shapes(log_decay=(log_decay, (h,) if log_decay.ndim == 1 else (b, h, t)))
    return _run("decayed_attention", impl, chunk, (q, k, v, log_decay), state, scale)


def gated_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    *,
    scale: float = 1.0,
    chunk: int = 16,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """A decay per token and key channel (arXiv 2312.06635, section 4): `log_decay`, ln a: (b, h, t,
    k)."""
    check_shapes(log_decay=(log_decay, k.shape))
    return _run("gated_linear_attention", impl, chunk, (q, k, v, log_decay), state, scale)


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
    """Overwrites what the state has for a key: `strength`, b: (b, h, t); `log_decay`, ln a: (b, h,
    t) or (b, h, t, k), a = 1 where None.

    DeltaNet (a = 1, arXiv 2406.06484, section 2.2), Gated DeltaNet (one a per head, arXiv
    2412.06464, equation 10), Kimi delta attention (one per channel, arXiv 2510.26692). No
    eigenvalue is beyond 1 where 0 <= b |k|^2 <= 2: give keys of length one.
    """
    check_shapes(strength=(strength, k.shape[:3]))
    if log_decay is not None:
        check_shapes(
            log_decay=(log_decay, k.shape[: log_decay.ndim] if log_decay.ndim > 2 else k.shape)
        )
    return _run("delta_rule", impl, chunk, (q, k, v, strength, log_decay), state, scale)


def rwkv5_attention(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    bonus: Tensor,
    state: Tensor | None = None,
    *,
    chunk: int = 64,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """Key channels have constant decays, ln w, the present token a bonus u: both (h, k). RWKV-5,
    "Eagle", arXiv 2404.05892."""
    wanted = (k.shape[1], k.shape[-1])
    check_shapes(log_decay=(log_decay, wanted), bonus=(bonus, wanted))
    return _run("rwkv5_attention", impl, chunk, (r, k, v, log_decay, bonus), state, 1.0)


def rwkv7_attention(
    r: Tensor,
    k: Tensor,
    v: Tensor,
    erase: Tensor,
    write: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    *,
    chunk: int = 32,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """Reads its state with one key, `erase` e, and takes away what it finds under another, `write`
    w; all, with ln a, (b, h, t, k).

    The time mixing of RWKV-7, "Goose", arXiv 2503.14456, where w_i is e_i times a share of each
    channel. The state is multiplied by a diagonal plus any matrix of rank one; `delta_rule` is its
    case w = k, e = b diag(a) k, with values b v.
    """
    check_shapes(erase=(erase, k.shape), write=(write, k.shape), log_decay=(log_decay, k.shape))
    return _run("rwkv7_attention", impl, chunk, (r, k, v, erase, write, log_decay), state, 1.0)


def _run(
    name: str, impl: Impl, chunk: int, tensors: tuple[Any, ...], state: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """The recurrence `name` by the implementation that runs on these tensors, q, k and v first."""
    from recallkit.kernels.recurrences.triton_impl import obstacle, slowness

    q, k, v = tensors[:3]
    if (
        not q.ndim == k.ndim == v.ndim == 4
        or q.shape != k.shape
        or (q.shape[0], q.shape[2]) != (v.shape[0], v.shape[2])
    ):
        raise ValueError(
            f"q and k (b, h, t, k) and v (b, h, t, v) do not fit: {tuple(q.shape)}, "
            f"{tuple(k.shape)}, {tuple(v.shape)}"
        )
    if q.shape[1] != v.shape[1] and (
        name != "decayed_attention" or q.shape[1] < 1 or v.shape[1] % q.shape[1]
    ):
        raise ValueError(f"v has {v.shape[1]} heads, which do not fit the {q.shape[1]} of q and k")
    if not (q.is_floating_point() and k.is_floating_point() and v.is_floating_point()):
        raise ValueError(
            f"q, k and v must be floating-point tensors, not {q.dtype}, {k.dtype}, {v.dtype}"
        )
    check_shapes(state=(state, (*v.shape[:2], q.shape[3], v.shape[3])))
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}, not a positive number of tokens")
    chosen = choose(name, impl, *tensors, state, unsupported=obstacle(q, k, v), slower=slowness(q))
    if chosen == "triton" and v.numel():
        from recallkit.kernels.recurrences import triton_impl

        o, after = getattr(triton_impl, name)(*tensors, state, scale)
        return o, after
    if chosen == "reference":
        from recallkit.kernels.recurrences import reference

        o, after = getattr(reference, name)(*tensors, state, scale)
        return o, after
    from recallkit.kernels.recurrences import torch_impl

    o, after = getattr(torch_impl, name)(*tensors, state, scale, chunk)
    return o, after
