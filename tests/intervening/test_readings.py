"""Every token is read once under each change, and other changes leave it alone."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from recallkit.intervening.changes import BY_ASSOCIATION, CHANGES, Replacements, positions
from recallkit.intervening.readings import SampledToken, Sampler, changed_sequences
from recallkit.slicing.label_kernels import NO_DISTANCE, label_bigrams

VOCAB, END = 400, 0


@pytest.fixture(scope="module")
def sequences() -> dict[int, np.ndarray]:
    """Ids of 60 values with copied passages, so that matches are of one id and of many."""
    rng = np.random.default_rng(0)
    texts = {}
    for number in (2, 5, 9):
        ids = rng.integers(1, 60, 300).astype(np.uint32)
        for _ in range(12):
            start, other, length = rng.integers(0, 130), rng.integers(150, 280), rng.integers(2, 16)
            ids[other : other + length] = ids[start : start + length]
        texts[number] = ids
    return texts


@pytest.fixture(scope="module")
def sampler(sequences) -> Sampler:
    return Sampler(sequences, END, Replacements(np.ones(VOCAB, np.uint64), END), 0, tuple(CHANGES))


@pytest.fixture(scope="module")
def sampled(sequences, sampler):
    """All repeated tokens."""
    rows = []
    for number, ids in sequences.items():
        distance, _, occurrences, *_ = label_bigrams(ids, np.array([0, len(ids)]))
        for place in np.flatnonzero(distance != NO_DISTANCE).tolist():
            labels = {
                "distance": int(distance[place]),
                "occurrences": int(occurrences[place]),
                "match_length": 1,
                "train_count": 0,
            }
            rows.append({"sequence": number, "position": place + 1, **labels, "weight": 1.0})
    return sampler.repeated("ar_hit", pl.DataFrame(rows))


@pytest.mark.parametrize("design", ["joint", "exact"])
def test_each_token_is_read_once_under_each_change_keeps_its_query_and_loses_its_occurrences(
    sampled,
    sequences,
    design,
):
    """By the labels of the changed sequence: no occurrence is left, or, with a placebo, the same
    one with the same match."""
    read = []
    for group in changed_sequences(sampled, sequences, design, seed=1):
        original = sequences[group.sequence]
        assert len({id(reading.token) for reading in group.readings}) == len(group.readings)
        for reading in group.readings:
            token, where = reading.token, list(reading.new)
            read.append((*place_of(token), reading.change))
            assert group.sequence == token.row["sequence"]
            own = group.ids[: token.position + 1]
            query, matches = (
                slice(token.places.query, token.position + 1),
                positions(
                    token.places.spans,
                ),
            )
            assert (own[query] == original[query]).all()
            assert (own[where] != original[where]).all()
            distance, *_ = label_bigrams(own, np.array([0, len(own)]))
            is_placebo = reading.change in ("placebo", "moved_placebo")
            assert distance[-1] == (token.row["distance"] if is_placebo else NO_DISTANCE)
            assert (
                design == "joint"
                or reading.change not in BY_ASSOCIATION
                or sorted(
                    own,
                )
                == sorted(original[: len(own)])
            )
            # of the match: all with a placebo, with completion and key all else
            rest = np.setdiff1d(
                matches,
                where,
            )
            assert (own[rest] == original[rest]).all()
        if design == "exact":
            assert np.flatnonzero(
                group.ids != original[: len(group.ids)],
            ).tolist() == sorted(group.readings[0].new)
            assert (
                len(group.readings),
                len(group.ids),
            ) == (1, group.readings[0].token.position + 1)
    usable = [token for token in sampled if token.places is not None]
    assert len(read) == 6 * len(usable) > 400
    assert set(read) == {(*place_of(token), change) for token in usable for change in CHANGES}


def place_of(token) -> tuple[int, int]:
    return token.row["sequence"], token.row["position"]


def test_partners_have_the_places_and_weights_of_their_lenders(sampled, sampler):
    labels = dict.fromkeys(("train_count", "distance", "occurrences", "match_length"), 0)
    pool = pl.DataFrame(
        [
            {
                "sequence": n,
                "position": at,
                **labels,
                "weight": 7.0,
            }
            for n, at in ((2, 250), (5, 280), (5, 290), (9, 299))
        ]
    )
    lenders = [token for token in sampled if token.position > 150][:6]
    partners = sampler.partners("first_rare", [SampledToken({}), *lenders], pool)
    assert 0 < len(partners) < len(lenders)
    assert len({place_of(token) for token in partners}) == len(partners)
    lent = [borrowed(token) for token in lenders]
    for token in partners:
        assert (token.row["slice"], token.row["weight"]) == ("first_rare", 1.0)
        assert borrowed(token) in lent
        assert token.changes


def borrowed(token) -> tuple[int, list[int]]:
    """The distance of a token, and how far before it each match begins."""
    return token.row["distance"], [token.position - start for start, _ in token.places.spans]
