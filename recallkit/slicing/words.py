"""The words of tokens, for slices that ids alone cannot tell: `words.parquet`, row by row beside `tokens.parquet`.

A word is a longest run of letters, digits, combining marks and `_`, at least one of them a letter or a digit, within one sequence and one
document. A token is of the first word that it has a byte of: " 3.14" cut into " 3", "." and "14" is of the words "3", none, and "14".
Made when a slice first needs one of its columns, block by block, so that memory does not grow with the text.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recallkit import arrow
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.ragged import offsets_of
from recallkit.storage import artifacts
from recallkit.storage.result import Result
from recallkit.storage.schemas import LAYOUTS, arrow_errors_as_user_errors, arrow_schema
from recallkit.text.sequences import group_ids, sequence_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from recallkit.slicing.definitions import Slice
    from recallkit.text.vocabulary import DocumentText

_VERSION = 1
"""Goes up when a definition changes: tables of an older one are made again."""

KINDS = ("plain", "function", "number", "identifier", "capitalised")
"""What a word is, in `word_kind`: see `kind_of_word`."""

_BLOCK_IDS = 1 << 17
"""Ids of whole sequences that are read at a time."""

_SLICE_AGAIN = "slice again with --force"
_OPENS = {ord(opening): ord(closing) for opening, closing in ("()", "[]", "{}")}


def words_path(tokens: Path) -> Path:
    """The table of words beside a `tokens.parquet`."""
    return tokens.with_name("words.parquet")


def needed_columns(slices: Sequence[Slice]) -> tuple[str, ...]:
    """The columns of the table of words that slices need, each once."""
    return tuple(dict.fromkeys(name for slice_ in slices for name in slice_.columns if name in LAYOUTS["words"]))


def words_options(tokens: Mapping[str, Any]) -> dict[str, Any]:
    """What determines the table of words; `tokens` is the manifest of `tokens.parquet`."""
    return {
        "sequences_digest": tokens["sequences_digest"],
        "tokenizer": tokens["tokenizer"]["digest"],
        "counts_id": (tokens["counts"] or {}).get("id"),
        "version": _VERSION,
    }


def make_words(slices: Path) -> dict[str, Any]:
    """Makes `words.parquet` in the directory `slices`, unless it is there; returns its manifest.

    Raises UserError if the sequences or the tokenizer are missing or other ones, or if the tokenizer's entries have no bytes of their own.
    """
    from recallkit.text.tokenizers import load_slices_tokenizer

    tokens, path = slices / "tokens.parquet", words_path(slices / "tokens.parquet")
    labels = artifacts.read_manifest(tokens)
    options = words_options(labels)
    artifacts.check_replaceable(path)
    result = Result(path, "words", options, force=artifacts.manifest_options(path, force=True) not in (None, options))
    if (finished := result.finished()) is not None:
        return finished
    if artifacts.read_manifest(slices / "sequences.parquet")["sequences_digest"] != labels["sequences_digest"]:
        raise UserError("other sequences than those that were labelled", where=slices / "sequences.parquet", remedy=_SLICE_AGAIN)
    text = load_slices_tokenizer(slices, labels["tokenizer"]).document_text
    if text is None:
        problem = f"the entries of the tokenizer {labels['tokenizer']['name']} have no bytes of their own, so that words cannot be told"
        raise UserError(problem, where=slices, remedy="leave out slices of words, or slice with another tokenizer")
    facts = {**result.stamp(), **{key: labels[key] for key in ("sequences_digest", "num_rows", "num_sequences", "seq_len")}}
    with progress("reading words", total=labels["num_rows"]) as show:

        def tables() -> Iterator[pa.Table]:
            counts, done = _TrainCounts(tokens), 0
            for group in sequence_groups(slices / "sequences.parquet"):
                table = label_words(group, text, counts.next)
                yield table
                done += table.num_rows
                show(done)

        return artifacts.write_parquet(path, tables(), arrow_schema("words"), facts, use_dictionary=["word_kind", "word_count"])


class _TrainCounts:
    """The training counts of consecutive predicted tokens."""

    def __init__(self, tokens: Path) -> None:
        import pyarrow.parquet as pq

        self._path, self._waiting = tokens, np.empty(0)
        with arrow_errors_as_user_errors(tokens, _SLICE_AGAIN):
            self._batches = pq.ParquetFile(tokens).iter_batches(columns=["train_count"])

    def next(self, number: int) -> np.ndarray:
        """Those of the next `number` tokens, float64 (number,): NaN where it is not known. Raises UserError if there are fewer."""
        parts = [self._waiting]
        while sum(map(len, parts)) < number:
            with arrow_errors_as_user_errors(self._path, _SLICE_AGAIN):
                batch = next(self._batches, None)
            if batch is None:
                raise UserError("damaged (fewer tokens than in the sequences)", where=self._path, remedy=_SLICE_AGAIN)
            parts.append(batch["train_count"].to_numpy(zero_copy_only=False).astype(np.float64))
        every = np.concatenate(parts)
        self._waiting = every[number:]
        return every[:number]


def label_words(group: pa.Table, text: DocumentText, next_counts: Callable[[int], np.ndarray]) -> pa.Table:
    """The rows of `words.parquet` of a row group of `sequences.parquet`.

    `next_counts` gives the training counts of the next n predicted tokens, float64 (n,), NaN where they are not known.
    """
    import pyarrow as pa

    ids, offsets = group_ids(group)
    blocks = []
    for first, last in pairwise(_block_bounds(offsets)):
        bounds = offsets[first : last + 1] - offsets[first]
        own = _Block(text, ids[offsets[first] : offsets[last]], bounds)
        blocks.append(own.columns(next_counts(int(bounds[-1]) - (last - first))))
    repeated, folded, count, kind, closes = (np.concatenate(columns) for columns in zip(*blocks, strict=True))
    kinds = pa.DictionaryArray.from_arrays(pa.array(np.maximum(kind, 0).astype(np.int32), mask=kind < 0), pa.array(KINDS))
    known = ~np.isnan(count)
    whole = np.where(known, count, 0).astype(np.int64)
    columns = [arrow.array(repeated), arrow.array(folded), pa.array(whole, mask=~known), kinds, arrow.array(closes)]
    return pa.Table.from_arrays(columns, schema=arrow_schema("words"))


def _block_bounds(offsets: np.ndarray) -> list[int]:
    """Numbers of sequences between which blocks end: of about _BLOCK_IDS ids each, one sequence at least."""
    bounds = np.unique(np.searchsorted(offsets, np.arange(0, int(offsets[-1]), _BLOCK_IDS), side="left"))
    return [*bounds[bounds < len(offsets) - 1].tolist(), len(offsets) - 1]


class _Runs(NamedTuple):
    """w words in order: their texts, characters [start, stop), and which begin a sentence (or what is read of it)."""

    texts: list[str]
    start: np.ndarray
    stop: np.ndarray
    begins_sentence: np.ndarray


class _Block:
    """Whole sequences, `ids[offsets[i]:offsets[i + 1]]`, and their text, character by character."""

    def __init__(self, text: DocumentText, ids: np.ndarray, offsets: np.ndarray) -> None:
        previous = np.concatenate([ids[:1], ids[:-1]])
        previous[offsets[:-1]] = ids[offsets[:-1]]
        self._offsets = offsets
        self._is_first = np.zeros(len(ids), bool)
        self._is_first[offsets[:-1]] = True
        self._token_bytes = offsets_of(text.lengths(ids, previous))
        joined = text.join(ids, previous)
        edges = self._token_bytes[offsets]
        # A byte that is no part of a whole character becomes a character of its own, a surrogate.
        parts = [joined[start:stop].decode("utf-8", "surrogateescape") for start, stop in pairwise(edges.tolist())]
        self._text = "".join(parts)
        points = np.frombuffer(self._text.encode("utf-32-le", "surrogatepass"), np.uint32)
        self._points = points
        self._char_bytes = offsets_of(_utf8_lengths(points))
        self._sequence = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        breaks = self._token_bytes[:-1][self._is_first | text.is_end(previous)]
        self._is_break = np.zeros(len(points) + 1, bool)
        self._is_break[np.searchsorted(self._char_bytes, breaks)] = True
        self._classes = _CLASSES.of(points)

    def columns(self, train_counts: np.ndarray) -> tuple[np.ndarray, ...]:
        """The columns of `words.parquet`, each (n,) of the n predicted tokens, whose bigrams' training counts are given, float64 (n,).

        Of tokens of no word the count is NaN, the kind -1.
        """
        words = self._words()
        told = [_describe(text) for text in words.texts]
        kinds = np.array([kind for _, kind in told], np.int8)
        kinds[(kinds == KINDS.index("capitalised")) & words.begins_sentence] = KINDS.index("plain")
        repeated, folded = self._occurred(words, words.texts), self._occurred(words, [form for form, _ in told])
        word, in_word = self._word_of_token(words)
        counts = self._word_counts(word, in_word, train_counts, len(words.texts))
        closes = self._closes_bracket()
        if not words.texts:
            nothing = np.zeros(len(train_counts), bool)
            return nothing, nothing, np.full(len(nothing), np.nan), np.full(len(nothing), -1, np.int8), closes[~self._is_first]
        kept = ~self._is_first
        word, in_word = word[kept], in_word[kept]
        kind = np.where(in_word, kinds[word], np.int8(-1))
        return repeated[word] & in_word, folded[word] & in_word, np.where(in_word, counts[word], np.nan), kind, closes[kept]

    def _words(self) -> _Runs:
        is_word, is_break = (self._classes & _WORD) > 0, self._is_break
        joins = np.zeros(len(is_word) + 1, bool)  # of a character with the one before it
        joins[1:-1] = is_word[1:] & is_word[:-1] & ~is_break[1:-1]
        start, stop = np.flatnonzero(is_word & ~joins[:-1]), np.flatnonzero(is_word & ~joins[1:]) + 1
        solid = offsets_of((self._classes & _SOLID) > 0)
        kept = solid[stop] > solid[start]
        start, stop = start[kept], stop[kept]
        ended = offsets_of(((self._classes & _ENDS_SENTENCE) > 0) | is_break[:-1])
        before = np.concatenate([[0], stop[:-1]])
        # A break lies before the character that it is marked at.
        begins = (ended[start] > ended[before]) | is_break[start]
        texts = [self._text[first:last] for first, last in zip(start.tolist(), stop.tolist(), strict=True)]
        return _Runs(texts, start, stop, begins)

    def _occurred(self, words: _Runs, forms: Sequence[str]) -> np.ndarray:
        """Which words have a form that an earlier word of their sequence has, bool (w,)."""
        numbers: dict[str, int] = {}
        number = np.fromiter((numbers.setdefault(form, len(numbers)) for form in forms), np.int64, len(forms))
        _, first = np.unique(self._sequence[words.start] * max(1, len(numbers)) + number, return_index=True)
        found = np.ones(len(forms), bool)
        found[first] = False
        return found

    def _word_of_token(self, words: _Runs) -> tuple[np.ndarray, np.ndarray]:
        """For every id, the first word that it has a byte of, int64, and whether there is one."""
        if not words.texts:
            return np.zeros(len(self._is_first), np.int64), np.zeros(len(self._is_first), bool)
        first, last = self._char_bytes[words.start], self._char_bytes[words.stop]
        begin, end = self._token_bytes[:-1], self._token_bytes[1:]
        word = np.searchsorted(last, begin, side="right")
        there = np.minimum(word, len(last) - 1)
        return there, (word < len(last)) & (first[there] < end) & (end > begin)

    def _word_counts(self, word: np.ndarray, in_word: np.ndarray, train_counts: np.ndarray, num_words: int) -> np.ndarray:
        """The smallest training count of the bigrams inside each word, float64 (w,): NaN of a word of one token."""
        every = np.full(len(word), np.nan)
        every[~self._is_first] = train_counts
        inside = in_word & np.concatenate([[False], in_word[:-1] & (word[1:] == word[:-1])]) & ~self._is_first
        counts = np.full(num_words, np.nan)
        np.fmin.at(counts, word[inside], every[inside])
        return counts

    def _closes_bracket(self) -> np.ndarray:
        """Which ids close a bracket that an earlier one of the sequence and document opened, bool.

        A closing bracket closes the latest open one of its shape; those opened after it stay open no longer. Without one it is ignored.
        """
        found = np.zeros(len(self._is_first), bool)
        places = np.flatnonzero((self._classes & _BRACKET) > 0)
        token = np.searchsorted(self._token_bytes, self._char_bytes[places], side="right") - 1
        stretch = np.cumsum(self._is_break)[places]
        stack: list[tuple[int, int]] = []
        last = -1
        for point, own, part in zip(self._points[places].tolist(), token.tolist(), stretch.tolist(), strict=True):
            if part != last:
                stack, last = [], part
            if point in _OPENS:
                stack.append((_OPENS[point], own))
                continue
            depth = next((depth for depth in range(len(stack) - 1, -1, -1) if stack[depth][0] == point), None)
            if depth is not None:
                found[own] |= stack[depth][1] < own
                del stack[depth:]
        return found


# ------------------------------------------------------------------------------------------------------------ characters

_WORD, _SOLID, _ENDS_SENTENCE, _BRACKET, _KNOWN = (np.uint8(1 << bit) for bit in range(5))
_SENTENCE_ENDS = frozenset(".!?…。！？\n\r\u2028\u2029")
_BRACKETS = frozenset("()[]{}")


class _Classes:
    """The classes of characters, found out as they occur."""

    def __init__(self) -> None:
        self._table = np.zeros(0x110000, np.uint8)

    def of(self, points: np.ndarray) -> np.ndarray:
        """The class of each code point (n,), uint8 (n,) of bits."""
        found: np.ndarray = self._table[points]
        if not found.all():
            for point in np.unique(points[found == 0]).tolist():
                self._table[point] = _class_of(chr(point))
            found = self._table[points]
        return found


def _class_of(character: str) -> np.uint8:
    category = unicodedata.category(character)
    found = _KNOWN
    if category[0] in "LN":
        found |= _WORD | _SOLID
    if category[0] == "M" or character == "_":
        found |= _WORD
    if character in _SENTENCE_ENDS:
        found |= _ENDS_SENTENCE
    return found | _BRACKET if character in _BRACKETS else found


_CLASSES = _Classes()


def _utf8_lengths(points: np.ndarray) -> np.ndarray:
    """Bytes of each code point (n,), int64 (n,); 1 of a surrogate, which stands for a byte."""
    lengths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    lengths[(points >= 0xD800) & (points < 0xE000)] = 1
    return lengths


# ----------------------------------------------------------------------------------------------------------------- words


_NUMBER = re.compile(r"\d+[^\W\d_]{0,2}")


@lru_cache(maxsize=1 << 18)
def _describe(word: str) -> tuple[str, int]:
    return fold_word(word), KINDS.index(kind_of_word(word))


def fold_word(word: str) -> str:
    """The word without case, and, if it is of English letters alone, its stem by Snowball's English stemmer (Porter 2)."""
    folded = word.casefold()
    return str(_stemmer().stemWord(folded)) if folded.isascii() and folded.isalpha() else folded


