"""What the theorems of Based (arXiv 2402.18668, section 3 and appendix F) say a model needs at
least to solve MQAR, as numbers.

    python examples/theory/4_bounds.py

Theorem 3.1: "Any recurrent model depending causally on input u requires Omega(N)-bits in state size
to solve MQAR." Theorem 3.2: "a data-independent BaseConv model needs log(2d)-layers to solve MQAR
for d = log_2(c)". Logarithms are to base 2. An Omega hides a constant: where the proof gives a
number, that is returned, else the expression within.
"""

from __future__ import annotations

import math


def state_bits(pairs: int, num_values: int, *, distinct: bool = False) -> float:
    """Bits of the state of a recurrent model that is never wrong after `pairs` pairs with any of
    `num_values` values (F.12).

    It must be in another state after each assignment of values to the same keys: there are
    num_values^pairs of them, num_values! / (num_values - pairs)! where values differ from each
    other (`distinct`, as in `recallkit mqar`).
    """
    if not distinct:
        return pairs * math.log2(num_values)
    return math.fsum(math.log2(num_values - i) for i in range(pairs))


def mqar_degree(vocab_size: int) -> int:
    """Degree of the polynomial that is MQAR of tokens in binary, d = log c bits rounded up: 2 d + 1
    (lemma F.18)."""
    return 2 * (vocab_size - 1).bit_length() + 1


def layers_for_degree(degree: int) -> int:
    """Fewest layers of BaseConv, each of which doubles the degree of its input: log2, rounded up
    (lemma F.17)."""
    return (degree - 1).bit_length()


def layers_for_binary(vocab_size: int) -> int:
    """Fewest layers with fixed filters, tokens in binary, d = log c: log(2 d), rounded up (theorem
    3.2, F.19).

    Its proof excludes a degree of 2 d, too: `layers_for_degree(mqar_degree(c))` is one more where 2
    d is a power of two.
    """
    return layers_for_degree(mqar_degree(vocab_size) - 1)


def layers_for_p_hot(p: int) -> int:
    """The same for p-hot tokens, d = p c^(1/p), one-hot ones for p = 1: log(2 p), rounded up
    (theorem F.29, of fixed filters)."""
    return layers_for_degree(2 * p)


def layers_for_length(length: int, width: int) -> float:
    """epsilon log log N for the largest epsilon with d <= 2^((log N)^(1 - epsilon)), without the
    constant (theorem 3.4, F.14).

    Any encoding of width d >= log c in sequences of N ids, c <= N: it is log log N - log log d, and
    nothing from d = N on.
    """
    return max(0.0, math.log2(math.log2(length)) - math.log2(math.log2(width)))


def main() -> None:
    """Prints what docs/mqar.md states."""
    bits = [round(state_bits(pairs, 2047, distinct=True)) for pairs in (4, 16, 64)]
    print(
        f"state after 4, 16 and 64 pairs, different values of 2,047: {bits[0]}, {bits[1]}, "
        f"{bits[2]} bits"
    )
    assert state_bits(64, 2) == 64, "the index problem: a bit a pair"
    for vocab in (4096, 8192, 1 << 16):
        by_proof = layers_for_degree(mqar_degree(vocab))
        print(
            f"{vocab:,} tokens in binary: degree {mqar_degree(vocab)}, "
            f"{layers_for_binary(vocab)} layers (by its proof {by_proof})"
        )
    print(
        f"one-hot to 5-hot tokens: {', '.join(str(layers_for_p_hot(p)) for p in range(1, 6))} "
        "layers"
    )
    print(f"2^256 ids, width 2^16: {layers_for_length(2**256, 2**16):g} times a constant")


if __name__ == "__main__":
    main()
