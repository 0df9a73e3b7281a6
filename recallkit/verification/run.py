"""The work of `verify`: lists of members are compared with files, results with each other."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.display.cells import counted
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.storage import artifacts, hashing, parquet_files, unfinished
from recallkit.storage.journal import leftover
from recallkit.storage.result import KINDS
from recallkit.storage.unfinished import MARK, NEW, PARTIAL
from recallkit.verification.findings import Verified

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Manifest = dict[str, Any]
    Manifests = dict[Path, Manifest]
    """Of unchanged tables, by file."""
    Problems = Iterator[tuple[Path, str, str]]
    """Files that do not fit others, the problem, the remedy."""


def verify(folder: Path, *, clean: bool = False) -> Verified:
    """Compares every list of members in a folder, and in the folders in it, with the files.

    A member may be missing or changed, a file foreign. Of folders in which there is no list one
    note says how many files they have. Labels, scores and comparisons are those of the sequences,
    counts and scores beside them. Nothing is written. With `clean`, what killed runs left is
    removed first: the files that the mark of a folder of unfinished work lists, where no process
    uses it and its result is complete. Raises UserError if there is no such folder.
    """
    if not folder.is_dir():
        problem = "not a directory" if folder.exists() else "no such directory"
        raise UserError(problem, where=folder, remedy="name one that recallkit wrote results to")
    verified = Verified(folder)
    manifests: Manifests = {}
    tree = list(_walk(folder, verified))
    with_list: set[Path] = set()
    with progress("verifying", total=sum(len(names) for _, names in tree), unit="files") as show:
        for place, names in tree:
            if unfinished.is_marked(place):
                _check_unfinished(place, names, verified, clean=clean)
            elif _check_folder(place, names, verified, manifests):
                with_list |= {place, *place.parents}
            show(verified.num_files)
    _note_unlisted(tree, with_list, verified)
    for path, problem, remedy in _mismatches(manifests):
        verified.add(path, "mismatch", problem, remedy)
    verified.findings.sort(key=lambda finding: (not finding.is_error, finding.file))
    return verified


def _walk(folder: Path, verified: Verified) -> Iterator[tuple[Path, list[str]]]:
    """Each folder and the files in it.

    Links to folders are not followed, nor are folders in one of unfinished work.
    """

    def note(error: OSError) -> None:
        problem = f"cannot be read ({error.strerror})"
        verified.add(Path(error.filename), "changed", problem, "make it readable")

    for place, folders, names in os.walk(folder, onerror=note):
        folders[:] = [] if unfinished.is_marked(Path(place)) else sorted(folders)
        yield Path(place), sorted(names)


def _note_unlisted(
    tree: list[tuple[Path, list[str]]],
    with_list: set[Path],
    verified: Verified,
) -> None:
    """A note for the files of each tree of folders in none of which there is a list.

    `with_list`: all folders that contain one.
    """
    counts: dict[Path, int] = {}
    for place, names in tree:
        if place not in with_list and not unfinished.is_marked(place):
            above = {place, *place.parents} - with_list - {*verified.folder.parents}
            top = min(above, key=lambda path: len(path.parts))
            counts[top] = counts.get(top, 0) + len(names)
    for top, number in counts.items():
        if number:
            problem = f"{counted(number, 'file')} in no list of recallkit: nothing to compare with"
            verified.add(top, "foreign", problem, "none needed")


def _check_folder(
    place: Path,
    names: list[str],
    verified: Verified,
    manifests: Manifests,
) -> bool:
    """The lists in a folder, their members, and other files; returns whether there is a list."""
    members: set[str] = set()
    lists: set[str] = set()
    for name in names:
        listing = place / name
        if not name.endswith(".json") or not artifacts.is_stamped(listing):
            continue
        lists.add(name)
        with verified.reading(listing):
            content = artifacts.read_list(listing)
            if artifacts.MEMBERS not in content:  # a member, such as a run of a sweep
                lists.remove(name)
            for member in content.get(artifacts.MEMBERS, {}):
                members.add(member)
                _check_member(place / member, name, content, verified, manifests)
    for name in names:
        path = place / name
        if name in members | lists:
            continue
        if _is_table(path):
            listings = " or ".join(listing.name for listing in artifacts.lists_beside(path))
            problem = f"a recallkit table that no list names: {listings} is missing or changed"
            verified.add(path, "missing", problem, artifacts.UNLISTED)
        elif lists:
            problem = "named in no list of recallkit, so there is nothing to compare it with"
            verified.add(path, "foreign", problem, "none needed")
    return bool(lists)


def _check_member(
    path: Path,
    listing: str,
    content: Manifest,
    verified: Verified,
    manifests: Manifests,
) -> None:
    """A file that a list of this name and content has; adds the manifest of an unchanged table."""
    from recallkit.counting.table import read_meta

    if not path.exists():
        remedy = artifacts.remedy_of(content, path)
        verified.add(path, "missing", f"a member of {listing}", remedy)
        return
    with verified.reading(path):
        if path.suffix == ".parquet":
            manifests[path] = parquet_files.read_manifest(path)
        elif artifacts.check_member(path) and path.suffix == ".duckdb":
            manifests[path] = read_meta(path)


def _is_table(path: Path) -> bool:
    """Whether a file is a table of ours, according to what is in it."""
    from recallkit.counting.table import read_meta

    if path.suffix != ".duckdb":
        return path.suffix == ".parquet" and path.is_file() and parquet_files.is_table(path)
    with contextlib.suppress(UserError):
        return bool(read_meta(path))
    return False


def _check_unfinished(folder: Path, names: list[str], verified: Verified, *, clean: bool) -> None:
    """A folder of unfinished work.

    With `clean` a leftover is removed; of any other the states and parts are checked.
    """
    with leftover(folder, _options_of(folder)) as is_left:
        if is_left and clean and unfinished.remove(folder):
            verified.num_removed += 1
        elif is_left:
            problem = "what a killed run left of a result"
            verified.add(folder, "leftover", problem, "remove it with --clean")
    if is_left:
        return
    problem = "interrupted work, or work in progress"
    verified.add(folder, "unfinished", problem, "run its command again to finish it")
    for name in names:
        if name == MARK or not (name.endswith(".json") or name.startswith("settled-")):
            continue
        with verified.reading(folder / name):
            for member in artifacts.members(folder / name):
                if (folder / member).exists():  # a list is written before its part
                    artifacts.check_member(folder / member)


def _options_of(folder: Path) -> Mapping[str, Any] | None:
    """The options of the complete result whose unfinished work was here; None if there is none."""
    from recallkit.counting.table import read_meta

    target = folder.with_name(folder.name[1:].removesuffix(PARTIAL))
    if folder.name.endswith(NEW) or not target.is_file():
        return None
    read = parquet_files.read_manifest if target.suffix == ".parquet" else read_meta
    with contextlib.suppress(UserError, KeyError):
        options: dict[str, Any] = read(target)["options"]
        return options
    return None


# ---------------------------------------------------------------- what results record of each other


def _mismatches(manifests: Manifests) -> Problems:
    """Every table that does not fit another; of a result its main table."""
    for path, manifest in manifests.items():
        main_tables = {path.with_name(f"{kind}.parquet") for kind in KINDS}
        is_beside_main = path.stem not in KINDS and not main_tables.isdisjoint(manifests)
        if path.suffix == ".parquet" and not is_beside_main:
            yield from _other_sequences(path, manifest, manifests)
            yield from _other_counts(path, manifest, manifests)
            yield from _other_scores(path, manifest, manifests)


def _other_sequences(path: Path, manifest: Manifest, manifests: Manifests) -> Problems:
    """Labels, scores and what is made of them are of the sequences of the folder they are in."""
    of_slices = manifest.get("slices") or {}
    digest = of_slices.get("sequences_digest", manifest.get("sequences_digest"))
    beside = [folder / "sequences.parquet" for folder in path.parents]
    sequences = next((table for table in beside if table in manifests), path)
    is_other = manifests[sequences].get("sequences_digest") != digest
    if digest is not None and sequences != path and is_other:
        problem = f"belongs to other sequences than {sequences.name} in {sequences.parent}"
        yield path, problem, "make it again, or move it to where it belongs"


def _other_counts(path: Path, manifest: Manifest, manifests: Manifests) -> Problems:
    """The counts that labels were made with are where they were, if that is in the folder."""
    counts = manifest.get("counts") or {}
    for table, meta in manifests.items():
        is_there = table.suffix == ".duckdb" and str(table.resolve()) == counts.get("path")
        if is_there and meta.get("id") != counts.get("id"):
            problem = f"labelled with other counts than {table.name} has now"
            yield path, problem, "slice again, or count again as before"


def _other_scores(path: Path, manifest: Manifest, manifests: Manifests) -> Problems:
    """The scores that a result was made of are those that are here."""
    files = _scores_of(manifest)
    slices = path
    for folder in reversed(path.parents):  # the nearest one comes last
        if any(folder / "scores" / name in manifests for name, _ in files):
            slices = folder
    others, typed = [], []
    for name, recorded in files:
        scores = manifests.get(slices / "scores" / name, {})
        typed.append(str(scores.get("typed") or "MODEL"))
        if scores and scores.get("options") != recorded:
            others.append(str(scores.get("model")))
    if others:
        options = ["--slices", str(slices), "-o", str(path.parent)]
        words = shlex.join(["recallkit", manifest["kind"], *typed, *options])
        problem = f"made of other scores of {', '.join(others)}"
        yield path, problem, f"run it again with its options: `{words}`"


def _scores_of(manifest: Manifest) -> list[tuple[str, Any]]:
    """The score files of a comparison, an intervention or a tracked run, with their options then.

    The reference's is the first.
    """
    kind = manifest.get("kind")
    models, scores = manifest.get("models") or [], manifest.get("scores") or {}
    files = manifest.get("score_files") or {}
    if kind == "gap":
        both = [model for model in (manifest.get("reference"), *models) if model in files]
        return [(files[model], scores.get(model)) for model in both]
    if kind == "intervene":
        keys = (manifest.get("options") or {}).get("models") or []
        names = [f"{hashing.file_slug(key)}.parquet" for key in keys]
        options = [scores.get(model) for model in models]
        return list(zip(names, options, strict=False))
    return list(zip(files, scores, strict=False)) if kind == "track" else []
