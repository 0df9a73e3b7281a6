"""How the ids of a file are stored: as its magic or index says, or the user; as its content proves.

A wrong type gives plausible numbers of another text: where two are possible the file is refused.
"""

from __future__ import annotations

import string
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recallkit.errors import UserError, lacks_resources

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from recallkit.text.records import Vocabulary

_NUMPY = b"\x93NUMPY"
_LIT_GPT = struct.Struct("<7sQBQ")
"""lit_gpt/packed_dataset.py: magic, version, code of the type, number of ids; the ids follow."""
_LIT_GPT_MAGIC = b"LITPKDS"
_LLM_C = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
"""Magic number and version (dev/data/data_common.py of llm.c); the number of ids follows."""
_LLM_C_BYTES = 1024
_MEGATRON = struct.Struct("<9sQBQQ")
"""megatron/core/datasets/indexed_dataset.py: magic, version, type, sequences, documents + 1."""
_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""The codes of types in lit-gpt's files and Megatron-LM's."""

_BLOCK_SEQUENCES = 1 << 20
_TEXT = string.printable.encode()
"""Bytes of plain text: ids that consist of them alone would all be large."""
_FLAT = ("<i8", "<u4", "<u2", "u1")
"""Types of a file without a header, the widest first. Signed ids have the same bytes."""
_SAMPLE_BYTES = 1 << 18
_FEW = 16
"""Of ids that are read too narrow every second one is below it; as many others exclude chance."""
_COPY = "copy it again: it is truncated or damaged"


@dataclass(frozen=True, slots=True)
class MegatronIndex:
    """An `.idx`, mapped into memory: a document is one sequence, or several in a row.

    `lengths` (n,) are the ids of each sequence, `pointers` (n,) the bytes before it, `firsts`
    (m + 1,) the numbers of the sequences with which documents begin, and then n.
    """

    path: Path
    lengths: np.ndarray
    pointers: np.ndarray
    firsts: np.ndarray

    def check(self, width: int, num_ids: int) -> None:
        """Raises UserError unless sequences, of ids of `width` bytes, and documents fill the file."""
        is_right = (
            self.pointers[0] == self.firsts[0] == 0
            and self.firsts[-1] == len(self.lengths)
            and all((np.diff(firsts) >= 0).all() for firsts in _blocks(self.firsts, overlap=1))
            and all(lengths.min() >= 0 for lengths in _blocks(self.lengths))
            and self._are_adjacent(width, num_ids)
        )
        if not is_right:
            problem = "its sequences and documents do not fill its .bin one after the other"
            raise UserError(problem, where=self.path, remedy="copy both again")

    def _are_adjacent(self, width: int, num_ids: int) -> bool:
        """Whether each sequence begins where the one before ends, and the last one ends the file."""
        end = 0
        for lengths, pointers in zip(_blocks(self.lengths), _blocks(self.pointers), strict=True):
            ends = pointers[0] + np.cumsum(lengths, dtype=np.int64) * width
            if pointers[0] != end or not np.array_equal(ends[:-1], pointers[1:]):
                return False
            end = ends[-1]
        return bool(end == num_ids * width)

    def starts(self, first: int, stop: int, width: int, num_ids: int) -> np.ndarray:
        """The places of the first ids of documents `first` to `stop`; after the last, `num_ids`."""
        sequences = self.firsts[first : stop + 1]
        places = self.pointers.take(sequences, mode="clip") // width
        return np.where(sequences < len(self.lengths), places, num_ids)


def _blocks(column: np.ndarray, overlap: int = 0) -> Iterator[np.ndarray]:
    """A column in parts: an index of Megatron-LM can be larger than memory."""
    for start in range(0, len(column), _BLOCK_SEQUENCES):
        yield column[start : start + _BLOCK_SEQUENCES + overlap]


class Layout(NamedTuple):
    """Where ids are: type, the byte at which they begin, how many; the documents of an index."""

    dtype: str
    start: int
    length: int
    documents: MegatronIndex | None = None


def layout_of(path: Path, name: str, dtype: str | None, vocabulary: Vocabulary) -> Layout:
    """The layout of a file; `name` and `dtype` are the user's.

    Raises UserError if it is not known, OSError if the file cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(_LIT_GPT.size)
        size = file.seek(0, 2)
    if not size:
        return Layout("u1", 0, 0)
    layout = _declared(path, name, head, size)
    if layout is None:
        # Where bytes are ids, text is a file of ids, too.
        if len(head) == _LIT_GPT.size and vocabulary.size > 256 and not head.translate(None, _TEXT):
            raise UserError("text, not ids", where=name, remedy="name it as text: .txt, .jsonl ...")
        return _flat(path, name, size, dtype, vocabulary)
    declared = np.dtype(layout.dtype)
    if dtype is not None and np.dtype(dtype).itemsize != declared.itemsize:
        problem = f"its ids are {declared.name}, by its header or index"
        raise UserError(problem, where=name, remedy=f"leave out :{dtype}")
    return layout


