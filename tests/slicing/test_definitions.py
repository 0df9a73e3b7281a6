"""Slices as data: each predicate against its sentence, token by token, expressions of users, and
what is refused."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.errors import UserError
from recallkit.slicing.definitions import (
    COLUMNS,
    CONTEXT_CLASSES,
    PARTITION,
    SLICES,
    STANDARD,
    members,
    parse_slice,
    parse_slices,
)
from recallkit.slicing.label_kernels import label_bigrams, longest_matches

ROWS = pa.table(
    {
        "sequence": pa.array([0, 0, 0, 1, 1], pa.int32()),
        "source": pa.array(["web", "it's", "code", "web", "web"]).dictionary_encode(),
        "token": pa.array([3, 4, 5, 6, 7], pa.int32()),
        "repeated": [True, True, False, False, True],
        "distance": pa.array([1, 200, None, None, 101], pa.int32()),
        "match_length": pa.array([1, 3, 0, 0, 2], pa.int32()),
        "train_count": pa.array([5, 6, 5, 6, 0], pa.int64()),
        "ar_hit": [True, False, False, False, True],
        "in_training": pa.array([0, 13, None, 50, 0], pa.int8()),
        "context_class": pa.array(
            ["bigram", "bigram", "new", "token", "bigram"],
        ).dictionary_encode(),
        "overwritten": [False, True, False, False, True],
        "word_repeated": [True, True, False, False, True],
        "word_folded": [True, True, True, False, True],
        "word_count": pa.array([5, 6, None, None, 0], pa.int64()),
        "word_kind": pa.array(["number", "function", None, "plain", "number"]).dictionary_encode(),
        "opens_bracket": [True, False, False, True, False],
        "closes_bracket": [False, False, True, True, False],
        "opens_quote": [False, True, False, False, False],
        "closes_quote": [False, False, False, False, True],
    }
)


def in_slices(*slices: str, max_count: int = 5) -> list[list[int]]:
    masks = members(list(map(parse_slice, slices)), ROWS, max_count)
    return [np.flatnonzero(mask).tolist() for mask in masks]


def test_built_in_slices_are_what_their_sentences_say():
    assert in_slices("all", "ar_hit", "other", "repeated", "first_rare") == [
        [0, 1, 2, 3, 4],
        [0, 4],
        [1, 2, 3],
        [0, 1, 4],
        [2],
    ]
    assert in_slices("overwritten", "not_overwritten", "x=overwritten") == [[4], [0], [1, 4]]
    assert in_slices("copy:k1", "copy:k2", "copy:k3", "copy:k4", "copy:k5") == [
        [0, 1, 3, 4],
        [0, 1, 4],
        [1, 4],
        [1],
        [],
    ]
    assert in_slices("rare_word", "folded", "number", "capitalised", "identifier") == [
        [0, 4],
        [2],
        [0, 4],
        [],
        [],
    ]
    assert in_slices("function_word", "content_word", "closing_bracket", "opening_bracket") == [
        [1],
        [0, 3, 4],
        [2, 3],
        [0, 3],
    ]
    assert in_slices("state_word", "opening_quote", "closing_quote") == [[], [1], [4]]
    assert in_slices(
        "x=word_kind = 'plain' OR word_count > 5",
        "x=word_kind IN ('number') AND NOT closes_bracket",
    ) == [[1, 3], [0, 4]]
    assert in_slices("first_rare", "first_frequent", max_count=6) == [[2, 3], []]
    assert in_slices("first_rare", max_count=10**40) == [[2, 3]]
    classes = [np.flatnonzero(mask).tolist() for mask in members(PARTITION, ROWS, 5)]
    assert classes == [[0, 4], [1], [], [3], [2], []]
    every = [*SLICES.values(), *PARTITION]
    assert all(
        slice_.sentence.endswith(".") and set(slice_.columns) <= set(COLUMNS) for slice_ in every
    )
    assert {"sequence", "source", "token", "match_length", "context_class", "overwritten"} < set(
        COLUMNS,
    )


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("distance > 100", [1, 4]),
        # of tokens without a distance it is unknown: they are in neither
        (
            "NOT distance > 100",
            [0],
        ),
        ("distance IS NULL", [2, 3]),
        ("source = 'it''s' OR source IN ('code', 'law')", [1, 2]),
        ("source LIKE 'w%' AND train_count between 1 and 6", [0, 3]),
        ("(token + sequence) % 2 = 1", [0, 2, 3]),
        ("token IN (3, -4, 7)", [0, 4]),
        ("overwriten", None),
        ("Repeated", None),
        ("context_class = 'new'", [2]),
        ("in_training = 0", [0, 4]),
        ("in_training > 0 AND in_training IN(13, 14)", [1]),
        ("token > 1.5e300 OR token < -0.5", []),
    ],
)
def test_an_expression_is_true_or_false_of_each_token(expression, rows):
    if rows is None:
        with pytest.raises(UserError, match="no column") as caught:
            parse_slice(f"x={expression}")
        assert "did you mean" in caught.value.line()
        return
    assert in_slices(f"x={expression}") == [rows]
    slice_ = parse_slice(f"  x =  {expression} ")
    assert (slice_.name, slice_.option, slice_.sentence) == (
        "x",
        f"x={expression}",
        f"Tokens where {expression}.",
    )


HOSTILE = [
    "read_csv('x') > 1", "1; DROP TABLE tokens", "token > (SELECT 1)", "SUM(token) > 3", "ROW_NUMBER() OVER (ORDER BY token) > 3",
    "token IN (position)", "token in (1, (2))", "token", "true", "", "source > 3", "token > " + "9" * 60, "NOT " * 100 + "repeated",
    "(" * 60 + "repeated" + ")" * 60, "token > 1 -- a", "a.b > 1", '"token" > 1', "$1 > token", "token > 1\nOR repeated",
    "source = '\x1b[31m'", "token::int8 > 3", "repeated AND", "token > 1 repeated", "sequence(3) > 1", "repeated OR " * 60 + "repeated",
]  # fmt: skip


def test_what_is_no_condition_on_columns_is_one_line_that_names_the_slice():
    for expression in HOSTILE:
        with pytest.raises(UserError) as caught:
            parse_slice(f"mine={expression}")
        line = caught.value.line()
        assert "slice mine" in line, expression
        assert "\n" not in line
        assert caught.value.remedy


FLAGS = ("repeated", "ar_hit", "overwritten", "word_repeated", "word_folded", *COLUMNS[-4:])
WORDS = [
    *(*COLUMNS[:7], "word_kind", "word_count", "closes_bracket"),
    *("and", "or", "not", "in", "is", "null", "between", "like"),
    *("(", ")", ",", "=", "<", "-", "/", "%", "1", "0", "2.5", "'a'"),
]


@settings(max_examples=150)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12))
def test_whatever_is_accepted_has_one_value_per_row_that_depends_on_it_alone(words):
    try:
        slice_ = parse_slice("x=" + " ".join(words))
    except UserError:
        return
    rng = np.random.default_rng(1)
    flags = {name: pa.array(rng.random(20) < 0.5) for name in FLAGS}
    texts = {name: pa.array(rng.choice(["a", "b"], 20)) for name in ("source", "word_kind")}
    numbers = {
        name: pa.array(rng.integers(0, 4, 20), pa.int32())
        for name in COLUMNS
        if name not in (*flags, *texts)
    }
    rows = pa.table({**numbers, **flags, **texts})
    [member] = members([slice_], rows, 1)
    singly = [bool(members([slice_], rows.slice(row, 1), 1)[0][0]) for row in range(20)]
    assert member.tolist() == singly


def test_the_filters_of_a_paper_are_requested_by_its_name():
    names = [
        slice_.name for slice_ in parse_slices(["copy:k5", " paper:2606.20936 ", "mine=repeated"])
    ]
    copies = [f"copy:k{length}" for length in (5, 1, 2, 4, 8)]
    words = ["content_word", "function_word", "state_word"]
    marks = [f"{side}_{mark}" for mark in ("bracket", "quote") for side in ("opening", "closing")]
    assert names == [*copies, *words, *marks, "mine"]


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (["2606.20936"], "2606.20936: no such slice; did you mean paper:2606.20936?"),
        (["repeatd"], "repeatd: no such slice; did you mean repeated?"),
        (["copy:k0"], "copy:k0: no such slice; write copy:kN"),
        (["copy:k" + "9" * 9], "no such slice"),
        (["copy:k٣"], "no such slice"),
        (["ar_hit=repeated"], "slice ar_hit: the name of a built-in slice"),
        (["9=repeated"], "not a name for a slice"),
        (["=repeated"], "not a name for a slice"),
        (["a b=repeated"], "not a name for a slice"),
        (["x" * 41 + "=repeated"], "not a name for a slice"),
        (["a=repeated", "a=ar_hit"], "slice a: two slices with the same name"),
        ([f"copy:k{n}" for n in range(2, 19)], "17 slices"),
        (["bigram repeated, rare"], "no such slice"),
    ],
)
def test_names_that_cannot_be_are_refused(given_, message):
    with pytest.raises(UserError, match=re.escape(message)):
        parse_slices(given_)


def test_slices_are_taken_once_and_those_of_every_comparison_not_at_all():
    assert [
        slice_.option
        for slice_ in parse_slices(
            [
                "copy:k4",
                "ar_hit",
                "a=repeated",
                "copy:k4",
                "other",
                "a = repeated",
                "repeated",
                "all",
            ]
        )
    ] == [
        "copy:k4",
        "a=repeated",
    ]
    assert {slice_.name for slice_ in STANDARD} == {"all", "ar_hit", "other", "repeated"}


def ngrams_reference(ids: list[int], size: int) -> list[bool]:
    """Which ids end an n-gram of this size that ended earlier in the sequence, too, the first id
    left out."""
    grams = [tuple(ids[max(0, place - size + 1) : place + 1]) for place in range(len(ids))]
    return [
        len(grams[place]) == size and grams[place] in grams[:place] for place in range(1, len(ids))
    ]


def copies(ids: list[int]) -> list[list[bool]]:
    """What is in copy:k1 to copy:k5 of the predicted tokens of a sequence."""
    every = np.array(ids, np.uint32)
    labels = label_bigrams(every, np.array([0, len(ids)]))
    match = longest_matches(every, np.array([0, len(ids)]))
    classes = [CONTEXT_CLASSES[number] for number in labels.context_class.tolist()]
    rows = pa.table({"match_length": match, "context_class": classes})
    slices = [parse_slice(f"copy:k{size}") for size in range(1, 6)]
    return [mask.tolist() for mask in members(slices, rows, 5)]


@given(st.lists(st.integers(0, 2), min_size=2, max_size=40))
def test_copies_are_repeated_ngrams(ids):
    assert copies(ids) == [ngrams_reference(ids, size) for size in range(1, 6)]


def test_the_columns_of_labels_are_the_slices_of_their_names(small_slices):
    rows = pq.read_table(small_slices / "tokens.parquet")
    max_count = (
        pl.read_parquet(small_slices / "tokens.parquet").filter("ar_hit")["train_count"].max()
    )
    hits, other, repeated, gram = members(
        [parse_slice(name) for name in ("ar_hit", "other", "repeated", "copy:k2")],
        rows,
        max_count,
    )
    assert hits.any()
    assert (hits == rows["ar_hit"].to_numpy()).all()
    assert (other == ~hits).all()
    assert (repeated == rows["repeated"].to_numpy()).all()
    assert (gram == repeated).all()
