"""BaseConv with input-dependent filters: their taps are where a token occurred before, found by its
id or by autocorrelation.

Zoology (arXiv 2312.04927, theorem 4.5, claim 2 and the appendix on input-dependent kernels)
replaces the filter of BaseConv by shifts X^s to the distances s at which tokens interact, found
programmatically or as the largest values ("Top") of the input's autocorrelation. That
autocorrelation is cyclic and of the whole sequence, one filter for all positions: an output would
depend on tokens after it. No code was published. The decisions made here:

- Each position i has a filter h_i of its own, made of tokens 0..i alone: the mixers are causal at
  every position.
- The value of a key is the token after it, so a distance s found between i and i - s puts the tap
  at s - 1 (the appendix shifts values by one less than keys, too).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn
from torch.nn import functional

from recallkit.models.mixers.api import (
    Mixer,
    State,
    check_positive,
    extended,
    linear_flops,
    widened,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

CHUNK = 128
"""Positions whose filters are made at once: (b, CHUNK, T) numbers each."""

LEAST_WEIGHT = 1e-6
"""Least divisor of the correlations of a position: where nothing recurs, the output of the filter
is close to zero."""


class DynamicConv(Mixer):
    """y_i = (u_i W + b1) * (sum_s h_i[s] u_{i-s} + b2), * element by element: the base of both
    kinds of filters."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.gate = nn.Linear(d_model, d_model)
        self.bias = nn.Parameter(torch.zeros(d_model))

    def _gated(self, u: Tensor, mixed: Tensor) -> Tensor:
        gate: Tensor = self.gate(u)
        return gate * (mixed + self.bias).to(gate.dtype)


def _chunks(t_all: int, t: int) -> Iterator[tuple[int, int]]:
    """Beginnings and ends of chunks of the last t of t_all positions."""
    for start in range(t_all - t, t_all, CHUNK):
        yield start, min(start + CHUNK, t_all)


class ProgrammaticConv(DynamicConv):
    """h_i has a one for the latest earlier occurrence j < i of token i, at s = i - j - 1, zeros
    elsewhere.

    The equation is that of `DynamicConv`: y_i = (u_i W + b1) * (u_{j+1} + b2). A new token has an
    all-zero filter. See the module for the source.
    """

    needs_ids: ClassVar[bool] = True

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        assert ids is not None
        return self._gated(
            u,
            self._mixed(u, ids, torch.full_like(ids[:, 0], u.shape[1]), u.shape[1]),
        )

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        assert ids is not None
        mixed = torch.zeros_like(u)
        for row, tokens in enumerate(ids.tolist()):
            for i, token in enumerate(tokens):
                earlier = [j for j in range(i) if tokens[j] == token]
                if earlier:
                    mixed[row, i] = u[row, earlier[-1] + 1]
        return self._gated(u, mixed)

    def initial_state(self, batch: int) -> State:
        """Inputs (b, T, d) and ids (b, T) so far, and how many of them a row has read (b,)."""
        weight = widened(self.gate.weight)
        ids = torch.zeros(batch, 0, dtype=torch.int64, device=weight.device)
        return {
            "inputs": weight.new_zeros(batch, 0, self.d_model),
            "ids": ids,
            "num_read": ids.new_zeros(batch),
        }

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        assert ids is not None
        after = extended(state, {"inputs": u, "ids": ids}, dim=1)
        after["num_read"] = state["num_read"] + u.shape[1]
        mixed = self._mixed(after["inputs"], after["ids"], after["num_read"], u.shape[1])
        return self._gated(u, mixed), after

    def state_size(self, t: int) -> int:
        """Counted from the state: inputs and ids, (d + 1) t."""
        return (self.d_model + 1) * t

    def flops(self, t: int) -> int:
        """The projection, b2, the gate, two per one and channel; comparisons of ids are not
        counted."""
        return linear_flops(t, self.gate) + 2 * (2 * t - 1) * self.d_model

    def _mixed(self, inputs: Tensor, ids: Tensor, num_read: Tensor, t: int) -> Tensor:
        """The outputs of the filters at the last t positions (b, t, d)."""
        place = torch.arange(ids.shape[1], device=ids.device)
        real = place >= ids.shape[1] - num_read.unsqueeze(-1)
        outputs = []
        for start, end in _chunks(ids.shape[1], t):
            same = (ids[:, start:end].unsqueeze(-1) == ids[:, None, :end]) & real[:, None, :end]
            same &= place[:end] < place[start:end].unsqueeze(-1)
            latest = torch.where(same, place[:end], -1).amax(-1).unsqueeze(-1)
            following = (latest + 1).clamp(min=0).expand(-1, -1, self.d_model)
            outputs.append(inputs.gather(1, following) * (latest >= 0))
        return torch.cat(outputs, dim=1)


