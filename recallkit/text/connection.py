"""Connections by http and https, as all readers of servers make them.

One is made within seconds, follows no redirection, and uses the environment's proxies.
"""

from __future__ import annotations

import http.client
import itertools
import time
import urllib.request
from typing import TYPE_CHECKING, TypeVar

from recallkit import events

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = TypeVar("Answer")

SECONDS_TO_CONNECT = 5.0
FIRST_TRIES = 4
"""Of a server that has not answered yet: it is there within seconds, or down."""
TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses of failures that may pass."""
_LONGEST_REASON = 100
sleep = time.sleep


class _Response(http.client.HTTPResponse):
    """An answer without chunks of negative size, for which http.client reads all that follows."""

    def _read_next_chunk_size(self) -> int:
        size: int = super()._read_next_chunk_size()  # type: ignore[misc]
        if size < 0:
            raise http.client.HTTPException("a chunk of negative size")
        return size


class _Connecting(http.client.HTTPConnection):
    """It is made within seconds, however long an answer may take."""

    response_class = _Response

    def connect(self) -> None:
        """Connects."""
        seconds = self.timeout
        self.timeout = min(seconds or SECONDS_TO_CONNECT, SECONDS_TO_CONNECT)
        super().connect()
        self.sock.settimeout(seconds)


class _ConnectingSafely(_Connecting, http.client.HTTPSConnection):
    """The same by https."""


class _Plain(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connecting, request)


class _Safe(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_ConnectingSafely, request)


def opener() -> urllib.request.OpenerDirector:
    """What opens requests; a redirection raises HTTPError, as any other error does."""
    director = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Plain(),
        _Safe(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        director.add_handler(handler)
    return director


def reason(error: BaseException) -> str:
    """Why a connection failed, in words."""
    return str(getattr(error, "reason", error) or type(error).__name__)[:_LONGEST_REASON]


class PassingError(OSError):
    """A failure that may pass, at the earliest after so many seconds."""

    def __init__(self, problem: str, seconds: float = 0.0) -> None:
        super().__init__(problem)
        self.seconds = seconds


def tried(
    name: str,
    exchange: Callable[[], Answer],
    most: Callable[[], int] | None = None,
) -> Answer:
    """The value of an exchange with the server that lines call `name`, tried ever later.

    The first failure is noted. Raises ConnectionError after `most` tries, by default `FIRST_TRIES`.
    """
    for number in itertools.count(1):
        try:
            return exchange()
        except PassingError as error:
            if number >= (FIRST_TRIES if most is None else most()):
                raise ConnectionError(f"{error}, after {number} tries") from error
            if number == 1:
                events.note(f"{name}: {error}; trying again")
            sleep(max(2.0 ** (number - 1), error.seconds))
    raise AssertionError
