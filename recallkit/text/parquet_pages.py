"""How large rows of a Parquet file become, by the headers of its pages, before they are decoded.

A footer has sums alone: that of a row group of 10,000 rows does not tell that one row has all the
ids, or that a dictionary repeats one long text. A page of a few bytes can contain 100 million ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

LARGEST = 1 << 28
"""Bytes that may be decoded together, whatever they are in the file."""
MOST_GROWTH = 64
"""How often the bytes in the file more than `LARGEST` may be: text is compressed 3 to 10 times."""
_MOST_FIELDS = 4096
"""Columns in one object, such as `meta`: Arrow takes minutes for hundreds of thousands."""

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_MOST_ENTRIES = 1 << 20
"""Entries of a dictionary, which has a megabyte as a rule, whose lengths are read."""
_LEVEL_BYTES = 8
"""What Arrow takes for an item of a list besides its value, at most."""
_REMEDY = "write it again, with fewer rows in a row group and records of at most 50 MB"

# Numbers of parquet.thrift: types of pages, and encodings.
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_DELTA_LENGTHS, _DELTA_PREFIXES = 6, 7
_OWN_FIELDS = {_DATA: (5, 2), _DICTIONARY: (7, 2), _DATA_V2: (8, 4)}
"""Type of a page -> the field of its header that only this type has, and the encoding in it."""
_HEADER_BYTES = (1 << 12, 1 << 20)
"""What is read of a header: it may contain the smallest and the largest value of its page."""


def grows_beyond(num_bytes: int, stored: int) -> bool:
    """Whether so many bytes, which are `stored` in a file, are too many to be decoded together."""
    return num_bytes > LARGEST and num_bytes > MOST_GROWTH * stored


class Page(NamedTuple):
    """A page: its body is `size` bytes at `start`, `num_bytes` once decompressed."""

    kind: int
    start: int
    size: int
    num_bytes: int
    num_values: int
    encoding: int

    @property
    def repeats_values(self) -> bool:
        """Whether values of rows are of others in it: all, or their beginnings."""
        return self.kind == _DICTIONARY or self.encoding == _DELTA_PREFIXES


class RowSizes:
    """Sizes of the rows of an open Parquet file in some of its columns.

    Raises UserError where these are too many.
    """

    def __init__(self, file: pa.NativeFile, metadata: Any, columns: list[str], name: str) -> None:
        self._file, self._metadata = file, metadata
        begins = tuple(f"{column}." for column in columns)
        leaves = ((at, metadata.schema.column(at)) for at in range(metadata.num_columns))
        self._leaves = [(at, leaf) for at, leaf in leaves if f"{leaf.path}.".startswith(begins)]
        if len(self._leaves) > _MOST_FIELDS:
            problem = f"{len(self._leaves):,} columns in {', '.join(columns)}"
            raise UserError(problem, where=name, remedy=f"write at most {_MOST_FIELDS:,}")

    def at_once(self, index: int, where: str) -> int:
        """How many rows of a group take at most `LARGEST` bytes, at least one.

        Raises UserError if their lists can take far more than the file has of them, OSError for
        damaged pages.
        """
        group = self._metadata.row_group(index)
        columns = []
        for at, leaf in self._leaves:
            columns.append(_Column(self._file, group.column(at), leaf, where))
        lists = [column for column in columns if column.is_list]
        num_bytes = sum(column.list_bytes() for column in lists)
        if grows_beyond(num_bytes, sum(column.stored for column in lists)):
            raise _too_long(f"lists of up to {num_bytes:,} bytes", where)
        row = sum(column.longest_value() for column in columns if not column.is_list)
        return max(1, LARGEST // max(1, row))


class _Column:
    """The pages of one column of a row group."""

    def __init__(self, file: pa.NativeFile, column: Any, leaf: Any, where: str) -> None:
        self._file, self._column = file, column
        self._pages = list(_pages(file, column))
        self._width = leaf.length if leaf.length > 0 else _WIDTHS.get(column.physical_type, 0)
        self.is_list = leaf.max_repetition_level > 0
        self.stored = sum(page.size for page in self._pages)
        for page in self._pages:
            # The lengths of such a page are decoded together.
            is_delta = page.encoding in (_DELTA_LENGTHS, _DELTA_PREFIXES)
            num_bytes = max(page.num_bytes, 4 * page.num_values if is_delta else 0)
            if grows_beyond(num_bytes, page.size):
                raise _too_long(f"a page of {num_bytes:,} bytes", where)

    def longest_value(self) -> int:
        """Bytes of the longest value that rows may repeat, at most; 0 if the page has each by
        itself."""
        if self._width:
            return self._width
        repeating = (page for page in self._pages if page.repeats_values)
        return max((page.num_bytes for page in repeating), default=0)

    def list_bytes(self) -> int:
        """Bytes of the lists of all rows, at most: of texts each may be the longest one."""
        num_items = sum(page.num_values for page in self._pages if page.kind != _DICTIONARY)
        dictionaries = [page for page in self._pages if page.kind == _DICTIONARY]
        longest = map(self._longest_entry, dictionaries) if not self._width else ()
        return num_items * (_LEVEL_BYTES + self._width + max(longest, default=0))

    def _longest_entry(self, page: Page) -> int:
        """Bytes of the longest text in a dictionary."""
        if page.num_values > _MOST_ENTRIES:
            return page.num_bytes
        body, at, longest = self._body(page), 0, 0
        for _ in range(page.num_values):
            length = int.from_bytes(body[at : at + 4], "little")
            longest, at = max(longest, length), at + 4 + length
        return longest

    def _body(self, page: Page) -> bytes:
        import pyarrow as pa

        content = bytes(self._file.read_at(page.size, page.start))
        codec = self._column.compression.lower()
        if codec == "uncompressed":
            return content
        codec = "lz4_raw" if codec == "lz4" else codec
        return bytes(pa.decompress(content, page.num_bytes, codec, asbytes=True))


# ---------------------------------------------------------------------------------------- headers


def _pages(file: pa.NativeFile, column: Any) -> Iterator[Page]:
    """The pages of a column of a row group, as Arrow reads them: until it has all values."""
    at = column.data_page_offset
    if column.has_dictionary_page:
        at = min(at, column.dictionary_page_offset)
    stop, count = at + column.total_compressed_size, 0
    while count < column.num_values and at < stop:
        page = _page(file, at)
        yield page
        count += page.num_values if page.kind != _DICTIONARY else 0
        at = page.start + page.size


def _page(file: pa.NativeFile, at: int) -> Page:
    """The page whose header is at a byte of the file."""
    for size in _HEADER_BYTES:
        content = file.read_at(size, at)
        try:
            fields, length = _struct(content, 0)
            page = _page_of(fields, at + length)
        except (IndexError, KeyError, TypeError):
            continue
        if min(page.size, page.num_bytes, page.num_values) < 0:
            raise OSError("a page of negative size")
        return page
    raise OSError("a page without a header")


def _page_of(fields: dict[int, Any], start: int) -> Page:
    """The page with these fields of a `PageHeader` (parquet.thrift); its body is at `start`."""
    kind, num_bytes, size = fields[1], fields[2], fields[3]
    if kind not in _OWN_FIELDS:
        return Page(kind, start, size, num_bytes, num_values=0, encoding=0)
    own, encoding = _OWN_FIELDS[kind]
    return Page(kind, start, size, num_bytes, fields[own][1], fields[own].get(encoding, 0))


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, and the byte behind it.

    Raises IndexError behind the end.
    """
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise OSError("a number of more than 64 bits")


_STRUCT, _BINARY = 12, 8
_INTEGERS = (4, 5, 6)
"""Types of Thrift's compact protocol."""


def _struct(content: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """The fields of a struct of Thrift's compact protocol by number, and the byte behind it.

    Raises IndexError where it is incomplete.
    """
    fields: dict[int, Any] = {}
    number = 0
    while head := content[at]:
        at, kind, step = at + 1, head & 15, head >> 4
        if step == 0:
            value, at = _varint(content, at)
            number = _signed(value)
        number += step
        if kind in _INTEGERS:
            value, at = _varint(content, at)
            fields[number] = _signed(value)
        elif kind == _BINARY:
            length, at = _varint(content, at)
            at += length
        elif kind == _STRUCT and depth < 4:
            fields[number], at = _struct(content, at, depth + 1)
        elif kind not in (1, 2):
            raise OSError("a page with a header of an unknown kind")
    return fields, at + 1


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _too_long(problem: str, where: str) -> UserError:
    return UserError(problem, where=where, remedy=_REMEDY)
