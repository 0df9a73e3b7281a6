"""A model behind a server: NLLs from the log probabilities of prompts, by the completions of OpenAI's protocol (`echo`, `logprobs`).

vLLM and SGLang serve it, and whatever else gives the log probabilities of a prompt. Token ids are sent, so that no tokenizer of the server
is involved. Nothing is sent anywhere but to the URL that was named: redirections are not followed.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import textwrap
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from recallkit.display import console
from recallkit.errors import UserError
from recallkit.models.protocol import TokenScores
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.models.protocol import ModelRequest

PREFIX = "openai:"
KEY = "RECALLKIT_API_KEY"
"""The environment variable with the key that the server asks for; no other key is sent."""

TOP = 5
"""How many of the most likely tokens are asked for: OpenAI's limit. A rank is known where one of them is less likely than the token."""

_REMEDY = f"check the URL, the name of the model and {KEY}; finished parts are kept"
_SEQUENCES = 8
_SECONDS = 600.0
_TRIES = 8
"""Of which the last is two minutes after the first."""
_sleep = time.sleep
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class _RefusedError(UserError):
    """The server answers, and not what is asked for: another try is of no use."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirection is an answer like any other error."""

    def redirect_request(self, *_: Any) -> None:
        """None: it is not followed."""
        return


def parse(spec: str) -> tuple[str, str]:
    """The URL and the name of the model in `openai:URL#MODEL`. Raises UserError for anything else."""
    url, _, model = spec.removeprefix(PREFIX).partition("#")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or not model:
        raise UserError(
            "not openai:URL#MODEL", where=spec, remedy="for example openai:http://localhost:8000/v1#NAME, as the server names it"
        )
    return url.rstrip("/").removesuffix("/completions"), model


def identify(request: ModelRequest) -> str:
    """Digest of the URL and the name: what the server computes with is not known, so a change of its weights goes unnoticed."""
    return artifacts.digest_json([PREFIX, *parse(request.spec)])


def load(request: ModelRequest) -> ServerModel:
    """A server that is ready to score. Raises UserError where it cannot be reached, or gives no log probabilities of prompts."""
    model = ServerModel(request.spec, request.vocab_size)
    console.note(f"{request.spec}: ranks from {TOP - 1} on are not known, and are -1")
    return model


class ServerModel:
    """A server's model as a `ScoringModel`. Raises UserError as `load` does."""

    def __init__(self, spec: str, vocab_size: int) -> None:
        """`vocab_size`: that of the tokenizer in use; the server refuses ids that it does not have."""
        self.name = spec
        self.vocab_size = vocab_size
        self._url, self._model = parse(spec)
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._new_tokens = 0
        try:
            self._score([[0, 0]])
        except _RefusedError:
            self._new_tokens = 1  # some servers refuse to generate nothing
            self._score([[0, 0]])
        longest = self._longest()
        self.max_length = None if longest is None else longest - 1 - self._new_tokens

    def batch_tokens(self, seq_len: int) -> int:
        """See `ScoringModel.batch_tokens`: a few sequences in each request, which the server batches."""
        return _SEQUENCES * seq_len

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        """See `ScoringModel.score`. Raises UserError for what the server answers, after several tries where it may pass.

        `rank` is -1 from `TOP` - 1 on; so is `argmax` where the server gives no ids of tokens and another one is first.
        """
        sequences = [ids[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]
        wanted = [sequence for sequence in sequences if len(sequence) > 1]
        found = self._score(wanted) if wanted else []
        nll, argmax, rank = (np.array(values) for values in zip(*itertools.chain(*found), strict=True)) if found else ([], [], [])
        return TokenScores(np.asarray(nll, np.float32), np.asarray(argmax, np.int32), np.asarray(rank, np.int32))

    def _score(self, sequences: Sequence[list[int]]) -> list[list[tuple[float, int, int]]]:
        """For each sequence the NLL (nats), argmax and rank of every id but the first."""
        asked = {"echo": True, "logprobs": TOP, "max_tokens": self._new_tokens, "temperature": 0, "return_tokens_as_token_ids": True}
        answer = self._ask("completions", {"model": self._model, "prompt": sequences, **asked})
        choices = answer.get("choices")
        if not isinstance(choices, list) or len(choices) != len(sequences):
            raise self._refusal(f"it answers {len(choices or ())} of {len(sequences)} prompts")
        ordered = sorted(choices, key=lambda choice: choice.get("index", 0))
        return [self._read(choice.get("logprobs") or {}, sequence) for choice, sequence in zip(ordered, sequences, strict=True)]

    def _read(self, found: Mapping[str, Any], sequence: list[int]) -> list[tuple[float, int, int]]:
        own, top, tokens = (found.get(name) or [] for name in ("token_logprobs", "top_logprobs", "tokens"))
        size = len(sequence)
        if min(len(own), len(top), len(tokens)) < size or not all(isinstance(value, int | float) for value in own[1:size]):
            raise self._refusal("it gives no log probabilities of the prompt (echo and logprobs)")
        return [(-own[i], *_first_and_rank(sequence[i], own[i], str(tokens[i]), dict(top[i] or {}))) for i in range(1, size)]

    def _longest(self) -> int | None:
        """The context of the model, where the server tells it (vLLM's `max_model_len`)."""
        try:
            listed = self._ask("models", None).get("data")
        except UserError:
            return None
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        found = next((entry.get("max_model_len") for entry in entries if entry.get("id") == self._model), None)
        return found if isinstance(found, int) else None

    def _ask(self, path: str, content: Mapping[str, Any] | None) -> dict[str, Any]:
        """The JSON object that the server answers, with further tries, ever later, where a failure may pass."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self._url}/{path}", body, headers)  # noqa: S310 - `parse` allows http and https alone
        for tried in range(_TRIES):
            if tried:
                _sleep(2.0 ** (tried - 1))
            try:
                with self._opener.open(request, timeout=_SECONDS) as answer:
                    return dict(json.loads(answer.read()))
            except urllib.error.HTTPError as error:
                said = "a redirection, which is not followed" if error.code < 400 else error.read(2000).decode(errors="replace")
                problem = f"it answers {error.code} ({textwrap.shorten(said or error.reason, 300)})"
                if error.code not in _TRANSIENT:
                    raise self._refusal(problem) from error
            except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
                problem = f"it cannot be reached or read ({getattr(error, 'reason', error) or type(error).__name__})"
        raise UserError(f"{problem}, after {_TRIES} tries", where=self.name, remedy=_REMEDY)

    def _refusal(self, problem: str) -> _RefusedError:
        return _RefusedError(problem, where=self.name, remedy=_REMEDY)


def _first_and_rank(token: int, own: float, text: str, top: Mapping[str, float]) -> tuple[int, int]:
    """The argmax and the rank of a token with log probability `own`; -1 for what its most likely alternatives do not show.

    `text` is how the server writes the token, `token_id:5` or its text; `top` has the most likely ones written in this way.
    """
    others = {name: value for name, value in top.items() if name != text}
    if not others:
        return -1, -1
    larger = sum(value > own for value in others.values())
    # A server may list the token itself beside the first ones: only one that is not above it shows that all that are above it are listed.
    is_known = larger < len(others)
    best = max([own, *others.values()])
    first = [_id(name) for name, value in others.items() if value == best] + ([token] if own == best else [])
    argmax = min((number for number in first if number >= 0), default=-1)
    return argmax, larger if is_known else -1


def _id(name: str) -> int:
    """The id in `token_id:5`; -1 where a server writes the text of a token."""
    number = name.removeprefix("token_id:")
    return int(number) if number != name and number.isdecimal() else -1
