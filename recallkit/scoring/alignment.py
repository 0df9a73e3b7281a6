"""One text, two tokenizers: what another tokenizer reads in place of given ids, and its scores carried back to them.

Labels and slices stay on the tokenizer they were made with, the reference. A model with another one reads the same bytes
from the same place on: each sequence's first id is context for both, and what follows is encoded anew, on its own, so
that both predict exactly the same bytes. The other's NLL belongs to the reference token in which its id ends; these
spans part the text, so that the NLL of every sequence stays what it is.

Places are counted in units: a byte of text is one, and so is an end token, which is no text and becomes the other's end
token. What begins after an end token is a document, and is encoded as one: a tokenizer that puts a space before a first
word does so there, and nowhere else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from recallkit.text.tokenizers import TextTokenizer
    from recallkit.text.vocabulary import DocumentText

_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class TranslationCounts:
    """What a translation met, to be added up and reported.

    num_own_ids: ids of the other tokenizer whose NLLs are carried. num_bytes: bytes of text that they stand for.
    num_inexact: reference tokens whose two ends are not both ends of the other's ids. num_without_id: those among them in
    which none of its ids ends, so that their NLL is 0. num_texts: pieces of text encoded; num_approximate_texts: those that
    the other tokenizer changes (lower case, normal forms ...), where places are those of whole characters.
    num_replaced_bytes: bytes of characters cut in two that the other has no ids for: their run is read as one U+FFFD.
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
    """The other tokenizer's ids in place of reference ids, with n predictions of the reference and m of the other.

    ids: uint32, flat; sequence i is `ids[offsets[i]:offsets[i + 1]]`, its first id is context only; it has at least two.
    owner: int64 (m,), the reference prediction (flat, from 0) in which each predicted id ends; -1 for one that ends in
    the context, or stands where there is nothing to predict. Never falls, the -1 left out.
    last: int64 (n,), the last predicted id (flat) that ends in each reference prediction; where none does, the next.
    exact: bool (n,), whether a reference token begins and ends where ids of the other do.
    """

    ids: np.ndarray
    offsets: np.ndarray
    owner: np.ndarray
    last: np.ndarray
    exact: np.ndarray
    counts: TranslationCounts

    def facts(self) -> dict[str, int]:
        """The counts by name."""
        return asdict(self.counts)


class OwnScores(Protocol):
    """Scores of a translation's sequences, flat over predicted ids: `nll` in nats, `rank` (0 = best)."""

    @property
    def nll(self) -> np.ndarray: ...  # noqa: D102

    @property
    def rank(self) -> np.ndarray: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class AlignedScores:
    """Scores of reference tokens by a model with another tokenizer, flat over predictions.

    nll: float32 nats, the sum over the ids that end in the token; 0 where none does. rank: int32, the worst of these ids'
    ranks; -1 where there is none. argmax: int32, always -1, another vocabulary has no argmax among these tokens. context:
    int32, the ids that the model had seen before the last of them; where there is none, before the one that covers it.
    exact: bool, whether the token begins and ends where ids of the other do.
    """

    nll: np.ndarray
    argmax: np.ndarray
    rank: np.ndarray
    context: np.ndarray
    exact: np.ndarray


def align(translation: Translation, scores: OwnScores, context: np.ndarray | None = None) -> AlignedScores:
    """Scores of the other's ids as scores of reference tokens; the NLL of each sequence stays what it is.

    Summed in float64 and rounded once. `context`, int32 (m,): the ids that the model had seen before each predicted one,
    all before it in its sequence if not given.
    """
    owner, num_tokens = translation.owner, len(translation.exact)
    assert len(scores.nll) == len(scores.rank) == len(owner)
    owned = owner >= 0
    rank = np.full(num_tokens, -1, np.int32)
    np.maximum.at(rank, owner[owned], scores.rank[owned])
    seen = _positions(translation.offsets) if context is None else context
    return AlignedScores(
        np.bincount(owner[owned], weights=scores.nll[owned], minlength=num_tokens).astype(np.float32),
        np.full(num_tokens, -1, np.int32),
        rank,
        seen[translation.last].astype(np.int32),
        translation.exact,
    )


def _positions(offsets: np.ndarray) -> np.ndarray:
    """The number of ids before each predicted one in its sequence, int64 (m,)."""
    counts = np.diff(offsets) - 1
    positions: np.ndarray = np.arange(1, counts.sum() + 1) - np.repeat(np.cumsum(counts) - counts, counts)
    return positions


