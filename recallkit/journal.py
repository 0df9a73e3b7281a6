"""Resumable work: finished parts and a small state beside an unfinished output, so that a killed run goes on.

A run commits numbered parts (whole files) and after each a state (JSON). A run killed at any moment leaves the last
committed state; the next one with the same options starts from there and produces the same bytes.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Any, Self

from recallkit import artifacts
from recallkit.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

_STATE = "state.json"


class Journal:
    """The folder `.TARGET.partial` of an unfinished output; one process at a time.

    `key` holds every option and input that decides the output's bytes. A folder left by a run with the same key is gone
    on with; one with another key is refused, for it may hold hours of work, and `force` discards it. Raises UserError
    for that and for a folder in use.
    """

    def __init__(self, target: Path, key: dict[str, Any], *, force: bool = False) -> None:
        self.target = target
        self.folder = target.with_name(f".{target.name}{artifacts.PARTIAL}")
        self.key = key
        self.force = force
        self.num_parts = 0
        self.state: dict[str, Any] = {}
        self._lock: int | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UserError(
                "another recallkit process is writing this", where=self.target, remedy="wait for it, or choose another output"
            ) from None
        try:
            self._load()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self.num_parts == 0:
            self.finish()
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
            saved = artifacts.read_json(path)
        except UserError:
            if not self.force:
                raise
            saved = {"key": None}
        if saved["key"] == self.key:
            self.num_parts, self.state = saved["num_parts"], saved["state"]
        elif self.force:
            path.unlink()
        else:
            changed = sorted(k for k in {*saved["key"], *self.key} if saved["key"].get(k) != self.key.get(k))
            raise UserError(
                f"an unfinished run with other options stands here (differs in {', '.join(changed)})",
                where=self.target,
                remedy="repeat its options to finish it, choose another output, or discard it with --force",
            )

    def part(self, index: int) -> Path:
        """The path of part `index`."""
        return self.folder / f"part-{index:06d}"

    def commit(self, state: dict[str, Any], *, num_new_parts: int = 1) -> None:
        """Records that `num_new_parts` more parts are whole on disk, and the state to go on from."""
        self.num_parts += num_new_parts
        self.state = state
        artifacts.write_json(self.folder / _STATE, {"key": self.key, "num_parts": self.num_parts, "state": state})

    def finish(self) -> None:
        """Removes the folder: the output is whole."""
        artifacts.remove(self.folder)


def forget_finished(target: Path, key: dict[str, Any]) -> None:
    """Removes the journal of an output that is whole, of a run killed before it tidied up; any other one stays.

    `key` is what the finished output was made with: all of it stands in the key of the journal that made it.
    """
    journal = Journal(target, {})
    try:
        saved = artifacts.read_json(journal.folder / _STATE)["key"]
    except UserError:
        return
    if all(saved.get(name) == value for name, value in key.items()):
        journal.finish()
