"""Indexes of other packages, read for the ids they are of: tokengrams (`.bin` with `.idx`) and infini-gram (`tokenized.N`, `offset.N`).

Both are suffix arrays over a flat file of ids, and that file is the text itself. Counting it gives every bigram exactly,
in one pass; asking the index would take a question a bigram. So the readers here give a stream of documents, as any text
does, and need neither package. What differs is where documents end: tokengrams knows nothing of documents, its ids hold
end tokens or they do not; infini-gram puts a separator, the largest id of its type, before each one.
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
"""Ids read at a time: 8 or 16 MB, and the same again for each step that copies them."""

LONGEST_DOCUMENT = 1 << 26
"""Ids of the longest document read: 256 MB at most; anything longer is a broken file rather than a document."""

_OFFSETS_PER_BATCH = 1 << 16

_TOKENGRAMS_ENTRY = 8
_MEGATRON = b"MMIDIDX"
_DTYPES: dict[int, str] = {1: "u1", 2: "<u2", 4: "<u4"}

_SAMPLED_DOCUMENTS, _SAMPLED_IDS = 32, 256


@dataclass(frozen=True, slots=True)
class IndexStream:
    """An index as `count_stream` takes it: documents from a position on, the id that joins them, and where the stream ends."""

    batches: Callable[[Position], Iterator[EncodedDocuments]]
    end_token_id: int
    limit_tokens: int | None


class TokenIndex(Protocol):
    """What both kinds of index have. `num_ids` counts what the files hold, infini-gram's separators too."""

    package: str
    token_bytes: int
    is_reversed: bool

    @property
    def num_ids(self) -> int:
        """Ids in all files."""

    def files(self) -> list[Path]:
        """Every file that is read."""

    def sample(self) -> list[np.ndarray]:
        """The first ids of some documents, or of places in the text, as they stand in the files."""

    def stream(self, boundary: Boundary, end_token_id: int) -> IndexStream:
        """The text, to be counted as any other. Raises UserError, here or while it is read, for what is no text of this vocabulary."""

    def question(self) -> dict[str, Any]:
        """What the package itself needs to open the index, as plain JSON."""

    def unseen_bigrams(self) -> Counter[tuple[int, int]]:
        """Bigrams of the packed stream that the index does not count, because they run from one of its files into the next."""


