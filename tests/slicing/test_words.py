"""Words of tokens: by hand, against a reference that reads text character by character, and the
table as it is made and reused."""

from __future__ import annotations

import itertools
import os
import shutil
import unicodedata
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recallkit import attribution
from recallkit.errors import UserError
from recallkit.measure.labelled import open_tokens
from recallkit.slicing import words
from recallkit.slicing.definitions import members, parse_slices
from recallkit.slicing.words import fold_word, kind_of_word, label_words, make_words
from recallkit.text.vocabulary import DocumentText

END = b"<end>"


def labelled(sequences: list[list[bytes]], counts: list[int] | None = None) -> dict[str, list]:
    """The columns of words of sequences of tokens' bytes, END between documents; the training
    counts of all predicted tokens (or 1)."""
    pieces = sorted({piece for sequence in sequences for piece in sequence} | {END})
    rows = [list(map(pieces.index, sequence)) for sequence in sequences]
    group = pa.table({"tokens": pa.array(rows, pa.list_(pa.uint32()))})
    left = iter(counts or itertools.repeat(1))
    text = DocumentText(pieces, pieces.index(END), adds_space=False)
    return label_words(group, text, lambda: next(left)).to_pydict()


def tokens(text: str) -> list[bytes]:
    """Tokens divided by `|`; `¦` is the end token."""
    return [END if piece == "¦" else piece.encode() for piece in text.split("|")]


def test_labels_counted_by_hand():
    result = labelled(
        [
            tokens(
                (
                    "So| Quen|neville| saw| the| Quen|neville|.| The| cat|(|s|)|,| "
                    "quen|neville|)|¦|Quen|neville|)"
                ),
            )
        ],
        [*range(20, 40)],
    )
    # Predicted:        Quen neville saw the Quen neville . The cat ( s ) , quen neville ) end Quen
    # neville )
    assert result["word_repeated"] == [bool(int(x)) for x in "00001100000000000110"]
    assert result["word_folded"] == [bool(int(x)) for x in "00001101000001100110"]
    inner = [
        21,
        21,
        None,
        None,
        21 + 4,
        21 + 4,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
        34,
        34,
        None,
        None,
        38,
        38,
        None,
    ]
    assert result["word_count"] == inner
    c, p, f = "capitalised", "plain", "function"
    # a document's first word begins a sentence
    kinds = [
        c,
        c,
        p,
        f,
        c,
        c,
        None,
        f,
        p,
        None,
        f,
        None,
        None,
        p,
        p,
        None,
        None,
        p,
        p,
        None,
    ]
    assert result["word_kind"] == kinds
    assert np.flatnonzero(result["closes_bracket"]).tolist() == [11]
    assert np.flatnonzero(result["opens_bracket"]).tolist() == [9]


@pytest.mark.parametrize(
    ("text", "opening", "closing"),
    [
        ("x|(|a|)", [0], [2]),
        ("x|()|)", [], []),  # opened by the same token
        ("x|(|[|)|]", [0, 1], [2]),  # the square one was left open
        ("(|a|)", [], [1]),  # opened by the first id, which is not predicted
        ("x|(|¦|)", [0], []),
        ("x|[|](|)", [0, 1], [1, 2]),  # closes one and opens another
    ],
)
def test_brackets(text, opening, closing):
    result = labelled([tokens(text)])
    assert [np.flatnonzero(result[f"{kind}_bracket"]).tolist() for kind in ("opens", "closes")] == [
        opening,
        closing,
    ]


@pytest.mark.parametrize(
    ("text", "opening", "closing"),
    [
        ('x| "|a|"|.', [1], [3]),
        ('x|"a"', [], []),
        ("x| '|a| don|'|t|'", [1], [6]),  # an apostrophe inside a word
        ('x|.|"| y| "|b|"', [4], [6]),  # the text begins inside a quotation
        ("x| \"|'|tis| a|\"|'| b", [1, 2], [5]),  # what is open inside ends with the outer one
        ('x|(|"|a|"|,|"|b|"|)', [2, 6], [4, 8]),
        ("x|„|a|“|“|b|”|«|c|»|「|d|」", [1, 4, 7, 10], [3, 6, 9, 12]),
        ("x|‘|it|’|s|’", [1], [5]),
        ('x| "|¦| "|a|"', [1, 3], [5]),
        ('x| "|a|\n| "|b|"', [1], [6]),  # a mark after a space does not close
    ],
)
def test_quotations(text, opening, closing):
    columns = labelled([tokens("|" + text)])
    assert [np.flatnonzero(columns[f"{kind}_quote"]).tolist() for kind in ("opens", "closes")] == [
        opening,
        closing,
    ]


def test_kinds_of_words():
    for kind, examples in {
        "plain": "cat naïve 猫 ² café straße",
        "function": "the The don t I nor",
        "number": "7 1984 3rd 10km 1990s ٣",
        "identifier": "snake_case camelCase McDonald utf8 0xff 3a7bd3 x1 B2B",
        "capitalised": "Paris NASA US Élan THE _Name",
    }.items():
        assert {kind_of_word(word) for word in examples.split()} == {kind}


