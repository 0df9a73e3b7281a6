"""Which tokens content bigrams consist of: those that are not stop words, and have a letter or digit."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recallkit.errors import UserError
from recallkit.storage.given_files import read_file

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from recallkit.text.tokenizers import TextTokenizer

OURS, NLTK, NONE = "ours", "nltk", "none"
"""Names of lists of stop words: data/stop_words.txt, nltk's English ones, the empty one. Any other name is a file's."""


def stop_words(name: str) -> list[str]:
    """Words in lower case, sorted: of a list of this name, or of a file of one word per line in UTF-8 (`#` begins a comment line).

    Raises UserError if it does not exist.
    """
    if name == NONE:
        return []
    if name == NLTK:
        words = _nltk_words()
    else:
        words = _words_of(Path(str(files("recallkit") / "data" / "stop_words.txt")) if name == OURS else Path(name))
    return sorted({word.strip().lower() for word in words} - {""})


def _words_of(path: Path) -> list[str]:
    remedy = "give ours, nltk, none, or a file with one word per line"
    if not path.is_file():
        raise UserError("no such list of stop words", where=path, remedy=remedy)
    try:
        return [line for line in read_file(path).decode("utf-8-sig").splitlines() if not line.startswith("#")]
    except UnicodeDecodeError as error:
        raise UserError("not text in UTF-8", where=path, remedy=remedy) from error


def _nltk_words() -> list[str]:
    try:
        from nltk.corpus import stopwords  # type: ignore[import-untyped]

        return list(stopwords.words("english"))
    except (ImportError, LookupError, OSError) as error:
        remedy = "python -m nltk.downloader stopwords, or leave --stop-words out"
        raise UserError("nltk's list of stop words is not there", where="--stop-words nltk", remedy=remedy) from error


def token_mask(tokenizer: TextTokenizer, words: Collection[str]) -> np.ndarray:
    """Which ids of a vocabulary can be part of a content bigram, by the tokenizer's own text of each: bool (vocab,)."""
    special = {index for index, token in tokenizer.backend.get_added_tokens_decoder().items() if token.special}
    return content_mask(token_texts(tokenizer), words, {*special, tokenizer.end_token_id})


def content_mask(texts: Sequence[str], stop_words: Collection[str], dropped: Collection[int] = ()) -> np.ndarray:
    """The same of ids whose texts are given.

    Excluded are ids whose text, stripped and in lower case, is in `stop_words` (in lower case) or contains no letter or digit, such
    as bytes that are not a whole character, and the ids in `dropped` (end tokens and other special ones).
    """
    stopped = frozenset(stop_words)
    words = (text.strip().lower() for text in texts)
    mask = np.fromiter((word not in stopped and any(map(str.isalnum, word)) for word in words), bool, len(texts))
    mask[list(dropped)] = False
    return mask


def token_texts(tokenizer: TextTokenizer) -> list[str]:
    """The text of every id by itself; bytes that are not a whole character become U+FFFD."""
    pieces = tokenizer.token_bytes
    if pieces is None:
        ids = [[index] for index in range(tokenizer.vocab_size)]
        return list(tokenizer.backend.decode_batch(ids, skip_special_tokens=False))
    return [piece.decode("utf-8", "replace") for piece in pieces] + [""] * (tokenizer.vocab_size - len(pieces))
