"""What every resumable result does: a finished one is reused, one of other options refused, an
interrupted one resumed; all are stamped.

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
import json
import re
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from recallkit import events
from recallkit.config import SCHEMA_VERSION, VERSION
from recallkit.errors import UserError
from recallkit.storage import artifacts, hashing, parquet_files, schemas, unfinished
from recallkit.storage.artifacts import MANIFEST, DamagedError
from recallkit.storage.journal import Journal, PartsJournal, journal_folder, leftover
from recallkit.storage.records import Manifest, kinds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from recallkit.storage.timings import Timings

_Tables = TypeVar("_Tables")
_Record = TypeVar("_Record", bound=Manifest)

_LONGEST_NAME, _MOST_NAMED = 100, 3
"""Characters of a folder's name, and models in it."""

REPLACE = "choose another output with -o, or replace it with --force"


@dataclass(frozen=True, slots=True)
class Result:
    """A result, finished or not. `options` are everything that determines its numbers: with other
    options it is another result.

    `path` is its main file. `kind` is its kind in the manifest, which `read` gets from the file.
    `others`: files that must exist, too; `beside`: further members that it can have. `force`:
    existing files, finished or not, are made again; `remedy`: what to do about a finished result of
    other options.
    """

    path: Path
    kind: str | None
    options: dict[str, Any]
    force: bool = False
    others: Sequence[Path] = ()
    beside: Sequence[Path] = ()
    remedy: str = REPLACE
    read: Callable[[Path], dict[str, Any]] = parquet_files.read_manifest

    def finished(self) -> dict[str, Any] | None:
        """The manifest if the result is complete; None if it is to be made. Reads its members once,
        to check them.

        Raises UserError if it was made with other options, is damaged, or can never be written, as
        where another program's file would be replaced.
        """
        self.check_replaceable()
        if self.force or not self.path.exists():
            return None
        manifest = self.read(self.path)
        options = manifest.get("options")
        if not isinstance(options, dict):
            raise UserError(
                "the manifest has no field options", where=self.path, remedy=self.remedy
            )
        self._check_options(options)
        if (
            any(parquet_files.manifest_options(other) != self.options for other in self.others)
            or not self._has_all_members()
        ):
            return None  # one was removed, or a run was killed as it renamed them
        self._remove_leftovers()
        return manifest

    def _check_options(self, options: Mapping[str, Any]) -> None:
        current = json.loads(json.dumps(self.options))  # as in a manifest, where pairs are lists
        if options != current:
            changed = sorted(
                key for key in {*options, *current} if options.get(key) != current.get(key)
            )
            problem = f"already made with other options (differs in {', '.join(changed)})"
            raise UserError(problem, where=self.path, remedy=self.remedy)

    def _remove_leftovers(self) -> None:
        """Removes what a run that was killed at its end left: the folder of its journal, and those
        in which files were made."""
        files = [self.path, *self.others, *self.beside, self.listing]
        for folder in (
            journal_folder(self.path),
            *(path.with_name(f".{path.name}{unfinished.NEW}") for path in files),
        ):
            # a folder of another user's can be read
            with (
                contextlib.suppress(OSError),
                leftover(folder, self.options) as is_left,
            ):
                if is_left or not unfinished.is_marked(folder):
                    unfinished.remove(folder)

    def _has_all_members(self) -> bool:
        """Whether no member is missing. Raises DamagedError for one that has changed."""
        mine = {
            path.name for path in (*self.others, *self.beside) if path.parent == self.path.parent
        }
        listed = [
            self.path.with_name(name) for name in artifacts.members(self.listing) if name in mine
        ]
        return all(path.exists() and artifacts.check_member(path) for path in listed)

    @property
    def listing(self) -> Path:
        """The list of its members: that of the folder, or NAME.json of one table of many in a
        folder."""
        if self.path.suffix != ".parquet":  # a counts table
            return artifacts.list_of(self.path)
        return (
            self.path.with_name(MANIFEST)
            if self.kind == "tokens" or self.kind in KINDS
            else self.path.with_suffix(".json")
        )

    def check_replaceable(self) -> None:
        """Raises UserError if one of its files is there and not recallkit's, or the folder has
        another result with the same list."""
        for path in (self.path, *self.others, *self.beside):
            artifacts.check_replaceable(path, "counts" if self.kind is None else None)
        artifacts.check_list(self.listing)
        kind = artifacts.json_object(self.listing).get("kind")
        if self.kind is not None and kind not in (None, "files", self.kind):
            problem = f"this list belongs to another result ({kind})"
            raise UserError(problem, where=self.listing, remedy="choose another output with -o")

    def is_complete(self) -> bool:
        """Whether the result is complete; see `finished`."""
        return self.finished() is not None

    def reused(self) -> dict[str, Any] | None:
        """`finished`, with `reused` in the manifest, and a message to the user that nothing is
        made."""
        manifest = self.finished()
        if manifest is None:
            return None
        events.note(f"{self.path} is complete: reused (--force makes it again)")
        return {**manifest, "reused": True}

    def journal(self, *, patient: bool = False) -> Journal:
        """The journal of the result's work while it is unfinished, part after part. One that is
        `patient` waits for another process."""
        check = self.check_unclaimed
        return Journal(self.path, self.options, force=self.force, patient=patient, check=check)

    def parts(self, *, shared: bool = False, **more: Any) -> PartsJournal:
        """The same for parts that do not depend on each other; `more` determines their bytes, but
        not the result's numbers."""
        key = {**self.options, **more}
        return PartsJournal(
            self.path, key, shared=shared, force=self.force, check=self.check_unclaimed
        )

    def check_unclaimed(self) -> None:
        """Raises UserError if another process has made a result of other options since
        `finished`."""
        if not self.force and self.path.exists():
            with contextlib.suppress(DamagedError):  # it is made again
                self._check_options(self.read(self.path).get("options", {}))

    def stamp(self) -> dict[str, Any]:
        """The fields that every result's manifest has, by which finished work is found."""
        kind = {} if self.kind is None else {"kind": self.kind}
        return {
            "recallkit_version": VERSION,
            "schema_version": SCHEMA_VERSION,
            **kind,
            "options": self.options,
        }

    @contextlib.contextmanager
    def writing(self, manifest: Mapping[str, Any], timings: Timings) -> Iterator[Path]:
        """Yields an empty folder for the members; if the block succeeds, they replace the result,
        `manifest` and timings in their list.

        See `artifacts.writing_members`. What the block adds to `manifest` and `timings` is in the
        list, too. Raises UserError if a result of other options has come there since `finished`, as
        of a command that ran at the same time.
        """
        names = {
            path.name
            for path in (self.path, *self.others, *self.beside)
            if path.parent == self.path.parent
        }
        with artifacts.writing_members(self.listing, names, self.check_unclaimed) as new:
            yield new
            artifacts.write_json(
                new / self.listing.name, {**manifest, artifacts.TIMINGS: timings.to_json()}
            )


