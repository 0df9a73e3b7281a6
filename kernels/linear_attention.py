"""Causal linear attention in chunks, in PyTorch, for any feature map and with or without decays.

    y_i = sum_j<=i g^(i-j) phi(q_i).phi(k_j) v_j / (sum_j<=i phi(q_i).phi(k_j) + eps)

(Linear Transformers, arXiv 2006.16236, equations 8 to 12; g is RetNet's decay of a head, arXiv
2307.08621, equation 5.) `taylor_attention` uses it on CPU, and mixers with other maps on any
device: pairs within a chunk directly, earlier tokens through the state sum_j g^(i-j) phi(k_j)^T
v_j.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 128
"""Tokens per chunk, which are compared pair by pair. Shorter sequences are a single chunk."""


class FeatureMap(Protocol):
    """phi, whose scores may be computed without the features. `positions`: int64, as the leading
    axes of x, 1 last."""

    def __call__(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """(..., f) -> (..., features)."""

    def scores(self, q: Tensor, k: Tensor, positions: Tensor | None = None) -> Tensor:
        """(..., t, f) twice -> phi(q_i).phi(k_j) of all pairs, (..., t, t)."""


class LinearState(NamedTuple):
    """The state after the tokens so far."""

    kv: Tensor  # (b, h, features, v)
    k: Tensor | None  # (b, h, features), of the normaliser, where there is one


@dataclass(frozen=True, slots=True)
class Decay:
    """The decay of earlier tokens in each head."""

    logs: Tensor
    """Natural logarithms of g, (h,)."""
    in_normaliser: bool
    """Whether the normaliser is decayed, too."""


def linear_attention_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearState | None,
    feature_map: FeatureMap,
    *,
    eps: float | None,
    chunk: int = CHUNK,
    decay: Decay | None = None,
    positions: Tensor | None = None,
    final_state: bool = True,
) -> tuple[Tensor, LinearState | None]:
    """q, k: (b, h, t, f), v: (b, h, t, v) -> y (b, h, t, v), and on request the state after the
    last token; in float32 or wider.

    `eps`: None where y is the numerator alone. `positions`: int64, (..., t, 1). `state`: None
    before the first token.
    """
    outputs = []
    parts = list(zip(*(torch.split(_widened(x), chunk, dim=2) for x in (q, k, v)), strict=True))
    places = [None] * len(parts) if positions is None else torch.split(positions, chunk, dim=-2)
    with torch.autocast(q.device.type, enabled=False):
        for i, (place, (q_part, k_part, v_part)) in enumerate(zip(places, parts, strict=True)):
            fadings = _fadings(decay, q_part.shape[2])
            outputs.append(
                _outputs(q_part, k_part, v_part, state, feature_map, place, fadings, eps)
            )
            if final_state or i + 1 < len(parts):
                state = _advanced(
                    k_part, v_part, state, feature_map, place, fadings, eps is not None
                )
        return torch.cat(outputs, dim=2), state if final_state else None


def summed_state(k: Tensor, v: Tensor, feature_map: FeatureMap, *, normalise: bool) -> LinearState:
    """The state after tokens of these keys (b, h, t, f) and values (b, h, t, v), in whatever order;
    in float32 or wider."""
    with torch.autocast(k.device.type, enabled=False):
        return _advanced(
            _widened(k), _widened(v), None, feature_map, None, (Fading(), Fading()), normalise
        )


def linear_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearState,
    feature_map: FeatureMap,
    *,
    eps: float | None,
    decay: Decay | None = None,
    positions: Tensor | None = None,
) -> tuple[Tensor, LinearState]:
    """The same for one token: q, k: (b, h, f), v: (b, h, v), positions (..., 1) -> y (b, h, v) and
    a new state."""
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = (
            feature_map(_widened(q), positions),
            feature_map(_widened(k), positions),
            _widened(v),
        )
        powers = None if decay is None else decay.logs.exp()[:, None]
        kv = (
            faded(state.kv, None if powers is None else powers[..., None])
            + k[..., None] * v[..., None, :]
        )
        y = (q[..., None, :] @ kv)[..., 0, :]
        if eps is None:
            return y, LinearState(kv, None)
        assert state.k is not None
        total = faded(state.k, powers if decay is not None and decay.in_normaliser else None) + k
        return y / ((q * total).sum(dim=-1, keepdim=True) + eps), LinearState(kv, total)


def _outputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearState | None,
    feature_map: FeatureMap,
    positions: Tensor | None,
    fadings: tuple[Fading, Fading],
    eps: float | None,
) -> Tensor:
    """The outputs of one chunk that follows a state."""
    above, below = fadings
    weights = feature_map.scores(q, k, positions).tril()
    y = faded(weights, above.between) @ v
    total = None if eps is None else faded(weights, below.between).sum(dim=-1, keepdim=True)
    if state is not None:
        q = feature_map(q, positions)
        y = y + faded(q @ state.kv, above.since_start)
        if total is not None:
            assert state.k is not None
            total = total + faded(q @ state.k[..., None], below.since_start)
    return y if total is None or eps is None else y / (total + eps)


def _advanced(
    k: Tensor,
    v: Tensor,
    state: LinearState | None,
    feature_map: FeatureMap,
    positions: Tensor | None,
    fadings: tuple[Fading, Fading],
    normalise: bool,
) -> LinearState:
    """The state after one chunk."""
    above, below = fadings
    k = feature_map(k, positions)
    kv = faded(k, above.until_end).transpose(-1, -2) @ v
    total = faded(k, below.until_end).sum(dim=2) if normalise else None
    if state is not None:
        kv = kv + faded(state.kv, above.over_chunk)
    if state is not None and total is not None:
        assert state.k is not None
        total = total + faded(state.k[..., None], below.over_chunk)[..., 0]
    return LinearState(kv, total)


@dataclass(frozen=True, slots=True)
class Fading:
    """Powers of each head's decay g in a chunk of c tokens; None means ones."""

    between: Tensor | None = None
    """g^(i-j), (h, c, c); entries above the diagonal are not used."""
    since_start: Tensor | None = None
    """g^(i+1), (h, c, 1): of the state before the chunk, at token i."""
    until_end: Tensor | None = None
    """g^(c-1-j), (h, c, 1): of token j, in the state after the chunk."""
    over_chunk: Tensor | None = None
    """g^c, (h, 1, 1)."""


def faded(x: Tensor, powers: Tensor | None) -> Tensor:
    """Their product."""
    return x if powers is None else x * powers


def make_fading(log_decays: Tensor, size: int) -> Fading:
    """Powers from logarithms (h,), in their precision; exponents are never negative, so that no
    power is large."""
    logs = log_decays[:, None, None]
    places = torch.arange(size, device=logs.device)
    apart = (places[:, None] - places).clamp(min=0)
    return Fading(
        *(
            (logs * powers).exp()
            for powers in (apart, places[:, None] + 1, size - 1 - places[:, None], size)
        )
    )


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _fadings(decay: Decay | None, size: int) -> tuple[Fading, Fading]:
    """The decays of the numerator and of the normaliser in a chunk of this size."""
    if decay is None:
        return Fading(), Fading()
    fading = make_fading(decay.logs, size)
    return fading, fading if decay.in_normaliser else Fading()
