"""Synthetic tasks in a vocabulary: MQAR held against the paper's words; what a model makes of them,
by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.errors import UserError
from recallkit.models.protocol import TokenScores
from recallkit.mqar.sequences import MqarTask, Vocabulary, ask, make_sequences, vocabulary_of
from recallkit.text.tokenizers import TextTokenizer, load_tokenizer
from tests.made_tokenizers import NAMES
from tests.made_tokenizers import made as made_tokenizer

SMALL = Vocabulary(np.array([7, *range(10, 60), *range(100, 160)]))


def mqar(length: int, pairs: int, seed: int = 0, power: float = 0.5) -> MqarTask:
    return MqarTask("mqar", length, pairs, seed, {"power": power})


def queries_of(ids: list[int], pairs: int, filler: int) -> dict[int, int]:
    """Where each key of the pairs is in the tail, and its distance; fails where a sequence is not
    what the paper says."""
    keys, values = ids[: 2 * pairs : 2], ids[1 : 2 * pairs : 2]
    value_of, distances, place = dict(zip(keys, values, strict=True)), {}, 2 * pairs
    while place < len(ids):
        if ids[place] == filler:
            place += 1
            continue
        key = ids[place]
        assert ids[place + 1] == value_of.pop(key), "every key once more, its value behind it"
        distances[place] = place - 2 * keys.index(key)
        place += 2
    assert not value_of
    return distances


@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 99))
@settings(max_examples=40)
def test_every_sequence_is_what_the_paper_says(pairs, spare, seed):
    sequences = make_sequences(mqar(4 * pairs + spare, pairs, seed), SMALL, 3)
    assert sequences.ids.shape == (3, 4 * pairs + spare)
    for ids, answers, filler, distances in zip(
        sequences.ids.tolist(),
        sequences.answers,
        sequences.filler,
        sequences.distances,
        strict=True,
    ):
        assert set(ids) <= set(SMALL.ids.tolist())
        assert dict(
            zip(np.flatnonzero(answers).tolist(), distances[answers].tolist(), strict=True),
        ) == queries_of(ids, pairs, 7)
        assert (np.flatnonzero(filler) + 1).tolist() == [
            place for place, id_ in enumerate(ids) if id_ == 7
        ]


def test_queries_are_at_the_same_places_in_whatever_vocabulary():
    larger = Vocabulary(np.arange(1000, 20000))
    one, other = (make_sequences(mqar(128, 16), vocabulary, 9) for vocabulary in (SMALL, larger))
    assert np.array_equal(one.answers, other.answers)
    assert np.array_equal(one.distances, other.distances)
    assert not np.array_equal(make_sequences(mqar(128, 16, seed=1), SMALL, 9).answers, one.answers)


def test_other_tasks_are_read_with_their_answers():
    last = make_sequences(MqarTask("set_disjointness", 20, 4, 0), SMALL, 5)
    assert last.ids.shape == (5, 21), "the answer behind the last id"
    assert last.answers.sum(0).tolist() == [*[0] * 19, 5]
    for ids, distance in zip(last.ids.tolist(), last.distances[:, -1].tolist(), strict=True):
        assert ids[-1] == ids[-1 - distance]
        assert ids[-1] in ids[1:5]
    copied = make_sequences(MqarTask("copying", 12, 5, 0), SMALL, 5)
    assert np.array_equal(copied.ids[:, :6], copied.ids[:, 6:])
    random = make_sequences(MqarTask("mqar", 64, 4, 0, {"filler": "random"}), SMALL, 5)
    assert not copied.filler.any()
    assert not random.filler.any(), "no id of them is the filler"


# --------------------------------------------------------------------------------------- vocabulary


@pytest.mark.parametrize("name", [None, "bytes", *NAMES])
def test_a_vocabulary_is_plain_text(name):
    tokenizer = made_tokenizer(name) if name in NAMES else load_tokenizer(name)
    vocabulary = vocabulary_of(tokenizer)
    filler, *rest = vocabulary.ids.tolist()
    plain = set(tokenizer.backend.get_vocab(with_added_tokens=False).values()) - set(
        tokenizer.backend.get_added_tokens_decoder(),
    )
    assert {filler, *rest} <= plain
    assert rest == sorted(set(rest) - {filler}), (
        "ascending, so that keys are the first half of them"
    )
    assert tokenizer.end_token_id not in vocabulary.ids
    if name not in NAMES:
        assert tokenizer.generated_text([filler]) == " "
        assert len(vocabulary.ids) + 1 == tokenizer.vocab_size, "the end token is left out"


def with_special(before: str | None = None) -> TextTokenizer:
    """A tokenizer of words, which puts one `before` every text."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

    words = ["<unk>", "<|endoftext|>", *"abcdefghij", ",", "<s>"]
    backend = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"),
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(
        [AddedToken("<|endoftext|>", special=True), AddedToken("<s>", special=True)],
    )
    backend.add_tokens([AddedToken("newly-added")])
    if before:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{before} $A",
            special_tokens=[(before, words.index(before))],
        )
    return TextTokenizer(backend, "made")