class Translator:
    """Translates ids of the `reference` tokenizer into ids of `other`.

    With `fast`, gigatoken encodes where it gives the same ids; `notify` is told why it does not. Raises UserError where the
    reference's pieces have no bytes of their own.
    """

    def __init__(
        self, reference: TextTokenizer, other: TextTokenizer, *, fast: bool = True, notify: Callable[[str], None] = lambda _: None
    ) -> None:
        text = reference.document_text
        if text is None:
            raise UserError(
                "its pieces have no bytes of their own, so that no other tokenizer can be held against them",
                where=reference.name,
                remedy="slice with a byte-level or SentencePiece tokenizer, or score models of this tokenizer only",
            )
        self._text: DocumentText = text
        self._end = np.array([other.end_token_id], np.uint32)
        self._inside = _Encoder(other.continuation, notify if fast else None)
        self._at_beginning = self._inside if other.continuation is other else _Encoder(other, notify if fast else None)
        self._id_of_byte = _ids_of_bytes(other)
        self._replacement = other.continuation.encode([_REPLACEMENT])[0]

    def translate(self, ids: np.ndarray, offsets: np.ndarray) -> Translation:
        """The other's sequences for sequences of reference ids: sequence i is `ids[offsets[i]:offsets[i + 1]]`.

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
            num_without_id=int(np.count_nonzero(np.bincount(owner, minlength=len(aligned.exact)) == 0)),
            num_texts=len(texts),
            num_approximate_texts=num_approximate,
            num_replaced_bytes=sum(len(piece.data) for piece in replaced),
        )
        return replace(aligned, counts=counts)

    def _encode_texts(self, pieces: Sequence[_Piece]) -> int:
        """Gives texts their ids; returns how many of them have approximate places."""
        num_approximate = 0
        for encoder in dict.fromkeys((self._inside, self._at_beginning)):
            chosen = [p for p in pieces if (self._at_beginning if p.begins_document else self._inside) is encoder]
            for piece, (ids, stops, is_exact) in zip(chosen, encoder.encode([str(p.text) for p in chosen]), strict=True):
                piece.ids, piece.stops = ids, stops
                num_approximate += not is_exact
        return num_approximate

    def _encode_bytes(self, piece: _Piece) -> bool:
        """Gives an end token, or bytes that are no text, their ids; returns whether U+FFFD took the place of bytes."""
        if not piece.data:
            piece.ids, piece.stops = self._end, np.ones(1, np.int64)
            return False
        if all(byte in self._id_of_byte for byte in piece.data):
            piece.ids = np.array([self._id_of_byte[byte] for byte in piece.data], np.uint32)
            piece.stops = np.arange(1, len(piece.data) + 1)
            return False
        piece.ids, piece.stops = self._replacement, np.full(len(self._replacement), len(piece.data))
        return True


class _Encoder:
    """A tokenizer's ids of texts, and where in its bytes each of them ends; without `notify` by `tokenizers` alone."""

    def __init__(self, tokenizer: TextTokenizer, notify: Callable[[str], None] | None) -> None:
        self._tokenizer = tokenizer
        self._notify = notify
        self._chosen: Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]] | None = None

    def encode(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray, bool]]:
        """For each text (none is empty) its ids, where they end (from 1, never falling), and whether that is exact.

        Exact places are sums of the ids' own bytes, where these are the text. Elsewhere they are whole characters, as the
        tokenizer followed them through its normalisation.
        """
        exact = self._encode_exactly(texts)
        rest = iter(self._tokenizer.encode_with_stops([text for text, found in zip(texts, exact, strict=True) if found is None]))
        found = [(*(next(rest) if pair is None else pair), pair is not None) for pair in exact]
        return [(ids, np.maximum(stops, 1), is_exact) for ids, stops, is_exact in found]

    def _encode_exactly(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray] | None]:
        table = self._tokenizer.piece_table
        if table is None or not texts:
            return [None] * len(texts)
        if self._chosen is None:
            self._chosen = self._tokenizer.encode if self._notify is None else self._tokenizer.checked_encoder(texts, self._notify)
        ids, offsets = self._chosen(texts)
        joined, bounds = table.join(ids)
        found: list[tuple[np.ndarray, np.ndarray] | None] = []
        for text, start, stop in zip(texts, offsets[:-1], offsets[1:], strict=True):
            begin, end, data = int(bounds[start]), int(bounds[stop]), text.encode()
            written = bytes(joined[begin:end])
            num_added = len(written) - len(data)  # the space that some tokenizers put before a document
            is_text = written == data or (num_added == 1 and written == b" " + data)
            found.append((ids[start:stop], bounds[start + 1 : stop + 1] - begin - num_added) if is_text else None)
        return found


def _ids_of_bytes(tokenizer: TextTokenizer) -> dict[int, int]:
    """The id of each byte that a vocabulary has an entry for."""
    pieces = tokenizer.token_bytes or []
    return {piece[0]: index for index, piece in reversed(list(enumerate(pieces))) if len(piece) == 1}


