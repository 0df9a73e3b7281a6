"""Sequences of keys and values: held against the paper's words and the power law; what a model makes of them, by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.errors import UserError
from recallkit.models.protocol import TokenScores
from recallkit.mqar.sequences import MqarTask, MqarVocabulary, ask, draw, make_sequences, place_queries, split_vocabulary
from recallkit.text.tokenizers import TextTokenizer, load_tokenizer
from tests.made_tokenizers import NAMES, made

SMALL = MqarVocabulary(np.arange(10, 60), np.arange(100, 160), 7, ())


def queries_of(ids: list[int], pairs: int, vocabulary: MqarVocabulary) -> list[int]:
    """Where the keys of the pairs, in their order, stand again; fails where a sequence is not what the paper says."""
    keys, values = ids[: 2 * pairs : 2], ids[1 : 2 * pairs : 2]
    assert set(keys) <= set(vocabulary.keys.tolist())
    assert set(values) <= set(vocabulary.values.tolist())
    assert len(set(keys)) == len(set(values)) == pairs
    value_of, found, place = dict(zip(keys, values, strict=True)), {}, 2 * pairs
    while place < len(ids):
        if ids[place] == vocabulary.filler:
            place += 1
            continue
        key = ids[place]
        assert key in value_of, "the tail holds fillers and keys of this sequence"
        assert key not in found, "every key once more"
        assert ids[place + 1] == value_of[key], "its value behind it"
        found[key] = place
        place += 2
    return [found[key] for key in keys]


@st.composite
def tasks(draw_):
    pairs = draw_(st.integers(1, 40))
    length = draw_(st.integers(4 * pairs, 4 * pairs + 60))
    return MqarTask(length, pairs, draw_(st.sampled_from([0.01, 0.5, 1.0, 3.0])), draw_(st.integers(0, 2**62)))


@given(tasks(), st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
@settings(max_examples=80)
def test_every_sequence_is_what_the_paper_says(task, samples):
    task.check()
    drawn = make_sequences(task, SMALL, samples)
    assert drawn.ids.shape == (len(samples), task.length)
    for ids, places in zip(drawn.ids.tolist(), drawn.places.tolist(), strict=True):
        assert queries_of(ids, task.pairs, SMALL) == places
        assert all((place - 2 * task.pairs) % 2 == 0 for place in places)
        assert ids.count(SMALL.filler) == task.length - 4 * task.pairs
    assert np.array_equal(make_sequences(task, SMALL, samples[-1:]).ids[0], drawn.ids[-1]), "whatever is made with it"


def test_a_sequence_is_the_same_on_every_machine():
    """A release of numpy that draws otherwise would make parts of interrupted work that do not belong together."""
    drawn = make_sequences(MqarTask(21, 3, 0.01, 0), SMALL, [4])
    assert drawn.ids[0].tolist() == [48, 108, 23, 154, 29, 116, 7, 7, 7, 7, 29, 116, 23, 154, 7, 7, 48, 108, 7, 7, 7]


def test_seeds_samples_and_vocabularies_change_what_they_should():
    task = MqarTask(128, 16, 0.5, 3)
    one, other = (make_sequences(task, SMALL, [sample]) for sample in (0, 1))
    assert not np.array_equal(one.places, other.places)
    assert not np.array_equal(make_sequences(MqarTask(128, 16, 0.5, 4), SMALL, [0]).ids, one.ids)
    larger = MqarVocabulary(np.arange(1000, 9000), np.arange(9000, 20000), 1, (5,))
    elsewhere = make_sequences(task, larger, [0])
    assert np.array_equal(elsewhere.places, one.places), "of one shape in whatever vocabulary"
    assert queries_of(elsewhere.ids[0].tolist(), 16, larger) == elsewhere.places[0].tolist()


def chi_square(observed: dict, expected: dict, total: int) -> float:
    assert set(observed) <= set(expected)
    return sum((observed.get(cell, 0) - total * chance) ** 2 / (total * chance) for cell, chance in expected.items())


@pytest.mark.parametrize("power", [0.01, 1.0, 2.0])
def test_pairs_take_free_slots_by_the_power_law(power):
    """Against the exact chance of every outcome: slot after slot drawn by weight from those that are free."""
    task, number = MqarTask(14, 2, power, 11), 12_000
    assert task.num_slots == 5
    weights = [gap ** (power - 1) for gap in range(1, 6)]
    exact = {(a, b): weights[a] / sum(weights) * weights[b] / (sum(weights) - weights[a]) for a, b in itertools.permutations(range(5), 2)}
    times = np.stack([draw(task, 50, 50, sample)[0] for sample in range(number)])
    found = [tuple(slots) for slots in place_queries(times, power, 2).tolist()]
    observed = {cell: found.count(cell) for cell in set(found)}
    assert chi_square(observed, exact, number) < 50.8, "19 degrees of freedom: exceeded once in ten thousand"


# ---------------------------------------------------------------------------------------------------------- vocabulary


def check_vocabulary(vocabulary: MqarVocabulary, tokenizer: TextTokenizer) -> None:
    keys, values = vocabulary.keys.tolist(), vocabulary.values.tolist()
    plain = set(tokenizer.backend.get_vocab(with_added_tokens=False).values()) - set(tokenizer.backend.get_added_tokens_decoder())
    assert {*keys, *values, vocabulary.filler} <= plain
    assert max(keys) < min(values), "keys are the first half"
    assert 0 <= len(values) - len(keys) <= 1
    assert vocabulary.filler not in {*keys, *values}
    assert tokenizer.end_token_id not in {*keys, *values, vocabulary.filler}
    assert list(vocabulary.prefix) == tokenizer.prefix_ids


@pytest.mark.parametrize("name", [None, "bytes", *NAMES])
def test_a_vocabulary_is_split_in_half(name):
    tokenizer = made(name) if name in NAMES else load_tokenizer(name)
    vocabulary = split_vocabulary(tokenizer)
    check_vocabulary(vocabulary, tokenizer)
    if name not in NAMES:
        assert tokenizer.generated_text([vocabulary.filler]) == " "
        assert len(vocabulary.keys) + len(vocabulary.values) + 2 == tokenizer.vocab_size, "the end token and the filler are left out"


def with_special(before: str | None = None) -> TextTokenizer:
    """A tokenizer of words, which puts one `before` every text."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

    words = ["<unk>", "<|endoftext|>", *"abcdefghij", ",", "<s>"]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens([AddedToken("<|endoftext|>", special=True), AddedToken("<s>", special=True)])
    backend.add_tokens([AddedToken("newly-added")])
    if before:
        backend.post_processor = processors.TemplateProcessing(single=f"{before} $A", special_tokens=[(before, words.index(before))])
    return TextTokenizer(backend, "made")