def test_what_is_no_text_is_left_out():
    vocabulary = vocabulary_of(with_special())
    assert vocabulary.ids.tolist() == [12, *range(2, 12)], (
        "the filler is a comma, where neither space nor newline is an entry"
    )
    assert 5 not in vocabulary_of(with_special("d")).ids, (
        "a word like others, which is read before every text"
    )


# ------------------------------------------------------------------------------------------ answers


class Known:
    """A model whose answers are known: an NLL made of the id, its place and all before it; argmax
    right at even sums."""

    name, vocab_size, max_length = "known", 200, None

    def __init__(self, most_rows: int = 10**9) -> None:
        self.most_rows, self.calls = most_rows, []

    def batch_tokens(self, seq_len: int) -> int:
        return seq_len

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        rows = [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]
        if len(rows) > self.most_rows:
            raise MemoryError
        self.calls.append(len(rows))
        columns = [known(row, place) for row in rows for place in range(1, len(row))]
        return TokenScores(
            *(
                np.array(column, dtype)
                for column, dtype in zip(zip(*columns, strict=True), "fii", strict=True)
            ),
        )


def known(row: list[int], place: int) -> tuple[float, int, int]:
    """NLL, argmax and rank of the id at a place."""
    mixed = sum((i + 1) * id_ for i, id_ in enumerate(row[: place + 1]))
    return mixed % 97 / 8, row[place] if mixed % 2 else 0, mixed % 5


@pytest.mark.parametrize("length", [41, 64])
def test_what_counts_is_what_the_definition_says(length):
    drawn = make_sequences(mqar(length, 10), SMALL, 7)
    answers = ask(Known(), drawn, 3 * length + 10)
    assert answers.questions.tolist() == [10] * 7
    for number, ids in enumerate(drawn.ids.tolist()):
        part = slice(10 * number, 10 * number + 10)
        queries = queries_of(ids, 10, SMALL.filler)
        values = [known(ids, place + 1) for place in queries]
        assert (
            dict(zip(answers.place[part].tolist(), answers.distance[part].tolist(), strict=True))
            == queries
        )
        assert answers.nll[part].tolist() == pytest.approx([nll for nll, _, _ in values])
        assert answers.rank[part].tolist() == [rank for _, _, rank in values]
        assert answers.right[part].tolist() == [
            argmax == ids[place + 1] for (_, argmax, _), place in zip(values, queries, strict=True)
        ]
        fillers = [known(ids, place) for place in range(20, length) if ids[place] == SMALL.filler]
        assert answers.filler_tokens[number] == len(fillers) == length - 40
        assert answers.filler_nll[number] == pytest.approx(sum(nll for nll, _, _ in fillers))
        assert answers.filler_right[number] == sum(
            argmax == SMALL.filler for _, argmax, _ in fillers
        )


def test_batches_and_halves_change_nothing():
    drawn = make_sequences(mqar(40, 6), SMALL, 11)
    unlimited, small, tight = Known(), Known(), Known(most_rows=2)
    one = ask(unlimited, drawn, 10**6)
    for model, batch in ((small, 1), (tight, 10**6)):
        other = ask(model, drawn, batch)
        for name in ("nll", "rank", "right", "filler_tokens", "filler_right", "filler_nll"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
    assert (unlimited.calls, small.calls) == ([11], [1] * 11)
    assert max(tight.calls) == 2
    with pytest.raises(
        UserError,
        match="out of memory on a sequence of 40 ids; give a shorter --seq-len",
    ):
        ask(Known(most_rows=0), drawn, 10**6)
