"""Prefix linear attention: keys and values of their own for the first tokens, which are thereby read twice into one state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from recallkit.models.mixers.api import Mixer, State, linear_flops, widened
from recallkit.models.mixers.linear_attention import LinearAttention

if TYPE_CHECKING:
    from torch import Tensor


class PrefixLinearAttention(LinearAttention):
    """Linear attention whose first M = `prefix` tokens have second keys k' and values v', in the same sums:

        y_i = (sum_j<=i phi(q_i).phi(k_j) v_j + sum_j<=min(i,M) phi(q_i).phi(k'_j) v'_j) / (the same without v_j and v'_j + eps)

    JRT-RNN (arXiv 2407.05483, prefix linear attention), the causal part of it: there the second sum is over the whole prefix for
    every i, so that a token of the prefix sees what follows it, and only what is after the prefix is predicted. Here it is over what
    has been read, and every token can be predicted. The output of a token after the prefix is the same, given the same inputs; below
    a further layer the inputs are not, since those of the prefix have seen less. Their training config has M = 1,024 of 2,048 tokens.
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
            raise ValueError(f"a prefix of {prefix} tokens has nothing to read: use linear_attention")
        if feature_map == "cosformer":
            raise ValueError("cosformer's weights depend on distances, and the keys of a prefix have none: choose another feature_map")
        super().__init__(d_model, num_heads=num_heads, feature_dim=feature_dim, feature_map=feature_map, eps=eps)
        self.prefix = prefix
        self.prefix_k_proj = nn.Linear(d_model, num_heads * feature_dim, bias=False)
        self.prefix_v_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        return self._after(u, None, min(self.prefix, u.shape[1]), final_state=False)[0]

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        """See `Mixer.reference`: all pairwise weights, from unpacked features."""
        q, k, v = map(widened, self._split(self._project(u)))
        _, again, again_v = map(widened, self._split(self._project_again(u[:, : self.prefix])))
        q, k, again = (self.feature_map.reference(x) for x in (q, k, again))
        outputs = []
        for i in range(u.shape[1]):
            keys, values = (torch.cat([x[:, :, : i + 1], more[:, :, : i + 1]], dim=2) for x, more in ((k, again), (v, again_v)))
            weights = (q[:, :, i, None] * keys).sum(dim=-1, keepdim=True)
            y = (weights * values).sum(dim=2)
            outputs.append(y / (weights.sum(dim=2) + self.eps) if self.normalise else y)
        return self._merge(torch.stack(outputs, dim=2), u)

    def initial_state(self, batch: int) -> State:
        """See `LinearAttention.initial_state`; `seen` (b,) tells what is in the prefix."""
        return super().initial_state(batch) | {"seen": torch.zeros(batch, dtype=torch.int64, device=self.out_proj.weight.device)}

    def step(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        return Mixer.step(self, u, state, ids)

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Mixer.read`: at once those rows that have equally many of these tokens in the prefix."""
        counts = (self.prefix - state["seen"]).clamp(0, u.shape[1])
        groups, parts = [], []
        for count in sorted(set(counts.tolist())):
            groups.append((counts == count).nonzero()[:, 0])
            parts.append(self._after(u[groups[-1]], {name: value[groups[-1]] for name, value in state.items()}, count))
        back = torch.cat(groups).argsort()
        new = {name: torch.cat([after[name] for _, after in parts])[back] for name in parts[0][1]}
        return torch.cat([y for y, _ in parts])[back], new | {"seen": state["seen"] + u.shape[1]}

    def flops(self, t: int) -> int:
        """Those of linear attention on as many tokens as there are keys; the second ones have neither queries nor outputs to project."""
        num_again = min(self.prefix, t)
        return super().flops(t + num_again) - linear_flops(num_again, self.q_proj, self.out_proj)

    def _after(self, u: Tensor, state: State | None, num_again: int, *, final_state: bool = True) -> tuple[Tensor, State]:
        """Outputs (b, t, d) and state of rows whose next `num_again` tokens are in the prefix: each is preceded by its second key.

        Of 3 tokens, 2 in the prefix, keys are k'_0 k_0 k'_1 k_1 k_2; a second key takes its token's query, and what that reads is dropped.
        """
        q, k, v = self._split(self._project(u))
        _, again, again_v = self._split(self._project_again(u[:, :num_again]))
        q, k, v = (_in_turn(first, x) for first, x in ((q[:, :, :num_again], q), (again, k), (again_v, v)))
        y, after = self._scan(q, k, v, None, state, final_state=final_state)
        y = torch.cat([y[:, :, 1 : 2 * num_again : 2], y[:, :, 2 * num_again :]], dim=2)
        return self._merge(y, u), after

    def _project_again(self, u: Tensor) -> Tensor:
        """As `_project`, with the prefix's keys and values."""
        return torch.cat([project(u) for project in (self.q_proj, self.prefix_k_proj, self.prefix_v_proj)], dim=-1)


def _in_turn(first: Tensor, x: Tensor) -> Tensor:
    """first: (b, h, n, w), x: (b, h, t, w), t >= n -> first_0, x_0, ..., first_(n-1), x_(n-1), x_n, ...: (b, h, n + t, w)."""
    n = first.shape[2]
    return torch.cat([torch.stack([first, x[:, :, :n]], dim=3).flatten(2, 3), x[:, :, n:]], dim=2)
