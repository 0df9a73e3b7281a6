"""The work of `verify`: every list of members is compared with the files beside it, and what results record of each other is compared."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recallkit.display import console
from recallkit.display.cells import counted
from recallkit.display.notebook import Shown
from recallkit.display.progress import progress
from recallkit.errors import UserError, as_utf8, lacks_resources
from recallkit.storage import artifacts, unfinished
from recallkit.storage.journal import leftover
from recallkit.storage.result import KINDS
from recallkit.storage.unfinished import MARK, NEW, PARTIAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Facts = dict[Path, dict[str, Any]]
    """The manifests of unchanged tables, by file."""

Kind = Literal["missing", "changed", "mismatch", "unfinished", "leftover", "foreign"]
ERRORS: tuple[Kind, ...] = ("missing", "changed", "mismatch")
"""Findings that make numbers wrong or unreadable; the others are notes."""

_AGAIN = "make it again with --force"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is the matter with a file, whose name is relative to the folder, and what to do about it.

    `kind`: a "missing" or "changed" member and a "mismatch" of two results are errors; "unfinished" work, a "leftover" of a killed run and
    a "foreign" file in a result's folder, which has nothing to be compared with, are notes.
    """

    file: str
    kind: Kind
    problem: str
    remedy: str

    @property
    def is_error(self) -> bool:
        """Whether numbers can be wrong because of it."""
        return self.kind in ERRORS


@dataclass(slots=True, repr=False)
class Verified(Shown):
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
        self.findings.append(Finding(as_utf8(str(path.relative_to(self.folder))), kind, as_utf8(problem), as_utf8(remedy)))

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """A block that reads a file: errors about it become findings."""
        try:
            size = path.stat().st_size
            yield
        except UserError as error:
            is_own = error.where in (None, str(path), str(path.absolute()))
            problem = error.problem if is_own else f"{error.where}: {error.problem}"
            self.add(path, "changed" if is_own else "mismatch", problem, error.remedy or _AGAIN)
        except OSError as error:
            if lacks_resources(error):
                raise
            self.add(path, "changed", f"cannot be read ({error.strerror})", "make the file and its folder readable")
        else:
            self.num_files, self.num_bytes = self.num_files + 1, self.num_bytes + size


def verify(folder: Path, *, clean: bool = False) -> Verified:
    """Compares every list of members in a folder, and in the folders in it, with the files: missing, changed, foreign.

    Of folders in which there is no list one note says how many files they have. Labels, scores and
    comparisons are those of the sequences, counts and scores beside them. Nothing is written. With
    `clean`, what killed runs left is removed first: the files that the mark of a folder of unfinished
    work lists, where no process uses it and its result is complete. Raises UserError if there is no
    such folder.
    """
    if not folder.is_dir():
        problem = "not a directory" if folder.exists() else "no such directory"
        raise UserError(problem, where=folder, remedy="name one that recallkit wrote results to")
    found = Verified(folder)
    facts: Facts = {}
    tree, listed = list(_walk(folder, found)), set[Path]()
    with progress("verifying", total=sum(len(names) for _, names in tree), unit="files") as show:
        for place, names in tree:
            if unfinished.is_marked(place):
                _check_unfinished(place, names, found, clean=clean)
            elif _check_folder(place, names, found, facts):
                listed |= {place, *place.parents}
            show(found.num_files)
    _note_unlisted(tree, listed, found)
    for path, problem, remedy in _mismatches(facts):
        found.add(path, "mismatch", problem, remedy)
    found.findings.sort(key=lambda finding: (not finding.is_error, finding.file))
    return found


def _walk(folder: Path, found: Verified) -> Iterator[tuple[Path, list[str]]]:
    """Each folder and the files in it; links to folders are not followed, nor is what is in a folder of unfinished work walked into."""

    def note(error: OSError) -> None:
        found.add(Path(error.filename), "changed", f"cannot be read ({error.strerror})", "make it readable")

    for place, folders, names in os.walk(folder, onerror=note):
        folders[:] = [] if unfinished.is_marked(Path(place)) else sorted(folders)
        yield Path(place), sorted(names)


