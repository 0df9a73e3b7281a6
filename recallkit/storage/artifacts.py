"""Atomic file writes: a file is written under a temporary name, synced and renamed; with a manifest and digests.

A Parquet table has its manifest (JSON) in the footer's key-value metadata, so that the table alone documents itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import time
import uuid
from typing import TYPE_CHECKING, Any

from recallkit.config import SCHEMA_VERSION, home
from recallkit.errors import UserError, lacks_resources
from recallkit.storage import given_files, locks, ownership, seals
from recallkit.storage.schemas import check_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import numpy as np
    import pyarrow as pa

MANIFEST_KEY = ownership.MANIFEST_KEY
PARQUET_MAGIC = ownership.PARQUET_MAGIC
_AGAIN = "make it again with --force"
_CHECKSUM = "checksum"
PARTIAL = ".partial"
"""Suffix of the folders of unfinished work."""

_SAMPLE_BLOCK = 1 << 16
_NUM_SAMPLES = 16

_REMEMBERED_BYTES = 64 << 20
"""Files larger than this are digested once: a smaller one takes a tenth of a second at most."""
_MOST_DIGESTS = 2000


@contextlib.contextmanager
def replacing(path: Path, *, absent: bool = False) -> Iterator[Path]:
    """Yields an empty temporary file beside `path`; renames it to `path` if the block succeeds, removes it otherwise.

    With `absent` the file is not created, for a library that accepts no empty file.
    """
    ownership.check_regular(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.name.endswith(PARTIAL):  # a journal's folder, of thousands of parts, is removed as a whole
        remove_abandoned(path.parent)
    temporary = path.with_name(f".{path.name}.{_host()}.{os.getpid()}.part")
    both = temporary, temporary.with_name(f"{temporary.name}.wal")  # DuckDB's log, which remains if the disk is full
    for left in both:  # in containers every process has the same number
        left.unlink(missing_ok=True)
    if not absent:  # created exclusively: in a folder of many users, a link of that name would redirect the writing
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        for left in both:
            left.unlink(missing_ok=True)


def _host() -> str:
    return "".join(c for c in platform.node() if c.isalnum()) or "host"


def remove_abandoned(folder: Path) -> int:
    """Removes what killed processes of this machine left of their attempts to write files and sets of tables in `folder`.

    Returns how many files and folders that were.
    """
    abandoned = [path for path in folder.iterdir() if is_abandoned(path)]
    for path in abandoned:
        remove(path)
    return len(abandoned)


_TEMPORARY = re.compile(r"\..+\.(?P<host>\w+)\.(?P<process>\d{1,9})(\.[0-9a-f]+)?\.part(\.wal)?")


def is_temporary(path: Path) -> bool:
    """Whether this is the name of a file, or of a folder of tables, that is being written."""
    return _TEMPORARY.fullmatch(path.name) is not None


def is_abandoned(path: Path) -> bool:
    """Whether a process of this machine that no longer runs was writing this."""
    found = _TEMPORARY.fullmatch(path.name)
    return found is not None and found["host"] == _host() and not _is_running(int(found["process"]))


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def sync_folder(folder: Path) -> None:
    """Makes what was created, renamed and removed in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object with its checksum, indented and with sorted keys, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(json_text(with_checksum(value)), encoding="utf-8")


def json_text(value: Any) -> str:
    """JSON as in files: indented, with sorted keys."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def with_checksum(value: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with the digest of its other entries as `checksum`."""
    return {**value, _CHECKSUM: digest_json(value)}


