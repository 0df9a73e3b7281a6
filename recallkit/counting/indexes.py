"""Indexes made by other packages, imported as counts: tokengrams (`.bin`, `.idx`) and infini-gram (`tokenized.N`, `offset.N`).

Both are suffix arrays over flat files of ids, and these files are the text itself: they are shards like any other file of ids, and counted
like them. Counting gives every bigram exactly in one pass, whereas the index would need one query per bigram. Neither package is needed.
The two differ in how documents end: tokengrams knows nothing of documents, its ids may or may not include end tokens; infini-gram puts
a separator, the largest value of its integer type, before each document.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display import console
from recallkit.display.cells import percent
from recallkit.errors import UserError
from recallkit.storage import artifacts
from recallkit.text.fields import IDS_FIELD, FieldFinder
from recallkit.text.token_files import JoinedFiles, TokenFileShard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from recallkit.text.readers import OnBad
    from recallkit.text.records import Boundary, Vocabulary
    from recallkit.text.tokenizers import TextTokenizer

LEAST_AGREEMENT = 0.95
"""If fewer bigrams survive decoding and encoding again, the tokenizer is probably another one: 0.78 do of GPT-2's ids read as
GPT-NeoX's, 0.91 of reversed ids, all of a tokenizer's own. A tokenizer that drops spaces or case may stay below it, too."""

_TOKENGRAMS_ENTRY = 8
_MEGATRON = b"MMIDIDX"
_DTYPES = {1: "uint8", 2: "uint16", 4: "uint32"}
_SAMPLED_DOCUMENTS, _SAMPLED_IDS = 32, 256
_AGAIN = "it is truncated or damaged: copy or build the index again"


@dataclass(frozen=True, slots=True)
class TokenIndex:
    """An index as a text. `num_ids`, if known, is the length of a text that is counted as its ids are, without an end token added."""

    package: str
    shards: Sequence[TokenFileShard]
    token_bytes: int
    files: Sequence[Path]
    num_ids: int | None = None
    is_reversed: bool = False

    def identity(self) -> list[list[str]]:
        """Names of the files with a digest of their lengths and samples, which changes when the index is rebuilt."""
        return [[file.name, artifacts.digest_sample(file)] for file in self.files]

    def describe(self) -> dict[str, Any]:
        """What the table records about the index."""
        return {"package": self.package, "token_bytes": self.token_bytes, "reversed": self.is_reversed}


def is_index(path: Path) -> bool:
    """Whether `path` is to be opened with `open_index`."""
    return path.is_dir() or path.suffix in (".bin", ".idx")


def open_index(path: Path, tokenizer: TextTokenizer, boundary: Boundary) -> TokenIndex:
    """The index at `path`, whose ids are those of `tokenizer`.

    A directory with `tokenized` files is an infini-gram index; one with `.bin` files, or a `.bin` or `.idx` file, is a tokengrams
    index. Raises UserError for a directory without an index, for missing or truncated files, whose sizes do not agree, and for ids
    of fewer bits than the vocabulary needs. A note tells if the ids look like those of another tokenizer.
    """
    if path.is_dir() and any(path.glob("tokenized*")):
        index = _open_infini_gram(path, tokenizer.vocabulary)
    else:
        bins = sorted(path.glob("*.bin")) if path.is_dir() else [path.with_suffix(".bin")]
        if not bins:
            raise UserError(
                "a directory without an index", where=path, remedy="give infini-gram's tokenized.N and offset.N, or .bin with .idx"
            )
        index = _open_tokengrams(path, bins, tokenizer.vocabulary, boundary)
    if tokenizer.vocab_size > 1 << (8 * index.token_bytes):
        problem = f"ids of {8 * index.token_bytes} bits, but the tokenizer has {tokenizer.vocab_size:,} entries"
        raise UserError(problem, where=path, remedy="name the tokenizer of this index with --tokenizer")
    sample = [ids for ids in _sample(index) if len(ids) > 1 and ids.max() < tokenizer.vocab_size]
    share = agreement(sample, tokenizer.decode, tokenizer.encode)
    if index.package == "infini-gram":
        backwards = agreement([ids[::-1] for ids in sample], tokenizer.decode, tokenizer.encode)
        if backwards > share:
            console.note(f"{path}: its documents are reversed (infini-gram's version 5), and are counted forwards")
            index, share = _open_infini_gram(path, tokenizer.vocabulary, is_reversed=True), backwards
    if share < LEAST_AGREEMENT:
        problem = f"only {percent(share, 0)} of the sampled bigrams survive decoding and encoding again"
        console.note(f"{path}: is {tokenizer.name} its tokenizer? {problem}")
    return index


def _sample(index: TokenIndex) -> list[np.ndarray]:
    """The first documents of the first shard; of long ones the ids that are stored first."""

    def on_bad(record: int, problem: str, remedy: str) -> None:
        raise UserError(problem, where=index.shards[0].place(record), remedy=remedy)

    records = islice(index.shards[0].records(0, on_bad), _SAMPLED_DOCUMENTS)
    return [np.asarray(fields[IDS_FIELD][:_SAMPLED_IDS]) for _, fields in records]


def agreement(
    ids: Sequence[np.ndarray], texts: Callable[[Sequence[np.ndarray]], list[str]], encode: Callable[[Sequence[str]], Any]
) -> float:
    """The share of bigrams that survive decoding and encoding again: near 1 for text of this tokenizer, and for no ids at all."""
    if not ids:
        return 1.0
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


# ----------------------------------------------------------------------------------------------------------- tokengrams


def _open_tokengrams(place: Path, bins: Sequence[Path], vocabulary: Vocabulary, boundary: Boundary) -> TokenIndex:
    """The `.bin` files, which follow one another, as one text."""
    widths = {}
    for file in bins:
        size, entries = _size(file), _num_entries(file.with_suffix(".idx"))
        widths[file] = size // max(1, entries)
        if size != widths[file] * entries or widths[file] not in (2, 4):
            problem = f"{size:,} bytes do not match the {entries:,} entries of {file.with_suffix('.idx').name}"
            raise UserError(problem, where=file, remedy="one of them is truncated or of another text: copy or build both again")
    if len(set(widths.values())) > 1:
        raise UserError("ids of 2 bytes in one file and of 4 in another", where=place, remedy="give files of one index")
    width = widths[bins[0]]
    shard = JoinedFiles(
        str(place), place.stem, FieldFinder(), bins[0], vocabulary, _DTYPES[width], files=bins, keeps_first=boundary == "pack"
    )
    num_ids = shard.size() // width if boundary == "pack" else None
    return TokenIndex("tokengrams", [shard], width, [each for file in bins for each in (file, file.with_suffix(".idx"))], num_ids)


def _num_entries(file: Path) -> int:
    size = _size(file)
    with file.open("rb") as handle:
        if handle.read(len(_MEGATRON)) == _MEGATRON:
            raise UserError("an index of Megatron's, not of tokengrams", where=file, remedy="build one with tokengrams from its .bin")
    if size % _TOKENGRAMS_ENTRY:
        raise UserError(f"{size:,} bytes are not a whole number of entries", where=file, remedy="it is truncated: copy or build it again")
    return size // _TOKENGRAMS_ENTRY


# ---------------------------------------------------------------------------------------------------------- infini-gram


class _ReversedShard(TokenFileShard):
    """Documents whose ids are in reverse order, as in infini-gram's version 5."""

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Documents forwards; see `TokenFileShard.records`."""
        for record, fields in super().records(first, on_bad):
            yield record, {IDS_FIELD: fields[IDS_FIELD][::-1]}


def _open_infini_gram(place: Path, vocabulary: Vocabulary, *, is_reversed: bool = False) -> TokenIndex:
    """Each `tokenized` file as a shard, whose documents the separator divides."""
    names = _shard_names(place)
    fitting = [width for width in _DTYPES if all(_may_be(place, name, width) for name in names)]
    if not fitting:
        raise UserError("tokenized, offset and table files do not match each other", where=place, remedy=_AGAIN)
    width = next((width for width in fitting if vocabulary.size < 1 << (8 * width)), fitting[-1])
    divided = vocabulary._replace(end_token_id=(1 << (8 * width)) - 1)
    kind, files = _ReversedShard if is_reversed else TokenFileShard, [place / f"tokenized{name}" for name in names]
    shards = [kind(str(file), place.name, FieldFinder(), file, divided, _DTYPES[width]) for file in files]
    files = [each for file, name in zip(files, names, strict=True) for each in (file, place / f"offset{name}")]
    return TokenIndex("infini-gram", shards, width, files, is_reversed=is_reversed)


def _shard_names(place: Path) -> list[str]:
    """Suffixes of the shards' files, in order: ".0", ".1" ..., or "" for the single shard of infini-gram's version 6."""
    found = {file.name.removeprefix("tokenized") for file in place.glob("tokenized*")}
    names = [""] if found == {""} else [f".{number}" for number in range(len(found))]
    for name in sorted(found ^ set(names)):
        raise UserError(f"tokenized{name} is {'not there' if name in names else 'no shard of an index'}", where=place, remedy=_AGAIN)
    parts = ["tokenized", "offset"] + (["table"] if any(place.glob("table*")) else [])
    for file in (place / f"{part}{name}" for name in names for part in parts):
        _size(file)
    return names


def _may_be(place: Path, name: str, width: int) -> bool:
    """Whether a shard's files can be of ids of this width: begun by a separator, the last document behind one, a table of all ids."""
    ids, offsets, table = (place / f"{part}{name}" for part in ("tokenized", "offset", "table"))
    size, num_offsets = _size(ids), _size(offsets)
    if not size:
        return not num_offsets
    if size % width or num_offsets % 8 or not num_offsets:
        return False
    with ids.open("rb") as handle, offsets.open("rb") as places:
        places.seek(-8, 2)
        last = int.from_bytes(places.read(), "little")
        separators = [handle.read(width)]
        if last % width == 0 and last < size:
            handle.seek(last)
            separators.append(handle.read(width))
    # A table has an entry for each id, as wide as a place in the file of ids needs: of 300 ids of 2 bytes 2 each, since 600 > 256.
    entry = math.ceil(math.log2(size) / 8)
    fits_table = not table.exists() or table.stat().st_size == size // width * entry
    return separators == [b"\xff" * width] * 2 and fits_table
