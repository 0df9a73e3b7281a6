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
    from collections.abc import Callable
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

    `pointers` (n,) are the bytes before each sequence of ids, `firsts` (m + 1,) the numbers of the
    sequences with which documents begin, and then n. Ids, of `width` bytes, are `num_ids`.
    """

    path: Path
    pointers: np.ndarray
    firsts: np.ndarray
    width: int
    num_ids: int

    def starts(self, first: int, stop: int) -> np.ndarray:
        """The places of the first ids of documents `first` to `stop`; after the last, `num_ids`.

        Raises UserError where they are not in order, or not in the file.
        """
        sequences = self.firsts[first : stop + 1]
        pointers = self.pointers.take(sequences, mode="clip")
        is_last = sequences >= len(self.pointers)
        places = np.where(is_last, self.num_ids, pointers // self.width)
        is_in = places[0] >= 0 and places[-1] <= self.num_ids
        if not is_in or (np.diff(places) < 0).any() or (pointers % self.width).any():
            raise self.mismatch()
        return places

    def mismatch(self) -> UserError:
        """The error of an index that does not describe its file."""
        problem = "its sequences and documents do not fill its .bin one after the other"
        return UserError(problem, where=self.path, remedy="copy both again")


class Layout(NamedTuple):
    """Where ids are: type, the byte at which they begin, how many; the documents of an index."""

    dtype: str
    start: int
    length: int
    documents: MegatronIndex | None = None


class _File(NamedTuple):
    """A file of ids: `name` is what the user calls it, `head` how it begins."""

    path: Path
    name: str
    head: bytes
    size: int


def layout_of(path: Path, name: str, dtype: str | None, vocabulary: Vocabulary) -> Layout:
    """The layout of a file; `name` and `dtype` are the user's.

    Raises UserError if it is not known, OSError if the file cannot be read.
    """
    with path.open("rb") as opened:
        file = _File(path, name, opened.read(_LIT_GPT.size), opened.seek(0, 2))
    if not file.size:
        return Layout("u1", 0, 0)
    layout = _declared(file)
    if layout is None:
        return _flat(file, dtype, vocabulary)
    declared = np.dtype(layout.dtype)
    if dtype is not None and np.dtype(dtype).itemsize != declared.itemsize:
        problem = f"its ids are {declared.name}, by its header or index"
        raise UserError(problem, where=name, remedy=f"leave out :{dtype}")
    return layout


def _declared(file: _File) -> Layout | None:
    """What the file or its index says; None if neither says anything."""
    for magic, layout in _FORMATS.items():
        if file.head.startswith(magic):
            return layout(file)
    if (index := file.path.with_suffix(".idx")).is_file():
        return _of_megatron(file, index)
    # A chunk of litdata: a number n of items, n + 1 offsets, of which the first is where they end.
    number, first = struct.unpack("<2i", file.head[:8].ljust(8, b"\0"))
    if file.size >= first == 4 * (number + 2):
        remedy = "read it with litdata, and write its rows as `input_ids` to Parquet or JSON Lines"
        problem = "a chunk of litdata, which is not read here"
        raise UserError(problem, where=file.name, remedy=remedy)
    return None


def _of_numpy(file: _File) -> Layout:
    try:
        with np.errstate(over="raise"):  # else a shape that overflows is a warning before the error
            array = np.lib.format.open_memmap(file.path, mode="r")
    except Exception as error:  # of headers that are no Python literal, too
        if lacks_resources(error):
            raise
        problem = f"not an array that NumPy maps ({error})"
        raise UserError(problem, where=file.name, remedy="save it again with numpy.save") from error
    if array.dtype.kind not in "iu" or not array.flags.c_contiguous:
        problem = f"an array of {array.dtype}, shape {array.shape}"
        remedy = "save ids as one flat array of integers"
        raise UserError(problem, where=file.name, remedy=remedy)
    if rest := file.size - array.offset - array.nbytes:
        problem = f"{rest:,} bytes after its array, as if several were saved to one file"
        raise UserError(problem, where=file.name, remedy="save each to a file of its own")
    return Layout(array.dtype.str, array.offset, array.size)


def _of_lit_gpt(file: _File) -> Layout:
    if len(file.head) < _LIT_GPT.size:
        raise UserError("its header is truncated", where=file.name, remedy=_COPY)
    _, version, code, length = _LIT_GPT.unpack(file.head)
    if version != 1:
        raise _unknown(f"version {version} of lit-gpt's format", file.name)
    return _complete(file, _type_of(code, file.name), _LIT_GPT.size, length)


def _of_llm_c(file: _File) -> Layout:
    magic, version, length = struct.unpack("<3i", file.head[:12].ljust(12, b"\0"))
    if (magic, version) not in _LLM_C:
        raise _unknown(f"version {version} of llm.c's format", file.name)
    return _complete(file, _LLM_C[magic, version], _LLM_C_BYTES, length)


_FORMATS: dict[bytes, Callable[[_File], Layout]] = {
    _NUMPY: _of_numpy,
    _LIT_GPT_MAGIC: _of_lit_gpt,
    **{struct.pack("<i", magic): _of_llm_c for magic, _ in _LLM_C},
}
"""Formats that a file's first bytes tell."""


