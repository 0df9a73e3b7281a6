"""Files of results: written aside and renamed, listed with their digests, checked whenever they are read.

A result's list is its manifest in JSON: `manifest.json` of a folder, or NAME.json beside a table NAME.parquet of its own. It names every
member with size and SHA-256. Parquet tables have the facts about them (the manifest that readers use) in their footers, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import shlex
import time
import uuid
from typing import TYPE_CHECKING, Any, TypeVar, overload

from recallkit.config import SCHEMA_VERSION, VERSION, home
from recallkit.errors import UserError, lacks_resources
from recallkit.storage import given_files, schemas
from recallkit.storage.records import Manifest, check_kind, check_record
from recallkit.storage.unfinished import MARK, NEW, PARTIAL, new_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy as np
    import pyarrow as pa

_Record = TypeVar("_Record", bound=Manifest)

MANIFEST = "manifest.json"
"""The list of a folder's result."""
MEMBERS = "members"
TIMINGS = "timings"
MANIFEST_KEY = b"recallkit"
"""The key of the facts in a Parquet file's footer."""

_VERSION = "recallkit_version"
_OURS = f'"{_VERSION}"'.encode()
_DIGEST = "digest"
_NOT_DIGESTED = (_DIGEST, TIMINGS, "seconds")
"""What differs between equal results is in no digest."""
_AGAIN = "make it again with --force"
UNLISTED = "copy its list here, too, or move it away and make it again"
"""What to do about a table that no list names, which `--force` would not replace."""
_TABLES = (".parquet", ".duckdb", ".npy")
"""Endings of what nobody edits, and `--force` therefore makes again."""
_MOVE = "give another name, or move this file away"

_NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EROFS)
"""Answers of file systems that cannot sync, most of them only folders: network disks, and FUSE."""

_SAMPLE_BLOCK = 1 << 16
_NUM_SAMPLES = 16

_REMEMBERED_BYTES = 64 << 20
"""Files larger than this are digested once: a smaller one takes a tenth of a second at most."""
_SETTLING_NS = 2_000_000_000
"""Times of files are coarse: a second write within this interval would not change them."""


class DamagedError(UserError):
    """A file of ours has changed since it was written."""


# ------------------------------------------------------------------------------------------------------- writing files


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields an empty temporary file; renames it to `path` if the block succeeds, removes it otherwise."""
    given_files.check_regular(path)
    with contextlib.ExitStack() as stack:
        if path.parent.name.endswith(PARTIAL):  # cleaned as a whole
            temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
            stack.callback(temporary.unlink, missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = stack.enter_context(new_folder(path, [path.name])) / path.name
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
        yield temporary
        _sync(temporary, path)
        temporary.replace(path)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes what was created, renamed and removed in a folder survive a power cut."""
    with contextlib.suppress(PermissionError):  # a folder that may be written and not read
        _sync(folder, folder)


