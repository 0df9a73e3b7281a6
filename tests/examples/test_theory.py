"""The papers' theory as programs: each checks itself as it runs; what they print of circuits, bounds and patterns is the papers'."""

from __future__ import annotations

import pytest
import torch

from recallkit.models.constructions import CONSTRUCTIONS
from recallkit.models.mixers.base_conv import BaseConv
from tests.examples.conftest import EXAMPLES

PRINTED = {
    "1_circuits": [
        "DFT, row by row       4     12        0",
        "DFT, fast             4      8        0",
        "what cancels          2      4        3",
    ],
    "2_base_conv": ["shift 1 layer, running sum 2, remember 3", "degree 3: 345 layers", "answers every query of every two pairs"],
    "3_mqar": ["20 sequences: attention answers every query"],
    "4_bounds": [
        "44, 176, 703 bits",
        "65,536 tokens in binary: degree 33, 5 layers (by its proof 6)",
        "one-hot to 5-hot tokens: 1, 2, 3, 3, 4",
    ],
    "5_sparse_patterns": [
        "strided, sequential               93.61 %              yes    3         3",
        "fixed, union                      87.89 %              yes    2         2",
        "star                              86.38 %              yes    2        15",
        "896 of 65,536 pairs apart",
    ],
}


@pytest.fixture
def program(load, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES / "theory"))
    return lambda name: load(f"theory/{name}")


def test_there_is_a_line_for_every_program():
    assert sorted(PRINTED) == [path.stem for path in sorted((EXAMPLES / "theory").glob("*.py"))]


@pytest.mark.parametrize("name", PRINTED)
def test_a_program_holds_what_it_states_and_prints_it(name, program, capsys):
    program(name).main()
    shown = capsys.readouterr().out
    for line in PRINTED[name]:
        assert line in shown


def test_degrees_are_those_of_the_polynomials(program):
    circuits = program("1_circuits")
    made = [circuits.naive_fourier(), circuits.fast_fourier(), circuits.horner(5), circuits.cancelling()]
    assert [(circuit.degree, circuit.depth) for circuit in made] == [(1, 3), (1, 2), (6, 10), (0, 3)]
    recall = program("2_base_conv").recall(2, 1, 2)
    assert recall.degree == 3, "a product of three inputs: query, key and value"


def test_a_layer_of_the_proofs_is_that_of_our_mixer(program):
    """With biases that are the same in every row."""
    n, d = 9, 3
    mixer = BaseConv(d, filter="explicit", max_length=n).double()
    torch.nn.init.normal_(mixer.conv.bias)
    gate_bias, conv_bias = (row.detach().expand(n, d) for row in (mixer.gate.bias, mixer.conv.bias))
    layer = program("2_base_conv").Layer(mixer.gate.weight.detach().T, gate_bias, mixer.conv.filters(n).detach().T, conv_bias)
    y = torch.randn(n, d, dtype=torch.float64)
    torch.testing.assert_close(layer(y), mixer(y.unsqueeze(0))[0].detach(), rtol=0, atol=1e-12)


def test_states_of_constructed_models_have_the_bits_that_they_need(program):
    """After P pairs their states grow with every id, as theorem 3.1 requires of anything that is never wrong."""
    for pairs, vocab_size in ((4, 16), (64, 4096)):
        needed = program("4_bounds").state_bits(pairs, vocab_size // 2 - 1, distinct=True)
        for make in CONSTRUCTIONS.values():
            assert make(vocab_size).state_size(2 * pairs) >= needed  # elements of -1 and 1: a bit each at least


def test_a_path_is_found_where_there_is_one_and_masks_that_never_connect_say_so(program):
    patterns = program("5_sparse_patterns")
    ring = torch.eye(6, dtype=torch.bool) | torch.eye(6).roll(2, 0).bool()  # 0 2 4 and 1 3 5: apart
    assert patterns.check_pattern([ring[None]])[:3] == (True, None, None)
    ring[3, 4] = True
    assert patterns.check_pattern([ring[None]]).path == [0, 2, 4, 3, 5, 1]
    causal = patterns.pattern_masks("fixed", 64, causal=True, stride=8)
    assert (patterns.check_pattern(causal).hops, patterns.check_pattern(causal, causal=True).hops) == (None, 2)
