"""The command line run in this process, and what it must keep whatever it is given: an exit status
and one line, never a traceback."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from recallkit import cli


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended.

    `escaped` is the traceback of an exception that no line was made of, else empty.
    """

    arguments: tuple[str, ...]
    status: int
    out: str
    err: str
    escaped: str

    @property
    def complaint(self) -> str:
        """What is wrong with how it ended; empty where nothing is."""
        last = (self.err.strip().splitlines() or [""])[-1]
        if self.escaped:
            return self.escaped
        if "Traceback" in self.err or "internal error" in self.err:
            return self.err
        if self.status not in (0, 1, 2):
            return f"exit status {self.status}: {self.err}"
        if self.status == 1 and not last.startswith("recallkit: "):
            return f"no line says why: {self.err!r}"
        if any(not c.isprintable() for c in last):
            return f"control characters reach the terminal: {last!r}"
        return f"a line of {len(last):,} characters" if len(last) > 4000 else ""


def invoke(*arguments: object) -> Outcome:
    """Runs `recallkit ARGUMENTS` here: quicker than a process for each of thousands of damaged
    files."""
    words = tuple(str(a) for a in arguments)
    out, err = io.StringIO(), io.StringIO()
    status, escaped = 0, ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.run(list(words))
        except SystemExit as stopped:
            status = stopped.code if isinstance(stopped.code, int) else 0
        except BaseException:  # noqa: BLE001 (whatever escapes is what is looked for)
            escaped = traceback.format_exc()
    return Outcome(words, status, out.getvalue(), err.getvalue(), escaped)


def assert_manners(outcome: Outcome) -> Outcome:
    """Fails where a command ended in anything but a status and a line that a user can read."""
    assert not outcome.complaint, f"recallkit {' '.join(outcome.arguments)}\n{outcome.complaint}"
    return outcome


def assert_refused(outcome: Outcome, *words: str) -> None:
    """Fails unless the command ended with status 1 and one line that holds these words."""
    assert_manners(outcome)
    last = (outcome.err.strip().splitlines() or [""])[-1]
    assert outcome.status == 1, f"recallkit {' '.join(outcome.arguments)} took it: {outcome.out}"
    for word in words:
        assert word in last, f"{word!r} not in {last!r}"


@contextlib.contextmanager
def copy_of(folder: Path) -> Iterator[Path]:
    """A copy of a small folder to damage, gone afterwards."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        yield Path(shutil.copytree(folder, Path(place) / folder.name, symlinks=True))