def open_index(path: Path, vocab_size: int) -> TokenIndex:
    """The index at `path`, for a vocabulary of `vocab_size` entries.

    A directory with `tokenized` files is infini-gram's; one with `.bin` files, or a `.bin` or `.idx` file, is tokengrams's.
    Sizes are checked against each other. Raises UserError for a directory without an index and for missing or cut files.
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
    """Names of the files with a digest of their lengths and samples: changes when an index is built anew."""
    return [[file.name, artifacts.digest_sample(file)] for file in index.files()]


# ----------------------------------------------------------------------------------------------------------- tokengrams


@dataclass
class TokengramsIndex:
    """Flat files of ids that follow one another as one text; `starts` (files + 1) are their places in it, in ids."""

    place: Path
    bins: list[Path]
    token_bytes: int
    vocab_size: int
    starts: np.ndarray
    is_reversed: bool = False

    package = "tokengrams"

    @classmethod
    def open(cls, place: Path, bins: list[Path], vocab_size: int) -> TokengramsIndex:
        """Measures the files. Raises UserError where one is missing, or sizes do not fit each other or the vocabulary."""
        widths = {}
        for file in bins:
            size, entries = _size(file), _num_entries(file.with_suffix(".idx"))
            widths[file] = size // max(1, entries)
            if size != widths[file] * entries or widths[file] not in (2, 4):
                problem = f"{size:,} bytes do not fit the {entries:,} places of {file.with_suffix('.idx').name}"
                raise UserError(problem, where=file, remedy="one of them is cut short or of another text: copy or build both again")
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
        """The ids and the places."""
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
        """Ids at evenly spaced places; the first of each stand where a text was cut, in the middle of a word."""
        places = np.linspace(0, max(0, self.num_ids - _SAMPLED_IDS), _SAMPLED_DOCUMENTS).astype(np.int64).tolist()
        return [self._read(place, min(self.num_ids, place + _SAMPLED_IDS)) for place in sorted(set(places))]

    def stream(self, boundary: Boundary, end_token_id: int) -> IndexStream:
        """Packed, the ids as they stand; by document, what stands between end tokens.

        Raises UserError by document where there is no end token, or none for too long.
        """
        if boundary == "document":
            return IndexStream(lambda start: self._documents(start.record, end_token_id), end_token_id, None)
        # Joining puts back the id that the text was cut at, so any id serves, and text without end tokens can be cut too.
        joint = int(np.bincount(np.concatenate(self.sample())).argmax())
        return IndexStream(lambda start: self._pieces(start.record, joint), joint, self.num_ids)

    def _pieces(self, start: int, joint: int) -> Iterator[EncodedDocuments]:
        """The text in pieces without the `joint` that each ends with; the last may lack one, hence the stream's limit."""
        for at, ids in self._blocks(start, joint):
            text = ids[:-1] if ids[-1] == joint else ids
            yield EncodedDocuments(text, np.array([0, len(text)]), [""], [Position(0, at + len(ids) - 1)])

    def _documents(self, start: int, end_token_id: int) -> Iterator[EncodedDocuments]:
        """What stands between end tokens. Where a text begins with one and does not end with one, they stand in front."""
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
        """Places and ids of blocks that end with `joint`, the last one excepted."""
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
        problem = f"the token {token} that ends documents does not stand in it, or not for {LONGEST_DOCUMENT:,} ids"
        remedy = "name another --end-token, or count with --boundary pack, which needs none"
        return UserError(problem, where=self.place, remedy=remedy)

    def question(self) -> dict[str, Any]:
        """The pairs of files; the vocabulary tells tokengrams the width of ids."""
        files = [[str(file.resolve()), str(file.with_suffix(".idx").resolve())] for file in self.bins]
        return {
            "package": self.package,
            "files": files,
            "vocab": (1 << 16) if self.token_bytes == 2 else max(self.vocab_size, (1 << 16) + 1),
        }

    def unseen_bigrams(self) -> Counter[tuple[int, int]]:
        """The bigrams over the borders of files."""
        borders = [self._read(place - 1, place + 1).tolist() for place in self.starts[1:-1].tolist()]
        return Counter((first, second) for first, second in borders)


def _num_entries(file: Path) -> int:
    size = _size(file)
    with file.open("rb") as handle:
        if handle.read(len(_MEGATRON)) == _MEGATRON:
            raise UserError("an index of Megatron's, not of tokengrams", where=file, remedy="build one with tokengrams from its .bin")
    if size % _TOKENGRAMS_ENTRY:
        raise UserError(f"{size:,} bytes are no whole number of places", where=file, remedy="it is cut short: copy or build it again")
    return size // _TOKENGRAMS_ENTRY


# ---------------------------------------------------------------------------------------------------------- infini-gram


