"""Needles in a haystack: prompts made from a seed at given lengths and depths, as RULER defines
S-NIAH-1 to 3 and MK-NIAH-1.

RULER (arXiv 2404.06654, section 3 and appendix) hides `One of the special magic numbers for KEY is:
VALUE.` in a text and asks for the value of a key; further needles distract. The frame of the
prompt, keys, values and scoring are its; docs/recall.md says what differs.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from recallkit.builtin import VALIDATION_TEXT
from recallkit.errors import UserError
from recallkit.recall.prompts import GENERATED_TOKENS
from recallkit.recall.rows import RecallRow, clean_cuts
from recallkit.text.corpus import open_corpus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recallkit.text.tokenizers import TextTokenizer

LENGTHS = (1024, 2048, 4096, 8192)
"""Ids of a prompt with what is generated after it, where models can read so many."""
DEPTHS = tuple(tenth / 10 for tenth in range(11))
SAMPLES = 110
"""Prompts of each length, ten at each depth."""

_NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_NEEDLE = "One of the special magic {kind}s for {key} is: {value}."
_PROMPT = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n"
    "{context}\nWhat is the special magic {kind} for {key} mentioned in the provided text? "
    "The special magic {kind} for {key} mentioned in the provided text is"
)
_ADJECTIVES = (
    "able amber ancient bold brave brief bright calm clean clever cold cosmic crisp curly dusty "
    "eager early fancy gentle giant golden grand happy hollow humble jolly kind late lively loud "
    "lucky mellow narrow noble odd pale plain quick quiet rapid rare rough round rusty sandy "
    "shiny silent silver simple sleepy small smooth solid steep sunny sweet swift tall tidy tiny "
    "vivid warm wild wise"
)
_NOUNS = (
    "acorn anchor apple arrow badger basket beacon bottle bridge button candle canyon carpet "
    "castle cherry circle copper cradle desert donkey engine falcon feather forest garden guitar "
    "hammer harbor helmet island jacket kettle ladder lantern lemon magnet marble meadow mirror "
    "needle orchid otter paddle pencil pepper pigeon pillow planet pocket rabbit ribbon river "
    "saddle shadow spider spoon statue tunnel turtle valley violin wagon walnut window"
)
_KEYS = [f"{first}-{noun}" for first in _ADJECTIVES.split() for noun in _NOUNS.split()]
_SENTENCE_END = r"[.!?][\"')\]]*(?={joiner})|[。！？]"
_LEAST_HAYSTACK = 16
"""Ids of haystack that a prompt has at least."""
_READ_CHARACTERS = 64
"""Characters of a text that are read for each id of the longest prompt: many times what one needs,
so that passages differ."""


@dataclass(frozen=True, slots=True)
class NeedleTask:
    """What is hidden in what: `keys` needles with values of a `kind`, one of which is asked for, in
    repeated sentences or in a text."""

    haystack: Literal["noise", "text"]
    kind: Literal["number", "uuid"] = "number"
    keys: int = 1


@dataclass(frozen=True, slots=True)
class NeedleRow(RecallRow):
    """A prompt of at most `length` ids with those generated after it, of whose context a share
    `depth` precedes the needle."""

    length: int = 0
    depth: float = 0.0


class Haystack:
    """A text in ids of a tokenizer, which passages are taken from; one that is too short is
    repeated, as RULER does."""

    def __init__(self, text: str, joiner: str, tokenizer: TextTokenizer, longest: int) -> None:
        self.joiner, self._end = joiner, re.compile(_SENTENCE_END.format(joiner=joiner))
        ids, stops = tokenizer.encode_with_stops([text])[0]
        while len(ids) < 3 * longest:
            text += joiner + text
            ids, stops = tokenizer.encode_with_stops([text])[0]
        self._bytes = text.encode()
        self._places = np.concatenate([np.zeros(1, np.int64), stops])
        self._cuts = clean_cuts(self._bytes, self._places)
        prefixes = (text[: match.end()] for match in self._end.finditer(text))
        ends = np.array([len(prefix.encode()) for prefix in prefixes], np.int64)
        # An id may be of a full stop and the space behind it: the sentence ends after that.
        after = np.searchsorted(self._places, ends)
        is_near = self._places[np.minimum(after, len(stops))] <= ends + 1
        self._sentence_ends = np.intersect1d(after[is_near], self._cuts)

    def around(self, before: int, after: int, rng: np.random.Generator) -> tuple[str, str]:
        """About `before` ids that end with a sentence, and the `after` ids that follow them:
        anywhere in the text."""
        last = len(self._places) - 1 - after

        def possible(places: np.ndarray) -> np.ndarray:
            return places[(places >= before) & (places <= last)]

        ends = possible(self._sentence_ends)
        middle = rng.choice(ends if len(ends) else possible(self._cuts))
        begin = self._cuts[np.searchsorted(self._cuts, middle - before)]
        end = self._cuts[np.searchsorted(self._cuts, middle + after, "right") - 1]
        return self._text(begin, middle), self._text(middle, end)

    def scatter(self, passage: str, needles: Sequence[str], rng: np.random.Generator) -> list[str]:
        """The parts of a passage with needles between them, each before it or at the end of a
        sentence."""
        ends = [0, *(match.end() for match in self._end.finditer(passage))]
        places = sorted(int(rng.choice(ends)) for _ in needles)
        parts, begin = [], 0
        for place, needle in zip(places, needles, strict=True):
            parts += [passage[begin:place].strip(), needle]
            begin = place
        return [*parts, passage[begin:].strip()]

    def _text(self, begin: int, end: int) -> str:
        return self._bytes[self._places[begin] : self._places[end]].decode().strip()


def make_needle_rows(
    task: NeedleTask,
    name: str,
    tokenizer: TextTokenizer,
    *,
    lengths: Sequence[int],
    samples: int,
    seed: int,
    data: Path | None,
) -> list[NeedleRow]:
    """The rows of a task: `samples` of each length, whose depths take turns; the same ones from the
    same seed.

    A row has at most its length in ids of `tokenizer`, what this puts before a text and those that
    are generated included. `data` is a text for the haystack, the built-in one if None; only of
    tasks whose haystack is a text.

    Raises UserError for a length without room for needles and question, and for a text that is
    missing or empty.
    """
    text, joiner = _NOISE, "\n"
    if task.haystack == "text":
        text, joiner = _read_text(data, _READ_CHARACTERS * max(lengths)), " "
    haystack = Haystack(text, joiner, tokenizer, max(lengths))
    writer = _Writer(task, name, tokenizer, haystack, seed)
    pairs = [(length, sample) for sample in range(samples) for length in lengths]
    rooms = [length - GENERATED_TOKENS - len(tokenizer.prefix.ids) for length, _ in pairs]
    excesses = [0] * len(pairs)
    rows = [writer.row(*pair, room) for pair, room in zip(pairs, rooms, strict=True)]
    unchecked = list(range(len(pairs)))
    while unchecked:  # parts may have more ids together than apart
        _, offsets = tokenizer.encode([rows[number].text for number in unchecked])
        too_long = []
        for number, size in zip(unchecked, np.diff(offsets).tolist(), strict=True):
            if size > rooms[number]:
                excesses[number] += size - rooms[number]
                rows[number] = writer.row(*pairs[number], rooms[number] - excesses[number])
                too_long.append(number)
        unchecked = too_long
    return rows


def longest_prompt(rows: Sequence[NeedleRow], tokenizer: TextTokenizer) -> int:
    """Ids of the longest text of these in a tokenizer, with those that are generated after it."""
    _, offsets = tokenizer.encode([row.text for row in rows])
    return int(np.diff(offsets).max()) + GENERATED_TOKENS


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the rows of a task."""

    task: NeedleTask
    name: str
    tokenizer: TextTokenizer
    haystack: Haystack
    seed: int

    def row(self, length: int, sample: int, room: int) -> NeedleRow:
        """A row of a length, whose parts have at most `room` ids. Raises UserError where they have
        more."""
        rng = np.random.default_rng([self.seed, length, sample, *self.name.encode()])
        depth, kind = DEPTHS[sample % len(DEPTHS)], self.task.kind
        keys = [_KEYS[place] for place in rng.choice(len(_KEYS), self.task.keys, replace=False)]
        values = [_value(kind, rng) for _ in keys]
        pairs = zip(keys, values, strict=True)
        needles = [_NEEDLE.format(kind=kind, key=key, value=value) for key, value in pairs]
        frame = _PROMPT.format(kind=kind, key=keys[0], context="")
        total, distracting = self._room_for(frame, needles, room)
        straw = total - sum(distracting)
        if straw < _LEAST_HAYSTACK:
            rest = "the needles, the question and its answer"
            problem = f"{length:,} ids leave no room for a haystack besides {rest}"
            remedy = f"give longer ones, or leave {self.name} out"
            raise UserError(problem, where="--lengths", remedy=remedy)
        # Ids of haystack before the needle that is asked for, if 0, 1 ... of the others precede it,
        # too: any number of these that leaves it at its depth, or in a prompt that is too short for
        # that the one that brings it nearest.
        preceding = np.array([0, *np.cumsum(distracting)])
        before = round(depth * total) - preceding
        possible = np.flatnonzero((before >= 0) & (before <= straw))
        if not len(possible):
            possible = np.array([np.abs(before - straw / 2).argmin()])
        number = int(rng.choice(possible))
        size = min(max(0, int(before[number])), straw)
        earlier, later = self.haystack.around(size, straw - size, rng)
        first = self.haystack.scatter(earlier, needles[1 : number + 1], rng)
        last = self.haystack.scatter(later, needles[number + 1 :], rng)
        parts = [part for part in (*first, needles[0], *last) if part]
        context = self.haystack.joiner.join(parts)
        return NeedleRow(
            doc_id=f"{length}-{sample}",
            text=_PROMPT.format(kind=kind, key=keys[0], context=context),
            value=values[0],
            key=keys[0],
            length=length,
            depth=depth,
        )

    def _room_for(self, frame: str, needles: Sequence[str], room: int) -> tuple[int, list[int]]:
        """Ids for the haystack and further needles, and how many of them each of these has."""
        separate = [frame, *(self.haystack.joiner + needle for needle in needles)]
        _, offsets = self.tokenizer.encode(separate)
        return room - int(offsets[2]), np.diff(offsets)[2:].tolist()


def _value(kind: str, rng: np.random.Generator) -> str:
    if kind == "number":
        return str(rng.integers(1_000_000, 10_000_000))
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))


def _read_text(data: Path | None, most: int) -> str:
    """The beginning of a text, at most so many characters, its white space single spaces."""
    sources = VALIDATION_TEXT.source_names if data is None else [str(data)]
    passages, size = [], 0
    for document in open_corpus(sources, default_split="validation").documents():
        passage = " ".join(document.text.split())
        if passage:
            passages.append(passage)
        size += len(passage)
        if size >= most:
            break
    text = " ".join(passages)[:most]
    if not text:
        raise UserError("no text", where=data, remedy="give a file of text for the haystack")
    return text
