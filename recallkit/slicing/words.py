"""The words of tokens, for slices that ids alone cannot define: `words.parquet`, row by row beside
`tokens.parquet`.

A word is a longest run of letters, digits, combining marks and `_`, at least one of them a letter
or a digit, within one sequence and one document. A token is of the first word that it has a byte
of: " 3.14" cut into " 3", "." and "14" is of the words "3", none, and "14". Made when a slice first
needs one of its columns, one row group of sequences after the other, so that memory does not grow
with the text.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from bisect import bisect_right
from functools import cache, lru_cache
from importlib.resources import files
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.storage import artifacts, parquet_files, records
from recallkit.storage.result import Result
from recallkit.storage.schemas import LAYOUTS, arrow_schema
from recallkit.text.sequences import group_ids, sequence_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from recallkit.slicing.definitions import Slice
    from recallkit.text.vocabulary import DocumentText

_VERSION = 2
"""Goes up when a definition changes: tables of an older one are made again."""

KINDS = ("plain", "function", "number", "identifier", "capitalised")
"""What a word is, in `word_kind`: see `kind_of_word`."""

_SLICE_AGAIN = "slice again with --force"
_OPENERS = {
    ")": "(",
    "]": "[",
    "}": "{",
    "”": "“„",
    "“": "„",
    "’": "‘‚",
    "‘": "‚",
    "»": "«",
    "›": "‹",
    "」": "「",
    "』": "『",
    '"': '"',
    "'": "'",
}
"""The marks that each mark can close; “ closes „ and opens otherwise."""
_BRACKETS = re.compile(r"(?P<opens>[(\[{])|(?P<closes>[)\]}])")
# Behind a mark, `(?<!\w.)` is whether no letter or digit is before it. In `don't` the mark neither
# opens nor closes.
_QUOTES = re.compile(
    r"""["'“”„‘’‚«»‹›「」『』]"""
    r"""(?P<opens>(?<=[“„‘‚«‹「『])|(?<=["'])(?<!\w.)(?!\s))?"""
    r"""(?P<closes>(?<=[“”»›」』])|(?<=[‘’])(?!\w)|(?<=["'])(?<!\s.)(?!\w))?"""
)


# ---------------------------------------------------------------------------------------- the table


def words_path(tokens: Path) -> Path:
    """The table of words beside a `tokens.parquet`."""
    return tokens.with_name("words.parquet")


def needed_columns(slices: Sequence[Slice]) -> tuple[str, ...]:
    """The columns of the table of words that slices need, each once."""
    columns = itertools.chain.from_iterable(slice_.columns for slice_ in slices)
    return tuple(dict.fromkeys(name for name in columns if name in LAYOUTS["words"]))


def words_options(tokens: Mapping[str, Any]) -> dict[str, Any]:
    """What determines the table of words; `tokens` is the manifest of `tokens.parquet`."""
    return {
        "sequences_digest": tokens["sequences_digest"],
        "tokenizer": tokens["tokenizer"]["digest"],
        "counts_id": (tokens["counts"] or {}).get("id"),
        "version": _VERSION,
    }


def make_needed_words(slices: Path, requested: Sequence[Slice]) -> list[Path]:
    """The table of words of the directory `slices`, made where it is missing and these slices need
    it; none where they do not. Raises UserError as `make_words` does."""
    if not needed_columns(requested):
        return []
    make_words(slices)
    return [words_path(slices / "tokens.parquet")]