@dataclass(frozen=True)
class _Shard:
    """One `tokenized` file with the places of its documents, `offset`: uint64 bytes of the separator before each."""

    ids: Path
    offsets: Path
    num_ids: int
    num_documents: int

    def places(self, first: int, count: int, token_bytes: int) -> np.ndarray:
        """Where documents `first` to `first + count` have their separators, in ids, and where the last of them ends.

        Raises UserError where places do not begin at 0, grow, lie in the file and fall on ids.
        """
        stops_at_end = first + count >= self.num_documents
        places = _read(self.offsets, "<u8", first, min(count + 1, self.num_documents - first))
        whole = np.append(places, np.uint64(self.num_ids * token_bytes)) if stops_at_end else places
        fits = np.all(whole[1:] > whole[:-1]) and not np.any(whole % np.uint64(token_bytes)) and (first > 0 or not whole[0])
        if not fits or whole[-1] > self.num_ids * token_bytes:
            raise UserError(f"its places do not fit {self.ids.name}", where=self.offsets, remedy="copy or build the index again")
        return (whole // np.uint64(token_bytes)).astype(np.int64)


@dataclass
class InfiniGramIndex:
    """The shards of one directory. `is_reversed`: ids of a document stand last first, as in infini-gram's version 5."""

    place: Path
    shards: list[_Shard]
    token_bytes: int
    vocab_size: int
    is_reversed: bool = False

    package = "infini_gram"

    @classmethod
    def open(cls, place: Path, vocab_size: int) -> InfiniGramIndex:
        """Measures the files. Raises UserError where one is missing, or sizes do not fit each other or the vocabulary."""
        names = _shard_names(place)
        token_bytes = _infini_gram_width(place, names, vocab_size)
        _check_width(place, token_bytes, vocab_size)
        shards = []
        for name in names:
            ids, offsets = place / f"tokenized{name}", place / f"offset{name}"
            if _size(ids) % token_bytes or _size(offsets) % 8 or (_size(ids) == 0) != (_size(offsets) == 0):
                raise UserError(f"its length does not fit {offsets.name} and ids of {token_bytes} bytes", where=ids, remedy=_AGAIN)
            shards.append(_Shard(ids, offsets, _size(ids) // token_bytes, _size(offsets) // 8))
        return cls(place, shards, token_bytes, vocab_size)

    @property
    def num_ids(self) -> int:
        """Ids in all shards, separators too."""
        return sum(shard.num_ids for shard in self.shards)

    @property
    def _separator(self) -> int:
        return (1 << (8 * self.token_bytes)) - 1

    def files(self) -> list[Path]:
        """The ids and the places of documents."""
        return [file for shard in self.shards for file in (shard.ids, shard.offsets)]

    def sample(self) -> list[np.ndarray]:
        """The first ids of evenly spaced documents of the first shard; of reversed documents the last ones, the first first."""
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
        """The documents without their separators: end tokens are joined to them as to any text, whatever the boundary."""
        return IndexStream(self._documents, end_token_id, None)

    def _documents(self, start: Position) -> Iterator[EncodedDocuments]:
        for number, shard in enumerate(self.shards[start.shard :], start.shard):
            first = start.record if number == start.shard else 0
            while first < shard.num_documents:
                encoded = self._batch(number, shard, first)
                first += len(encoded.sources)
                yield encoded

    def _batch(self, number: int, shard: _Shard, first: int) -> EncodedDocuments:
        """Documents of a shard from `first` on: as many as a block holds, at least one."""
        places = shard.places(first, _OFFSETS_PER_BATCH, self.token_bytes)
        count = max(1, int(np.searchsorted(places, places[0] + BLOCK_IDS, "right")) - 1)
        places = places[: count + 1]
        if places[-1] - places[0] > LONGEST_DOCUMENT:
            raise UserError(f"document {first} has more than {LONGEST_DOCUMENT:,} ids", where=shard.ids, remedy=_AGAIN)
        ids = _read_ids(shard.ids, self.token_bytes, int(places[0]), int(places[-1] - places[0]))
        is_text = np.ones(len(ids), bool)
        is_text[places[:-1] - places[0]] = False
        if np.any(ids[~is_text] != self._separator):
            raise UserError(f"its places are not those of separators in {shard.ids.name}", where=shard.offsets, remedy=_AGAIN)
        text, offsets = ids[is_text], places - places[0] - np.arange(count + 1)
        _check_ids(text, self.vocab_size, shard.ids, int(places[0]))
        if self.is_reversed:
            text = _reverse_each(text, offsets)
        return EncodedDocuments(text, offsets, [""] * count, [Position(number, first + i) for i in range(count)])

    def question(self) -> dict[str, Any]:
        """The directory, and the type of its ids."""
        is_whole = all((self.place / shard.ids.name.replace("tokenized", "table")).exists() for shard in self.shards)
        return {
            "package": self.package,
            "folder": str(self.place.resolve()) if is_whole else None,
            "dtype": f"u{8 * self.token_bytes}",
            "reversed": self.is_reversed,
            "separator": self._separator,
        }

    def unseen_bigrams(self) -> Counter[tuple[int, int]]:
        """None inside documents, and documents do not run from one file into the next."""
        return Counter()


_AGAIN = "it is cut short or damaged: copy or build the index again"


def _shard_names(place: Path) -> list[str]:
    """Endings of the shards' files, in their order: ".0", ".1" ..., or "" for the one shard of infini-gram's version 6."""
    found = {file.name.removeprefix("tokenized") for file in place.glob("tokenized*")}
    names = [""] if found == {""} else [f".{number}" for number in range(len(found))]
    parts = ["tokenized", "offset"] + (["table"] if any(place.glob("table*")) else [])
    for name in sorted(found ^ set(names)):
        raise UserError(f"tokenized{name} is {'not there' if name in names else 'no shard of an index'}", where=place, remedy=_AGAIN)
    for file in (place / f"{part}{name}" for name in names for part in parts):
        _size(file)
    return names


def _infini_gram_width(place: Path, names: Sequence[str], vocab_size: int) -> int:
    """Bytes an id: of the widths that the files allow, told by their tables if these are there, the least that holds the vocabulary.

    A table has an entry an id, as wide as the length of the file of ids needs. Raises UserError where no width fits.
    """
    fitting = [width for width in _DTYPES if all(_may_be(place, name, width) for name in names)]
    if not fitting:
        problem = "tokenized, offset and table files do not fit each other"
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


def _reverse_each(ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Every document last id first."""
    turned = np.repeat(offsets[:-1] + offsets[1:] - 1, np.diff(offsets)) - np.arange(len(ids))
    return np.asarray(ids[turned])


# ----------------------------------------------------------------------------------------------------- of both kinds


def agreement(
    ids: Sequence[np.ndarray], texts: Callable[[Sequence[np.ndarray]], list[str]], encode: Callable[[Sequence[str]], Any]
) -> float:
    """The share of bigrams of these ids that are there again when their text is encoded: near 1 for text of this tokenizer."""
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
    """`count` values from number `first` on. Raises UserError where the file ends before: it may be cut while it is read."""
    size = np.dtype(dtype).itemsize
    values = np.fromfile(file, dtype, count, offset=first * size)
    if len(values) < count:
        raise UserError("ends before its end", where=file, remedy=_AGAIN)
    return values


def _read_ids(file: Path, token_bytes: int, first: int, count: int) -> np.ndarray:
    """`count` ids as counting takes them: uint16 or uint32."""
    return _read(file, _DTYPES[token_bytes], first, count).astype(np.uint32 if token_bytes == 4 else np.uint16, copy=False)


def _check_ids(ids: np.ndarray, vocab_size: int, where: Path, place: int) -> None:
    if len(ids) and int(ids.max()) >= vocab_size:
        at = int(np.argmax(ids >= vocab_size))
        problem = f"id {int(ids[at])} (about place {place + at:,}), but the tokenizer has {vocab_size:,} entries"
        raise UserError(problem, where=where, remedy="name the tokenizer of this index with --tokenizer")


def _check_width(place: Path, token_bytes: int, vocab_size: int) -> None:
    if vocab_size > 1 << (8 * token_bytes):
        problem = f"ids of {8 * token_bytes} bits, but the tokenizer has {vocab_size:,} entries"
        raise UserError(problem, where=place, remedy="name the tokenizer of this index with --tokenizer")
