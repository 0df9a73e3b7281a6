"""Special tokens as files name them: what ends documents and what a model reads before a text.

Nothing is guessed from a token that is ordinary text, nor from one that ends a turn of a chat: such
a token was put between the turns of conversations, while a base model's documents ended with
another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.storage.given_files import read_file

if TYPE_CHECKING:
    import tokenizers

END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<eos>",
    "</s>",
    "<｜end▁of▁sentence｜>",
    "<EOS_TOKEN>",
)
"""Special tokens that end documents, where no configuration names one; the first that is there."""

_ENDS_A_TURN = re.compile(
    r"end_?of_?(turn|utterance|assistant|message|role)|(assistant|message|role)_end|im_end"
    r"|<turn\|>|<\|eo[tm]|<\|(end|return|call|user|observation)\|>",
    re.IGNORECASE,
)
_ENDS_NOTHING = re.compile(r"bos|begin|start|pad|unk|mask|<s>", re.IGNORECASE)
"""Special tokens of other uses: an id of config.json may be a mere default of its class."""

_OF_GEMMA = re.compile(r"(recurrent_|vault)?gemma")
"""Beginnings of the `model_type` of models that were all trained with `<bos>` before every text."""

BEGIN_OF_GEMMA = "<bos>"

_OF_LLAMA_3 = "<|begin_of_text|>"
"""Llama's from 3 on; the first release of its tokenizer had no template yet."""

_ADDING_CLASSES = re.compile(r"(Llama|CodeLlama|Gemma|Cohere)Tokenizer(Fast)?")
"""Tokenizers of transformers that add it unless `add_bos_token` says otherwise."""

TOKENIZER_CONFIG = "tokenizer_config.json"
_FILES = ("special_tokens_map.json", TOKENIZER_CONFIG, "config.json")

Files = Callable[[str], Path | None]
"""The file of a name beside a tokenizer, None where there is none."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The special tokens that the files beside a tokenizer name.

    `ends`: (token or id, file that names it), the first counts. `adds_begin`: `add_bos_token`, None
    where that is not said. `pad`: what rows are filled up with.
    """

    begin: str | None = None
    adds_begin: bool | None = None
    ends: tuple[tuple[str | int, str], ...] = ()
    tokenizer_class: str = ""
    model_type: str = ""
    pad: str | None = None


NOTHING_SAID = Configuration()


@dataclass(frozen=True, slots=True)
class Prefix:
    """The ids that a model reads before every text, as context; `token` and `reason` are for
    people."""

    ids: tuple[int, ...] = ()
    token: str = ""
    reason: str = ""

    def describe(self) -> dict[str, Any]:
        """What a manifest records."""
        return {"ids": list(self.ids), "token": self.token, "reason": self.reason}


NO_PREFIX = Prefix()


def files_in(folder: Path) -> Files:
    """The files of a folder."""
    return lambda name: folder / name


def read_configuration(file_of: Files) -> Configuration:
    """What the tokenizer's configuration, the older `special_tokens_map.json` and the model's say.

    Raises UserError for one that is there and cannot be read: it may say what a model reads first.
    """
    older, tokenizer, model = (_object_in(file_of(name)) for name in _FILES)
    tokenizer = {**older, **tokenizer}
    ends: list[tuple[str | int, str]] = []
    if (end := _content(tokenizer.get("eos_token"))) is not None:
        ends.append((end, TOKENIZER_CONFIG))
    for part in (model, model.get("text_config")):
        value = part.get("eos_token_id") if isinstance(part, dict) else None
        ids = value if isinstance(value, list) else [value]
        numbers = (number for number in ids if type(number) is int)
        ends += [(number, _FILES[2]) for number in numbers if 0 <= number < 1 << 31]
    adds = tokenizer.get("add_bos_token")
    if adds is not None and not isinstance(adds, bool):
        problem = f"its add_bos_token is {adds!r}, neither true nor false"
        raise UserError(problem, where=file_of(TOKENIZER_CONFIG), remedy="write true or false")
    return Configuration(
        _content(tokenizer.get("bos_token")),
        # Some configurations of xLSTM alone say so of the model.
        adds if isinstance(adds, bool) else model.get("force_bos_token_insert") is True or None,
        tuple(ends),
        str(tokenizer.get("tokenizer_class")),
        str(model.get("model_type")),
        _content(tokenizer.get("pad_token")),
    )


