"""Rows of recall evaluations: a text that ends with a query, and its value; or a context, a question and its answers. Read, and built."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from recallkit import config
from recallkit.display.notebook import Shown
from recallkit.errors import UserError
from recallkit.storage import artifacts
from recallkit.text.fields import FieldError, FieldFinder, kind_of, present_names
from recallkit.text.sources import file_shard
from recallkit.text.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import numpy as np

    from recallkit.text.readers import Shard
    from recallkit.text.tokenizers import TextTokenizer

_Row = TypeVar("_Row")
_FIELDS = ("doc_id", "text", "value", "key", "answers", "question", "context", "orig_question")
_NEEDED = {"text": ("text", "value"), "question": ("context", "question", "answers")}
_NEEDS = {"text": "a text and a value", "question": "a context, a question and answers"}
_PAIRS = 'write {"text": "...", "pairs": {"KEY": "VALUE", ...}}'


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
class QuestionRow:
    """A question about a context, as in NQ, TriviaQA and DROP of JRT.

    `question` is what a model is to continue (`The bridge was closed in`), `asked` the same as people ask it (`When was the bridge
    closed?`), if it is known. A generation with any of `answers` is right.
    """

    doc_id: str
    context: str
    question: str
    answers: tuple[str, ...]
    asked: str | None = None

    @property
    def value(self) -> str:
        """The first answer that the context contains, in any case; the first one if it contains none, "" if there is none."""
        answers = (answer for answer in self.answers if contains(self.context, answer.strip()))
        return next(answers, self.answers[0] if self.answers else "")

    @property
    def key(self) -> None:
        """None: a question has no key."""


def contains(text: str, value: str) -> bool:
    """Whether a text contains a value, regardless of case: the metric of the tasks, of generations."""
    return re.search(re.escape(value), text, re.IGNORECASE) is not None


# --------------------------------------------------------------------------------------------------------------- reading


def read_records(shard: Shard, read: Callable[[Mapping[str, Any], int], _Row]) -> Iterator[_Row]:
    """What `read` makes of each record and its number. Raises UserError, with the place, for a bad record, or where `read` finds it so."""

    def on_bad(record: int, problem: str, remedy: str) -> None:
        raise UserError(problem, where=shard.place(record), remedy=remedy)

    for number, fields in shard.records(0, on_bad):
        try:
            yield read(fields, number)
        except FieldError as error:
            on_bad(number, str(error), error.remedy)


class RowFinder(FieldFinder):
    """Finds rows of a form, "text", "question" or "either", in records, and the required columns of tables."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._wanted = form

    def columns(self, available: Iterable[str]) -> list[str]:
        """The columns of a table that make up a row. Raises FieldError if one that every row needs is missing."""
        names = list(available)
        self._form(dict.fromkeys(names, ""))
        return [name for name in names if name in _FIELDS]

    def row(self, fields: Mapping[str, Any], number: int) -> RecallRow | QuestionRow:
        """The row in a record of this number. Raises FieldError if a field is missing or of another type, or if a text is blank."""
        if self._form(fields) == "question":
            return QuestionRow(
                doc_id=_doc_id(fields, number),
                context=_not_blank(fields, "context"),
                question=_not_blank(fields, "question"),
                answers=_answers(fields["answers"]),
                asked=_string(fields, "orig_question"),
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
        """Whether a record is a text with a value or a question with answers. Raises FieldError for what it lacks of either."""
        form = self._wanted
        if form == "either":
            form = "question" if fields.get("text") is None and fields.get("context") is not None else "text"
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
        problem = f"the {name} has {len(value):,} characters, more than the {config.MAX_PROMPT_CHARACTERS:,} that a prompt may have"
        raise FieldError(problem, "divide the document, as `recallkit build-rows` does")
    if value is None or isinstance(value, str):
        return value
    raise FieldError(f"{name} is {kind_of(value)}, not text", f"write {name} as a string")


def _doc_id(fields: Mapping[str, Any], number: int) -> str:
    """The document's id, or the row's number."""
    given = fields.get("doc_id")
    return str(given) if type(given) is int else _string(fields, "doc_id") or str(number)


def _answers(answers: Any) -> tuple[str, ...]:
    """Answers as a list or as SQuAD's object, each once, blank ones left out."""
    listed = answers.get("text") if isinstance(answers, dict) else answers
    if listed is None:
        return ()
    if not isinstance(listed, list) or not all(isinstance(answer, str) for answer in listed):
        raise FieldError("answers are not a list of strings", 'write them as ["...", "..."] or {"text": ["..."]}')
    return tuple(dict.fromkeys(answer for answer in listed if answer.strip()))


# -------------------------------------------------------------------------------------------------------------- building


@dataclass(frozen=True, slots=True, repr=False)
class BuiltRows(Shown):
    """What was written: `rows`, of `documents` in `chunks`; `absent` pairs have a value that is in no chunk of their document."""

    path: Path
    documents: int
    chunks: int
    rows: int
    absent: int


def build_rows(
    documents: Path, out: Path, *, tokenizer: str | None = None, chunk_tokens: int = config.CHUNK_TOKENS, force: bool = False
) -> BuiltRows:
    """Writes a row for each pair and each chunk of its document that contains the value: `{chunk}\\n{key}:`, to be followed by the value.

    `documents` (any format of text) have `text`, `pairs`, key -> value, and perhaps an `id`. Chunks are consecutive, of at most
    `chunk_tokens` tokens; no character is divided. A chunk contains a value as a generation does, regardless of case.

    Raises UserError for a file that is there already unless `force`, one that cannot be read, records without text or pairs, and where
    no row results.
    """
    import orjson

    artifacts.check_addable(artifacts.list_of(out), [out.name], "rows")
    if out.exists() and not force:
        raise UserError("is there already", where=out, remedy="give another name, or --force")
    opened, counted = load_tokenizer(tokenizer), {"documents": 0, "chunks": 0, "rows": 0, "absent": 0}
    with artifacts.adding(out, "rows") as partial, partial.open("wb") as file:
        shard = file_shard(documents, _DocumentFinder())
        for name, text, pairs in read_records(shard, _document):
            counted["documents"] += 1
            found: set[str] = set()
            for number, chunk in enumerate(chunks(text, opened, chunk_tokens)):
                counted["chunks"] += 1
                for key, value in pairs.items():
                    if contains(chunk, value):
                        found.add(key)
                        row = {"doc_id": name, "chunk": number, "text": f"{chunk}\n{key}:", "key": key, "value": value}
                        file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
                        counted["rows"] += 1
            counted["absent"] += len(pairs) - len(found)
        if not counted["rows"]:
            raise UserError("no value is in its document", where=documents, remedy="check that the values are spelled as in the text")
    return BuiltRows(out, **counted)


def chunks(text: str, tokenizer: TextTokenizer, num_tokens: int) -> Iterator[str]:
    """The text in consecutive parts of at most `num_tokens` of its tokens, at least one; no character is divided."""
    import numpy as np

    _, stops = tokenizer.encode_with_stops([text])[0]
    encoded, places = text.encode(), np.concatenate([np.zeros(1, np.int64), stops])
    cuts, begin = clean_cuts(encoded, places), 0
    while begin < len(stops):
        end = cuts[np.searchsorted(cuts, begin + num_tokens, "right") - 1]
        end = int(end if end > begin else cuts[np.searchsorted(cuts, begin, "right")])
        yield encoded[places[begin] : places[end]].decode()
        begin = end


def _document(fields: Mapping[str, Any], number: int) -> tuple[str, str, dict[str, str]]:
    text, _, name = FieldFinder().find(fields)
    pairs = fields.get("pairs")
    if (
        not isinstance(text, str)
        or not isinstance(pairs, dict)
        or not all(value is None or isinstance(value, str) for value in pairs.values())
    ):
        raise FieldError(f"no pairs of texts ({present_names(fields)})", _PAIRS)
    return name or str(number), text, {key: value for key, value in pairs.items() if key and value and value.strip()}


class _DocumentFinder(FieldFinder):
    """The columns of a table that are read."""

    def columns(self, available: Any) -> list[str]:
        """Those of text and id, and `pairs`."""
        return [*super().columns(available), *(name for name in available if name == "pairs")]


def clean_cuts(encoded: bytes, places: np.ndarray) -> np.ndarray:
    """Numbers of tokens, from 0 to all, after which a text can be cut without dividing a character."""
    import numpy as np

    is_clean = (np.frombuffer(encoded + b"\n", np.uint8)[places] & 0b1100_0000) != 0b1000_0000  # a byte within a character: 10......
    is_clean[:-1] &= np.diff(places) > 0
    is_clean[[0, -1]] = True
    return np.flatnonzero(is_clean)
