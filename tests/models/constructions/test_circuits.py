"""A circuit compiled to layers of BaseConv computes what it computes gate by gate, within the theorem's depth and width."""

from __future__ import annotations

from functools import reduce
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.models.constructions.circuits import Circuit, Gate, benes, compile_circuit, most_layers


@st.composite
def circuits(draw) -> Circuit:
    num_inputs, constants = draw(st.integers(1, 4)), tuple(draw(st.lists(st.integers(-2, 2), max_size=2)))
    given_wires, gates = num_inputs + len(constants), []
    for wire in range(given_wires, given_wires + draw(st.integers(0, 10))):
        earlier = st.integers(0, wire - 1)
        gates.append(Gate(draw(st.sampled_from(["add", "mul"])), draw(earlier), draw(earlier)))
    wires = st.integers(0, given_wires + len(gates) - 1)
    return Circuit(num_inputs, tuple(gates), tuple(draw(st.lists(wires, min_size=1, max_size=5))), constants)


@given(circuit=circuits(), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_a_compiled_circuit_computes_the_same(circuit, seed):
    compiled = compile_circuit(circuit)
    inputs = torch.randint(-2, 3, (circuit.num_inputs,), generator=torch.Generator().manual_seed(seed)).double()
    assert compiled(inputs).tolist() == circuit.evaluate(inputs.tolist())
    width = max(circuit.width, len(circuit.outputs))
    assert len(compiled.layers) <= most_layers(circuit.depth, width)
    assert compiled.num_rows < 16 * width
    assert all(layer.filter.shape == (compiled.num_rows, 1) for layer in compiled.layers)


@given(sources=st.integers(1, 4).flatmap(lambda m: st.permutations(range(1 << m))))
@settings(max_examples=30)
def test_every_permutation_is_columns_of_swaps(sources):
    row, n = list(range(len(sources))), len(sources)
    columns = benes(sources)
    for distance, swapped in columns:
        for i in swapped:
            assert i % (2 * distance) < distance, "pairs of a column do not overlap"
            row[i], row[i + distance] = row[i + distance], row[i]
    assert row == list(sources)
    assert len(columns) == 2 * (n.bit_length() - 1) - 1


def horner(degree: int) -> Circuit:
    """sum_i c[i] x^i of inputs x, c[0], ..., c[degree]: a product and a sum in turn."""
    gates, wire = [], degree + 1
    for i in range(degree, 0, -1):
        gates += [Gate("mul", wire, 0), Gate("add", degree + 2 + len(gates), i)]
        wire = degree + 1 + len(gates)
    return Circuit(degree + 2, tuple(gates), (wire,))


def test_a_polynomial():
    circuit = horner(5)
    assert (circuit.depth, circuit.width, circuit.size) == (10, 7, 17)
    inputs = torch.tensor([3.0, 1, -2, 0, 4, 0, 2])
    compiled = compile_circuit(circuit)
    assert compiled(inputs).tolist() == [1 - 6 + 4 * 27 + 2 * 243] == circuit.evaluate(inputs.tolist())
    assert len(compiled.layers) == 1 + 10 * 37 + 36 <= most_layers(10, 7)


def recall(pairs: int, queries: int, c: int) -> Circuit:
    """Attention as a circuit: sum_j (sum_b q[i, b] k[j, b]) v[j, e] of one-hot q, k and v, given in this order."""
    gates: list[Gate] = []
    num_inputs = (queries + 2 * pairs) * c

    def gate(kind, first: int, second: int) -> int:
        gates.append(Gate(kind, first, second))
        return num_inputs + len(gates) - 1

    def product_sum(left: list[int], right: list[int]) -> int:
        return reduce(lambda a, b: gate("add", a, b), [gate("mul", a, b) for a, b in zip(left, right, strict=True)])

    q, k, v = (tokens(part, c) for part in ((0, queries), (queries, pairs), (queries + pairs, pairs)))
    matches = [[product_sum(query, key) for key in k] for query in q]
    outputs = [product_sum(match, [value[e] for value in v]) for match in matches for e in range(c)]
    return Circuit(num_inputs, tuple(gates), tuple(outputs))


def tokens(part: tuple[int, int], c: int) -> list[list[int]]:
    """Wires of `part[1]` tokens of c each, after `part[0]` others."""
    return [list(range((part[0] + i) * c, (part[0] + i + 1) * c)) for i in range(part[1])]


def test_associative_recall_by_layers_of_base_conv():
    """Theorem 4.2's use in Zoology: the circuit of a solution of MQAR becomes a BaseConv model that solves it."""
    circuit = recall(pairs=2, queries=3, c=3)
    compiled = compile_circuit(circuit)
    one_hot = torch.eye(3)
    for keys in permutations(range(3), 2):
        for values in ((0, 0), (2, 1), (1, 2)):
            found = compiled(one_hot[[0, 1, 2, *keys, *values]].flatten()).reshape(3, 3)
            answers = dict(zip(keys, values, strict=True))
            for query in range(3):
                assert found[query].tolist() == [float(e == answers.get(query)) for e in range(3)]


def test_layers_grow_with_the_depth_and_the_logarithm_of_the_width():
    assert most_layers(20, 64) - most_layers(10, 64) == most_layers(30, 64) - most_layers(20, 64)
    assert most_layers(10, 256) - most_layers(10, 128) == most_layers(10, 128) - most_layers(10, 64)


@pytest.mark.parametrize(
    ("gates", "outputs"),
    [((Gate("add", 0, 1),), (1,)), ((Gate("sub", 0, 0),), (1,)), ((), (1,)), ((), ())],  # type: ignore[arg-type]
)
def test_what_is_no_circuit_is_refused(gates, outputs):
    with pytest.raises(ValueError, match=r"gate|inputs"):
        Circuit(1, gates, outputs)