def make_words(slices: Path) -> dict[str, Any]:
    """Makes `words.parquet` in the directory `slices`, unless it is there; returns its manifest.

    Raises UserError if the sequences or the tokenizer are missing or other ones, or if the
    tokenizer's entries have no bytes.
    """
    from recallkit.text.tokenizers import load_slices_tokenizer

    tokens, path = slices / "tokens.parquet", words_path(slices / "tokens.parquet")
    labels = parquet_files.read_manifest(tokens, records.Tokens)
    options = words_options(labels)
    artifacts.check_replaceable(path)
    is_other = parquet_files.manifest_options(path, force=True) not in (None, options)
    result = Result(path, "words", options, force=is_other)
    if (finished := result.finished()) is not None:
        return finished
    sequences = slices / "sequences.parquet"
    labelled = parquet_files.read_manifest(sequences, records.Sequences)["sequences_digest"]
    if labelled != labels["sequences_digest"]:
        problem = "other sequences than those that were labelled"
        raise UserError(problem, where=sequences, remedy=_SLICE_AGAIN)
    text = load_slices_tokenizer(slices, labels["tokenizer"]).document_text
    if text is None:
        entries = f"the entries of the tokenizer {labels['tokenizer']['name']}"
        problem = f"{entries} are not bytes of the text, so its words are unknown"
        remedy = "leave out slices of words, or slice with another tokenizer"
        raise UserError(problem, where=slices, remedy=remedy)
    names = ("sequences_digest", "num_rows", "num_sequences", "seq_len")
    facts = result.stamp() | records.some(labels, names)
    with progress("reading words", total=labels["num_rows"]) as show:

        def tables() -> Iterator[pa.Table]:
            counts, done = _train_counts(tokens), 0
            for group in sequence_groups(sequences):
                table = label_words(group, text, lambda: next(counts, None))
                yield table
                done += table.num_rows
                show(done)

        schema, texts = arrow_schema("words"), ["word_kind", "word_count"]
        return parquet_files.write_parquet(path, tables(), schema, facts, use_dictionary=texts)


def _train_counts(tokens: Path) -> Iterator[int | None]:
    """The training count of each predicted token in turn; None where it is not known."""
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(tokens, pre_buffer=False).iter_batches(columns=["train_count"]):
        yield from batch["train_count"].to_pylist()


def label_words(
    group: pa.Table,
    text: DocumentText,
    next_count: Callable[[], int | None],
) -> pa.Table:
    """The rows of `words.parquet` of a row group of `sequences.parquet`.

    `next_count` gives the training count of the next predicted token, None where it is not known.
    """
    import pyarrow as pa

    ids, offsets = group_ids(group)
    rows: list[tuple[Any, ...]] = []
    for start, stop in pairwise(offsets.tolist()):
        of_sequence = ids[start:stop]
        before = np.concatenate([of_sequence[:1], of_sequence[:-1]])
        lengths, is_end = (
            text.lengths(of_sequence, before).tolist(),
            text.is_end(of_sequence).tolist(),
        )
        counts = [None, *(next_count() for _ in range(len(of_sequence) - 1))]
        rows += label_sequence(text.join(of_sequence, before), lengths, is_end, counts)[1:]
    schema = arrow_schema("words")
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )


# ------------------------------------------------------------------------------------- one sequence


class Word(NamedTuple):
    """A word: bytes [start, stop) of a sequence's text, itself, whether it begins a sentence."""

    start: int
    stop: int
    text: str
    begins_sentence: bool


def label_sequence(
    joined: bytes,
    lengths: Sequence[int],
    is_end: Sequence[bool],
    counts: Sequence[int | None],
) -> list[tuple[Any, ...]]:
    """The columns of `words.parquet` of each id of a sequence, of which the first one is not
    predicted.

    `joined`: the text of all ids; `lengths`: the bytes of each one in it; `is_end`: which are end
    tokens, before a new document;
    `counts`: the training count of each id's bigram, None where it is not known.
    """
    # Where each id's bytes begin, and where the last one's end.
    begins = list(accumulate(lengths, initial=0))
    # Ids between which documents end.
    edges = [0, *(place + 1 for place, end in enumerate(is_end) if end), len(lengths)]
    words: list[Word] = []
    brackets, quotes = _Pairs(begins), _Pairs(begins)
    for first, last in pairwise(edges):
        text = joined[begins[first] : begins[last]].decode("utf-8", "surrogateescape")
        bounds = _byte_bounds(text, begins[first])
        words += find_words(text, bounds)
        brackets.add(find_pairs(text, _BRACKETS), bounds)
        quotes.add(find_pairs(text, _QUOTES), bounds)
    numbers = _word_of_id(begins, words)
    labels = _word_labels(words, _smallest_counts(numbers, counts))
    none = (False, False, None, None)
    of_words = [none if number is None else labels[number] for number in numbers]
    flags = zip(brackets.opens, brackets.closes, quotes.opens, quotes.closes, strict=True)
    return [(*word, *marks) for word, marks in zip(of_words, flags, strict=True)]


