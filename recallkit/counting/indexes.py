"""Indexes made by other packages, read for their token ids: tokengrams (`.bin`, `.idx`) and infini-gram (`tokenized.N`, `offset.N`).

Both are suffix arrays over a flat file of ids, and that file is the text itself. Counting it gives every bigram exactly in one
pass, whereas the index would need one query per bigram. The readers here yield a stream of documents, as for any text, and need
neither package. The two differ in how documents end: tokengrams knows nothing of documents, its ids may or may not include end
tokens; infini-gram puts a separator, the largest value of its integer type, before each document.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from recallkit.errors import UserError
from recallkit.storage import artifacts
from recallkit.text.records import EncodedDocuments, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from recallkit.text.joining import Boundary

BLOCK_IDS = 1 << 22
"""Ids read at a time: 8 or 16 MB, and the same again for every step that copies them."""

LONGEST_DOCUMENT = 1 << 26
"""Ids of the longest document that is read, at most 256 MB: anything longer is a broken file rather than a document."""

_OFFSETS_PER_BATCH = 1 << 16

_TOKENGRAMS_ENTRY = 8
_MEGATRON = b"MMIDIDX"
_DTYPES: dict[int, str] = {1: "u1", 2: "<u2", 4: "<u4"}

_SAMPLED_DOCUMENTS, _SAMPLED_IDS = 32, 256


@dataclass(frozen=True, slots=True)
class IndexStream:
    """An index as `count_shard_range` reads it: documents from a position on, the id that joins them, where the stream ends."""

    batches: Callable[[Position], Iterator[EncodedDocuments]]
    end_token_id: int
    limit_tokens: int | None


class TokenIndex(Protocol):
    """What both kinds of index have in common. `num_ids` includes infini-gram's separators."""

    package: str
    token_bytes: int
    is_reversed: bool

    @property
    def num_ids(self) -> int:
        """Ids in all files."""

    def files(self) -> list[Path]:
        """Every file that is read."""

    def sample(self) -> list[np.ndarray]:
        """The first ids of some documents, or ids at some positions of the text, in the order of the files."""

    def stream(self, boundary: Boundary, end_token_id: int) -> IndexStream:
        """The text as a stream. Raises UserError, now or while it is read, if it is no text of this vocabulary."""


def open_index(path: Path, vocab_size: int) -> TokenIndex:
    """The index at `path`, for a vocabulary of `vocab_size` entries.

    A directory with `tokenized` files is an infini-gram index; one with `.bin` files, or a `.bin` or `.idx` file, is a tokengrams
    index. File sizes must agree. Raises UserError for a directory without an index and for missing or truncated files.
    """
    if path.is_dir():
        if any(path.glob("tokenized*")):
            return InfiniGramIndex.open(path, vocab_size)
        if pairs := sorted(path.glob("*.bin")):
            return TokengramsIndex.open(path, pairs, vocab_size)
        raise UserError("a directory without an index", where=path, remedy="give infini-gram's tokenized.N and offset.N, or .bin with .idx")
    return TokengramsIndex.open(path, [path.with_suffix(".bin")], vocab_size)


def is_index(path: Path) -> bool:
    """Whether `path` is to be opened with `open_index`."""
    return path.is_dir() or path.suffix in (".bin", ".idx")


def identity(index: TokenIndex) -> list[list[str]]:
    """Names of the files with a digest of their lengths and samples, which changes when the index is rebuilt."""
    return [[file.name, artifacts.digest_sample(file)] for file in index.files()]


# ----------------------------------------------------------------------------------------------------------- tokengrams