def without_checksum(value: dict[str, Any], path: Path) -> dict[str, Any]:
    """The other entries of such an object. Raises UserError if they are not those of its checksum."""
    others = {name: entry for name, entry in value.items() if name != _CHECKSUM}
    with contextlib.suppress(ValueError):  # text that cannot be written
        if value.get(_CHECKSUM) == digest_json(others):
            return others
    raise seals.DamagedError("damaged (it is not as it was written)", where=path, remedy=_AGAIN)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file with its checksum, without it. Raises UserError if it is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError("not a readable JSON file", where=path, remedy=_AGAIN) from error
    return without_checksum(value if isinstance(value, dict) else {}, path)


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in any file; an empty one if there is none that can be read. Raises UserError for a pipe, and for a huge file."""
    try:
        value = json.loads(given_files.read_file(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


_PARQUET_OPTIONS = {"compression": "zstd", "write_page_checksum": True, "max_rows_per_page": 1 << 20}
"""Pages end at a megabyte: Arrow's own limit of 20,000 rows would make some fifty of a column, each of which costs time and bytes."""


@contextlib.contextmanager
def writing_parquet(
    path: Path, schema: pa.Schema, manifest: Callable[[], dict[str, Any]], **options: Any
) -> Iterator[Callable[[pa.Table], None]]:
    """Yields a function that writes a table as one row group; the file is there, whole and sealed, if the block succeeds.

    `manifest` is called at its end. `options` are passed to pyarrow.parquet.ParquetWriter (`use_dictionary`, `column_encoding` ...).
    """
    import pyarrow.parquet as pq

    with replacing(path) as temporary:
        with pq.ParquetWriter(temporary, schema, **{**_PARQUET_OPTIONS, **options}) as writer:
            yield lambda table: writer.write_table(table, row_group_size=max(1, table.num_rows))
            stamp = {"schema_version": SCHEMA_VERSION, **manifest()}
            writer.add_key_value_metadata({MANIFEST_KEY.decode(): json.dumps(stamp, sort_keys=True)})
            writer.add_key_value_metadata({seals.KEY: seals.EMPTY})
        seals.seal(temporary)


def write_parquet(
    path: Path, tables: Iterable[pa.Table], schema: pa.Schema, manifest: dict[str, Any] | Callable[[], dict[str, Any]], **options: Any
) -> dict[str, Any]:
    """Writes each table as one row group, the manifest and the seal in the footer, atomically; returns the manifest.

    A callable `manifest` is called after all tables are written, for facts that are known only then. See `writing_parquet`.
    """
    stamp: dict[str, Any] = {"schema_version": SCHEMA_VERSION}

    def at_end() -> dict[str, Any]:
        stamp.update(manifest() if callable(manifest) else manifest)
        return stamp

    with writing_parquet(path, schema, at_end, **options) as write:
        for table in tables:
            write(table)
    return stamp


def write_frames(tables: Any, folder: Path, manifest: dict[str, Any], *, more: Callable[[Path], None] = lambda _: None) -> list[Path]:
    """Writes each polars frame of a dataclass to `folder`/FIELD.parquet with `manifest` (its `kind` set to FIELD); returns the files.

    A field that is None has no file, and one of an earlier run is removed. All are replaced together, with what `more` writes
    into the folder that it is given. Each has the digest of all (`tables`), which reveals a mixture of copied files.
    """
    frames = {field.name: getattr(tables, field.name) for field in dataclasses.fields(tables)}
    arrows = {name: frame.to_arrow() for name, frame in frames.items() if frame is not None}
    mark = digest_bytes(*(_digest_table(table).encode() for table in arrows.values()))
    with replacing_together(folder) as staged:
        for name, table in arrows.items():
            write_parquet(staged / f"{name}.parquet", [table], table.schema, {**manifest, "tables": mark, "kind": name})
        for name in frames.keys() - arrows.keys():
            _remove_older(folder / f"{name}.parquet", name, staged)
        more(staged)
    return [folder / f"{name}.parquet" for name in arrows]


def _remove_older(path: Path, kind: str, staged: Path) -> None:
    """Has a table of an earlier run, which had more of them, removed with the commit."""
    with contextlib.suppress(UserError):
        if path.is_file() and read_manifest(path).get("kind") == kind:
            (staged / f"{path.name}{_REMOVED}").touch()