class _Pairs:
    """Which ids of a sequence open a pair of marks that a later one closes, and which close one."""

    def __init__(self, begins: Sequence[int]) -> None:
        """`begins`: where the bytes of ids begin, and where the last one's end."""
        self._begins = begins
        self.opens, self.closes = [False] * (len(begins) - 1), [False] * (len(begins) - 1)

    def add(self, pairs: Iterable[tuple[int, int | None]], bounds: Sequence[int]) -> None:
        """Adds the pairs of a document, whose characters begin at these bytes."""
        num_ids = len(self.opens)
        for opened, closed in pairs:
            opener = bisect_right(self._begins, bounds[opened]) - 1  # the id that has these bytes
            closer = num_ids
            if closed is not None:
                closer = bisect_right(self._begins, bounds[closed]) - 1
            self.opens[opener] |= opener < closer
            if opener < closer < num_ids:
                self.closes[closer] = True


def _smallest_counts(
    numbers: Sequence[int | None],
    counts: Sequence[int | None],
) -> dict[int, int]:
    """By word, the smallest count of a bigram inside it; `numbers`: the word of each id."""
    smallest: dict[int, int] = {}
    for (before, number), count in zip(pairwise(numbers), counts[1:], strict=True):
        if number is not None and number == before and count is not None:
            smallest[number] = min(count, smallest.get(number, count))
    return smallest


def _word_labels(
    words: Sequence[Word],
    smallest: Mapping[int, int],
) -> list[tuple[bool, bool, int | None, str]]:
    """Of each word whether it and its stem are in the sequence already, its count and its kind."""
    labels = []
    earlier, earlier_stems = set[str](), set[str]()
    for number, word in enumerate(words):
        stem, kind = _describe(word.text)
        kind = "plain" if kind == "capitalised" and word.begins_sentence else kind
        is_in, has_stem = word.text in earlier, stem in earlier_stems
        labels.append((is_in, has_stem, smallest.get(number), kind))
        earlier.add(word.text)
        earlier_stems.add(stem)
    return labels


def _byte_bounds(text: str, start: int) -> Sequence[int]:
    """Where each character's bytes begin, and where the last one's end, if the text begins at byte
    `start`."""
    if text.isascii():
        return range(start, start + len(text) + 1)
    widths = (len(character.encode("utf-8", "surrogateescape")) for character in text)
    return list(accumulate(widths, initial=start))


def _word_of_id(begins: Sequence[int], words: Sequence[Word]) -> list[int | None]:
    """The number of the first word that each id has a byte of; `begins`: where the bytes of ids
    begin, and where the last one's end."""
    starts, stops = np.array(begins[:-1]), np.array(begins[1:])
    # The first word that ends behind an id's first byte.
    first = np.searchsorted([word.stop for word in words], starts, side="right")
    beginning = np.append([word.start for word in words], np.iinfo(np.int64).max)[first]
    is_in = (beginning < stops) & (stops > starts)
    return [number if has else None for number, has in zip(first.tolist(), is_in, strict=True)]


