"""Reads tables row by row in constant memory: Parquet, Arrow (also as `datasets` saves it), CSV.

Reading can start at any row: row groups and batches before it are not decoded, rows of CSV are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from recallkit import config
from recallkit.errors import UserError, lacks_resources
from recallkit.text.fields import too_long
from recallkit.text.places import open_arrow
from recallkit.text.readers import BLOCK_BYTES, FileShard

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from recallkit.text.readers import OnBad

_BATCH_BYTES = 1 << 22
_MAX_BATCH_ROWS = 64
"""Rows of Parquet that are decoded together: where many rows have one long text, the file's size does not show theirs."""
_MAX_ROW_BYTES = 2 * config.MAX_RECORD_BYTES
"""Mean bytes per row of a row group: if they exceed it, the group is refused before it is decoded."""


@dataclass(eq=False)
class TableShard(FileShard):
    """A table: records are its rows, counted from 0. Only columns that may be needed are read."""

    unit = "row"

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows from `first` on as dictionaries; see `Shard.records`. Raises UserError if no column can contain text."""
        import pyarrow as pa

        row = first
        try:
            for start, batch in self._batches(first):
                done = max(0, first - start)
                for row, fields in enumerate(rows_of(batch.slice(done)), start + done):
                    if isinstance(fields, str):
                        on_bad(row, fields, "write the file again from valid text")
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

        # Without pre_buffer, pyarrow reads a column in pieces of buffer_size rather than a whole row group at once.
        with open_arrow(self.path) as opened, pq.ParquetFile(opened, pre_buffer=False, buffer_size=BLOCK_BYTES) as file:
            metadata = file.metadata
            if metadata.num_rows == 0:
                raise self._empty()
            columns = self.columns(file.schema_arrow.names)
            start = 0
            for index in range(file.num_row_groups):
                group = metadata.row_group(index)
                if start + group.num_rows <= first:
                    start += group.num_rows
                    continue
                if group.total_byte_size > group.num_rows * _MAX_ROW_BYTES:
                    raise UserError("rows longer than any document", where=self.place(start), remedy=too_long()[1])
                rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)))
                for batch in file.iter_batches(rows, row_groups=[index], columns=columns, use_threads=False):
                    self.share = (start + batch.num_rows) / metadata.num_rows
                    yield start, batch
                    start += batch.num_rows


@dataclass(eq=False)
class ArrowShard(TableShard):
    """An Arrow file, of the stream format (as `datasets` saves it) or the file format (Feather); mapped into memory."""

    def _batches(self, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        start = 0
        with open_arrow(self.path, mapped=True) as file:
            schema, batches = _open_ipc(file)
            columns = self.columns(schema.names)
            for batch, share in batches:
                self.share = share
                kept = batch.select(columns)
                if start + batch.num_rows > first:
                    kept.validate(full=True)  # offsets that lie would be followed out of the file
                    yield start, kept
                start += batch.num_rows
        if not start:
            raise self._empty()


def _open_ipc(file: pa.NativeFile) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, float]]]:
    """The schema of an Arrow file, and its batches one by one, each with the share of the file that is read then."""
    import pyarrow as pa

    magic = b"ARROW1"
    is_file = file.read(len(magic)) == magic
    file.seek(0)
    if not is_file:
        reader = pa.ipc.open_stream(file)
        return reader.schema, ((batch, file.tell() / file.size()) for batch in reader)
    reader = pa.ipc.open_file(file)
    num = reader.num_record_batches
    return reader.schema, ((reader.get_batch(number), (number + 1) / num) for number in range(num))


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | str]:
    """The rows of a batch, lists of integers as arrays.

    Or why Python cannot represent a row: text that is not UTF-8 (Parquet readers do not check), a date.
    """
    import pyarrow as pa

    columns = [(field.name, batch.column(place), _is_list_of_integers(field.type)) for place, field in enumerate(batch.schema)]
    for row in range(batch.num_rows):
        try:
            yield {name: _ids(column[row]) if is_list else column[row].as_py() for name, column, is_list in columns}
        except UnicodeDecodeError:
            yield "invalid UTF-8"
        except (ValueError, OverflowError, LookupError, pa.ArrowException) as error:
            yield f"a value that cannot be read ({next(iter(str(error).splitlines()), type(error).__name__)})"


def _is_list_of_integers(kind: pa.DataType) -> bool:
    import pyarrow as pa

    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_integer(kind.value_type))


def _ids(value: Any) -> Any:
    """A list of integers as an array; None for a null, a list where values are missing."""
    return value.as_py() if not value.is_valid or value.values.null_count else value.values.to_numpy()


@dataclass(eq=False)
class CsvShard(FileShard):
    """A file of comma-separated values with the names of its columns in the first row. Blank lines are skipped."""

    delimiter: ClassVar[str] = ","

    unit = "row"

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows from `first` on; see `Shard.records`. What follows a syntax error cannot be read."""
        import csv

        csv.field_size_limit(max(csv.field_size_limit(), config.MAX_RECORD_BYTES))
        row = -1
        try:
            lines = csv.reader(self._text_lines(), delimiter=self.delimiter, strict=True)
            names = next((cells for cells in lines if cells), [])
            kept = [names.index(name) for name in self.columns(names)] if names else []
            for row, cells in enumerate(cells for cells in lines if cells):
                if row < first:
                    continue
                if len(cells) != len(names):
                    on_bad(row, f"{len(cells)} values under {len(names)} names", "quote values that contain separators")
                elif any(not _is_text(cells[place]) for place in kept):
                    on_bad(row, "invalid UTF-8", "save it as UTF-8")
                else:
                    yield row, {names[place]: cells[place] for place in kept}
        except csv.Error as error:
            raise UserError(f"not CSV ({error})", where=self.place(row + 1), remedy="quote values as spreadsheets do") from error
        except OSError as error:
            raise self._damaged(error, row + 1) from error
        if row < 0:
            raise self._empty()

    def _text_lines(self) -> Iterator[str]:
        """Lines with their ends; bytes that are not UTF-8 become surrogates."""
        import csv

        for line in self._lines():
            if line is None:
                raise csv.Error(f"a line of more than {config.MAX_RECORD_BYTES:,} bytes")
            yield str(line, "utf-8", "surrogateescape")


class TsvShard(CsvShard):
    """The same, separated by tabs."""

    delimiter = "\t"


def _is_text(cell: str) -> bool:
    """Whether a cell was UTF-8."""
    try:
        return cell.isascii() or bool(cell.encode())
    except UnicodeEncodeError:
        return False