def _declared(path: Path, name: str, head: bytes, size: int) -> Layout | None:
    """What the file or its index says; None if neither says anything."""
    if head.startswith(_NUMPY):
        return _of_numpy(path, name, size)
    if head.startswith(_LIT_GPT_MAGIC):
        if len(head) < _LIT_GPT.size:
            raise UserError("its header is truncated", where=name, remedy=_COPY)
        _, version, code, length = _LIT_GPT.unpack(head)
        if version != 1:
            raise _unknown(f"version {version} of lit-gpt's format", name)
        return _complete(name, _type_of(code, name), _LIT_GPT.size, size, length)
    first, second, third = struct.unpack("<3i", head[:12].ljust(12, b"\0"))
    if first in {magic for magic, _ in _LLM_C}:
        if (first, second) not in _LLM_C:
            raise _unknown(f"version {second} of llm.c's format", name)
        return _complete(name, _LLM_C[first, second], _LLM_C_BYTES, size, third)
    if (index := path.with_suffix(".idx")).is_file():
        return _of_megatron(index, name, size)
    # A chunk of litdata: a number n of items, n + 1 offsets, of which the first is where they end.
    if len(head) >= 8 and size >= second == 4 * (first + 2):
        remedy = "read it with litdata, and write its rows as `input_ids` to Parquet or JSON Lines"
        raise UserError("a chunk of litdata, which is not read here", where=name, remedy=remedy)
    return None


def _of_numpy(path: Path, name: str, size: int) -> Layout:
    try:
        with np.errstate(over="raise"):  # else a shape that overflows is a warning before the error
            array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # of headers that are no Python literal, too
        if lacks_resources(error):
            raise
        problem = f"not an array that NumPy maps ({error})"
        raise UserError(problem, where=name, remedy="save it again with numpy.save") from error
    if array.dtype.kind not in "iu" or not array.flags.c_contiguous:
        problem = f"an array of {array.dtype}, shape {array.shape}"
        raise UserError(problem, where=name, remedy="save ids as one flat array of integers")
    if rest := size - array.offset - array.nbytes:
        problem = f"{rest:,} bytes after its array, as if several were saved to one file"
        raise UserError(problem, where=name, remedy="save each to a file of its own")
    return Layout(array.dtype.str, array.offset, array.size)


def _of_megatron(index: Path, name: str, size: int) -> Layout:
    with index.open("rb") as file:
        head = file.read(_MEGATRON.size)
        index_size = file.seek(0, 2)
    if len(head) < _MEGATRON.size or not head.startswith(_MEGATRON_MAGIC):
        remedy = f"build it again, or move it elsewhere to divide {name} at end tokens"
        raise UserError("no index as Megatron-LM writes it", where=index, remedy=remedy)
    _, version, code, num_sequences, num_documents = _MEGATRON.unpack(head)
    if version != 1:
        raise _unknown(f"version {version} of Megatron-LM's index", index)
    sizes = (("<i4", num_sequences), ("<i8", num_sequences), ("<i8", num_documents))
    start = _MEGATRON.size
    end = start + sum(np.dtype(kind).itemsize * number for kind, number in sizes)
    # A byte of its mode may follow for each sequence.
    if not num_sequences or not num_documents or index_size not in (end, end + num_sequences):
        raise UserError("shorter or longer than its header says", where=index, remedy=_COPY)
    columns = []
    for kind, number in sizes:
        columns.append(np.memmap(index, kind, "r", start, number))
        start += columns[-1].nbytes
    documents = MegatronIndex(index, *columns)
    return _complete(name, _type_of(code, index), 0, size)._replace(documents=documents)


