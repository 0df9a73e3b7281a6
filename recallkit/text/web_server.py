"""A file of a web server (http, https): its size, tag and date, and its bytes, checked, in bounded memory and time.

Every answer must be of the same file: of one size, tag and date. A server that is silent, or drips, is left after a minute;
what breaks off is asked for again from there. Redirections are followed on the same host alone.
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
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import quote, unquote, urljoin, urlsplit

from recallkit import config, events
from recallkit.errors import UserError, redacted
from recallkit.text.connection import TRANSIENT, Tries, opener, reason
from recallkit.text.encoding import call_within

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

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


class NoRangesError(WebError):
    """A server answers the request for a part with the whole file, `body`."""

    def __init__(self, body: Body) -> None:
        super().__init__("the server gives no parts of a file")
        self.body = body


class Facts(NamedTuple):
    """A file as a server describes it: bytes, tag and date of its content; None or empty where these are not stated."""

    size: int | None
    tag: str = ""
    modified: str = ""

    def differs(self, other: Facts) -> bool:
        """Whether two answers cannot be of the same content."""
        if None not in (self.size, other.size) and self.size != other.size:
            return True
        if self.tag and other.tag:
            return self.tag != other.tag
        return bool(self.modified and other.modified) and self.modified != other.modified


class Body(NamedTuple):
    """The body of an answer, of a file of `size` bytes: `read` gives so many, fewer at its end alone."""

    size: int | None
    read: Callable[[int], bytes]
    close: Callable[[], None]


class WebFile:
    """The file at a URL, which may contain a user and a password. Raises UserError for what is no URL."""

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
        self._headers = {"Accept-Encoding": "identity", "User-Agent": f"recallkit/{config.VERSION}"}
        if user:
            name, _, password = user.partition(":")
            key = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
            self._headers["Authorization"] = f"Basic {key}"
        self._opener = opener()

    def _refusal(self, problem: str, remedy: str) -> UserError:
        return UserError(problem, where=self.where, remedy=remedy)

    def facts(self) -> Facts:
        """How the server describes the file now. Raises OSError or UserError for what cannot be read."""
        found = Facts(None)
        with contextlib.suppress(WebError), self._asked("HEAD") as answer:  # signed URLs are often for GET alone
            found = self._facts_of(answer)
            if answer.chunked:
                return found
        if found.size:
            return found
        try:
            with self._asked("GET", 0, 1) as answer:
                return self._facts_of(answer, 0, 1)
        except WebError:
            if found.size is None:
                raise
            return found

    def pieces(
        self,
        known: Facts,
        start: int = 0,
        stop: int | None = None,
        body: Body | None = None,
    ) -> Generator[bytes]:
        """The bytes from `start` to `stop`, by default to the end, of the file of which `known` is known.

        `body` is an answer that begins at `start`. Raises NoRangesError if there are no parts, OSError for another file, for more or
        fewer bytes than promised, and for a server that is silent.
        """
        done, tries, problem = start, Tries(self.where), ""
        end = stop if known.size is None else min(known.size, stop or known.size)
        while end is None or done < end:
            begun = done
            try:
                body = body or self._body(known, done, stop)
            except NoRangesError as error:
                if done == start:
                    raise
                error.body.close()
                raise WebError(f"{problem}, and the server gives no parts of it") from None
            end = body.size if end is None else end
            try:
                for piece in _read(body, done, end, is_rest=stop is None):
                    done += len(piece)
                    yield piece
                return
            except (WebError, TimeoutError):
                raise
            except (OSError, http.client.HTTPException) as error:
                problem = f"it breaks off after {done:,} bytes ({reason(error)})"
            finally:
                body.close()
                body = None
            if done - begun >= PIECE:
                tries = Tries(self.where)
            if not tries.wait(problem):
                raise WebError(problem)

    def _body(self, known: Facts, start: int, stop: int | None) -> Body:
        answer = self._ask("GET", start, stop, known)
        is_part, is_left = bool(start) or stop is not None, False

        def read(size: int) -> bytes:
            nonlocal is_left
            try:
                content: bytes = self._within(functools.partial(answer.read, size))
            except (TimeoutError, KeyboardInterrupt):
                is_left = True  # to the thread that reads: closing would wait for it
                raise
            return content

        def close() -> None:
            if not is_left:
                answer.close()

        try:
            found = self._checked(answer, known, start, stop)
        except BaseException:
            answer.close()
            raise
        body = Body(found.size, read, close)
        if is_part and answer.status == 200:
            raise NoRangesError(body)
        return body

    def _checked(self, answer: http.client.HTTPResponse, known: Facts, start: int, stop: int | None) -> Facts:
        """What an answer says, which is of the known file."""
        found = self._facts_of(answer, start, stop)
        if known.differs(found):
            raise WebError("it changed while it was read: its size, tag or date is another")
        if found.size is None and not answer.chunked:
            raise self._refusal("the server does not say how long it is", DOWNLOAD)
        if answer.status == 206 and not start and stop is None:
            raise WebError("the server answers with a part of it, but all was requested")
        return found

    def _facts_of(self, answer: http.client.HTTPResponse, start: int = 0, stop: int | None = None) -> Facts:
        """What an answer to the request for all, or for these bytes, says. Raises WebError if it is no such answer."""
        headers = answer.headers
        coding = headers.get("Content-Encoding", "identity").lower().removeprefix("x-")
        path = urlsplit(self.url).path.lower()
        if coding not in ("", "identity", next((name for ending, name in _CODINGS.items() if path.endswith(ending)), "")):
            raise self._refusal(f"the server compresses it ({coding}), which was not requested", DOWNLOAD)
        tag, modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
        length = _number(headers.get("Content-Length"))
        if answer.status == 200:
            return Facts(None if answer.chunked else length, tag, modified)
        matched = _RANGE.fullmatch(headers.get("Content-Range", "")) if answer.status == 206 else None
        if matched is None:
            raise WebError(f"it answers {answer.status}, without the file or a known part of it")
        first, last, size = map(int, matched.groups())
        if (first, last + 1) != (start, size if stop is None else min(stop, size)) or length not in (None, last + 1 - first):
            raise WebError("the server answers with another part of it than was requested")
        return Facts(size, tag, modified)

    def _asked(self, method: str, start: int = 0, stop: int | None = None) -> Any:
        return contextlib.closing(self._ask(method, start, stop))

    def _ask(self, method: str, start: int, stop: int | None, known: Facts | None = None) -> http.client.HTTPResponse:
        """The answer, of a status below 300, to the request for these bytes; after several tries where a failure may pass."""
        headers = dict(self._headers)
        if start or stop is not None:
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
            if known is not None and known.tag.startswith('"'):
                headers["If-Range"] = known.tag
        address, tries, num_redirections = self.url, Tries(self.where), 0
        while True:
            request, seconds = urllib.request.Request(address, headers=headers, method=method), 0.0  # noqa: S310
            try:
                answer: http.client.HTTPResponse = self._within(functools.partial(self._opener.open, request, timeout=2 * SECONDS))
                return answer
            except urllib.error.HTTPError as error:
                error.close()
                location = error.headers.get("Location") if 300 <= error.code < 400 else None
                if location:
                    address = self._redirected(address, location)
                    num_redirections += 1
                    if num_redirections > _MOST_REDIRECTIONS:
                        raise WebError(f"it redirects more than {_MOST_REDIRECTIONS} times") from None
                    continue
                if error.code not in TRANSIENT:
                    _refuse(error.code)
                problem = _problem(error.code)
                seconds = min(_LONGEST_WAIT, _number(error.headers.get("Retry-After")) or 0.0)
            except (WebError, TimeoutError):
                raise
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = f"it cannot be reached ({reason(error)})"
            if not tries.wait(problem, seconds=seconds):
                raise ConnectionError(f"{problem}, after {tries.number} tries")

    def _redirected(self, address: str, location: str) -> str:
        """The address that another leads to, on the same host and as safe. Raises UserError for any other."""
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
            remedy = "give the URL that it leads to, hf://datasets/... for files of the hub, or download it"
            raise self._refusal(problem, remedy)
        return target

    def _within(self, call: Callable[[], Any]) -> Any:
        """The value of a call that waits for the server. Raises TimeoutError if it takes too long."""
        try:
            return call_within(SECONDS, call, computes=False, on_wait=self._note_waiting)
        except TimeoutError as error:
            raise TimeoutError(f"the server is silent, or too slow: nothing complete within {SECONDS:g} s") from error

    def _note_waiting(self) -> None:
        now = time.monotonic()
        if now - _noted.get(self.host, -SECONDS_BETWEEN_NOTES) >= SECONDS_BETWEEN_NOTES:
            _noted[self.host] = now
            events.note(f"{self.where}: waiting for {self.host}, up to {SECONDS:g} s")


def _read(body: Body, done: int, end: int | None, *, is_rest: bool) -> Generator[bytes]:
    """The bytes from `done` to `end`, by default to the end of the body. Raises OSError for fewer, or after the rest for more."""
    while end is None or done < end:
        piece = body.read(PIECE if end is None else min(PIECE, end - done))
        if not piece and end is not None:
            raise OSError(f"{end:,} were promised")
        if not piece:
            return
        done += len(piece)
        if is_rest and done == end and body.read(1):
            raise WebError(f"it has more than the {end:,} bytes that were promised")
        yield piece


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


def _problem(status: int) -> str:
    return f"it answers {status} ({http.client.responses.get(status, 'no known status')})"


def _refuse(status: int) -> NoReturn:
    if status in (404, 410):
        raise FileNotFoundError(_problem(status))
    raise WebError(_problem(status))
