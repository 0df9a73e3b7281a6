"""Flat files of token ids, mapped into memory: `.npy` of NumPy, `.bin` of nanoGPT, llm.c and Megatron-LM.

Ids are of the tokenizer that is given; its end token divides them into documents, as it does in the stream that we make of text.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from recallkit.errors import UserError, lacks_resources
from recallkit.storage import artifacts
from recallkit.text.fields import IDS_FIELD
from recallkit.text.readers import FileShard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recallkit.text.readers import OnBad
    from recallkit.text.records import Vocabulary

LONGEST_DOCUMENT = 1 << 26
"""Ids of the longest document that is read, at most 512 MB: in a longer one the end token is another."""

PIECE_BYTES = 1 << 26
"""What one process counts at a time of a large file."""

_BLOCK_IDS = 1 << 22
_SAMPLED_IDS = 1 << 16

_LLM_C = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
"""Magic number and version of llm.c's files (dev/data/data_common.py), 32-bit integers; the number of ids follows."""
_LLM_C_BYTES = 1024
_MEGATRON = struct.Struct("<9sQBQ")
_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""The .idx beside Megatron-LM's .bin (megatron/core/datasets/indexed_dataset.py): magic, version, code of the type, number of documents."""


class _Layout(NamedTuple):
    """Where the ids of a file are: their type, the byte at which they begin, and how many there are."""

    dtype: str
    start: int
    length: int
    num_documents: int | None = None
    """As Megatron-LM's .idx has it; None if there is none."""


