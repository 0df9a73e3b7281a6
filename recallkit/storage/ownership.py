"""Which files are recallkit's own: only those are ever replaced, with `--force` or without.

A file of a format that other programs write, too, is ours if it has our mark inside: a Parquet table and a JSON file their
manifest, a counts database its `meta`. All others are known by how they begin.
"""

from __future__ import annotations

import contextlib
import json
import mmap
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError, lacks_resources
from recallkit.storage import db
from recallkit.storage.given_files import check_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MANIFEST_KEY = b"recallkit"
"""The key of the manifest in a Parquet file's footer."""
PARQUET_MAGIC = b"PAR1"
DATABASE_MAGIC = b"DUCK"
"""At byte 8 of a DuckDB file."""
JSON_MAGIC = b"{"

_VERSION = "recallkit_version"
"""A field of every manifest and of every counts table's meta."""


def check_regular(path: Path) -> None:
    """Raises UserError if `path` is there and is no regular file: a device, pipe, socket or directory is never replaced, nor opened."""
    if path.is_dir():
        raise UserError("a directory, where a file is to be written", where=path, remedy="give another name with -o")
    if path.exists() and not path.is_file():
        raise UserError("a device, pipe or socket, where a file is to be written", where=path, remedy="give another name with -o")


def is_ours(path: Path, magic: bytes, *, at: int = 0) -> bool:
    """Whether recallkit wrote a regular file that is there: it has `magic` at byte `at`, and our mark inside where one is known for it.

    A damaged file is ours as long as the mark can be found in it.
    """
    with path.open("rb") as handle:
        handle.seek(at)
        if handle.read(len(magic)) != magic:
            return False
    return magic not in _MARKED or _MARKED[magic](path)


def _has_manifest(path: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as handle:
            return MANIFEST_KEY in (pq.read_metadata(handle).metadata or {})
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if lacks_resources(error):
            raise
        return _contains(path, bytes([len(MANIFEST_KEY)]) + MANIFEST_KEY + b"\x18")  # as Thrift writes the key, before a string


def _has_meta(path: Path) -> bool:
    import duckdb

    check_name(path.absolute())
    try:
        with db.connect(path, read_only=True) as connection:
            facts = connection.execute(db.query("counts/select_meta")).fetchall()
        return any(key == _VERSION for key, _ in facts)
    except UserError:  # a view, where a table is to be
        return False
    except duckdb.CatalogException:  # no such table
        return False
    except duckdb.Error as error:
        if lacks_resources(error):
            raise
        return _contains(path, _VERSION.encode())


def _has_version(path: Path) -> bool:
    try:
        value: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return _contains(path, f'"{_VERSION}"'.encode())
    return isinstance(value, dict) and _VERSION in value


def _contains(path: Path, mark: bytes) -> bool:
    with path.open("rb") as handle, contextlib.closing(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)) as content:
        return content.find(mark) >= 0


_MARKED: dict[bytes, Callable[[Path], bool]] = {PARQUET_MAGIC: _has_manifest, DATABASE_MAGIC: _has_meta, JSON_MAGIC: _has_version}
"""The formats that other programs write, too, and what a file of ours has inside."""
