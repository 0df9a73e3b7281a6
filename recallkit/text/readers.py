"""Reads shards record by record in constant memory (arrays of JSON as a whole): JSON lines, text
files, each plain or compressed.

This is own code because `datasets` takes several times as long on `.jsonl.zst`
(tests/benchmarks/reading.py). Reading can start at any record of a shard: lines before it are
counted but not parsed.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from recallkit import config
from recallkit.errors import UserError, lacks_resources
from recallkit.storage.given_files import MAX_JSON_BYTES
from recallkit.text.fields import FieldError, FieldFinder, parse_json, too_long
from recallkit.text.places import AnyPath, RemotePath, digest_of, open_arrow, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    OnBad = Callable[[int, str, str], None]

Answer = TypeVar("Answer")

ENDINGS = ("", ".zst", ".gz", ".zstd", ".gzip")
"""Of names of files that may be compressed; the first three are the usual ones."""
_MOST_IN_ARRAY = 1 << 22
"""Objects and lists of an array of records, 240 bytes each: a gigabyte."""
_GZIP = b"\x1f\x8b"
_ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
"""How compressed files begin, whatever their names; of zstd the second is a frame to be skipped."""


def compressed(*suffixes: str) -> tuple[str, ...]:
    """The suffixes, plain and with those of compressed files."""
    return tuple(f"{suffix}{ending}" for suffix in suffixes for ending in ENDINGS)


BLOCK_BYTES = 1 << 19
"""Bytes decompressed at a time: larger blocks do not fit into the cache."""

_MOST_EMPTY_BYTES = 1 << 20
_MOST_LINE_BYTES = 1 << 30
"""Empty lines in a row, and a line, beyond which a file is damaged: a small compressed file can
contain hours of them."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WINDOW = "Frame requires too much memory for decoding"
"""zstd's message for a window beyond 128 MB, the longest that it reads by default."""


def suffix_of(name: str, suffixes: Iterable[str]) -> str | None:
    """The first of `suffixes` (in lower case) that a file's name ends with, in any case."""
    return next((suffix for suffix in suffixes if name.lower().endswith(suffix)), None)