def test_what_is_no_text_is_left_out():
    vocabulary = split_vocabulary(with_special())
    assert vocabulary.keys.tolist() == [2, 3, 4, 5, 6]
    assert vocabulary.values.tolist() == [7, 8, 9, 10, 11]
    assert vocabulary.filler == 12, "a comma, where neither space nor newline is an entry"
    assert vocabulary.prefix == ()
    assert split_vocabulary(with_special("<s>")).prefix == (13,)
    vocabulary = split_vocabulary(with_special("d"))  # a word like others, and no added token
    assert vocabulary.prefix == (5,)
    assert 5 not in {*vocabulary.keys.tolist(), *vocabulary.values.tolist(), vocabulary.filler}


def test_too_small_a_vocabulary_and_too_short_a_sequence():
    with pytest.raises(UserError, match="50 keys and 60 values, too few for 51 pairs; give --pairs of 50"):
        SMALL.check_room(51, "m")
    SMALL.check_room(50, "m")
    for task, message in [
        (MqarTask(63, 16, 0.01, 0), "take 64 ids, but a sequence has 63; give 1 to 15 pairs"),
        (MqarTask(64, 0, 0.01, 0), "give 1 to 16 pairs"),
        (MqarTask(64, 16, 0.0, 0), "--power 0.0"),
        (MqarTask(64, 16, math.nan, 0), "--power nan"),
    ]:
        with pytest.raises(UserError, match=message):
            task.check()
    MqarTask(64, 16, 1.0, 0).check()


# ------------------------------------------------------------------------------------------------------------- answers


class Known:
    """A model whose answers are known: an NLL made of the id, its place and all before it; argmax right at even sums."""

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
        found = [known(row, place) for row in rows for place in range(1, len(row))]
        return TokenScores(*(np.array(column, dtype) for column, dtype in zip(zip(*found, strict=True), "fii", strict=True)))


def known(row: list[int], place: int) -> tuple[float, int, int]:
    """NLL, argmax and rank of the id at a place."""
    mixed = sum((i + 1) * id_ for i, id_ in enumerate(row[: place + 1]))
    return mixed % 97 / 8, row[place] if mixed % 2 else 0, mixed % 5


@pytest.mark.parametrize("prefix", [(), (3,), (3, 4)])
@pytest.mark.parametrize("length", [41, 64])
def test_what_counts_is_what_the_definition_says(prefix, length):
    vocabulary = MqarVocabulary(SMALL.keys, SMALL.values, SMALL.filler, prefix)
    task = MqarTask(length, 10, 0.3, 1)
    drawn = make_sequences(task, vocabulary, range(7))
    answers = ask(Known(), vocabulary, task, drawn, 3 * length + 10)
    for number, ids in enumerate(drawn.ids.tolist()):
        row, before = [*prefix, *ids], len(prefix)
        values = [known(row, place + 1 + before) for place in queries_of(ids, 10, vocabulary)]
        asked = [ids[place + 1] for place in queries_of(ids, 10, vocabulary)]
        assert answers.nll[number].tolist() == pytest.approx([nll for nll, _, _ in values])
        assert answers.rank[number].tolist() == [rank for _, _, rank in values]
        assert answers.right[number].tolist() == [argmax == value for (_, argmax, _), value in zip(values, asked, strict=True)]
        fillers = [known(row, place + before) for place in range(20, length) if ids[place] == vocabulary.filler]
        assert answers.filler_tokens[number] == len(fillers) == length - 40
        assert answers.filler_nll[number] == pytest.approx(sum(nll for nll, _, _ in fillers))
        assert answers.filler_right[number] == sum(argmax == vocabulary.filler for _, argmax, _ in fillers)


def test_batches_and_halves_change_nothing():
    task = MqarTask(40, 6, 0.5, 0)
    drawn = make_sequences(task, SMALL, range(11))
    whole, small, tight = Known(), Known(), Known(most_rows=2)
    one = ask(whole, SMALL, task, drawn, 10**6)
    for model, batch in ((small, 1), (tight, 10**6)):
        other = ask(model, SMALL, task, drawn, batch)
        for name in ("nll", "rank", "right", "filler_tokens", "filler_right", "filler_nll"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
    assert (whole.calls, small.calls) == ([11], [1] * 11)
    assert max(tight.calls) == 2
    with pytest.raises(UserError, match="out of memory on a sequence of 40 ids; give a shorter --seq-len"):
        ask(Known(most_rows=0), SMALL, task, drawn, 10**6)
