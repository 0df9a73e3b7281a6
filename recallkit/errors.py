"""Mistakes a user can mend: raised anywhere, printed as one line by the command line, never as a traceback."""

from __future__ import annotations

import errno

_LACKING = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
_LACKING_WORDS = (
    "allocate memory",
    "out of memory",
    "not enough memory",
    "failed to allocate",
    "bad allocation",
    "can't start new thread",
    "resource temporarily unavailable",
    "too many open files",
)


class UserError(Exception):
    """What went wrong, where, and what to do about it, in one line.

    `where` names the file, record, option or model concerned; `remedy` says what to do next.
    """

    def __init__(self, problem: str, *, where: object = None, remedy: str | None = None) -> None:
        self.problem = problem
        self.where = None if where is None else str(where)
        self.remedy = remedy
        super().__init__(self.line())

    def line(self) -> str:
        """The message as one printable line: control characters from file names or data never reach a terminal."""
        text = self.problem if self.where is None else f"{self.where}: {self.problem}"
        if self.remedy:
            text = f"{text}; {self.remedy}"
        return printable(text)


class UsageError(UserError):
    """Options that do not go together, or that no run can take: nothing was tried, and the command line exits 2."""


def lacks_resources(error: BaseException) -> bool:
    """Whether memory, threads or open files ran out: an error of the machine, which says nothing of a file that was being read.

    Python's own, numpy's and Arrow's errors are MemoryErrors; torch, DuckDB and others have errors told by their words.
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _LACKING):
        return True
    words = str(error).lower()
    return any(said in words for said in _LACKING_WORDS)


def printable(text: str) -> str:
    """Text from files or data as one line that a terminal shows and never obeys."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in " ".join(text.split()))
