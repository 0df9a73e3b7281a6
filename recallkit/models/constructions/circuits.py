"""Arithmetic circuits, and a compiler of them to layers of BaseConv (Zoology, arXiv 2312.04927, theorems 4.2 and H.21).

A circuit of depth D and width w becomes O(D log w) layers on O(w) rows of one channel, as the theorem has it; an input of n rows and d
channels is given flat. Each level of gates is divided into one of sums and one of products. Before it its operands are brought
to their places, all first operands and then all second ones, and values that later levels need beside them:

    route      rows of z -> [first operands; second operands], each row from any row of z, or zero
    sums       z[i] = first[i] + second[i]                 one layer, h = 1 + X^(-half)
    products   z[i] = first[i] * (second[i] + b2[i])       one layer, W = 1, h = X^(-half); b2 = 1 for a value that is only kept

The theorem routes by Kaleidoscope matrices (H.14 to H.20). Here a route is a permutation, a copying of runs and a permutation. A
permutation of 2^m rows is 2 m - 1 factors (a Benes network), copying is m. A factor adds to each row those 2^k before and after it,
with weights of their own, in two layers: copies side by side, masked, then added up. So a route is 2 (5 m - 2) layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch

from recallkit.models.constructions.layers import Layer, masked_conv, one_hot, rows, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gate:
    """A sum or a product of two earlier wires."""

    kind: Literal["add", "mul"]
    first: int
    second: int


@dataclass(frozen=True)
class Circuit:
    """Wires are numbered: the inputs, the constants, then the gates in their order; `outputs` are wires, in any order.

    Raises ValueError for a gate that reads itself or a later wire, another kind of gate, unknown outputs or no wire at all.
    """

    num_inputs: int
    gates: tuple[Gate, ...]
    outputs: tuple[int, ...]
    constants: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """See the class."""
        for wire, gate in enumerate(self.gates, self._num_given):
            if gate.kind not in ("add", "mul") or not (0 <= gate.first < wire and 0 <= gate.second < wire):
                raise ValueError(f"gate {wire} is no sum or product of two earlier wires: {gate}")
        known = self._num_given + len(self.gates)
        if self.num_inputs < 1 or not self.outputs or not all(0 <= wire < known for wire in self.outputs):
            raise ValueError(f"{self.num_inputs} inputs, and outputs {self.outputs} of {known} wires")

    @property
    def _num_given(self) -> int:
        """Wires that are no gates."""
        return self.num_inputs + len(self.constants)

    @property
    def size(self) -> int:
        """Number of nodes, inputs and constants included; s in the theorem."""
        return self._num_given + len(self.gates)

    @property
    def depth(self) -> int:
        """Gates on the longest path from an input to a gate."""
        return max(self._depths)

    @property
    def width(self) -> int:
        """The most values that exist at once: what a level makes, and what it leaves for later ones; the inputs, too."""
        return max(self._num_given, *(len(kept) for _, kept in self.levels)) if self.levels else self._num_given

    @cached_property
    def _depths(self) -> list[int]:
        depths = [0] * self._num_given
        for gate in self.gates:
            depths.append(1 + max(depths[gate.first], depths[gate.second]))
        return depths

    @cached_property
    def levels(self) -> list[tuple[Literal["add", "mul"], list[int]]]:
        """Level by level its kind of gate, and the wires that exist after it: made there, or needed later. At most two for each depth."""
        of_level: dict[tuple[int, str], list[int]] = {}
        for wire, gate in enumerate(self.gates, self._num_given):
            of_level.setdefault((self._depths[wire], gate.kind), []).append(wire)
        kinds = sorted(of_level)
        needed, found = set(self.outputs), []
        for kind in reversed(kinds):  # from the last level on, what is needed after it
            found.append((kind[1], sorted(needed | set(of_level[kind]))))
            needed -= set(of_level[kind])
            needed |= {wire for made in of_level[kind] for wire in self._operands(made)}
        return found[::-1]  # type: ignore[return-value]

    def evaluate(self, inputs: Sequence[float]) -> list[float]:
        """The outputs, gate by gate. Raises ValueError for another number of inputs."""
        if len(inputs) != self.num_inputs:
            raise ValueError(f"{len(inputs)} inputs for a circuit of {self.num_inputs}")
        wires = [*inputs, *self.constants]
        for gate in self.gates:
            first, second = wires[gate.first], wires[gate.second]
            wires.append(first + second if gate.kind == "add" else first * second)
        return [wires[wire] for wire in self.outputs]

    def gate(self, wire: int) -> Gate | None:
        """The gate of a wire; None for inputs and constants."""
        return self.gates[wire - self._num_given] if wire >= self._num_given else None

    def _operands(self, wire: int) -> tuple[int, int]:
        gate = self.gates[wire - self._num_given]
        return gate.first, gate.second


@dataclass(frozen=True, slots=True)
class CompiledCircuit:
    """Layers of BaseConv on `num_rows` rows of one channel: the inputs are the first rows before, the outputs the first ones after."""

    layers: list[Layer]
    num_rows: int
    num_outputs: int

    def __call__(self, inputs: Tensor) -> Tensor:
        """inputs: (num_inputs,) -> (num_outputs,), float64."""
        y = inputs.new_zeros(self.num_rows, 1, dtype=torch.float64)
        y[: len(inputs), 0] = inputs
        return run(self.layers, y)[: self.num_outputs, 0]


def compile_circuit(circuit: Circuit) -> CompiledCircuit:
    """The layers that compute a circuit: at most `most_layers` of its depth and width, on fewer than 16 (width + outputs) rows."""
    half = 1 << max(0, (max(circuit.width, len(circuit.outputs)) - 1).bit_length())
    router = _Router(2 * half)
    layers, there = [router.constants(circuit)], list(range(circuit.num_inputs + len(circuit.constants)))
    for kind, wires in circuit.levels:
        place = {wire: row for row, wire in enumerate(there)}
        sources: list[int | None] = [None] * (2 * half)
        only_kept = []
        for row, wire in enumerate(wires):
            gate = circuit.gate(wire)
            if wire in place or gate is None:
                sources[row] = place[wire]
                only_kept.append(row)
            else:
                sources[row], sources[half + row] = place[gate.first], place[gate.second]
        layers += [*router.route(sources), router.combine(kind, only_kept)]
        there = wires
    place = {wire: row for row, wire in enumerate(there)}
    outputs = [place[wire] for wire in circuit.outputs]
    layers += router.route([*outputs, *[None] * (2 * half - len(outputs))])
    return CompiledCircuit(layers, router.num_rows, len(outputs))


def most_layers(depth: int, width: int) -> int:
    """The most layers of a circuit of this depth, `width` the larger of its width and number of outputs: O(depth log width), theorem H.21.

    Constants, 2 (5 m - 2) layers of a route and one for each of at most 2 depth levels, a last route; 2^m rows, m = ceil(log2 width) + 1.
    """
    of_route = 2 * (5 * ((width - 1).bit_length() + 1) - 2)
    return 1 + 2 * depth * (of_route + 1) + of_route


@dataclass(frozen=True, slots=True)
class _Router:
    """Layers on 4 `size` rows that move the values of the first `size`, a power of two, between which all others are zero."""

    size: int

    @property
    def num_rows(self) -> int:
        return 4 * self.size

    def constants(self, circuit: Circuit) -> Layer:
        """z = y + b2 in the first rows: the constants after the inputs."""
        start = circuit.num_inputs
        bias = self._empty()
        bias[start : start + len(circuit.constants), 0] = torch.tensor(circuit.constants, dtype=torch.float64)
        return masked_conv(self._taps(0), self._mask(0, self.size), bias)

    def combine(self, kind: str, only_kept: Sequence[int]) -> Layer:
        """[first; second] to their sums or products; rows `only_kept` have no second operand and stay as they are."""
        half = self.size // 2
        if kind == "add":
            return masked_conv(self._taps(0, -half), self._mask(0, half), cyclic=True)
        kept = one_hot(self.num_rows, 1, *only_kept)
        return Layer(torch.ones(1, 1, dtype=torch.float64), self._empty(), self._taps(-half), kept, cyclic=True)

    def route(self, sources: Sequence[int | None]) -> list[Layer]:
        """Row i gets the value of row `sources[i]`, zero for None."""
        targets = sorted((i for i, source in enumerate(sources) if source is not None), key=lambda i: (sources[i], i))
        offsets = [0] * len(targets)  # in the run of targets with the same source
        for slot in range(1, len(targets)):
            if sources[targets[slot]] == sources[targets[slot - 1]]:
                offsets[slot] = offsets[slot - 1] + 1
        gather = {slot: source for slot, target in enumerate(targets) if not offsets[slot] and (source := sources[target]) is not None}
        spread = {target: slot for slot, target in enumerate(targets)}
        return [
            *self.permute(_completed(gather, self.size)),
            *self._copy(offsets),
            *self.permute(_completed(spread, self.size)),
        ]

    def _copy(self, offsets: Sequence[int]) -> list[Layer]:
        """The first value of each run into the whole run, twice as far with each factor; rows beyond the runs become zero."""
        layers = []
        for k in range(self.size.bit_length() - 1):
            stays = [float(offset < 1 << k) for offset in offsets]
            comes = [1.0 - stay for stay in stays]  # what comes too early is replaced by a later factor
            layers += self._factor(1 << k, stays, comes, [])
        return layers

    def permute(self, sources: Sequence[int]) -> list[Layer]:
        """Row i gets the value of row `sources[i]`, a permutation: a factor for each column of a Benes network."""
        layers = []
        for distance, swapped in benes(sources):
            up = [float(i in swapped) for i in range(self.size)]  # the lower row of a swapped pair is named
            down = [float(i - distance in swapped) for i in range(self.size)]
            stays = [1.0 - a - b for a, b in zip(up, down, strict=True)]
            layers += self._factor(distance, stays, down, up)
        return layers

    def _factor(self, s: int, stays: Sequence[float], from_before: Sequence[float], from_after: Sequence[float]) -> list[Layer]:
        """z[i] = stays[i] y[i] + from_before[i] y[i - s] + from_after[i] y[i + s]: copies side by side, masked, then added.

        s is at most half the size, so that copies do not overlap.
        """
        size, mask = self.size, self._empty()
        for start, weights in ((0, stays), (size, from_before), (3 * size, from_after)):
            mask[start : start + len(weights), 0] = torch.tensor(weights, dtype=torch.float64)
        beside = masked_conv(self._taps(0, size + s, 3 * size - s), mask)
        added = masked_conv(self._taps(0, -size, -3 * size), self._mask(0, size), cyclic=True)
        return [beside, added]

    def _taps(self, *shifts: int) -> Tensor:
        return one_hot(self.num_rows, 1, *(shift % self.num_rows for shift in shifts))

    def _mask(self, start: int, end: int) -> Tensor:
        return rows(self.num_rows, 1, (start, end))

    def _empty(self) -> Tensor:
        return one_hot(self.num_rows, 1)


def benes(sources: Sequence[int]) -> list[tuple[int, set[int]]]:
    """A permutation of 2^m rows as 2 m - 1 columns of swaps of rows i and i + distance: (distance, the rows i); row i is from `sources[i]`.

    Benes 1965: the first and last columns swap rows half the length apart, such that two permutations of half the length each are
    left between them. Which rows swap follows from the loops that outputs half the length apart and such inputs form.
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
            output = target[(sources[(output + half) % n] + half) % n]  # reads the other of a pair of inputs
    first = {i for i in range(half) if not lower[target[i]]}
    last = {i for i in range(half) if not lower[i]}
    halves = []
    for is_lower in (True, False):
        through = [i if lower[i] is is_lower else i + half for i in range(half)]  # the output at row i of this half
        halves.append(benes([sources[output] % half for output in through]))
    inner = [(distance, one | {i + half for i in two}) for (distance, one), (_, two) in zip(*halves, strict=True)]
    return [(half, first), *inner, (half, last)]


def _completed(sources: dict[int, int], size: int) -> list[int]:
    """A permutation that maps these rows as given, and the others in order."""
    used = set(sources.values())
    spare = iter([source for source in range(size) if source not in used])
    return [sources[i] if i in sources else next(spare) for i in range(size)]
