"""Linear attention and RetNet: the battery for every feature map, what each map means, and what
decays do."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from recallkit.models.mixers.feature_maps import Performer, make_feature_map
from recallkit.models.mixers.linear_attention import LinearAttention
from recallkit.models.mixers.prefix_linear_attention import PrefixLinearAttention
from recallkit.models.mixers.retnet import RetNet
from tests.models.mixers.battery import randomised


def normal(*shape, seed=3):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


KERNELS = {
    "taylor": lambda q, k, i, j: 1 + q @ k / 2 + (q @ k / 2) ** 2 / 2,
    "relu": lambda q, k, i, j: sum(max(a, 0) * max(b, 0) for a, b in zip(q, k, strict=True)),
    "elu": lambda q, k, i, j: sum(
        shifted(float(a)) * shifted(float(b)) for a, b in zip(q, k, strict=True)
    ),
    "square": lambda q, k, i, j: sum(a**2 * b**2 for a, b in zip(q, k, strict=True)),
    "identity": lambda q, k, i, j: q @ k / 2,
    "cosformer": lambda q, k, i, j: (
        KERNELS["relu"](q, k, i, j) * math.cos(math.pi / 2 * (i - j) / 40)
    ),
}
"""phi(q).phi(k) of vectors of four entries at positions i and j."""


def shifted(x):
    return 1 + x if x > 0 else math.exp(x)


@pytest.mark.parametrize("name", KERNELS)
def test_features_multiply_to_the_kernel(name):
    features = make_feature_map(name, 4, max_length=40)
    q, k, positions = normal(9, 4), normal(9, 4, seed=4), torch.arange(9)[:, None]
    wanted = torch.zeros(9, 9, dtype=torch.float64)
    for i, j in itertools.product(range(9), repeat=2):
        wanted[i, j] = KERNELS[name](q[i], k[j], i, j)
    torch.testing.assert_close(features.scores(q, k, positions), wanted)
    for actual in (features, features.reference):
        torch.testing.assert_close(actual(q, positions) @ actual(k, positions).T, wanted)
    assert features(q, positions).shape == (9, features.num_features)


def test_state_size_is_the_paper_s_equation_9():
    for d in (48, 64, 128):  # the widths and feature dimensions of the paper's MQAR runs
        for f in (8, 16, 24):
            features = 1 + 3 * f // 2 + f * f // 2
            one_head = LinearAttention(d, num_heads=1, feature_dim=f)
            assert (
                one_head.state_size(1000)
                == (d + 1) * features
                == sum(part.numel() for part in one_head.initial_state(1).values())
            )
            assert (
                LinearAttention(d, num_heads=4, feature_dim=f).state_size(1000)
                == (d + 1) * features
            )


def test_performer_estimates_softmax_without_bias():
    """Means over many independent draws come closer to exp(q.k/sqrt(f)); every one is positive, and
    made by its seed alone."""
    q, k = normal(5, 8) / 2, normal(5, 8, seed=4) / 2
    wanted = torch.exp(q @ k.T / math.sqrt(8))
    draws = [Performer(8, 40, seed).double() for seed in range(300)]
    estimates = torch.stack([draw(q) @ draw(k).T for draw in draws])
    assert (estimates > 0).all()
    standard_error = estimates.std(dim=0) / math.sqrt(len(draws))
    assert ((estimates.mean(dim=0) - wanted).abs() < 4 * standard_error + 1e-4).all()
    assert standard_error.max() < 0.05
    assert torch.equal(Performer(8, 40, 7).projection, draws[7].projection.float())
    rows = draws[0].projection[:8] / draws[0].projection[:8].norm(dim=1, keepdim=True)
    torch.testing.assert_close(rows @ rows.T, torch.eye(8, dtype=torch.float64), atol=1e-5, rtol=0)


def test_decays_that_depend_on_the_input_in_plain_numbers():
    """Based, appendix C: the decays of each head times a number that the reading token has for it,
    without a function, above alone."""
    mixer = (
        randomised(LinearAttention(4, num_heads=2, feature_dim=3, decay="input"))
        .double()
        .requires_grad_(False)
    )
    u = normal(1, 7, 4)
    layers = (mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.decay_proj)
    q, k, v, factors = ((u[0] @ layer.weight.T).tolist() for layer in layers)
    for i, actual in enumerate(mixer(u)[0].tolist()):
        heads = []
        for head, decay in enumerate((7 / 8, 15 / 16)):
            above, below = [0.0, 0.0], 0.0
            for j in range(i + 1):
                s = sum(
                    a * b
                    for a, b in zip(
                        q[i][3 * head : 3 * head + 3],
                        k[j][3 * head : 3 * head + 3],
                        strict=True,
                    )
                ) / math.sqrt(3)
                weight = 1 + s + s * s / 2
                below += weight
                above = [
                    total + factors[i][head] * decay ** (i - j) * weight * x
                    for total, x in zip(above, v[j][2 * head :], strict=False)
                ]
            heads += [total / below for total in above]
        assert actual == pytest.approx(applied(mixer.out_proj.weight, heads), rel=1e-9, abs=1e-12)


def test_every_token_has_seen_the_whole_prefix_also_those_before_its_end():
    """JRT's equation in plain products: the encoder's keys and values of the whole prefix in both
    sums of every token."""
    mixer = (
        randomised(PrefixLinearAttention(6, num_heads=1, feature_dim=4, prefix=5))
        .double()
        .requires_grad_(False)
    )
    u = normal(1, 9, 6)
    actual = mixer(u)[0]
    q, k, v, again, again_v = (
        m(u[0])
        for m in (
            mixer.q_proj,
            mixer.k_proj,
            mixer.v_proj,
            mixer.prefix_k_proj,
            mixer.prefix_v_proj,
        )
    )

    def weigh(query, keys):
        scores = keys @ query / 2
        return 1 + scores + scores**2 / 2

    for i in range(9):
        own, second = weigh(q[i], k[: i + 1]), weigh(q[i], again[:5])
        wanted = mixer.out_proj(
            (own @ v[: i + 1] + second @ again_v[:5]) / (own.sum() + second.sum()),
        )
        torch.testing.assert_close(actual[i], wanted)


def turned(x, i):
    """Six entries as three pairs (n, n + 3), turned by i, i / 100 and i / 10000: frequencies
    10000^(-n / 2), n = 0, 1, 2."""
    out = list(x)
    for n, frequency in enumerate((1.0, 0.01, 0.0001)):
        cos, sin = math.cos(i * frequency), math.sin(i * frequency)
        out[n], out[n + 3] = x[n] * cos - x[n + 3] * sin, x[n + 3] * cos + x[n] * sin
    return out


def applied(weight, x):
    return (weight @ torch.tensor(x, dtype=weight.dtype)).tolist()


def test_retnet_in_plain_numbers():
    """Equations 5 to 8 in loops over numbers, two heads of six entries: decays 31/32 and 63/64,
    keys by sqrt 6, a norm of each head."""
    mixer = randomised(RetNet(12, num_heads=2, value_factor=1)).double().requires_grad_(False)
    u = normal(1, 9, 12)
    actual = mixer(u)[0].tolist()
    layers = (mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.g_proj)
    q, k, v, g = ((u[0] @ layer.weight.T).tolist() for layer in layers)
    for i in range(9):
        heads = []
        for head, decay in enumerate((0.96875, 0.984375)):
            part = slice(6 * head, 6 * head + 6)
            o = [0.0] * 6
            for j in range(i + 1):
                score = sum(
                    a * b for a, b in zip(turned(q[i][part], i), turned(k[j][part], j), strict=True)
                )
                weight = decay ** (i - j) * score / 2.449489742783178
                o = [total + weight * value for total, value in zip(o, v[j][part], strict=True)]
            root = math.sqrt(sum(entry**2 for entry in o) / 6 + 0.000001)
            heads += [entry / root for entry in o]
        gated = [
            entry / (1 + math.exp(-gate)) * gate for entry, gate in zip(heads, g[i], strict=True)
        ]
        assert actual[i] == pytest.approx(
            applied(mixer.out_proj.weight, gated),
            rel=1e-9,
            abs=1e-12,
        )
