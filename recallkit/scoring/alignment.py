"""One text, two tokenizers: the ids that another tokenizer reads in place of given ids, and its
NLLs aligned to the given ids.

Labels and slices refer to the tokenizer they were made with, the reference. A model with another
tokenizer reads the same bytes: each sequence's first id is context for both, and what follows is
encoded separately, so that both predict exactly the same bytes. The NLL of each id of the other
tokenizer is assigned to the reference token in which the id ends; these spans partition the text,
so that the NLL of every sequence is unchanged. Example: for reference tokens "ab|c" and other ids
"a|bc", the NLL of "a" goes to "ab", and that of "bc" to "c".

Positions are measured in units: each byte of text is one, and so is an end token, which is not text
and becomes the other's end token. What follows an end token is a document and is encoded as one: a
tokenizer that puts a space before the first word does so there, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from recallkit.display import console
from recallkit.errors import UserError
from recallkit.scoring.scores import SequenceScores
from recallkit.storage import parquet_files, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from recallkit.text.encoding import Encoder
    from recallkit.text.tokenizers import TextTokenizer
    from recallkit.text.vocabulary import DocumentText

_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class TranslationCounts:
    """Statistics of a translation, to be summed and reported.

    num_own_ids: ids of the other tokenizer whose NLLs are aligned. num_bytes: bytes of text that
    they represent.
    num_inexact: reference tokens whose two ends are not both boundaries of the other's ids.
    num_without_id: those of them in which none of its ids ends, so that their NLL is 0. num_texts:
    pieces of text encoded; num_approximate_texts: those that the other tokenizer changes (lower
    case, normal forms ...), where offsets are at whole characters.
    num_replaced_bytes: bytes of divided characters that the other has no ids for: each run of them
    is read as one U+FFFD.
    """

    num_own_ids: int = 0
    num_bytes: int = 0
    num_inexact: int = 0
    num_without_id: int = 0
    num_texts: int = 0
    num_approximate_texts: int = 0
    num_replaced_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Translation:
    """The other tokenizer's ids in place of reference ids, with n predicted ids of the reference
    and m of the other.

    ids: uint32, flat; sequence i is `ids[offsets[i]:offsets[i + 1]]`, its first id is context only;
    it has at least two.
    owner: int64 (m,), the reference prediction (flat, from 0) in which each predicted id ends; -1
    for one that ends in the context, or in a sequence with nothing to predict. Non-decreasing apart
    from the -1.
    last: int64 (n,), the last predicted id (flat) that ends in each reference prediction; if none
    does, the next one.
    exact: bool (n,), whether a reference token begins and ends at boundaries of the other's ids.
    """

    ids: np.ndarray
    offsets: np.ndarray
    owner: np.ndarray
    last: np.ndarray
    exact: np.ndarray
    counts: TranslationCounts


def align(translation: Translation, scores: SequenceScores) -> SequenceScores:
    """Aligns the scores of the other's ids to the reference tokens; the NLL of each sequence is
    unchanged.

    nll: the sum over the ids that end in the token (in float64, rounded once); 0 if none does.
    rank: the worst of these ids' ranks; -1 if there is none. argmax: always -1, because another
    vocabulary has no argmax among these tokens. context: the ids that the model had seen before the
    last of them; if there is none, before the one that covers the token. exact: whether the token
    begins and ends at boundaries of the other's ids.
    """
    owner, num_tokens = translation.owner, len(translation.exact)
    assert len(scores.nll) == len(scores.rank) == len(owner)
    owned = owner >= 0
    rank = np.full(num_tokens, -1, np.int32)
    np.maximum.at(rank, owner[owned], scores.rank[owned])
    return SequenceScores(
        np.bincount(owner[owned], weights=scores.nll[owned], minlength=num_tokens).astype(
            np.float32
        ),
        np.full(num_tokens, -1, np.int32),
        rank,
        scores.context[translation.last].astype(np.int32),
        translation.exact,
    )


class Translator:
    """Translates ids of the `reference` tokenizer into ids of `other`.

    With `fast`, gigatoken encodes if it gives the same ids; `notify` gets the reason if it does
    not. Raises UserError if the reference's pieces have no bytes of their own.
    """

    def __init__(
        self,
        reference: TextTokenizer,
        other: TextTokenizer,
        *,
        fast: bool = True,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        text = reference.document_text
        if text is None:
            raise UserError(
                (
                    "its pieces are not bytes of the text, so that other tokenizers cannot be "
                    "aligned to them"
                ),
                where=reference.name,
                remedy=(
                    "slice with a byte-level or SentencePiece tokenizer, or score models of this "
                    "tokenizer only"
                ),
            )
        self._text: DocumentText = text
        self._end = np.array([other.end_token_id], np.uint32)
        self._inside = _Encoder(other.continuation, notify if fast else None)
        self._at_beginning = (
            self._inside
            if other.continuation is other
            else _Encoder(other, notify if fast else None)
        )
        self._id_of_byte = _ids_of_bytes(other)
        self._replacement = other.continuation.encode([_REPLACEMENT])[0]

    def translate(self, ids: np.ndarray, offsets: np.ndarray) -> Translation:
        """The other's sequences for sequences of reference ids: sequence i is
        `ids[offsets[i]:offsets[i + 1]]`.

        Each has at least two ids, the first of which is context only.
        """
        layout = _lay_out(self._text, ids, offsets)
        pieces = list(_pieces(layout))
        replaced = [piece for piece in pieces if piece.text is None and self._encode_bytes(piece)]
        texts = [piece for piece in pieces if piece.text is not None]
        num_approximate = self._encode_texts(texts)
        aligned = _align_units(layout, *_assemble(layout, pieces, self._end))
        owner = aligned.owner[aligned.owner >= 0]
        counts = TranslationCounts(
            num_own_ids=len(owner),
            num_bytes=int(layout.num_bytes[~layout.is_first].sum()),
            num_inexact=int(np.count_nonzero(~aligned.exact)),
            num_without_id=int(
                np.count_nonzero(np.bincount(owner, minlength=len(aligned.exact)) == 0)
            ),
            num_texts=len(texts),
            num_approximate_texts=num_approximate,
            num_replaced_bytes=sum(len(piece.data) for piece in replaced),
        )
        return replace(aligned, counts=counts)

    def _encode_texts(self, pieces: Sequence[_Piece]) -> int:
        """Encodes the texts; returns how many of them have approximate offsets."""
        num_approximate = 0
        for encoder in dict.fromkeys((self._inside, self._at_beginning)):
            chosen = [
                p
                for p in pieces
                if (self._at_beginning if p.begins_document else self._inside) is encoder
            ]
            for piece, (ids, stops, is_exact) in zip(
                chosen, encoder.encode([str(p.text) for p in chosen]), strict=True
            ):
                piece.ids, piece.stops = ids, stops
                num_approximate += not is_exact
        return num_approximate

    def _encode_bytes(self, piece: _Piece) -> bool:
        """Encodes an end token, or bytes that are not text; returns whether U+FFFD replaced the
        bytes."""
        if not piece.data:
            piece.ids, piece.stops = self._end, np.ones(1, np.int64)
            return False
        if all(byte in self._id_of_byte for byte in piece.data):
            piece.ids = np.array([self._id_of_byte[byte] for byte in piece.data], np.uint32)
            piece.stops = np.arange(1, len(piece.data) + 1)
            return False
        piece.ids, piece.stops = self._replacement, np.full(len(self._replacement), len(piece.data))
        return True


def open_translator(slices: Path, name: str, end_token: str | None) -> Translator:
    """From the tokens of a slice directory into those of the tokenizer of this name. Raises
    UserError as `Translator` does."""
    from recallkit.text.tokenizers import load_slices_tokenizer, load_tokenizer

    described = parquet_files.read_manifest(slices / "sequences.parquet", records.Sequences)[
        "tokenizer"
    ]
    other = load_tokenizer(name, end_token=end_token)
    return Translator(load_slices_tokenizer(slices, described), other, notify=console.note)


class _Encoder:
    """Encodes texts to ids and the byte offsets at which they end; if `notify` is None, with
    `tokenizers` only."""

    def __init__(self, tokenizer: TextTokenizer, notify: Callable[[str], None] | None) -> None:
        self._tokenizer = tokenizer
        self._notify = notify
        self._chosen: Encoder | None = None

    def encode(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray, bool]]:
        """For each text (none is empty) its ids, where they end (from 1, non-decreasing), and
        whether that is exact.

        Offsets are exact if the ids' own bytes make up the text: then they are sums of byte
        lengths. Otherwise they are at whole characters, as tracked by the tokenizer through its
        normalisation.
        """
        exact = self._encode_exactly(texts)
        others = [text for text, pair in zip(texts, exact, strict=True) if pair is None]
        tracked = iter(self._tokenizer.encode_with_stops(others))
        encoded = []
        for pair in exact:
            ids, stops = next(tracked) if pair is None else pair
            encoded.append((ids, np.maximum(stops, 1), pair is not None))
        return encoded

    def _encode_exactly(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray] | None]:
        table = self._tokenizer.piece_table
        if table is None or not texts:
            return [None] * len(texts)
        if self._chosen is None:
            self._chosen = (
                self._tokenizer.encode
                if self._notify is None
                else self._tokenizer.checked_encoder(texts, self._notify)
            )
        ids, offsets = self._chosen(texts)
        joined, bounds = table.join(ids)
        pairs: list[tuple[np.ndarray, np.ndarray] | None] = []
        for text, start, stop in zip(texts, offsets[:-1], offsets[1:], strict=True):
            begin, end, data = int(bounds[start]), int(bounds[stop]), text.encode()
            written = bytes(joined[begin:end])
            # the space that some tokenizers put before a document
            num_added = len(written) - len(data)
            is_text = written == data or (num_added == 1 and written == b" " + data)
            stops = bounds[start + 1 : stop + 1] - begin - num_added
            pairs.append((ids[start:stop], stops) if is_text else None)
        return pairs


def _ids_of_bytes(tokenizer: TextTokenizer) -> dict[int, int]:
    """The id of each byte that has an entry of its own in the vocabulary."""
    pieces = tokenizer.token_bytes or []
    return {
        piece[0]: index for index, piece in reversed(list(enumerate(pieces))) if len(piece) == 1
    }


@dataclass(frozen=True, slots=True)
class _Layout:
    """Reference ids with their positions in units: id i occupies [starts[i], stops[i]), sequence by
    sequence.

    data: all their text as bytes; num_bytes, int64: of each id, whose bytes are `data[byte_stops -
    num_bytes:byte_stops]`.
    """

    offsets: np.ndarray
    is_first: np.ndarray
    is_end: np.ndarray
    data: bytes
    num_bytes: np.ndarray
    byte_stops: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    begins_piece: np.ndarray
    """Ids at which a separately encoded piece begins: a context, what follows it, an end token,
    what follows that."""


def _lay_out(text: DocumentText, ids: np.ndarray, offsets: np.ndarray) -> _Layout:
    is_first = np.zeros(len(ids), bool)
    is_first[offsets[:-1]] = True
    # The text before a sequence is unknown: its first id is assumed to continue a document.
    previous = np.where(is_first, ids, np.roll(ids, 1))
    is_end = text.is_end(ids)
    num_bytes = text.lengths(ids, previous)
    # so that no position ends both a sequence and the next one's context
    widths = np.maximum(num_bytes, is_end | is_first)
    stops = np.cumsum(widths)
    begins_piece = is_first | is_end
    begins_piece[1:] |= begins_piece[:-1]
    return _Layout(
        offsets,
        is_first,
        is_end,
        text.join(ids, previous),
        num_bytes,
        np.cumsum(num_bytes),
        stops - widths,
        stops,
        begins_piece,
    )


@dataclass(slots=True, eq=False)
class _Piece:
    """A span of a sequence that is encoded separately: text, bytes that are not text, or (without
    data) an end token.

    `begin`: its position in units. `ids` and `stops` (where they end, counted from `begin`) are
    filled in later.
    """

    sequence: int
    begin: int
    data: bytes
    text: str | None
    begins_document: bool = False
    ids: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint32))
    stops: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


def _pieces(layout: _Layout) -> Iterator[_Piece]:
    """All pieces to be encoded, in order."""
    firsts = np.flatnonzero(layout.begins_piece)
    lasts = np.append(firsts[1:], len(layout.starts)) - 1
    sequences = np.cumsum(layout.is_first)[firsts] - 1
    after_end = layout.is_end[firsts - 1] & ~layout.is_first[firsts]
    byte_starts = (layout.byte_stops - layout.num_bytes)[firsts]
    columns = (
        sequences,
        layout.starts[firsts],
        byte_starts,
        layout.byte_stops[lasts],
        layout.is_end[firsts],
        after_end,
    )
    for sequence, begin, byte_start, byte_stop, is_end, begins_document in zip(
        *(c.tolist() for c in columns), strict=True
    ):
        if is_end:
            yield _Piece(sequence, begin, b"", None)
            continue
        for place, data, text in _runs(layout.data[byte_start:byte_stop]):
            yield _Piece(
                sequence, begin + place, data, text, begins_document=begins_document and not place
            )


def _runs(data: bytes) -> Iterator[tuple[int, bytes, str | None]]:
    """Runs of valid UTF-8 and of other bytes, each with its position; the text of the latter is
    None."""
    start = broken = (
        0  # data from `start` on is unread, bytes from `broken` to `start` are not text
    )
    while start < len(data):
        try:
            str(data[start:], "utf-8")
            stop = end = len(data)
        except UnicodeDecodeError as error:
            stop, end = start + error.start, start + error.end
        if start < stop:
            if broken < start:
                yield broken, data[broken:start], None
            yield start, data[start:stop], str(data[start:stop], "utf-8")
            broken = stop
        start = end
    if broken < len(data):
        yield broken, data[broken:], None


def _assemble(
    layout: _Layout, pieces: Sequence[_Piece], end: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pieces as sequences: flat ids, the position in units at which each ends, offsets.

    A sequence whose context has no ids, or that has nothing to predict, gets an end token there.
    """
    contexts = layout.stops[layout.offsets[:-1]].tolist()
    by_sequence: list[list[_Piece]] = [[] for _ in contexts]
    for piece in pieces:
        by_sequence[piece.sequence].append(piece)
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    lengths = []
    for those, context in zip(by_sequence, contexts, strict=True):
        before = len(parts)
        filler = (end, np.array([context]))
        if not any(len(piece.ids) for piece in those if piece.begin < context):
            parts.append(filler)
        parts += [(piece.ids, piece.begin + piece.stops) for piece in those]
        if sum(len(ids) for ids, _ in parts[before:]) < 2:
            parts.append(filler)
        lengths.append(sum(len(ids) for ids, _ in parts[before:]))
    ids = np.concatenate([ids for ids, _ in parts]).astype(np.uint32, copy=False)
    return ids, np.concatenate([stops for _, stops in parts]), np.cumsum([0, *lengths])