def kind_of_word(word: str) -> str:
    """What a word is, one of KINDS, by its own letters; a capitalised word that begins a sentence is plain, which they do not tell.

    function: in the list of stop words (or a piece of a contraction, such as the `t` of `don't`), in lower case or with a capital first
    letter. number: digits, and at most two letters after them: 1984, 3rd, 10km, 1990s. identifier: `_` within, a digit among letters, or a
    capital after a small letter: snake_case, utf8, 0xff, 3a7bd3, camelCase. capitalised: any other that begins with a capital.
    """
    if word in _stop_words() or word[:1].lower() + word[1:] in _stop_words():
        return "function"
    inner = word.strip("_")
    if _NUMBER.fullmatch(inner):
        return "number"
    has_digit, has_letter = any(map(str.isdecimal, inner)), any(map(str.isalpha, inner))
    if "_" in inner or (has_digit and has_letter) or any(a.islower() and b.isupper() for a, b in pairwise(inner)):
        return "identifier"
    return "capitalised" if inner[:1].isupper() or inner[:1].istitle() else "plain"


@lru_cache(maxsize=1)
def _stop_words() -> frozenset[str]:
    lines = (files("recallkit") / "data" / "stop_words.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line.strip().lstrip("'’") for line in lines if not line.startswith("#"))


@lru_cache(maxsize=1)
def _stemmer() -> Any:
    import snowballstemmer  # type: ignore[import-untyped]

    return snowballstemmer.stemmer("english")