@dataclass(frozen=True, slots=True)
class Question(Generic[_Tables]):
    """A question whose answer is tables in a folder: what decides them, where they are, whether
    they are there.

    `kind` is one of KINDS, and the name of the main table. `tables` is the dataclass of frames,
    each written to NAME.parquet. `identity` is everything that decides their numbers; the answer to
    another question is never replaced without `force`.
    """

    kind: str
    tables: type[_Tables]
    folder: Path
    identity: Mapping[str, Any]
    force: bool = False

    @property
    def result(self) -> Result:
        """The tables as a result, finished or not."""
        files = [self.folder / f"{field.name}.parquet" for field in fields(self.tables)]  # type: ignore[arg-type]
        main = self.folder / f"{self.kind}.parquet"
        return Result(main, self.kind, dict(self.identity), force=self.force, beside=files)

    def check(self) -> dict[str, Any] | None:
        """The manifest of a complete answer; None if there is none. Raises UserError where the
        folder has another result, or one that is damaged."""
        return self.result.finished()

    def reused(self) -> _Tables | None:
        """A complete answer, with a note that it is reused."""
        return None if self.result.reused() is None else self.read()

    def answered(self, inputs: str) -> _Tables | None:
        """A complete answer made of these inputs (`hashing.digest_inputs`); None if there is
        none."""
        manifest = self.check()
        return self.read() if manifest is not None and manifest.get("inputs") == inputs else None

    def read(self) -> _Tables:
        """The tables. Raises UserError as `read_tables` does."""
        return read_tables(self.tables, self.folder)

    def write(self, tables: _Tables, facts: Mapping[str, Any], timings: Timings) -> None:
        """Writes the tables, all together, with `facts` in their manifest. Raises UserError as
        `Result.writing` does."""
        result = self.result
        manifest = {**result.stamp(), **facts}
        parquet_files.write_frames(
            tables, self.folder, manifest, timings.to_json(), result.check_unclaimed
        )


