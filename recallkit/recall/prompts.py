"""Prompts of recall evaluations, and what is right: as tasks write them, or as JRT (arXiv
2407.05483) does, once or twice, whole or cut."""

from __future__ import annotations

import re
import string
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from recallkit.recall.rows import QuestionRow, clean_cuts, contains

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np

    from recallkit.options import RecallOptions
    from recallkit.recall.rows import RecallRow
    from recallkit.text.tokenizers import TextTokenizer

GENERATED_TOKENS = 48
"""Ids generated after a prompt at most, as the tasks of Based do."""
Kind = Literal["standard", "once", "twice"]
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class RecallPrompt:
    """The text that a model reads, the value that should follow, and all answers that are right, if
    they are several."""

    text: str
    value: str
    answers: tuple[str, ...] = ()


def has_any(generation: str, answers: Iterable[str]) -> bool:
    """Whether a generation contains any of the answers, regardless of case: the metric of tasks
    with several answers."""
    return any(contains(generation, answer) for answer in answers)


def word_f1(generation: str, value: str) -> float:
    """The harmonic mean of the shares of each one's words that the other has, too; SQuAD's metric
    (Rajpurkar et al. 2016, section 6.1).

    Words are in lower case, without ASCII punctuation and the articles a, an, the; a word counts as
    often as it occurs. Where either has no words, 1 if neither has any, else 0.
    """
    ours, theirs = words_of(generation), words_of(value)
    if not ours or not theirs:
        return float(ours == theirs)
    common = (Counter(ours) & Counter(theirs)).total()
    return 2 * common / (len(ours) + len(theirs))


def words_of(text: str) -> list[str]:
    """The words of a text as SQuAD compares them."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def split_query(row: RecallRow) -> tuple[str, str]:
    """Document and query of a row's text; the document has no white space at its end.

    The query is `{key}:` in any case, possibly repeated; in other rows, what follows the last blank
    line, or else the last newline. Without any of these, the whole text is the query.
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
    row: RecallRow | QuestionRow,
    *,
    version: int,
    kind: Kind,
    task: str = "own",
    shorten: Callable[[str, str], str] | None = None,
) -> RecallPrompt:
    """The prompt of a row of a task.

    `version` 0 takes text and value as they are, 1 strips both (lm-eval's version 1). With `kind`
    "once" and "twice" the prompt is JRT's, with the document once or twice, to the character that
    its authors' code gives for a task of theirs; in a row with neither key nor question, "once" is
    "standard". `shorten(document, value)` returns the part of the document to keep.
    """
    if isinstance(row, QuestionRow):
        return _ask(row, version, kind, task, shorten)
    value = row.value.strip() if version else row.value
    document, _ = split_query(row)

    def shortened(text: str) -> str:
        return shorten(text, value) if shorten else text

    text = shortened(document) + row.text[len(document) :]
    if kind == "standard" or (kind == "once" and not row.key):
        return RecallPrompt(text.strip() if version or kind == "once" else text, value)
    if row.key:
        key = row.key[0].upper() + row.key[1:]
        query = re.compile(rf"(?:{re.escape(row.key)}:)+\Z", re.IGNORECASE)
        once = _as_sentence(query.sub("", text.rstrip()), kind, task)
        before = f"Information about {key.strip(':')}. {once}\n" if kind == "twice" else ""
        return RecallPrompt(f"{before}{once} {key}:", value)
    if row.question is not None and row.context is not None:
        context = shortened(row.context.partition("Question:")[0])
        return RecallPrompt(f"{row.question} {context}\n{text.strip()}", value)
    return RecallPrompt(f"{shortened(document)}\n{text.strip()}", value)


def _as_sentence(document: str, kind: Kind, task: str) -> str:
    """A document with one full stop at its end, as the authors' code for FDA and for SWDE makes it;
    others as in SWDE."""
    if task == "fda":
        return document.strip("\n").strip(".") + "."
    document = document.partition(_SUMMARY)[0] if task == "swde" else document
    if kind == "once" or task != "swde":
        return document.strip().strip(".") + "."
    document = document.strip("\n").strip(".").strip()
    return document if document.endswith(".") else f"{document}."


_SUMMARY = "Summary of information above..."
"""Where the query begins in the hub's rows of SWDE."""
_MARKERS = re.compile(r"\[(?:PAR|DOC|TLE)\]")
"""Paragraphs, documents and titles in the contexts of TriviaQA."""
_CUT_TO_BEGINNING = ("triviaqa", "drop")
"""Tasks whose authors keep the beginning of a context that is too long, wherever the answer is."""


