"""Words of tokens: by hand, against a reference that reads text character by character, and the table as it is made and reused."""

from __future__ import annotations

import itertools
import os
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit import attribution
from recallkit.errors import UserError
from recallkit.measure.labelled import open_tokens
from recallkit.slicing import words
from recallkit.slicing.definitions import members, parse_slices
from recallkit.slicing.words import fold_word, kind_of_word, label_words, make_words
from recallkit.text.vocabulary import DocumentText

END = b"<end>"


def labelled(sequences: list[list[bytes]], counts: list[float] | None = None) -> dict[str, list]:
    """The columns of words of sequences of tokens' bytes, END between documents; the training counts of all predicted tokens (or 1)."""
    pieces = sorted({piece for sequence in sequences for piece in sequence} | {END})
    rows = [[pieces.index(piece) for piece in sequence] for sequence in sequences]
    group = pa.table({"tokens": pa.array(rows, pa.list_(pa.uint32()))})
    left = iter(counts or itertools.repeat(1.0))
    text = DocumentText(pieces, pieces.index(END), adds_space=False)
    return label_words(group, text, lambda number: np.array(list(itertools.islice(left, number)), float)).to_pydict()


def tokens(text: str) -> list[bytes]:
    """Tokens divided by `|`; `¦` is the end token."""
    return [END if piece == "¦" else piece.encode() for piece in text.split("|")]


def test_a_word_counted_by_hand():
    told = labelled(
        [tokens("So| Quen|neville| saw| the| Quen|neville|.| The| cat|(|s|)|,| quen|neville|)|¦|Quen|neville|)")], [*range(20, 40)]
    )
    # Predicted:        Quen neville saw the Quen neville . The cat ( s ) , quen neville ) end Quen neville )
    assert told["word_repeated"] == [bool(int(x)) for x in "00001100000000000110"]
    assert told["word_folded"] == [bool(int(x)) for x in "00001101000001100110"]
    inner = [21, 21, None, None, 21 + 4, 21 + 4, None, None, None, None, None, None, None, 34, 34, None, None, 38, 38, None]
    assert told["word_count"] == inner
    c, p, f = "capitalised", "plain", "function"
    kinds = [c, c, p, f, c, c, None, f, p, None, f, None, None, p, p, None, None, p, p, None]  # a document's first word begins a sentence
    assert told["word_kind"] == kinds
    assert np.flatnonzero(told["closes_bracket"]).tolist() == [11]


@pytest.mark.parametrize(
    ("text", "closing"),
    [
        ("x|(|a|)", [2]),
        ("x|()|)", []),  # opened by the same token
        ("x|(|[|)|]", [2]),  # the square one was left open
        ("x|(|(|))|)", [2]),
        ("x|(|:)|)", [1]),
        ("(|a|)", [1]),  # opened by the first id, which is not predicted
        ("x|(|¦|)", []),
        ("f|({|[a|b]|})|}", [2, 3]),
        ("x|]|[|]", [2]),
    ],
)
def test_brackets_that_are_closed(text, closing):
    assert np.flatnonzero(labelled([tokens(text)])["closes_bracket"]).tolist() == closing


def test_nothing_reaches_from_one_sequence_into_the_next():
    told = labelled([tokens("a| word| (|sta"), tokens("rt| word|)"), [b"caf\xc3", b"\xa9"], [b"\xa9", b" caf\xc3", b"\xa9"]])
    assert not any(told["word_repeated"] + told["closes_bracket"])
    # The halves of a letter are each a character of no word where they are apart.
    assert told["word_kind"] == ["plain", None, "plain", "plain", None, "plain", "plain", "plain"]


@pytest.mark.parametrize(
    ("kind", "examples"),
    [
        ("plain", "cat naïve 猫 ² café 'straße"),
        ("function", "the The don t I nor"),
        ("number", "7 1984 3rd 10km 1990s ٣"),
        ("identifier", "snake_case camelCase McDonald utf8 0xff 3a7bd3 x1 B2B"),
        ("capitalised", "Paris NASA US Élan THE _Name"),
    ],
)
def test_kinds_of_words(kind, examples):
    found = {word.lstrip("'"): kind_of_word(word.lstrip("'")) for word in examples.split()}
    assert set(found.values()) == {kind}, found