def read_tables(tables: type[_Tables], folder: Path) -> _Tables:
    """The frames of a dataclass such as MqarTables, each from `folder`/NAME.parquet.

    A field with a default has a table only where the list names it. Raises UserError if one is
    missing or damaged, or if they were replaced meanwhile: they are of one run.
    """
    with artifacts.unchanged(folder / MANIFEST):
        listed = artifacts.members(folder / MANIFEST)
        names = [
            field.name
            for field in fields(tables)  # type: ignore[arg-type]
            if field.default is MISSING or f"{field.name}.parquet" in listed
        ]
        for name in names:
            parquet_files.read_manifest(folder / f"{name}.parquet")
        frames = {name: schemas.read_frame(folder / f"{name}.parquet") for name in names}
    return tables(**frames)


def read_result(
    record: type[_Record],
    tables: type[_Tables],
    folder: Path,
) -> tuple[_Record, _Tables]:
    """The manifest and the tables of an answer, of one run. Raises UserError as `read_tables` and
    `parquet_files.read_manifest` do."""
    [kind] = kinds_of(record)
    with artifacts.unchanged(folder / MANIFEST):
        manifest = parquet_files.read_manifest(folder / f"{kind}.parquet", record)
        return manifest, read_tables(tables, folder)


def folder_of(parent: Path, words: Iterable[str], question: Mapping[str, Any]) -> Path:
    """The default folder of the answer to a question, such as `gap/attention-vs-mamba`: in
    `parent`, whatever the words are.

    `question`: what a result has in its manifest, or in its options, that tells it from others
    whose words are the same. Of two such results the second has a digest behind its name, so that
    each question finds its own again.
    """
    name = "-".join(word.removeprefix("zoo:") for word in words)
    safe = re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")[:_LONGEST_NAME] or "result"
    question = json.loads(json.dumps(question))
    plain, other = parent / safe, parent / f"{safe}.{hashing.digest_json(question)[:8]}"
    manifest = artifacts.json_object(plain / MANIFEST)
    options = manifest.get("options")
    known = {**manifest, **options} if isinstance(options, dict) else manifest
    differs = any(known.get(key) != value for key, value in question.items())
    is_taken = "options" in manifest and differs
    return other if is_taken or other.exists() else plain


def words_of(models: Sequence[str]) -> list[str]:
    """Models in the name of a folder: their names, or of more than three how many they are."""
    return list(models) if len(models) <= _MOST_NAMED else [f"{len(models)} models"]


class Kind(NamedTuple):
    """A kind of result that people look at: its plural, its heading on a page, the view that shows
    it, the question it answers.

    `view` is the "module:class" of its `display.views.ResultView`. A comparison of scores has
    sections of its own.
    """

    called: str
    title: str = ""
    view: str = ""
    question: str = ""


KINDS: Mapping[str, Kind] = {
    "gap": Kind("comparisons"),
    "track": Kind(
        "tracked runs",
        "Recall by step",
        "recallkit.tracking.view:TrackView",
        "When does recall appear in this run?",
    ),
    "intervene": Kind(
        "interventions",
        "Is it recall?",
        "recallkit.intervening.view:InterventionView",
        "How much do these models recall by association?",
    ),
    "ablation": Kind(
        "ablations",
        "What each mixer is worth",
        "recallkit.ablation.view:AblationView",
        "Which mixers recall?",
    ),
    "recall": Kind(
        "recall evaluations",
        "Recall from documents",
        "recallkit.recall.view:RecallView",
        "How much do these models recall of what they read?",
    ),
    "mqar": Kind(
        "MQAR evaluations",
        "Recall of made-up pairs (MQAR)",
        "recallkit.mqar.view:MqarView",
        "How many made-up pairs do these models recall?",
    ),
    "training": Kind(
        "trainings",
        "Training on text",
        "recallkit.training.view:TrainingView",
        "How well does this model predict so far?",
    ),
    "tradeoff": Kind(
        "sweeps of training",
        "Recall against bytes of state",
        "recallkit.training.view:SweepView",
        "How much recall does a byte of state buy?",
    ),
    "profile": Kind(
        "profiles",
        "What the text repeats",
        "recallkit.profiling.view:ProfileView",
        "How much does this text repeat?",
    ),
}
"""The name of a result's main file, which is the kind in its manifest -> its description."""
