"""The text control with a known answer, `control:copy`: finds the query in its prompt and copies what stands behind it."""

from __future__ import annotations

import math
import re
from collections import Counter

_MOST_CHARACTERS = 400
_SEARCHED_CHARACTERS = 10 * _MOST_CHARACTERS
_MOST_WORDS = 8
_TAG = re.compile(r"<[/!]?[A-Za-z][\w-]*(?:\s[^<>]*)?/?>")  # no address: <me@example.org>
_KEY = re.compile(r"(?P<document>.*)\n(?P<query>[^\n]+):", re.DOTALL)
_TWICE = re.compile(r"Information about (?P<query>[^\n]+?)\. (?P<document>.*) (?P=query):", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=\w\w[.!?])\s+|\n+")  # initials end none
_STEM = re.compile(r"\b\w{1,5}")  # the beginning of a word, which its inflections share


def copy_answer(prompt: str) -> str:
    """One line that begins with a space, as a model would generate it: the answer, where a simple rule finds it.

    It sees nothing but the prompt. Where that ends with `{key}:` on a line of its own, or gives the document twice, it copies
    what follows the key in the document; otherwise (`Question: ...\\nAnswer:`, a sentence to go on with), or where the key does
    not stand there, the sentence that shares the most rare words with the query.
    """
    text = prompt.rstrip().removesuffix("\nAnswer:").rstrip()
    match = text.endswith(":") and (_TWICE.fullmatch(text) or _KEY.fullmatch(text))
    found = _after_key(match["document"], match["query"]) if match else ""
    if not found:
        document, _, query = text.rpartition("\n")
        found = _nearest_sentence(document, query.removeprefix("Question:").strip())
    return " " + " ".join(found.split())


def _after_key(document: str, key: str) -> str:
    """What follows a key in a document, to the end of the line, at most 400 characters; "" where it does not stand there.

    Of a key that does not, its last words are looked for. The first mention that is followed by a colon counts, or else
    the first one. Tags are left out rather than end what is copied: values go on behind them, and to copy more is no
    error. Lines without a letter or digit are skipped; separators on the line are kept, since some values begin with them.
    """
    words = re.split(r"[\s-]+", key.strip())[-_MOST_WORDS:]
    ends = next(filter(None, (_mentions(document, words[first:]) for first in range(len(words)))), [])
    rests = [_TAG.sub("", document[end : end + _SEARCHED_CHARACTERS]) for end in ends]
    rest = next((rest for rest in rests if rest.lstrip().startswith(":")), "".join(rests[:1]))
    return next((line for line in rest.split("\n") if _STEM.search(line)), "")[:_MOST_CHARACTERS]


def _mentions(document: str, words: list[str]) -> list[int]:
    """Where mentions of words end that stand together in a document, parted by spaces or hyphens, in whatever case."""
    together = r"[\s-]+".join(map(re.escape, words))
    return [match.end() for match in re.finditer(rf"(?<![\w-]){together}(?!\w)", document, re.IGNORECASE)]


def _nearest_sentence(document: str, query: str) -> str:
    """The sentence that shares the most rare words with the query: the sum of their idf over the document's sentences."""
    without_query = document.replace(query, "\n") if query else document  # a document given twice may begin with it
    sentences = [sentence for sentence in _SENTENCE_END.split(without_query) if sentence.strip()]
    bags = [_stems(sentence) for sentence in sentences]
    times, asked = Counter(stem for bag in bags for stem in bag), _stems(query)
    shared = [math.fsum(math.log((1 + len(bags)) / times[stem]) for stem in bag & asked) for bag in bags]
    return sentences[shared.index(max(shared))] if sentences else ""


def _stems(text: str) -> set[str]:
    return set(_STEM.findall(text.lower()))
