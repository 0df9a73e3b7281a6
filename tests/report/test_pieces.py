"""What ids show: the text, whole characters where they end, and bytes where a character is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recallkit.report.pieces import Pieces, parts_of

from recallkit.text.tokenizers import load_tokenizer


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places})
    return [data[start:stop] for start, stop in zip([0, *ends], [*ends, len(data)], strict=True)]


def slowly(pieces: list[bytes]) -> list[list[str | int]]:
    """The same by the decoder of Python: characters one by one, each given to the piece of its last byte."""
    found: list[list[str | int]] = [[] for _ in pieces]
    owner = [number for number, piece in enumerate(pieces) for _ in piece]
    joined, place = b"".join(pieces), 0
    for character in joined.decode(errors="surrogateescape"):
        is_byte = "\udc80" <= character <= "\udcff"
        size = 1 if is_byte else len(character.encode())
        last = owner[place + size - 1]
        for at in range(place, place + size):
            if is_byte or owner[at] != last:
                found[owner[at]].append(joined[at])
        if not is_byte:
            row = found[last]
            if row and isinstance(row[-1], str):
                row[-1] += character
            else:
                row.append(character)
        place += size
    return found


@given(st.one_of(st.text(), st.text(alphabet="é中👩\u200d ").map(str)).map(str.encode), st.lists(st.integers(0, 200), max_size=30))
def test_text_cut_anywhere_shows_the_text(data, places):
    pieces = cut(data, places)
    shown = list(parts_of(pieces))
    assert "".join(part for parts in shown for part in parts if isinstance(part, str)) == data.decode()
    assert shown == slowly(pieces)
    assert all(parts for parts, piece in zip(shown, pieces, strict=True) if piece), "a token that shows nothing"


@given(
    st.lists(st.sampled_from([0x41, 0xC3, 0xA9, 0xE4, 0xB8, 0xAD, 0xF0, 0x9F, 0x91, 0xFF, 0xED, 0xA0, 0x80, 0xC0])).map(bytes),
    st.lists(st.integers(0, 40)),
)
def test_bytes_that_are_no_text_are_shown_as_bytes(data, places):
    pieces = cut(data, places)
    assert list(parts_of(pieces)) == slowly(pieces)


@pytest.mark.parametrize("name", ["bytes", None])
def test_among_others_and_alone(name):
    tokenizer = load_tokenizer(name)
    pieces = Pieces(tokenizer)
    text = "a 👩‍👩‍👧 naïve 中文\n"
    ids = tokenizer.encode([text])[0].tolist()
    otherwise = dict(pieces.otherwise(ids))
    shown = [otherwise.get(place, pieces.alone(index)) for place, index in enumerate(ids)]
    parts = [part for entry in shown for part in (entry if isinstance(entry, list) else [entry])]
    assert "".join(part for part in parts if isinstance(part, str)) == text
    assert pieces.end == (-1 if name == "bytes" else tokenizer.end_token_id), "of bytes the end token is a newline like any other"
    assert pieces.alone(10**6) == 10**6, "an id past the vocabulary, as models with a padded head predict"


def test_pieces_without_bytes_of_their_own(tmp_path):
    from tokenizers import Tokenizer, models

    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordPiece({"[UNK]": 0, "</s>": 1, "recall": 2, "##s": 3}, unk_token="[UNK]")).save(str(path))
    pieces = Pieces(load_tokenizer(str(path)))
    assert not pieces.has_bytes
    assert [pieces.alone(index) for index in (2, 3, 1, 9)] == ["recall", "##s", "</s>", 9]
    assert pieces.otherwise([2, 3]) == []
