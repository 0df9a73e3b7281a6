"""Sparse patterns: small masks drawn by hand from the papers' equations, and the plain Python sets at every size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.models.mixers.sparse_patterns import PATTERNS, TWO_PARTS, keys_in_pattern, sees_in_pattern


def drawn(pattern, t, **options):
    """The pattern of a text of t tokens as text: queries one after the other, a character for each key."""
    places = torch.arange(t)
    mask = sees_in_pattern(pattern, places[:, None], places, causal=False, length=t, **options)
    return ["".join("#" if seen else "." for seen in row) for row in mask.tolist()]


@pytest.mark.parametrize(
    ("pattern", "options", "wanted"),
    [
        # Equation 4, w = 3: two back and one ahead; then 3, 6 ... apart.
        ("strided", {"part": 0}, "##..... ###.... ####... .####.. ..####. ...#### ....###"),
        ("strided", {"part": 1}, "#..#..# .#..#.. ..#..#. #..#..# .#..#.. ..#..#. #..#..#"),
        ("strided", {}, "##.#..# ###.#.. ####.#. #####.# .#####. ..##### #..####"),
        # Equation 5, w = 3: segments 1 to 3, 4 to 6, 7; then itself, 3 and 6.
        ("fixed", {"part": 0}, "###.... ###.... ###.... ...###. ...###. ...###. ......#"),
        ("fixed", {"part": 1}, "#.#..#. .##..#. ..#..#. ..##.#. ..#.##. ..#..#. ..#..##"),
        ("fixed", {}, "###..#. ###..#. ###..#. ..####. ..####. ..####. ..#..##"),
        # Equation 6, w = 1: a ring of six, and the seventh as relay.
        ("star", {"stride": 1}, "##...## ###...# .###..# ..###.# ...#### #...### #######"),
        ("star", {"stride": 2}, "###.### ####.## #####.# .###### #.##### ##.#### #######"),
        ("longformer", {"stride": 2}, "####### ###.... ####... #.###.. #..###. #...### #....##"),
        ("longformer", {"stride": 2, "num_global": 0}, "##..... ###.... .###... ..###.. ...###. ....### .....##"),
    ],
)
def test_patterns_by_hand(pattern, options, wanted):
    assert drawn(pattern, 7, **{"stride": 3} | options) == wanted.split()


def test_bigbird_is_longformer_and_a_few_random_keys():
    places = torch.arange(400)
    both = [
        sees_in_pattern(name, places[:, None], places, causal=False, stride=6, length=400, num_random=3, seed=1)
        for name in ("longformer", "bigbird")
    ]
    assert not (both[0] & ~both[1]).any()
    more = (both[1] & ~both[0])[1:]
    assert more.sum(1).max() == 3
    assert 2.8 < float(more.sum(1).double().mean()) <= 3, "few of them are near, global or drawn twice"
    thirds = more.double().sum(0).view(4, 100).sum(1) / more.sum()
    assert (thirds - 0.25).abs().max() < 0.06, "from all of the text"


@settings(max_examples=60)
@given(
    st.sampled_from(list(PATTERNS)),
    st.integers(2, 40),
    st.integers(1, 50),
    st.integers(0, 4),
    st.sampled_from([0, 1, None]),
    st.integers(0, 9),
    st.integers(0, 3),
)
def test_masks_and_sets_agree(pattern, n, stride, num_global, part, seed, num_random):
    part = part if pattern in TWO_PARTS else None
    options = {
        "part": part,
        "stride": stride,
        "length": n,
        "num_global": num_global,
        "seed": seed,
        "num_random": num_random,
        "sparsity": 0.7,
    }
    places = torch.arange(n)
    for causal in (True, False):
        mask = sees_in_pattern(pattern, places[:, None], places, causal=causal, **options)
        assert [row.nonzero()[:, 0].tolist() for row in mask] == [keys_in_pattern(pattern, i, causal=causal, **options) for i in range(n)]
    both = sees_in_pattern(pattern, places[:, None], places, causal=False, **options)
    causal = sees_in_pattern(pattern, places[:, None], places, **options)
    assert torch.equal(causal, both.tril())
