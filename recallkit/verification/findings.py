"""What `verify` finds of a folder, and how it is printed."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from recallkit.display import console
from recallkit.display.cells import counted
from recallkit.display.notebook import NotebookResult
from recallkit.errors import UserError, as_utf8, lacks_resources

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Kind = Literal["missing", "changed", "mismatch", "unfinished", "leftover", "foreign"]
ERRORS: tuple[Kind, ...] = ("missing", "changed", "mismatch")
"""Findings that make numbers wrong or unreadable; the others are notes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is the matter with a file, and what to do about it.

    `file` is relative to the folder. `kind`: a "missing" or "changed" member and a "mismatch" of
    two results are errors; "unfinished" work, a "leftover" of a killed run and a "foreign" file in
    a result's folder, which has nothing to be compared with, are notes.
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
class Verified(NotebookResult):
    """What was read of a folder, and the findings.

    `num_removed`: leftovers that were removed, with `clean`.
    """

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
        name = as_utf8(str(path.relative_to(self.folder)))
        self.findings.append(Finding(name, kind, as_utf8(problem), as_utf8(remedy)))

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """A block that reads a file: errors about it become findings."""
        try:
            size = path.stat().st_size
            yield
        except UserError as error:
            is_own = error.where in (None, str(path), str(path.absolute()))
            problem = error.problem if is_own else f"{error.where}: {error.problem}"
            remedy = error.remedy or "make it again with --force"
            self.add(path, "changed" if is_own else "mismatch", problem, remedy)
        except OSError as error:
            if lacks_resources(error):
                raise
            problem = f"cannot be read ({error.strerror})"
            self.add(path, "changed", problem, "make the file and its folder readable")
        else:
            self.num_files += 1
            self.num_bytes += size

    def summary(self) -> str:
        """How much was read, and how many errors and notes there are."""
        errors = sum(finding.is_error for finding in self.findings)
        notes = len(self.findings) - errors
        parts = [f"{counted(self.num_files, 'file')}, {self.num_bytes / 1e6:,.1f} MB: "]
        if self.num_removed:
            parts.insert(0, f"{counted(self.num_removed, 'leftover')} removed. ")
        sound = "all results are unchanged and belong together"
        parts.append(counted(errors, "error") if errors else sound)
        parts.append(f", {counted(notes, 'note')}." if notes else ".")
        return "".join(parts)

    def print(self) -> None:
        """The summary, and findings, errors first."""
        console.print_line(self.summary())
        for finding in self.findings:
            console.print_indented(f"{finding.kind:<10}  {finding.file}:", 0)
            console.print_indented(finding.problem, 12)
            console.print_indented(f"-> {finding.remedy}", 12)

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        content = {
            "path": str(self.folder),
            "sound": self.is_sound,
            "files": self.num_files,
            "bytes": self.num_bytes,
            "removed": self.num_removed,
            "findings": [asdict(finding) for finding in self.findings],
        }
        return json.loads(json.dumps(content))  # type: ignore[no-any-return]
