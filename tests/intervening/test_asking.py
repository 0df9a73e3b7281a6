"""Every token is read once under each change, and other changes leave it alone."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from recallkit.intervening.asking import Asker, changed_sequences
from recallkit.intervening.changes import BY_ASSOCIATION, CHANGES, Replacements, positions
from recallkit.slicing.label_kernels import NO_DISTANCE, label_bigrams

VOCAB, END = 400, 0


@pytest.fixture(scope="module")
def sequences() -> dict[int, np.ndarray]:
    """Ids of 60 values with copied passages, so that matches are of one id and of many."""
    rng = np.random.default_rng(0)
    made = {}
    for number in (2, 5, 9):
        ids = rng.integers(1, 60, 300).astype(np.uint32)
        for _ in range(12):
            start, other, length = rng.integers(0, 130), rng.integers(150, 280), rng.integers(2, 16)
            ids[other : other + length] = ids[start : start + length]
        made[number] = ids
    return made


@pytest.fixture(scope="module")
def asker(sequences) -> Asker:
    return Asker(sequences, END, Replacements(np.ones(VOCAB, np.uint64), END), seed=0)


@pytest.fixture(scope="module")
def asked(sequences, asker):
    """All repeated tokens."""
    rows = []
    for number, ids in sequences.items():
        distance, _, occurrences, *_ = label_bigrams(ids, np.array([0, len(ids)]))
        for place in np.flatnonzero(distance != NO_DISTANCE).tolist():
            labels = {"distance": int(distance[place]), "occurrences": int(occurrences[place]), "match_length": 1, "train_count": 0}
            rows.append({"sequence": number, "position": place + 1, **labels, "weight": 1.0})
    return asker.repeated("ar_hit", pl.DataFrame(rows))


@pytest.mark.parametrize("design", ["joint", "exact"])
def test_each_token_is_read_once_under_each_change_keeps_its_query_and_loses_its_occurrences(asked, sequences, design):
    """By the labels of the changed sequence: no occurrence is left, or, with a placebo, the same one with the same match."""
    found = []
    for group in changed_sequences(asked, sequences, design, seed=1):
        original = sequences[group.sequence]
        assert len({id(reading.token) for reading in group.readings}) == len(group.readings)
        for reading in group.readings:
            token, where = reading.token, list(reading.new)
            found.append((token.sequence, token.position, reading.change))
            assert group.sequence == token.sequence
            own = group.ids[: token.position + 1]
            query, matches = slice(token.places.query, token.position + 1), positions(token.places.spans)
            assert (own[query] == original[query]).all()
            assert (own[where] != original[where]).all()
            distance, *_ = label_bigrams(own, np.array([0, len(own)]))
            is_placebo = reading.change in ("placebo", "moved_placebo")
            assert distance[-1] == (token.row["distance"] if is_placebo else NO_DISTANCE)
            assert design == "joint" or reading.change not in BY_ASSOCIATION or sorted(own) == sorted(original[: len(own)])
            rest = np.setdiff1d(matches, where)  # of the match: all with a placebo, with completion and key all else
            assert (own[rest] == original[rest]).all()
        if design == "exact":
            assert np.flatnonzero(group.ids != original[: len(group.ids)]).tolist() == sorted(group.readings[0].new)
            assert (len(group.readings), len(group.ids)) == (1, group.readings[0].token.position + 1)
    kept = [token for token in asked if not token.excluded]
    assert len(found) == 6 * len(kept) > 400
    assert set(found) == {(token.sequence, token.position, change) for token in kept for change in CHANGES}


def test_partners_have_the_places_and_weights_of_their_lenders(asked, asker):
    labels = dict.fromkeys(("train_count", "distance", "occurrences", "match_length"), 0)
    pool = pl.DataFrame([{"sequence": n, "position": at, **labels, "weight": 7.0} for n, at in ((2, 250), (5, 280), (5, 290), (9, 299))])
    lenders = [token for token in asked if token.excluded or token.position > 150][:6]
    found = asker.partners("first_rare", lenders, pool)
    partners = [token for token in found if not token.excluded]
    assert len(found) == sum(not token.excluded for token in lenders)
    assert 0 < len(partners) < len(found)
    assert len({(token.sequence, token.position) for token in partners}) == len(partners) <= 4
    for token, lender in zip(found, [lender for lender in lenders if not lender.excluded], strict=True):
        assert [token.row[name] for name in ("slice", "weight", "distance")] == ["first_rare", 1.0, lender.row["distance"]]
        assert bool(token.changes) != bool(token.excluded)
        if not token.excluded:
            back, other = ([each.position - start for start, _ in each.places.spans] for each in (token, lender))
            assert back == other