def _ask(
    row: QuestionRow,
    version: int,
    kind: Kind,
    task: str,
    shorten: Callable[[str, str], str] | None,
) -> RecallPrompt:
    """The prompt of a question, as JRT's tasks write it: `{context}. {question}`, or
    `{orig_question} {context}.` before it."""
    value, answers = row.value, row.answers
    if version:
        value, answers = value.strip(), tuple(answer.strip() for answer in answers)
    context, question = row.context.strip(), row.question.strip()
    if shorten:
        context = shorten(context, "" if task in _CUT_TO_BEGINNING else value).strip()
    if task == "triviaqa":
        context = _MARKERS.sub("", context)
    if task.startswith("nq_") and kind != "twice":
        context = context.removesuffix(question)
    else:
        while context.lower().endswith(question.lower()):
            context = context[: -len(question)]
    once = context.strip().strip(".")
    if kind != "twice":
        return RecallPrompt(f"{once}. {question}", value, answers)
    first = row.question if row.orig_question is None else row.orig_question
    if task != "triviaqa":
        first = first.strip(":")
    once = f"{once.strip()}."
    return RecallPrompt(f"{first} {once}\n{once} {question}", value, answers)


def cut_around_answer(document: str, value: str, stops: np.ndarray, num_tokens: int) -> str:
    """The part of a document of at most `num_tokens` tokens around its earliest mention of the
    value (JRT's cut).

    `stops` int64 (n,): where each token ends in the document's UTF-8. Half of the tokens, rounded
    down, precede the one in which the value begins, fewer near the beginning of the document, which
    then has more behind it; an empty value is at the beginning. Without a mention: the document's
    last tokens. Characters are never divided: tokens that share one are kept or removed together.
    """
    import numpy as np

    encoded = document.encode()
    mention = next(_first_tokens(document, value, stops), None)
    begin = len(stops) - num_tokens if mention is None else mention - num_tokens // 2
    begin = max(0, begin)
    places = np.concatenate([np.zeros(1, np.int64), stops])
    cuts = clean_cuts(encoded, places)
    first = cuts[np.searchsorted(cuts, begin, "left")]
    last = cuts[np.searchsorted(cuts, min(len(stops), begin + num_tokens), "right") - 1]
    return encoded[places[first] : places[last]].decode()


def _first_tokens(text: str, value: str, stops: np.ndarray) -> Iterator[int]:
    """For each mention of the value, in any case, the token in which it begins. Mentions do not
    overlap."""
    import numpy as np

    character, byte = 0, 0  # the same position in characters and in bytes
    for match in re.finditer(re.escape(value), text, re.IGNORECASE):
        byte += len(text[character : match.start()].encode())
        character = match.start()
        yield int(np.searchsorted(stops, byte, "right"))


def make_documents(
    task: str,
    rows: Sequence[RecallRow | QuestionRow],
    tokenizer: TextTokenizer,
    options: RecallOptions,
) -> Iterator[dict[str, Any]]:
    """The documents of a task as lm-eval reads them: a prompt, its value and what else is right,
    with fields that distinguish the rows."""

    def centred(document: str, value: str) -> str:
        _, stops = tokenizer.encode_with_stops([document])[0]
        return cut_around_answer(document, value, stops, options.kept_tokens)

    shorten = centred if options.cut == "answer" else None
    version = options.task_version
    for number, row in enumerate(rows):
        prompt = make_prompt(row, version=version, kind=options.prompt, task=task, shorten=shorten)
        yield {
            "prompt": prompt.text,
            "value": prompt.value,
            "right": list(prompt.answers or (prompt.value,)),
            "row": number,
            "doc_id": row.doc_id,
            "key": row.key or "",
            "answers": [answer.strip() if version else answer for answer in row.answers],
            "length": getattr(row, "length", None),  # of rows with a needle, as is the depth
            "depth": getattr(row, "depth", None),
        }


@dataclass(frozen=True, slots=True)
class Places:
    """Where a value is in a prompt that is truncated on the left.

    `occurrences` in the whole prompt, without overlaps; `distance` in tokens from the one in which
    the latest remaining occurrence begins to the prompt's end; `answer_cut`: the value occurs, but
    all occurrences are truncated; `characters_cut`: how many characters are truncated, in part or
    whole.
    """

    occurrences: int
    distance: int | None
    answer_cut: bool
    characters_cut: int = 0


def find_places(prompt: str, value: str, stops: np.ndarray, num_cut: int) -> Places:
    """Where a value, in any case, is in a prompt whose first `num_cut` tokens are truncated.

    `stops` int64 (n,): where each token ends in the prompt's UTF-8. An occurrence remains if no
    part of it is truncated.
    """
    tokens = list(_first_tokens(prompt, value, stops))
    remaining = [token for token in tokens if token >= num_cut]
    cut = prompt.encode()[: stops[num_cut - 1]] if num_cut else b""
    return Places(
        occurrences=len(tokens),
        distance=len(stops) - remaining[-1] if remaining else None,
        answer_cut=bool(tokens) and not remaining,
        characters_cut=len(cut.decode(errors="replace")),
    )
