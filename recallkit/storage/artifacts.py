"""Files of results: written aside and renamed, listed with their digests, checked whenever they are
read.

A result's list is its manifest in JSON: `manifest.json` of a folder, or NAME.json beside a table
NAME.parquet of its own. It names every member with size and SHA-256. Parquet tables have the facts
about them (the manifest that readers use) in their footers, too.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from typing import TYPE_CHECKING, Any

from recallkit.config import SCHEMA_VERSION, VERSION
from recallkit.errors import UserError
from recallkit.storage import given_files
from recallkit.storage.hashing import describe, digest_json, file_state
from recallkit.storage.records import Manifest, check_record
from recallkit.storage.unfinished import MARK, new_folder
from recallkit.storage.whole_files import replacing, sync, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path


MANIFEST = "manifest.json"
"""The list of a folder's result."""
MEMBERS = "members"
TIMINGS = "timings"

VERSION_KEY = "recallkit_version"
_OURS = f'"{VERSION_KEY}"'.encode()
_DIGEST = "digest"
_NOT_DIGESTED = (_DIGEST, TIMINGS, "seconds")
"""What differs between equal results is in no digest."""
AGAIN = "make it again with --force"
UNLISTED = "copy its list here, too, or move it away and make it again"
"""What to do about a table that no list names, which `--force` would not replace."""
_TABLES = (".parquet", ".duckdb", ".npy")
"""Endings of what nobody edits, and `--force` therefore makes again."""
_MOVE = "give another name, or move this file away"


class DamagedError(UserError):
    """A file of ours has changed since it was written."""


# ------------------------------------------------------------------------------------ writing files


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object with a digest of its content, indented, with sorted keys (timings last,
    in their order), atomically."""
    facts = {name: entry for name, entry in value.items() if name != TIMINGS}
    last = {TIMINGS: value[TIMINGS]} if TIMINGS in value else {}
    ordered = {**json.loads(json.dumps(with_digest(facts), sort_keys=True)), **last}
    with replacing(path) as temporary:
        temporary.write_text(
            json.dumps(ordered, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def with_digest(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the digest of its other entries, timings excepted."""
    return {
        **value,
        _DIGEST: digest_json(
            {name: entry for name, entry in value.items() if name not in _NOT_DIGESTED}
        ),
    }


