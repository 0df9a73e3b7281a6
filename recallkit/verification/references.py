"""What tables record of each other: labels of their sequences, scores and comparisons of those, tables of a set of one another."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from recallkit.storage.timings import KEY as TIMINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    Manifests = dict[Path, dict[str, Any]]
    """The manifests of undamaged files, by file."""

    Mismatch = tuple[Path, str, str]
    """A file, what does not fit, what to do about it."""

_NOT_IN_JSON = {"schema_version", "kind", "tables"}
"""Fields that differ between a table and the manifest file beside it, or between the tables of one set."""


def check_references(manifests: Manifests) -> Iterator[Mismatch]:
    """Every table or manifest file that does not fit another."""
    yield from _check_sets(manifests)
    for path, manifest in manifests.items():
        if path.suffix == ".json":
            yield from _check_manifest_file(path, manifest, manifests)
        elif path.suffix == ".parquet":
            yield from _check_sequences(path, manifest, manifests)
            yield from _check_counts(path, manifest, manifests)
            yield from _check_scores(path, manifest, manifests)


def _check_sets(manifests: Manifests) -> Iterator[Mismatch]:
    """Tables written together have one digest of all of them."""
    sets: dict[Path, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path, manifest in manifests.items():
        if path.suffix == ".parquet" and "tables" in manifest:
            sets[path.parent][manifest["tables"]].append(path)
    for marks in sets.values():
        for paths in sorted(marks.values(), key=len)[:-1]:
            for path in paths:
                yield path, "of another run than the other tables here", "make them again with --force"


def _check_manifest_file(path: Path, manifest: Mapping[str, Any], manifests: Manifests) -> Iterator[Mismatch]:
    """A manifest file is that of the table that it is named for, or, as `manifest.json`, of the table of its kind."""
    table = path.with_name(f"{manifest.get('kind')}.parquet") if path.name == "manifest.json" else path.with_suffix(".parquet")
    if table not in manifests:
        if not table.exists():
            yield path, f"{table.name}, whose manifest this is, is missing", "make it again, or remove this file"
        return
    facts = manifests[table]
    changed = sorted(name for name, value in manifest.items() if name not in {TIMINGS, *_NOT_IN_JSON} and facts.get(name) != value)
    if changed:
        yield path, f"not the manifest of {table.name} (differs in {', '.join(changed)})", f"remove it: {table.name} has the manifest too"


def _check_sequences(path: Path, manifest: Mapping[str, Any], manifests: Manifests) -> Iterator[Mismatch]:
    """Labels, scores and what is made of them are of the sequences of the folder they are in."""
    digest = _sequences_digest(manifest)
    around = [folder / "sequences.parquet" for folder in path.parents]
    own = next((sequences for sequences in around if sequences in manifests), None)
    if digest is None or own is None or own == path:
        return
    if manifests[own].get("sequences_digest") != digest:
        yield path, f"of other sequences than {own.name} in {own.parent}", "make it again, or move it to where it belongs"


def _sequences_digest(manifest: Mapping[str, Any]) -> Any:
    slices = manifest.get("slices")
    return manifest.get("sequences_digest") or (slices.get("sequences_digest") if isinstance(slices, dict) else None)


def _check_counts(path: Path, manifest: Mapping[str, Any], manifests: Manifests) -> Iterator[Mismatch]:
    """The counts that labels were made with are where they were, if that is in the folder."""
    known = manifest.get("counts")
    if not isinstance(known, dict):
        return
    for table, meta in manifests.items():
        if str(table.resolve()) == known.get("path") and meta.get("id") != known.get("id"):
            yield path, f"labelled with other counts than {table.name} has now", "slice again, or count again as before"


def _check_scores(path: Path, manifest: Mapping[str, Any], manifests: Manifests) -> Iterator[Mismatch]:
    """The scores that a comparison was made of are those that are here."""
    files, options = manifest.get("score_files"), manifest.get("scores")
    if not isinstance(files, dict) or not isinstance(options, dict):
        return
    for model, name in files.items():
        found = next((scores for folder in path.parents if (scores := folder / "scores" / str(name)) in manifests), None)
        if found is not None and manifests[found].get("options") != options.get(model):
            yield path, f"compared with other scores of {model} than {name} has now", "compare again"