def _note_unlisted(tree: list[tuple[Path, list[str]]], listed: set[Path], found: Verified) -> None:
    """A note for the files of each tree of folders in none of which there is a list; `listed`: all that contain one."""
    counts: dict[Path, int] = {}
    for place, names in tree:
        if place not in listed and not unfinished.is_marked(place):
            top = min({place, *place.parents} - listed - {*found.folder.parents}, key=lambda path: len(path.parts))
            counts[top] = counts.get(top, 0) + len(names)
    for top, number in counts.items():
        if number:
            problem = f"{counted(number, 'file')} in no list of recallkit: nothing to compare with"
            found.add(top, "foreign", problem, "none needed")


def _check_folder(place: Path, names: list[str], found: Verified, facts: Facts) -> bool:
    """The lists in a folder, their members, and what no list names; returns whether there is a list."""
    from recallkit.counting.table import read_meta

    named, lists = set[str](), set[str]()
    for listing in [place / name for name in names if name.endswith(".json") and artifacts.is_stamped(place / name)]:
        lists.add(listing.name)
        with found.reading(listing):
            content = artifacts.read_list(listing)
            if artifacts.MEMBERS not in content:  # a member, such as a run of a sweep
                lists.remove(listing.name)
            members = content.get(artifacts.MEMBERS, {})
            named |= {*members}
            for path in (place / name for name in members):
                if not path.exists():
                    found.add(path, "missing", f"a member of {listing.name}", artifacts.remedy_of(content, path))
                    continue
                with found.reading(path):
                    if path.suffix == ".parquet":
                        facts[path] = artifacts.read_manifest(path)
                    elif artifacts.check_member(path) and path.suffix == ".duckdb":
                        facts[path] = read_meta(path)
    for path in (place / name for name in names if name not in named | lists):
        if _is_table(path):
            listings = " or ".join(listing.name for listing in artifacts.lists_beside(path))
            found.add(path, "missing", f"a recallkit table that no list names: {listings} is missing or changed", artifacts.UNLISTED)
        elif lists:
            found.add(path, "foreign", "named in no list of recallkit, so there is nothing to compare it with", "none needed")
    return bool(lists)


def _is_table(path: Path) -> bool:
    """Whether a file is a table of ours, according to what is in it."""
    from recallkit.counting.table import read_meta

    if path.suffix != ".duckdb":
        return path.suffix == ".parquet" and path.is_file() and artifacts.is_table(path)
    with contextlib.suppress(UserError):
        return bool(read_meta(path))
    return False


def _check_unfinished(folder: Path, names: list[str], found: Verified, *, clean: bool) -> None:
    """A folder of unfinished work: with `clean` a leftover is removed, of any other the states and parts are checked."""
    with leftover(folder, _options_of(folder)) as is_left:
        if is_left and clean and unfinished.remove(folder):
            found.num_removed += 1
        elif is_left:
            found.add(folder, "leftover", "what a killed run left of a result", "remove it with --clean")
    if is_left:
        return
    found.add(folder, "unfinished", "interrupted work, or work in progress", "run its command again to finish it")
    for path in (folder / name for name in names if name != MARK and (name.endswith(".json") or name.startswith("settled-"))):
        with found.reading(path):
            for name in artifacts.members(path):
                if (folder / name).exists():  # a list is written before its part
                    artifacts.check_member(folder / name)


def _options_of(folder: Path) -> Mapping[str, Any] | None:
    """The options of the complete result whose unfinished work was in a folder; None if there is none."""
    from recallkit.counting.table import read_meta

    target = folder.with_name(folder.name[1:].removesuffix(PARTIAL))
    if folder.name.endswith(NEW) or not target.is_file():
        return None
    with contextlib.suppress(UserError, KeyError):
        options: dict[str, Any] = (artifacts.read_manifest(target) if target.suffix == ".parquet" else read_meta(target))["options"]
        return options
    return None


# ---------------------------------------------------------------------------------------- what results record of each other