def _sync(path: Path, shown: Path) -> None:
    """Puts a file or folder on the disk, if its file system can do that.

    Raises OSError for a disk that fails or is full, which names the file as `shown`.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise OSError(error.errno, error.strerror, str(shown)) from error
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object with a digest of its content, indented, with sorted keys (timings last, in their order), atomically."""
    facts = {name: entry for name, entry in value.items() if name != TIMINGS}
    last = {TIMINGS: value[TIMINGS]} if TIMINGS in value else {}
    ordered = {**json.loads(json.dumps(with_digest(facts), sort_keys=True)), **last}
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def with_digest(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the digest of its other entries, timings excepted."""
    return {**value, _DIGEST: digest_json({name: entry for name, entry in value.items() if name not in _NOT_DIGESTED})}


def without_digest(value: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Such an object without its digest. Raises DamagedError if it is not that of the other entries."""
    with contextlib.suppress(ValueError):  # text that cannot be written
        if value.get(_DIGEST) == with_digest(value)[_DIGEST]:
            return {name: entry for name, entry in value.items() if name != _DIGEST}
    raise DamagedError("damaged (changed since it was written)", where=path, remedy=_AGAIN)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of `write_json`. Raises UserError if it is damaged."""
    return without_digest(json_object(path), path)


def read_list(path: Path) -> dict[str, Any]:
    """The list of a result. Raises UserError if it is damaged, or not as recallkit writes it."""
    facts = read_json(path)
    check_record(facts, path, Manifest)  # of the others, those in the footers are read
    return facts


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in any file; an empty one if there is none that can be read. Raises UserError for a pipe, and for a huge file."""
    try:
        value = json.loads(given_files.read_file(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# --------------------------------------------------------------------------------------------------- lists of members


@contextlib.contextmanager
def writing_members(
    listing: Path,
    names: Collection[str],
    check: Callable[[], None] = lambda: None,
    kind: str | None = None,
) -> Iterator[Path]:
    """Yields an empty folder. If the block succeeds, its files become members of the list `listing`, in the folder that this is in.

    The new list is the file of its name there, completed by the members. Old members are removed, then the list is renamed to its
    place, then the files: a reader meanwhile, or after a kill, finds members missing, never two runs mixed, and the same command makes
    the result again. `names`: the files that it can have; other members, such as exports, stay.
    `check` may raise once no other process writes the list. `kind` is what the members are.
    """
    folder = listing.parent
    folder.mkdir(parents=True, exist_ok=True)
    with new_folder(listing, {listing.name, *names}) as new:
        check()
        yield new
        files = [path for path in sorted(new.iterdir()) if path.name not in (MARK, listing.name)]
        fact = {} if kind is None else {"kind": kind}
        members = {path.name: {**describe(path), **fact} for path in files}
        facts, before = json_object(new / listing.name), json_object(listing).get(MEMBERS)
        before = before if isinstance(before, dict) else {}
        others = {name: entry for name, entry in before.items() if name not in names}
        write_json(new / listing.name, {_VERSION: VERSION, **facts, MEMBERS: {**others, **members}})
        for name in before.keys() & set(names):
            (folder / name).unlink(missing_ok=True)
        (new / listing.name).replace(listing)
        sync_folder(folder)
        for name in members:
            (new / name).replace(folder / name)
        sync_folder(folder)


def write_frames(
    tables: Any,
    folder: Path,
    manifest: Mapping[str, Any],
    timings: Mapping[str, Any] | None = None,
    check: Callable[[], None] = lambda: None,
) -> list[Path]:
    """Writes each polars frame of a dataclass to `folder`/FIELD.parquet with `manifest`; returns the files.

    They are the members of `folder`/manifest.json, which has the manifest and the timings. All are replaced together; a field that is
    None has no file, and one of an earlier run is removed. `check`: see `writing_members`.
    """
    frames = {f"{field.name}.parquet": getattr(tables, field.name) for field in dataclasses.fields(tables)}
    with writing_members(folder / MANIFEST, frames, check) as new:
        write_json(new / MANIFEST, {**manifest, **({} if timings is None else {TIMINGS: timings})})
        for name, frame in frames.items():
            if frame is not None:
                table = frame.to_arrow()
                write_parquet(new / name, [table], table.schema, dict(manifest))
    return [folder / name for name, frame in frames.items() if frame is not None]


def adding_members(folder: Path, names: Collection[str]) -> AbstractContextManager[Path]:
    """Yields an empty folder whose files, of these `names`, are added to `folder` and to its `manifest.json`, which is made if need be.

    Raises UserError, before anything is written, as `check_addable` does.
    """
    return _adding(folder / MANIFEST, names)


@contextlib.contextmanager
def adding(path: Path, kind: str, *, force: bool = False) -> Iterator[Path]:
    """Yields the path of a file to be made, which becomes a member of the list `list_of(path)`; see `adding_members`.

    `kind` is what it is, such as a page: a file of ours of another kind is not replaced by it. With
    `force` a file of ours is replaced even if it was changed.
    """
    names = [path.name, f"{path.name}.wal"]  # DuckDB's log, which remains if the disk is full
    with _adding(list_of(path), names, kind, force=force) as new:
        yield new / path.name
        _sync(new / path.name, path)


@contextlib.contextmanager
def _adding(
    listing: Path,
    names: Collection[str],
    kind: str | None = None,
    *,
    force: bool = False,
) -> Iterator[Path]:
    check_addable(listing, names, kind, force=force)
    with writing_members(listing, names, kind=kind) as new:
        facts: dict[str, Any] = {"kind": "files", "schema_version": SCHEMA_VERSION}
        with contextlib.suppress(DamagedError):  # there is none, or a damaged one is replaced
            facts = read_list(listing)
        (new / listing.name).write_text(json.dumps(facts), encoding="utf-8")
        yield new


def list_of(path: Path) -> Path:
    """The list of a file that is written alone: the one that names it, that of its folder, or NAME.json of its own.

    Where NAME.json is somebody else's it is `manifest.json`, as of the pages in a folder.
    """
    own, shared = path.with_suffix(".json"), path.with_name(MANIFEST)
    naming = [listing for listing in lists_beside(path) if _names(listing, path.name)]
    is_free = own != path and (not own.exists() or is_stamped(own))
    return next(iter(naming), own if is_free and not is_stamped(shared) else shared)


def members(listing: Path) -> dict[str, Any]:
    """Name -> size and digest of the members that a list names; none if there is no list. Raises UserError if it is damaged."""
    return dict(read_list(listing).get(MEMBERS, {})) if listing.exists() else {}


@contextlib.contextmanager
def unchanged(listing: Path) -> Iterator[None]:
    """A block that reads members of a list. Raises UserError if the list was replaced meanwhile: they may be of two runs."""
    before, is_missing = file_state(listing.stat()) if listing.exists() else None, False
    try:
        yield
    except FileNotFoundError:  # between its check and its reading
        is_missing = True
    if is_missing or before != (file_state(listing.stat()) if listing.exists() else None):
        raise UserError("was replaced while it was read", where=listing, remedy="run this again")


def describe(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file, as lists have them; kept in this process until anything about the file changes."""
    with path.open("rb") as file:
        state, started = file_state(os.fstat(file.fileno())), time.time_ns()
        known = _known.get(path)
        if known is not None and known[0] == state:
            return known[1]
        description = {"size": state[0], "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
        if started - max(state[1:3]) > _SETTLING_NS and state == file_state(os.fstat(file.fileno())):
            _known[path] = state, description
    return description


_known: dict[Path, tuple[tuple[int, ...], dict[str, Any]]] = {}
"""Files that this process read -> their state then, and their description."""


def file_state(state: os.stat_result) -> tuple[int, ...]:
    """What changes when a file does: length, times of change of the content and of the inode (ns), inode, device."""
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino, state.st_dev


def lists_beside(path: Path) -> list[Path]:
    """The lists that may name a file: NAME.json of its own, and that of the folder."""
    return [listing for listing in (path.with_suffix(".json"), path.with_name(MANIFEST)) if listing != path]


def check_member(path: Path) -> Path | None:
    """The list that names a file; None if none does. Raises DamagedError if it, or the file, has changed since then."""
    for listing in lists_beside(path):
        if not _names(listing, path.name):
            continue
        facts = read_list(listing)
        entry = dict(facts.get(MEMBERS, {}).get(path.name, {}))
        if not entry:
            continue
        entry.pop("kind", None)
        if entry != ({"size": path.stat().st_size} if entry.get("size") != path.stat().st_size else describe(path)):
            raise DamagedError("damaged (changed since it was written)", where=path, remedy=remedy_of(facts, path))
        return listing
    return None


def _names(listing: Path, name: str) -> bool:
    """Whether a file is a list of ours that names `name`, by its text, so that a damaged list names its members still."""
    text = _text(listing)
    return _OURS in text and f"{json.dumps(name, ensure_ascii=False)}: {{".encode("utf-8", "surrogatepass") in text


def is_stamped(path: Path) -> bool:
    """Whether JSON is a list, or another file of `write_json`, of ours."""
    return _OURS in _text(path)


def _text(path: Path) -> bytes:
    """The bytes of a small file; none if it cannot be read."""
    with contextlib.suppress(OSError, UserError):
        return given_files.read_file(path)
    return b""


def remedy_of(facts: Mapping[str, Any], path: Path) -> str:
    """What to do about a missing or damaged member, according to its list."""
    kind, typed = facts.get("kind"), facts.get("typed")
    if path.suffix not in _TABLES and (kind, path.suffix) != ("tokens", ".json"):
        return "move what is left of it away, and make it again"
    if kind in ("sequences", "tokens", "words"):
        return "slice again with --force"
    if kind != "scores":
        return _AGAIN
    folder = next((folder.parent for folder in path.parents if folder.name == "scores"), None)
    if typed is None or folder is None:
        return "score the model again with --force"
    return f"score them again with `recallkit score {shlex.quote(str(typed))} --slices {shlex.quote(str(folder))} --force`"


def check_replaceable(path: Path, kind: str | None = None) -> None:
    """Raises UserError if `path` is there and no list beside it names it: then it is never replaced, not even with --force.

    Nor is a member of another `kind`, as where a user gives the name of a table for a page.
    """
    _check_ours(path, is_ours=is_listed(path))
    for listing in lists_beside(path) if _has_bytes(path) else []:
        listed = json_object(listing).get(MEMBERS) if _names(listing, path.name) else None
        entry = listed.get(path.name) if isinstance(listed, dict) else None
        if isinstance(entry, dict) and entry.get("kind") != kind:
            of_kind = entry.get("kind") or "a member of a result"
            problem = f"a file ({of_kind}) that such a command did not write, and will not replace"
            raise UserError(problem, where=path, remedy=_MOVE)


def is_listed(path: Path) -> bool:
    """Whether a list beside a file names it, damaged or not."""
    return any(_names(listing, path.name) for listing in lists_beside(path))


def check_list(listing: Path) -> None:
    """Raises UserError if a file that is no list of ours is in the place of one."""
    _check_ours(listing, is_ours=is_stamped(listing))


def check_addable(
    listing: Path,
    names: Collection[str],
    kind: str | None = None,
    *,
    force: bool = False,
) -> None:
    """Raises UserError if files of these `names` beside a list cannot become its members: one is not ours, or changed.

    What was changed since may be a user's work. With `force`, which is for tables, that is replaced: nobody edits them.
    """
    if listing.name in names:
        raise UserError("the name of the list of what is in this folder", where=listing, remedy="give another name")
    check_list(listing)
    paths = [listing.with_name(name) for name in names]
    for path in paths:
        check_replaceable(path, kind)
    try:
        for path in [] if force else [path for path in (listing, *paths) if _has_bytes(path)]:
            check_member(path) if path != listing else read_list(path)
    except DamagedError as error:
        problem = "changed since recallkit wrote it, perhaps by you, and not replaced"
        raise UserError(problem, where=error.where, remedy=_MOVE) from error


def _check_ours(path: Path, *, is_ours: bool) -> None:
    given_files.check_regular(path)
    given_files.check_folders(path)
    if _has_bytes(path) and not is_ours:
        problem = "a file that recallkit did not write, it seems, and will not replace"
        raise UserError(problem, where=path, remedy=_MOVE)


def _has_bytes(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


# ------------------------------------------------------------------------------------------------------ Parquet tables

_PARQUET_OPTIONS = {"compression": "zstd", "max_rows_per_page": 1 << 20}
"""Pages end at a megabyte: Arrow's own limit of 20,000 rows would make some fifty of a column, each of which costs time and bytes."""


@contextlib.contextmanager
def writing_parquet(
    path: Path, schema: pa.Schema, manifest: Callable[[], dict[str, Any]], **options: Any
) -> Iterator[Callable[[pa.Table], None]]:
    """Yields a function that writes a table as one row group; the file is there, whole, if the block succeeds.

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
            writer.add_key_value_metadata({MANIFEST_KEY.decode(): json.dumps(stamp, sort_keys=True)})
        if is_alone:
            path.unlink(missing_ok=True)  # a kill leaves a table that is missing, never one that seems damaged
            others = json_object(listing).get(MEMBERS)  # such as a page of the same name
            listed = {**(others if isinstance(others, dict) else {}), path.name: describe(temporary)}
            write_json(listing, {_VERSION: VERSION, **stamp, MEMBERS: listed})


def write_parquet(
    path: Path, tables: Iterable[pa.Table], schema: pa.Schema, manifest: dict[str, Any] | Callable[[], dict[str, Any]], **options: Any
) -> dict[str, Any]:
    """Writes each table as one row group, with the manifest, atomically; returns the manifest. See `writing_parquet`.

    A callable `manifest` is called after all tables are written, for facts that are known only then.
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
        makes = f"`recallkit slice -o {path.parent}`" if path.name == "tokens.parquet" else "the command that writes it (`gap` ...)"
        raise UserError("no such table", where=path, remedy=f"make it with {makes}")
    try:
        listing = check_member(path)
        facts = footer_facts(path)
        if facts is None:
            raise UserError("a Parquet file without recallkit's manifest", where=path, remedy="make it with recallkit")
        check_schema_version(facts, path)
        check_record(facts, path)
        check_kind(facts, path, record)
        schemas.check_columns(path, facts.get("kind"))
    except FileNotFoundError as error:  # it was being replaced
        raise UserError("was replaced while it was read", where=path, remedy="run this again") from error
    if listing is None:
        names = " or ".join(listing.name for listing in lists_beside(path))
        raise UserError(f"in no list of a result ({names} is missing)", where=path, remedy=UNLISTED)
    return facts


def footer_facts(path: Path) -> dict[str, Any] | None:
    """The facts in a Parquet file's footer; None if it has none of ours. Raises UserError if it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            metadata = pq.read_metadata(file).metadata or {}
        facts = json.loads(metadata[MANIFEST_KEY]) if MANIFEST_KEY in metadata else None
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        if lacks_resources(error):
            raise
        raise UserError(f"not a readable Parquet file ({error})", where=path, remedy=_AGAIN) from error
    return facts if isinstance(facts, dict) else None


def read_parquet(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """A file of `write_parquet`, whole. Raises DamagedError if it has changed, and errors of Arrow and of the system."""
    import pyarrow.parquet as pq

    if path.exists() and check_member(path) is None:
        raise DamagedError("damaged (its list is missing)", where=path, remedy=_AGAIN)
    # Neither `pq.read_table` nor pre_buffer: they wait for ever for a thread that the system refuses to start.
    with pq.ParquetFile(path, pre_buffer=False) as file:
        table = file.read(use_threads=False)
    return table if schema is None else table.cast(schema)


def is_table(path: Path) -> bool:
    """Whether this is a Parquet file that recallkit wrote, in whatever list."""
    with contextlib.suppress(UserError):
        return footer_facts(path) is not None
    return False


def manifest_options(path: Path, *, force: bool = False) -> dict[str, Any] | None:
    """The options that made a finished table; None if there is none, or with `force` none that can be read.

    Raises UserError for a damaged table, and if none can be written there, before work for it begins.
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
        problem = f"written with table schema {version}, this recallkit reads schema {SCHEMA_VERSION}"
        raise UserError(problem, where=path, remedy="make it again with --force, or use the recallkit that wrote it")


# ------------------------------------------------------------------------------------------------------------- digests


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


def digest_inputs(facts: Any, files: Sequence[Path]) -> str:
    """The digest of what a result is made of: this version of the program, JSON values, and the bytes of files."""
    return digest_json([VERSION, SCHEMA_VERSION, facts, [describe(path)["sha256"] for path in files]])


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
    """`digest_file`, kept in the cache folder for files of more than 64 MB until anything about them changes.

    Weights of many gigabytes take seconds to read. A file is identified by its real path, length, inode and the times of the last
    change of content and inode; no program can set back the latter. A cache that cannot be read or written costs only time.
    """
    if path.stat().st_size <= _REMEMBERED_BYTES:
        return digest_file(path)
    before, started = file_state(path.stat()), time.time_ns()
    memory = home() / "digests" / digest_json([os.path.realpath(path), *before])
    with contextlib.suppress(OSError, ValueError):
        if re.fullmatch(r"[0-9a-f]{32}", known := memory.read_text(encoding="ascii")):
            return known
    digest = digest_file(path)
    if started - max(before[1:3]) > _SETTLING_NS and file_state(path.stat()) == before:
        with contextlib.suppress(OSError, UserError), replacing(memory) as temporary:
            temporary.write_text(digest, encoding="ascii")
    return digest


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


def file_slug(name: str) -> str:
    """A file name for any model's name: readable, unique, and never a path outside its folder.

    Of a long name it has the end.
    """
    safe = re.sub("[^A-Za-z0-9_-]", "-", name).strip("-")[-_LONGEST_SLUG:] or "model"
    return safe if safe == name else f"{safe}.{digest_bytes(name.encode())[:8]}"
