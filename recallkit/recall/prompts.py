"""Rows of recall evaluations, and prompts: as tasks write them, or the document twice (JRT, arXiv 2407.05483), whole or cut."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np


@dataclass(frozen=True, slots=True)
class RecallRow:
    """One question: `text` ends with the query (`...\\n{key}:`), `value` is what follows it if a model recalls.

    Rows of one document share `doc_id`. `answers` are others that are accepted, if the data has any.
    """

    doc_id: str
    text: str
    value: str
    key: str | None = None
    answers: tuple[str, ...] = ()
    question: str | None = None
    context: str | None = None


@dataclass(frozen=True, slots=True)
class RecallPrompt:
    """The text that a model reads, and the value that should follow."""

    text: str
    value: str


def contains(generation: str, value: str) -> bool:
    """Whether a generation contains a value, regardless of case: the metric of the tasks."""
    return re.search(re.escape(value), generation, re.IGNORECASE) is not None


def split_query(row: RecallRow) -> tuple[str, str]:
    """Document and query of a row's text; the document has no white space at its end.

    The query is `{key}:` in any case, possibly repeated; in other rows, what follows the last blank line, or else the last
    newline. Without any of these, the whole text is the query.
    """
    text = row.text.rstrip()
    match = row.key and re.search(rf"(?:{re.escape(row.key)}:\s*)+\Z", text, re.IGNORECASE)
    if match:
        return text[: match.start()].rstrip(), match[0]
    for separator in (r"\n\s*\n", r"\n"):
        if match := re.match(rf"(.*){separator}", text, re.DOTALL):
            return match[1].rstrip(), text[match.end() :]
    return "", row.text


def make_prompt(
    row: RecallRow, *, version: int, kind: Literal["standard", "twice"], shorten: Callable[[str, str], str] | None = None
) -> RecallPrompt:
    """The prompt of a row.

    `version` 0 takes text and value as they are, 1 strips both (lm-eval's version 1). With `kind` "twice" the prompt contains the
    document twice (JRT). `shorten(document, value)` returns the part of the document to keep.
    """
    value = row.value.strip() if version else row.value
    document, _ = split_query(row)

    def shortened(whole: str) -> str:
        return shorten(whole, value) if shorten else whole

    text = shortened(document) + row.text[len(document) :]
    if kind == "standard":
        return RecallPrompt(text.strip() if version else text, value)
    if row.key:
        key = row.key[0].upper() + row.key[1:]
        once = shortened(document).strip().rstrip(".") + "."
        return RecallPrompt(f"Information about {key}. {once}\n{once} {key}:", value)
    if row.question is not None and row.context is not None:
        context = shortened(row.context.partition("Question:")[0])
        return RecallPrompt(f"{row.question} {context}\n{text.strip()}", value)
    return RecallPrompt(f"{shortened(document)}\n{text.strip()}", value)


def cut_around_answer(document: str, value: str, stops: np.ndarray, num_tokens: int) -> str:
    """The part of a document of at most `num_tokens` tokens around its earliest mention of the value (JRT's cut).

    `stops` int64 (n,): where each token ends in the document's UTF-8. Half of the tokens, rounded down, precede the one
    in which the value begins, fewer near the ends of the document. Without a mention: the document's last tokens. Characters
    are never divided: tokens that share one are kept or removed together.
    """
    import numpy as np

    encoded = document.encode()
    begun = next(_first_tokens(document, value, stops), None)
    middle = len(stops) if begun is None else begun
    before = num_tokens if begun is None else num_tokens // 2
    places = np.concatenate([np.zeros(1, np.int64), stops])
    cuts = clean_cuts(encoded, places)
    first = cuts[np.searchsorted(cuts, max(0, middle - before), "left")]
    last = cuts[np.searchsorted(cuts, min(len(stops), middle + num_tokens - before), "right") - 1]
    return encoded[places[first] : places[last]].decode()


def clean_cuts(encoded: bytes, places: np.ndarray) -> np.ndarray:
    """Numbers of tokens, from 0 to all, after which a text can be cut without dividing a character."""
    import numpy as np

    is_clean = (np.frombuffer(encoded + b"\n", np.uint8)[places] & 0b1100_0000) != 0b1000_0000  # a byte within a character: 10......
    is_clean[:-1] &= np.diff(places) > 0
    is_clean[[0, -1]] = True
    return np.flatnonzero(is_clean)


def _first_tokens(text: str, value: str, stops: np.ndarray) -> Iterator[int]:
    """For each mention of the value, in any case, the token in which it begins. Mentions do not overlap."""
    import numpy as np

    at, place = 0, 0  # the same position in characters and in bytes
    for match in re.finditer(re.escape(value), text, re.IGNORECASE):
        at, place = match.start(), place + len(text[at : match.start()].encode())
        yield int(np.searchsorted(stops, place, "right"))


@dataclass(frozen=True, slots=True)
class Places:
    """Where a value is in a prompt that is truncated on the left.

    `occurrences` in the whole prompt, without overlaps; `distance` in tokens from the one in which the latest remaining
    occurrence begins to the prompt's end; `answer_cut`: the value occurs, but all occurrences are truncated; `characters_cut`: how many
    characters are truncated, in part or whole.
    """

    occurrences: int
    distance: int | None
    answer_cut: bool
    characters_cut: int = 0


def find_places(prompt: str, value: str, stops: np.ndarray, num_cut: int) -> Places:
    """Where a value, in any case, is in a prompt whose first `num_cut` tokens are truncated.

    `stops` int64 (n,): where each token ends in the prompt's UTF-8. An occurrence remains if no part of it is truncated.
    """
    tokens = list(_first_tokens(prompt, value, stops))
    kept = [token for token in tokens if token >= num_cut]
    return Places(
        occurrences=len(tokens),
        distance=len(stops) - kept[-1] if kept else None,
        answer_cut=bool(tokens) and not kept,
        characters_cut=len(prompt.encode()[: stops[num_cut - 1]].decode(errors="replace")) if num_cut else 0,
    )
