"""Prompts by hand, and as the authors of JRT make them; the cut and the places of values against
slow computations, on text of every width and any tokenization.

data/jrt_prompts.jsonl has rows of our own, and what the tasks of
github.com/HazyResearch/prefix-linear-attention (7490f22) make of them: prompts, and which of some
generations are right.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recallkit.recall.prompts import (
    Places,
    cut_around_answer,
    find_places,
    has_any,
    make_prompt,
    split_query,
    word_f1,
)
from recallkit.recall.rows import QuestionRow, RecallRow


def row(text: str, value: str = "v", **fields: str) -> RecallRow:
    return RecallRow("d", text, value, **fields)


@pytest.mark.parametrize(
    ("text", "key", "document", "query"),
    [
        ("<b>A</b>\n\nb: c \nsize: \n", "size", "<b>A</b>\n\nb: c", "size:"),
        ("a\nSIZE: Size:", "size", "a", "SIZE: Size:"),
        ("a\n510(k) Number:", "510(k) number", "a", "510(k) Number:"),
        ("size:", "size", "", "size:"),
        ("a\n\nb\nwhat?", "size", "a", "b\nwhat?"),
        (" a \n \n\nb\nQuestion: c?\nAnswer:\n", None, " a", "b\nQuestion: c?\nAnswer:"),
        ("a\n\nb\n\nc", None, "a\n\nb", "c"),
        ("a b\nc d", None, "a b", "c d"),
        ("a b ", None, "", "a b "),
    ],
)
def test_split_query(text: str, key: str | None, document: str, query: str) -> None:
    assert split_query(RecallRow("d", text, "v", key)) == (document, query)


def test_shortened_documents_keep_what_parts_them_from_the_query() -> None:
    calls = []

    def shorten(document: str, value: str) -> str:
        calls.append((document, value))
        return document[-3:]

    keyed, question = (
        row(" abc def \n\n key: ", " v ", key="key"),
        row("abc def\n \nQuestion: x?\nAnswer:"),
    )
    assert make_prompt(keyed, version=0, kind="standard", shorten=shorten).text == "def \n\n key: "
    assert make_prompt(keyed, version=1, kind="standard", shorten=shorten).text == "def \n\n key:"
    assert (
        make_prompt(question, version=1, kind="standard", shorten=shorten).text
        == "def\n \nQuestion: x?\nAnswer:"
    )
    assert calls == [(" abc def", " v "), (" abc def", "v"), ("abc def", "v")]
    assert (
        make_prompt(keyed, version=1, kind="twice", shorten=shorten).text
        == "Information about Key. def.\ndef. Key:"
    )
    assert (
        make_prompt(question, version=1, kind="twice", shorten=shorten).text
        == "def\ndef\n \nQuestion: x?\nAnswer:"
    )


RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "jrt_prompts.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]


@pytest.mark.parametrize("recorded", RECORDED)
def test_prompts_and_metric_are_those_of_jrts_authors(recorded: dict[str, Any]) -> None:
    fields = dict(recorded["row"])
    text: Any = None
    if "answers" in fields:
        answers = tuple(fields.pop("answers"))
        text = QuestionRow("d", answers=answers, **fields)
    else:
        text = RecallRow("d", **fields)
    for kind in ("once", "twice"):
        prompt = make_prompt(text, version=0, kind=kind, task=recorded["task"])
        assert prompt.text == recorded[kind]
        for is_right in ("right", "wrong"):
            for generation in recorded[is_right]:
                assert has_any(generation, prompt.answers or [prompt.value]) == (
                    is_right == "right"
                ), generation
    if "answers" in recorded["row"] or recorded["task"] == "squad":
        assert (
            make_prompt(text, version=1, kind="standard", task=recorded["task"]).text
            == recorded["once"]
        )


def question(context: str = "Eels were rent.", *answers: str) -> QuestionRow:
    return QuestionRow("d", context, "Rent was", answers)


def test_the_value_of_a_question_is_the_first_answer_that_can_be_recalled() -> None:
    assert question("Eels and reed", "corn", " REED ", "eels").value == " REED "
    assert question("Eels and reed", "corn", "oats").value == "corn"
    assert question("Eels and reed").value == ""
    for version, value, answers in (
        (0, " REED ", (" corn", " REED ")),
        (1, "REED", ("corn", "REED")),
    ):
        prompt = make_prompt(
            question("Eels and reed", " corn", " REED "),
            version=version,
            kind="standard",
        )
        assert (prompt.value, prompt.answers) == (value, answers)


def test_a_question_that_is_not_known_as_people_ask_it_precedes_itself() -> None:
    assert (
        make_prompt(question(), version=1, kind="twice").text
        == "Rent was Eels were rent.\nEels were rent. Rent was"
    )


ALPHABET = "ab A.é€ẞßıİſK🙂\n"
TEXT = st.text(ALPHABET, max_size=40)
VALUE = st.text(ALPHABET, min_size=1, max_size=4)


@st.composite
def tokenized(draw: st.DrawFn) -> tuple[str, np.ndarray]:
    """A text and where its tokens end: its characters, its characters with several tokens each, or
    any of its bytes."""
    text = draw(TEXT)
    size = len(text.encode())
    ends = np.cumsum([len(character.encode()) for character in text], dtype=np.int64)
    kind = draw(st.sampled_from(["characters", "repeated", "bytes"]))
    if kind == "repeated":
        ends = np.repeat(
            ends,
            draw(st.lists(st.integers(1, 3), min_size=len(text), max_size=len(text))),
        )
    if kind == "bytes":
        ends = np.array(
            sorted({*draw(st.sets(st.integers(1, size))), size}) if size else [],
            np.int64,
        )
    return text, ends


def mentions(text: str, value: str) -> list[tuple[int, int]]:
    """Where a value's mentions begin and end in UTF-8, found one character after the other."""
    spans, at = [], 0
    while at < len(text):
        match = re.match(re.escape(value), text[at:], re.IGNORECASE)
        if match:
            spans.append((len(text[:at].encode()), len(text[: at + match.end()].encode())))
        at += match.end() if match else 1
    return spans


