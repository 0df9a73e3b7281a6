"""Rows of recall evaluations: a text that ends with a query, and its value; or a context, a
question and its answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from recallkit import config
from recallkit.errors import UserError
from recallkit.text.fields import FieldError, FieldFinder, kind_of, present_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy as np

    from recallkit.text.readers import Shard

_Row = TypeVar("_Row")
_FIELDS = ("doc_id", "text", "value", "key", "answers", "question", "context", "orig_question")
_NEEDED = {"text": ("text", "value"), "question": ("context", "question", "answers")}
_NEEDS = {"text": "a text and a value", "question": "a context, a question and answers"}


@dataclass(frozen=True, slots=True)
class RecallRow:
    """One question: `text` ends with the query (`...\\n{key}:`), `value` is what follows it if a
    model recalls.

    Rows of one document share `doc_id`. `answers` are others that are accepted, if the data has
    any.
    """

    doc_id: str
    text: str
    value: str
    key: str | None = None
    answers: tuple[str, ...] = ()
    question: str | None = None
    context: str | None = None


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """A question about a context, as in NQ, TriviaQA and DROP of JRT.

    `question` is what a model is to continue (`The bridge was closed in`), `orig_question` the same
    as people ask it (`When was the bridge closed?`), if it is known. A generation with any of
    `answers` is right.
    """

    doc_id: str
    context: str
    question: str
    answers: tuple[str, ...]
    orig_question: str | None = None

    @property
    def value(self) -> str:
        """The first answer that the context contains, in any case; the first one if it contains
        none, "" if there is none."""
        answers = (answer for answer in self.answers if contains(self.context, answer.strip()))
        return next(answers, self.answers[0] if self.answers else "")

    @property
    def key(self) -> None:
        """None: a question has no key."""


def contains(text: str, value: str) -> bool:
    """Whether a text contains a value, regardless of case: the metric of the tasks, of
    generations."""
    return re.search(re.escape(value), text, re.IGNORECASE) is not None


def read_records(shard: Shard, read: Callable[[Mapping[str, Any], int], _Row]) -> Iterator[_Row]:
    """What `read` makes of each record and its number. Raises UserError, with the place, for a bad
    record, or where `read` finds it so."""

    def on_bad(record: int, problem: str, remedy: str) -> None:
        raise UserError(problem, where=shard.place(record), remedy=remedy)

    for number, fields in shard.records(0, on_bad):
        try:
            yield read(fields, number)
        except FieldError as error:
            on_bad(number, str(error), error.remedy)


class RowFinder(FieldFinder):
    """Finds rows of a form, "text", "question" or "either", in records, and the required columns of
    tables."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._wanted = form

    def columns(self, available: Iterable[str]) -> list[str]:
        """The columns of a table that make up a row. Raises FieldError if one that every row needs
        is missing."""
        names = list(available)
        self._form(dict.fromkeys(names, ""))
        return [name for name in names if name in _FIELDS]

    def row(self, fields: Mapping[str, Any], number: int) -> RecallRow | QuestionRow:
        """The row in a record of this number. Raises FieldError if a field is missing or of another
        type, or if a text is blank."""
        if self._form(fields) == "question":
            return QuestionRow(
                doc_id=_doc_id(fields, number),
                context=_not_blank(fields, "context"),
                question=_not_blank(fields, "question"),
                answers=_answers(fields["answers"]),
                orig_question=_string(fields, "orig_question"),
            )
        return RecallRow(
            doc_id=_doc_id(fields, number),
            text=_not_blank(fields, "text"),
            value=_string(fields, "value") or "",
            key=_string(fields, "key") or None,
            answers=_answers(fields.get("answers")),
            question=_string(fields, "question"),
            context=_string(fields, "context"),
        )

    def _form(self, fields: Mapping[str, Any]) -> str:
        """Whether a record is a text with a value or a question with answers. Raises FieldError for
        what it lacks of either."""
        form = self._wanted
        if form == "either":
            has_context = fields.get("text") is None and fields.get("context") is not None
            form = "question" if has_context else "text"
        missing = next((name for name in _NEEDED[form] if fields.get(name) is None), None)
        if missing is None:
            return form
        needed = ", or ".join(_NEEDS.values()) if self._wanted == "either" else _NEEDS[form]
        raise FieldError(f"no {missing} ({present_names(fields)})", f"every row needs {needed}")


def _not_blank(fields: Mapping[str, Any], name: str) -> str:
    text = _string(fields, name) or ""
    if not text.strip():
        raise FieldError(f"the {name} is empty", "fix or remove the row")
    return text


def _string(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if isinstance(value, str) and len(value) > config.MAX_PROMPT_CHARACTERS:
        most = f"the {config.MAX_PROMPT_CHARACTERS:,} that a prompt may have"
        problem = f"the {name} has {len(value):,} characters, more than {most}"
        raise FieldError(problem, "divide the document, as `recallkit build-rows` does")
    if value is None or isinstance(value, str):
        return value
    raise FieldError(f"{name} is {kind_of(value)}, not text", f"write {name} as a string")


def _doc_id(fields: Mapping[str, Any], number: int) -> str:
    """The document's id, or the row's number."""
    name = fields.get("doc_id")
    return str(name) if type(name) is int else _string(fields, "doc_id") or str(number)


def _answers(answers: Any) -> tuple[str, ...]:
    """Answers as a list or as SQuAD's object, each once, blank ones left out."""
    listed = answers.get("text") if isinstance(answers, dict) else answers
    if listed is None:
        return ()
    if not isinstance(listed, list) or not all(isinstance(answer, str) for answer in listed):
        remedy = 'write them as ["...", "..."] or {"text": ["..."]}'
        raise FieldError("answers are not a list of strings", remedy)
    return tuple(dict.fromkeys(answer for answer in listed if answer.strip()))


def clean_cuts(encoded: bytes, places: np.ndarray) -> np.ndarray:
    """Numbers of tokens, from 0 to all, after which a text can be cut without dividing a
    character."""
    import numpy as np

    following = np.frombuffer(encoded + b"\n", np.uint8)[places]
    is_clean = (following & 0b1100_0000) != 0b1000_0000  # a byte within a character: 10......
    is_clean[:-1] &= np.diff(places) > 0
    is_clean[[0, -1]] = True
    return np.flatnonzero(is_clean)
