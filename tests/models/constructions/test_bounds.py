"""The bounds are what the theorems of Based state, and what our own constructions need is not less."""

from __future__ import annotations

import itertools
import math

import pytest

from recallkit.models.constructions import bounds
from recallkit.models.constructions.mqar import construct_attention, construct_base_conv


def test_bits_are_the_logarithm_of_the_number_of_assignments():
    for pairs, num_values in itertools.product(range(1, 5), range(4, 7)):
        every = list(itertools.product(range(num_values), repeat=pairs))
        assert bounds.state_bits(pairs, num_values) == pytest.approx(math.log2(len(every)))
        differ = [values for values in every if len(set(values)) == pairs]
        assert bounds.state_bits(pairs, num_values, distinct=True) == pytest.approx(math.log2(len(differ)))


def test_the_bits_that_the_docs_state():
    assert [round(bounds.state_bits(pairs, 2047, distinct=True)) for pairs in (4, 16, 64)] == [44, 176, 703]


def test_the_index_problem_needs_a_bit_a_pair():
    """Theorem F.12: x in {0, 1}^N."""
    assert [bounds.state_bits(n) for n in (1, 64, 1024)] == [1, 64, 1024]


@pytest.mark.parametrize("vocab_size", [2, 4, 16, 256, 4096, 8192, 50_257])
def test_layers_of_tokens_in_binary(vocab_size):
    """Theorem F.19: log(2 d); its proof: the degree 2 d + 1 is more than 2^L where L <= log(2 d)."""
    d = math.ceil(math.log2(vocab_size))
    layers = bounds.layers_for_binary(vocab_size)
    assert 2 ** (layers - 1) < 2 * d <= 2**layers
    by_degree = bounds.layers_for_degree(bounds.mqar_degree(vocab_size))
    assert 2 ** (by_degree - 1) < 2 * d + 1 <= 2**by_degree
    assert by_degree - layers == int(math.log2(2 * d).is_integer())


def test_known_values():
    assert bounds.layers_for_binary(8192) == 5  # the papers' vocabulary: d = 13, log 26
    assert bounds.layers_for_binary(1 << 16) == 5
    assert bounds.layers_for_degree(bounds.mqar_degree(1 << 16)) == 6
    assert [bounds.layers_for_p_hot(p) for p in (1, 2, 3, 4, 5)] == [1, 2, 3, 3, 4]


def test_layers_of_long_sequences():
    """Theorem F.14: with the epsilon that is assumed, d = 2^((log N)^(1 - epsilon)), it is epsilon log log N."""
    for epsilon, exponent in itertools.product((0.25, 0.5, 0.75), (16, 256)):
        width = 2 ** (exponent ** (1 - epsilon))
        assert bounds.layers_for_length(2**exponent, width) == pytest.approx(epsilon * math.log2(exponent))
    assert bounds.layers_for_length(64, 128) == 0


def test_states_of_constructions_have_the_bits_that_they_need():
    """After P pairs their states grow with every id, as theorem 3.1 requires of anything that is never wrong."""
    for pairs, vocab_size in ((4, 16), (64, 4096)):
        needed = bounds.state_bits(pairs, vocab_size // 2 - 1, distinct=True)
        for make in (construct_attention, construct_base_conv):
            assert make(vocab_size).state_size(2 * pairs) >= needed  # elements of -1 and 1: a bit each at least


@pytest.mark.parametrize(
    "ask",
    [
        lambda: bounds.state_bits(5, 4, distinct=True),
        lambda: bounds.layers_for_binary(1),
        lambda: bounds.layers_for_p_hot(0),
        lambda: bounds.layers_for_length(1, 4),
    ],
)
def test_impossible_sizes_are_refused(ask):
    with pytest.raises(ValueError, match="of"):
        ask()
