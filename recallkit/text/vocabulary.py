"""What the entries of a vocabulary mean: the bytes of every id, joined into text; and the
vocabulary of bytes itself.

Two tokenizers share no ids, but their texts consist of the same bytes, so lengths and positions are
compared in bytes. Works on the settings of a tokenizer.json (`settings` below), whatever program
wrote it.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import tokenizers

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_PIECE = "▁"
"""How SentencePiece and its likes write a space: in a text the two are the same to them."""
_NO_BYTE = "\u2400"
"""In place of a character that is not in the byte-level alphabet; like those beyond it, this cannot
be encoded as Latin-1."""


def byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable bytes represent themselves, the others are
    code points from 256."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def byte_backend() -> tokenizers.Tokenizer:
    """A tokenizer whose ids are the bytes of UTF-8: 256 entries, no merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    backend = Tokenizer(models.BPE(byte_level_alphabet(), []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def is_byte_level(settings: Mapping[str, Any]) -> bool:
    """Whether pieces are written in the alphabet of byte-level BPE."""
    return (settings.get("decoder") or {}).get("type") == "ByteLevel"


def piece_bytes(
    settings: Mapping[str, Any],
    vocab: Mapping[str, int],
    added: Mapping[int, str],
) -> list[bytes] | None:
    """The bytes of every id; None if pieces have no bytes of their own (WordPiece, whole words
    ...).

    `vocab` maps pieces to ids, `added` the ids of added tokens to their text. Supported are
    byte-level vocabularies, and those that write a space as "▁" like SentencePiece, with or without
    `<0xNN>` for single bytes. An id without a piece has no bytes.
    """
    if is_byte_level(settings):
        to_bytes: dict[int, Any] = dict.fromkeys(range(256), _NO_BYTE)
        to_bytes |= {ord(character): byte for character, byte in byte_level_alphabet().items()}

        def read(piece: str) -> bytes:
            try:
                return piece.translate(to_bytes).encode("latin-1")
            except UnicodeEncodeError:
                return piece.encode()

        by_index = {index: read(piece) for piece, index in vocab.items()}
        by_index |= {index: text.encode() for index, text in added.items()}
    elif _writes_spaces_as_pieces(settings):
        has_bytes = _has_byte_pieces(settings)
        pieces = {index: piece for piece, index in vocab.items()} | dict(added)
        by_index = {}
        for index, piece in pieces.items():
            by_index[index] = _sentencepiece_bytes(piece, has_bytes=has_bytes)
    else:
        return None
    return [by_index.get(index, b"") for index in range(max(by_index, default=-1) + 1)]


def _sentencepiece_bytes(piece: str, *, has_bytes: bool) -> bytes:
    byte = _BYTE_PIECE.fullmatch(piece) if has_bytes else None
    return bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE_PIECE, " ").encode()


def _writes_spaces_as_pieces(settings: Mapping[str, Any]) -> bool:
    """Whether the decoder turns "▁" into a space."""
    for part in _parts(settings.get("decoder"), "decoders"):
        replaced, content = part.get("pattern"), part.get("content")
        is_replaced = replaced == {"String": SPACE_PIECE} and content == " "
        if part["type"] == "Replace" and is_replaced:
            return True
        if part["type"] == "Metaspace" and part.get("replacement") == SPACE_PIECE:
            return True
    return False


def _has_byte_pieces(settings: Mapping[str, Any]) -> bool:
    types = {part["type"] for part in _parts(settings.get("decoder"), "decoders")}
    return "ByteFallback" in types or bool(settings.get("model", {}).get("byte_fallback"))


def _parts(setting: Mapping[str, Any] | None, name: str) -> Iterator[Mapping[str, Any]]:
    """A normaliser, pre-tokenizer or decoder as a list: itself, or the members (under `name`) of a
    sequence of them."""
    if setting is not None and setting["type"] == "Sequence":
        for part in setting[name]:
            yield from _parts(part, name)
    elif setting is not None:
        yield setting


def longest_growth(setting: Mapping[str, Any]) -> int:
    """The largest factor by which replacements of a normaliser or decoder can lengthen a text."""
    growth = 1
    for part in (*_parts(setting, "normalizers" if "normalizers" in setting else "decoders"),):
        added = part.get("content") if part["type"] == "Replace" else part.get("prepend")
        growth *= max(1, len(added)) if isinstance(added, str) else 1
    return growth


def gives_text_once(post_processor: Mapping[str, Any]) -> bool:
    """Whether a post-processor leaves the ids of a single text as they are.

    Special tokens are not of the text.
    """
    for part in _parts(post_processor, "processors"):
        if part["type"] == "TemplateProcessing":
            times = sum("Sequence" in piece for piece in part["single"])
            if times != 1:
                return False
    return True


def without_first_space(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the same tokenizer without the space before a text's first word, for text
    that continues a document."""
    changed: dict[str, Any] = copy.deepcopy(
        {name: value for name, value in settings.items() if name != "model"},
    )
    changed["normalizer"] = _without_prepend(changed.get("normalizer"))
    for part in _parts(changed.get("pre_tokenizer"), "pretokenizers"):
        _change_part(part)
    return {**changed, "model": settings["model"]}


def _without_prepend(normalizer: Any) -> Any:
    if normalizer is None or normalizer["type"] == "Prepend":
        return None
    if normalizer["type"] == "Sequence":
        parts = map(_without_prepend, normalizer["normalizers"])
        return {**normalizer, "normalizers": [part for part in parts if part is not None]}
    return normalizer


def _change_part(part: Any) -> None:
    """Switches off the leading space of a pre-tokenizer, in place."""
    if part["type"] == "Metaspace":
        part["prepend_scheme"] = "never"
    if part["type"] == "ByteLevel":
        part["add_prefix_space"] = False


_LOSSLESS = {"NFC", "NFD", "Prepend", "ByteLevel", "Metaspace", "Digits", "UnicodeScripts"}
"""Normalisers and pre-tokenizers that leave out nothing."""
_OF_UTF8 = {*range(0xF5)} - {0xC0, 0xC1}
"""Bytes that UTF-8 has: vocabularies often have no others."""


def keeps_text(settings: Mapping[str, Any], vocab: Mapping[str, int]) -> bool:
    """Whether every text can be decoded again: nothing is left out, every byte has an entry."""
    parts = [
        *_parts(settings.get("normalizer"), "normalizers"),
        *_parts(settings.get("pre_tokenizer"), "pretokenizers"),
    ]
    for part in parts:
        is_space = part.get("pattern") == {"String": " "} and part.get("content") == SPACE_PIECE
        splits = part["type"] in ("Split", "Punctuation") and part.get("behavior") != "Removed"
        if part["type"] not in _LOSSLESS and not is_space and not splits:
            return False
    if settings["model"]["type"] not in ("BPE", "Unigram"):  # others do not join bytes to words
        return False
    if any(part["type"] == "ByteLevel" for part in parts):
        pieces = {sign for sign, byte in byte_level_alphabet().items() if byte in _OF_UTF8}
        return pieces <= vocab.keys()
    pieces = {f"<0x{byte:02X}>" for byte in _OF_UTF8}
    return bool(settings["model"].get("byte_fallback")) and pieces <= vocab.keys()


class PieceTable:
    """The bytes of every id, as `piece_bytes` gives them, for many ids at once."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        import pyarrow as pa

        self._pieces = pa.array(pieces, pa.large_binary())
        self.lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        """Bytes of each id, int64 (vocab,)."""

    def join(self, ids: np.ndarray) -> tuple[memoryview, np.ndarray]:
        """The bytes of `ids` (n,) joined, and where each begins, then where the last one ends:
        int64 (n + 1,)."""
        import pyarrow as pa

        if not len(ids):
            return memoryview(b""), np.zeros(1, np.int64)
        _, bounds, joined = self._pieces.take(pa.array(ids)).buffers()
        content = memoryview(b"" if joined is None else joined)
        return content, np.frombuffer(bounds, np.int64)[: len(ids) + 1]


class DocumentText:
    """The bytes of text that ids represent in a stream of documents.

    Two things are not text there: the end token between documents (`end_symbol`; None if it is an
    ordinary piece of text), and, with `adds_space`, the space that the tokenizer puts before a
    document's first word.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        end_symbol: int | None,
        *,
        adds_space: bool,
    ) -> None:
        self._table = PieceTable(
            [b"" if index == end_symbol else piece for index, piece in enumerate(pieces)],
        )
        self._end_symbol = end_symbol
        self._begins_with_space = None
        if adds_space:
            self._begins_with_space = np.array([piece.startswith(b" ") for piece in pieces])

    def is_end(self, ids: np.ndarray) -> np.ndarray:
        """Which of `ids` are end tokens that are not text."""
        return np.zeros(len(ids), bool) if self._end_symbol is None else ids == self._end_symbol

    def lengths(self, ids: np.ndarray, previous: np.ndarray) -> np.ndarray:
        """Bytes of text of each id, int64 (n,); `previous` is the id before each."""
        lengths: np.ndarray = self._table.lengths[ids]
        added = self._has_added_space(ids, previous)
        return lengths if added is None else lengths - added

    def join(self, ids: np.ndarray, previous: np.ndarray) -> bytes:
        """The text of `ids`, as bytes; `previous` is the id before each."""
        joined, bounds = self._table.join(ids)
        added = self._has_added_space(ids, previous)
        if added is None or not added.any():
            return bytes(joined)
        return np.delete(np.frombuffer(joined, np.uint8), bounds[:-1][added]).tobytes()

    def _has_added_space(self, ids: np.ndarray, previous: np.ndarray) -> np.ndarray | None:
        if self._begins_with_space is None:
            return None
        added: np.ndarray = self._begins_with_space[ids] & self.is_end(previous)
        return added