def test_folding():
    for one, other in (("Walking", "walks"), ("CITIES", "city"), ("Straße", "STRASSE"), ("Élan", "élan")):
        assert fold_word(one) == fold_word(other)
    for one, other in (("x1", "x"), ("cat", "car"), ("élans", "élan"), ("a_s", "a_")):
        assert fold_word(one) != fold_word(other)


PIECES = [
    *(b"the", b" The", b" cat", b"Cat", b"s", b" run", b"ning", b"_", b"x", b"X", b"7", b" 19", b"."),
    *(b" ", b"\n", b"(", b")", b"[", b"])", b"()", b"\xc3", b"\xa9", b" \xc3\xa9", b"\xe2\x80", b"\x9c", b"-", END, b"a.B", b"' c"),
]


def words_reference(sequence: list[bytes], counts: list[float]) -> list[tuple]:
    """The rows of one sequence, from loops over its characters."""
    starts = list(itertools.accumulate([0, *(0 if piece == END else len(piece) for piece in sequence)]))
    joined = b"".join(b"" if piece == END else piece for piece in sequence)
    text, chars, at = joined.decode("utf-8", "surrogateescape"), [], 0
    breaks = {starts[place + 1] for place, piece in enumerate(sequence) if piece == END} | {0}
    for character in text:
        size = len(character.encode("utf-8", "surrogateescape"))
        chars.append((character, at, at + size))
        at += size
    runs, sentence_begins, ended, before = [], [], True, None
    for character, first, last in chars:
        broken = any((before or 0) < at <= first or at == first for at in breaks)
        before = first
        if broken:
            ended = True
        if unicodedata.category(character)[0] in "LNM" or character == "_":
            if runs and runs[-1][2] == first and not broken:
                runs[-1] = (runs[-1][0] + character, runs[-1][1], last)
            else:
                runs.append((character, first, last))
                sentence_begins.append(ended)
            if unicodedata.category(character)[0] in "LN":
                ended = False
        elif character in ".!?\n":
            ended = True
    found, seen, folds = [], [], []
    for (word, first, last), begins in zip(runs, sentence_begins, strict=True):
        if not any(unicodedata.category(character)[0] in "LN" for character in word):
            continue
        kind = kind_of_word(word)
        kind = "plain" if kind == "capitalised" and begins else kind
        found.append((first, last, word in seen, fold_word(word) in folds, kind))
        seen.append(word)
        folds.append(fold_word(word))
    owner = [next((w for w, word in enumerate(found) if word[0] < end and word[1] > begin), None) if end > begin else None
             for begin, end in itertools.pairwise(starts)]  # fmt: skip
    rows = []
    for place in range(1, len(sequence)):
        own = owner[place]
        inside = [counts[p - 1] for p in range(1, len(sequence)) if own is not None and owner[p] == owner[p - 1] == own]
        of_word = (False, False, None, None) if own is None else (*found[own][2:4], min(inside, default=None), found[own][4])
        rows.append((*of_word, closes(sequence, place)))
    return rows


def closes(sequence: list[bytes], place: int) -> bool:
    """Whether the token at a place closes a bracket, from everything before it."""
    stack, answer = [], False
    for number, piece in enumerate(sequence[: place + 1]):
        if piece == END:
            stack = []
            continue
        for byte in piece.decode("latin-1"):
            if byte in "([":
                stack.append(("()[]"["([".index(byte) * 2 + 1], number))
            elif byte in ")]" and any(shape == byte for shape, _ in stack):
                while (top := stack.pop())[0] != byte:
                    pass
                answer |= number == place and top[1] < place
    return answer


