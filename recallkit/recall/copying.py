"""The control model on text, `control:copy`: finds the query in its prompt and copies what follows
it."""

from __future__ import annotations

import math
import re
from collections import Counter

_MOST_CHARACTERS = 400
_SEARCHED_CHARACTERS = 10 * _MOST_CHARACTERS
_MOST_WORDS = 8
_TAG = re.compile(r"<[/!]?[A-Za-z][\w-]*(?:\s[^<>]*)?/?>")  # but not an address: <me@example.org>
_KEY = re.compile(r"(?P<document>.*)(?:\n|\. )(?P<query>[^\n]+):", re.DOTALL)
_TWICE = re.compile(
    r"Information about (?P<query>[^\n]+?)\. (?P<document>.*) (?P=query):",
    re.DOTALL,
)
_SENTENCE_END = re.compile(r"(?<=\w\w[.!?])\s+|\n+")  # but not after initials
_STEM = re.compile(r"\b\w{1,5}")  # the beginning of a word, common to its inflections


def copy_answer(prompt: str) -> str:
    """One line that begins with a space, as a model would generate it: the answer, if a simple rule
    finds it.

    Only the prompt is used. If it ends with `{key}:` on a line of its own or after a full stop, or
    contains the document twice, the text that follows the key in the document is copied; otherwise
    (`Question: ...\\nAnswer:`, a sentence to be completed, on a line of its own or the last of
    one), or if the key is not in the document, the sentence that shares the most rare words with
    the query.
    """
    text = prompt.rstrip().removesuffix("\nAnswer:").rstrip()
    match = text.endswith(":") and (_TWICE.fullmatch(text) or _KEY.fullmatch(text))
    answer = _after_key(match["document"], match["query"]) if match else ""
    if not answer:
        document, query = _last_sentence(text)
        answer = _nearest_sentence(document, query.removeprefix("Question:").strip())
    return " " + " ".join(answer.split())


def _last_sentence(text: str) -> tuple[str, str]:
    """What precedes the query, and the query: the last line if it is a `Question:`, else its last
    sentence."""
    document, newline, line = text.rpartition("\n")
    *before, query = [line] if line.startswith("Question:") else _SENTENCE_END.split(line)
    return document + newline + " ".join(before), query


def _after_key(document: str, key: str) -> str:
    """The text after a key in a document, to the end of the line, at most 400 characters; "" if the
    key does not occur.

    If the whole key does not occur, its last words are searched. The first mention that is followed
    by a colon counts, otherwise the first one. Tags are skipped rather than treated as an end,
    because values continue after them, and copying too much is not an error. Lines without a letter
    or digit are skipped; separators on the line are kept, because some values begin with them.
    """
    words = re.split(r"[\s-]+", key.strip())[-_MOST_WORDS:]
    ends: list[int] = []
    while words and not ends:
        ends = _mentions(document, words)
        words = words[1:]
    rests = [_TAG.sub("", document[end : end + _SEARCHED_CHARACTERS]) for end in ends]
    rest = next((rest for rest in rests if rest.lstrip().startswith(":")), "".join(rests[:1]))
    line = next((line for line in rest.split("\n") if _STEM.search(line)), "")
    return line[:_MOST_CHARACTERS]


def _mentions(document: str, words: list[str]) -> list[int]:
    """Where mentions of a sequence of words end in a document, the words separated by spaces or
    hyphens, in any case."""
    together = r"[\s-]+".join(map(re.escape, words))
    pattern = re.compile(rf"(?<![\w-]){together}(?!\w)", re.IGNORECASE)
    return [match.end() for match in pattern.finditer(document)]


def _nearest_sentence(document: str, query: str) -> str:
    """The sentence, but no question, that shares the most rare words with the query: the sum of
    their idf over the document's sentences."""
    parts = [part for part in _SENTENCE_END.split(document) if part.strip()]
    sentences = [part for part in parts if not part.rstrip().endswith("?")]
    bags, wanted = [_stems(sentence) for sentence in sentences], _stems(query)
    times = Counter(stem for bag in bags for stem in bag)

    def shared(place: int) -> float:
        stems = bags[place] & wanted
        return math.fsum(math.log((1 + len(bags)) / times[stem]) for stem in stems)

    return sentences[max(range(len(bags)), key=shared)] if sentences else ""


def _stems(text: str) -> set[str]:
    return set(_STEM.findall(text.lower()))
