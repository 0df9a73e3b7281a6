"""The work of `verify`: every file of ours in a folder is read whole, and what the files record of each other is compared."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recallkit.display.progress import progress
from recallkit.errors import UserError, lacks_resources
from recallkit.storage import artifacts, journal
from recallkit.storage.given_files import check_name
from recallkit.storage.result import MANIFEST
from recallkit.storage.seals import DamagedError
from recallkit.storage.timings import KEY as TIMINGS
from recallkit.verification.references import check_references

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from recallkit.verification.references import Manifests

Kind = Literal["damaged", "mismatch", "unfinished", "leftover", "foreign"]
ERRORS: tuple[Kind, ...] = ("damaged", "mismatch")
"""Findings that make numbers wrong or unreadable; the others are notes."""

_LEFTOVER_REMEDY = "remove it with --clean"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is the matter with a file, whose name is relative to the folder, and what to do about it.

    `kind`: "damaged" and "mismatch" (of two files) are errors; "unfinished" work, a "leftover" of a killed run and a "foreign" table,
    which has nothing to be compared with, are notes.
    """

    file: str
    kind: Kind
    problem: str
    remedy: str

    @property
    def is_error(self) -> bool:
        """Whether numbers can be wrong because of it."""
        return self.kind in ERRORS


@dataclass(slots=True)
class Verified:
    """What was read of a folder, and what was found. `num_removed`: leftovers that were removed, with `clean`."""

    folder: Path
    num_files: int = 0
    num_bytes: int = 0
    num_removed: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether there is no error."""
        return not any(finding.is_error for finding in self.findings)

    def add(self, path: Path, kind: Kind, problem: str, remedy: str) -> None:
        """Adds a finding about a file in the folder."""
        self.findings.append(Finding(str(path.relative_to(self.folder)), kind, problem, remedy))

    def note_unreadable(self, error: OSError) -> None:
        """Adds the finding of a folder that cannot be read."""
        self.add(Path(error.filename), "damaged", f"cannot be read ({error.strerror})", "see that it may be read")

    @contextlib.contextmanager
    def finding(self, path: Path) -> Iterator[None]:
        """A block that reads a file: errors about it become findings."""
        try:
            yield
        except UserError as error:
            is_own = error.where in (None, str(path), str(path.absolute()))
            problem = error.problem if is_own else f"{error.where}: {error.problem}"
            self.add(path, "damaged" if is_own else "mismatch", problem, error.remedy or "make it again")
        except OSError as error:
            if lacks_resources(error):
                raise
            self.add(path, "damaged", f"cannot be read ({error.strerror})", "see that the file and its folder may be read")


def verify(folder: Path, *, clean: bool = False) -> Verified:
    """Reads every table, counts table, manifest and journal in a folder and the folders in it, and compares what they record.

    Every byte of a table is checked by its seal; digests of sequences, ids of counts and numbers of rows are computed again; labels,
    scores and comparisons are those of the sequences, counts and scores beside them. Tables that a killed run had committed are moved
    into place, as by every reader. With `clean`, what killed runs left is removed first: temporary files, and parts of results that are
    complete. Raises UserError if there is no such folder, or if its name is not UTF-8.
    """
    if not folder.is_dir():
        raise UserError("no such directory", where=folder, remedy="name one that recallkit wrote results to")
    check_name(folder)
    found = Verified(folder)
    for path in [path for path in _files(folder) if path.name == artifacts.COMMITTED]:
        with found.finding(path):
            artifacts.finish_commit(path.parent)
    files = sorted(_files(folder, found.note_unreadable))
    if clean:
        found.num_removed = _clean(folder, files)
        files = [path for path in files if path.exists()]
    sizes = {path: path.stat().st_size for path in files if path.is_file()}
    manifests: Manifests = {}
    with progress("verifying", total=sum(sizes.values()), unit="bytes") as show:
        for path, size in sizes.items():
            if (check := _check_of(path)) is not None:
                with found.finding(path):
                    check(path, found, manifests)
                found.num_files += 1
                found.num_bytes += size
            show(found.num_bytes)
    for path, problem, remedy in check_references(manifests):
        found.add(path, "mismatch", problem, remedy)
    _note_unfinished(files, found)
    found.findings.sort(key=lambda finding: (not finding.is_error, finding.file))
    return found


def _files(folder: Path, note: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """All files, and the folders of unfinished work; links to folders are not followed. `note` is told of one that cannot be read."""
    for place, folders, names in os.walk(folder, onerror=note):
        yield from (Path(place, name) for name in names)
        whole = [name for name in folders if name == artifacts.COMMITTED or artifacts.is_temporary(Path(place, name))]
        yield from (Path(place, name) for name in folders if name in whole or name.endswith(artifacts.PARTIAL))
        folders[:] = [name for name in folders if name not in whole]


def _check_of(path: Path) -> Callable[[Path, Verified, Manifests], None] | None:
    """The check of a file by its name; None for one of which nothing is recorded."""
    in_journal = path.parent.name.endswith(artifacts.PARTIAL)
    if artifacts.is_temporary(path) or path.name == "lock":
        return None
    if in_journal:
        return _check_part
    if path.suffix == ".json":
        return _check_manifest_file if _is_manifest_file(path) else None
    return {".parquet": _check_table, ".duckdb": _check_counts}.get(path.suffix)


def _is_manifest_file(path: Path) -> bool:
    """Whether JSON is a manifest of ours, which has timings, or should be one; any other is somebody else's."""
    value: dict[str, Any] = {}
    with contextlib.suppress(UserError):  # it is longer than any manifest
        value = artifacts.json_object(path)
    return TIMINGS in value or (not value and (path.name == MANIFEST or path.with_suffix(".parquet").is_file()))