COMMITTED = ".committed"
"""A folder of files that replace those of the same names in the folder that it is in."""
_REMOVED = ".removed"
"""Suffix of an empty file there, for one that is to be removed."""


@contextlib.contextmanager
def replacing_together(folder: Path) -> Iterator[Path]:
    """Yields an empty folder. If the block succeeds, its files replace those of the same names in `folder`: all of them or none.

    One rename commits them, as `.committed` in `folder`, from where they are moved. If the process is killed meanwhile, whoever reads
    or writes a result there next moves the rest (`finish_commit`). If two runs write at once, one waits for the other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_abandoned(folder)
    staged = folder / f".tables.{_host()}.{os.getpid()}.{uuid.uuid4().hex}.part"
    staged.mkdir()
    try:
        yield staged
        sync_folder(staged)
        with _locked(folder, fcntl.LOCK_EX):
            _move_committed(folder)
            staged.rename(folder / COMMITTED)
            sync_folder(folder)
            _move_committed(folder)
    finally:
        remove(staged)


def finish_commit(folder: Path) -> None:
    """Moves what a killed run had committed but not moved. Raises UserError if it cannot be moved."""
    if not _is_committed(folder):
        return
    try:
        with _locked(folder, fcntl.LOCK_EX):
            _move_committed(folder)
    except OSError as error:
        if lacks_resources(error):
            raise
        problem = f"tables of an interrupted run cannot be moved to where they belong ({error.strerror})"
        raise UserError(problem, where=folder / COMMITTED, remedy="run this once as a user who may write there") from error


def _is_committed(folder: Path) -> bool:
    committed = folder / COMMITTED
    return committed.is_dir() and not committed.is_symlink()


def _move_committed(folder: Path) -> None:
    """Moves committed files, in any order: who reads them before all are moved finishes this first, or waits for the lock."""
    if not _is_committed(folder):
        return
    for path in sorted((folder / COMMITTED).iterdir()):
        if path.name.endswith(_REMOVED):
            (folder / path.name.removesuffix(_REMOVED)).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        else:
            path.replace(folder / path.name)
    sync_folder(folder)
    (folder / COMMITTED).rmdir()


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[None]:
    """A block in which no other process replaces tables in `folder`, and which finds them all of one run.

    The wait is short, since replacing takes no longer. Some file systems cannot lock folders: there tables of two runs
    may mix, which their digests reveal.
    """
    finish_commit(folder)
    with _locked(folder, fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def _locked(folder: Path, kind: int) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            locks.acquire(descriptor, kind, folder)
        yield
    finally:
        os.close(descriptor)


def _digest_table(table: pa.Table) -> str:
    """The digest of a table as Parquet, without the undefined values under its nulls."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    written = pa.BufferOutputStream()
    pq.write_table(table, written)
    return digest_bytes(written.getvalue().to_pybytes())


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest in a Parquet file's footer, its schema version checked, and every byte of the file by its seal.

    Raises UserError if the file is missing, damaged, not ours, or of another schema version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    finish_commit(path.parent)
    given_files.check_file(path)
    try:
        with path.open("rb") as file:
            metadata = pq.read_metadata(file).metadata or {}
            # What is damaged is called so, whatever else it looks like; a table of an older version has no seal.
            manifest = {} if seals.KEY.encode() in metadata else _checked_manifest(metadata, path)
            seals.check_seal(path, file, _how_to_make(metadata, path))
            manifest = manifest or _checked_manifest(metadata, path)
    except FileNotFoundError:
        raise UserError("no such table", where=path, remedy="make it with `recallkit slice` or `recallkit score`") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if lacks_resources(error):
            raise
        raise seals.DamagedError(f"not a readable Parquet file ({error})", where=path, remedy=_AGAIN) from error
    return check_manifest(manifest, path)