def test_words_are_folded_by_case_and_english_inflection():
    for one, other in (
        ("Walking", "walks"),
        ("CITIES", "city"),
        ("Straße", "STRASSE"),
        ("Élan", "élan"),
    ):
        assert fold_word(one) == fold_word(other)
    for one, other in (("x1", "x"), ("cat", "car"), ("élans", "élan"), ("a_s", "a_")):
        assert fold_word(one) != fold_word(other)


PIECES = [
    *(
        b"the",
        b" The",
        b" cat",
        b"Cat",
        b"s",
        b" run",
        b"ning",
        b"_",
        b"x",
        b"X",
        b"7",
        b" 19",
        b".",
    ),
    *(
        b" ",
        b"\n",
        b"(",
        b")",
        b"[",
        b"])",
        b"()",
        b"\xc3",
        b"\xa9",
        b" \xc3\xa9",
        b"\xe2\x80",
        b"\x9c",
        b"-",
        END,
        b"a.B",
        b"' c",
    ),
    *(b'"', b"'", "”".encode(), "„".encode(), "’".encode(), "‚".encode()),
]


def words_reference(sequence: list[bytes], counts: list[int]) -> list[tuple]:
    """The rows of one sequence, from loops over its characters, document by document."""
    runs: list[
        tuple[str, int, int, bool]
    ] = []  # text, the first and last byte of the sequence, whether it begins a sentence
    at, document = 0, b""
    for piece in [*sequence, END]:
        if piece != END:
            document += piece
            continue
        ended, goes_on = True, False
        for character in document.decode("utf-8", "surrogateescape"):
            size, category = (
                len(character.encode("utf-8", "surrogateescape")),
                unicodedata.category(character)[0],
            )
            if category in "LNM" or character == "_":
                text, first, _, begins = runs.pop() if goes_on else ("", at, at, ended)
                runs.append((text + character, first, at + size, begins))
                ended, goes_on = ended and category not in "LN", True
            else:
                ended, goes_on = ended or character in ".!?…。！？\n\r\u2028\u2029", False
            at += size
        document = b""
    result, earlier, folds = [], [], []
    for word, first, last, begins in runs:
        if any(unicodedata.category(character)[0] in "LN" for character in word):
            kind = kind_of_word(word)
            kind = "plain" if kind == "capitalised" and begins else kind
            result.append((first, last, word in earlier, fold_word(word) in folds, kind))
            earlier.append(word)
            folds.append(fold_word(word))
    lengths = (0 if piece == END else len(piece) for piece in sequence)
    owner: list[int | None] = []
    for begin, end in itertools.pairwise(itertools.accumulate(lengths, initial=0)):
        numbers = (n for n, word in enumerate(result) if word[0] < end and word[1] > begin)
        owner.append(next(numbers, None) if end > begin else None)
    rows = []
    for place in range(1, len(sequence)):
        own_word, of_word = owner[place], (False, False, None, None)
        if own_word is not None:
            places = range(1, len(sequence))
            inside = [counts[p - 1] for p in places if owner[p] == owner[p - 1] == own_word]
            _, _, is_in, is_folded, kind = result[own_word]
            of_word = (is_in, is_folded, min(inside, default=None), kind)
        in_quotes = (place in quotes(sequence, 0), place in quotes(sequence, 1))
        rows.append((*of_word, *brackets(sequence, place), *in_quotes))
    return rows


def quotes(sequence: list[bytes], end: int) -> set[int]:
    """The tokens that open a quotation which a later one closes, or none (`end` 0), or close one
    that an earlier one opened (1)."""
    tokens, first = set(), 0
    for is_end, run in itertools.groupby(sequence, key=lambda piece: piece == END):
        pieces = list(run)
        if not is_end:
            owner = [first + number for number, piece in enumerate(pieces) for _ in piece]
            for pair in quotations(b"".join(pieces).decode("utf-8", "surrogateescape")):
                places = [None if byte is None else owner[byte] for byte in pair]
                if places[0] != places[1]:
                    tokens.add(places[end])
        first += len(pieces)
    return tokens


def quotations(text: str) -> list[list[int | None]]:
    """Of each pair of quote marks where their bytes begin, None for a mark that is missing."""
    pairs, left = [], []
    for place, mark in enumerate(text):
        before, after = text[:place][-1:], text[place + 1 :][:1]
        in_word = [bool(side) and (side.isalnum() or side == "_") for side in (before, after)]
        opens = mark in "“„‚" or (mark in "\"'" and not in_word[0] and not after.isspace())
        closes = mark in "“”" or (
            mark in "’\"'" and not in_word[1] and not (mark != "’" and before.isspace())
        )
        byte = len(text[:place].encode("utf-8", "surrogateescape"))
        own = {"“": "„", "”": "“„", "’": "‚", '"': '"', "'": "'"}.get(mark, "")
        match = [number for number, (open_mark, _) in enumerate(left) if open_mark in own]
        if match and closes:
            left[match[-1]][1][1] = byte
            del left[match[-1] :]
        elif not match and opens:
            pairs.append([byte, None])
            left.append((mark, pairs[-1]))
    return pairs


