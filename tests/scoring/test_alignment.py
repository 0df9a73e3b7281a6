"""Translation between tokenizers against a slow computation by single bytes: what is read, what
belongs to which token."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from recallkit.errors import UserError
from recallkit.ragged import positions_within
from recallkit.scoring.alignment import Translation, Translator, align
from recallkit.scoring.scores import SequenceScores
from recallkit.text.tokenizers import TextTokenizer, load_tokenizer
from tests.made_tokenizers import NAMES, WITH_BYTES, made

# ----------------------------------------------------------------------------- the slow computation


@dataclass
class Slow:
    """One sequence: the other's ids, how many of them are the context's, and for each reference
    token what it owns."""

    ids: list[int]
    num_context: int
    owned: list[list[int]]
    """Places in `ids` of the ids that end in each predicted reference token."""
    covering: list[int]
    """Place of the first id that ends at or behind each token's end."""
    exact: list[bool]


def text_of(tokenizer: TextTokenizer, token: int, previous: int | None) -> bytes | None:
    """The text that a reference id stands for; None for an end token."""
    is_end = token == tokenizer.end_token_id
    if is_end and tokenizer.name != "bytes":
        return None
    text = tokenizer.token_bytes[token]
    is_first_word = previous == tokenizer.end_token_id and tokenizer.name != "bytes"
    return (
        text[1:]
        if is_first_word and tokenizer.continuation is not tokenizer and text[:1] == b" "
        else text
    )


def characters(data: bytes) -> list[tuple[bytes, bool]]:
    """The bytes one character at a time, and those that are in none one by one; whether each is a
    character."""
    found, place = [], 0
    while place < len(data):
        for width in (1, 2, 3, 4):
            try:
                data[place : place + width].decode()
            except UnicodeDecodeError:
                continue
            if place + width <= len(data):
                found.append((data[place : place + width], True))
                place += width
                break
        else:
            found.append((data[place : place + 1], False))
            place += 1
    return found


def slow_encode(tokenizer: TextTokenizer, text: str) -> list[tuple[int, int]]:
    """(id, place in bytes where it ends) of a text."""
    ids = tokenizer.encode([text])[0].tolist()
    if tokenizer.token_bytes is not None:
        for added in (b"", b" "):
            if b"".join(tokenizer.token_bytes[i] for i in ids) == added + text.encode():
                ends = itertools.accumulate(len(tokenizer.token_bytes[i]) for i in ids)
                return [(i, max(1, end - len(added))) for i, end in zip(ids, ends, strict=True)]
    tracking = Tokenizer.from_str(
        json.dumps({**json.loads(tokenizer.backend.to_str()), "post_processor": None})
    )
    encoding = tracking.encode(text, add_special_tokens=False)
    ends = itertools.accumulate((len(text[:stop].encode()) for _, stop in encoding.offsets), max)
    return [(i, max(1, end)) for i, end in zip(encoding.ids, ends, strict=True)]


@cache
def single_bytes(tokenizer: TextTokenizer) -> dict[bytes, int]:
    return {
        piece: i
        for i, piece in reversed(list(enumerate(tokenizer.token_bytes or [])))
        if len(piece) == 1
    }


def encode_piece(
    other: TextTokenizer, data: bytes, *, begins_document: bool
) -> list[tuple[int, int]]:
    """(id, end in bytes) of bytes of which some may be no text."""
    found, place = [], 0
    for is_text, run in itertools.groupby(characters(data), key=lambda c: c[1]):
        part = b"".join(c for c, _ in run)
        single = single_bytes(other)
        if is_text:
            tokenizer = other if begins_document and place == 0 else other.continuation
            here = slow_encode(tokenizer, part.decode())
        elif all(part[k : k + 1] in single for k in range(len(part))):
            here = [(single[part[k : k + 1]], k + 1) for k in range(len(part))]
        else:
            here = [(i, len(part)) for i in other.continuation.encode(["\ufffd"])[0].tolist()]
        found += [(i, place + end) for i, end in here]
        place += len(part)
    return found