def without_digest(value: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Such an object without its digest. Raises DamagedError if it is not that of the other
    entries."""
    with contextlib.suppress(ValueError):  # text that cannot be written
        if value.get(_DIGEST) == with_digest(value)[_DIGEST]:
            return {name: entry for name, entry in value.items() if name != _DIGEST}
    raise DamagedError("damaged (changed since it was written)", where=path, remedy=AGAIN)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of `write_json`. Raises UserError if it is damaged."""
    return without_digest(json_object(path), path)


def read_list(path: Path) -> dict[str, Any]:
    """The list of a result. Raises UserError if it is damaged, or not as recallkit writes it."""
    facts = read_json(path)
    check_record(facts, path, Manifest)  # of the others, those in the footers are read
    return facts


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in any file; an empty one if there is none that can be read. Raises UserError
    for a pipe, and for a huge file."""
    try:
        value = json.loads(given_files.read_file(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# --------------------------------------------------------------------------------- lists of members


@contextlib.contextmanager
def writing_members(
    listing: Path,
    names: Collection[str],
    check: Callable[[], None] = lambda: None,
    kind: str | None = None,
) -> Iterator[Path]:
    """Yields an empty folder. If the block succeeds, its files become members of the list
    `listing`, in the folder that this is in.

    The new list is the file of its name there, completed by the members. Old members are removed,
    then the list is renamed to its place, then the files: a reader meanwhile, or after a kill,
    finds members missing, never two runs mixed, and the same command makes the result again.
    `names`: the files that it can have; other members, such as exports, stay. `check` may raise
    once no other process writes the list. `kind` is what the members are.
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
        write_json(
            new / listing.name, {VERSION_KEY: VERSION, **facts, MEMBERS: {**others, **members}}
        )
        for name in before.keys() & set(names):
            (folder / name).unlink(missing_ok=True)
        (new / listing.name).replace(listing)
        sync_folder(folder)
        for name in members:
            (new / name).replace(folder / name)
        sync_folder(folder)


def adding_members(folder: Path, names: Collection[str]) -> AbstractContextManager[Path]:
    """Yields an empty folder whose files, of these `names`, are added to `folder` and to its
    `manifest.json`, which is made if need be.

    Raises UserError, before anything is written, as `check_addable` does.
    """
    return _adding(folder / MANIFEST, names)


@contextlib.contextmanager
def adding(path: Path, kind: str, *, force: bool = False) -> Iterator[Path]:
    """Yields the path of a file to be made, which becomes a member of the list `list_of(path)`; see
    `adding_members`.

    `kind` is what it is, such as a page: a file of ours of another kind is not replaced by it. With
    `force` a file of ours is replaced even if it was changed.
    """
    names = [path.name, f"{path.name}.wal"]  # DuckDB's log, which remains if the disk is full
    with _adding(list_of(path), names, kind, force=force) as new:
        yield new / path.name
        sync(new / path.name, path)


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
    """The list of a file that is written alone: the one that names it, that of its folder, or
    NAME.json of its own.

    Where NAME.json is somebody else's it is `manifest.json`, as of the pages in a folder.
    """
    own, shared = path.with_suffix(".json"), path.with_name(MANIFEST)
    naming = [listing for listing in lists_beside(path) if _names(listing, path.name)]
    is_free = own != path and (not own.exists() or is_stamped(own))
    return next(iter(naming), own if is_free and not is_stamped(shared) else shared)


def members(listing: Path) -> dict[str, Any]:
    """Name -> size and digest of the members that a list names; none if there is no list. Raises
    UserError if it is damaged."""
    return dict(read_list(listing).get(MEMBERS, {})) if listing.exists() else {}


@contextlib.contextmanager
def unchanged(listing: Path) -> Iterator[None]:
    """A block that reads members of a list. Raises UserError if the list was replaced meanwhile:
    they may be of two runs."""
    before, is_missing = file_state(listing.stat()) if listing.exists() else None, False
    try:
        yield
    except FileNotFoundError:  # between its check and its reading
        is_missing = True
    if is_missing or before != (file_state(listing.stat()) if listing.exists() else None):
        raise UserError("was replaced while it was read", where=listing, remedy="run this again")


def lists_beside(path: Path) -> list[Path]:
    """The lists that may name a file: NAME.json of its own, and that of the folder."""
    return [
        listing
        for listing in (path.with_suffix(".json"), path.with_name(MANIFEST))
        if listing != path
    ]


def check_member(path: Path) -> Path | None:
    """The list that names a file; None if none does. Raises DamagedError if it, or the file, has
    changed since then."""
    for listing in lists_beside(path):
        if not _names(listing, path.name):
            continue
        facts = read_list(listing)
        entry = dict(facts.get(MEMBERS, {}).get(path.name, {}))
        if not entry:
            continue
        entry.pop("kind", None)
        if entry != (
            {"size": path.stat().st_size}
            if entry.get("size") != path.stat().st_size
            else describe(path)
        ):
            raise DamagedError(
                "damaged (changed since it was written)", where=path, remedy=remedy_of(facts, path)
            )
        return listing
    return None


def _names(listing: Path, name: str) -> bool:
    """Whether a file is a list of ours that names `name`, by its text, so that a damaged list names
    its members still."""
    text = _text(listing)
    return (
        _OURS in text
        and f"{json.dumps(name, ensure_ascii=False)}: {{".encode("utf-8", "surrogatepass") in text
    )


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
        return AGAIN
    folder = next((folder.parent for folder in path.parents if folder.name == "scores"), None)
    if typed is None or folder is None:
        return "score the model again with --force"
    return (
        f"score them again with `recallkit score {shlex.quote(str(typed))} --slices "
        f"{shlex.quote(str(folder))} --force`"
    )


def check_replaceable(path: Path, kind: str | None = None) -> None:
    """Raises UserError if `path` is there and no list beside it names it: then it is never
    replaced, not even with --force.

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
    """Raises UserError if files of these `names` beside a list cannot become its members: one is
    not ours, or changed.

    What was changed since may be a user's work. With `force`, which is for tables, that is
    replaced: nobody edits them.
    """
    if listing.name in names:
        raise UserError(
            "the name of the list of what is in this folder",
            where=listing,
            remedy="give another name",
        )
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