class AutocorrelationConv(DynamicConv):
    """h_i has taps at the `top` distances s >= 1 of the largest autocorrelation so far, r_i[s] =
    sum_{j <= i} x_j . x_{j-s}.

    x = normalised(u K), of unit length, so that equal tokens add one and others little. A tap is
    r_i[s] divided by the sum of the chosen ones, zero where it is negative, and its index is s - 1.
    The equation is that of `DynamicConv`; see the module for the source and for what was decided.
    With one-hot tokens r counts the equal pairs at each distance, and its largest values need not
    include the distance that a query needs: choose `top` larger than the number of distances
    expected.
    """

    def __init__(self, d_model: int, *, top: int = 8) -> None:
        super().__init__(d_model)
        check_positive(top=top)
        self.top = top
        self.key = nn.Linear(d_model, d_model, bias=False)

    def forward(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        mixed, _ = self._mixed(u, self._keys(u), u.new_zeros(len(u), 0), u.shape[1])
        return self._gated(u, mixed)

    def reference(self, u: Tensor, ids: Tensor | None = None) -> Tensor:
        x = self.key(u)
        x = x / x.norm(dim=-1, keepdim=True)
        mixed = torch.zeros_like(u)
        for row in range(len(u)):
            for i in range(1, u.shape[1]):
                r = {s: (x[row, s : i + 1] * x[row, : i + 1 - s]).sum() for s in range(1, i + 1)}
                chosen = sorted((s for s in r if r[s] > 0), key=lambda s: -float(r[s]))[: self.top]
                total = sum(r[s] for s in chosen)
                for s in chosen:
                    mixed[row, i] += r[s] / max(total, LEAST_WEIGHT) * u[row, i - s + 1]
        return self._gated(u, mixed)

    def initial_state(self, batch: int) -> State:
        """Inputs (b, T, d) and keys (b, T, d) so far, and r (b, T) of distances T - 1, ..., 0: new
        distances are added at the left.

        In a shorter row, distances beyond its length are zeros, as are the keys there.
        """
        weight = widened(self.key.weight)
        shapes = {"inputs": (0, self.d_model), "keys": (0, self.d_model), "correlation": (0,)}
        return {name: weight.new_zeros(batch, *shape) for name, shape in shapes.items()}

    def read(self, u: Tensor, state: State, ids: Tensor | None = None) -> tuple[Tensor, State]:
        after = extended(state, {"inputs": u, "keys": self._keys(u)}, dim=1)
        by_distance = state["correlation"].flip(-1)
        mixed, by_distance = self._mixed(after["inputs"], after["keys"], by_distance, u.shape[1])
        return self._gated(u, mixed), after | {"correlation": by_distance.flip(-1)}

    def state_size(self, t: int) -> int:
        """Counted from the state: inputs, keys and correlations, (2 d + 1) t."""
        return (2 * self.d_model + 1) * t

    def flops(self, t: int) -> int:
        """Of our forward: projections, norms, products of all pairs of keys and their sums, taps,
        b2, the gate."""
        d, pairs = self.d_model, t * (t + 1) // 2
        taps = t * min(self.top, t) * (2 * d + 2)
        return linear_flops(t, self.gate, self.key) + 5 * t * d + pairs * (2 * d + 1) + taps

    def _keys(self, u: Tensor) -> Tensor:
        return functional.normalize(widened(self.key(u)), dim=-1)

    def _mixed(
        self,
        inputs: Tensor,
        keys: Tensor,
        correlation: Tensor,
        t: int,
    ) -> tuple[Tensor, Tensor]:
        """The outputs of the filters at the last t positions (b, t, d), and r (b, T) after them;
        `correlation` is r before them."""
        place = torch.arange(inputs.shape[1], device=inputs.device)
        outputs = []
        with torch.autocast(inputs.device.type, enabled=False):
            for start, end in _chunks(inputs.shape[1], t):
                back = place[start:end].unsqueeze(-1) - place[:end]
                pairs = keys[:, start:end] @ keys[:, :end].mT
                by_distance = pairs.gather(-1, back.clamp(min=0).expand_as(pairs)) * (back >= 0)
                before = functional.pad(correlation, (0, end - correlation.shape[1]))
                r = before.unsqueeze(1) + by_distance.cumsum(dim=1)
                weights = self._weights(r, back)
                # The weight of a position is that of what follows it.
                outputs.append(weights[..., :-1] @ widened(inputs[:, 1:end]))
                correlation = r[:, -1]
        return torch.cat(outputs, dim=1), correlation

    def _weights(self, r: Tensor, back: Tensor) -> Tensor:
        """r: (b, c, T) by distance, back: (c, T), the position at that distance -> the weight of
        each position (b, c, T)."""
        largest, distances = r[..., 1:].topk(min(self.top, r.shape[-1] - 1), dim=-1)
        shares = functional.relu(largest)
        shares = shares / shares.sum(-1, keepdim=True).clamp(min=LEAST_WEIGHT)
        places = back[:, 1:].expand(len(r), -1, -1).gather(-1, distances).clamp(min=0)
        return torch.zeros_like(r).scatter_add(-1, places, shares)