@dataclass(eq=False)
class Shard:
    """One input of a stream; its records are numbered from 0.

    `name` is what the user sees (a path, a preset with its split), `source` the source of documents
    that do not name one, `finder` finds text, source and id in its records.
    """

    name: str
    source: str
    finder: FieldFinder
    piece: tuple[int, int] | None = field(default=None, kw_only=True)
    """(i, n): the i-th of n parts, from 0; the whole if None."""
    unit: ClassVar[str] = ""
    """What a record is, in messages, which count from `first_number` as editors and viewers do."""
    first_number: ClassVar[int] = 0
    share: float = field(default=0.0, repr=False, kw_only=True)
    """How much of it, by bytes, the latest stream in this process has read; 0 while it is not
    known."""

    def digest(self) -> str:
        """A digest that changes when the content does. Raises UserError if it cannot be read."""
        raise NotImplementedError

    def size(self) -> int | None:
        """Bytes on disk; None if unknown. Raises UserError if it no longer exists."""
        return None

    def pieces(self, most: int) -> Sequence[Self]:
        """At most `most` shards that together contain the same records in order, to be read in
        parallel; often only itself."""
        return [self]

    def _divided(self, number: int) -> Sequence[Self]:
        """So many parts of this shard, or itself if that is one."""
        if number <= 1:
            return [self]
        parts = []
        for place in range(number):
            name = f"{self.name} (part {place + 1} of {number})"
            parts.append(replace(self, name=name, piece=(place, number)))
        return parts

    def place(self, record: int) -> str:
        """Where a record is, for messages."""
        return f"{self.name}, {self.unit} {record + self.first_number}" if self.unit else self.name

    def columns(self, names: Sequence[str]) -> list[str]:
        """Those of its columns that may be needed. Raises UserError if none can contain text."""
        try:
            columns = self.finder.columns(names)
        except FieldError as error:
            raise UserError(str(error), where=self.name, remedy=error.remedy) from error
        if twice := next((name for name in columns if list(names).count(name) > 1), None):
            raise UserError(
                f"two columns named {twice}",
                where=self.name,
                remedy="rename one of them",
            )
        return columns

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Records from number `first` on, each with its number.

        For each item that is not a record, `on_bad(number, problem, remedy)` is called: it raises,
        or returns to continue. Raises UserError for a damaged or empty shard.
        """
        raise NotImplementedError


@dataclass(eq=False)
class FileShard(Shard):
    """What all shards that are files have in common."""

    path: AnyPath

    def digest(self) -> str:
        """A digest of the file's length and samples of its content; elsewhere, of what the server
        reports."""
        return self._read(digest_of)

    def size(self) -> int | None:
        """The length of the file; None if a server does not tell."""
        return self._read(size_of)

    def _read(self, read: Callable[[AnyPath], Answer]) -> Answer:
        """What is read of the file. Raises UserError if it cannot be read."""
        try:
            return read(self.path)
        except OSError as error:
            if lacks_resources(error):
                raise
            problem = f"cannot be read ({error.strerror or error})"
            raise UserError(
                problem,
                where=self.name,
                remedy="check that it is still there",
            ) from error

    def _damaged(self, error: Exception, record: int) -> UserError:
        if _WINDOW in str(error):
            options = "`zstd --long` or `--ultra` beyond 27, 128 MB"
            problem = f"compressed with a longer window than readers allow ({options})"
            remedy = f"compress it again: zstd -dc --long=31 {self.path.name} | zstd -o OTHER.zst"
            return UserError(problem, where=self.name, remedy=remedy)
        is_here = not isinstance(self.path, RemotePath)
        remedy = "the file is truncated or damaged: copy it again"
        if not is_here:
            remedy = "check the network and the file, or copy it here"
        return UserError(
            f"cannot be read further ({error})",
            where=self.place(record),
            remedy=remedy,
        )

    def _empty(self) -> UserError:
        return UserError(
            "contains no record",
            where=self.name,
            remedy="leave it out, or copy it again",
        )

    def _pieces(self, most: int) -> Iterator[bytes]:
        """Lines with their newlines, one of more than `most` bytes in several pieces; without a
        byte order mark.

        Raises OSError for damaged data, UserError for more than `_MOST_EMPTY_BYTES` of empty lines
        in a row.
        """
        with (
            open_arrow(self.path) as file,
            io.BufferedReader(file, BLOCK_BYTES) as raw,
            _decompressed(raw, self.path.name) as buffered,
        ):
            size, mark, num_empty = size_of(self.path), _BYTE_ORDER_MARK, 0
            while piece := buffered.readline(most):
                if piece.isspace():
                    num_empty += len(piece)
                    if num_empty > _MOST_EMPTY_BYTES:
                        problem = f"more than {_MOST_EMPTY_BYTES:,} bytes of empty lines in a row"
                        raise UserError(
                            problem,
                            where=self.name,
                            remedy="remove them, or copy the file again",
                        )
                else:
                    num_empty = 0
                    self.share = file.tell() / size if size else 0.0
                if text := piece.removeprefix(mark):
                    yield text
                mark = b""

    def _lines(self) -> Iterator[bytes | None]:
        """The lines, with their newlines; None for one of more than `config.MAX_RECORD_BYTES`,
        which is never held as a whole.

        Raises UserError for a line that does not end.
        """
        longest, length = config.MAX_RECORD_BYTES, 0
        for piece in self._pieces(longest + 1):
            is_end = piece.endswith(b"\n")
            if not length:
                yield piece if is_end or len(piece) <= longest else None
            length = 0 if is_end else length + len(piece)
            if length > _MOST_LINE_BYTES:
                problem = f"a line of more than {_MOST_LINE_BYTES:,} bytes"
                raise UserError(problem, where=self.name, remedy=too_long()[1])

    def _content(self, most: int) -> bytes | None:
        """All of the file; None if it has more than `most` bytes."""
        content = bytearray()
        for piece in self._pieces(BLOCK_BYTES):
            content += piece
            if len(content) > most:
                return None
        return bytes(content)


def _decompressed(raw: io.BufferedReader, name: str) -> io.BufferedReader:
    """The content of a file, compressed as its first bytes say. Damage raises OSError."""
    import pyarrow as pa

    head = raw.peek(4)[:4]
    if head.startswith(_GZIP):
        return io.BufferedReader(_Gunzipped(fileobj=raw), BLOCK_BYTES)
    if _ZSTD.match(head):
        # pyarrow rather than zstandard: equally fast, reads on after a frame, raises at a truncated
        # one.
        stream = pa.input_stream(pa.PythonFile(raw, "r"), compression="zstd")
        return io.BufferedReader(stream, BLOCK_BYTES)
    if suffix_of(name, ENDINGS[1:]) is not None and b"\0" in raw.peek():
        raise OSError("neither gzip nor zstd")
    return raw


class _Gunzipped(gzip.GzipFile):
    """All members of a gzip file; zeros after each, which fill up blocks of tapes, are skipped."""

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes."""
        try:
            return super().read(size)
        except (EOFError, zlib.error) as error:
            raise OSError(str(error)) from error


