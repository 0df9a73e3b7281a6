"""Resumable work: finished parts and a small state beside an unfinished output, so that a killed
run can be resumed.

A run commits numbered parts (whole files) and after each a state (JSON). A run killed at any moment
leaves the last committed state; the next one with the same options starts from there and produces
the same bytes. Parts that do not depend on each other need no state: each is done when its file
exists (`PartsJournal`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from recallkit import events
from recallkit.errors import UserError, lacks_resources
from recallkit.storage import artifacts, hashing, parquet_files, unfinished, whole_files
from recallkit.storage.artifacts import DamagedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

_STATE = "state.json"
_FILES = (
    _STATE,
    f".{_STATE}.*",
    ".part-*.partial",
    "part-*",
    "begun-*",
    "settled-*",
    ".settled-*",
    "*-" + "[0-9a-f]" * 32 + ".*",
)
"""What can be in a journal, removed in this order: state, parts with their journals and lists,
settled values, sorted runs of counts."""
_NUMBER = "[0-9]" * 6


def _read_state(path: Path) -> dict[str, Any]:
    """A journal's last commit. Raises UserError if it is damaged."""
    saved = artifacts.read_json(path)
    kinds = {"key": dict, "num_parts": int, "state": dict}
    if (
        any(not isinstance(saved.get(name), kind) for name, kind in kinds.items())
        or saved["num_parts"] < 0
    ):
        raise UserError(
            "the state of unfinished work is damaged", where=path, remedy="begin again with --force"
        )
    return saved


class Journal:
    """The folder `.TARGET.partial` of an unfinished output; one process at a time.

    `key` has every option and input that determines the output's bytes. A folder left by a run with
    the same key is resumed; one with another key is refused, because it may contain hours of work,
    and `force` discards it. Raises UserError for that and for a folder in use, and what `check`
    raises once no other process writes the output.
    """

    _lock_kind = fcntl.LOCK_EX

    def __init__(
        self,
        target: Path,
        key: dict[str, Any],
        *,
        force: bool = False,
        patient: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.target = target
        self.check = check
        self.patient = patient
        self.folder = journal_folder(target)
        self.key = key
        self.force = force
        self.num_parts = 0
        self.state: dict[str, Any] = {}
        self._lock: int | None = None
        self._is_new_place = False

    def __enter__(self) -> Self:
        self._is_new_place = not self.target.parent.exists()
        try:
            self._lock = unfinished.open_marked(
                self.folder, _FILES, self.target, self._lock_kind, wait=self.patient
            )
        except BlockingIOError:
            process = unfinished.holder_of(self.folder)
            which = "" if process is None else f" ({unfinished.describe(process)})"
            problem = f"another recallkit process is writing this{which}"
            raise UserError(
                problem, where=self.target, remedy="wait for it, or choose another output"
            ) from None
        try:
            self._load()
        except BaseException:
            os.close(self._lock)
            raise
        try:
            self.check()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self.num_parts == 0:
            self.finish()
            if self._is_new_place:
                with contextlib.suppress(OSError):  # something is in it
                    self.target.parent.rmdir()
        if self._lock is not None:
            os.close(self._lock)

    @property
    def resumed(self) -> bool:
        """Whether an earlier run left committed parts."""
        return self.num_parts > 0

    def _load(self) -> None:
        path = self.folder / _STATE
        if not path.exists():
            return
        try:
            saved = _read_state(path)
        except UserError:
            if not self.force:
                raise
            saved = {"key": None}
        if saved["key"] == self.key:
            self.num_parts, self.state = saved["num_parts"], saved["state"]
        elif self.force:
            path.unlink()
        else:
            changed = sorted(
                k for k in {*saved["key"], *self.key} if saved["key"].get(k) != self.key.get(k)
            )
            problem = (
                f"an unfinished run with other options is here (differs in {', '.join(changed)})"
            )
            raise UserError(
                problem,
                where=self.target,
                remedy="repeat its options to finish it, or discard it with --force",
            )

    def note_resumed(self, done: int, unit: str) -> None:
        """Reports how much an interrupted run had done, if anything."""
        if done:
            events.note(
                f"{self.target}: resuming after {done:,} {unit} of an interrupted run",
                event="resumed",
                done=done,
                unit=unit,
            )

    def part(self, index: int) -> Path:
        """The path of part `index`."""
        return self.folder / f"part-{index:06d}"

    def read(self, index: int, schema: pa.Schema) -> pa.Table:
        """Part `index`, a Parquet file. If it is missing or damaged, forgets all, since later parts
        continue from it; raises UserError."""
        import pyarrow as pa

        try:
            return parquet_files.read_parquet(self.part(index), schema)
        except (pa.ArrowException, OSError, DamagedError) as error:
            if lacks_resources(error):
                raise
            (self.folder / _STATE).unlink(missing_ok=True)
            problem = "a part of unfinished work is missing or damaged, so it cannot be resumed"
            raise UserError(
                problem, where=self.part(index), remedy="run the same command again: it starts over"
            ) from error

    def commit(self, state: dict[str, Any]) -> None:
        """Records that one more part is complete on disk, and the state from which to resume."""
        self.num_parts += 1
        self.state = state
        artifacts.write_json(
            self.folder / _STATE, {"key": self.key, "num_parts": self.num_parts, "state": state}
        )

    def finish(self) -> None:
        """Removes the folder: the output is complete."""
        unfinished.remove(self.folder)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an unfinished output that do not depend on each other: done when their files
    exist.

    Any number of processes and machines that share the folder write them, in any order. `mark`
    identifies the key: a file made under another key is never taken for a part.
    """

    folder: Path
    mark: str

    def path(self, index: int) -> Path:
        """The file of part `index`."""
        return self.folder / f"part-{self.mark}-{index:06d}"

    def begun_path(self, index: int) -> Path:
        """The file of what is done of part `index`, where parts are saved before they are
        complete."""
        return self.folder / f"begun-{self.mark}-{index:06d}"

    def done(self) -> set[int]:
        """The numbers of the complete parts."""
        return {
            int(path.name.rpartition("-")[2])
            for path in self.folder.glob(f"part-{self.mark}-{_NUMBER}")
        }

    def begun(self) -> bool:
        """Whether there is work that could be lost: a complete part, or the file or the journal of
        an incomplete one."""
        patterns = (
            f"part-{self.mark}-{_NUMBER}",
            f"begun-{self.mark}-{_NUMBER}",
            f".part-{self.mark}-*{unfinished.PARTIAL}/{_STATE}",
        )
        return any(path for pattern in patterns for path in self.folder.glob(pattern))

    def begun_state(self, index: int) -> dict[str, Any]:
        """The state of the journal of an incomplete part; empty if there is none that can be
        read."""
        try:
            state: dict[str, Any] = _read_state(journal_folder(self.path(index)) / _STATE)["state"]
        except UserError:
            return {}
        return state

    def settle(self, name: str, propose: Callable[[], Any]) -> Any:
        """The value that the first of all processes proposed for `name`: all of them use the
        same."""
        path = self.folder / f"settled-{self.mark}-{name}"
        if not path.exists():
            _write_once(path, {"settled": propose()})
        return artifacts.read_json(path)["settled"]


@contextlib.contextmanager
def removing_damage(part: Path) -> Iterator[None]:
    """A block that reads a part which is a Parquet file: a damaged one is removed and raises
    UserError.

    Errors of the system (an unreachable file server, no memory) do not show that the part is
    damaged: it is kept.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, DamagedError) as error:
        if lacks_resources(error) or getattr(error, "errno", None) not in (None, errno.ENOENT):
            raise
        part.unlink(missing_ok=True)
        problem = "a damaged part of unfinished work, now removed"
        raise UserError(
            problem, where=part, remedy="run the same command again: it makes this part again"
        ) from error


