"""What every resumable result does: a finished one is reused, one of other options refused, an interrupted one resumed; all are stamped.

Every command that makes a result does this:

    result = Result(path, "tokens", options, force=force)
    if (manifest := result.reused()) is not None:
        return manifest
    with result.parts(batch_tokens=...) as journal:
        journal.note_resumed(len(journal.parts.done()), "parts")
        ...  # makes what is missing and writes the file, `result.stamp()` in its manifest
        journal.finish()
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from recallkit import events
from recallkit.config import SCHEMA_VERSION, VERSION
from recallkit.errors import UserError
from recallkit.storage import artifacts, given_files, schemas
from recallkit.storage.journal import Journal, PartsJournal, forget_finished
from recallkit.storage.ownership import DATABASE_MAGIC, JSON_MAGIC, PARQUET_MAGIC
from recallkit.storage.timings import Timings, is_of, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_T = TypeVar("_T")

REPLACE = "choose another output with -o, or replace it with --force"


@dataclass(frozen=True, slots=True)
class Result:
    """A result, finished or not. `options` are everything that determines its numbers: with other options it is another result.

    `path` is its file, the last one written if there are several: once it exists, so do the `others`. `kind` is its kind in the
    manifest, which `read` gets from the file. `beside`: further files that are written with it, none of which must exist; its
    JSON file (`json_path`) is another.
    `force`: existing files, finished or not, are made again; `remedy`: what to do about a finished result of other options.
    """

    path: Path
    kind: str | None
    options: dict[str, Any]
    force: bool = False
    others: Sequence[Path] = ()
    beside: Sequence[Path] = ()
    remedy: str = REPLACE
    read: Callable[[Path], dict[str, Any]] = artifacts.read_manifest

    def finished(self) -> dict[str, Any] | None:
        """The manifest if the result is complete; None if it is to be made. Reads its tables once, to check them.

        Raises UserError if it was made with other options, is damaged, or can never be written, as where another program's file would
        be replaced.
        """
        self.check_replaceable()
        artifacts.finish_commit(self.path.parent)
        if self.force or not self.path.exists():
            return None
        manifest = self.read(self.path)
        found = manifest.get("options")
        if not isinstance(found, dict):
            raise UserError("the manifest has no field options", where=self.path, remedy=self.remedy)
        if found != self.options:
            changed = sorted(key for key in {*found, *self.options} if found.get(key) != self.options.get(key))
            raise UserError(f"already made with other options (differs in {', '.join(changed)})", where=self.path, remedy=self.remedy)
        if any(artifacts.manifest_options(other) != self.options for other in self.others):
            return None  # one was removed, or a run with --force and other options was killed while it wrote them
        self._tidy(manifest)
        return manifest

    def _tidy(self, manifest: dict[str, Any]) -> None:
        """Removes what killed runs left beside a complete result, and writes its JSON file if that is missing or of another result."""
        with contextlib.suppress(OSError):  # a folder of another user's can be read
            forget_finished(self.path, self.options)
            artifacts.remove_abandoned(self.path.parent)
            if self.json_path is not None and not is_of(self.json_path, manifest):
                write_manifest(self.json_path, manifest, Timings())

    @property
    def json_path(self) -> Path | None:
        """The file of the manifest with the timings, if there is one: that of the folder, or beside one table of many in a folder."""
        if self.kind in _KINDS_WITH_OWN_JSON:
            return self.path.with_suffix(".json")
        return self.path.with_name(MANIFEST) if self.kind == "tokens" or self.kind in KINDS else None

    def check_replaceable(self) -> None:
        """Raises UserError if one of its files is there and not recallkit's, or can never be, because its name is not UTF-8."""
        given_files.check_name(self.path.absolute() if self.path.suffix not in _MAGIC else self.path)  # DuckDB takes no relative path
        for path in (self.path, *self.others, *self.beside, *filter(None, [self.json_path])):
            artifacts.check_replaceable(path, _MAGIC.get(path.suffix, DATABASE_MAGIC), at=0 if path.suffix in _MAGIC else 8)

    def is_complete(self) -> bool:
        """Whether the result is complete; see `finished`."""
        return self.finished() is not None

    def reused(self) -> dict[str, Any] | None:
        """`finished`, with a message to the user that nothing is made."""
        manifest = self.finished()
        if manifest is not None:
            events.note(f"{self.path} is complete: reused (--force makes it again)")
        return manifest

    def journal(self) -> Journal:
        """The journal of the result's work while it is unfinished, part after part."""
        return Journal(self.path, self.options, force=self.force)

    def parts(self, *, shared: bool = False, **more: Any) -> PartsJournal:
        """The same for parts that do not depend on each other; `more` determines their bytes, but not the result's numbers."""
        return PartsJournal(self.path, {**self.options, **more}, force=self.force, shared=shared)

    def stamp(self) -> dict[str, Any]:
        """The fields that every result's manifest has, by which finished work is found."""
        kind = {} if self.kind is None else {"kind": self.kind}
        return {"recallkit_version": VERSION, "schema_version": SCHEMA_VERSION, **kind, "options": self.options}

    def write_tables(self, tables: Any, facts: Mapping[str, Any], timings: Timings) -> None:
        """Writes each frame of a dataclass into the result's folder, stamped and with `facts`, and `manifest.json` with the timings."""
        manifest = {**self.stamp(), **facts}
        artifacts.write_frames(tables, self.path.parent, manifest, more=lambda staged: self.write_json(manifest, timings, staged))

    def write_json(self, manifest: Mapping[str, Any], timings: Timings, staged: Path) -> None:
        """Writes the manifest with the timings into `staged`, a folder of `artifacts.replacing_together`."""
        write_manifest(self.json_path or self.path.with_name(MANIFEST), manifest, timings, staged=staged)