def _mismatches(facts: Facts) -> Iterator[tuple[Path, str, str]]:
    """Every table that does not fit another: the file, what does not fit, what to do about it; of a result its main table."""
    for path, manifest in facts.items():
        if path.suffix != ".parquet" or (path.stem not in KINDS and any(path.with_name(f"{kind}.parquet") in facts for kind in KINDS)):
            continue
        # Labels, scores and what is made of them are of the sequences of the folder they are in.
        digest = (manifest.get("slices") or {}).get("sequences_digest", manifest.get("sequences_digest"))
        of = next((sequences for folder in path.parents if (sequences := folder / "sequences.parquet") in facts), path)
        if digest is not None and of != path and facts[of].get("sequences_digest") != digest:
            yield path, f"belongs to other sequences than {of.name} in {of.parent}", "make it again, or move it to where it belongs"
        # The counts that labels were made with are where they were, if that is in the folder.
        counts = manifest.get("counts") or {}
        for table in facts:
            if table.suffix == ".duckdb" and str(table.resolve()) == counts.get("path") and facts[table].get("id") != counts.get("id"):
                yield path, f"labelled with other counts than {table.name} has now", "slice again, or count again as before"
        # The scores that a result was made of are those that are here.
        of = next((folder for folder in path.parents if any(folder / "scores" / name in facts for name, _ in _scores_of(manifest))), path)
        scored = [(facts.get(of / "scores" / name, {}), options) for name, options in _scores_of(manifest)]
        if others := [str(found.get("model")) for found, options in scored if found and found.get("options") != options]:
            typed = [str(found.get("typed") or "MODEL") for found, _ in scored]
            words = shlex.join(["recallkit", manifest["kind"], *typed, "--slices", str(of), "-o", str(path.parent)])
            yield path, f"made of other scores of {', '.join(others)}", f"run it again with its options: `{words}`"


def _scores_of(manifest: dict[str, Any]) -> list[tuple[str, Any]]:
    """The score files of a comparison, an intervention or a tracked run, the reference first, with the options that they had then."""
    kind, models, scores = manifest.get("kind"), manifest.get("models") or [], manifest.get("scores") or {}
    if kind == "gap":
        files = manifest.get("score_files") or {}
        return [(files[model], scores.get(model)) for model in (manifest.get("reference"), *models) if model in files]
    if kind == "intervene":
        keys = (manifest.get("options") or {}).get("models") or []
        return [(f"{artifacts.file_slug(key)}.parquet", scores.get(model)) for key, model in zip(keys, models, strict=False)]
    return list(zip(manifest.get("score_files") or [], scores, strict=False)) if kind == "track" else []


# ----------------------------------------------------------------------------------------------------------- what is printed


def print_verified(found: Verified) -> None:
    """Whether all is well, and findings, errors first."""
    console.print_line(summary(found))
    for finding in found.findings:
        console.print_indented(f"{finding.kind:<10}  {finding.file}:", 0)
        console.print_indented(finding.problem, 12)
        console.print_indented(f"-> {finding.remedy}", 12)


def summary(found: Verified) -> str:
    """How much was read, and how many errors and notes there are."""
    read = f"{counted(found.num_files, 'file')}, {found.num_bytes / 1e6:,.1f} MB"
    errors = sum(finding.is_error for finding in found.findings)
    notes = len(found.findings) - errors
    removed = f"{counted(found.num_removed, 'leftover')} removed. " if found.num_removed else ""
    verdict = f"{counted(errors, 'error')}" if errors else "all results are unchanged and belong together"
    return f"{removed}{read}: {verdict}" + (f", {counted(notes, 'note')}." if notes else ".")


def to_json(found: Verified) -> dict[str, Any]:
    """What `--json` prints."""
    findings = [{"file": f.file, "kind": f.kind, "problem": f.problem, "remedy": f.remedy} for f in found.findings]
    kept: dict[str, Any] = {"path": str(found.folder), "sound": found.is_sound, "files": found.num_files, "bytes": found.num_bytes}
    return json.loads(json.dumps({**kept, "removed": found.num_removed, "findings": findings}))  # type: ignore[no-any-return]