def slowly(reference: TextTokenizer, other: TextTokenizer, sequence: list[int]) -> Slow:
    """A translation, token by token and byte by byte."""
    texts = [
        text_of(reference, token, previous)
        for token, previous in zip(sequence, [None, *sequence], strict=False)
    ]
    spans, place = [], 0
    for text in texts:
        spans.append((place, place + (1 if text is None else len(text))))
        place = spans[-1][1]
    found: list[tuple[int, int]] = []
    borders = {0}

    def encode(part: list[int], *, begins_document: bool = False) -> None:
        if part:
            start = spans[part[0]][0]
            here = encode_piece(
                other, b"".join(texts[k] for k in part), begins_document=begins_document
            )
            found.extend((i, start + end) for i, end in here)
            borders.add(start)

    def end_token(k: int) -> None:
        found.append((other.end_token_id, spans[k][1]))
        borders.update(spans[k])

    end_token(0) if texts[0] is None else encode([0])
    if not found:
        found.append((other.end_token_id, spans[0][1]))
    num_context = len(found)
    part: list[int] = []
    after_end = texts[0] is None
    for k in range(1, len(sequence)):
        if texts[k] is None:
            encode(part, begins_document=after_end)
            end_token(k)
            part, after_end = [], True
        else:
            part.append(k)
    encode(part, begins_document=after_end)
    borders.add(spans[1][0])
    ends = [end for _, end in found]
    predicted = range(num_context, len(found))
    owned = [[n for n in predicted if start < ends[n] <= stop] for start, stop in spans[1:]]
    covering = [
        next((n for n in range(len(found)) if ends[n] > stop), len(found) - 1)
        for _, stop in spans[1:]
    ]
    exact = [
        start < stop and start in {*borders, *ends} and stop in ends for start, stop in spans[1:]
    ]
    return Slow([i for i, _ in found], num_context, owned, covering, exact)


# ------------------------------------------------------------------------------------- the property


@cache
def translator(reference: str, other: str) -> Translator:
    """Without gigatoken: what is drawn may be text on which it differs from what it is checked
    against."""
    return Translator(made(reference), made(other), fast=False)


WORDS = [
    "the",
    " model",
    " recalls",
    " é",
    "é",
    "e\u0301",
    " 中文",
    "字",
    "👩‍👩‍👧",
    " 👩",
    "  ",
    "\n",
    " a",
    "The",
    "\u00a0",
    "</s>",
    "\ufb01",
    "▁",
]
texts = st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=8).map("".join)


@st.composite
def sequences(draw, reference: TextTokenizer) -> list[list[int]]:
    """Documents with end tokens, cut anywhere, also inside characters; or any ids at all."""
    if draw(st.integers(0, 4)) == 0:
        ids = draw(st.lists(st.integers(0, reference.vocab_size - 1), min_size=2, max_size=12))
    else:
        ids = [reference.end_token_id] * draw(st.integers(0, 2))
        for text in draw(st.lists(texts, min_size=1, max_size=4)):
            ids += [*reference.encode([text])[0].tolist(), reference.end_token_id]
        ids = [*ids[draw(st.integers(0, min(6, len(ids) - 1))) :], reference.end_token_id]
    length = draw(st.integers(1, 9))
    return [ids[start : start + length + 1] for start in range(0, len(ids) - 1, length)]


def scored(translation: Translation, nll: np.ndarray, rank: np.ndarray) -> SequenceScores:
    """Scores of the other's ids by a model that had seen, of each sequence, all ids before each
    predicted one."""
    seen = positions_within(np.diff(translation.offsets) - 1) + 1
    return SequenceScores(
        nll, np.zeros(len(nll), np.int32), rank, seen.astype(np.int32), np.ones(len(nll), bool)
    )