def _of_megatron(file: _File, path: Path) -> Layout:
    with path.open("rb") as opened:
        head, size = opened.read(_MEGATRON.size), opened.seek(0, 2)
    if len(head) < _MEGATRON.size or not head.startswith(_MEGATRON_MAGIC):
        remedy = f"build it again, or move it elsewhere to divide {file.name} at end tokens"
        raise UserError("no index as Megatron-LM writes it", where=path, remedy=remedy)
    _, version, code, num_sequences, num_documents = _MEGATRON.unpack(head)
    if version != 1:
        raise _unknown(f"version {version} of Megatron-LM's index", path)
    # Lengths of sequences (4 bytes each), pointers (8), first sequences of documents (8); a byte of
    # its mode may follow for each sequence.
    at_pointers = _MEGATRON.size + 4 * num_sequences
    at_firsts = at_pointers + 8 * num_sequences
    end = at_firsts + 8 * num_documents
    if not num_sequences or not num_documents or size not in (end, end + num_sequences):
        raise UserError("shorter or longer than its header says", where=path, remedy=_COPY)
    lengths = np.memmap(path, "<i4", "r", _MEGATRON.size, num_sequences)
    pointers = np.memmap(path, "<i8", "r", at_pointers, num_sequences)
    firsts = np.memmap(path, "<i8", "r", at_firsts, num_documents)
    layout = _complete(file, _type_of(code, path), 0)
    width = np.dtype(layout.dtype).itemsize
    index = MegatronIndex(path, pointers, firsts, width, layout.length)
    is_first = pointers[0] == firsts[0] == 0
    is_last = firsts[-1] == num_sequences and pointers[-1] + lengths[-1] * width == file.size
    if not (is_first and is_last):
        raise index.mismatch()
    return layout._replace(documents=index)


def _flat(file: _File, dtype: str | None, vocabulary: Vocabulary) -> Layout:
    """A file without a header, of the only type that its ids fit; of several, the named one."""
    is_text = len(file.head) == _LIT_GPT.size and not file.head.translate(None, _TEXT)
    if is_text and vocabulary.size > 256:  # where bytes are ids, text is a file of ids, too
        remedy = "name it as text: .txt, .jsonl ..."
        raise UserError("text, not ids", where=file.name, remedy=remedy)
    types = _possible_types(file.path, vocabulary.size)
    roomy = [kind for kind in types if vocabulary.size <= 256**kind.itemsize]
    if dtype is not None:
        width = np.dtype(dtype).itemsize
        fitting = [np.dtype(dtype) for kind in types if kind.itemsize == width]
    else:
        # A `.npy` without a header may also be one that is damaged.
        fitting = [] if file.path.suffix.lower() == ".npy" else roomy
    if len(fitting) == 1:
        return _complete(file, fitting[0].newbyteorder("<").str, 0)
    kinds = [kind.name for kind in reversed(types)]
    entries = f"the {vocabulary.size:,} of {vocabulary.name}"
    problem = f"no header, and its ids fit {entries} as {' or '.join(kinds) or 'no type'}"
    kind = kinds[0] if len(kinds) == 1 else "TYPE"
    remedies = [f"name their type: {file.name}:{kind}"] if kinds else []
    if not roomy:
        form = "little-endian whole numbers without a header, or numpy.save's"
        remedies = ["name their own --tokenizer", *remedies, f"write them as {form}"]
    raise UserError(problem, where=file.name, remedy=", or ".join(remedies))


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


def _complete(file: _File, dtype: str, start: int, length: int | None = None) -> Layout:
    """Ids from a byte on to the end of a file, if they are whole, and as many as a header says."""
    width = np.dtype(dtype).itemsize
    number, rest = divmod(max(0, file.size - start), width)
    if rest:
        problem = f"{file.size:,} bytes are not a whole number of ids of {width} bytes"
        remedy = "copy it again, or name the type of its ids, such as :uint32"
        raise UserError(problem, where=file.name, remedy=remedy)
    if length not in (None, number):
        problem = f"{number:,} ids, where its header has {length:,}"
        raise UserError(problem, where=file.name, remedy=_COPY)
    return Layout(dtype, start, number)


def _type_of(code: int, where: object) -> str:
    if code not in _CODES:
        raise _unknown(f"type {code} of ids", where)
    return _CODES[code]


def _unknown(kind: str, where: object) -> UserError:
    remedy = "write ids as whole numbers without a header, and name their type"
    return UserError(f"unknown {kind}", where=where, remedy=remedy)
