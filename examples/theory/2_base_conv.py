"""Layers of BaseConv with set weights: shift, running sum and remember, and a compiler of
arithmetic circuits to such layers.

    python examples/theory/2_base_conv.py

"For an arithmetic circuit C of size s and depth Delta that takes u as input, there exists an
equivalent BaseConv operator that uses O(s Delta) parameters and O(Delta) layers." (Zoology, arXiv
2312.04927, theorem 4.2, up to logarithms; H.21: O(Delta log w) layers on O(w) rows.) A layer is
that of definition 4.1, whose biases have a row for each position, so that they can mask rows:

    z = (y W + b1) * (h conv y + b2),   y: (N, d), * element by element

A convolution ends at row N (modulo X^N), or is cyclic (modulo X^N - 1), which the appendix takes to
move rows up. Where the text of H.3 does not give what it claims, what it claims is built: a cyclic
convolution with e_0 is the identity and reverses nothing (H.8), so moving up is a cyclic
convolution and a mask, one layer and not three; and in the second layer of remember (H.10) blocks
follow each other without the n zeros between, which leaves three layers of five.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

circuits = importlib.import_module("1_circuits")


@dataclass(frozen=True)
class Layer:
    """W (d, d); b1, the filter h and b2 (N, d); float64."""

    weight: Tensor
    gate_bias: Tensor
    filter: Tensor
    conv_bias: Tensor
    cyclic: bool = False

    def __call__(self, y: Tensor) -> Tensor:
        """y: (N, d) -> (N, d)."""
        return (y @ self.weight + self.gate_bias) * (
            convolve(y, self.filter, cyclic=self.cyclic) + self.conv_bias
        )


def convolve(y: Tensor, taps: Tensor, *, cyclic: bool = False) -> Tensor:
    """z[i] = sum_s taps[s] * y[i - s], each channel by itself; y, taps: (N, d).

    Rows before the first are zeros or, if cyclic, the last ones. As a sum of shifted inputs, so
    that whole numbers stay exact.
    """
    result = torch.zeros_like(y)
    for s in taps.any(dim=1).nonzero().flatten().tolist():
        shifted = y.roll(s, dims=0)
        if not cyclic:
            shifted[:s] = 0
        result += taps[s] * shifted
    return result


def run(layers: Sequence[Layer], y: Tensor) -> Tensor:
    """The layers one after the other (lemma H.11)."""
    for layer in layers:
        y = layer(y)
    return y


def ones_at(n: int, d: int, *places: int) -> Tensor:
    """(n, d), ones in these rows; -1 is the last."""
    made = torch.zeros(n, d, dtype=torch.float64)
    made[list(places)] = 1
    return made


def masked(
    taps: Tensor, mask: Tensor, conv_bias: Tensor | None = None, *, cyclic: bool = False
) -> Layer:
    """mask * (taps conv y + conv_bias): a layer whose gate does not depend on its input; all (N,
    d)."""
    d = taps.shape[1]
    return Layer(
        taps.new_zeros(d, d),
        mask,
        taps,
        torch.zeros_like(taps) if conv_bias is None else conv_bias,
        cyclic,
    )


# ------------------------------------------------------------------------- propositions H.8 to H.10


def shift_down(n: int, d: int, s: int) -> list[Layer]:
    """z[i] = y[i - s], zeros in the first s < n rows: one layer."""
    return [masked(ones_at(n, d, s), torch.ones(n, d, dtype=torch.float64))]


def shift_up(n: int, d: int, s: int) -> list[Layer]:
    """z[i] = y[i + s], zeros in the last s < n rows: one layer, cyclic."""
    return [masked(ones_at(n, d, -s % n), ones_at(n, d, *range(n - s)), cyclic=True)]


def running_sum(n: int, d: int, size: int) -> list[Layer]:
    """[x; S; 0] to [1; S + x; 0], x and S of `size` <= n / 2 rows: two layers."""
    add = masked(ones_at(n, d, 0, size), ones_at(n, d, *range(size, 2 * size)))
    return [
        add,
        masked(ones_at(n, d, 0), ones_at(n, d, *range(2 * size)), ones_at(n, d, *range(size))),
    ]


def remember(n: int, taps: Tensor, gate: Tensor, kept: int) -> list[Layer]:
    """[x; 0; v; 0] to [gate * (taps conv x); v; 0]: a gated convolution while v, of `kept` rows, is
    remembered: three layers.

    taps (k, d), gate (room, d): x and k - 1 zeros fit in `room` rows, after which v begins; n >= 2
    room + 2 kept + k - 1.
    """
    (k, d), room = taps.shape, len(gate)
    aside = (
        room + kept + k - 1
    )  # where a copy of [x; 0; v] begins, beyond what the filter makes of v
    filter_, mask = ones_at(n, d, aside), ones_at(n, d, *range(aside + room, aside + room + kept))
    filter_[:k] += taps
    mask[:room] = gate
    beside = masked(ones_at(n, d, 0, aside), ones_at(n, d, *range(aside, aside + room + kept)))
    return [masked(filter_, mask), beside, *shift_up(n, d, aside)]


# ---------------------------------------------------------------------------- theorems 4.2 and H.21


class Compiled:
    """Layers on 4 `size` rows of one channel that compute a circuit; `size`, a power of two, is
    twice its width or more.

    Each level of gates is one of linear ones or of products. Before it, its operands are brought to
    their places, all first ones and then all second ones, with the values that later levels need:

        route      rows of z -> [first operands; second operands], each row from any row of z, or
        zero linear     [a first; b second], then their sum                  two layers, h = 1 and h
        = 1 + X^(-half) products   z[i] = first[i] * (second[i] + b2[i])                one layer, W
        = 1, h = X^(-half); b2 = 1 where a value is only kept

    The theorem routes by Kaleidoscope matrices (H.14 to H.20). Here a route is a permutation, a
    copying of runs and a permutation. A permutation of 2^m rows is 2 m - 1 factors (a Benes
    network), copying is m. A factor adds to each row those 2^k before and after it, in two layers:
    copies side by side, masked, then added up. So a route is 2 (5 m - 2) layers, and everything
    O(Delta log w).
    """

    def __init__(self, circuit: circuits.Circuit) -> None:
        half = 1 << max(0, (max(circuit.width, len(circuit.outputs)) - 1).bit_length())
        self.size, self.num_outputs = 2 * half, len(circuit.outputs)
        there = list(range(circuit.num_inputs + len(circuit.constants)))
        constants = ones_at(4 * self.size, 1)
        constants[circuit.num_inputs : len(there), 0] = torch.tensor(
            circuit.constants, dtype=torch.float64
        )
        self.layers = [masked(self._taps(0), self._rows(self.size), constants)]
        for kind, wires in circuit.levels():
            place = {wire: row for row, wire in enumerate(there)}
            sources: list[int | None] = [None] * self.size
            factors, only_kept = ones_at(4 * self.size, 1, *range(half)), []
            for row, wire in enumerate(wires):
                gate = circuit.gate(wire)
                if wire in place:
                    sources[row] = place[wire]
                    only_kept.append(row)
                else:
                    sources[row], sources[half + row] = place[gate.first], place[gate.second]
                    factors[row], factors[half + row] = gate.a, gate.b
            self._route(sources)
            if kind == "linear":
                self.layers += [
                    masked(self._taps(0), factors),
                    masked(self._taps(0, -half), self._rows(half), cyclic=True),
                ]
            else:
                kept = ones_at(4 * self.size, 1, *only_kept)
                one, none = torch.ones(1, 1, dtype=torch.float64), ones_at(4 * self.size, 1)
                self.layers.append(Layer(one, none, self._taps(-half), kept, cyclic=True))
            there = wires
        self._route([there.index(wire) for wire in circuit.outputs])

    def __call__(self, inputs: Sequence[float]) -> list[float]:
        """The outputs."""
        y = torch.zeros(4 * self.size, 1, dtype=torch.float64)
        y[: len(inputs), 0] = torch.tensor(inputs, dtype=torch.float64)
        return run(self.layers, y)[: self.num_outputs, 0].tolist()

    def _route(self, sources: Sequence[int | None]) -> None:
        """Row i gets the value of row `sources[i]`, zero for None and beyond."""
        wanted = sorted((source, row) for row, source in enumerate(sources) if source is not None)
        # Where row 5 is read by rows 0 and 2, and row 7 by row 1, runs are 5 5 7: offsets in a run
        # 0 1 0.
        offsets = [
            slot - [source for source, _ in wanted].index(source)
            for slot, (source, _) in enumerate(wanted)
        ]
        self._permute(
            {slot: source for slot, (source, _) in enumerate(wanted) if not offsets[slot]}
        )
        for k in range(
            self.size.bit_length() - 1
        ):  # the first of a run into the whole run, twice as far with each factor
            stays = [float(offset < 1 << k) for offset in offsets]
            self._factor(
                1 << k, stays, [1 - stay for stay in stays], []
            )  # what comes too early is replaced by a later factor
        self._permute({row: slot for slot, (_, row) in enumerate(wanted)})

    def _permute(self, sources: dict[int, int]) -> None:
        """Row i gets the value of row `sources[i]`, the other rows the rest: a factor for each
        column of a Benes network."""
        spare = iter(sorted(set(range(self.size)) - set(sources.values())))
        for distance, swapped in benes(
            [sources[i] if i in sources else next(spare) for i in range(self.size)]
        ):
            up = [float(i in swapped) for i in range(self.size)]
            down = [float(i - distance in swapped) for i in range(self.size)]
            self._factor(distance, [1 - a - b for a, b in zip(up, down, strict=True)], down, up)

    def _factor(
        self,
        s: int,
        stays: Sequence[float],
        from_before: Sequence[float],
        from_after: Sequence[float],
    ) -> None:
        """z[i] = stays[i] y[i] + from_before[i] y[i - s] + from_after[i] y[i + s], s at most half
        the size: copies do not overlap."""
        mask = ones_at(4 * self.size, 1)
        for start, factors in ((0, stays), (self.size, from_before), (3 * self.size, from_after)):
            mask[start : start + len(factors), 0] = torch.tensor(factors, dtype=torch.float64)
        self.layers.append(masked(self._taps(0, self.size + s, 3 * self.size - s), mask))
        self.layers.append(
            masked(self._taps(0, -self.size, -3 * self.size), self._rows(self.size), cyclic=True)
        )

    def _taps(self, *shifts: int) -> Tensor:
        return ones_at(4 * self.size, 1, *shifts)

    def _rows(self, end: int) -> Tensor:
        return ones_at(4 * self.size, 1, *range(end))


def most_layers(depth: int, width: int) -> int:
    """The most layers of a circuit: constants, a route and at most 2 layers for each of at most 2
    depth levels, a last route."""
    of_route = 2 * (5 * ((width - 1).bit_length() + 1) - 2)
    return 1 + 2 * depth * (of_route + 2) + of_route


def benes(sources: Sequence[int]) -> list[tuple[int, set[int]]]:
    """A permutation of 2^m rows as 2 m - 1 columns of swaps of rows i and i + distance: (distance,
    the rows i); row i is from `sources[i]`.

    Benes 1965: the first and last columns swap rows half the length apart, such that two
    permutations of half the length each are left between them. Which rows swap follows from the
    loops that outputs half the length apart and such inputs form.
    """
    n = len(sources)
    if n == 2:
        return [(1, {0} if sources[0] else set())]
    half, target = n // 2, {source: i for i, source in enumerate(sources)}
    lower: dict[int, bool] = {}  # of each output, whether it goes through the lower rows
    for start in range(half):
        output = start
        while output not in lower:
            lower[output], lower[(output + half) % n] = True, False
            output = target[
                (sources[(output + half) % n] + half) % n
            ]  # reads the other of a pair of inputs
    first = {i for i in range(half) if not lower[target[i]]}
    last = {i for i in range(half) if not lower[i]}
    halves = []
    for is_lower in (True, False):
        through = [
            i if lower[i] is is_lower else i + half for i in range(half)
        ]  # the output at row i of this half
        halves.append(benes([sources[output] % half for output in through]))
    inner = [
        (distance, one | {i + half for i in two})
        for (distance, one), (_, two) in zip(*halves, strict=True)
    ]
    return [(half, first), *inner, (half, last)]


def recall(pairs: int, queries: int, c: int) -> circuits.Circuit:
    """Attention as a circuit: sum_j (sum_b q[i, b] k[j, b]) v[j, e] of one-hot q, k and v, given in
    this order."""
    circuit = circuits.Circuit((queries + 2 * pairs) * c)

    def dot(left: Sequence[int], right: Sequence[int]) -> int:
        first, *others = [circuit.product(a, b) for a, b in zip(left, right, strict=True)]
        for other in others:
            first = circuit.linear(first, other)
        return first

    tokens = [range(i * c, (i + 1) * c) for i in range(queries + 2 * pairs)]
    q, k, v = tokens[:queries], tokens[queries : queries + pairs], tokens[queries + pairs :]
    for query in q:
        match = [dot(query, key) for key in k]
        circuit.outputs += [dot(match, [value[e] for value in v]) for e in range(c)]
    return circuit


def main() -> None:
    """Checks the primitives and compiled circuits, and prints how many layers they take."""
    y = torch.arange(1.0, 17).double().view(8, 2)
    none = torch.zeros(3, 2)
    assert run(shift_down(8, 2, 3), y).equal(torch.cat([none, y[:5]]))
    assert run(shift_up(8, 2, 3), y).equal(torch.cat([y[3:], none]))
    total = run(running_sum(8, 2, 2), torch.cat([y[:4], torch.zeros(4, 2)]))
    assert total.equal(torch.cat([torch.ones(2, 2), y[:2] + y[2:4], torch.zeros(4, 2)]))
    taps, gate = torch.tensor([[2.0, 1.0], [1.0, -1.0]]).double(), torch.full((3, 2), 3.0).double()
    kept = run(remember(11, taps, gate, 2), torch.cat([y[:2], none[:1], y[2:4], torch.zeros(6, 2)]))
    convolved = torch.stack([taps[0] * y[0], taps[0] * y[1] + taps[1] * y[0], taps[1] * y[1]])
    assert kept.equal(torch.cat([3 * convolved, y[2:4], torch.zeros(6, 2)]))
    print("H.8 to H.10: shift 1 layer, running sum 2, remember 3")

    halves = circuits.Circuit(
        2, (0.5,)
    )  # x / 2 - 3 (x + y) / 2: linear gates with factors of their own
    halves.outputs.append(halves.linear(halves.product(0, 2), halves.linear(0, 1), 1, -1.5))
    found = recall(pairs=2, queries=3, c=3)
    compiled = {
        "Horner, x^5": circuits.horner(5),
        "weighted sums": halves,
        "recall of 2 pairs": found,
    }
    for name, circuit in compiled.items():
        layers = compiled[name] = Compiled(circuit)
        inputs = [float(i % 5 - 2) for i in range(circuit.num_inputs)]
        assert layers(inputs) == circuit.run(inputs)
        width, most = (
            max(circuit.width, len(circuit.outputs)),
            most_layers(circuit.depth, max(circuit.width, len(circuit.outputs))),
        )
        assert len(layers.layers) <= most
        print(
            f"{name}: depth {circuit.depth}, width {width}, degree {circuit.degree}: "
            f"{len(layers.layers)} layers, at most {most}"
        )
    one_hot = torch.eye(3)
    for keys in permutations(range(3), 2):
        answers = torch.tensor(
            compiled["recall of 2 pairs"](one_hot[[0, 1, 2, *keys, 2, 1]].flatten().tolist())
        ).view(3, 3)
        for query in range(3):
            wanted = one_hot[(2, 1)[keys.index(query)]] if query in keys else torch.zeros(3)
            assert answers[query].equal(wanted)
    print("the compiled circuit of attention answers every query of every two pairs")


if __name__ == "__main__":
    main()