@dataclass
class TokengramsIndex:
    """Flat files of ids that form one text; `starts` (files + 1) are the positions in it, in ids, at which they begin."""

    place: Path
    bins: list[Path]
    token_bytes: int
    vocab_size: int
    starts: np.ndarray
    is_reversed: bool = False

    package = "tokengrams"

    @classmethod
    def open(cls, place: Path, bins: list[Path], vocab_size: int) -> TokengramsIndex:
        """Measures the files. Raises UserError if one is missing, or if sizes do not match each other or the vocabulary."""
        widths = {}
        for file in bins:
            size, entries = _size(file), _num_entries(file.with_suffix(".idx"))
            widths[file] = size // max(1, entries)
            if size != widths[file] * entries or widths[file] not in (2, 4):
                problem = f"{size:,} bytes do not match the {entries:,} entries of {file.with_suffix('.idx').name}"
                raise UserError(problem, where=file, remedy="one of them is truncated or of another text: copy or build both again")
        if len(set(widths.values())) > 1:
            raise UserError("ids of 2 bytes in one file and of 4 in another", where=place, remedy="give files of one index")
        token_bytes = widths[bins[0]]
        _check_width(place, token_bytes, vocab_size)
        starts = np.cumsum([0, *(file.stat().st_size // token_bytes for file in bins)])
        return cls(place, bins, token_bytes, vocab_size, starts)

    @property
    def num_ids(self) -> int:
        """Ids in all files."""
        return int(self.starts[-1])

    def files(self) -> list[Path]:
        """The files of ids and their `.idx` files."""
        return [file for ids in self.bins for file in (ids, ids.with_suffix(".idx"))]

    def _read(self, start: int, stop: int) -> np.ndarray:
        """Ids from `start` to `stop` of the whole text, (stop - start,) uint16 or uint32."""
        parts = []
        for file, begin, end in zip(self.bins, self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True):
            first, last = max(start, begin), min(stop, end)
            if first < last:
                parts.append(_read_ids(file, self.token_bytes, first - begin, last - first))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def sample(self) -> list[np.ndarray]:
        """Ids at evenly spaced positions, each sample possibly beginning in the middle of a word."""
        places = np.linspace(0, max(0, self.num_ids - _SAMPLED_IDS), _SAMPLED_DOCUMENTS).astype(np.int64).tolist()
        return [self._read(place, min(self.num_ids, place + _SAMPLED_IDS)) for place in sorted(set(places))]

    def stream(self, boundary: Boundary, end_token_id: int) -> IndexStream:
        """Packed: the ids as they are; by document: what is between end tokens.

        Raises UserError by document if there is no end token, or none within `LONGEST_DOCUMENT` ids.
        """
        if boundary == "document":
            return IndexStream(lambda start: self._documents(start.record, end_token_id), end_token_id, None)
        # Joining puts back the id at which the text was cut, so any frequent id will do, even in text without end tokens.
        joint = int(np.bincount(np.concatenate(self.sample())).argmax())
        return IndexStream(lambda start: self._pieces(start.record, joint), joint, self.num_ids)

    def _pieces(self, start: int, joint: int) -> Iterator[EncodedDocuments]:
        """The text in pieces, each without the `joint` at its end; the last may have none, hence the stream's limit."""
        for at, ids in self._blocks(start, joint):
            text = ids[:-1] if ids[-1] == joint else ids
            yield EncodedDocuments(text, np.array([0, len(text)]), [""], [Position(0, at + len(ids) - 1)])

    def _documents(self, start: int, end_token_id: int) -> Iterator[EncodedDocuments]:
        """What is between end tokens. A text that begins but does not end with an end token has them before its documents."""
        in_front = self._read(0, 1)[0] == end_token_id != self._read(self.num_ids - 1, self.num_ids)[0]
        for at, ids in self._blocks(max(start, int(in_front)), end_token_id):
            is_end = ids == end_token_id
            ends = np.flatnonzero(is_end)
            if at + len(ids) == self.num_ids and ids[-1] != end_token_id:
                if at <= 1 and not len(ends) and not in_front:
                    raise self._without_end(end_token_id)
                ends = np.append(ends, len(ids))
            offsets = np.concatenate([[0], ends - np.arange(len(ends))])
            last = [Position(0, at + int(end)) for end in ends[:-1]] + [Position(0, at + len(ids) - 1)]
            yield EncodedDocuments(ids[~is_end], offsets, [""] * len(ends), last)

    def _blocks(self, at: int, joint: int) -> Iterator[tuple[int, np.ndarray]]:
        """Positions and ids of blocks that end with `joint`, except the last."""
        length = BLOCK_IDS
        while at < self.num_ids:
            ids = self._read(at, min(at + length, self.num_ids))
            _check_ids(ids, self.vocab_size, self.place, at)
            if at + len(ids) < self.num_ids:
                joints = np.flatnonzero(ids == joint)
                if not len(joints):
                    if length >= LONGEST_DOCUMENT:
                        raise self._without_end(joint)
                    length *= 2
                    continue
                ids = ids[: joints[-1] + 1]
            yield at, ids
            at, length = at + len(ids), BLOCK_IDS

    def _without_end(self, token: int) -> UserError:
        problem = f"the end token {token} is not among its ids, or not within {LONGEST_DOCUMENT:,} of them"
        remedy = "name another --end-token, or count with --boundary pack, which needs none"
        return UserError(problem, where=self.place, remedy=remedy)


def _num_entries(file: Path) -> int:
    size = _size(file)
    with file.open("rb") as handle:
        if handle.read(len(_MEGATRON)) == _MEGATRON:
            raise UserError("an index of Megatron's, not of tokengrams", where=file, remedy="build one with tokengrams from its .bin")
    if size % _TOKENGRAMS_ENTRY:
        raise UserError(f"{size:,} bytes are no whole number of entries", where=file, remedy="it is truncated: copy or build it again")
    return size // _TOKENGRAMS_ENTRY


# ---------------------------------------------------------------------------------------------------------- infini-gram


@dataclass(frozen=True)
class _Shard:
    """One `tokenized` file and its `offset` file: uint64, the position in bytes of the separator before each document."""

    ids: Path
    offsets: Path
    num_ids: int
    num_documents: int

    def places(self, first: int, count: int, token_bytes: int) -> np.ndarray:
        """The positions, in ids, of the separators of documents `first` to `first + count`, and the end of the last document.

        Raises UserError unless the offsets begin at 0, increase, stay within the file and are multiples of the width of an id.
        """
        stops_at_end = first + count >= self.num_documents
        places = _read(self.offsets, "<u8", first, min(count + 1, self.num_documents - first))
        whole = np.append(places, np.uint64(self.num_ids * token_bytes)) if stops_at_end else places
        fits = np.all(whole[1:] > whole[:-1]) and not np.any(whole % np.uint64(token_bytes)) and (first > 0 or not whole[0])
        if not fits or whole[-1] > self.num_ids * token_bytes:
            raise UserError(f"its offsets do not match {self.ids.name}", where=self.offsets, remedy="copy or build the index again")
        return (whole // np.uint64(token_bytes)).astype(np.int64)


@dataclass
class InfiniGramIndex:
    """The shards of one directory. `is_reversed`: the ids of each document are in reverse order, as in infini-gram's version 5."""

    place: Path
    shards: list[_Shard]
    token_bytes: int
    vocab_size: int
    is_reversed: bool = False

    package = "infini_gram"

    @classmethod
    def open(cls, place: Path, vocab_size: int) -> InfiniGramIndex:
        """Measures the files. Raises UserError if one is missing, or if sizes do not match each other or the vocabulary."""
        names = _shard_names(place)
        token_bytes = _infini_gram_width(place, names, vocab_size)
        _check_width(place, token_bytes, vocab_size)
        shards = []
        for name in names:
            ids, offsets = place / f"tokenized{name}", place / f"offset{name}"
            if _size(ids) % token_bytes or _size(offsets) % 8 or (_size(ids) == 0) != (_size(offsets) == 0):
                raise UserError(f"its length does not match {offsets.name} and ids of {token_bytes} bytes", where=ids, remedy=_AGAIN)
            shards.append(_Shard(ids, offsets, _size(ids) // token_bytes, _size(offsets) // 8))
        return cls(place, shards, token_bytes, vocab_size)

    @property
    def num_ids(self) -> int:
        """Ids in all shards, separators included."""
        return sum(shard.num_ids for shard in self.shards)

    @property
    def _separator(self) -> int:
        return (1 << (8 * self.token_bytes)) - 1

    def files(self) -> list[Path]:
        """The files of ids and of offsets."""
        return [file for shard in self.shards for file in (shard.ids, shard.offsets)]

    def sample(self) -> list[np.ndarray]:
        """The first ids of evenly spaced documents of the first shard, in the order of the text even if documents are reversed."""
        shard = self.shards[0]
        found = []
        for number in np.unique(np.linspace(0, max(0, shard.num_documents - 1), _SAMPLED_DOCUMENTS).astype(np.int64)).tolist():
            if number < shard.num_documents:
                begin, end = shard.places(number, 1, self.token_bytes).tolist()
                length = min(end - begin - 1, _SAMPLED_IDS)
                ids = _read_ids(shard.ids, self.token_bytes, end - length if self.is_reversed else begin + 1, length)
                found.append(ids[::-1] if self.is_reversed else ids)
        return found

    def stream(self, boundary: Boundary, end_token_id: int) -> IndexStream:
        """The documents without their separators; end tokens are joined to them as to any text, with either boundary."""
        return IndexStream(self._documents, end_token_id, None)

    def _documents(self, start: Position) -> Iterator[EncodedDocuments]:
        for number, shard in enumerate(self.shards[start.shard :], start.shard):
            first = start.record if number == start.shard else 0
            while first < shard.num_documents:
                encoded = self._batch(number, shard, first)
                first += len(encoded.sources)
                yield encoded

    def _batch(self, number: int, shard: _Shard, first: int) -> EncodedDocuments:
        """Documents of a shard from `first` on: as many as fit into a block, at least one."""
        places = shard.places(first, _OFFSETS_PER_BATCH, self.token_bytes)
        count = max(1, int(np.searchsorted(places, places[0] + BLOCK_IDS, "right")) - 1)
        places = places[: count + 1]
        if places[-1] - places[0] > LONGEST_DOCUMENT:
            raise UserError(f"document {first} has more than {LONGEST_DOCUMENT:,} ids", where=shard.ids, remedy=_AGAIN)
        ids = _read_ids(shard.ids, self.token_bytes, int(places[0]), int(places[-1] - places[0]))
        is_text = np.ones(len(ids), bool)
        is_text[places[:-1] - places[0]] = False
        if np.any(ids[~is_text] != self._separator):
            raise UserError(f"its offsets do not point at separators in {shard.ids.name}", where=shard.offsets, remedy=_AGAIN)
        text, offsets = ids[is_text], places - places[0] - np.arange(count + 1)
        _check_ids(text, self.vocab_size, shard.ids, int(places[0]))
        if self.is_reversed:
            text = text[np.repeat(offsets[:-1] + offsets[1:] - 1, np.diff(offsets)) - np.arange(len(text))]
        return EncodedDocuments(text, offsets, [""] * count, [Position(number, first + i) for i in range(count)])


_AGAIN = "it is truncated or damaged: copy or build the index again"


def _shard_names(place: Path) -> list[str]:
    """Suffixes of the shards' files, in order: ".0", ".1" ..., or "" for the single shard of infini-gram's version 6."""
    found = {file.name.removeprefix("tokenized") for file in place.glob("tokenized*")}
    names = [""] if found == {""} else [f".{number}" for number in range(len(found))]
    parts = ["tokenized", "offset"] + (["table"] if any(place.glob("table*")) else [])
    for name in sorted(found ^ set(names)):
        raise UserError(f"tokenized{name} is {'not there' if name in names else 'no shard of an index'}", where=place, remedy=_AGAIN)
    for file in (place / f"{part}{name}" for name in names for part in parts):
        _size(file)
    return names


def _infini_gram_width(place: Path, names: Sequence[str], vocab_size: int) -> int:
    """Width of an id in bytes: of those that the file sizes allow (and the tables, if present), the least that fits the vocabulary.

    A table has one entry per id, as wide as the length of the file of ids requires. Raises UserError if no width fits.
    """
    fitting = [width for width in _DTYPES if all(_may_be(place, name, width) for name in names)]
    if not fitting:
        problem = "tokenized, offset and table files do not match each other"
        raise UserError(problem, where=place, remedy=_AGAIN)
    return next((width for width in fitting if vocab_size < 1 << (8 * width)), fitting[-1])


def _may_be(place: Path, name: str, width: int) -> bool:
    ids, table = place / f"tokenized{name}", place / f"table{name}"
    size = _size(ids)
    if not size:
        return True
    with ids.open("rb") as handle:
        begins_with_separator = handle.read(width) == b"\xff" * width
    entry = math.ceil(math.log2(size) / 8)
    fits_table = not table.exists() or table.stat().st_size == size // width * entry
    return size % width == 0 and begins_with_separator and fits_table


# ----------------------------------------------------------------------------------------------------- of both kinds


def agreement(
    ids: Sequence[np.ndarray], texts: Callable[[Sequence[np.ndarray]], list[str]], encode: Callable[[Sequence[str]], Any]
) -> float:
    """The share of bigrams that survive decoding and encoding again: near 1 for text of this tokenizer."""
    kept = total = 0
    encoded, offsets = encode(texts(ids))
    for sequence, (start, stop) in zip(ids, pairwise(offsets.tolist()), strict=True):
        before, after = (Counter(pairwise(some.tolist())) for some in (sequence, encoded[start:stop]))
        kept += (before & after).total()
        total += before.total()
    return kept / total if total else 1.0


def _size(file: Path) -> int:
    if not file.is_file():
        raise UserError("a part of the index is missing", where=file, remedy="give the index with all its files")
    return file.stat().st_size


def _read(file: Path, dtype: str, first: int, count: int) -> np.ndarray:
    """`count` values from number `first` on. Raises UserError if the file ends before, as one truncated while it is read does."""
    size = np.dtype(dtype).itemsize
    values = np.fromfile(file, dtype, count, offset=first * size)
    if len(values) < count:
        raise UserError("ended too early", where=file, remedy=_AGAIN)
    return values


def _read_ids(file: Path, token_bytes: int, first: int, count: int) -> np.ndarray:
    """`count` ids as counting takes them: uint16 or uint32."""
    return _read(file, _DTYPES[token_bytes], first, count).astype(np.uint32 if token_bytes == 4 else np.uint16, copy=False)


def _check_ids(ids: np.ndarray, vocab_size: int, where: Path, place: int) -> None:
    if len(ids) and int(ids.max()) >= vocab_size:
        at = int(np.argmax(ids >= vocab_size))
        problem = f"id {int(ids[at])} (near position {place + at:,}), but the tokenizer has {vocab_size:,} entries"
        raise UserError(problem, where=where, remedy="name the tokenizer of this index with --tokenizer")


def _check_width(place: Path, token_bytes: int, vocab_size: int) -> None:
    if vocab_size > 1 << (8 * token_bytes):
        problem = f"ids of {8 * token_bytes} bits, but the tokenizer has {vocab_size:,} entries"
        raise UserError(problem, where=place, remedy="name the tokenizer of this index with --tokenizer")
