"""Reads tables row by row in constant memory: Parquet, Arrow (also as `datasets` saves it), CSV.

Reading can start at any row: row groups and batches before it are not decoded, rows of CSV are
counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import methodcaller
from typing import TYPE_CHECKING, Any, ClassVar

from recallkit import config
from recallkit.errors import UserError, lacks_resources
from recallkit.text.arrow_messages import check_batch, start_of
from recallkit.text.fields import too_long
from recallkit.text.parquet_pages import RowSizes
from recallkit.text.places import open_arrow
from recallkit.text.readers import BLOCK_BYTES, FileShard

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from recallkit.text.readers import OnBad

_BATCH_BYTES = 1 << 22
_MAX_BATCH_ROWS = 64
"""Rows of Parquet that are decoded together: where many rows have one long text, the file's size
does not show theirs."""
_MAX_ROW_BYTES = 2 * config.MAX_RECORD_BYTES
"""Bytes of a row; if the mean of a row group exceeds them, the group is refused before it is
decoded."""
_ITEM_BYTES = 64
"""What an item of a list is counted as that becomes an object of Python."""
_FEW_BYTES = 1 << 20
_MOST_CELLS = 1 << 20
"""Cells and lines of a row of CSV, counted where it is long: empty ones take eight bytes for one of
the file, short ones 60."""


@dataclass(eq=False)
class TableShard(FileShard):
    """A table: records are its rows, counted from 0. Only columns that may be needed are read."""

    unit = "row"

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows from `first` on as dictionaries; see `Shard.records`.

        Raises UserError if no column can contain text.
        """
        import pyarrow as pa

        row = first
        try:
            for start, batch in self._batches(first):
                done = max(0, first - start)
                for row, fields in enumerate(rows_of(batch.slice(done)), start + done):
                    if isinstance(fields, str):
                        is_long = fields == too_long()[0]
                        on_bad(
                            row,
                            fields,
                            too_long()[1] if is_long else "write the file again from valid text",
                        )
                    else:
                        yield row, fields
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            if lacks_resources(error):
                raise
            raise self._damaged(error, row) from error

    def _batches(self, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches, of which the first has row `first`, each with the number of its first row."""
        raise NotImplementedError


@dataclass(eq=False)
class ParquetShard(TableShard):
    """A Parquet file."""

    def _batches(self, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        import pyarrow.parquet as pq

        # Without pre_buffer, pyarrow reads a column in pieces of buffer_size rather than a whole
        # row group at once.
        with (
            open_arrow(self.path) as opened,
            pq.ParquetFile(opened, pre_buffer=False, buffer_size=BLOCK_BYTES) as file,
        ):
            metadata = file.metadata
            if metadata.num_rows == 0:
                raise self._empty()
            columns = self.columns(file.schema_arrow.names)
            sizes = RowSizes(opened, metadata, columns, self.name)
            start = 0
            for index in range(file.num_row_groups):
                group = metadata.row_group(index)
                if start + group.num_rows <= first:
                    start += group.num_rows
                    continue
                if group.total_byte_size > group.num_rows * _MAX_ROW_BYTES:
                    raise UserError(
                        "rows longer than any document",
                        where=self.place(start),
                        remedy=too_long()[1],
                    )
                rows = max(
                    1,
                    min(
                        _MAX_BATCH_ROWS,
                        _BATCH_BYTES * group.num_rows // max(1, group.total_byte_size),
                    ),
                )
                rows = min(rows, sizes.at_once(index, self.place(start)))
                for batch in file.iter_batches(
                    rows,
                    row_groups=[index],
                    columns=columns,
                    use_threads=False,
                ):
                    self.share = (start + batch.num_rows) / metadata.num_rows
                    yield start, batch
                    start += batch.num_rows


@dataclass(eq=False)
class ArrowShard(TableShard):
    """An Arrow file, of the stream format (as `datasets` saves it) or the file format (Feather);
    mapped into memory."""

    def _batches(self, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        import pyarrow as pa

        start = 0
        with open_arrow(self.path, mapped=True) as file:
            file.seek(start_of(file))
            reader = pa.ipc.open_stream(file)
            columns = self.columns(reader.schema.names)
            while (batch := self._next_batch(file, reader, start)) is not None:
                self.share = file.tell() / file.size()
                if start + batch.num_rows > first:
                    selected = batch.select(columns)
                    selected.validate(full=True)  # offsets that lie would lead out of the file
                    yield start, selected
                start += batch.num_rows
        if not start:
            raise self._empty()

    def _next_batch(
        self,
        file: pa.NativeFile,
        reader: pa.RecordBatchReader,
        start: int,
    ) -> pa.RecordBatch | None:
        """The next batch, whose first row is number `start`; None at the end."""
        check_batch(file, self.place(start))
        try:
            return reader.read_next_batch()
        except StopIteration:
            return None


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | str]:
    """The rows of a batch, lists of integers as arrays.

    Or why Python cannot represent a row: text that is not UTF-8 (Parquet readers do not check), a
    date.
    """
    import pyarrow as pa

    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        read = _ids if _is_list_of_integers(field.type) else methodcaller("as_py")
        columns.append((field.name, column, read))
    is_short = _row_bytes(batch) <= _MAX_ROW_BYTES
    for row in range(batch.num_rows):
        try:
            if not is_short and _row_bytes(batch.slice(row, 1)) > _MAX_ROW_BYTES:
                yield too_long()[0]
            else:
                yield {name: read(column[row]) for name, column, read in columns}
        except UnicodeDecodeError:
            yield "invalid UTF-8"
        except (ValueError, OverflowError, LookupError, pa.ArrowException) as error:
            if lacks_resources(error):
                raise
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            yield f"a value that cannot be read ({reason})"


def _row_bytes(batch: pa.RecordBatch) -> int:
    """Bytes of a row as Python has it; of several rows, those that one of them has at most."""
    num_bytes = 0
    for column in batch.columns:
        is_list = _is_list_of_integers(column.type)
        num_bytes += int(column.nbytes) if is_list else _size_of(column)
    return num_bytes


def _size_of(column: pa.Array) -> int:
    """The same of a column, in which each item of a list becomes an object."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        # Of several rows at most as much as all have the longest entry.
        values = column.dictionary if len(column) > 1 else column.dictionary_decode()
        return len(column) * _size_of(values)
    if pa.types.is_run_end_encoded(kind):
        first, number = column.find_physical_offset(), column.find_physical_length()
        return len(column) * _size_of(column.values.slice(first, number))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        # Their buffers are those of all rows.
        return sum(value.as_buffer().size for value in column if value.is_valid)
    if (pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)) and len(column) > 1:
        # Its rows may be the same items: one row has at most all.
        num_items = int(column.sizes.to_numpy(zero_copy_only=False).sum())
        return _ITEM_BYTES * num_items + _size_of(column.values)
    if pa.types.is_union(kind) or not pa.types.is_nested(kind):
        return int(column.nbytes)
    return sum(_ITEM_BYTES * len(items) + _size_of(items) for items in _children(column))


