"""Arithmetic circuits: size, depth, width and degree, and the Fourier transform of four numbers in
12 linear gates or in 8.

    python examples/theory/1_circuits.py

"Moreover, the degree of a circuit is defined as the degree of the polynomial computed by the
circuit." (Zoology, arXiv 2312.04927, H.1; the same in Based, arXiv 2402.18668, F.1.) The authors'
text on arithmetic circuits has linear gates a x + b y beside products, and the example: the rows of
the transform one by one take 3 gates each, the fast transform shares sums.
"""

from __future__ import annotations

import cmath
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

Number = complex | float
Polynomial = dict[tuple[int, ...], Number]
"""Monomials, as the sorted numbers of their inputs, and their coefficients: 3 x0^2 x1 + 2 is {(0,
0, 1): 3, (): 2}."""


class Gate(NamedTuple):
    """a x + b y, or x y, of two earlier wires x and y."""

    kind: Literal["linear", "product"]
    first: int
    second: int
    a: Number = 1
    b: Number = 1


@dataclass
class Circuit:
    """Wires are numbered: the inputs, the constants, then the gates in the order in which they are
    added; `outputs` are wires."""

    num_inputs: int
    constants: tuple[Number, ...] = ()
    gates: list[Gate] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def linear(self, first: int, second: int, a: Number = 1, b: Number = 1) -> int:
        """Adds the gate a `first` + b `second`; returns its wire."""
        self.gates.append(Gate("linear", first, second, a, b))
        return self.size - 1

    def product(self, first: int, second: int) -> int:
        """Adds the gate `first` * `second`; returns its wire."""
        self.gates.append(Gate("product", first, second))
        return self.size - 1

    def gate(self, wire: int) -> Gate | None:
        """The gate of a wire; None for inputs and constants."""
        given = self.num_inputs + len(self.constants)
        return self.gates[wire - given] if wire >= given else None

    def run(self, inputs: Sequence[Number]) -> list[Number]:
        """The outputs, gate by gate."""
        wires = [*inputs, *self.constants]
        for kind, first, second, a, b in self.gates:
            x, y = wires[first], wires[second]
            wires.append(a * x + b * y if kind == "linear" else x * y)
        return [wires[wire] for wire in self.outputs]

    @property
    def size(self) -> int:
        """Number of nodes, inputs and constants included: s."""
        return self.num_inputs + len(self.constants) + len(self.gates)

    @property
    def depth(self) -> int:
        """Gates on the longest path from an input to a gate: Delta."""
        return max(self._depths())

    @property
    def width(self) -> int:
        """The most wires that any horizontal cut crosses: what a level makes, and what it leaves
        for later ones; the inputs, too."""
        given = self.num_inputs + len(self.constants)
        return max([given, *(len(wires) for _, wires in self.levels())])

    @property
    def degree(self) -> int:
        """The degree of the polynomials that the outputs are, the largest of them; what cancels
        does not count."""
        return max(
            len(monomial)
            for polynomial in self.polynomials()
            for monomial, c in polynomial.items()
            if c or not monomial
        )

    def polynomials(self) -> list[Polynomial]:
        """The outputs as polynomials in the inputs."""
        wires: list[Polynomial] = [{(i,): 1} for i in range(self.num_inputs)] + [
            {(): value} for value in self.constants
        ]
        for kind, first, second, a, b in self.gates:
            made: Polynomial = defaultdict(float, {(): 0})
            if kind == "linear":
                for factor, wire in ((a, first), (b, second)):
                    for monomial, c in wires[wire].items():
                        made[monomial] += factor * c
            else:
                for one, c in wires[first].items():
                    for other, d in wires[second].items():
                        made[tuple(sorted(one + other))] += c * d
            wires.append(made)
        return [wires[wire] for wire in self.outputs]

    def levels(self) -> list[tuple[str, list[int]]]:
        """Level by level its kind of gate, and the wires that exist after it: made there, or needed
        later. At most two for each depth."""
        depths, of_level = self._depths(), defaultdict(list)
        for wire in range(self.size):
            if gate := self.gate(wire):
                of_level[depths[wire], gate.kind].append(wire)
        needed, found = set(self.outputs), []
        for level in sorted(
            of_level, reverse=True
        ):  # from the last level on, what is needed after it
            found.append((level[1], sorted(needed | set(of_level[level]))))
            needed -= set(of_level[level])
            needed |= {
                wire
                for made in of_level[level]
                if (gate := self.gate(made))
                for wire in (gate.first, gate.second)
            }
        return found[::-1]

    def _depths(self) -> list[int]:
        depths: list[int] = []
        for wire in range(self.size):
            gate = self.gate(wire)
            depths.append(0 if gate is None else 1 + max(depths[gate.first], depths[gate.second]))
        return depths


