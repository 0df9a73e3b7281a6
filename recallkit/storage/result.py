"""What every resumable result does: it is found when it is finished, refused when it is another one, resumed, and stamped.

result = Result(path, "tokens", options, force=force)
if (manifest := result.reused()) is not None:
    return manifest
with result.parts(batch_tokens=...) as journal:
    journal.note_resumed(len(journal.parts.done()), "parts")
    ...  # makes what is missing and writes the file, `result.stamp()` in its manifest
    journal.finish()
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from recallkit import events
from recallkit.config import SCHEMA_VERSION, VERSION
from recallkit.errors import UserError
from recallkit.storage import artifacts, schemas
from recallkit.storage.journal import Journal, PartsJournal, forget_finished
from recallkit.storage.timings import Timings, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_T = TypeVar("_T")

REPLACE = "choose another output with -o, or replace it with --force"


@dataclass(frozen=True, slots=True)
class Result:
    """A result, finished or not. `options` are everything that decides its numbers: what was made with other ones is another result.

    `path` is its file, of several the one that is written last: once it is there, so are the `others`. `kind` is what its manifest
    says of it, which `read` gets from the file. `force`: what is there, finished or begun, is made again; `remedy`: what to do about
    a finished one of other options.
    """

    path: Path
    kind: str | None
    options: dict[str, Any]
    force: bool = False
    others: Sequence[Path] = ()
    remedy: str = REPLACE
    read: Callable[[Path], dict[str, Any]] = artifacts.read_manifest

    def finished(self) -> dict[str, Any] | None:
        """The manifest where the result is whole; None where it is to be made. Reads footers alone, so that it is asked before work.

        Raises UserError where it was made with other options, is damaged, or can never be written.
        """
        artifacts.check_folders(self.path)
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
        forget_finished(self.path, self.options)
        return manifest

    def is_complete(self) -> bool:
        """Whether the result is whole; see `finished`."""
        return self.finished() is not None

    def reused(self) -> dict[str, Any] | None:
        """`finished`, and the user is told that nothing is made."""
        manifest = self.finished()
        if manifest is not None:
            events.note(f"{self.path} is complete: reused (--force makes it again)")
        return manifest

    def journal(self) -> Journal:
        """Where the result's work is kept while it is unfinished, part after part."""
        return Journal(self.path, self.options, force=self.force)

    def parts(self, *, shared: bool = False, **more: Any) -> PartsJournal:
        """The same for parts that do not depend on each other; `more` decides their bytes, though not the result's numbers."""
        return PartsJournal(self.path, {**self.options, **more}, force=self.force, shared=shared)

    def stamp(self) -> dict[str, Any]:
        """What the manifest of every result says: by it finished work is found again."""
        kind = {} if self.kind is None else {"kind": self.kind}
        return {"recallkit_version": VERSION, "schema_version": SCHEMA_VERSION, **kind, "options": self.options}

    def write_tables(self, tables: Any, facts: Mapping[str, Any], timings: Timings) -> None:
        """Writes each frame of a dataclass into the result's folder, stamped and with `facts`, and `manifest.json` with the timings."""
        manifest = {**self.stamp(), **facts}
        artifacts.write_frames(tables, self.path.parent, manifest)
        write_manifest(self.path.parent / MANIFEST, manifest, timings)


MANIFEST = "manifest.json"
"""The manifest again, beside the tables, with how long they took."""


def read_tables(tables: type[_T], folder: Path) -> _T:
    """The frames of a dataclass such as MqarTables, each from `folder`/NAME.parquet.

    Raises UserError where one is damaged or they are not of one result.
    """
    result = tables.__name__.removesuffix("Tables").lower()
    files = {field.name: folder / f"{field.name}.parquet" for field in fields(tables)}  # type: ignore[arg-type]
    with artifacts.holding(folder):
        manifests = [{**artifacts.read_manifest(path), "kind": ""} for path in files.values()]
        if any(manifest != manifests[0] for manifest in manifests):
            raise UserError("tables of different results", where=folder, remedy="make them again with --force")
        return tables(**{name: schemas.read_frame(path, f"{result}/{name}") for name, path in files.items()})


class Kind(NamedTuple):
    """A kind of result that people look at: what several are called, its heading on a page, and what shows it.

    `look` is the "module:function" that makes a `display.exports.Look` of its folder. A comparison of scores has sections of its own.
    """

    called: str
    title: str = ""
    look: str = ""


KINDS: Mapping[str, Kind] = {
    "gap": Kind("comparisons"),
    "recall": Kind("recall evaluations", "Recall in real documents", "recallkit.recall.view:look"),
    "mqar": Kind("MQAR evaluations", "Recall of made-up pairs (MQAR)", "recallkit.mqar.view:look"),
    "profile": Kind("profiles", "What the text repeats", "recallkit.profiling.view:look"),
}
"""The name of a result's main file, which is the kind in its manifest -> what it is."""
