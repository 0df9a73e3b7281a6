"""Layers of BaseConv with set weights, and what Zoology composes proofs of: shift, running sum, remember (arXiv 2312.04927, H.3).

A layer is that of definition 4.1: its gate's and convolution's biases have a row for each position, so that they can mask rows.

    z = (y W + b1) * (h conv y + b2),   y: (N, d), * element by element

A convolution ends at row N (modulo X^N), or is cyclic (modulo X^N - 1), which the appendix takes to move rows up. It is computed as the sum
of shifted inputs, one for each row of the filter that is not zero, so that whole numbers stay exact.

Where the text of H.3 does not give what it claims, what it claims is built: a cyclic convolution with e_0 is the identity and
reverses nothing (H.8), so `shift_up` is a cyclic convolution and a mask, one layer and not three; and in the second layer of
`remember` (H.10) blocks follow each other without the n zeros between, which leaves three layers of five.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of BaseConv: `weight` W (d, d), `gate_bias` b1, `filter` h and `conv_bias` b2 (N, d), float64."""

    weight: Tensor
    gate_bias: Tensor
    filter: Tensor
    conv_bias: Tensor
    cyclic: bool = False

    def __call__(self, y: Tensor) -> Tensor:
        """y: (N, d) -> (N, d)."""
        return (y @ self.weight + self.gate_bias) * (convolve(y, self.filter, cyclic=self.cyclic) + self.conv_bias)


def convolve(y: Tensor, taps: Tensor, *, cyclic: bool) -> Tensor:
    """z[i] = sum_s taps[s] * y[i - s], each channel by itself; y, taps: (N, d) -> (N, d).

    Rows before the first are zeros or, if cyclic, the last ones.
    """
    result = torch.zeros_like(y)
    for s in taps.any(dim=1).nonzero().flatten().tolist():
        shifted = y.roll(s, dims=0)
        if not cyclic:
            shifted[:s] = 0
        result += taps[s] * shifted
    return result


def run(layers: Sequence[Layer], y: Tensor) -> Tensor:
    """The layers one after the other (lemma H.11); y: (N, d) -> (N, d)."""
    for layer in layers:
        y = layer(y)
    return y


def masked_conv(taps: Tensor, mask: Tensor, conv_bias: Tensor | None = None, *, cyclic: bool = False) -> Layer:
    """mask * (h conv y + b2): a layer whose gate does not depend on its input; all (N, d)."""
    d = taps.shape[1]
    return Layer(taps.new_zeros(d, d), mask, taps, torch.zeros_like(taps) if conv_bias is None else conv_bias, cyclic)


def shift_down(n: int, d: int, s: int) -> list[Layer]:
    """z[i] = y[i - s], zeros in the first s rows: one layer (proposition H.8). n rows, d channels. Raises ValueError unless 0 <= s < n."""
    _check_shift(n, s)
    return [masked_conv(one_hot(n, d, s), torch.ones(n, d, dtype=torch.float64))]


def shift_up(n: int, d: int, s: int) -> list[Layer]:
    """z[i] = y[i + s], zeros in the last s rows: one layer, cyclic (H.8 needs three). Raises ValueError unless 0 <= s < n."""
    _check_shift(n, s)
    return [masked_conv(one_hot(n, d, -s % n), rows(n, d, (0, n - s)), cyclic=True)]


def running_sum(n: int, d: int, size: int) -> list[Layer]:
    """[x; S; 0] to [1; S + x; 0], x and S of `size` rows, n rows in all: two layers (proposition H.9).

    Raises ValueError unless two blocks fit into n rows.
    """
    if not 1 <= size <= n // 2:
        raise ValueError(f"two blocks of {size} rows do not fit into {n}")
    add = masked_conv(one_hot(n, d, 0) + one_hot(n, d, size), rows(n, d, (size, 2 * size)))
    reset = masked_conv(one_hot(n, d, 0), rows(n, d, (0, 2 * size)), rows(n, d, (0, size)))
    return [add, reset]


def remember(n: int, taps: Tensor, gate: Tensor, size: int, kept: int) -> list[Layer]:
    """[x; 0; v; 0] to [gate * (taps conv x); v; 0]: a gated convolution of x while v is remembered (proposition H.10), three layers.

    x has `size` rows; taps: (k, d), with no more rows than fit: gate: (size + s, d), s >= k - 1, which is where v, of `kept`
    rows, begins in input and output. n rows in all: at least 2 (size + s) + 2 `kept` + k - 1, room to copy v out of the way.
    Raises ValueError where that does not fit.
    """
    (k, d), room = taps.shape, len(gate)
    aside = room + kept + k - 1  # where the copy of x begins; that of v begins `room` later, beyond what the filter makes of v
    if size + k - 1 > room or n < aside + room + kept:
        raise ValueError(f"{size} rows, a filter of {k} and {kept} remembered rows need more than {room} before them and {n} in all")
    filter_ = one_hot(n, d, aside)
    filter_[:k] += taps
    mask = rows(n, d, (aside + room, aside + room + kept))
    mask[:room] = gate
    beside = masked_conv(one_hot(n, d, 0) + one_hot(n, d, aside), rows(n, d, (aside, aside + room + kept)))
    return [masked_conv(filter_, mask), beside, *shift_up(n, d, aside)]


def one_hot(n: int, d: int, *places: int) -> Tensor:
    """(n, d), ones in these rows."""
    made = torch.zeros(n, d, dtype=torch.float64)
    made[list(places)] = 1
    return made


def rows(n: int, d: int, between: tuple[int, int]) -> Tensor:
    """(n, d), ones from the first row to before the second."""
    return one_hot(n, d, *range(*between))


def _check_shift(n: int, s: int) -> None:
    if not 0 <= s < n:
        raise ValueError(f"a shift by {s} leaves nothing of {n} rows")
