"""Reads tables row by row in constant memory: Parquet, Arrow (also as `datasets` saves it), CSV.

Reading can start at any row: row groups and batches before it are not decoded, rows of CSV are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.errors import UserError, lacks_resources
from recallkit.text.fields import FieldError, too_long
from recallkit.text.readers import BLOCK_BYTES, FileShard, split_lines
from recallkit.text.remote import open_arrow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from recallkit.text.readers import OnBad

_BATCH_BYTES = 1 << 22
_MAX_BATCH_ROWS = 1024
_MAX_ROW_BYTES = 2 * config.MAX_RECORD_BYTES
"""Mean bytes per row of a row group: if they exceed it, the group is refused before it is decoded."""
_VALUE_BYTES = 8
_REPEATED_BYTES = 64
_HEADER_BYTES, _DICTIONARY = 32, 2
_MOST_REPEATED = 1 << 28
"""Bytes decoded together where each row may contain all that is stored: one value of a dictionary, for example, in all of them."""


@dataclass(frozen=True, slots=True)
class TableShard(FileShard):
    """A table: records are its rows, counted from 0. Only columns that may be needed are read."""

    def place(self, record: int) -> str:
        """File and row, from 0."""
        return f"{self.name}, row {record}"

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows from `first` on as dictionaries; see `Shard.records`. Raises UserError if no column can contain text."""
        import pyarrow as pa

        row = first
        try:
            for start, batch in self._batches(first):
                for row, fields in enumerate(rows_of(batch), start):
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
        raise NotImplementedError

    def _columns(self, names: Sequence[str]) -> list[str]:
        """Those of a table's columns that may be needed. Raises FieldError if none can contain text."""
        columns = self.finder.columns(names)
        if twice := next((name for name in columns if list(names).count(name) > 1), None):
            raise UserError(f"two columns {twice}", where=self.name, remedy="rename one of them")
        return columns