def read_part(part: Path, schema: pa.Schema | None = None) -> pa.Table:
    """A part that is a Parquet file, every byte of it checked; see `removing_damage`."""
    with removing_damage(part):
        return parquet_files.read_parquet(part, schema)


def _mark(key: dict[str, Any]) -> str:
    return hashing.digest_json(key)[:12]


def _write_once(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object with its digest, atomically, unless the file exists already."""
    mine = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    artifacts.write_json(mine, value)
    try:
        os.link(mine, path)
        whole_files.sync_folder(path.parent)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        artifacts.write_json(path, value)
    mine.unlink()


class PartsJournal(Journal):
    """A journal of independent parts. With `shared`, other processes that also set it may write
    parts at the same time."""

    def __init__(
        self, target: Path, key: dict[str, Any], *, shared: bool = False, **more: Any
    ) -> None:
        super().__init__(target, key, **more)
        self.shared = shared
        self._lock_kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self.parts = Parts(self.folder, _mark(key))

    def _load(self) -> None:
        path = self.folder / _STATE
        if path.exists() and self._may_replace(path):
            path.unlink()
        if not path.exists():  # of several processes with other keys only one goes on
            _write_once(path, {"key": self.key, "num_parts": 0, "state": {}})
        super()._load()

    def _may_replace(self, path: Path) -> bool:
        """Whether the state is of another run that did no work yet, or whose work is discarded."""
        try:
            key = _read_state(path)["key"]
        except UserError:
            return self.force
        return key != self.key and (self.force or not Parts(self.folder, _mark(key)).begun())

    def __exit__(self, *exception: object) -> None:
        if not self.shared and not self.parts.begun():
            self.finish()
        if self._lock is not None:
            os.close(self._lock)


@contextlib.contextmanager
def leftover(folder: Path, options: Mapping[str, Any] | None) -> Iterator[bool]:
    """A block in which a journal is locked: whether it was being removed, or is of a complete
    result with these `options`.

    All of them are part of the key of the journal that made the result. False where another process
    uses it, or may use it.
    """
    try:
        lock = os.open(folder / unfinished.MARK, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        yield _is_unused(lock, folder) and _is_left(folder, options)
    finally:
        os.close(lock)


def _is_unused(lock: int, folder: Path) -> bool:
    try:
        return unfinished.acquire(lock, fcntl.LOCK_EX, folder, wait=False)
    except BlockingIOError:
        return False


def _is_left(folder: Path, options: Mapping[str, Any] | None) -> bool:
    if folder.name.endswith(unfinished.NEW) or not (folder / _STATE).exists():
        return True
    try:
        return (
            options is not None and options.items() <= _read_state(folder / _STATE)["key"].items()
        )
    except UserError:
        return False


def journal_folder(target: Path) -> Path:
    """The folder of the journal of an output."""
    return target.with_name(f".{target.name}{unfinished.PARTIAL}")
