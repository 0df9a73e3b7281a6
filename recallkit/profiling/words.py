"""Content words: lists of stop words, the texts of ids, and which ids are part of content bigrams.

Content bigrams consist of tokens that are not stop words, and have a letter or digit.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recallkit.declarations import path
from recallkit.errors import UserError
from recallkit.storage.given_files import read_file

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from recallkit.text.tokenizers import TextTokenizer

OURS, NLTK, NONE = "ours", "nltk", "none"
"""Lists of stop words: data/stop_words.txt, nltk's English ones, none. Other names are files'."""


def stop_words(name: str) -> list[str]:
    """Words in lower case, sorted, of a list of this name or of a file.

    Such a file has a word per line in UTF-8 (`#` begins a comment line). Raises UserError if it
    does not exist.
    """
    if name == NONE:
        return []
    if name == NLTK:
        words = _nltk_words()
    elif name == OURS:
        words = _words_of(Path(str(files("recallkit") / "data" / "stop_words.txt")))
    else:
        words = _words_of(path(name))
    return sorted({word.strip().lower() for word in words} - {""})


def _words_of(file: Path) -> list[str]:
    remedy = "give ours, nltk, none, or a file with one word per line"
    if not file.is_file():
        raise UserError("no such list of stop words", where=file, remedy=remedy)
    try:
        lines = read_file(file).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError("not text in UTF-8", where=file, remedy=remedy) from error
    return [line for line in lines if not line.startswith("#")]


def _nltk_words() -> list[str]:
    try:
        from nltk.corpus import stopwords  # type: ignore[import-untyped]

        return list(stopwords.words("english"))
    except (ImportError, LookupError, OSError) as error:
        problem = "nltk's list of stop words is not there"
        remedy = "python -m nltk.downloader stopwords, or leave --stop-words out"
        raise UserError(problem, where="--stop-words nltk", remedy=remedy) from error


def token_mask(tokenizer: TextTokenizer, words: Collection[str]) -> np.ndarray:
    """Which ids of a vocabulary can be part of a content bigram, by its text, bool (vocab,).

    `words`: stop words.
    """
    tokens = tokenizer.backend.get_added_tokens_decoder().items()
    special = {index for index, token in tokens if token.special}
    return content_mask(token_texts(tokenizer), words, {*special, tokenizer.end_token_id})


def content_mask(
    texts: Sequence[str],
    stop_words: Collection[str],
    dropped: Collection[int] = (),
) -> np.ndarray:
    """The same of ids with these texts.

    Excluded are ids whose text, stripped and in lower case, is in `stop_words` (in lower case) or
    contains no letter or digit, such as bytes that are not a character, and the ids in `dropped`
    (end tokens and other special ones).
    """
    stopped = frozenset(stop_words)
    mask = np.zeros(len(texts), bool)
    for index, text in enumerate(texts):
        word = text.strip().lower()
        mask[index] = word not in stopped and any(map(str.isalnum, word))
    mask[list(dropped)] = False
    return mask


def token_texts(tokenizer: TextTokenizer) -> list[str]:
    """The text of every id by itself; bytes that are not a character become U+FFFD."""
    pieces = tokenizer.token_bytes
    if pieces is None:
        ids = [[index] for index in range(tokenizer.vocab_size)]
        return list(tokenizer.backend.decode_batch(ids, skip_special_tokens=False))
    texts = [piece.decode("utf-8", "replace") for piece in pieces]
    return texts + [""] * (tokenizer.vocab_size - len(pieces))