def _flat(path: Path, name: str, size: int, dtype: str | None, vocabulary: Vocabulary) -> Layout:
    """A file without a header, of the only type that its ids can have; of several, the named one."""
    types = _possible_types(path, vocabulary.size)
    roomy = [kind for kind in types if vocabulary.size <= 256**kind.itemsize]
    if dtype is not None:
        width = np.dtype(dtype).itemsize
        fitting = [np.dtype(dtype) for kind in types if kind.itemsize == width]
    else:
        # A `.npy` without a header may also be one that is damaged.
        fitting = [] if path.suffix.lower() == ".npy" else roomy
    if len(fitting) == 1:
        return _complete(name, fitting[0].newbyteorder("<").str, 0, size)
    kinds = [kind.name for kind in reversed(types)]
    entries = f"the {vocabulary.size:,} of {vocabulary.name}"
    problem = f"no header, and its ids fit {entries} as {' or '.join(kinds) or 'no type'}"
    kind = kinds[0] if len(kinds) == 1 else "TYPE"
    remedies = [f"name their type: {name}:{kind}"] if kinds else []
    if not roomy:
        form = "little-endian whole numbers without a header, or numpy.save's"
        remedies = ["name their own --tokenizer", *remedies, f"write them as {form}"]
    raise UserError(problem, where=name, remedy=", or ".join(remedies))


def _possible_types(path: Path, num_entries: int) -> list[np.dtype[Any]]:
    """The types with which all sampled ids are in the vocabulary, widest first.

    Ids that are read too wide are not in the vocabulary, as two of them are one large number. Read
    too narrow, every second one is 0 or a few: 100,000 in 32 bits is 34,464 and 1 in 16 bits.
    """
    samples = []
    with path.open("rb") as file:
        size = file.seek(0, 2)
        for start in (0, size // 2, size - _SAMPLE_BYTES):
            file.seek(max(0, start) // 8 * 8)
            samples.append(file.read(_SAMPLE_BYTES))
    types = []
    for dtype in map(np.dtype, _FLAT):
        width = dtype.itemsize
        if width == 1 and num_entries > 256:  # where all bytes are ids, every file would fit
            continue
        ids = [np.frombuffer(sample[: len(sample) // width * width], dtype) for sample in samples]
        low = np.unique(np.concatenate([sample[::2] for sample in ids]))
        high = np.unique(np.concatenate([sample[1::2] for sample in ids]))
        both = np.union1d(low, high)
        is_narrow = len(high) and high[-1] < _FEW <= len(low)
        is_swapped = len(high) and low[-1] < _FEW <= len(high)  # of big-endian ids
        is_in = len(both) and both[0] >= 0 and both[-1] < num_entries
        if is_in and not is_narrow and not is_swapped:
            types.append(dtype)
    return types


def _complete(name: str, dtype: str, start: int, size: int, length: int | None = None) -> Layout:
    """Ids from a byte on to the end of a file, if they are whole, and as many as a header says."""
    width = np.dtype(dtype).itemsize
    number, rest = divmod(max(0, size - start), width)
    if rest:
        problem = f"{size:,} bytes are not a whole number of ids of {width} bytes"
        remedy = "copy it again, or name the type of its ids, such as :uint32"
        raise UserError(problem, where=name, remedy=remedy)
    if length not in (None, number):
        problem = f"{number:,} ids, where its header has {length:,}"
        raise UserError(problem, where=name, remedy=_COPY)
    return Layout(dtype, start, number)


def _type_of(code: int, where: object) -> str:
    if code not in _CODES:
        raise _unknown(f"type {code} of ids", where)
    return _CODES[code]


def _unknown(kind: str, where: object) -> UserError:
    remedy = "write ids as whole numbers without a header, and name their type"
    return UserError(f"unknown {kind}", where=where, remedy=remedy)
