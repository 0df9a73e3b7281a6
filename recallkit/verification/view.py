"""What `verify` prints: a line for each finding, with what to do about it, and a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.display import console

if TYPE_CHECKING:
    from recallkit.verification.run import Verified


def print_verified(found: Verified) -> None:
    """Findings, errors first."""
    for finding in found.findings:
        console.print_indented(f"{finding.kind:<10}  {finding.file}: {finding.problem}", 0)
        console.print_indented(f"-> {finding.remedy}", 12)
    console.print_line(summary(found))


def summary(found: Verified) -> str:
    """How much was read, and how many errors and notes there are."""
    read = f"{console.counted(found.num_files, 'file')}, {found.num_bytes / 1e6:,.1f} MB"
    errors = sum(finding.is_error for finding in found.findings)
    notes = len(found.findings) - errors
    removed = f"{console.counted(found.num_removed, 'leftover')} removed. " if found.num_removed else ""
    verdict = f"{console.counted(errors, 'error')}" if errors else "everything is as it was written, and fits together"
    return f"{removed}{read}: {verdict}" + (f", {console.counted(notes, 'note')}." if notes else ".")