def _check_table(path: Path, found: Verified, manifests: Manifests) -> None:
    if artifacts.is_foreign_parquet(path):
        found.add(path, "foreign", "not written by recallkit: nothing to compare it with", "none needed")
        return
    check_name(path)
    manifests[path] = manifest = artifacts.read_manifest(path)
    if manifest.get("kind") == "sequences":
        _check_sequences(path, manifest)
    elif "num_rows" in manifest and manifest.get("kind") in _ROW_A_TOKEN:
        _check_num_rows(path, manifest)


_ROW_A_TOKEN = ("tokens", "words", "scores")


def _check_num_rows(path: Path, manifest: dict[str, Any]) -> None:
    import pyarrow.parquet as pq

    num_rows = pq.read_metadata(path).num_rows
    if num_rows != manifest["num_rows"]:
        problem = f"{num_rows:,} rows, but its manifest says {manifest['num_rows']:,}"
        raise DamagedError(problem, where=path, remedy="make it again with --force")


def _check_sequences(path: Path, manifest: dict[str, Any]) -> None:
    from recallkit.text.sequences import describe_sequences
    from recallkit.text.tokenizers import load_slices_tokenizer

    for name, value in describe_sequences(path).items():
        if manifest.get(name, value) != value:
            problem = f"{name} is {value} according to its rows, and {manifest[name]} according to its manifest"
            raise DamagedError(problem, where=path, remedy="slice again with --force")
    load_slices_tokenizer(path.parent, manifest["tokenizer"])


def _check_counts(path: Path, found: Verified, manifests: Manifests) -> None:
    from recallkit.counting.table import open_counts

    table = open_counts(path)
    _ = table.ngram_hashes  # which opening, unlike all else, neither reads nor checks
    if table.recompute_id() != table.meta["id"]:
        raise DamagedError("its id is not that of its rows", where=path, remedy="count again with --force")
    manifests[path] = dict(table.meta)


def _check_manifest_file(path: Path, found: Verified, manifests: Manifests) -> None:
    check_name(path)
    manifests[path] = artifacts.read_json(path)


def _check_part(path: Path, found: Verified, manifests: Manifests) -> None:
    """A file of unfinished work: a state, a value that all processes use, or a part that is a table."""
    remedy = "run the same command again, which refuses or makes it anew, or with --force"
    with path.open("rb") as file:
        is_table = file.read(len(artifacts.PARQUET_MAGIC)) == artifacts.PARQUET_MAGIC
    try:
        if is_table:
            artifacts.read_manifest(path)
        elif path.name == "state.json" or path.name.startswith("settled-"):
            artifacts.read_json(path)
    except UserError as error:
        raise DamagedError(error.problem, where=path, remedy=remedy) from error


def _note_unfinished(files: list[Path], found: Verified) -> None:
    """Journals of unfinished work, and what killed runs left."""
    for path in files:
        if path.name.endswith(artifacts.PARTIAL):
            if _is_leftover(path):
                found.add(path, "leftover", "parts of a result that is complete", _LEFTOVER_REMEDY)
            else:
                found.add(path, "unfinished", "work that was interrupted, or is under way", "run its command again to finish it")
        elif artifacts.is_temporary(path):
            if artifacts.is_abandoned(path):
                found.add(path, "leftover", "a temporary file of a killed run", _LEFTOVER_REMEDY)
            else:
                problem = "a temporary file of a run that is under way, or of another machine"
                found.add(path, "unfinished", problem, "wait for it, or remove it")


def _is_leftover(folder: Path) -> bool:
    """Whether a journal is of a result that is complete, or of one that was being removed, and no process uses it."""
    target = folder.parent / folder.name[1 : -len(artifacts.PARTIAL)]
    try:
        with journal.locked(folder):
            key = journal.read_key(folder)
            return key is None or (target.exists() and _options_of(target).items() <= key.items())
    except (UserError, BlockingIOError):
        return False


def _options_of(target: Path) -> dict[str, Any]:
    """The options of a complete result, by which its journal is known."""
    from recallkit.counting.table import read_meta

    options: dict[str, Any] = (read_meta(target) if target.suffix == ".duckdb" else artifacts.read_manifest(target))["options"]
    return options


def _clean(folder: Path, files: list[Path]) -> int:
    """Removes what killed runs of this machine left; returns how many files and folders that was."""
    removed = 0
    for path in files:
        if path.name.endswith(artifacts.PARTIAL) and _is_leftover(path):
            artifacts.remove(path)
            removed += 1
    for place in sorted({folder, *(path.parent for path in files)}):
        if place.is_dir():
            removed += artifacts.remove_abandoned(place)
    return removed


def to_json(found: Verified) -> dict[str, Any]:
    """What `--json` prints."""
    findings = [{"file": f.file, "kind": f.kind, "problem": f.problem, "remedy": f.remedy} for f in found.findings]
    kept: dict[str, Any] = {"path": str(found.folder), "sound": found.is_sound, "files": found.num_files, "bytes": found.num_bytes}
    return json.loads(json.dumps({**kept, "removed": found.num_removed, "findings": findings}))  # type: ignore[no-any-return]