def brackets(sequence: list[bytes], place: int) -> tuple[bool, bool]:
    """Whether the token at a place opens a bracket that it does not close, and whether it closes
    one that is open before it."""
    stack, opened, closed, closes_earlier = [], 0, 0, False
    for number, piece in enumerate(sequence[: place + 1]):
        if piece == END:
            stack = []
            continue
        for byte in piece.decode("latin-1"):
            if byte in "([":
                stack.append(("()[]"["([".index(byte) * 2 + 1], number))
                opened += number == place
            elif byte in ")]" and any(shape == byte for shape, _ in stack):
                while (top := stack.pop())[0] != byte:
                    pass
                closed += top[1] == number == place
                closes_earlier |= number == place and top[1] < place
    return opened > closed, closes_earlier


@settings(max_examples=150)
# a paragraph separator in two ids
@example(
    sequences=[[b"the", b"\xe2\x80", b"\xa9", b"X"]],
    random=Random(0),
)
@given(
    st.lists(st.lists(st.sampled_from(PIECES), min_size=2, max_size=14), min_size=1, max_size=4),
    st.randoms(),
)
def test_any_text_has_the_labels_that_loops_over_its_characters_find(sequences, random):
    counts, expected = [], []
    for sequence in sequences:
        own = [random.randint(0, 9) for _ in sequence[1:]]
        counts += own
        expected += words_reference(sequence, own)
    result = labelled(sequences, counts)
    assert list(zip(*result.values(), strict=True)) == expected


MODELS = ("control:recall", ["control:bigram"])


@pytest.fixture(scope="module")
def slices(small_slices, tmp_path_factory):
    """A slice directory of this file's own."""
    return Path(shutil.copytree(small_slices, tmp_path_factory.mktemp("words") / "slices"))


def test_the_table_is_made_on_demand_reused_and_made_again_for_another_definition(
    slices,
    tmp_path,
    monkeypatch,
):
    path = slices / "words.parquet"
    path.unlink(missing_ok=True)
    attribution.gap(
        *MODELS,
        slices,
        tmp_path / "none",
        question=attribution.GapQuestion(parse_slices(["first_rare"])),
    )
    assert not path.exists()
    given_ = parse_slices(["rare_word", "mine=word_kind = 'plain' AND NOT closes_bracket"])
    tables = attribution.gap(
        *MODELS,
        slices,
        tmp_path / "a",
        question=attribution.GapQuestion(given_),
    )
    before = path.stat().st_mtime_ns
    again = attribution.gap(
        *MODELS,
        slices,
        tmp_path / "b",
        question=attribution.GapQuestion(given_),
    )
    assert path.stat().st_mtime_ns == before
    assert again.gap.equals(tables.gap)
    rows = pq.read_table(slices / "tokens.parquet")
    own = pq.read_table(path)
    assert own.num_rows == rows.num_rows
    for name in own.column_names:
        rows = rows.append_column(name, own[name])
    max_count = open_tokens(slices / "tokens.parquet").max_count
    result = {
        slice_.name: int(mask.sum())
        for slice_, mask in zip(given_, members(given_, rows, max_count), strict=True)
    }
    assert min(result.values()) > 0
    assert {
        name: tables.gap.filter(source="ALL", slice=name)["tokens"][0] for name in result
    } == result
    monkeypatch.setattr(words, "_VERSION", words._VERSION + 1)
    make_words(slices)
    assert path.stat().st_mtime_ns != before
    monkeypatch.undo()
    with pytest.raises(UserError, match="words of other tokens"):
        open_tokens(slices / "tokens.parquet").words(["word_kind"])
    path.unlink()
    with pytest.raises(UserError, match="slices of words need this table"):
        open_tokens(slices / "tokens.parquet").words(["word_kind"])
    make_words(slices)


@pytest.fixture
def copied(slices, tmp_path):
    """The slice directory, with its files as links, one of which a test may replace."""
    make_words(slices)
    for path in slices.glob("*.*"):
        os.link(path, tmp_path / path.name)
    return tmp_path


def test_what_cannot_be_read_is_one_line(copied, monkeypatch):
    from recallkit.text.tokenizers import TextTokenizer

    (copied / "words.parquet").unlink()
    (copied / "words.parquet").write_bytes(b"my own file")
    with pytest.raises(UserError, match="changed since it was written"):
        make_words(copied)
    (copied / "words.parquet").unlink()
    monkeypatch.setattr(TextTokenizer, "document_text", None)
    with pytest.raises(UserError, match="are not bytes of the text"):
        make_words(copied)
    (copied / "sequences.parquet").unlink()
    with pytest.raises(UserError, match="no such table"):
        make_words(copied)
