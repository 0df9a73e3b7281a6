"""Attention by sparse patterns: over just what a mask lets through, random ones spread."""

from __future__ import annotations

import pytest
import torch

from recallkit.models.mixers.attention import Attention
from recallkit.models.mixers.sparse_attention import SparseAttention
from recallkit.models.mixers.sparse_patterns import PATTERNS, sees_in_pattern
from tests.models.mixers.battery import difference, inputs

D = 16


def make(**options):
    torch.manual_seed(0)
    return SparseAttention(D, **options).double().eval().requires_grad_(False)


def pattern_mask(pattern, t, **options):
    """The pattern of a text of t tokens: (t, t) bool, queries down, keys across."""
    places = torch.arange(t)
    return sees_in_pattern(pattern, places[:, None], places[None, :], **options)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("part", [0, 1, None])
def test_a_longer_text_has_the_same_pairs(pattern, part):
    options = {"part": part, "stride": 6, "seed": 2, "length": 50}
    long = pattern_mask(pattern, 50, **options)
    assert torch.equal(long[:37, :37], pattern_mask(pattern, 37, **options))
    assert long.diagonal().all()
    assert not long.triu(1).any()


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 1.0])
def test_random_pairs_are_as_many_as_asked_and_spread(sparsity):
    t = 300
    mask = pattern_mask("random", t, sparsity=sparsity, seed=5)
    below = mask.tril(-1)
    num = t * (t - 1) / 2
    deviation = (sparsity * (1 - sparsity) / num) ** 0.5
    assert abs(float(below.sum()) / num - (1 - sparsity)) <= 4 * deviation
    # Rows, columns and diagonals far from the edges hold their share, too: no stripes.
    for lines in (
        below[-60:].sum(1) / torch.arange(t - 60, t),
        below[:, :60].sum(0) / torch.arange(t - 1, t - 61, -1),
    ):
        assert (lines - (1 - sparsity)).abs().max() <= 5 * (
            sparsity * (1 - sparsity) / (t - 60)
        ) ** 0.5 + 1e-9
    other = pattern_mask("random", t, sparsity=sparsity, seed=6)
    assert torch.equal(mask, other) == (sparsity in (0.0, 1.0))


@pytest.mark.parametrize(
    "options",
    [
        {"pattern": "strided", "stride": 1},
        {"pattern": "fixed", "stride": 1},
        {"pattern": "star", "stride": 15, "length": 31},
        {"pattern": "random", "sparsity": 0.0},
        {"pattern": "longformer", "num_global": 30},
    ],
)
def test_a_pattern_of_all_pairs_is_attention(options):
    mixer = make(**options)
    at_once = Attention(D).double().eval()
    at_once.load_state_dict(mixer.state_dict())
    u, _ = inputs(mixer, 30)
    assert difference(mixer(u), at_once(u).detach()) < 1e-12


@pytest.mark.parametrize("pattern", ["strided", "fixed"])
def test_configurations_share_out_the_same_parts(pattern):
    """Heads of multihead are those of sequential's layers; a union head sees what either sees."""
    multihead = make(pattern=pattern, configuration="multihead", stride=4)
    layers = [
        make(pattern=pattern, configuration="sequential", stride=4, layer=layer)
        for layer in range(4)
    ]
    places = torch.arange(30)
    masks = [layer.sees(places[:, None], places[None]) for layer in layers]
    assert torch.equal(masks[0], masks[2])
    assert torch.equal(masks[1], masks[3])
    assert torch.equal(
        multihead.sees(places[:, None], places[None]),
        torch.stack([masks[0], masks[0], masks[1], masks[1]]),
    )
    union = make(pattern=pattern, stride=4)
    assert torch.equal(union.sees(places[:, None], places[None]), masks[0] | masks[1])


def test_heads_of_random_draw_their_own_pairs():
    mixer = make(pattern="random", configuration="multihead", sparsity=0.9)
    places = torch.arange(200)
    visible = mixer.sees(places[:, None], places)
    assert visible.shape == (4, 200, 200)
    below = visible.tril(-1).double().sum((1, 2)) / (200 * 199 / 2)
    assert (below - 0.1).abs().max() < 0.01
    either = float(visible.any(0).tril(-1).double().sum()) / (200 * 199 / 2)
    assert either == pytest.approx(1 - 0.9**4, abs=0.01), "independent of each other"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_both_directions_are_the_reference_of_both_and_have_no_state(pattern):
    class Both(SparseAttention):
        causal = False

    torch.manual_seed(0)
    mixer = (
        Both(D, pattern=pattern, stride=4, length=30, sparsity=0.8)
        .double()
        .eval()
        .requires_grad_(False)
    )
    u, _ = inputs(mixer, 30)
    assert difference(mixer(u), mixer.reference(u)) < 1e-12
    changed = u.clone()
    changed[:, 20:] += 1
    assert (mixer(changed)[:, :20] - mixer(u)[:, :20]).abs().max() > 1e-3, (
        "what follows acts on what was"
    )
    with pytest.raises(ValueError, match="of 30 tokens, not 29"):
        mixer(u[:, :29])
    with pytest.raises(ValueError, match="has no state"):
        mixer.read(u, mixer.initial_state(2))


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.875, 1.0])
def test_random_pairs_are_counted_as_expected(sparsity):
    t = 300
    mixer = make(pattern="random", sparsity=sparsity)
    actual = 4 * int(pattern_mask("random", t, sparsity=sparsity).sum())
    deviation = (sparsity * (1 - sparsity) * t * (t - 1) / 2) ** 0.5
    assert abs(mixer.num_pairs(t) - actual) <= 4 * (4 * deviation)
    assert mixer.num_pairs(1) == 4
