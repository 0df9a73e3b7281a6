"""What the theorems say a model needs at least to solve MQAR, as numbers: bits of state, layers of BaseConv.

From Based (arXiv 2402.18668), section 3 and appendix F; logarithms are to base 2. An Omega hides a constant: where the proof gives a
number, that is returned, else the expression within, as the docstring then says.
"""

from __future__ import annotations

import math


def state_bits(pairs: int, num_values: int = 2, *, distinct: bool = False) -> float:
    """Bits of the state of a recurrent model that answers every query after `pairs` pairs with any of `num_values` values.

    Theorem 3.1 (F.12): Omega(N) bits, by the index problem, whose values are bits. A model that is never wrong must be in another
    state after each assignment of values to the same keys: there are num_values^pairs of them, num_values! / (num_values - pairs)!
    where values differ from each other (`distinct`, as in `recallkit mqar`). Raises ValueError for fewer values than that needs.
    """
    if pairs < 0 or num_values < 1 or (distinct and num_values < pairs):
        raise ValueError(f"{pairs} pairs of {num_values} values")
    if not distinct:
        return pairs * math.log2(num_values)
    return math.fsum(math.log2(num_values - i) for i in range(pairs))


def mqar_degree(vocab_size: int) -> int:
    """Degree of the polynomial that is MQAR of tokens in binary, d = log c bits rounded up: 2 d + 1 (lemma F.18)."""
    return 2 * _bits(vocab_size) + 1


def layers_for_degree(degree: int) -> int:
    """Fewest layers of BaseConv, each of which doubles the degree of its input: log2, rounded up (lemma F.17)."""
    if degree < 1:
        raise ValueError(f"a degree of {degree}")
    return (degree - 1).bit_length()


def layers_for_binary(vocab_size: int) -> int:
    """Fewest layers of BaseConv whose filters do not depend on the input, tokens in binary, d = log c: log(2 d), rounded up.

    Theorem 3.2 (F.19). Its proof excludes a degree of 2 d, too: `layers_for_degree(mqar_degree(c))` is one more where 2 d is a power
    of two.
    """
    return layers_for_degree(2 * _bits(vocab_size))


def layers_for_p_hot(p: int) -> int:
    """The same for p-hot tokens, d = p c^(1/p), one-hot ones for p = 1: log(2 p), rounded up.

    Theorem F.29, of filters that do not depend on the input; remark 3.3 says the same of filters that do, which F.29 does not show.
    """
    return layers_for_degree(2 * p)


def layers_for_length(length: int, width: int) -> float:
    """epsilon log log N for the largest epsilon with d <= 2^((log N)^(1 - epsilon)): grows as the fewest layers do, without the constant.

    Theorem 3.4 (F.14): any encoding of width d >= log c in sequences of N ids, c <= N, parameters of O(log N) bits. It is
    log log N - log log d, and says nothing (0) from d = N on. Raises ValueError unless both are at least 2.
    """
    if length < 2 or width < 2:
        raise ValueError(f"a length of {length} and a width of {width}")
    return max(0.0, math.log2(math.log2(length)) - math.log2(math.log2(width)))


def _bits(vocab_size: int) -> int:
    if vocab_size < 2:
        raise ValueError(f"a vocabulary of {vocab_size}")
    return (vocab_size - 1).bit_length()
