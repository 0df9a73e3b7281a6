"""Reads local shards record by record in constant memory: JSON lines (plain, zstd, gzip), Parquet rows, text files.

This is own code because `datasets` takes several times as long on `.jsonl.zst` (tests/benchmarks/reading.py).
Reading can start at any record of a shard: lines before it are counted but not parsed, row groups before it are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from recallkit import config
from recallkit.errors import UserError, lacks_resources
from recallkit.storage import artifacts
from recallkit.text.fields import FieldError, FieldFinder, too_long

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    OnBad = Callable[[int, str, str], None]

COMPRESSION = {".jsonl": None, ".jsonl.zst": "zstd", ".jsonl.gz": "gzip"}
"""Suffixes of JSON Lines files, and the compression that each implies."""

BLOCK_BYTES = 1 << 19
"""Bytes decompressed at a time: larger blocks do not fit into the cache, smaller ones divide more lines."""

_BATCH_BYTES = 1 << 22
_MAX_BATCH_ROWS = 1024
_MAX_ROW_BYTES = 2 * config.MAX_RECORD_BYTES
"""Mean bytes per row of a row group: if they exceed it, the group is refused before it is decoded."""
_REPEATED_BYTES, _MOST_REPEATED = 64, 1 << 28
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def suffix_of(name: str, suffixes: Iterable[str]) -> str | None:
    """The first of `suffixes` (in lower case) that a file's name ends with, in any case."""
    return next((suffix for suffix in suffixes if name.lower().endswith(suffix)), None)


class Shard(Protocol):
    """One input of a stream; its records are numbered from 0.

    `name` is what the user sees (a path, a preset with its split), `source` the source of documents that do not name one,
    `finder` finds text, source and id in its records.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 (said above)

    @property
    def source(self) -> str: ...  # noqa: D102

    @property
    def finder(self) -> FieldFinder: ...  # noqa: D102

    def digest(self) -> str:
        """A digest that changes when the content does."""

    def size(self) -> int | None:
        """Bytes on disk; None if unknown."""

    def pieces(self, most: int) -> Sequence[Shard]:
        """At most `most` shards that together contain the same records in order, to be read in parallel; often only itself."""

    def place(self, record: int) -> str:
        """Where a record is, for messages: numbered as an editor or a table viewer does."""

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Records from number `first` on, each with its number.

        For each item that is not a record, `on_bad(number, problem, remedy)` is called: it raises, or returns to continue.
        Raises UserError for a damaged or empty shard.
        """


@dataclass(frozen=True, slots=True)
class FileShard:
    """What all shards that are files have in common."""

    name: str
    path: Path
    source: str
    finder: FieldFinder

    def digest(self) -> str:
        """A digest of the file's length and samples of its content."""
        return artifacts.digest_sample(self.path)

    def size(self) -> int | None:
        """The length of the file."""
        return self.path.stat().st_size

    def pieces(self, most: int) -> Sequence[Self]:
        """This shard alone, which cannot be divided."""
        return [self]

    def _damaged(self, error: Exception, record: int) -> UserError:
        remedy = "the file is truncated or damaged: copy it again"
        return UserError(f"cannot be read further ({error})", where=self.place(record), remedy=remedy)

    def _empty(self) -> UserError:
        return UserError("contains no record", where=self.name, remedy="leave it out, or copy it again")

    def place(self, record: int) -> str:
        """The file itself: it is one record unless the format says otherwise."""
        return self.name


@dataclass(frozen=True, slots=True)
class JsonLinesShard(FileShard):
    """A file of JSON objects, one a line, plain or compressed. Records are its lines, blank ones counted but skipped.

    Blank lines are counted so that record numbers are an editor's line numbers less one, and so that a reader finds any record
    by counting newlines.
    """

    compression: str | None = None

    def place(self, record: int) -> str:
        """File and line, from 1."""
        return f"{self.name}, line {record + 1}"

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Objects of the lines from `first` on; see `Shard.records`."""
        import orjson

        number, is_empty, num_blank = first - 1, first == 0, 0
        try:
            for number, line in enumerate(split_lines(skip_lines(self._blocks(), first)), first):
                if line is None:
                    is_empty = False
                    on_bad(number, *too_long())
                    continue
                if not line:
                    num_blank += 1
                    if num_blank > config.MAX_RECORD_BYTES:  # a small compressed file can contain hours of them
                        raise UserError(f"{num_blank:,} empty lines in a row", where=self.place(number), remedy="copy the file again")
                    continue
                num_blank = 0
                try:
                    fields = orjson.loads(line)
                except orjson.JSONDecodeError as error:
                    if bytes(line).isspace():
                        continue
                    on_bad(number, _why_not_json(line, error), "fix or remove the line")
                else:
                    if isinstance(fields, dict):
                        yield number, fields
                    else:
                        on_bad(number, "not a JSON object", "each line must be an object with a text field")
                is_empty = False
        except OSError as error:
            raise self._damaged(error, number + 1) from error
        if is_empty:
            raise self._empty()

    def _blocks(self) -> Iterator[bytes]:
        """Decompressed blocks. Raises OSError for damaged data.

        pyarrow rather than zstandard: equally fast, continues across frames, and raises if the last one is truncated.
        """
        import pyarrow as pa

        with pa.OSFile(str(self.path)) as file, pa.input_stream(file, compression=self.compression) as stream:
            block = stream.read(BLOCK_BYTES).removeprefix(_BYTE_ORDER_MARK)
            while block:
                yield block
                block = stream.read(BLOCK_BYTES)


def skip_lines(blocks: Iterable[bytes], num_lines: int) -> Iterator[bytes]:
    """The blocks' content after its first `num_lines` lines, found without splitting them."""
    for block in blocks:
        num_ends = block.count(b"\n") if num_lines else 0
        if num_ends < num_lines:
            num_lines -= num_ends
            continue
        start = 0
        for _ in range(num_lines):
            start = block.index(b"\n", start) + 1
        num_lines = 0
        yield block[start:]


