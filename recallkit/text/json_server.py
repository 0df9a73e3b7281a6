"""A server of this or another machine that answers JSON: bounded size and time, further tries where a failure may pass, no redirections."""

from __future__ import annotations

import http.client
import json
import os
import textwrap
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from recallkit import events
from recallkit.errors import API_KEY, UserError, redacted
from recallkit.text.encoding import call_within

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECONDS = 600.0
"""How long one answer may take, from its request to its last byte."""
_SECONDS_TO_CONNECT = 5.0
_TRIES, _FIRST_TRIES = 8, 4
"""Of a server that has answered before, the last try is two minutes after the first; another is there within seconds or down."""
_sleep = time.sleep
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class RefusedError(UserError):
    """The server answers, and not what is asked for: another try is of no use."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirection is an answer like any other error."""

    def redirect_request(self, *_: Any) -> None:
        """None: it is not followed."""
        return


class _Connecting(http.client.HTTPConnection):
    """It is made within seconds, however long an answer may take."""

    def connect(self) -> None:
        """Connects."""
        seconds, self.timeout = self.timeout, min(self.timeout or _SECONDS, _SECONDS_TO_CONNECT)
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


class JsonServer:
    """A server at `url`, http or https, which errors call `name`; with `has_key` it is sent the key in $RECALLKIT_API_KEY."""

    def __init__(self, url: str, name: str, remedy: str, *, has_key: bool) -> None:
        self._url, self._name, self._remedy, self._has_key = url, name, remedy, has_key
        self._opener = urllib.request.build_opener(_NoRedirects, _Plain, _Safe)
        self._has_answered = False

    def ask(self, path: str, content: Mapping[str, Any] | None, most: int) -> dict[str, Any]:
        """The JSON object, of at most so many bytes, that answers a POST of `content`, or a GET.

        A failure that may pass is said, and tried again, ever later. Raises UserError, or RefusedError where another try is of no use.
        """
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._has_key and (key := os.environ.get(API_KEY, "").strip()):
            if not (key.isascii() and key.isprintable()):
                raise UserError("characters that no key has", where=API_KEY, remedy="copy the key again")
            headers["Authorization"] = f"Bearer {key}"
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self._url}/{path}", body, headers)  # noqa: S310 - http and https alone
        tried, problem = 0, ""
        while tried < (_TRIES if self._has_answered else _FIRST_TRIES):
            if tried == 1:
                events.note(f"{self._name}: {problem}; trying again")
            if tried:
                _sleep(2.0 ** (tried - 1))
            tried += 1
            try:
                status, answer = call_within(_SECONDS, lambda: self._exchange(request, most), computes=False)
                self._has_answered = True
                if status < 300 and len(answer) <= most:
                    return dict(json.loads(answer))
            except TimeoutError as error:
                raise self.refusal(f"no complete answer within {_SECONDS:,.0f} s") from error
            except (OSError, http.client.HTTPException, ValueError, TypeError, RecursionError) as error:
                problem = f"it cannot be reached or read ({getattr(error, 'reason', error) or type(error).__name__})"
                continue
            if status < 300:
                raise self.refusal(f"an answer of more than {most:,} bytes")
            said = "a redirection, which is not followed" if status < 400 else redacted(answer.decode(errors="replace"))
            problem = f"it answers {status} ({textwrap.shorten(said or http.client.responses.get(status, ''), 300)})"
            if status not in _TRANSIENT:
                raise self.refusal(problem)
        raise UserError(f"{problem}, after {tried} tries", where=self._name, remedy=self._remedy)

    def _exchange(self, request: urllib.request.Request, most: int) -> tuple[int, bytes]:
        """The status of an answer and its bytes, one more than `most` of a longer one; of an error its beginning."""
        try:
            with self._opener.open(request, timeout=_SECONDS) as answer:
                return answer.status, answer.read(most + 1)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(2000)

    def refusal(self, problem: str) -> RefusedError:
        """The error of an answer that is not what was asked for."""
        return RefusedError(problem, where=self._name, remedy=self._remedy)
