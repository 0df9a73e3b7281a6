"""Errors that a user can correct: raised anywhere, printed by the command line as one line, never
as a traceback."""

from __future__ import annotations

import errno
import os
import re

API_KEY = "RECALLKIT_API_KEY"
"""The environment variable with the key that a model's server asks for."""

_LEAST_KEY = 6
"""Characters of a key that is kept secret: servers without keys are given words such as `none`."""
_URL = re.compile(r"(?<!\S)\S*://\S*")
_USERINFO = re.compile(r"(?<=://)[^/?#\s]+@")
_SECRET = re.compile(r"\?|#(?=[^\s#,;/=]{1,64}=)")
_PUNCTUATION = "\"'`)]}>.,:;"
"""What may follow a URL in a sentence."""

_LACKING = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
_LACKING_WORDS = (
    "allocate memory",
    "out of memory",
    "not enough memory",
    "failed to allocate",
    "bad allocation",
    "memory allocation",
    "can't start new thread",
    "resource temporarily unavailable",
    "too many open files",
    "failed to map segment",  # a module of compiled code, as it is imported
    "could not create a primitive",  # oneDNN, in torch
    # Python itself and numba, which had no memory for the exception
    "return without exception set",
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
        """The message as one printable line, so that control characters from file names or data
        never reach a terminal."""
        text = self.problem if self.where is None else f"{self.where}: {self.problem}"
        if self.remedy:
            text = f"{text}; {self.remedy}"
        return printable(redacted(text))


class AbsentError(UserError):
    """The files of a model are not on this machine, nor can they be had from the hub."""


class UsageError(UserError):
    """Options that conflict, or that no run could use: nothing was started, and the command line
    exits with status 2."""


def redacted(text: str) -> str:
    """The text of a message or a log without the key of a server, and without what may be one in a
    URL.

    That is its user and password, its query, and a fragment of the form NAME=VALUE.
    """
    key = os.environ.get(API_KEY, "").strip()
    text = text.replace(key, "***") if len(key) >= _LEAST_KEY else text
    return _URL.sub(_redacted_url, text) if "://" in text else text


def _redacted_url(matched: re.Match[str]) -> str:
    """A word with a URL, such as `zip://a.jsonl::https://me:secret@host/b.zip?key=secret:`."""
    word = _USERINFO.sub("***@", matched[0])
    secret = _SECRET.search(word, word.index("://"))
    if secret is None:
        return word
    rest = word[secret.end() :]
    end = rest[len(rest.rstrip(_PUNCTUATION)) :]
    return f"{word[: secret.end()]}***{end}" if len(end) < len(rest) else word


def as_utf8(text: str) -> str:
    """The text with lone surrogates escaped, which strict JSON does not have and UTF-8 cannot
    encode."""
    return text.encode("utf-8", "backslashreplace").decode()


def lacks_resources(error: BaseException) -> bool:
    """Whether memory, threads or open files ran out: such errors are reported as they are, not as
    corruption of the file being read.

    Python, numpy and Arrow raise MemoryError; errors of torch, DuckDB and others are recognised by
    their messages.
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _LACKING):
        return True
    words = str(error).lower()
    if any(said in words for said in _LACKING_WORDS):
        return True
    # as llvmlite hides why it cannot be loaded
    hidden = error.__context__ if isinstance(error, OSError) and error.errno is None else None
    return hidden is not None and lacks_resources(hidden)


def printable(text: str) -> str:
    """Text from files or data as one line without control characters, which a terminal would
    execute."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in " ".join(text.split()))
