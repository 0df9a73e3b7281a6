"""A model behind a server: NLLs from the log probabilities of prompts, by the completions of
OpenAI's protocol (`echo`, `logprobs`).

vLLM and SGLang serve it, and whatever else gives the log probabilities of a prompt. Token ids are
sent, so that no tokenizer of the server is involved. Nothing is sent anywhere but to the URL that
was named: redirections are not followed.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from recallkit.display import console
from recallkit.errors import API_KEY, UserError
from recallkit.models.prefix import score_behind
from recallkit.models.protocol import TokenScores
from recallkit.storage import hashing
from recallkit.text.json_server import JsonServer, RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.models.plan import ModelPlan

PREFIX = "openai:"
TOP = 5
"""How many of the most likely tokens are asked for: OpenAI's limit. A rank is known where one of
them is less likely than the token."""

_REMEDY = f"check the URL, the name of the model and {API_KEY}; finished parts are kept"
_SEQUENCES = 8
_BYTES, _BYTES_PER_ID = 1 << 24, 1 << 10
"""How long an answer may be: a list of models, and for each id of a prompt six tokens with their
log probabilities."""
_LEAST, _ROUNDING = -1e30, 1e-6
"""Between which log probabilities are: finite as float32, and not above 0 but by rounding."""


def parse(spec: str) -> tuple[str, str]:
    """The URL and the name of the model in `openai:URL#MODEL`. Raises UserError for anything else,
    and for a URL with a password."""
    url, _, model = spec.removeprefix(PREFIX).partition("#")
    # `urlsplit` fails on brackets without an address, `port` on what is not a number.
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise UserError(
                "a user or a password in a URL",
                where=spec,
                remedy=f"give the server's key in {API_KEY}",
            )
        is_plain = parts.port != 0 and not parts.query
        if parts.scheme in ("http", "https") and parts.hostname and is_plain and model:
            return url.rstrip("/").removesuffix("/completions"), model
    where = spec.partition("?")[0]  # what follows may be a key
    raise UserError(
        "not openai:URL#MODEL",
        where=where,
        remedy="for example openai:http://localhost:8000/v1#NAME, as the server names it",
    )


def identify(plan: ModelPlan) -> str:
    """Digest of the URL and the name: what the server computes with is not known, so a change of
    its weights goes unnoticed."""
    return hashing.digest_json([PREFIX, *parse(plan.location)])


def load(plan: ModelPlan) -> ServerModel:
    """A server that is ready to score. Raises UserError where it cannot be reached, or gives no log
    probabilities of prompts."""
    model = ServerModel(plan.location, plan.vocab_size)
    console.note(f"{plan.location}: ranks from {TOP - 1} on are unknown, and recorded as -1")
    return model


class ServerModel:
    """A server's model as a `ScoringModel`. Raises UserError as `load` does."""

    prefix: tuple[int, ...] = ()

    def __init__(self, spec: str, vocab_size: int) -> None:
        """`vocab_size`: that of the tokenizer in use; the server refuses ids that it does not
        have."""
        self.name = spec
        self.vocab_size = vocab_size
        url, self._model = parse(spec)
        self._server = JsonServer(url, spec, _REMEDY, has_key=True)
        self._new_tokens = 0
        try:
            self._score([[0, 0]])
        except RefusedError:
            self._new_tokens = 1  # some servers refuse to generate nothing
            self._score([[0, 0]])
        longest = self._longest()
        self.max_length = None if longest is None else longest - 1 - self._new_tokens

    def batch_tokens(self, seq_len: int) -> int:
        """See `ScoringModel.batch_tokens`: a few sequences in each request, which the server
        batches."""
        return _SEQUENCES * seq_len

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        """See `ScoringModel.score`. Raises UserError for what the server answers, after several
        tries where it may pass.

        `rank` is -1 from `TOP` - 1 on; so is `argmax` where the server gives no ids of tokens and
        another one is first.
        """
        return score_behind(self.prefix, self._score_ids, ids, offsets)

    def _score_ids(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        sequences = [ids[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]
        wanted = [sequence for sequence in sequences if len(sequence) > 1]
        scores = self._score(wanted) if wanted else []
        rows = list(itertools.chain(*scores))
        nll, argmax, rank = zip(*rows, strict=True) if rows else ((), (), ())
        return TokenScores(
            np.array(nll, np.float32),
            np.array(argmax, np.int32),
            np.array(rank, np.int32),
        )

    def _score(self, sequences: Sequence[list[int]]) -> list[list[tuple[float, int, int]]]:
        """For each sequence the NLL (nats), argmax and rank of every id but the first."""
        options = {
            "echo": True,
            "logprobs": TOP,
            "max_tokens": self._new_tokens,
            "temperature": 0,
            "return_tokens_as_token_ids": True,
        }
        answer = self._server.ask(
            "completions",
            {"model": self._model, "prompt": sequences, **options},
            _BYTES + _BYTES_PER_ID * sum(map(len, sequences)),
        )
        try:
            return _read(answer, sequences, self._new_tokens)
        except ValueError as error:
            raise self._server.refusal(str(error)) from error

    def _longest(self) -> int | None:
        """The context of the model, where the server tells it (vLLM's `max_model_len`)."""
        try:
            listed = self._server.ask("models", None, _BYTES).get("data")
        except UserError:
            return None
        models = listed if isinstance(listed, list) else []
        entries = [entry for entry in models if isinstance(entry, dict)]
        length = next(
            (entry.get("max_model_len") for entry in entries if entry.get("id") == self._model),
            None,
        )
        return length if type(length) is int and length > 1 + self._new_tokens else None


def _read(
    answer: Mapping[str, Any],
    sequences: Sequence[list[int]],
    more: int,
) -> list[list[tuple[float, int, int]]]:
    """For each sequence the NLL (nats), argmax and rank of every id but the first; `more` ids after
    each are generated.

    Everything in an answer is checked here. Raises ValueError for what is not the log probabilities
    of these ids.
    """
    choices = answer.get("choices")
    answers = choices if isinstance(choices, list) else []
    if len(answers) != len(sequences) or not all(isinstance(choice, dict) for choice in answers):
        raise ValueError(f"it answers {len(answers)} of {len(sequences)} prompts")
    places = [choice.get("index", place) for place, choice in enumerate(answers)]
    numbers = list(range(len(sequences)))
    if any(type(place) is not int for place in places) or sorted(places) != numbers:
        raise ValueError("its answers do not have the numbers of the prompts (index)")
    in_order = [answers[places.index(place)] for place in numbers]
    pairs = zip(in_order, sequences, strict=True)
    return [_read_choice(choice.get("logprobs"), ids, more) for choice, ids in pairs]


def _read_choice(answer: Any, ids: list[int], more: int) -> list[tuple[float, int, int]]:
    entries = answer if isinstance(answer, dict) else {}
    names = ("token_logprobs", "top_logprobs", "tokens")
    lists: list[Any] = [entries.get(name) for name in names]
    if not all(isinstance(values, list) for values in lists):
        raise ValueError("it gives no log probabilities of the prompt (echo and logprobs)")
    own, top, tokens = lists
    size = len(ids)
    if {len(own), len(top), len(tokens)} != {size + more}:
        lengths = f"it gives the log probabilities of {len(own):,} tokens"
        raise ValueError(f"{lengths}, but {size + more:,} were requested")
    if own[0] is not None:
        reason = "so it may have put another before it"
        raise ValueError(f"it gives a probability for the first token of a prompt, {reason}")
    alternatives = [{} if entry is None else entry for entry in top[1:size]]
    if not all(isinstance(entry, dict) for entry in alternatives):
        raise ValueError("its most likely tokens (top_logprobs) are not objects")
    for value in itertools.chain(own[1:size], *(entry.values() for entry in alternatives)):
        if type(value) not in (int, float) or not _LEAST <= value <= _ROUNDING:
            shown = value if isinstance(value, int | float) else type(value).__name__
            raise ValueError(f"{shown} is not a log probability")
    if not _are_written(ids, tokens[:size]):
        raise ValueError("its tokens are not those of the prompt")
    rows = []
    for i in range(1, size):
        argmax, rank = _first_and_rank(ids[i], own[i], tokens[i], alternatives[i - 1])
        rows.append((-min(own[i], 0.0), argmax, rank))
    return rows


def _are_written(ids: list[int], tokens: list[Any]) -> bool:
    """Whether `tokens` can be how a server writes `ids`: as the same ids, or as texts, which are
    mostly the same where an id comes again.

    Not always: the bytes of one character, and the first token of a text, may be written in several
    ways.
    """
    if not all(isinstance(token, str) for token in tokens):
        return False
    if not all(_id(token) in (-1, number) for number, token in zip(ids, tokens, strict=True)):
        return False
    texts: dict[int, str] = {}
    pairs = zip(ids[1:], tokens[1:], strict=True)
    others = sum(texts.setdefault(number, token) != token for number, token in pairs)
    return bool(2 * others <= len(ids) - 1 - len(texts))


def _first_and_rank(token: int, own: float, text: str, top: Mapping[str, float]) -> tuple[int, int]:
    """The argmax and the rank of a token with log probability `own`; -1 for what its most likely
    alternatives do not show.

    `text` is how the server writes the token, `token_id:5` or its text; `top` has the most likely
    ones written in this way.
    """
    others = {name: value for name, value in top.items() if name != text}
    if not others:
        return -1, -1
    larger = sum(value > own for value in others.values())
    # A server may list the token itself beside the first ones: only one that is not above it shows
    # that all that are above it are listed.
    is_known = larger < len(others)
    best = max([own, *others.values()])
    first = [_id(name) for name, value in others.items() if value == best]
    first += [token] if own == best else []
    argmax = min((number for number in first if number >= 0), default=-1)
    return argmax, larger if is_known else -1


def _id(name: str) -> int:
    """The id in `token_id:5`; -1 where a server writes the text of a token."""
    number = name.removeprefix("token_id:")
    return int(number) if number != name and number.isdecimal() else -1
