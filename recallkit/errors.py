"""Mistakes a user can mend: raised anywhere, printed as one line by the command line, never as a traceback."""

from __future__ import annotations


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


def printable(text: str) -> str:
    """Text from files or data as one line that a terminal shows and never obeys."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in " ".join(text.split()))
