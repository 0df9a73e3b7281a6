"""A server of this or another machine that answers JSON: bounded size and time, further tries where
a failure may pass, no redirections."""

from __future__ import annotations

import functools
import http.client
import json
import os
import textwrap
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from recallkit.errors import API_KEY, UserError, redacted
from recallkit.text.connection import FIRST_TRIES, TRANSIENT, PassingError, opener, reason, tried
from recallkit.text.encoding import call_within

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECONDS = 600.0
"""How long one answer may take, from its request to its last byte."""
_TRIES = 8
"""Of a server that has answered before: the last try is two minutes after the first."""
_UNREADABLE = (OSError, http.client.HTTPException, ValueError, TypeError, RecursionError)
"""What connecting, reading and parsing raise."""


class RefusedError(UserError):
    """The server answers, and not what is asked for: another try is of no use."""


class JsonServer:
    """A server at `url`, http or https, which errors call `name`; with `has_key` it is sent the key
    in $RECALLKIT_API_KEY."""

    def __init__(self, url: str, name: str, remedy: str, *, has_key: bool) -> None:
        self._url, self._name, self._remedy, self._has_key = url, name, remedy, has_key
        self._opener = opener()
        self._num_tries = FIRST_TRIES

    def ask(self, path: str, content: Mapping[str, Any] | None, most: int) -> dict[str, Any]:
        """The JSON object, of at most so many bytes, that answers a POST of `content`, or a GET.

        A failure that may pass is said, and tried again, ever later. Raises UserError, or
        RefusedError where another try is of no use.
        """
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._has_key and (key := os.environ.get(API_KEY, "").strip()):
            if not (key.isascii() and key.isprintable()):
                problem = "characters that no key has"
                raise UserError(problem, where=API_KEY, remedy="copy the key again")
            headers["Authorization"] = f"Bearer {key}"
        body = None if content is None else json.dumps(content).encode()
        address = f"{self._url}/{path}"
        request = urllib.request.Request(address, body, headers)  # noqa: S310 - checked
        exchange = functools.partial(self._object, request, most)
        try:
            return tried(self._name, exchange, lambda: self._num_tries)
        except ConnectionError as error:
            raise UserError(str(error), where=self._name, remedy=self._remedy) from error

    def _object(self, request: urllib.request.Request, most: int) -> dict[str, Any]:
        """The object of one answer.

        Raises PassingError where another try may help, RefusedError where it is of no use.
        """
        try:
            call = functools.partial(self._exchange, request, most)
            status, answer = call_within(_SECONDS, call, computes=False)
            self._num_tries = _TRIES
            if status < 300 and len(answer) <= most:
                return dict(json.loads(answer))
        except TimeoutError as error:
            raise self.refusal(f"no complete answer within {_SECONDS:,.0f} s") from error
        except _UNREADABLE as error:
            raise PassingError(f"it cannot be reached or read ({reason(error)})") from error
        if status < 300:
            raise self.refusal(f"an answer of more than {most:,} bytes")
        words = redacted(answer.decode(errors="replace"))
        if status < 400:
            words = "a redirection, which is not followed"
        words = words or http.client.responses.get(status, "")
        problem = f"it answers {status} ({textwrap.shorten(words, 300)})"
        if status in TRANSIENT:
            raise PassingError(problem)
        raise self.refusal(problem)

    def _exchange(self, request: urllib.request.Request, most: int) -> tuple[int, bytes]:
        """The status of an answer and its bytes, one more than `most` of a longer one; of an error
        its beginning."""
        try:
            with self._opener.open(request, timeout=_SECONDS) as answer:
                return answer.status, answer.read(most + 1)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(2000)

    def refusal(self, problem: str) -> RefusedError:
        """The error of an answer that is not what was asked for."""
        return RefusedError(problem, where=self._name, remedy=self._remedy)