def flat(parts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(list(itertools.chain(*parts)), np.uint32), np.cumsum([0, *map(len, parts)])


def own_scores(translation: Translation, seed: int = 0) -> SequenceScores:
    """Whole numbers, whose sums are exact in every precision."""
    rng = np.random.default_rng(seed)
    num = len(translation.ids) - len(translation.offsets) + 1
    return scored(
        translation,
        rng.integers(0, 50, num).astype(np.float32),
        rng.integers(0, 50, num).astype(np.int32),
    )


def check_sequence(
    slow: Slow, ids: list[int], nll: np.ndarray, rank: np.ndarray, aligned: dict[str, np.ndarray]
) -> None:
    """One sequence of a translation, its own scores and the aligned ones, against the slow
    computation."""
    fills_up = len(slow.ids) == 1
    assert ids[: len(slow.ids)] == slow.ids
    assert len(ids) == len(slow.ids) + fills_up
    by_place = {place: n for n, place in enumerate(range(1, len(ids)))}
    for token, own in enumerate(slow.owned):
        numbers = [by_place[place] for place in own]
        assert aligned["nll"][token] == math.fsum(nll[numbers])
        assert aligned["rank"][token] == max((rank[n] for n in numbers), default=-1)
        seen = own[-1] if own else max(slow.covering[token], 1)
        assert aligned["context"][token] == seen, token
    assert aligned["exact"].tolist() == slow.exact
    assert (aligned["argmax"] == -1).all()
    # What is not aligned is the context's own, or fills up a sequence with nothing to predict.
    assert math.fsum(aligned["nll"]) == math.fsum(
        nll if fills_up else nll[slow.num_context - 1 :]
    ) - fills_up * math.fsum(nll)


def check_translation(
    reference: TextTokenizer, other: TextTokenizer, parts: list[list[int]], translation: Translation
) -> list[Slow]:
    scores = own_scores(translation)
    aligned = {
        name: column
        for name, column in asdict(align(translation, scores)).items()
        if name != "beside"
    }
    assert (aligned["nll"].dtype, translation.ids.dtype) == (np.float32, np.uint32)
    owner = translation.owner[translation.owner >= 0]
    assert (np.diff(owner) >= 0).all()
    slow = [slowly(reference, other, part) for part in parts]
    theirs = translation.offsets - np.arange(len(translation.offsets))
    ours = np.cumsum([0, *(len(part) - 1 for part in parts)])
    assert len(translation.offsets) == len(parts) + 1
    for n, expected in enumerate(slow):
        a, b, c, d = theirs[n], theirs[n + 1], ours[n], ours[n + 1]
        ids = translation.ids[translation.offsets[n] : translation.offsets[n + 1]].tolist()
        check_sequence(
            expected,
            ids,
            scores.nll[a:b],
            scores.rank[a:b],
            {name: column[c:d] for name, column in aligned.items()},
        )
    counts = translation.counts
    assert counts.num_own_ids == len(owner) == sum(len(own) for s in slow for own in s.owned)
    assert counts.num_inexact == sum(not e for s in slow for e in s.exact)
    assert counts.num_without_id == sum(not own for s in slow for own in s.owned)
    return slow


@settings(max_examples=60)
@given(st.data())
def test_a_translation_is_what_a_slow_computation_finds(data):
    names = data.draw(st.sampled_from(WITH_BYTES)), data.draw(st.sampled_from(NAMES))
    reference, other = made(names[0]), made(names[1])
    parts = data.draw(sequences(reference))
    check_translation(reference, other, parts, translator(*names).translate(*flat(parts)))


# ---------------------------------------------------------------------------------- counted by hand


def ids_of(tokenizer: TextTokenizer, *pieces: str) -> list[int]:
    return [tokenizer.token_bytes.index(piece.encode()) for piece in pieces]


def test_scores_are_carried_as_counted_by_hand():
    reference, other = load_tokenizer("bytes", end_token="<0x00>"), load_tokenizer(None)
    sequence = list(b"x the\xc3")
    translation = Translator(reference, other).translate(
        np.array(sequence, np.uint32), np.array([0, len(sequence)])
    )
    assert translation.ids.tolist() == [
        *ids_of(other, "x", " the"),
        other.token_bytes.index(b"\xc3"),
    ]
    assert translation.owner.tolist() == [3, 4]  # " the" ends in its last byte
    aligned = align(
        translation,
        scored(translation, np.array([1.5, 2.0], np.float32), np.array([7, 0], np.int32)),
    )
    assert aligned.nll.tolist() == [0, 0, 0, 1.5, 2.0]
    assert aligned.rank.tolist() == [-1, -1, -1, 7, 0]
    assert aligned.context.tolist() == [1, 1, 1, 1, 2]
    assert aligned.exact.tolist() == [False, False, False, False, True]
    assert asdict(translation.counts) == {
        "num_own_ids": 2,
        "num_bytes": 5,
        "num_inexact": 4,
        "num_without_id": 3,
        "num_texts": 2,
        "num_approximate_texts": 0,
        "num_replaced_bytes": 0,
    }


def test_a_cut_character_without_ids_of_its_own_is_one_replacement():
    reference, other = load_tokenizer("bytes"), made("unigram without bytes")
    sequence = [*b"a ", *"\U0001f469".encode()[1:], *b" the"]
    translation = Translator(reference, other).translate(
        np.array(sequence, np.uint32), np.array([0, len(sequence)])
    )
    replacement = other.continuation.encode(["\ufffd"])[0].tolist()
    assert translation.counts.num_replaced_bytes == 3
    space, the = (other.continuation.encode([text])[0].tolist() for text in (" ", " the"))
    assert translation.ids.tolist()[1:] == [*space, *replacement, *the]
    assert translation.owner.tolist()[: len(space + replacement)] == [0] * len(space) + [3] * len(
        replacement
    )


def test_a_document_begins_as_the_other_begins_documents():
    reference, other = load_tokenizer(None), made("sentencepiece")
    document, inside = (
        other.encode(["model"])[0].tolist(),
        other.continuation.encode(["model"])[0].tolist(),
    )
    assert document != inside
    end, other_end = reference.end_token_id, other.end_token_id
    model = reference.encode(["model"])[0].tolist()
    parts = [[end, *model, end, *model], [*ids_of(reference, "\n"), *model]]
    translation = Translator(reference, other).translate(*flat(parts))
    first, second = np.split(translation.ids, translation.offsets[1:-1])
    assert first.tolist() == [other_end, *document, other_end, *document]
    assert second.tolist() == [*other.continuation.encode(["\n"])[0].tolist(), *inside]


def test_ids_without_text_own_nothing_and_keep_sequences_apart():
    reference, other = made("byte-level with a hole"), load_tokenizer("bytes")
    hole = reference.token_bytes.index(b"")
    (o,) = ids_of(reference, "o")
    translation = Translator(reference, other).translate(
        *flat([[hole, hole, o, hole], [hole, o], [hole, hole], [o, hole]])
    )
    assert [
        bytes(part.tolist()) for part in np.split(translation.ids, translation.offsets[1:-1])
    ] == [b"\no", b"\no", b"\n\n", b"o\n"]
    assert translation.owner.tolist() == [1, 3, -1, -1]
    assert translation.exact.tolist() == [False, True, False, True, False, False]


def test_a_reference_without_bytes_is_one_line():
    with pytest.raises(
        UserError, match=r"wordpiece: its pieces are not bytes of the text.*slice with"
    ):
        Translator(made("wordpiece"), load_tokenizer(None))


# ------------------------------------------------------------------------------------- on real text


PAIRS = [("built-in", "gpt2.json"), ("gpt-neox-20b.json", "bytes"), ("bytes", "built-in")]


@pytest.mark.parametrize(
    "names",
    PAIRS,
    ids=" to ".join,
)
def test_real_text_is_translated_as_slowly_computed_with_the_fast_encoder(test_data, names):
    from recallkit.text.corpus import open_corpus

    reference, other = (load_real(test_data, name) for name in names)
    documents = [
        d.text[:2000]
        for d in open_corpus([str(test_data / "corpus" / "valid.jsonl.zst")]).documents()
    ][::120]
    ids, offsets = reference.encode(documents)
    stream = list(
        itertools.chain(
            *([*part.tolist(), reference.end_token_id] for part in np.split(ids, offsets[1:-1]))
        )
    )
    parts = [stream[start : start + 513] for start in range(0, len(stream) - 1, 512)]
    notes: list[str] = []
    translation = Translator(reference, other, notify=notes.append).translate(*flat(parts))
    check_translation(reference, other, parts, translation)
    assert notes == []
    if other.name == "bytes":
        assert translation.exact.all()
    assert translation.counts.num_replaced_bytes == 0


@cache
def load_real(test_data, name: str) -> TextTokenizer:
    return load_tokenizer(
        str(test_data / "tokenizers" / name)
        if name.endswith(".json")
        else None
        if name == "built-in"
        else name
    )