@dataclass(eq=False)
class JsonLinesShard(FileShard):
    """A file of JSON objects, one a line, plain or compressed.

    Records are its lines, blank ones counted but skipped.

    Blank lines are counted so that record numbers are an editor's line numbers less one, and so
    that a reader finds any record by counting newlines.
    """

    unit = "line"
    first_number = 1

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Objects of the lines from `first` on; see `Shard.records`."""
        number, is_empty = first - 1, first == 0
        try:
            for number, line in enumerate(self._lines()):
                if number < first or (line is not None and line.isspace()):
                    continue
                is_empty = False
                if line is None:
                    on_bad(number, *too_long())
                elif (fields := self._object_in(line, number, on_bad)) is not None:
                    yield number, fields
        except OSError as error:
            raise self._damaged(error, number + 1) from error
        if is_empty:
            raise self._empty()

    def _object_in(self, line: bytes, number: int, on_bad: OnBad) -> dict[str, Any] | None:
        """The object in a line; None where that is bad."""
        try:
            fields = parse_json(line)
        except ValueError as error:
            on_bad(number, *self._why_not_json(line, error))
            return None
        if isinstance(fields, dict):
            return fields
        on_bad(number, "not a JSON object", "each line must be an object with a text field")
        return None

    def _why_not_json(self, record: bytes, error: ValueError) -> tuple[str, str]:
        """Problem and remedy. Raises MemoryError where the machine lacks memory."""
        if lacks_resources(error):
            raise MemoryError(str(error)) from error
        if not isinstance(error, json.JSONDecodeError):
            return str(error), too_long()[1]
        problem = f"not JSON ({error.msg}, column {error.colno})"
        try:
            record.decode()
        except UnicodeDecodeError as bad_byte:
            problem = f"invalid UTF-8 at byte {bad_byte.start + 1} of the {self.unit}"
        return problem, f"fix or remove the {self.unit}"


@dataclass(eq=False)
class JsonShard(JsonLinesShard):
    """A file `.json`: an array of objects, or of texts, read at once.

    One that does not begin with `[` is taken for JSON Lines.
    """

    unit = "record"

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """The items of the array from `first` on; see `Shard.records`."""
        try:
            if not self._is_array():
                yield from super().records(first, on_bad)
                return
            content = self._content(MAX_JSON_BYTES)
        except OSError as error:
            raise self._damaged(error, 0) from error
        if content is None:
            problem = f"an array of more than {MAX_JSON_BYTES:,} bytes"
            remedy = "write it as JSON Lines: jq -c '.[]' FILE.json > FILE.jsonl"
            raise UserError(problem, where=self.name, remedy=remedy)
        try:
            items = parse_json(content, _MOST_IN_ARRAY)
        except ValueError as error:
            problem, _ = self._why_not_json(content, error)
            raise UserError(problem, where=self.name, remedy="write the file again") from error
        if not items:
            raise self._empty()
        for number, item in enumerate(items[first:], first):
            if isinstance(item, str | dict):
                yield number, {"text": item} if isinstance(item, str) else item
            else:
                remedy = "write objects with a text field, or texts"
                on_bad(number, "neither an object nor a text", remedy)

    def _is_array(self) -> bool:
        """Whether `[` is the first of its signs."""
        pieces = (piece.lstrip() for piece in self._pieces(BLOCK_BYTES))
        return next(filter(None, pieces), b"").startswith(b"[")


@dataclass(eq=False)
class TextShard(FileShard):
    """A text file: one record, the whole file, which `FieldFinder` decodes."""

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """The file's text if `first` is 0; see `Shard.records`."""
        if first > 0:
            return
        try:
            content = self._content(config.MAX_RECORD_BYTES)
        except OSError as error:
            raise self._damaged(error, 0) from error
        if content is None:
            on_bad(0, *too_long())
            return
        if not content:
            raise self._empty()
        yield 0, {"text": content}
