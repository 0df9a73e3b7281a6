"""SQuAD's F1 is that of lm-eval, whose tasks have a copy of SQuAD's script."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recallkit.recall.prompts import word_f1

TEXTS = st.text(alphabet="ab the.an,-A\n’", max_size=30) | st.lists(st.sampled_from(["the", "Denver", "Broncos,", "an", "a", "15-1"])).map(
    " ".join
)


@pytest.mark.parametrize(
    ("generation", "value", "expected"),
    [
        ("Denver Broncos", "the Denver Broncos.", 1.0),
        ("Denver Broncos, who won", "Denver Broncos", 2 * 2 / 6),
        ("won won", "won", 2 / 3),
        ("nothing", "the Denver Broncos", 0.0),
        ("", "the", 1.0),
        ("", "Denver", 0.0),
    ],
)
def test_by_hand(generation, value, expected):
    assert word_f1(generation, value) == pytest.approx(expected)


@settings(max_examples=200)
@given(TEXTS, TEXTS)
def test_it_is_squads(generation, value):
    from lm_eval.tasks.qasper.metrics import f1_abstractive, normalize_answer

    assume(normalize_answer(generation) and normalize_answer(value))
    assert word_f1(generation, value) == pytest.approx(f1_abstractive([generation], [value]))
