"""Linear attention with a choice of feature maps; with the Taylor map it is the global half of
Based."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from recallkit.kernels.linear_attention import (
    CHUNK,
    Decay,
    LinearState,
    linear_attention_chunked,
    linear_attention_step,
)
from recallkit.kernels.taylor_attention.api import taylor_attention, taylor_attention_step
from recallkit.kernels.taylor_attention.state import TaylorState
from recallkit.models.mixers.api import (
    Mixer,
    State,
    applied,
    chunk_pairs,
    chunk_sizes,
    linear_flops,
    widened,
)
from recallkit.models.mixers.feature_maps import make_feature_map
from recallkit.models.mixers.short_conv import (
    convolution_flops,
    initial_history,
    make_short_conv,
    read_convolved,
)

if TYPE_CHECKING:
    from torch import Tensor

DECAYS = (None, "fixed", "input")


class LinearAttention(Mixer):
    """Causal linear attention of heads h, with q_i, k_i of `feature_dim` (f) entries and v_i of
    d/h.

        y_i = sum_j<=i g^(i-j) phi(q_i).phi(k_j) v_j / (sum_j<=i phi(q_i).phi(k_j) + eps)

    Linear Transformers, arXiv 2006.16236, equations 8 to 12; with phi the Taylor map (`taylor`)
    Based, arXiv 2402.18668, section 4.1. There are neither biases nor position embeddings. With
    `decay="fixed"` g is 1 - 2^(-decay_exponent - head), per-head decays as in RetNet (arXiv
    2307.08621, equation 8, whose exponent is 5); the code that Based was trained with takes 3, and
    decays the numerator alone, as here. With `decay="input"` (Based, appendix C) the decays depend
    on the input: g^(i-j) of a head h becomes (W_g u_i)_h g^(i-j), in the numerator alone, with W_g
    of d to heads and no function after it. The factor belongs to the token that reads, so that it
    scales what a head has read, and no scan is needed. The weights of `identity` may sum to zero: y
    is then the numerator. `short_conv` applies a causal convolution of that many taps to every
    channel of q, k and v; its last inputs, `recent`, are then part of the state.
    """

    chunk = CHUNK

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int = 4,
        feature_dim: int = 16,
        feature_map: str = "taylor",
        decay: str | None = None,
        decay_exponent: int = 3,
        eps: float = 1e-12,
        max_length: int | None = None,
        num_features: int | None = None,
        short_conv: int = 0,
    ) -> None:
        super().__init__(d_model)
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(f"d_model {d_model} is not a multiple of num_heads {num_heads}")
        if decay_exponent < 1:
            problem = f"1 - 2^-{decay_exponent} is not a decay"
            raise ValueError(f"decay_exponent {decay_exponent} is not positive: {problem}")
        if decay not in DECAYS:
            raise ValueError(f"decay {decay!r} is not one of {', '.join(map(str, DECAYS))}")
        self.feature_map = make_feature_map(
            feature_map,
            feature_dim,
            max_length=max_length,
            num_features=num_features,
        )
        self.normalise = self.feature_map.has_positive_scores
        if self.feature_map.needs_positions:
            self.max_length = max_length
        self.num_heads, self.feature_dim, self.head_dim = (
            num_heads,
            feature_dim,
            d_model // num_heads,
        )
        self.decay, self.decay_exponent = decay is not None, decay_exponent
        self.is_taylor_attention = feature_map == "taylor" and self.normalise and not self.decay
        self.eps = eps
        self.q_proj = nn.Linear(d_model, num_heads * feature_dim, bias=False)
        self.k_proj = nn.Linear(d_model, num_heads * feature_dim, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.decay_proj = nn.Linear(d_model, num_heads, bias=False) if decay == "input" else None
        self.short_conv = make_short_conv(2 * num_heads * feature_dim + d_model, short_conv)

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.forward`. Raises ValueError for more tokens than `max_length`, where a feature
        map has one."""
        self._check_length(u.shape[1])
        z, _ = read_convolved(self.short_conv, self._project(u), {})
        q, k, v = self._split(z)
        positions = None
        if self.feature_map.needs_positions:
            positions = torch.arange(u.shape[1], device=u.device)[:, None]
        y, _ = self._scan(q, k, v, positions, None, final_state=False)
        return self._merge(y, u)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: all pairwise weights, from unpacked features."""
        z = self._project(u)
        q, k, v = map(
            widened,
            self._split(z if self.short_conv is None else self.short_conv.reference(z)),
        )
        positions = torch.arange(u.shape[1], device=u.device)[:, None]
        q, k = self.feature_map.reference(q, positions), self.feature_map.reference(k, positions)
        decays = q.new_ones(self.num_heads, 1)
        if self.decay:
            decays = log_decays(self.num_heads, self.decay_exponent, q).exp()[:, None]
        factors = None if self.decay_proj is None else widened(self.decay_proj(u))
        outputs = []
        for i in range(u.shape[1]):
            weights = (q[:, :, i, None] * k[:, :, : i + 1]).sum(dim=-1)
            faded = weights * decays ** torch.arange(i, -1, -1, device=u.device)
            y = (faded[..., None] * v[:, :, : i + 1]).sum(dim=2)
            if self.normalise:
                y = y / (weights.sum(dim=-1, keepdim=True) + self.eps)
            outputs.append(y if factors is None else y * factors[:, i, :, None])
        return self._joined(torch.stack(outputs, dim=2), u)

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: `kv` (b, h, features, v), `k` (b, h, features) where
        normalised, `num_read` where positions matter."""
        weight = self.out_proj.weight
        zeros = widened(weight).new_zeros(batch, self.num_heads, self.feature_map.num_features)
        state = {"kv": zeros[..., None].repeat(1, 1, 1, self.head_dim)}
        if self.normalise:
            state["k"] = zeros
        if self.feature_map.needs_positions:
            state["num_read"] = torch.zeros(batch, dtype=torch.int64, device=weight.device)
        return state | initial_history(self.short_conv, batch)

    def step(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.step`. Raises ValueError as `forward` does."""
        if self.max_length is not None:
            self._check_length(int(state["num_read"].max()) + 1)
        z, recent = read_convolved(self.short_conv, self._project(u[:, None]), state)
        q, k, v = (part[:, :, 0] for part in self._split(z))
        positions = state["num_read"][:, None, None] if self.feature_map.needs_positions else None
        y, new = self._advance(q, k, v, positions, state)
        if self.feature_map.needs_positions:
            new["num_read"] = state["num_read"] + 1
        return self._merge(y[:, :, None], u[:, None])[:, 0], new | recent

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`: chunk by chunk. Raises ValueError as `forward` does."""
        if self.max_length is not None:
            self._check_length(int(state["num_read"].max()) + u.shape[1])
        z, recent = read_convolved(self.short_conv, self._project(u), state)
        q, k, v = self._split(z)
        positions = None
        if self.feature_map.needs_positions:
            positions = torch.arange(u.shape[1], device=u.device)[:, None]
            positions = state["num_read"][:, None, None, None] + positions
        y, new = self._scan(q, k, v, positions, state)
        if self.feature_map.needs_positions:
            new["num_read"] = state["num_read"] + u.shape[1]
        return self._merge(y, u), new | recent

    def state_size(self, t: int) -> int:
        """(d + 1) features for any t, Taylor's packed (Based, arXiv 2402.18668, equations 8 and 9);
        d features without a normaliser.

        The paper counts one normaliser, as of one head; `initial_state` has one for each of h
        heads, (d + h) features in all, and the code of Based keeps both x_i x_j and x_j x_i: 1 + f
        + f^2 features.
        """
        return self.feature_map.num_features * (self.d_model + self.normalise)

    def flops(self, t: int) -> int:
        """Of `forward`: the pairs of each chunk, and between chunks the features and two products
        with the state.

        The first chunk reads no state, and the last one writes none.
        """
        sizes, maps = chunk_sizes(t, self.chunk), self.feature_map
        state, normaliser = maps.num_features * (self.head_dim + self.normalise), self.normalise
        fading = self.decay * self.head_dim
        score = maps.score_flops() + self.decay + 2 * self.head_dim + normaliser
        num_read, num_written = t - sizes[0], t - sizes[-1]
        mixing = chunk_pairs(t, self.chunk) * score
        mixing += num_read * (2 * state + self.head_dim + normaliser + fading)
        mixing += num_written * maps.num_features * (2 * self.head_dim + normaliser + self.decay)
        mixing += max(len(sizes) - 2, 0) * (state + maps.num_features * fading)
        num_mapped = 2 * t if maps.scores_take_features else num_read + num_written
        mixing += maps.flops() * num_mapped
        mixing = self.num_heads * mixing + t * self.d_model * normaliser
        layers = (self.q_proj, self.k_proj, self.v_proj, self.out_proj)
        if self.decay_proj is not None:
            mixing += linear_flops(t, self.decay_proj) + t * self.d_model
        return linear_flops(t, *layers) + convolution_flops(self.short_conv, t) + mixing

    def _check_length(self, t: int) -> None:
        if self.max_length is not None and t > self.max_length:
            raise ValueError(
                f"{t} tokens are more than the feature map's max_length {self.max_length}",
            )

    def _project(self, u: Tensor) -> Tensor:
        """q, k and v concatenated, (b, t, channels)."""
        return torch.cat(
            [project(u) for project in (self.q_proj, self.k_proj, self.v_proj)],
            dim=-1,
        )

    def _split(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k: (b, h, t, f) and v: (b, h, t, v)."""
        keys = self.num_heads * self.feature_dim
        parts = torch.split(z, [keys, keys, self.d_model], dim=-1)
        q, k, v = (torch.unflatten(x, -1, (self.num_heads, -1)).transpose(1, 2) for x in parts)
        return q, k, v

    def _merge(self, y: Tensor, u: Tensor) -> Tensor:
        """What the heads have read (b, h, t, v), by the factors of `decay_proj` -> (b, t, d)."""
        return self._joined(
            y if self.decay_proj is None else y * self.decay_proj(u).transpose(1, 2)[..., None],
            u,
        )

    def _joined(self, y: Tensor, u: Tensor) -> Tensor:
        """The outputs of the heads, (b, h, t, v) -> (b, t, d)."""
        return applied(self.out_proj, y.transpose(1, 2).flatten(start_dim=2).to(u.dtype))

    def _scan(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor | None,
        state: State | None,
        *,
        final_state: bool = True,
    ) -> tuple[Tensor, State]:
        """The outputs of all tokens after a state and, on request, the new entries of the state.
        positions: int64, (..., t, 1)."""
        if self.is_taylor_attention:
            before = None if state is None else TaylorState(state["kv"], state["k"])
            y, after = taylor_attention(q, k, v, before, eps=self.eps, final_state=final_state)
            return y, {} if after is None else after._asdict()
        y, last = linear_attention_chunked(
            q,
            k,
            v,
            None if state is None else LinearState(state["kv"], state.get("k")),
            self.feature_map,
            final_state=final_state,
            eps=self.eps if self.normalise else None,
            decay=self._decay(q),
            chunk=self.chunk,
            positions=positions,
        )
        return y, {} if last is None else entries(last)

    def _advance(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor | None,
        state: State,
    ) -> tuple[Tensor, State]:
        """The same for one token: q, k (b, h, f), v (b, h, v), positions (b, 1, 1)."""
        if self.is_taylor_attention:
            y, after = taylor_attention_step(
                q,
                k,
                v,
                TaylorState(state["kv"], state["k"]),
                eps=self.eps,
            )
            return y, after._asdict()
        before, eps = LinearState(state["kv"], state.get("k")), self.eps if self.normalise else None
        y, last = linear_attention_step(
            q,
            k,
            v,
            before,
            self.feature_map,
            eps=eps,
            decay=self._decay(q),
            positions=positions,
        )
        return y, entries(last)

    def _decay(self, like: Tensor) -> Decay | None:
        """The heads' decays, in the precision in which `like` is summed."""
        if not self.decay:
            return None
        logs = log_decays(self.num_heads, self.decay_exponent, widened(like))
        return Decay(logs, in_normaliser=False)


def entries(state: LinearState) -> State:
    """The sums as a mixer's state has them: `kv`, and `k` where there is a normaliser."""
    return {name: value for name, value in state._asdict().items() if value is not None}


def log_decays(num_heads: int, exponent: int, like: Tensor) -> Tensor:
    """ln(1 - 2^(-exponent - head)), (h,), where RetNet (arXiv 2307.08621, equation 8) has an
    exponent of 5."""
    return torch.log1p(
        -torch.exp2(-exponent - torch.arange(num_heads, device=like.device, dtype=like.dtype)),
    )
