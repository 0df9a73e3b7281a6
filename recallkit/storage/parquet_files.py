"""Parquet tables of ours: written with a manifest in their footers and named by a list, checked
whenever they are read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING, Any, TypeVar, overload

from recallkit.config import SCHEMA_VERSION, VERSION
from recallkit.errors import UserError, lacks_resources
from recallkit.storage import given_files, schemas
from recallkit.storage.artifacts import (
    AGAIN,
    MANIFEST,
    MEMBERS,
    TIMINGS,
    UNLISTED,
    VERSION_KEY,
    DamagedError,
    check_list,
    check_member,
    json_object,
    lists_beside,
    write_json,
    writing_members,
)
from recallkit.storage.hashing import describe
from recallkit.storage.records import Manifest, check_kind, check_record
from recallkit.storage.unfinished import NEW
from recallkit.storage.whole_files import replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

_Record = TypeVar("_Record", bound=Manifest)


MANIFEST_KEY = b"recallkit"
"""The key of the facts in a Parquet file's footer."""


def write_frames(
    tables: Any,
    folder: Path,
    manifest: Mapping[str, Any],
    timings: Mapping[str, Any] | None = None,
    check: Callable[[], None] = lambda: None,
) -> list[Path]:
    """Writes each polars frame of a dataclass to `folder`/FIELD.parquet with `manifest`; returns
    the files.

    They are the members of `folder`/manifest.json, which has the manifest and the timings. All are
    replaced together; a field that is None has no file, and one of an earlier run is removed.
    `check`: see `writing_members`.
    """
    frames = {
        f"{field.name}.parquet": getattr(tables, field.name) for field in dataclasses.fields(tables)
    }
    with writing_members(folder / MANIFEST, frames, check) as new:
        write_json(new / MANIFEST, {**manifest, **({} if timings is None else {TIMINGS: timings})})
        for name, frame in frames.items():
            if frame is not None:
                table = frame.to_arrow()
                write_parquet(new / name, [table], table.schema, dict(manifest))
    return [folder / name for name, frame in frames.items() if frame is not None]


_PARQUET_OPTIONS = {"compression": "zstd", "max_rows_per_page": 1 << 20}
"""Pages end at a megabyte: Arrow's own limit of 20,000 rows would make some fifty of a column, each
of which costs time and bytes."""


@contextlib.contextmanager
def writing_parquet(
    path: Path, schema: pa.Schema, manifest: Callable[[], dict[str, Any]], **options: Any
) -> Iterator[Callable[[pa.Table], None]]:
    """Yields a function that writes a table as one row group; the file is there, whole, if the
    block succeeds.

    Except among the new members of a result it gets a list of its own, NAME.json. Raises UserError
    where that is somebody else's. `manifest` is called at the end of the block.
    `options` are passed to pyarrow.parquet.ParquetWriter (`use_dictionary`, `column_encoding` ...).
    """
    import pyarrow.parquet as pq

    listing, is_alone = path.with_suffix(".json"), not path.parent.name.endswith(NEW)
    if is_alone:
        check_list(listing)
    with replacing(path) as temporary:
        with pq.ParquetWriter(temporary, schema, **{**_PARQUET_OPTIONS, **options}) as writer:
            yield lambda table: writer.write_table(table, row_group_size=max(1, table.num_rows))
            stamp = {"schema_version": SCHEMA_VERSION, **manifest()}
            writer.add_key_value_metadata(
                {MANIFEST_KEY.decode(): json.dumps(stamp, sort_keys=True)}
            )
        if is_alone:
            # a kill leaves a table that is missing, never one that seems damaged
            path.unlink(missing_ok=True)
            others = json_object(listing).get(MEMBERS)  # such as a page of the same name
            listed = {
                **(others if isinstance(others, dict) else {}),
                path.name: describe(temporary),
            }
            write_json(listing, {VERSION_KEY: VERSION, **stamp, MEMBERS: listed})