def _object_in(file: Path | None) -> dict[str, Any]:
    """The object in a file of JSON; an empty one where there is no file."""
    if file is None or not file.exists():
        return {}
    try:
        value = json.loads(read_file(file))
    except (OSError, ValueError, RecursionError) as error:
        problem = f"cannot be read ({error})"
        raise UserError(
            problem,
            where=file,
            remedy="copy it again: it is truncated or damaged",
        ) from error
    if not isinstance(value, dict):
        raise UserError("not a JSON object", where=file, remedy="copy it again")
    return value


def _content(token: Any) -> str | None:
    """A token of a configuration: a string, or an object with its content."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


# --------------------------------------------------------------------------------- end of documents


def find_end(
    backend: tokenizers.Tokenizer,
    configuration: Configuration,
    name: str,
    chosen: str | None,
) -> tuple[str, str]:
    """The token that ends documents, and why: as chosen, as configured, or one of `END_TOKENS`.

    Raises UserError where a chosen token is not in the vocabulary, and where none is known.
    """
    if chosen is not None:
        if backend.token_to_id(chosen) is None:
            problem = f"no token {chosen!r} in this vocabulary"
            raise UserError(problem, where=name, remedy="give another --end-token")
        return chosen, "as --end-token says"
    added = backend.get_added_tokens_decoder().values()
    special = {entry.content for entry in added if entry.special}
    turn = None
    for value, file in configuration.ends:
        token = backend.id_to_token(value) if isinstance(value, int) else value
        if token is None or backend.token_to_id(token) is None:
            continue
        if isinstance(value, int) and (token not in special or _ENDS_NOTHING.search(token)):
            continue
        if not _ENDS_A_TURN.search(token):
            return token, f"as its {file} says"
        turn = token
    known = next((entry for entry in END_TOKENS if entry in special), None)
    if known is not None:
        return known, "its special token for that"
    remedy = "name the one that separates documents with --end-token"
    if turn is not None:
        raise UserError(
            f"its end token {turn} ends a turn of a chat, not a document",
            where=name,
            remedy=remedy,
        )
    raise UserError("no end token found in this vocabulary", where=name, remedy=remedy)


def ends_text(token: str) -> bool:
    """Whether a special token ends a document or a turn of a chat: generation stops there."""
    return token in END_TOKENS or _ENDS_A_TURN.search(token) is not None


# ------------------------------------------------------------------------------- beginning of texts


def find_prefix(
    backend: tokenizers.Tokenizer,
    configuration: Configuration,
    name: str,
    template: tuple[int, ...],
) -> Prefix:
    """What a model reads before a text: what the `template` puts there, else the configured token.

    The configured one counts where the configuration, or the model's family, says that it is added.
    Raises UserError where it is not in the vocabulary then.
    """
    if template:
        tokens = " ".join(str(backend.id_to_token(number)) for number in template)
        return Prefix(template, tokens, "its tokenizer's template begins texts with it")
    token = configuration.begin
    reason = None if token is None else _why_added(token, configuration)
    if token is None or reason is None:
        return NO_PREFIX
    number = backend.token_to_id(token)
    if number is None:
        problem = f"its bos_token {token!r} is not in its vocabulary, and {reason}"
        raise UserError(problem, where=name, remedy="correct its tokenizer_config.json")
    return Prefix((number,), token, reason)


def _why_added(token: str, configuration: Configuration) -> str | None:
    """Why a model reads its beginning-of-text token; None where nothing says that it does."""
    if _OF_GEMMA.match(configuration.model_type):
        return "Gemma's models are trained with it"
    if configuration.adds_begin is not None:
        return "its configuration adds it" if configuration.adds_begin else None
    if _ADDING_CLASSES.fullmatch(configuration.tokenizer_class):
        return f"tokenizers of its class, {configuration.tokenizer_class}, add it"
    return "Llama's models from 3 on are trained with it" if token == _OF_LLAMA_3 else None