def naive_fourier() -> Circuit:
    """X_k = sum_n w^(k n) x_n for n, k < 4 and w = -i: each row by itself."""
    circuit, w = Circuit(4), -1j
    for k in range(4):
        wire = circuit.linear(0, 1, 1, w**k)
        for n in (2, 3):
            wire = circuit.linear(wire, n, 1, w ** (k * n))
        circuit.outputs.append(wire)
    return circuit


def fast_fourier() -> Circuit:
    """The same: sums and differences of the even and of the odd inputs, then of these, X_k and X_(k
    + 2) = even_k +- w^k odd_k."""
    circuit, w = Circuit(4), -1j
    even = [circuit.linear(0, 2, 1, sign) for sign in (1, -1)]
    odd = [circuit.linear(1, 3, 1, sign) for sign in (1, -1)]
    circuit.outputs = [circuit.linear(even[k % 2], odd[k % 2], 1, w**k) for k in range(4)]
    return circuit


def horner(degree: int) -> Circuit:
    """sum_i c_i x^i of the inputs x, c_0, ..., c_degree: a product and a sum in turn."""
    circuit = Circuit(degree + 2)
    wire = degree + 1
    for i in range(degree, 0, -1):
        wire = circuit.linear(circuit.product(wire, 0), i)
    circuit.outputs.append(wire)
    return circuit


def cancelling() -> Circuit:
    """(x + y) (x - y) - x^2 + y^2: products, but the polynomial is zero."""
    circuit = Circuit(2)
    both = circuit.product(circuit.linear(0, 1), circuit.linear(0, 1, 1, -1))
    squares = circuit.linear(circuit.product(0, 0), circuit.product(1, 1), -1, 1)
    circuit.outputs.append(circuit.linear(both, squares))
    return circuit


def main() -> None:
    """Prints the measures of the circuits and checks what they compute."""
    x = [1.0, 2.0 - 1j, -3.0, 0.5j]
    wanted = [sum(cmath.exp(-2j * cmath.pi * k * n / 4) * x[n] for n in range(4)) for k in range(4)]
    for circuit in (naive_fourier(), fast_fourier()):
        assert all(
            abs(one - other) < 1e-12 for one, other in zip(circuit.run(x), wanted, strict=True)
        )
    assert horner(3).run([2, 1, 0, 4, 5]) == [1 + 4 * 4 + 5 * 8]
    circuits = {
        "DFT, row by row": naive_fourier(),
        "DFT, fast": fast_fourier(),
        "Horner, x^5": horner(5),
        "what cancels": cancelling(),
    }
    print(f"{'':16} inputs linear products size depth width degree")
    for name, circuit in circuits.items():
        linear = sum(gate.kind == "linear" for gate in circuit.gates)
        row = (
            circuit.num_inputs,
            linear,
            len(circuit.gates) - linear,
            circuit.size,
            circuit.depth,
            circuit.width,
            circuit.degree,
        )
        print(
            f"{name:16} {row[0]:6} {row[1]:6} {row[2]:8} {row[3]:4} {row[4]:5} {row[5]:5} "
            f"{row[6]:6}"
        )


if __name__ == "__main__":
    main()
