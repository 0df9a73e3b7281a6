"""Operations of mixers, counted again from their equations: a sum, product, division, comparison, exp and log are one each."""

from __future__ import annotations

import math

import pytest

from recallkit.models.mixers import make_mixer

SIGMOID = SILU = 4
"""x / (1 + exp(-x)): a sign, an exponential, a sum, a division."""
GELU, SOFTPLUS, LAYER_NORM, ROOT_MEAN_SQUARE = 8, 3, 8, 3
"""Of one entry. The last is square, sum and product with the root; a weight is one more."""
SIZES = [(16, 40), (32, 300)]
"""d, t: the second is of several chunks, the last one not full, in every mixer."""


def matrix(t, rows, columns, bias=False):
    return t * columns * (2 * rows + bias)


def sizes(t, chunk):
    """Tokens in each chunk."""
    return [min(chunk, t - start) for start in range(0, t, chunk)]


def pairs(t, chunk):
    return sum(size * (size + 1) // 2 for size in sizes(t, chunk))


def long_convolution(t, channels):
    """Transforms of u, of h and back, of the next fast length from 2 t - 1 on, and a complex product of half the frequencies."""
    n = {40: 80, 300: 640}[t]
    return channels * math.ceil(3 * 5 * n * math.log2(n) + 6 * (n / 2 + 1))


def linear_attention(d, t):
    """Two heads, f = 4: Taylor scores of 2 f + 4; features 1 + 4 + 10, which take f + f + 2 f + 6; sums of d/2 values and of weights."""
    h, f, v = 2, 4, d // 2
    features, made, n = 15, 22, len(sizes(t, 128))
    mixing = pairs(t, 128) * (2 * f + 4 + 2 * v + 1)
    if n > 1:
        ends = sizes(t, 128)
        read, written = t - ends[0], t - ends[-1]
        mixing += read * (made + 2 * features * (v + 1) + v + 1)
        mixing += written * (made + features * (2 * v + 1)) + (n - 2) * features * (v + 1)
    return 2 * matrix(t, d, h * f) + 2 * matrix(t, d, d) + h * mixing + t * d


def linear_attention_relu(d, t):
    """The same with decays, four features that every pair needs, and no more of the state than in the numerator."""
    h, f, v = 2, 4, d // 2
    ends = sizes(t, 128)
    read, written, n = t - ends[0], t - ends[-1], len(ends)
    mixing = 2 * t * f + pairs(t, 128) * (2 * f + 1 + 2 * v)
    mixing += read * (2 * f * v + v + v) + written * (f + 2 * f * v) + max(n - 2, 0) * 2 * f * v
    return 2 * matrix(t, d, h * f) + 2 * matrix(t, d, d) + h * mixing


def retnet(d, t):
    """Two heads, values of twice the width: rotations of three an entry, a scale of k, decays of pairs, of S and of what meets S."""
    h, k, v = 2, d // 2, d
    ends = sizes(t, 128)
    n, read, written = len(ends), t - ends[0], t - ends[-1]
    mixing = t * (7 * k + (ROOT_MEAN_SQUARE + SILU + 1) * v) + pairs(t, 128) * (2 * k + 1 + 2 * v)
    mixing += read * (k + 2 * k * v + v) + written * (k + 2 * k * v) + max(n - 2, 0) * 2 * k * v
    return 2 * matrix(t, d, d) + 3 * matrix(t, d, 2 * d) + h * mixing


def gla(d, t):
    """Two heads, k = d/4, v = d/2, rank 3: gates by a log of a sigmoid (4) and a division; blocks of 1, 2, 4, 8 tokens are doubled."""
    h, k, v, n = 2, d // 4, d // 2, len(sizes(t, 16))
    layers = 2 * matrix(t, d, d // 2) + 2 * matrix(t, d, d) + matrix(t, d, 3) + matrix(t, 3, d // 2, bias=True) + matrix(t, d, d)
    tokens = t * (k * (4 + 1) + k + v * (ROOT_MEAN_SQUARE + 1 + SILU + 1))
    # q by its own decay; a sum and two exps for each block, a factor to each q or k for each doubling; two products with S, their sum.
    tokens += t * (k * (2 + 3 + 4) + 4 * k * v + v)
    return layers + h * (tokens + pairs(t, 16) * (2 * k + 2 * v) + n * (2 * k * v + k))


def delta_net(d, t, k=None, v=None, by_channel=False):
    """Two heads of k keys and v values, d/2 of each: 4 taps; lengths of q and k, a scale; strengths."""
    h, k, v, chunk = 2, k or d // 2, v or d // 2, 32 if by_channel else 64
    layers = matrix(t, d, 2 * h * k + h * v) + matrix(t, d, h) + matrix(t, h * v, d)
    mixing = t * ((2 * 3 + 1) * k + SIGMOID + (ROOT_MEAN_SQUARE + 1) * v)
    for size in sizes(t, chunk):
        # q.k and k.k; the triangular system for values and keys; what is seen of the values.
        mixing += size * (size + 1) // 2 * (2 * 2 * k + 2 * (k + v) + 2 * v)
        # Values by strength; S removed from values, read and written; S decayed.
        mixing += size * (v + 3 * 2 * k * v) + k * v
        if by_channel:
            # A power, k by it and by the strength, q by it; a sum and two powers for each block, five doublings of q and e or of k.
            mixing += size * k * (1 + 2 + 1 + 3 + 5 * 3 / 2)
        else:
            # Two decays of each pair, two pairs decayed; k by strength and decay, it and q and k decayed.
            mixing += size * (size + 1) // 2 * (2 + 2) + size * (k + 3 * k)
    return layers + t * (2 * h * k + h * v) * (2 * 4 + SILU) + h * mixing


def gated_delta(d, t):
    """The same with keys of 3/8 d and twice as many values, a decay, and a gate."""
    h, k, v = 2, 3 * d // 8, 3 * d // 4
    return delta_net(d, t, k, v) + matrix(t, d, h) + matrix(t, d, h * v) + h * t * ((1 + SOFTPLUS + 1 + 4) + (SILU + 1) * v)


def kda(d, t):
    """DeltaNet's widths; decays of channels and gates of as many values by way of the values of one head; a softplus, a sigmoid."""
    h, k, v = 2, d // 2, d // 2
    layers = 2 * matrix(t, d, v) + matrix(t, v, h * k) + matrix(t, v, h * v)
    return delta_net(d, t, by_channel=True) + layers + h * t * (k * (1 + SOFTPLUS + 1) + v * (SIGMOID + 1))


def rwkv4(d, t):
    """Three shifts of three; present + bonus and two maxima (4), four exponentials of differences (8), sums (5), ratio (6); the gate."""
    return 4 * matrix(t, d, d) + t * d * (3 * 3 + (4 + 8 + 5 + 6) + SIGMOID + 1)


def rwkv5(d, t):
    """Heads of 8: four shifts; halves of halves of a chunk bring a factor to r or k each; the bonus; S read, written and faded."""
    levels = 6
    tokens = 4 * 3 + LAYER_NORM + SILU + 1 + levels + 1 + (4 * 8 + 2 + 1)
    return 5 * matrix(t, d, d) + d * (t * tokens + 4 * pairs(t, 64) + len(sizes(t, 64)) * 2 * 8)


def rwkv7(d, t):
    """Heads of 8, ranks 3 and 5: six shifts; decay, rate and gate; keys; bonus; r and e with k and w, S read and written twice."""
    tanh, n = 5, 8
    layers = 4 * matrix(t, d, d) + 2 * matrix(t, d, 3) + 2 * matrix(t, 3, d, bias=True) + matrix(t, d, 5) + matrix(t, 5, d)
    tokens = 6 * 3 + (SIGMOID + 1) + SIGMOID + (1 + 3) + 4 + 1 + LAYER_NORM + (3 + 1 + 1) + 1
    # A power, r by it; a sum and two powers for each block; five doublings bring factors to r and e, or to k and w.
    tokens += 2 + 3 + 5 * 2 + 4 * 2 * n
    both = pairs(t, 32) * (4 * 2 + 2 + 2 * 2 + 2 * 2) + len(sizes(t, 32)) * n
    return layers + t * (tanh * 3 + SIGMOID * 5) + d * (t * tokens + both)


def mamba2(d, t):
    """Heads of 8, one group, n = 4: a convolution of 4 taps, a bias and a silu; D, gate, norm; decays of pairs, of x and of outputs."""
    w, n, h = 2 * d, 4, 2 * d // 8
    convolved = w + 2 * n
    layers = matrix(t, d, w + convolved + h) + matrix(t, w, d)
    tokens = convolved * (2 * 4 + 1 + SILU) + h * (1 + SOFTPLUS + 2) + w * (1 + 2 + SILU + 1 + ROOT_MEAN_SQUARE + 1)
    tokens += 4 * w * n + 3 * h + 3 * w
    return layers + t * tokens + pairs(t, 64) * (2 * n + h * (3 + 2 * 8)) + len(sizes(t, 64)) * (2 * w * n + h)


def mamba3(d, t):
    """Heads of 8, one group, n = 6 with one pair that turns; norms, biases, steps and their shares; skip, its correction, gate."""
    h, n, p, a, tanh = 2 * d // 8, 6, 8, 1, 5
    layers = matrix(t, d, 4 * d + 2 * n + 3 * h + a) + matrix(t, 2 * d, d)
    head = 2 * n + (1 + SOFTPLUS) + (SOFTPLUS + 1 + 2) + SIGMOID + 3
    # The angle, its sum and remainder, its cosine and sine; pairs of B and C.
    head += a * (1 + 1 + 1 + 2) + 2 * 2 * 3 * a
    # The sum of the shares (above) times x; C.B times its share, from D, times x, added; the gate.
    head += p + (2 * n + 1) + (1 + 2 * p) + (SILU + 1) * p
    head += 4 * n * p + 3 + 3 * p
    tokens = 2 * n * (ROOT_MEAN_SQUARE + 1) + a * (tanh + 1) + h * head
    return layers + t * tokens + h * (pairs(t, 64) * (2 * n + 3 + 2 * p) + len(sizes(t, 64)) * (2 * n * p + 1))


def hyena(d, t):
    """Order 2: three projections, smoothed by three taps and a bias; a network 3 - 5 - 5 - 5 - d with sines; two gates and a skip."""
    network = 2 * (3 * 5 + 2 * 5 * 5 + 5 * d) + 3 * 5 * 3
    layers = matrix(t, d, 3 * d, bias=True) + matrix(t, d, d, bias=True)
    return layers + t * 3 * d * (2 * 3 + 1) + t * (network + 3 * d) + long_convolution(t, d) + t * d * (2 + 2)


def long_conv(d, t):
    return long_convolution(t, d) + 2 * t * d + GELU * t * d + matrix(t, d, 2 * d, bias=True) + (SIGMOID + 1) * t * d


def s4d(d, t):
    """Three poles: the real part of a complex sum of them for each tap."""
    return 4 * d * 3 * t + long_conv(d, t)


def h3(d, t):
    """Heads of two channels, a state of 4: a shift of 4 taps, four outer products a head with two poles each."""
    entries = 2 * d * t
    shift = 2 * 4 * t * d + 2 * t * d
    return 4 * matrix(t, d, d, bias=True) + shift + 4 * (d // 2) * 2 * t + long_convolution(t, 2 * d) + entries * (1 + 2 + 2)


def gss(d, t):
    w, wide = d // 4, 2 * d
    layers = matrix(t, d, w) + matrix(t, d, wide) + matrix(t, w, wide) + matrix(t, wide, d)
    return layers + t * w * (GELU + LAYER_NORM + 2) + t * wide * (GELU + 1) + 4 * w * 3 * t + long_convolution(t, w)


def programmatic_conv(d, t):
    """At most one token brought to each but the first; a bias, a gate."""
    return matrix(t, d, d, bias=True) + 2 * t * d + 2 * (t - 1) * d


def programmatic_conv_all(d, t):
    return matrix(t, d, d, bias=True) + 2 * t * d + t * (t - 1) * d


def autocorrelation_conv(d, t):
    """Keys of 3, normalised; a product and a running sum for each pair; three taps, each a share of their sum."""
    layers = matrix(t, d, d, bias=True) + matrix(t, d, 3)
    return layers + 3 * 3 * t + t * (t + 1) // 2 * (2 * 3 + 1) + t * 3 * (2 + 2 * d) + 2 * t * d


COUNTED = [
    ("linear_attention", {"num_heads": 2, "feature_dim": 4}, linear_attention),
    (
        "linear_attention",
        {"num_heads": 2, "feature_dim": 4, "feature_map": "relu", "decay": True, "normalise": False},
        linear_attention_relu,
    ),
    ("retnet", {"num_heads": 2}, retnet),
    ("gla", {"num_heads": 2, "gate_rank": 3}, gla),
    ("delta_net", {"num_heads": 2}, delta_net),
    ("gated_delta", {"num_heads": 2}, gated_delta),
    ("kda", {"num_heads": 2}, kda),
    ("rwkv4", {}, rwkv4),
    ("rwkv5", {"head_size": 8}, rwkv5),
    ("rwkv7", {"head_size": 8, "rate_rank": 3, "gate_rank": 5}, rwkv7),
    ("mamba2", {"state": 4, "head_dim": 8}, mamba2),
    ("mamba3", {"state": 6, "head_dim": 8}, mamba3),
    ("hyena", {"width": 5}, hyena),
    ("long_conv", {}, long_conv),
    ("s4d", {"state": 6}, s4d),
    ("h3", {"state": 4, "head_dim": 2}, h3),
    ("gss", {"state": 3, "expand": 2}, gss),
    ("programmatic_conv", {}, programmatic_conv),
    ("programmatic_conv", {"occurrences": "all"}, programmatic_conv_all),
    ("autocorrelation_conv", {"top": 3, "key_width": 3}, autocorrelation_conv),
]


@pytest.mark.parametrize(("d", "t"), SIZES)
@pytest.mark.parametrize(("kind", "options", "formula"), COUNTED, ids=[formula.__name__ for _, _, formula in COUNTED])
def test_operations_are_those_of_the_equations(kind, options, formula, d, t):
    assert make_mixer(kind, d, **options).flops(t) == formula(d, t)