@settings(max_examples=150)
@given(
    st.lists(st.lists(st.sampled_from(PIECES), min_size=2, max_size=14), min_size=1, max_size=4),
    st.randoms(),
    st.sampled_from([1, 7, 1 << 17]),
)
def test_any_text_is_what_loops_over_its_characters_find(sequences, random, block):
    counts = [[float(random.randint(0, 9)) for _ in sequence[1:]] for sequence in sequences]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "_BLOCK_IDS", block)
        told = labelled(sequences, list(itertools.chain(*counts)))
    expected = [row for sequence, own in zip(sequences, counts, strict=True) for row in words_reference(sequence, own)]
    assert list(zip(*told.values(), strict=True)) == expected


MODELS = ("control:recall", ["control:bigram"])


@pytest.fixture(scope="module")
def slices(small_slices, tmp_path_factory):
    """A slice directory of this file's own."""
    return Path(shutil.copytree(small_slices, tmp_path_factory.mktemp("words") / "slices"))


def test_the_table_is_made_on_demand_reused_and_made_again_for_another_definition(slices, tmp_path, monkeypatch):
    path = slices / "words.parquet"
    path.unlink(missing_ok=True)
    attribution.gap(*MODELS, slices, tmp_path / "none", given=parse_slices(["first_rare"]))
    assert not path.exists()
    given_ = parse_slices(["rare_word", "mine=word_kind = 'plain' AND NOT closes_bracket"])
    tables = attribution.gap(*MODELS, slices, tmp_path / "a", given=given_)
    before = path.stat().st_mtime_ns
    again = attribution.gap(*MODELS, slices, tmp_path / "b", given=given_)
    assert path.stat().st_mtime_ns == before
    assert again.gap.equals(tables.gap)
    rows = pq.read_table(slices / "tokens.parquet")
    own = pq.read_table(path)
    assert own.num_rows == rows.num_rows
    for name in own.column_names:
        rows = rows.append_column(name, own[name])
    max_count = open_tokens(slices / "tokens.parquet").max_count
    found = {slice_.name: int(mask.sum()) for slice_, mask in zip(given_, members(given_, rows, max_count), strict=True)}
    assert min(found.values()) > 0
    assert {name: tables.gap.filter(source="ALL", slice=name)["tokens"][0] for name in found} == found
    monkeypatch.setattr(words, "_VERSION", 2)
    make_words(slices)
    assert path.stat().st_mtime_ns != before
    monkeypatch.undo()
    with pytest.raises(UserError, match="words of other tokens"):
        open_tokens(slices / "tokens.parquet").words(["word_kind"])
    path.unlink()
    with pytest.raises(UserError, match="slices of words need this table"):
        open_tokens(slices / "tokens.parquet").words(["word_kind"])
    make_words(slices)


def test_batches_that_begin_within_a_sequence_have_the_words_of_their_rows(slices, tmp_path, monkeypatch):
    given_ = parse_slices(["content_word", "folded", "closing_bracket"])
    whole = attribution.gap(*MODELS, slices, tmp_path / "a", given=given_)
    ranges = [(0, 100), (100, 1001), (1001, pq.read_metadata(slices / "tokens.parquet").num_rows)]
    monkeypatch.setattr("recallkit.measure.batches.batch_ranges", lambda _: ranges)
    parts = attribution.gap(*MODELS, slices, tmp_path / "b", given=given_)
    assert parts.gap["tokens"].equals(whole.gap["tokens"])


@pytest.fixture
def copied(slices, tmp_path):
    """The slice directory, with its files as links, one of which a test may replace."""
    make_words(slices)
    for path in slices.glob("*.*"):
        os.link(path, tmp_path / path.name)
    return tmp_path


def test_what_cannot_be_read_is_one_line(copied):
    (copied / "words.parquet").unlink()
    (copied / "sequences.parquet").rename(copied / "away")
    with pytest.raises(UserError, match="no such table"):
        make_words(copied)
    (copied / "away").rename(copied / "sequences.parquet")
    (copied / "words.parquet").write_bytes(b"my own file")
    with pytest.raises(UserError):
        make_words(copied)


def test_a_tokenizer_without_bytes_is_refused(copied, monkeypatch):
    from recallkit.text.tokenizers import TextTokenizer

    (copied / "words.parquet").unlink()
    monkeypatch.setattr(TextTokenizer, "document_text", None)
    with pytest.raises(UserError, match="have no bytes of their own"):
        make_words(copied)
