"""Every token is read once under each change, and other changes leave it alone."""

from __future__ import annotations

import numpy as np
import pytest

from recallkit.intervening.asking import Asker
from recallkit.intervening.places import CHANGES
from recallkit.intervening.replacements import Replacements
from recallkit.intervening.sampling import Sample
from recallkit.intervening.windows import MOST_CHANGED, changed_sequences
from recallkit.slicing.label_kernels import NO_DISTANCE, label_bigrams
from recallkit.slicing.match_kernels import longest_matches

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
def asked(sequences):
    """All repeated tokens."""
    columns: dict[str, list[int]] = {name: [] for name in ("sequence", "position", "distance", "occurrences", "match_length")}
    for number, ids in sequences.items():
        offsets = np.array([0, len(ids)])
        distance, _, occurrences, *_ = label_bigrams(ids, offsets)
        lengths = longest_matches(ids, offsets)
        for place in np.flatnonzero(distance != NO_DISTANCE):
            row = (number, place + 1, distance[place], occurrences[place], lengths[place])
            for name, value in zip(columns, row, strict=True):
                columns[name].append(int(value))
    arrays = {name: np.array(values) for name, values in columns.items()}
    none = np.zeros(len(arrays["position"]), np.int64)
    sample = Sample(num_tokens=len(none), row=none, document=none, train_count=none, weight=none + 1.0, **arrays)
    asker = Asker(sequences, END, Replacements(np.ones(VOCAB, np.uint64), END), seed=0)
    return asker.repeated(0, sample)


def readings(asked, sequences, design):
    return [(group, reading) for group in changed_sequences(asked, sequences, design, seed=1) for reading in group.readings]


@pytest.mark.parametrize("design", ["joint", "exact"])
def test_each_token_is_read_once_under_each_change(asked, sequences, design):
    found = [(reading.number, reading.change) for _, reading in readings(asked, sequences, design)]
    for group in changed_sequences(asked, sequences, design, seed=1):
        assert len({reading.number for reading in group.readings}) == len(group.readings)
    expected = {(number, change) for number, token in enumerate(asked) if not token.excluded for change in CHANGES}
    assert len(found) == len(expected) > 400
    assert set(found) == expected


@pytest.mark.parametrize("design", ["joint", "exact"])
def test_a_token_keeps_its_query_and_loses_its_occurrences(asked, sequences, design):
    """By the labels of the changed sequence: no occurrence is left, or, with a placebo, the same one with the same match."""
    for group, reading in readings(asked, sequences, design):
        token, original = asked[reading.number], sequences[group.sequence]
        assert group.sequence == token.sequence
        own = group.ids[: token.position + 1]
        query = slice(token.places.query, token.position + 1)
        assert (own[query] == original[query]).all()
        assert (own[reading.positions] != original[reading.positions]).all()
        offsets = np.array([0, len(own)])
        distance, *_ = label_bigrams(own, offsets)
        if reading.change == "placebo":
            assert distance[-1] == token.distance
            matches = token.places.of("span")
            assert (own[matches] == original[matches]).all()
        else:
            assert distance[-1] == NO_DISTANCE
        if reading.change in ("completion", "key"):  # the rest of the match is as it was
            rest = np.setdiff1d(token.places.of("span"), reading.positions)
            assert (own[rest] == original[rest]).all()


def test_an_exact_sequence_has_one_change_and_ends_with_its_token(asked, sequences):
    for group, reading in readings(asked, sequences, "exact"):
        assert len(group.readings) == 1
        assert len(group.ids) == reading.target + 1
        differs = np.flatnonzero(group.ids != sequences[group.sequence][: len(group.ids)])
        assert differs.tolist() == reading.positions.tolist()


def test_the_joint_design_reads_less_and_changes_little(asked, sequences):
    lengths = {design: [len(g.ids) for g in changed_sequences(asked, sequences, design, seed=1)] for design in ("joint", "exact")}
    assert sum(lengths["joint"]) < sum(lengths["exact"]) / 2
    for group in changed_sequences(asked, sequences, "joint", seed=1):
        differs = np.count_nonzero(group.ids != sequences[group.sequence][: len(group.ids)])
        alone = len(group.readings) == 1
        assert alone or differs * MOST_CHANGED <= len(group.ids)


def test_the_seed_decides_which_changes_meet(asked, sequences):
    one, same, other = (
        [[(r.number, r.change) for r in group.readings] for group in changed_sequences(asked, sequences, "joint", seed)]
        for seed in (1, 1, 2)
    )
    assert one == same != other


def test_partners_have_the_places_and_weights_of_their_lenders(asked, sequences):
    position = np.array([250, 280, 290, 299])
    none = np.zeros(4, np.int64)
    counts = {"train_count": none, "distance": none, "occurrences": none, "match_length": none}
    pool = Sample(num_tokens=4, row=none, sequence=np.array([2, 5, 5, 9]), position=position, document=none, weight=none + 7.0, **counts)
    asker = Asker(sequences, END, Replacements(np.ones(VOCAB, np.uint64), END), seed=0)
    lenders = [token for token in asked if token.excluded or token.position > 150][:6]
    found = asker.partners(1, lenders, pool)
    partners = [token for token in found if not token.excluded]
    assert len(found) == sum(not token.excluded for token in lenders)
    assert 0 < len(partners) < len(found)
    assert all((token.changes is None) == bool(token.excluded) for token in found)
    assert len({(token.sequence, token.position) for token in partners}) == len(partners) <= 4
    for token, lender in zip(found, [lender for lender in lenders if not lender.excluded], strict=True):
        assert (token.slice, token.weight, token.distance) == (1, 1.0, lender.distance)
        if not token.excluded:
            assert [token.position - start for start, _ in token.places.spans] == [
                lender.position - start for start, _ in lender.places.spans
            ]