def write_parquet(
    path: Path,
    tables: Iterable[pa.Table],
    schema: pa.Schema,
    manifest: dict[str, Any] | Callable[[], dict[str, Any]],
    **options: Any,
) -> dict[str, Any]:
    """Writes each table as one row group, with the manifest, atomically; returns the manifest. See
    `writing_parquet`.

    A callable `manifest` is called after all tables are written, for facts that are known only
    then.
    """
    stamp: dict[str, Any] = {"schema_version": SCHEMA_VERSION}

    def at_end() -> dict[str, Any]:
        stamp.update(manifest() if callable(manifest) else manifest)
        return stamp

    with writing_parquet(path, schema, at_end, **options) as write:
        for table in tables:
            write(table)
    return stamp


@overload
def read_manifest(path: Path) -> dict[str, Any]: ...


@overload
def read_manifest(path: Path, record: type[_Record]) -> _Record: ...


def read_manifest(path: Path, record: type = Manifest) -> Any:
    """The manifest of a Parquet table of ours, every byte of which is checked by its list.

    Raises UserError if the file is missing, damaged, not ours, in no list, of another schema
    version, or of another kind than `record` describes.
    """
    given_files.check_file(path)
    if not path.exists():
        makes = (
            f"`recallkit slice -o {path.parent}`"
            if path.name == "tokens.parquet"
            else "the command that writes it (`gap` ...)"
        )
        raise UserError("no such table", where=path, remedy=f"make it with {makes}")
    try:
        listing = check_member(path)
        facts = footer_facts(path)
        if facts is None:
            raise UserError(
                "a Parquet file without recallkit's manifest",
                where=path,
                remedy="make it with recallkit",
            )
        check_schema_version(facts, path)
        check_record(facts, path)
        check_kind(facts, path, record)
        schemas.check_columns(path, facts.get("kind"))
    except FileNotFoundError as error:  # it was being replaced
        raise UserError(
            "was replaced while it was read", where=path, remedy="run this again"
        ) from error
    if listing is None:
        names = " or ".join(listing.name for listing in lists_beside(path))
        raise UserError(f"in no list of a result ({names} is missing)", where=path, remedy=UNLISTED)
    return facts


def footer_facts(path: Path) -> dict[str, Any] | None:
    """The facts in a Parquet file's footer; None if it has none of ours. Raises UserError if it
    cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            metadata = pq.read_metadata(file).metadata or {}
        facts = json.loads(metadata[MANIFEST_KEY]) if MANIFEST_KEY in metadata else None
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        if lacks_resources(error):
            raise
        raise UserError(
            f"not a readable Parquet file ({error})", where=path, remedy=AGAIN
        ) from error
    return facts if isinstance(facts, dict) else None


def read_parquet(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """A file of `write_parquet`, whole. Raises DamagedError if it has changed, and errors of Arrow
    and of the system."""
    import pyarrow.parquet as pq

    if path.exists() and check_member(path) is None:
        raise DamagedError("damaged (its list is missing)", where=path, remedy=AGAIN)
    # Neither `pq.read_table` nor pre_buffer: they wait for ever for a thread that the system
    # refuses to start.
    with pq.ParquetFile(path, pre_buffer=False) as file:
        table = file.read(use_threads=False)
    return table if schema is None else table.cast(schema)


def is_table(path: Path) -> bool:
    """Whether this is a Parquet file that recallkit wrote, in whatever list."""
    with contextlib.suppress(UserError):
        return footer_facts(path) is not None
    return False


def manifest_options(path: Path, *, force: bool = False) -> dict[str, Any] | None:
    """The options that made a finished table; None if there is none, or with `force` none that can
    be read.

    Raises UserError for a damaged table, and if none can be written there, before work for it
    begins.
    """
    given_files.check_folders(path)
    try:
        return read_manifest(path).get("options", {}) if path.exists() else None
    except UserError:
        if force:
            return None
        raise


def check_schema_version(manifest: Mapping[str, Any], path: Path) -> None:
    """Raises UserError unless the manifest has this program's schema version."""
    version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        problem = (
            f"written with table schema {version}, this recallkit reads schema {SCHEMA_VERSION}"
        )
        raise UserError(
            problem,
            where=path,
            remedy="make it again with --force, or use the recallkit that wrote it",
        )