def num_tokens_until(stops: np.ndarray, place: int) -> int:
    """Tokens that end at a place or before it."""
    return sum(int(stop) <= place for stop in stops)


@given(tokenized(), VALUE, st.integers(0, 20))
def test_places_against_a_slow_computation(
    given_text: tuple[str, np.ndarray],
    value: str,
    num_cut: int,
) -> None:
    text, stops = given_text
    num_cut = min(num_cut, len(stops))
    spans = mentions(text, value)
    cut_away = (0, *map(int, stops))[num_cut]
    remaining = [begin for begin, _ in spans if begin >= cut_away]
    places = find_places(text, value, stops, num_cut)
    assert places == Places(
        occurrences=len(spans),
        distance=len(stops) - num_tokens_until(stops, remaining[-1]) if remaining else None,
        answer_cut=bool(spans) and not remaining,
        characters_cut=sum(len(text[:place].encode()) < cut_away for place in range(len(text))),
    )


def test_cuts_by_hand() -> None:
    text, stops = "0123456789", np.arange(1, 11)
    for value, most, remaining in (
        ("5", 4, "3456"),
        ("5", 5, "34567"),
        ("0", 4, "0123"),
        ("1", 4, "0123"),
        ("9", 4, "789"),
        ("x", 4, "6789"),
        ("5", 99, text),
        ("", 4, "0123"),
    ):
        assert cut_around_answer(text, value, stops, most) == remaining
    assert cut_around_answer("ab AB cd", "AB", np.arange(1, 9), 2) == "ab", (
        "the earliest mention, in whatever case"
    )
    emoji = "a🙂b"
    assert cut_around_answer(emoji, "a", np.array([1, 5, 5, 5, 6]), 3) == "a", (
        "a character of three tokens, whole or not at all"
    )
    assert cut_around_answer(emoji, "b", np.array([1, 3, 5, 6]), 3) == "b", (
        "tokens that end within a character"
    )
    assert cut_around_answer("", "a", np.zeros(0, np.int64), 3) == ""


WORDS = st.text(alphabet="ab the.an,-A\n’", max_size=30) | st.lists(
    st.sampled_from(["the", "Denver", "Broncos,", "an", "15-1"]),
).map(" ".join)


@settings(max_examples=200)
@given(WORDS, WORDS)
def test_word_overlap_is_squads_as_lm_eval_copies_it(generation: str, value: str) -> None:
    from lm_eval.tasks.qasper.metrics import f1_abstractive, normalize_answer

    assume(normalize_answer(generation) and normalize_answer(value))
    assert word_f1(generation, value) == pytest.approx(f1_abstractive([generation], [value]))
