"""A file of a web server (http, https): its size, tag and date, and its bytes, checked, in bounded
memory and time.

Every answer must be of the same file: of one size, tag and date. A server that is silent, or drips,
is left after a minute; what breaks off is requested again. Redirections are followed on the same
host alone.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import re
import string
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

from recallkit import config, events
from recallkit.errors import UserError, redacted
from recallkit.text.connection import TRANSIENT, PassingError, opener, reason, tried
from recallkit.text.encoding import call_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from http.client import HTTPResponse

SECONDS = 60.0
"""How long an answer may take to begin, and after that each piece of it."""
PIECE = 1 << 19
"""Bytes that are waited for together: 9 kB a second at least."""
SECONDS_BETWEEN_NOTES = 30.0
_LONGEST_WAIT = 30.0
"""How long a server may say that it wants to be left alone (Retry-After)."""
_MOST_REDIRECTIONS = 5
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", re.ASCII)
_CODINGS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}
"""Files whose own bytes some servers declare as a coding of others."""
DOWNLOAD = "download it, and name the file"

_noted: dict[str, float] = {}
"""When each host was last said to be waited for."""


class WebError(OSError):
    """What a server answers is not the file: another try is of no use."""


class NoPartsError(WebError):
    """A server answers the request for a part with the whole file."""


class Facts(NamedTuple):
    """A file as a server describes it: bytes, tag and date of its content, empty where these are
    not stated."""

    size: int
    tag: str = ""
    modified: str = ""

    def differs(self, other: Facts) -> bool:
        """Whether two answers cannot be of the same content."""
        if self.size != other.size:
            return True
        if self.tag and other.tag:
            return self.tag != other.tag
        return bool(self.modified and other.modified) and self.modified != other.modified


class WebFile:
    """The file at a URL, which may contain a user and a password.

    Raises UserError for what is no URL.

    Methods raise OSError or UserError for what cannot be read, and for an answer that is of another
    file.
    """

    def __init__(self, url: str) -> None:
        self.where = redacted(url)
        try:
            parts = urlsplit(url)
            user, _, host = parts.netloc.rpartition("@")
            self.host, _ = parts.hostname or "", parts.port
            address = parts._replace(netloc=host, fragment="").geturl()
        except ValueError as error:
            raise self._refusal("not a URL", "give https://HOST/PATH") from error
        if not (self.host.isascii() and url.isprintable()):
            raise self._refusal("not a URL", "give https://HOST/PATH")
        self.url = _quoted(address)
        self._headers = {
            "Accept-Encoding": "identity",
            "User-Agent": f"recallkit/{config.VERSION}",
        }
        if user:
            name, _, password = user.partition(":")
            key = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
            self._headers["Authorization"] = f"Basic {key}"
        self._opener = opener()

    def facts(self) -> Facts:
        """How the server describes the file now."""
        facts = None
        # URLs that are signed are often for GET alone; of others HEAD fails where GET does not.
        with contextlib.suppress(WebError, ConnectionError):
            facts = tried(self.where, functools.partial(self._facts, "HEAD"))
        if facts is not None and facts.size:
            return facts
        try:
            facts = tried(self.where, functools.partial(self._facts, "GET", range(1))) or facts
        except WebError:  # no byte of an empty file can be requested
            if facts is None:
                raise
        if facts is None:
            raise self._refusal("the server does not say how long it is", DOWNLOAD)
        return facts

    def part(self, known: Facts, part: range) -> bytes:
        """Some bytes of the file that `known` describes; NoPartsError where all are sent."""

        def read() -> bytes:
            with self._answer("GET", part, known) as answer:
                if answer.status == 200:
                    raise NoPartsError("the server gives no parts of a file")
                return b"".join(self._pieces(answer, len(part)))

        return tried(self.where, read)

    def copy(self, known: Facts, target: Any) -> None:
        """Writes the file that `known` describes, all in one answer, to an opened file."""

        def write() -> None:
            target.seek(0)
            with self._answer("GET", None, known) as answer:
                for piece in self._pieces(answer, known.size):
                    target.write(piece)

        tried(self.where, write)

    def beginning(self, most: int) -> bytes:
        """All of the file, or so many bytes of it, whatever its size is."""

        def read() -> bytes:
            with self._answer("GET") as answer:
                content = b""
                while len(content) < most and (piece := self._piece(answer, len(content), PIECE)):
                    content += piece
                return content[:most]

        return tried(self.where, read)

    # ------------------------------------------------------------------------------------ one try

    def _facts(self, method: str, part: range | None = None) -> Facts | None:
        with self._answer(method, part) as answer:
            return self._facts_of(answer, part)

    @contextlib.contextmanager
    def _answer(
        self,
        method: str,
        part: range | None = None,
        known: Facts | None = None,
    ) -> Iterator[HTTPResponse]:
        """An answer of a status below 300, of the `known` file, which is closed afterwards."""
        answer = self._open(method, part, known)
        try:
            self._check(answer, part, known)
            yield answer
        except (TimeoutError, KeyboardInterrupt):
            raise  # the answer is left to the thread that reads it: closing would wait for that
        except BaseException:
            answer.close()
            raise
        answer.close()

    def _check(self, answer: HTTPResponse, part: range | None, known: Facts | None) -> None:
        """Raises WebError for an answer that is of another file than the known one."""
        facts = self._facts_of(answer, part)
        if known is not None and facts is not None and known.differs(facts):
            raise WebError("it changed while it was read: its size, tag or date is another")

    def _pieces(self, answer: HTTPResponse, size: int) -> Iterator[bytes]:
        """The body of an answer, which is to have so many bytes."""
        done = 0
        while done < size:
            piece = self._piece(answer, done, min(PIECE, size - done))
            if not piece:
                raise PassingError(f"it breaks off after {done:,} of {size:,} bytes")
            done += len(piece)
            yield piece
        if self._piece(answer, done, 1):
            raise WebError(f"it has more than the {size:,} bytes that were promised")

    def _piece(self, answer: HTTPResponse, done: int, size: int) -> bytes:
        """The next bytes of an answer, of which so many were read; none at its end."""
        try:
            piece: bytes = self._within(answer.read, size)
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            problem = f"it breaks off after {done:,} bytes ({reason(error)})"
            raise PassingError(problem) from error
        return piece

    def _facts_of(self, answer: HTTPResponse, part: range | None) -> Facts | None:
        """What an answer to the request for a part, or for all, says; None of one without a size.

        Raises WebError if it is no such answer.
        """
        headers = answer.headers
        coding = headers.get("Content-Encoding", "identity").lower().removeprefix("x-")
        path = urlsplit(self.url).path.lower()
        own = next((name for ending, name in _CODINGS.items() if path.endswith(ending)), "")
        if coding not in ("", "identity", own):
            problem = f"the server compresses it ({coding}), which was not requested"
            raise self._refusal(problem, DOWNLOAD)
        tag, modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
        length = _number(headers.get("Content-Length"))
        if answer.status == 200:
            if length is None or answer.chunked:
                return None
            return Facts(length, tag, modified)
        written = headers.get("Content-Range", "") if answer.status == 206 else ""
        if (matched := _RANGE.fullmatch(written)) is None:
            problem = f"it answers {answer.status}, without the file or a known part of it"
            raise WebError(problem)
        first, last, size = map(int, matched.groups())
        if part is None:
            raise WebError("the server answers with a part of it, but all was requested")
        stop = min(part.stop, size)
        is_right = (first, last + 1) == (part.start, stop)
        if not is_right or length not in (None, stop - part.start):
            raise WebError("the server answers with another part of it than was requested")
        return Facts(size, tag, modified)

    def _open(self, method: str, part: range | None, known: Facts | None) -> HTTPResponse:
        """The answer to one request, and to those that redirections on this host lead to."""
        headers = dict(self._headers)
        if part is not None:
            headers["Range"] = f"bytes={part.start}-{part.stop - 1}"
            if known is not None and known.tag.startswith('"'):
                headers["If-Range"] = known.tag
        address = self.url
        for _ in range(_MOST_REDIRECTIONS + 1):
            request = urllib.request.Request(address, headers=headers, method=method)  # noqa: S310
            try:
                open_ = functools.partial(self._opener.open, timeout=2 * SECONDS)
                answer: HTTPResponse = self._within(open_, request)
                return answer
            except urllib.error.HTTPError as error:
                error.close()
                location = error.headers.get("Location") if 300 <= error.code < 400 else None
                if not location:
                    raise _failure(error) from None
                address = self._redirected(address, location)
            except TimeoutError:
                raise
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise PassingError(f"it cannot be reached ({reason(error)})") from error
        raise WebError(f"it redirects more than {_MOST_REDIRECTIONS} times")

    def _redirected(self, address: str, location: str) -> str:
        """The address that another leads to, on the same host and as safe.

        Raises UserError for any other.
        """
        here = _door(address)
        try:
            written = location.encode("latin-1")  # as http.client reads the bytes of headers
            target = urljoin(address, _quoted(written))
            there = _door(target)
        except ValueError:  # an address that is none
            target, there = "", ("", None, None)
        is_safer = here[1] == there[1] and (here[0], there[0]) == ("http", "https")
        if there != here and not is_safer:
            problem = f"it redirects to another host ({there[0]}://{there[1]})"
            of_hub = "hf://datasets/... for files of the hub"
            remedy = f"give the URL that it leads to, {of_hub}, or download it"
            raise self._refusal(problem, remedy)
        return target

    def _within(self, call: Callable[[Any], Any], argument: Any) -> Any:
        """The value of a call that waits for the server; TimeoutError if it takes too long."""
        waiting = functools.partial(call, argument)
        try:
            return call_within(SECONDS, waiting, computes=False, on_wait=self._note_waiting)
        except TimeoutError as error:
            problem = f"the server is silent, or too slow: nothing complete within {SECONDS:g} s"
            raise TimeoutError(problem) from error

    def _note_waiting(self) -> None:
        now = time.monotonic()
        if now - _noted.get(self.host, -SECONDS_BETWEEN_NOTES) >= SECONDS_BETWEEN_NOTES:
            _noted[self.host] = now
            events.note(f"{self.where}: waiting for {self.host}, up to {SECONDS:g} s")

    def _refusal(self, problem: str, remedy: str) -> UserError:
        return UserError(problem, where=self.where, remedy=remedy)


def _failure(error: urllib.error.HTTPError) -> OSError:
    """The error of a status that is none of success."""
    words = http.client.responses.get(error.code, "no known status")
    problem = f"it answers {error.code} ({words})"
    if error.code in TRANSIENT:
        seconds = _number(error.headers.get("Retry-After")) or 0.0
        return PassingError(problem, min(_LONGEST_WAIT, seconds))
    return FileNotFoundError(problem) if error.code in (404, 410) else WebError(problem)


def _door(address: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port."""
    parts = urlsplit(address)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _quoted(address: str | bytes) -> str:
    """The address in ASCII without spaces."""
    return quote(address, safe=string.punctuation)


def _number(text: str | None) -> int | None:
    """The number from 0 on that a header states."""
    return int(text) if text and len(text) < 19 and text.isascii() and text.isdigit() else None