def _children(column: pa.Array) -> list[pa.Array]:
    """The values in lists, the keys and items of maps, or the fields of objects."""
    import pyarrow as pa

    if pa.types.is_struct(column.type):
        return list(column.flatten())
    if not pa.types.is_map(column.type):
        return [column.flatten()]
    begin, stop = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return [values.slice(begin, stop - begin) for values in (column.keys, column.items)]


def _is_list_of_integers(kind: pa.DataType) -> bool:
    import pyarrow as pa

    list_types = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
    return isinstance(kind, list_types) and bool(pa.types.is_integer(kind.value_type))


def _ids(scalar: pa.Scalar) -> Any:
    """A list of integers as an array; None for a null, [None] where values are missing."""
    if not scalar.is_valid:
        return None
    return [None] if scalar.values.null_count else scalar.values.to_numpy()


@dataclass(eq=False)
class CsvShard(FileShard):
    """A file of comma-separated values with the names of its columns in the first row.

    Blank lines are skipped.
    """

    delimiter: ClassVar[str] = ","

    unit = "row"

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows from `first` on; see `Shard.records`. What follows a syntax error cannot be read."""
        import csv

        csv.field_size_limit(max(csv.field_size_limit(), config.MAX_RECORD_BYTES))
        row, text = -1, _TextLines(self._lines(), self.delimiter)
        try:
            lines = csv.reader(text, delimiter=self.delimiter, strict=True)
            names = next((cells for cells in lines if cells), [])
            places = [names.index(name) for name in self.columns(names)] if names else []
            for row, cells in enumerate(cells for cells in lines if cells):
                text.begin_row()
                if row < first:
                    continue
                if len(cells) != len(names):
                    on_bad(
                        row,
                        f"{len(cells)} values under {len(names)} names",
                        "quote values that contain separators",
                    )
                elif any(not _is_text(cells[place]) for place in places):
                    on_bad(row, "invalid UTF-8", "save it as UTF-8")
                else:
                    yield row, {names[place]: cells[place] for place in places}
        except csv.Error as error:
            raise UserError(
                f"not CSV ({error})",
                where=self.place(row + 1),
                remedy="quote values as spreadsheets do",
            ) from error
        except OSError as error:
            raise self._damaged(error, row + 1) from error
        if row < 0:
            raise self._empty()


class _TextLines:
    """Lines of text with their ends; bytes that are not UTF-8 become surrogates.

    Raises csv.Error where those of one row are too long, as of a cell in quotes that does not end.
    """

    def __init__(self, lines: Iterator[bytes | None], delimiter: str) -> None:
        self._lines, self._delimiter = lines, delimiter.encode()
        self.begin_row()

    def begin_row(self) -> None:
        """The next line begins a row."""
        self._num_bytes = self._num_cells = 0

    def __iter__(self) -> _TextLines:
        return self

    def __next__(self) -> str:
        import csv

        line = next(self._lines)
        if line is None:
            raise csv.Error(f"a line of more than {config.MAX_RECORD_BYTES:,} bytes")
        self._num_bytes += len(line)
        if self._num_bytes > _FEW_BYTES:
            self._num_cells += 1 + line.count(self._delimiter)
            if self._num_bytes > config.MAX_RECORD_BYTES or self._num_cells > _MOST_CELLS:
                raise csv.Error("a row that does not end, or is longer than any record")
        return str(line, "utf-8", "surrogateescape")


class TsvShard(CsvShard):
    """The same, separated by tabs."""

    delimiter = "\t"


def _is_text(cell: str) -> bool:
    """Whether a cell was UTF-8."""
    try:
        return cell.isascii() or bool(cell.encode())
    except UnicodeEncodeError:
        return False