def _align_units(
    layout: _Layout, ids: np.ndarray, stops: np.ndarray, offsets: np.ndarray
) -> Translation:
    """Compares the positions at which the other's ids end (`stops`, non-decreasing) with those of
    reference ids."""
    is_first, predicted = layout.is_first, ~layout.is_first
    # the index of each reference id among the predictions
    number = np.where(is_first, -1, np.cumsum(predicted) - 1)
    id_of_unit = np.repeat(np.arange(len(is_first)), layout.stops - layout.starts)
    owner = number[id_of_unit[stops - 1]]
    owner[offsets[:-1]] = -1

    # number of ids that end at or before each position
    ended = np.cumsum(np.bincount(stops, minlength=len(id_of_unit) + 1))
    last = (ended[layout.stops] - 1)[predicted]
    sequence = (np.cumsum(is_first) - 1)[predicted]
    last = np.clip(
        np.where(owner[last] == number[predicted], last, last + 1),
        offsets[sequence] + 1,
        offsets[sequence + 1] - 1,
    )
    return Translation(
        ids=ids,
        offsets=offsets,
        owner=np.delete(owner, offsets[:-1]),
        last=last - sequence - 1,
        exact=_is_exact(layout, stops)[predicted],
        counts=TranslationCounts(),
    )


def _is_exact(layout: _Layout, stops: np.ndarray) -> np.ndarray:
    """Which reference ids begin and end at boundaries of the other's ids, or where a separately
    encoded piece begins."""
    ends = np.zeros(layout.stops[-1] + 1, bool)
    ends[stops] = True
    begins = ends.copy()
    begins[layout.starts[layout.begins_piece]] = True
    exact: np.ndarray = ends[layout.stops] & begins[layout.starts] & (layout.stops > layout.starts)
    return exact
