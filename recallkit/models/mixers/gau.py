"""GAU: single-headed attention with squared rectified scores, inside a gated unit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from recallkit.models.mixers.api import Mixer, State, applied, extended, linear_flops, widened
from recallkit.models.mixers.rotary import rotary_width, rotate, rotate_reference


class GAU(Mixer):
    """The gated attention unit of FLASH (arXiv 2202.10447, section 2.2, figure 2), with e =
    `expand` d and s = `key_dim`:

        g, v = silu(u Wg), silu(u Wv)   (e each),   z = silu(u Wz)   (s)
        q, k = z * scale + offset, one of each for q and for k
        y[i] = Wo (g[i] * sum_{j <= i} (relu(q[i] . k[j]) / n_i)^2 v[j])

    Causally, n_i is the number of keys that are seen, i + 1, where the paper divides by the length
    of the whole text; and q and k are rotated by their positions where the paper adds a bias of
    relative positions. Its norm and residual are those of the block. Two of these units, with
    `expand` 2, have the parameters of a Transformer's attention and MLP: use `mlp` "none".
    """

    def __init__(
        self,
        d_model: int,
        *,
        key_dim: int = 128,
        expand: int = 2,
        rope_base: float = 10000.0,
    ) -> None:
        super().__init__(d_model)
        if key_dim < 2 or expand < 1:
            sizes = f"{key_dim} and {expand}"
            raise ValueError(f"GAU has at least 2 entries of a key and an expand of 1, not {sizes}")
        self.key_dim, self.inner, self.rope_base = key_dim, expand * d_model, rope_base
        self.rope_width = rotary_width(key_dim, 1.0)
        self.in_proj = nn.Linear(d_model, 2 * self.inner + key_dim, bias=False)
        self.scale = nn.Parameter(torch.ones(2, key_dim) + 0.02 * torch.randn(2, key_dim))
        self.offset = nn.Parameter(torch.zeros(2, key_dim))
        self.out_proj = nn.Linear(self.inner, d_model, bias=False)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        g, v, q, k = self._project(u)
        rotation: Any = {"base": self.rope_base, "width": self.rope_width}
        outputs = []
        for i in range(u.shape[1]):
            total = torch.zeros_like(v[:, 0])
            q_i = rotate_reference(q[:, i], i, **rotation)
            for j in range(i + 1):
                k_j = rotate_reference(k[:, j], j, **rotation)
                score = (q_i * k_j).sum(-1, keepdim=True)
                total = total + (score.clamp(min=0) / (i + 1)) ** 2 * v[:, j]
            outputs.append(g[:, i] * total)
        return applied(self.out_proj, torch.stack(outputs, dim=1))

    def initial_state(self, batch: int) -> State:
        """See `Mixer.initial_state`: the rotated keys (b, T, s) and the values (b, T, e) of the
        tokens read, and their number, `num_read`."""
        weight = self.out_proj.weight
        empty = {
            "keys": weight.new_zeros(batch, 0, self.key_dim),
            "values": weight.new_zeros(batch, 0, self.inner),
        }
        return empty | {"num_read": torch.zeros(batch, dtype=torch.int64, device=weight.device)}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        t = u.shape[1]
        g, v, q, k = self._project(u)
        positions = state["num_read"][:, None] + torch.arange(t, device=u.device)
        rotation: Any = {"base": self.rope_base, "width": self.rope_width}
        q, k = (rotate(x.unsqueeze(1), positions, **rotation).squeeze(1) for x in (q, k))
        after = extended(state, {"keys": k, "values": v}, dim=1)
        keys, values = after["keys"], after["values"]
        # A shorter row has zeros at its left, whose scores are zero.
        scores = widened(q.to(keys.dtype) @ keys.mT).relu() / (positions + 1).unsqueeze(2)
        weights = scores.square().tril(keys.shape[1] - t).to(values.dtype)
        return applied(self.out_proj, g * (weights @ values)), {
            "keys": keys,
            "values": values,
            "num_read": state["num_read"] + t,
        }

    def state_size(self, t: int) -> int:
        """See `Mixer.state_size`: keys and values of all tokens, (s + e) t."""
        return (self.key_dim + self.inner) * t

    def flops(self, t: int) -> int:
        """Of our forward: projections, four for each silu, scales, offsets, gates; for each pair
        that is seen 2 s + 3 and 2 e."""
        pairs = t * (t + 1) // 2
        narrow = t * (4 * (2 * self.inner + self.key_dim) + 4 * self.key_dim + self.inner)
        scores = pairs * (2 * self.key_dim + 3 + 2 * self.inner)
        return linear_flops(t, self.in_proj, self.out_proj) + narrow + scores

    def _project(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """u: (b, t, d) -> g and v (b, t, e), q and k (b, t, s)."""
        g, v, z = torch.split(
            functional.silu(self.in_proj(u)),
            [self.inner, self.inner, self.key_dim],
            dim=-1,
        )
        q, k = (z * self.scale[place] + self.offset[place] for place in (0, 1))
        return g, v, q, k