def _how_to_make(metadata: dict[bytes, bytes], path: Path) -> str:
    """What to do about a table whose content is damaged, according to its manifest."""
    try:
        manifest = json.loads(metadata[MANIFEST_KEY])
        kind, source = manifest.get("kind"), manifest.get("source")
    except (ValueError, KeyError, AttributeError, RecursionError):
        return _AGAIN
    if kind in ("sequences", "tokens", "words"):
        return "slice again with --force"
    if kind != "scores":
        return _AGAIN
    folder = next((folder.parent for folder in path.parents if folder.name == "scores"), None)
    if source is None or folder is None:
        return "score the model again with --force"
    return f"score them again with `recallkit score {source} --slices {folder} --force`"


def read_parquet(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """A file of `write_parquet`, whole. Raises DamagedError if a byte of it is not as it was written, and errors of Arrow."""
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        table = pq.read_table(file, schema=schema, page_checksum_verification=True)
        seals.check_seal(path, file, _AGAIN)
    return table


def _checked_manifest(metadata: dict[bytes, bytes], path: Path) -> dict[str, Any]:
    """The manifest in a file's metadata. Raises UserError if there is none, or one of another schema version."""
    if MANIFEST_KEY not in metadata:
        raise UserError("a Parquet file without recallkit's manifest", where=path, remedy="make it with recallkit")
    try:
        manifest = json.loads(metadata[MANIFEST_KEY])
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise UserError("its manifest is damaged", where=path, remedy=_AGAIN)
    check_schema_version(manifest, path)
    return manifest


def manifest_options(path: Path, *, force: bool = False) -> dict[str, Any] | None:
    """The options that made a finished table; None if there is none, or with `force` none that can be read.

    Raises UserError for a damaged table, and if none can be written there, before work for it begins.
    """
    check_folders(path)
    try:
        return read_manifest(path)["options"] if path.exists() else None
    except UserError:
        if force:
            return None
        raise


def check_replaceable(path: Path, magic: bytes, *, at: int = 0) -> None:
    """Raises UserError if `path` is there and not ours (see `ownership.is_ours`): it is never replaced, not even with --force."""
    ownership.check_regular(path)
    check_folders(path)
    if path.exists() and path.stat().st_size and not ownership.is_ours(path, magic, at=at):
        problem = "a file that recallkit did not write, as far as can be told, and will not replace"
        raise UserError(problem, where=path, remedy="give another name, or move this file away")


def is_foreign_parquet(path: Path) -> bool:
    """Whether this is an undamaged Parquet file of another program. A damaged one may have been ours."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            return MANIFEST_KEY not in (pq.read_metadata(file).metadata or {})
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if lacks_resources(error):
            raise
        return False


def check_folders(path: Path) -> None:
    """Raises UserError if a file has the path of a folder that `path` is in."""
    in_the_way = next((folder for folder in path.parents if folder.exists() and not folder.is_dir()), None)
    if in_the_way is not None:
        raise UserError("a file, where a directory is to be", where=in_the_way, remedy="give another name with -o")


def check_schema_version(manifest: dict[str, Any], path: Path) -> None:
    """Raises UserError unless the manifest has this program's schema version."""
    found = manifest.get("schema_version")
    if found != SCHEMA_VERSION:
        problem = f"written with table schema {found}, this recallkit reads schema {SCHEMA_VERSION}"
        raise UserError(problem, where=path, remedy="make it again with --force, or use the recallkit that wrote it")


def digest_bytes(*parts: bytes) -> str:
    """A short digest (BLAKE2b, 128 bit, hex) of byte strings, their boundaries included."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def digest_json(value: Any) -> str:
    """The digest of a JSON value, independent of key order."""
    return digest_bytes(json.dumps(value, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def digest_arrays(*arrays: np.ndarray) -> str:
    """The digest of arrays' contents, dtypes and lengths, read 64 MB at a time (memory-mapped arrays stay mapped)."""
    import numpy as np

    state = hashlib.blake2b(digest_size=16)
    for array in arrays:
        state.update(f"{array.dtype.str}{array.size};".encode())
        step = max(1, (1 << 26) // array.itemsize)
        for start in range(0, array.size, step):
            state.update(np.ascontiguousarray(array[start : start + step]).view(np.uint8).data)
    return state.hexdigest()


def digest_file(path: Path) -> str:
    """The digest of a whole file, for files in which every byte matters (weights, tokenizers)."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def digest_weights(path: Path) -> str:
    """`digest_file`, cached in the cache folder for files of more than 64 MB until anything about them changes.

    Weights of many gigabytes take seconds to read. A file is identified by its real path, length, inode and the times of the last
    change of content and inode; no program can set back the latter. A cache that cannot be read or written costs only time.
    """
    if path.stat().st_size <= _REMEMBERED_BYTES:
        return digest_file(path)
    real, before = os.path.realpath(path), _file_state(path)
    known = _read_digests().get(real)
    if known is not None and known[:-1] == before:
        return str(known[-1])
    started = time.time_ns()
    digest = digest_file(path)
    is_settled = started - max(before[1:3]) > seals.SETTLING_NS
    if is_settled and _file_state(path) == before:
        _remember_digest(real, [*before, digest])
    return digest


def _file_state(path: Path) -> list[int]:
    """What changes when a file does: length, times of change of the content and of the inode (ns), inode, device."""
    return list(seals.file_state(path.stat()))


def _read_digests() -> dict[str, list[Any]]:
    """Real path -> state and digest of the cached files; none if the cache is absent or damaged."""
    try:
        digests = json.loads((home() / "digests.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    kinds = [int] * 5 + [str]
    is_sound = isinstance(digests, dict) and all(isinstance(d, list) and [type(v) for v in d] == kinds for d in digests.values())
    return digests if is_sound else {}


def _remember_digest(real: str, entry: list[Any]) -> None:
    """Adds an entry as the latest and drops the oldest. If two processes write at once, one may lose its entry."""
    digests = {path: known for path, known in _read_digests().items() if path != real}
    kept = [*list(digests.items())[1 - _MOST_DIGESTS :], (real, entry)]
    with contextlib.suppress(OSError), replacing(home() / "digests.json") as temporary:
        temporary.write_text(json.dumps(dict(kept), indent=0), encoding="utf-8")


def digest_sample(path: Path) -> str:
    """A digest of a file's length and up to 16 evenly spaced blocks of 64 KiB: quick on shards of many gigabytes.

    A file of at most 1 MiB is read whole. Meant to notice a shard that was replaced, not to detect malice.
    """
    with path.open("rb") as handle:

        def read(start: int, stop: int) -> bytes:
            handle.seek(start)
            return handle.read(stop - start)

        return digest_samples(path.stat().st_size, read)


def digest_samples(size: int, read: Callable[[int, int], bytes]) -> str:
    """`digest_sample` of `size` bytes in any place: `read(start, stop)` gives some of them, fewer at the end."""
    state = hashlib.blake2b(str(size).encode(), digest_size=16)
    last = max(0, size - _SAMPLE_BLOCK)
    for sample in range(_NUM_SAMPLES):
        start = sample * _SAMPLE_BLOCK if size <= _NUM_SAMPLES * _SAMPLE_BLOCK else last * sample // (_NUM_SAMPLES - 1)
        state.update(read(start, min(size, start + _SAMPLE_BLOCK)) if start < size else b"")
    return state.hexdigest()


_LONGEST_SLUG = 60


def file_slug(name: str, short: str | None = None) -> str:
    """A file name for any model's name: readable, unique, and never a path outside its folder.

    Of a name that is too long it has the end, or, if it is given, what `short` says.
    """
    is_long = len(name) > _LONGEST_SLUG and short is not None
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in (short if is_long and short else name)).strip("-")
    safe = (safe[:_LONGEST_SLUG] if is_long else safe[-_LONGEST_SLUG:]) or "model"
    return safe if safe == name else f"{safe}.{digest_bytes(name.encode())[:8]}"


def remove(path: Path) -> None:
    """Removes a file or a folder of ours, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
