"""Prefix linear attention: the first tokens are read in both directions, with keys and values of
their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from recallkit.kernels.linear_attention import summed_state
from recallkit.models.mixers.api import Mixer, State, chunk_sizes, linear_flops, widened
from recallkit.models.mixers.linear_attention import LinearAttention, entries

if TYPE_CHECKING:
    from torch import Tensor


class PrefixLinearAttention(LinearAttention):
    """Linear attention that begins with the state of an encoder, of keys k' and values v' of the
    first M = `prefix` tokens:

        y_i = (sum_j<=i phi(q_i).phi(k_j) v_j + sum_j<=M phi(q_i).phi(k'_j) v'_j) / (n_i + eps)

    n_i is the same as the numerator, without v_j and v'_j.
    JRT-RNN (arXiv 2407.05483), prefix linear attention. The second sum is over the whole prefix for
    every i: a token of the prefix sees what follows it, and only what is after the prefix is
    predicted. As in the authors' code, the prefix is in what is read first: M tokens of it, or all
    where it is shorter, as a prompt may be; what is read later is decoded. M is an option of the
    model, 1,024 of 2,048 tokens in their training.
    """

    def __init__(
        self,
        d_model: int,
        *,
        prefix: int = 1024,
        num_heads: int = 4,
        feature_dim: int = 16,
        feature_map: str = "taylor",
        eps: float = 1e-12,
    ) -> None:
        if prefix < 1:
            raise ValueError(
                f"a prefix of {prefix} tokens has nothing to read: use linear_attention",
            )
        if feature_map == "cosformer":
            problem = "cosformer's weights depend on distances, and the keys of a prefix have none"
            raise ValueError(f"{problem}: choose another feature_map")
        super().__init__(
            d_model,
            num_heads=num_heads,
            feature_dim=feature_dim,
            feature_map=feature_map,
            eps=eps,
        )
        self.prefix = prefix
        self.prefix_k_proj = nn.Linear(d_model, num_heads * feature_dim, bias=False)
        self.prefix_v_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        y, _ = self._scan(*self._split(self._project(u)), None, self._encoded(u), final_state=False)
        return self._merge(y, u)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: all pairwise weights, from unpacked features."""
        q, k, v = map(widened, self._split(self._project(u)))
        encoder_k, encoder_v = map(widened, self._encoder_pairs(u))
        q, k, encoder_k = (self.feature_map.reference(x) for x in (q, k, encoder_k))
        outputs = []
        for i in range(u.shape[1]):
            keys, values = (
                torch.cat([k[:, :, : i + 1], encoder_k], dim=2),
                torch.cat([v[:, :, : i + 1], encoder_v], dim=2),
            )
            weights = (q[:, :, i, None] * keys).sum(dim=-1, keepdim=True)
            y = (weights * values).sum(dim=2)
            outputs.append(y / (weights.sum(dim=2) + self.eps) if self.normalise else y)
        return self._merge(torch.stack(outputs, dim=2), u)

    def initial_state(self, batch: int) -> State:
        """See `LinearAttention.initial_state`; `num_read` (b,) tells which rows have not read their
        prefix."""
        return super().initial_state(batch) | {
            "num_read": torch.zeros(batch, dtype=torch.int64, device=self.out_proj.weight.device),
        }

    def step(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        return Mixer.step(self, u, state, ids)

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`: the state of the encoder is added in rows that have read nothing."""
        is_new = state["num_read"] == 0
        if is_new.any():
            state = dict(state)
            for name, value in self._encoded(u).items():
                rows = is_new.view(-1, *[1] * (value.dim() - 1))
                state[name] = torch.where(rows, value, state[name])
        y, new = super().read(u, state)
        return y, new | {"num_read": state["num_read"] + u.shape[1]}

    def flops(self, t: int) -> int:
        """Those of linear attention, of the encoder, and of its state in the first chunk, which
        else begins with none."""
        num_encoded, maps = min(self.prefix, t), self.feature_map
        first = chunk_sizes(t, self.chunk)[0]
        state = maps.num_features * (self.head_dim + self.normalise)
        encoder = maps.flops() + maps.num_features * (2 * self.head_dim + self.normalise)
        reading = 2 * state + self.head_dim + self.normalise
        reading += 0 if maps.scores_take_features else maps.flops()
        mixing = num_encoded * encoder + first * reading + state * (t > first)
        encoding = linear_flops(num_encoded, self.prefix_k_proj, self.prefix_v_proj)
        return super().flops(t) + self.num_heads * mixing + encoding

    def _encoded(self, u: Tensor) -> State:
        """The state after the encoder's keys and values of the prefix of u (b, t, d)."""
        return entries(
            summed_state(*self._encoder_pairs(u), self.feature_map, normalise=self.normalise),
        )

    def _encoder_pairs(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """k' (b, h, n, f) and v' (b, h, n, v) of the first n = min(t, M) tokens."""
        first = u[:, : self.prefix]
        pairs = self.prefix_k_proj(first), self.prefix_v_proj(first)
        k, v = (torch.unflatten(x, -1, (self.num_heads, -1)).transpose(1, 2) for x in pairs)
        return k, v