def split_lines(blocks: Iterable[bytes]) -> Iterator[bytearray | memoryview | None]:
    """The lines of blocks, without their newlines; None for a line of more than `config.MAX_RECORD_BYTES`.

    None is yielded as soon as the limit is exceeded, so no more than that is ever buffered. Views and bytearrays stay valid,
    because their memory is not reused.
    """
    longest = config.MAX_RECORD_BYTES
    begun, is_cut = bytearray(), False  # the part of a line in earlier blocks; whether it exceeded the limit there
    for block in blocks:
        view, start = memoryview(block), 0
        while (end := block.find(b"\n", start)) >= 0:
            line: bytearray | memoryview = view[start:end]
            start = end + 1
            if begun:
                begun += line
                line, begun = begun, bytearray()
            if not is_cut:
                yield line if len(line) <= longest else None
            is_cut = False
        if is_cut:
            continue
        begun += view[start:]
        if len(begun) > longest:
            begun, is_cut = bytearray(), True
            yield None
    if begun:
        yield begun


def _why_not_json(line: bytearray | memoryview, error: Any) -> str:
    try:
        bytes(line).decode()
    except UnicodeDecodeError as bad_byte:
        return f"invalid UTF-8 at byte {bad_byte.start + 1} of the line"
    return f"not JSON ({error.msg}, column {error.colno})"


@dataclass(frozen=True, slots=True)
class ParquetShard(FileShard):
    """A Parquet file: records are its rows, counted from 0. Only columns that may be needed are read."""

    def place(self, record: int) -> str:
        """File and row, from 0."""
        return f"{self.name}, row {record}"

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows from `first` on as dictionaries; see `Shard.records`. Raises UserError if no column can contain text."""
        import pyarrow as pa

        row = first
        try:
            for start, batch in self._batches(first):
                for row, fields in enumerate(_rows(batch), start):
                    if isinstance(fields, str):
                        on_bad(row, fields, "write the file again from valid text")
                    else:
                        yield row, fields
        except FieldError as error:
            raise UserError(str(error), where=self.name, remedy=error.remedy) from error
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            if lacks_resources(error):
                raise
            raise self._damaged(error, row) from error

    def _batches(self, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches of a few megabytes from row `first` on, each with the number of its first row."""
        import pyarrow.parquet as pq

        # Without pre_buffer, pyarrow reads a column in pieces of buffer_size rather than a whole row group at once.
        with pq.ParquetFile(self.path, pre_buffer=False, buffer_size=BLOCK_BYTES) as file:
            if file.metadata.num_rows == 0:
                raise self._empty()
            names = file.schema_arrow.names
            columns = self.finder.columns(names)
            if twice := next((name for name in columns if names.count(name) > 1), None):
                raise UserError(f"two columns {twice}", where=self.name, remedy="rename one of them")
            start = 0
            for index in range(file.num_row_groups):
                group = file.metadata.row_group(index)
                if start + group.num_rows <= first:
                    start += group.num_rows
                    continue
                if group.total_byte_size > group.num_rows * _MAX_ROW_BYTES:
                    raise UserError("rows longer than any document", where=self.place(start), remedy=too_long()[1])
                for batch in file.iter_batches(
                    _rows_at_once(group.num_rows, group.total_byte_size), row_groups=[index], columns=columns, use_threads=False
                ):
                    skipped = min(batch.num_rows, max(0, first - start))
                    yield start + skipped, batch.slice(skipped)
                    start += batch.num_rows


def _rows_at_once(num_rows: int, num_bytes: int) -> int:
    """Rows of a row group to decode together: a few megabytes, by the uncompressed size recorded in the footer.

    If rows take almost no space there, one stored value may be repeated in all of them.
    """
    usual = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES * num_rows // max(1, num_bytes)))
    return usual if num_bytes > num_rows * _REPEATED_BYTES else max(1, min(usual, _MOST_REPEATED // max(1, num_bytes)))


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | str]:
    """The rows of a batch; or why Python cannot represent one: text that is not UTF-8 (Parquet readers do not check), a date."""
    import pyarrow as pa

    failures = (ValueError, OverflowError, LookupError, pa.ArrowException)
    try:
        yield from batch.to_pylist()
    except failures:
        for row in range(batch.num_rows):
            try:
                yield batch.slice(row, 1).to_pylist()[0]
            except UnicodeDecodeError:
                yield "invalid UTF-8"
            except failures as error:
                yield f"a value that cannot be read ({next(iter(str(error).splitlines()), type(error).__name__)})"


@dataclass(frozen=True, slots=True)
class TextShard(FileShard):
    """A text file: one record, the whole file."""

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """The file's text if `first` is 0; see `Shard.records`."""
        if first > 0:
            return
        try:
            size = self.path.stat().st_size
            content = self.path.read_bytes() if size <= config.MAX_RECORD_BYTES else b""
        except OSError as error:
            raise self._damaged(error, 0) from error
        if size == 0:
            raise self._empty()
        if size > config.MAX_RECORD_BYTES:
            on_bad(0, *too_long())
            return
        try:
            text = content.removeprefix(_BYTE_ORDER_MARK).decode()
        except UnicodeDecodeError as error:
            on_bad(0, f"invalid UTF-8 at byte {error.start + 1}", "save it as UTF-8")
        else:
            yield 0, {"text": text}