@dataclass(frozen=True, slots=True)
class ParquetShard(TableShard):
    """A Parquet file."""

    def _batches(self, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        import pyarrow.parquet as pq

        # Without pre_buffer, pyarrow reads a column in pieces of buffer_size rather than a whole row group at once.
        with open_arrow(self.path) as opened, pq.ParquetFile(opened, pre_buffer=False, buffer_size=BLOCK_BYTES) as file:
            if file.metadata.num_rows == 0:
                raise self._empty()
            columns = self._columns(file.schema_arrow.names)
            start = 0
            for index in range(file.num_row_groups):
                group = file.metadata.row_group(index)
                if start + group.num_rows <= first:
                    start += group.num_rows
                    continue
                num_bytes = _bytes_of(group)
                if num_bytes > group.num_rows * _MAX_ROW_BYTES:
                    raise UserError("rows longer than any document", where=self.place(start), remedy=too_long()[1])
                rows = rows_at_once(group.num_rows, num_bytes)
                if rows * num_bytes > _MOST_REPEATED:
                    repeated = max(_most_repeated(opened, group.column(place)) for place in range(group.num_columns))
                    rows = max(1, min(rows, _MOST_REPEATED // max(1, repeated)))
                for batch in file.iter_batches(rows, row_groups=[index], columns=columns, use_threads=False):
                    self.meter.share = (start + batch.num_rows) / file.metadata.num_rows
                    yield from slices_of(batch, start, first)
                    start += batch.num_rows


def _most_repeated(file: Any, column: Any) -> int:
    """Bytes that every row of a column chunk may repeat: those of its dictionary, or where values refer to others, of all of it."""
    kinds = set(column.encodings)
    if not kinds & {"PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"}:
        return 0
    start = column.data_page_offset
    if column.has_dictionary_page:
        start = min(start, column.dictionary_page_offset)
    sizes = _dictionary_sizes(file.read_at(_HEADER_BYTES, start))
    return max(sizes) if sizes and "DELTA_BYTE_ARRAY" not in kinds else int(column.total_uncompressed_size)


def _dictionary_sizes(header: bytes) -> list[int]:
    """Bytes of a dictionary page, without compression and with it; none if the header of a page is that of another one.

    The header begins with three numbers (Thrift's compact protocol): its kind, 2 for a dictionary, and both sizes. Each is a byte that
    says "the next field, 32 bits", and twice the number in groups of 7 bits, lowest first: 0x15 0x04, 0x15 0xD0 0x0F is a dictionary
    of 1,000 bytes.
    """
    numbers: list[int] = []
    at = 0
    while len(numbers) < 3:
        if header[at : at + 1] != b"\x15":
            return []
        end = next((place for place in range(at + 1, len(header)) if header[place] < 0x80), None)
        if end is None:
            return []
        groups = header[at + 1 : end + 1]
        numbers.append(sum((group & 0x7F) << (7 * place) for place, group in enumerate(groups)) >> 1)  # the lowest bit is the sign
        at = end + 1
    return numbers[1:] if numbers[0] == _DICTIONARY else []


def _bytes_of(group: Any) -> int:
    """Bytes of a row group without compression, by its footer; at least those of its numbers, of which many equal ones take no space."""
    values = max((group.column(place).num_values for place in range(group.num_columns)), default=0)
    return max(int(group.total_byte_size), _VALUE_BYTES * int(values))


@dataclass(frozen=True, slots=True)
class ArrowShard(TableShard):
    """An Arrow file, of the stream format (as `datasets` saves it) or the file format (Feather); mapped into memory."""

    def _batches(self, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        start = 0
        with open_arrow(self.path, mapped=True) as file:
            schema, batches = _open_ipc(file)
            columns = self._columns(schema.names)
            for batch, share in batches:
                self.meter.share = share
                kept = batch.select(columns)
                if start + batch.num_rows > first:
                    kept.validate(full=True)  # offsets that lie would be followed out of the file
                    yield from slices_of(kept, start, first)
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


def slices_of(batch: pa.RecordBatch, start: int, first: int = 0) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A batch whose first row has the number `start` in slices of a few megabytes, without the rows before number `first`."""
    repeats = any(sign in str(field.type) for field in batch.schema for sign in ("dictionary<", "run_end_encoded<"))
    at, size = max(0, first - start), (rows_if_repeated if repeats else rows_at_once)(batch.num_rows, batch.nbytes)
    for begin in range(at, batch.num_rows, size):
        yield start + begin, batch.slice(begin, size)


def rows_at_once(num_rows: int, num_bytes: int) -> int:
    """Rows of a row group to decode together: a few megabytes, by the uncompressed size recorded in the footer.

    If rows take almost no space there, one stored value may be repeated in all of them.
    """
    usual = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES * num_rows // max(1, num_bytes)))
    return usual if num_bytes > num_rows * _REPEATED_BYTES else max(1, min(usual, _MOST_REPEATED // max(1, num_bytes)))


def rows_if_repeated(num_rows: int, num_bytes: int) -> int:
    """The same where one stored value may be repeated, however long it is."""
    return max(1, min(rows_at_once(num_rows, num_bytes), _MOST_REPEATED // max(1, num_bytes)))


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | str]:
    """The rows of a batch, lists of integers as arrays.

    Or why Python cannot represent a row: text that is not UTF-8 (Parquet readers do not check), a date.
    """
    import pyarrow as pa

    lists = {field.name: batch.column(place) for place, field in enumerate(batch.schema) if _is_list_of_integers(field.type)}
    if not lists:
        yield from _plain_rows(batch)
        return
    rest = batch.drop_columns(list(lists))
    plain = _plain_rows(rest) if rest.num_columns else iter([{}] * batch.num_rows)
    arrays = {name: _arrays(column.cast(pa.large_list(column.type.value_type))) for name, column in lists.items()}
    for fields in plain:
        row = {name: next(of_column) for name, of_column in arrays.items()}
        yield fields if isinstance(fields, str) else {**fields, **row}


def _is_list_of_integers(kind: pa.DataType) -> bool:
    import pyarrow as pa

    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_integer(kind.value_type))


def _arrays(column: pa.LargeListArray) -> Iterator[Any]:
    """The values of each row, None for a null; a list where values are missing."""
    if column.values.null_count:
        yield from column.to_pylist()
        return
    values, offsets = column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy()
    for row, is_valid in enumerate(column.is_valid().to_pylist()):
        yield values[offsets[row] : offsets[row + 1]] if is_valid else None


def _plain_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | str]:
    """The same of a batch without such lists."""
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
class CsvShard(FileShard):
    """A file of comma- or tab-separated values with the names of its columns in the first row. Blank lines are no rows."""

    delimiter: str = ","

    def place(self, record: int) -> str:
        """File and row, from 0, the names not counted."""
        return f"{self.name}, row {record}"

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows from `first` on; see `Shard.records`. What follows a syntax error cannot be read."""
        import csv

        csv.field_size_limit(max(csv.field_size_limit(), config.MAX_RECORD_BYTES))
        row = -1
        try:
            lines = csv.reader(self._lines(), delimiter=self.delimiter, strict=True)
            names = next((cells for cells in lines if cells), [])
            kept = [names.index(name) for name in self.finder.columns(names)] if names else []
            for row, cells in enumerate(cells for cells in lines if cells):
                if row < first:
                    continue
                if len(cells) != len(names):
                    on_bad(row, f"{len(cells)} values under {len(names)} names", "quote values that contain separators")
                elif any(not _is_text(cells[place]) for place in kept):
                    on_bad(row, "invalid UTF-8", "save it as UTF-8")
                else:
                    yield row, {names[place]: cells[place] for place in kept}
        except FieldError as error:
            raise UserError(str(error), where=self.name, remedy=error.remedy) from error
        except csv.Error as error:
            raise UserError(f"not CSV ({error})", where=self.place(row + 1), remedy="quote values as spreadsheets do") from error
        except OSError as error:
            raise self._damaged(error, row + 1) from error
        if row < 0:
            raise self._empty()

    def _lines(self) -> Iterator[str]:
        """Lines with their ends; bytes that are not UTF-8 become surrogates."""
        import csv

        for line in split_lines(self._blocks()):
            if line is None:
                raise csv.Error(f"a line of more than {config.MAX_RECORD_BYTES:,} bytes")
            yield str(line, "utf-8", "surrogateescape") + "\n"


def _is_text(cell: str) -> bool:
    """Whether a cell was UTF-8."""
    try:
        return cell.isascii() or bool(cell.encode())
    except UnicodeEncodeError:
        return False