@dataclass(eq=False)
class TokenFileShard(FileShard):
    """A flat file of ids. A record is a document, its number the place of its first id in the file.

    `dtype` is the type that the user gave for a `.bin` file: `uint16`, `uint32` ...; without it, it is found (`_layout_of_bin`).
    """

    vocabulary: Vocabulary | None = None
    dtype: str | None = None

    def place(self, record: int) -> str:
        """File, and the place of a document's first id, from 0."""
        return f"{self.name}, document from id {record:,}"

    def digest(self) -> str:
        """The digest of the file and of how it is read. Raises UserError if that is not to be found out."""
        layout = self._layout()
        return artifacts.digest_json([FileShard.digest(self), layout.dtype, layout.start])

    def size(self) -> int:
        """The length of the file, or of its part. Raises UserError if its type is not to be found out."""
        layout, (number, parts) = self._layout(), self.piece or (0, 1)
        return np.dtype(layout.dtype).itemsize * (layout.length * (number + 1) // parts - layout.length * number // parts)

    def pieces(self, most: int) -> Sequence[Self]:
        """Parts of some 64 MB, divided between documents."""
        return self._divided(min(most, self.size() // PIECE_BYTES))

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Documents whose first id is at `first` or later, without their end tokens; one at the very start of the file ends nothing.

        A piece (i, n) has the documents that begin in the i-th of n equal parts.
        """
        whole, end, (number, parts) = self._ids(), self._known().end_token_id, self.piece or (0, 1)
        start = self._document_at(whole, max(first, len(whole) * number // parts), end)
        last = self._document_at(whole, len(whole) * (number + 1) // parts, end)
        is_empty = first == 0 and parts == 1
        for at in range(start, last, _BLOCK_IDS):
            block = whole[at : min(at + _BLOCK_IDS, last)]
            self.share = (at + len(block)) * parts / len(whole) - number
            for stop in (np.flatnonzero(block == end) + at).tolist():
                yield start, {IDS_FIELD: whole[start:stop]}
                start, is_empty = stop + 1, False
            if at + len(block) - start > LONGEST_DOCUMENT:
                problem = f"no end token (id {end}) among {LONGEST_DOCUMENT:,} ids"
                raise UserError(problem, where=self.place(start), remedy="name the one that ends documents with --end-token")
        if start < last:
            self._check_division(start)
            yield start, {IDS_FIELD: whole[start:last]}
        elif is_empty:
            raise self._empty()

    def _document_at(self, ids: Any, first: int, end: int) -> int:
        """Where the first document begins that begins at `first` or later."""
        if first == 0:
            return int(ids[:1][0] == end)
        for at in range(first - 1, len(ids), _BLOCK_IDS):
            ends = np.flatnonzero(ids[at : at + _BLOCK_IDS] == end)
            if len(ends):
                return at + int(ends[0]) + 1
        return len(ids)

    def _check_division(self, start: int) -> None:
        """Raises UserError for a file without end tokens whose .idx knows of documents: `start` is where the last one begins."""
        if start == 0 and (self._layout().num_documents or 0) > 1:
            remedy = "write it with Megatron-LM's --append-eod, or name the token that ends documents with --end-token"
            raise UserError("no end token between its documents", where=self.name, remedy=remedy)

    def _known(self) -> Vocabulary:
        if self.vocabulary is None:
            raise UserError("token ids, and no tokenizer is named", where=self.name, remedy="name theirs with --tokenizer")
        return self.vocabulary

    def _ids(self) -> np.ndarray:
        """All ids, mapped."""
        layout = self._layout()
        if not layout.length:
            raise self._empty()
        try:
            return np.memmap(Path(str(self.path)), np.dtype(layout.dtype), "r", layout.start, layout.length)
        except (OSError, ValueError) as error:
            if lacks_resources(error):
                raise
            raise self._damaged(error, 0) from error

    def _layout(self) -> _Layout:
        if not isinstance(self.path, Path):
            raise UserError("token files are mapped into memory", where=self.name, remedy="copy it here")
        try:
            return self._layout_of_npy(self.path) if self.path.name.lower().endswith(".npy") else self._layout_of_bin(self.path)
        except OSError as error:
            raise self._damaged(error, 0) from error

    def _layout_of_npy(self, path: Path) -> _Layout:
        try:
            with np.errstate(over="raise"):  # else a shape that overflows is a warning before the error
                array = np.lib.format.open_memmap(path, mode="r")
        except Exception as error:  # of headers that are no Python literal, too
            if lacks_resources(error):
                raise
            raise UserError(f"not an array that NumPy maps ({error})", where=self.name, remedy="save it again with numpy.save") from error
        if array.dtype.kind not in "iu" or not array.flags.c_contiguous:
            problem = f"an array of {array.dtype}, shape {array.shape}"
            raise UserError(problem, where=self.name, remedy="save ids as one flat array of integers")
        return _Layout(array.dtype.str, array.offset, array.size)

    def _layout_of_bin(self, path: Path) -> _Layout:
        """How a `.bin` is read: as the user says; as llm.c's header says; as Megatron-LM's `.idx` beside it says; else by the vocabulary.

        The last is nanoGPT's way: two bytes for vocabularies of up to 65,536 entries, four for larger ones, and no header.
        """
        size = path.stat().st_size
        if self.dtype is not None:
            return self._checked(np.dtype(self.dtype).newbyteorder("<").str, 0, size)
        with path.open("rb") as file:
            head = np.frombuffer(file.read(12).ljust(12, b"\0"), "<i4").tolist()
        if (dtype := _LLM_C.get((head[0], head[1]))) is not None:
            layout = self._checked(dtype, _LLM_C_BYTES, size)
            if layout.length != head[2]:
                problem = f"{layout.length:,} ids, where its header has {head[2]:,}"
                raise UserError(problem, where=self.name, remedy="the file is truncated or damaged: copy it again")
            return layout
        if (found := self._megatron_index(path)) is not None:
            return self._checked(found[0], 0, size)._replace(num_documents=found[1])
        layout = self._checked("<u2" if self._known().size <= 1 << 16 else "<u4", 0, size)
        if layout.dtype == "<u2" and _looks_wider(path):
            problem = "every second of its 16-bit ids is 0, as in a file of 32 bits"
            raise UserError(problem, where=self.name, remedy=f"say what it is: {self.name}:uint32, or {self.name}:uint16")
        return layout

    def _megatron_index(self, path: Path) -> tuple[str, int] | None:
        """Type of the ids and number of documents, if Megatron-LM wrote the file."""
        index = path.with_suffix(".idx")
        if not index.is_file():
            return None
        with index.open("rb") as file:
            head = file.read(_MEGATRON.size)
        if not head.startswith(_MEGATRON_MAGIC) or len(head) < _MEGATRON.size:
            return None
        _, _, code, num_documents = _MEGATRON.unpack(head)
        if code not in _MEGATRON_DTYPES:
            raise UserError(f"ids of type {code}", where=index, remedy=f"name their type: {self.name}:uint16, or another")
        return _MEGATRON_DTYPES[code], num_documents

    def _checked(self, dtype: str, start: int, size: int) -> _Layout:
        width = np.dtype(dtype).itemsize
        if size < start or (size - start) % width:
            problem = f"{size:,} bytes are not whole ids of {width} bytes"
            raise UserError(problem, where=self.name, remedy=f"name their type, such as {self.name}:uint32, or copy it again")
        return _Layout(dtype, start, (size - start) // width)


def _looks_wider(path: Path) -> bool:
    """Whether the file begins with 32-bit integers below 65,536, but not with zeros alone."""
    with path.open("rb") as file:
        start = file.read(4 * _SAMPLED_IDS)
    words = np.frombuffer(start[: len(start) // 4 * 4], "<u2")
    return len(words) > 2 and bool(words[::2].any()) and not words[1::2].any()
