"""Sparse patterns: small masks drawn by hand from the papers' equations."""

from __future__ import annotations

import pytest
import torch

from recallkit.models.mixers.sparse_patterns import PATTERNS, sees_in_pattern


def drawn(pattern, t, **options):
    """The pattern of a text of t tokens as text: queries one after the other, a character for each
    key."""
    places = torch.arange(t)
    mask = sees_in_pattern(pattern, places[:, None], places, causal=False, length=t, **options)
    return ["".join(map(".#".__getitem__, row)) for row in mask.int().tolist()]


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
        (
            "longformer",
            {"stride": 2, "num_global": 0},
            "##..... ###.... .###... ..###.. ...###. ....### .....##",
        ),
    ],
)
def test_patterns_by_hand(pattern, options, wanted):
    assert drawn(pattern, 7, **{"stride": 3} | options) == wanted.split()


def test_bigbird_is_longformer_and_a_few_random_keys():
    places = torch.arange(400)
    both = [
        sees_in_pattern(
            name,
            places[:, None],
            places,
            causal=False,
            stride=6,
            length=400,
            num_random=3,
            seed=1,
        )
        for name in ("longformer", "bigbird")
    ]
    assert not (both[0] & ~both[1]).any()
    more = (both[1] & ~both[0])[1:]
    assert more.sum(1).max() == 3
    assert 2.8 < float(more.sum(1).double().mean()) <= 3, (
        "few of them are near, global or drawn twice"
    )
    thirds = more.double().sum(0).view(4, 100).sum(1) / more.sum()
    assert (thirds - 0.25).abs().max() < 0.06, "from all of the text"


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("t", "stride", "num_global"), [(2, 1, 0), (17, 3, 2), (40, 50, 1)])
def test_the_causal_half_is_that_of_both_directions(pattern, t, stride, num_global):
    places = torch.arange(t)
    options = {"stride": stride, "length": t, "num_global": num_global, "sparsity": 0.7}
    both, causal = (
        sees_in_pattern(pattern, places[:, None], places, causal=causal, **options)
        for causal in (False, True)
    )
    assert torch.equal(causal, both.tril())