@lru_cache
def _word_pattern(marks: str) -> re.Pattern[str]:
    r"""Words, and what ends sentences.

    `\w` is letters, digits and `_`; `marks` are the combining marks that can be in words, too.
    """
    return re.compile(rf"(?P<word>[\w{re.escape(marks)}]+)|[.!?…。！？\n\r\u2028\u2029]")


def find_words(text: str, bounds: Sequence[int]) -> Iterator[Word]:
    """The words of a document's text, whose first begins a sentence.

    `bounds`: where the bytes of characters begin, and where the last one's end.
    """
    characters = set() if text.isascii() else set(text)
    marks = sorted(sign for sign in characters if unicodedata.category(sign)[0] == "M")
    begins_sentence = True
    for match in _word_pattern("".join(marks)).finditer(text):
        word = match["word"]
        if word is None:
            begins_sentence = True
        elif any(map(str.isalnum, word)):
            start, stop = bounds[match.start()], bounds[match.end()]
            yield Word(start, stop, word, begins_sentence)
            begins_sentence = False


def find_pairs(text: str, marks: re.Pattern[str]) -> Iterator[tuple[int, int | None]]:
    """The character that opens each pair of a document's text, and the one that closes it; None
    where none does.

    `marks`: brackets or quote marks, with groups `opens` and `closes` where one can. A mark closes
    the latest open one of its shape; those opened after it stay open no longer. One that can only
    close is ignored where none is open, and a straight quote mark does not open again while one is
    open.
    """
    opened: list[tuple[str, int]] = []
    for mark in marks.finditer(text):
        openers = _OPENERS.get(mark[0], "")
        is_open = any(shape in openers for shape, _ in opened)
        if is_open and mark["closes"] is not None:
            while (last := opened.pop())[0] not in openers:
                yield last[1], None
            yield last[1], mark.start()
        elif not is_open and mark["opens"] is not None:
            opened.append((mark[0], mark.start()))
    yield from ((place, None) for _, place in opened)


# ----------------------------------------------------------------------------------------- one word

_NUMBER = re.compile(r"\d+[^\W\d_]{0,2}")


@lru_cache(maxsize=1 << 18)
def _describe(word: str) -> tuple[str, str]:
    return fold_word(word), kind_of_word(word)


def fold_word(word: str) -> str:
    """The word without case, and, if it is of English letters alone, its stem by Snowball's English
    stemmer (Porter 2)."""
    folded = word.casefold()
    return str(_stemmer().stemWord(folded)) if folded.isascii() and folded.isalpha() else folded


def kind_of_word(word: str) -> str:
    """What a word is, one of KINDS, by its letters alone; a capitalised word that begins a sentence
    is plain, which they do not show.

    function: in the list of stop words (or a piece of a contraction, such as the `t` of `don't`),
    in lower case or with a capital first letter. number: digits, and at most two letters after
    them: 1984, 3rd, 10km, 1990s. identifier: `_` within, a digit among letters, or a capital after
    a small letter: snake_case, utf8, 0xff, 3a7bd3, camelCase. capitalised: any other that begins
    with a capital.
    """
    if word in _stop_words() or word[:1].lower() + word[1:] in _stop_words():
        return "function"
    inner = word.strip("_")
    if _NUMBER.fullmatch(inner):
        return "number"
    has_digit, has_letter = any(map(str.isdecimal, inner)), any(map(str.isalpha, inner))
    has_camel = any(a.islower() and b.isupper() for a, b in pairwise(inner))
    if "_" in inner or (has_digit and has_letter) or has_camel:
        return "identifier"
    return "capitalised" if inner[:1].isupper() or inner[:1].istitle() else "plain"


@cache
def _stop_words() -> frozenset[str]:
    text = (files("recallkit") / "data" / "stop_words.txt").read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines() if not line.startswith("#"))
    return frozenset(line.lstrip("'’") for line in lines)


@cache
def _stemmer() -> Any:
    import snowballstemmer  # type: ignore[import-untyped]

    return snowballstemmer.stemmer("english")
