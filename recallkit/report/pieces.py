"""How the ids of a text are displayed: as text if they are whole characters, as bytes if a character is divided.

A character whose bytes are in several tokens is shown in the last of them, and the others show their bytes: read from token to
token this gives the text, and no token is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recallkit.text.tokenizers import TextTokenizer

    Shown = str | int | list[str | int]

_CONTINUATION = range(0x80, 0xC0)


class Pieces:
    """The display of a tokenizer's ids on a page.

    `Shown` is text, or a list of texts and single bytes (integers), or, for an id without a piece, the id itself.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = tokenizer.token_bytes
        self.has_bytes = self._bytes is not None
        text = tokenizer.document_text
        is_text = text is not None and not text.is_end(np.array([tokenizer.end_token_id]))[0]
        self.end = -1 if is_text else tokenizer.end_token_id
        """The id that ends documents; -1 if it is an ordinary piece of text."""

    def alone(self, index: int) -> Shown:
        """The display of a single id."""
        if self._bytes is None:
            return self._tokenizer.backend.id_to_token(index) or index
        piece = self._bytes[index] if index < len(self._bytes) else b""
        return _simple(next(parts_of([piece]))) if piece else index

    def otherwise(self, ids: Sequence[int]) -> list[tuple[int, Shown]]:
        """The positions in `ids` that are displayed differently in context than alone, and their display."""
        if self._bytes is None:
            return []
        pieces = [self._bytes[index] if index < len(self._bytes) else b"" for index in ids]
        if all(map(_is_text, set(pieces))):
            return []
        shown = zip(ids, pieces, parts_of(pieces), strict=True)
        # An id that is text by itself is the same text in context.
        return [
            (place, _simple(parts))
            for place, (index, piece, parts) in enumerate(shown)
            if piece and not _is_text(piece) and _simple(parts) != self.alone(index)
        ]


def parts_of(pieces: Sequence[bytes]) -> Iterator[list[str | int]]:
    """For each piece of a text, the characters that end in it as text, and its remaining bytes as integers."""
    joined = b"".join(pieces)
    ends = _character_ends(joined)
    start = 0
    for piece in pieces:
        stop = start + len(piece)
        parts: list[str | int] = []
        place = start
        while place < stop:
            end, length = ends.get(place, (place + 1, 0))
            if length and end <= stop:
                parts = _joined(parts, joined[end - length : end].decode())
                place = end
            else:
                parts.append(joined[place])
                place += 1
        yield parts
        start = stop


def _character_ends(joined: bytes) -> dict[int, tuple[int, int]]:
    """For each byte of a complete character: where the character ends, and how many bytes it has."""
    found: dict[int, tuple[int, int]] = {}
    place = 0
    while place < len(joined):
        stop = place + 1
        while stop < len(joined) and joined[stop] in _CONTINUATION and stop < place + 4:
            stop += 1
        for end in range(stop, place, -1):
            if _is_text(joined[place:end]):
                found.update(dict.fromkeys(range(place, end), (end, end - place)))
                stop = end
                break
        else:
            stop = place + 1
        place = stop
    return found


def _joined(parts: list[str | int], text: str) -> list[str | int]:
    last = parts[-1] if parts else None
    return [*parts[:-1], last + text] if isinstance(last, str) else [*parts, text]


def _simple(parts: list[str | int]) -> Shown:
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
