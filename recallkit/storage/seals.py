"""Checksums inside our Parquet files, of every byte of them.

Parquet's own checksums cover the contents of pages. Sizes, offsets, statistics and the manifest are in page headers and in the footer,
where a changed bit gives other numbers without an error. So the footer has one more entry, the *seal*: the CRC-32 of all bytes
before the footer, and that of the footer, in which the second half of the seal counts as zeros. A changed bit anywhere, the seal
included, is noticed. CRC-32 detects damage, not malice.
"""

from __future__ import annotations

import os
import time
import zlib
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from recallkit.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

KEY = "recallkit.seal"
EMPTY = "0" * 16
"""What a writer enters under KEY, last of all, before it closes the file."""

_HALF = len(EMPTY) // 2
_ENTRY = b"\x18" + bytes([len(KEY)]) + KEY.encode() + b"\x18" + bytes([len(EMPTY)])
"""KEY in a footer (Thrift's compact protocol): type and length of the key, the key, type and length of the value."""
_TAIL = 8
"""At the end of a Parquet file: the footer's length, four bytes little-endian, and `PAR1`."""
_BLOCK = 1 << 22

SETTLING_NS = 2_000_000_000
"""Times of files are coarse: a second write within this interval would not change them."""


class DamagedError(UserError):
    """A file of ours is not as it was written."""


class _Footer(NamedTuple):
    """Where a footer begins, its bytes to the end of the file, and the place of the seal in them."""

    start: int
    content: bytearray
    seal: int

    def value(self) -> str:
        return self.content[self.seal : self.seal + len(EMPTY)].decode("latin1")

    def checksum(self) -> str:
        """The CRC-32, in hexadecimal, without the second half of the seal."""
        content = self.content.copy()
        content[self.seal + _HALF : self.seal + len(EMPTY)] = EMPTY[_HALF:].encode()
        return _hexadecimal(zlib.crc32(content))


def seal(path: Path) -> None:
    """Fills in the seal of a Parquet file whose metadata has EMPTY as KEY."""
    with path.open("r+b") as file:
        footer = _read_footer(file)
        if footer is None or footer.value() != EMPTY:
            raise ValueError(f"{path} has no empty seal")
        body = _checksum(file, footer.start)
        footer.content[footer.seal : footer.seal + _HALF] = body.encode()
        file.seek(footer.start + footer.seal)
        file.write((body + footer.checksum()).encode())


def check_seal(path: Path, file: BinaryIO, remedy: str) -> None:
    """Raises DamagedError if a byte of an open Parquet file of ours is not as it was written. Reads the whole file; see `checksum`."""
    footer = _read_footer(file)
    if footer is None or footer.value()[_HALF:] != footer.checksum():
        raise DamagedError("damaged (its footer is not as it was written)", where=path, remedy=remedy)
    if footer.value()[:_HALF] != checksum(path, file, footer.start):
        raise DamagedError("damaged (its content is not as it was written)", where=path, remedy=remedy)


def checksum(path: Path, file: BinaryIO, length: int) -> str:
    """The CRC-32 of the first bytes of an open file, in hexadecimal; cached in this process until anything about the file changes."""
    state, started = (length, *file_state(os.fstat(file.fileno()))), time.time_ns()
    known = _known.get(path)
    if known is not None and known[0] == state:
        return known[1]
    found = _checksum(file, length)
    if started - max(state[2:4]) > SETTLING_NS and state[1:] == file_state(os.fstat(file.fileno())):
        _known[path] = state, found
    return found


def file_checksum(path: Path) -> str:
    """`checksum` of a whole file."""
    with path.open("rb") as file:
        return checksum(path, file, os.fstat(file.fileno()).st_size)


_known: dict[Path, tuple[tuple[int, ...], str]] = {}
"""Files that this process read -> how many bytes of them, their state then, and the checksum."""


def file_state(state: os.stat_result) -> tuple[int, ...]:
    """What changes when a file does: length, times of change of the content and of the inode (ns), inode, device."""
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino, state.st_dev


def _read_footer(file: BinaryIO) -> _Footer | None:
    """None if the file has no footer, or the footer no seal."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    start = size - _TAIL - int.from_bytes(file.read(4), "little")
    if not 0 <= start <= size - _TAIL:
        return None
    file.seek(start)
    content = bytearray(file.read())
    entry = content.rfind(_ENTRY)  # text of the corpus can be in statistics, which come before
    place = entry + len(_ENTRY)
    return None if entry < 0 or place + len(EMPTY) > len(content) else _Footer(start, content, place)


def _checksum(file: BinaryIO, length: int) -> str:
    file.seek(0)
    found, left = 0, length
    while left and (block := file.read(min(left, _BLOCK))):
        found, left = zlib.crc32(block, found), left - len(block)
    return _hexadecimal(found)


def _hexadecimal(found: int) -> str:
    return f"{found:08x}"