@dataclass(frozen=True, slots=True)
class _Layout:
    """Reference ids laid out in units: id i takes [starts[i], stops[i]), sequence by sequence.

    data: all their text as bytes; num_bytes, int64: of each id, its places in `data` are [byte_stops - num_bytes, byte_stops).
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
    """Ids that begin what is encoded by itself: a context, what follows it, an end token, what follows that."""


def _lay_out(text: DocumentText, ids: np.ndarray, offsets: np.ndarray) -> _Layout:
    is_first = np.zeros(len(ids), bool)
    is_first[offsets[:-1]] = True
    # What stands before a sequence is not known: its first id is taken to go on inside a document.
    previous = np.where(is_first, ids, np.roll(ids, 1))
    is_end = text.is_end(ids)
    num_bytes = text.lengths(ids, previous)
    widths = np.maximum(num_bytes, is_end | is_first)  # no place is the end of one sequence and of the next one's context
    stops = np.cumsum(widths)
    begins_piece = is_first | is_end
    begins_piece[1:] |= begins_piece[:-1]
    return _Layout(
        offsets, is_first, is_end, text.join(ids, previous), num_bytes, np.cumsum(num_bytes), stops - widths, stops, begins_piece
    )


@dataclass(slots=True, eq=False)
class _Piece:
    """A stretch of a sequence that is encoded by itself: text, bytes that are no text, or (without data) an end token.

    `begin`: where, in units. `ids` and `stops`, where they end, counted from `begin`, are filled in.
    """

    sequence: int
    begin: int
    data: bytes
    text: str | None
    begins_document: bool = False
    ids: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint32))
    stops: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


def _pieces(layout: _Layout) -> Iterator[_Piece]:
    """All that is to be encoded, in order."""
    firsts = np.flatnonzero(layout.begins_piece)
    lasts = np.append(firsts[1:], len(layout.starts)) - 1
    sequences = np.cumsum(layout.is_first)[firsts] - 1
    after_end = layout.is_end[firsts - 1] & ~layout.is_first[firsts]
    byte_starts = (layout.byte_stops - layout.num_bytes)[firsts]
    columns = (sequences, layout.starts[firsts], byte_starts, layout.byte_stops[lasts], layout.is_end[firsts], after_end)
    for sequence, begin, byte_start, byte_stop, is_end, begins_document in zip(*(c.tolist() for c in columns), strict=True):
        if is_end:
            yield _Piece(sequence, begin, b"", None)
            continue
        for place, data, text in _runs(layout.data[byte_start:byte_stop]):
            yield _Piece(sequence, begin + place, data, text, begins_document=begins_document and not place)


def _runs(data: bytes) -> Iterator[tuple[int, bytes, str | None]]:
    """Runs of text and of bytes that are none, each with its place; the text of the latter is None."""
    start = broken = 0  # what is to be looked at begins at `start`, the bytes just before it that are no text at `broken`
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


def _assemble(layout: _Layout, pieces: Sequence[_Piece], end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pieces as sequences: flat ids, where each ends in units, offsets.

    A sequence whose context has no ids, or that has nothing to predict, gets the end token there.
    """
    contexts = layout.stops[layout.offsets[:-1]].tolist()
    by_sequence: list[list[_Piece]] = [[] for _ in contexts]
    for piece in pieces:
        by_sequence[piece.sequence].append(piece)
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    lengths = []
    for own, context in zip(by_sequence, contexts, strict=True):
        before = len(parts)
        filler = (end, np.array([context]))
        if not any(len(piece.ids) for piece in own if piece.begin < context):
            parts.append(filler)
        parts += [(piece.ids, piece.begin + piece.stops) for piece in own]
        if sum(len(ids) for ids, _ in parts[before:]) < 2:
            parts.append(filler)
        lengths.append(sum(len(ids) for ids, _ in parts[before:]))
    ids = np.concatenate([ids for ids, _ in parts]).astype(np.uint32, copy=False)
    return ids, np.concatenate([stops for _, stops in parts]), np.cumsum([0, *lengths])


def _align_units(layout: _Layout, ids: np.ndarray, stops: np.ndarray, offsets: np.ndarray) -> Translation:
    """Holds where the other's ids end (`stops`, never falling) against where reference ids do."""
    is_first, predicted = layout.is_first, ~layout.is_first
    number = np.where(is_first, -1, np.cumsum(predicted) - 1)  # of each reference id as a prediction
    id_of_unit = np.repeat(np.arange(len(is_first)), layout.stops - layout.starts)
    owner = number[id_of_unit[stops - 1]]
    owner[offsets[:-1]] = -1

    ended = np.cumsum(np.bincount(stops, minlength=len(id_of_unit) + 1))  # ids that end at each place or before it
    last = (ended[layout.stops] - 1)[predicted]
    sequence = (np.cumsum(is_first) - 1)[predicted]
    last = np.clip(np.where(owner[last] == number[predicted], last, last + 1), offsets[sequence] + 1, offsets[sequence + 1] - 1)
    return Translation(
        ids=ids,
        offsets=offsets,
        owner=np.delete(owner, offsets[:-1]),
        last=last - sequence - 1,
        exact=_is_exact(layout, stops)[predicted],
        counts=TranslationCounts(),
    )


def _is_exact(layout: _Layout, stops: np.ndarray) -> np.ndarray:
    """Which reference ids begin and end where ids of the other do, or where it had to begin anew."""
    ends = np.zeros(layout.stops[-1] + 1, bool)
    ends[stops] = True
    begins = ends.copy()
    begins[layout.starts[layout.begins_piece]] = True
    exact: np.ndarray = ends[layout.stops] & begins[layout.starts] & (layout.stops > layout.starts)
    return exact
