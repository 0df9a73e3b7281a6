"""How large the batches of an Arrow file become, by their messages, before they are decompressed.

A message says where its buffers are; one that is compressed begins with its own length.
https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from recallkit.errors import UserError
from recallkit.text.parquet_pages import grows_beyond

if TYPE_CHECKING:
    import pyarrow as pa

_FILE_FORMAT = b"ARROW1"
_CONTINUED = 0xFFFFFFFF
_DICTIONARIES, _BATCH = 2, 3
"""Kinds of messages."""
_LONGEST_MESSAGE = 1 << 24
_REMEDY = "write it again, in batches of fewer rows, with records of at most 50 MB"


def check_batch(file: pa.NativeFile, where: str) -> None:
    """Raises UserError for the next batch of a stream, or a dictionary before it, that few bytes
    become.

    The file stays where it is. What is no message is left to Arrow.
    """
    place = file.tell()
    kind, at = _check_message(file, place, where)
    while kind == _DICTIONARIES:
        kind, at = _check_message(file, at, where)
    file.seek(place)  # reading moves in files elsewhere


def check_batches(file: pa.NativeFile, where: str) -> None:
    """The same for all batches of an Arrow file."""
    kind, at = _check_message(file, start_of(file), where)
    while kind:
        kind, at = _check_message(file, at, where)


def start_of(file: pa.NativeFile) -> int:
    """Where the stream begins in a file: of the file format it is between a name and an index."""
    return 8 if file.read_at(len(_FILE_FORMAT), 0) == _FILE_FORMAT else 0


def _check_message(file: pa.NativeFile, at: int, where: str) -> tuple[int, int]:
    """The kind of the message at a byte, 0 if there is none, and the byte behind it."""
    head, length = struct.unpack("<Ii", file.read_at(8, at).ljust(8, b"\0"))
    start = at + 8
    if head != _CONTINUED:  # of files before Arrow 0.15
        length, start = head, at + 4
    if not 0 < length <= _LONGEST_MESSAGE:
        return 0, at
    try:
        message = _Message(file.read_at(length, start))
        body, size, num_bytes = start + length, max(0, message.body_bytes()), 0
        for offset, stored in message.compressed_buffers():
            own = file.read_at(8, body + offset)
            num_bytes += max(stored, int.from_bytes(own, "little", signed=True))
        kind = message.kind()
    except (struct.error, IndexError, OverflowError):
        return 0, at
    if grows_beyond(num_bytes, size):
        raise UserError(f"a batch of {num_bytes:,} bytes", where=where, remedy=_REMEDY)
    return kind, body + size


class _Message:
    """A flatbuffer with a `Message` of Arrow's format/Message.fbs.

    Raises struct.error where it is none.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._root = self._number("<I", 0)

    def kind(self) -> int:
        """_DICTIONARIES, _BATCH or another."""
        at = self._field(self._root, 1)
        return self._content[at] if at else 0

    def body_bytes(self) -> int:
        """Bytes of the body behind it."""
        at = self._field(self._root, 3)
        return self._number("<q", at) if at else 0

    def compressed_buffers(self) -> list[tuple[int, int]]:
        """Where each buffer begins in the body, and its bytes; none if they are not compressed."""
        batch = self._table(self._root, 2)
        if self.kind() == _DICTIONARIES:
            batch = self._table(batch, 1)
        if self.kind() not in (_DICTIONARIES, _BATCH) or not self._field(batch, 3):
            return []
        vector = self._table(batch, 2)
        number = self._number("<I", vector)
        pairs = struct.iter_unpack("<qq", self._content[vector + 4 : vector + 4 + 16 * number])
        return [(offset, size) for offset, size in pairs if size >= 8]

    def _number(self, form: str, at: int) -> int:
        return int(struct.unpack_from(form, self._content, at)[0])

    def _field(self, table: int, number: int) -> int:
        """Where a field of a table is; 0 if it is absent."""
        fields = table - self._number("<i", table)
        is_there = 4 + 2 * number < self._number("<H", fields)
        offset = self._number("<H", fields + 4 + 2 * number) if is_there else 0
        return table + offset if offset else 0

    def _table(self, table: int, number: int) -> int:
        """Where the table or vector is that a field refers to."""
        at = self._field(table, number)
        return at + self._number("<I", at)
