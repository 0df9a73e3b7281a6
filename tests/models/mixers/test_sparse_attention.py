"""Sparse patterns: small masks by hand, the papers' sparsity levels, and attention over just what a mask lets through."""

from __future__ import annotations

import pytest
import torch

from recallkit.models.mixers.attention import Attention
from recallkit.models.mixers.sparse_attention import PATTERNS, SparseAttention, sees_in_pattern
from tests.models.mixers.battery import check_mixer, difference, inputs

D = 16


def make(**options):
    torch.manual_seed(0)
    return SparseAttention(D, **options).double().eval().requires_grad_(False)


def pattern_mask(pattern, t, **options):
    """The pattern of a text of t tokens: (t, t) bool, queries down, keys across."""
    places = torch.arange(t)
    return sees_in_pattern(pattern, places[:, None], places[None, :], **options)


def drawn(mask):
    return ["".join("#" if seen else "." for seen in row) for row in mask.tolist()]


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 4},
        {"stride": 1, "configuration": "multihead"},
        {"stride": 5, "configuration": "multihead", "rope_fraction": 0.5},
        {"stride": 4, "configuration": "sequential"},
        {"stride": 4, "configuration": "sequential", "layer": 3},
        {"pattern": "fixed", "stride": 4},
        {"pattern": "fixed", "stride": 5, "configuration": "multihead"},
        {"pattern": "fixed", "stride": 4, "configuration": "sequential", "layer": 1},
        {"pattern": "star", "stride": 5},
        {"pattern": "random", "sparsity": 0.7, "seed": 3},
    ],
)
def test_battery(options):
    check_mixer(lambda: SparseAttention(D, **options))


@pytest.mark.parametrize(
    ("pattern", "part", "wanted"),
    [
        ("strided", 0, "#...... ##..... ###.... ####... .####.. ..####. ...####"),
        ("strided", 1, "#...... .#..... ..#.... #..#... .#..#.. ..#..#. #..#..#"),
        ("strided", None, "#...... ##..... ###.... ####... .####.. ..####. #..####"),
        ("fixed", 0, "#...... ##..... ###.... ...#... ...##.. ...###. ......#"),
        ("fixed", 1, "#...... .#..... ..#.... ..##... ..#.#.. ..#..#. ..#..##"),
        ("fixed", None, "#...... ##..... ###.... ..##... ..###.. ..####. ..#..##"),
        ("star", None, "#...... ##..... ###.... ..##... ..###.. ######. .....##"),
    ],
)
def test_patterns_of_stride_three(pattern, part, wanted):
    assert drawn(pattern_mask(pattern, 7, part=part, stride=3)) == wanted.split()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("part", [0, 1, None])
def test_a_longer_text_has_the_same_pairs(pattern, part):
    long = pattern_mask(pattern, 50, part=part, stride=6, seed=2)
    assert torch.equal(long[:37, :37], pattern_mask(pattern, 37, part=part, stride=6, seed=2))
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
    for lines in (below[-60:].sum(1) / torch.arange(t - 60, t), below[:, :60].sum(0) / torch.arange(t - 1, t - 61, -1)):
        assert (lines - (1 - sparsity)).abs().max() <= 5 * (sparsity * (1 - sparsity) / (t - 60)) ** 0.5 + 1e-9
    other = pattern_mask("random", t, sparsity=sparsity, seed=6)
    assert torch.equal(mask, other) == (sparsity in (0.0, 1.0))


@pytest.mark.parametrize(
    "options",
    [
        {"pattern": "strided", "stride": 1},
        {"pattern": "fixed", "stride": 1},
        {"pattern": "star", "stride": 1},
        {"pattern": "random", "sparsity": 0.0},
    ],
)
def test_a_pattern_of_all_pairs_is_attention(options):
    mixer = make(**options)
    whole = Attention(D).double().eval()
    whole.load_state_dict(mixer.state_dict())
    u, _ = inputs(mixer, 30)
    assert difference(mixer(u), whole(u).detach()) < 1e-12


@pytest.mark.parametrize("pattern", ["strided", "fixed"])
def test_configurations_share_out_the_same_parts(pattern):
    """Heads of multihead are those of sequential's layers; a union head sees what either sees."""
    multihead = make(pattern=pattern, configuration="multihead", stride=4)
    layers = [make(pattern=pattern, configuration="sequential", stride=4, layer=layer) for layer in range(4)]
    places = torch.arange(30)
    masks = [layer.sees(places[:, None], places[None]) for layer in layers]
    assert torch.equal(masks[0], masks[2])
    assert torch.equal(masks[1], masks[3])
    assert torch.equal(multihead.sees(places[:, None], places[None]), torch.stack([masks[0], masks[0], masks[1], masks[1]]))
    union = make(pattern=pattern, stride=4)
    assert torch.equal(union.sees(places[:, None], places[None]), masks[0] | masks[1])


def test_every_token_reaches_every_later_one_in_two_layers():
    """What the parts are for: two layers of sparse attention connect all pairs (Child et al. 2019, section 4.2)."""
    for pattern in ("strided", "fixed", "star"):
        mask = pattern_mask(pattern, 64, stride=8).long()
        # A star hands on what a relay gathered at a relay, so the last tokens before one wait for it.
        reached = mask @ mask if pattern != "star" else (mask @ mask)[8:, :8]
        assert (reached > 0).sum() == (64 * 65 // 2 if pattern != "star" else 56 * 8), pattern


@pytest.mark.parametrize("stride", [1, 2, 3, 16])
@pytest.mark.parametrize("pattern", ["strided", "fixed", "star"])
def test_pairs_are_counted_in_all_heads(pattern, stride):
    uses = (
        [{}] if pattern == "star" else [{}, {"configuration": "multihead"}, *({"configuration": "sequential", "layer": i} for i in (0, 1))]
    )
    for options in uses:
        mixer = make(pattern=pattern, stride=stride, **options)
        for t in (1, 2, 3, 17, 50):
            assert mixer.num_pairs(t) == sum(len(mixer.keys_of(i, head)) for head in range(4) for i in range(t)), (options, t)


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.875, 1.0])
def test_random_pairs_are_counted_as_expected(sparsity):
    t = 300
    mixer = make(pattern="random", sparsity=sparsity)
    made = 4 * int(pattern_mask("random", t, sparsity=sparsity).sum())
    deviation = (sparsity * (1 - sparsity) * t * (t - 1) / 2) ** 0.5
    assert abs(mixer.num_pairs(t) - made) <= 4 * (4 * deviation)
    assert mixer.num_pairs(1) == 4


@pytest.mark.parametrize("options", [{}, {"pattern": "random"}, {"pattern": "star"}])
def test_a_long_text_is_counted_without_a_mask(options, monkeypatch):
    monkeypatch.setattr(SparseAttention, "sees", None)
    mixer = make(**options)
    assert mixer.flops(600) < Attention(D).flops(600)
    assert mixer.flops(100_000) < Attention(D).flops(100_000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "zigzag"}, "no sparse pattern"),
        ({"configuration": "both"}, "no configuration"),
        ({"pattern": "star", "configuration": "multihead"}, "one part"),
        ({"num_heads": 1, "configuration": "multihead"}, "half of the heads"),
        ({"stride": 0}, "stride"),
        ({"sparsity": 1.5}, "sparsity"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        SparseAttention(D, **options)