_KINDS_WITH_OWN_JSON = {"scores", "mqar queries", "recall documents"}

MANIFEST = "manifest.json"
"""The manifest beside the tables, with the timings."""

_MAGIC = {".parquet": PARQUET_MAGIC, ".json": JSON_MAGIC}
"""How files begin, by suffix; all others are counts databases."""


def table_files(tables: type, folder: Path) -> list[Path]:
    """All files that `Result.write_tables` may write for a dataclass of frames: its tables and the manifest."""
    return [*(folder / f"{field.name}.parquet" for field in fields(tables)), folder / MANIFEST]


def read_tables(tables: type[_T], folder: Path) -> _T:
    """The frames of a dataclass such as MqarTables, each from `folder`/NAME.parquet.

    Raises UserError if one is damaged or they are not of the same result.
    """
    result = tables.__name__.removesuffix("Tables").lower()
    files = {field.name: folder / f"{field.name}.parquet" for field in fields(tables)}  # type: ignore[arg-type]
    with artifacts.holding(folder):
        manifests = [{**artifacts.read_manifest(path), "kind": ""} for path in files.values()]
        if any(manifest != manifests[0] for manifest in manifests):
            raise UserError("tables of different results", where=folder, remedy="make them again with --force")
        return tables(**{name: schemas.read_frame(path, f"{result}/{name}") for name, path in files.items()})


class Kind(NamedTuple):
    """A kind of result that people look at: its plural, its heading on a page, the function that shows it, the question it answers.

    `look` is the "module:function" that makes a `display.exports.Look` of its folder. A comparison of scores has sections of its own.
    """

    called: str
    title: str = ""
    look: str = ""
    question: str = ""


KINDS: Mapping[str, Kind] = {
    "gap": Kind("comparisons"),
    "track": Kind("tracked runs", "Recall by step", "recallkit.tracking.view:look", "When does recall appear in this run?"),
    "intervene": Kind("interventions", "Is it recall?", "recallkit.intervening.view:look", "How much of the gap is recall?"),
    "ablation": Kind("ablations", "What each mixer is worth", "recallkit.ablation.view:look", "Which mixers recall?"),
    "recall": Kind(
        "recall evaluations", "Recall in real documents", "recallkit.recall.view:look", "How much do these models recall of real documents?"
    ),
    "mqar": Kind(
        "MQAR evaluations", "Recall of made-up pairs (MQAR)", "recallkit.mqar.view:look", "How many made-up pairs do these models recall?"
    ),
    "tradeoff": Kind(
        "sweeps of MQAR training",
        "Recall against bytes of state",
        "recallkit.training.view:look",
        "How much recall does a byte of state buy?",
    ),
    "profile": Kind("profiles", "What the text repeats", "recallkit.profiling.view:look", "How much does this text repeat?"),
}
"""The name of a result's main file, which is the kind in its manifest -> its description."""
