"""Rows of recall evaluations: a text that ends with a query, and the value to recall; or a context, a question and its answers."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Literal

from recallkit import config
from recallkit.errors import UserError
from recallkit.recall.package_metadata import read_installed
from recallkit.recall.prompts import QuestionRow, RecallRow
from recallkit.registry import look_up
from recallkit.storage.artifacts import digest_json
from recallkit.text.fields import FieldError, FieldFinder, kind_of, present_names
from recallkit.text.hub import HubShard
from recallkit.text.readers import COMPRESSION, JsonLinesShard, suffix_of
from recallkit.text.tables import ParquetShard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from recallkit.text.readers import Shard

SUFFIXES = (*COMPRESSION, ".parquet")
_REVISION = "main"
_FIELDS = ("doc_id", "text", "value", "key", "answers", "question", "context", "orig_question")
_NEEDED = {"text": ("text", "value"), "question": ("context", "question", "answers")}
_NEEDS = {"text": "a text and a value", "question": "a context, a question and answers"}


@dataclass(frozen=True, slots=True)
class RecallRows:
    """Rows in their order. `num_dropped` others had an empty value, which would match anything.

    `digest` covers all rows as they were read, including dropped ones and those past a limit; `origin` describes
    where they are from; `is_comparable`: whether figures on them are published.
    """

    rows: list[RecallRow | QuestionRow]
    num_dropped: int
    digest: str
    origin: str
    is_comparable: bool


@dataclass(frozen=True, slots=True)
class KnownTask:
    """A recall evaluation. `lm_eval_name` is lm-eval's name for it, or that of JRT's authors; `is_comparable`: with published figures, on
    the hub's rows.

    `rows`: whether a row is a text with a value, a question with answers, or either.
    """

    name: str
    hub_id: str | None
    description: str
    lm_eval_name: str | None = None
    is_comparable: bool = False
    rows: Literal["text", "question", "either"] = "text"


OWN = "own"


def _question_task(name: str, description: str) -> KnownTask:
    """A task of JRT's with several answers to a question, whose dataset and task have the same name."""
    return KnownTask(name, f"hazyresearch/based_{name}", description, f"based_{name}", is_comparable=True, rows="question")


TASKS = {
    task.name: task
    for task in (
        KnownTask("swde", "hazyresearch/based-swde-v2", "attributes of web pages (SWDE)", "swde", is_comparable=True),
        KnownTask("fda", "hazyresearch/based-fda", "entries of FDA 510(k) decision summaries", "fda", is_comparable=True),
        KnownTask("squad", "hazyresearch/based-squad", "answers in Wikipedia paragraphs (SQuAD)", "squad_completion", is_comparable=True),
        *(_question_task(f"nq_{n}", f"questions to a search engine, in {n} tokens of a Wikipedia page (NQ)") for n in (512, 1024, 2048)),
        _question_task("triviaqa", "quiz questions, in pages found for them (TriviaQA)"),
        _question_task("drop", "questions about a Wikipedia paragraph that need several of its facts (DROP)"),
        KnownTask(
            "metadata", None, "headers of installed Python packages; differs between installations, not comparable with published figures"
        ),
        KnownTask(OWN, None, "rows of your own: --data FILE", rows="either"),
    )
}
QUESTION_TASKS = [task.name for task in TASKS.values() if task.rows == "question"]
GROUPS = {"jrt": ("swde", "fda", "squad", *QUESTION_TASKS)}
"""Tasks that have a name together: those of Just Read Twice (arXiv 2407.05483)."""


def expand_groups(names: Sequence[str]) -> list[str]:
    """Names of tasks, a group's replaced by those of its tasks."""
    return [each for name in names for each in GROUPS.get(name, (name,))]


def tasks_of(data: Path | None) -> list[str]:
    """The default tasks: those that a folder has files for, the one that a file is named for.

    `metadata` without data, `own` for a file of another name. Raises UserError for a folder without any.
    """
    if data is None:
        return ["metadata"]
    names = [path.name for path in sorted(data.iterdir()) if suffix_of(path.name, SUFFIXES)] if data.is_dir() else [data.name]
    found = [task for task in TASKS if any(name.startswith(task) for name in names)]
    if not found and data.is_dir():
        begun = ", ".join(f"{task}*.jsonl" for task in TASKS)
        raise UserError("no rows in this folder", where=data, remedy=f"name files {begun}, or give a file")
    return found or [OWN]


def load_rows(task: str, data: Path | None = None, limit: int | None = None) -> RecallRows:
    """The rows of a task: of the hub's validation split, or of `data`, a file or a folder with a file for the task.

    `limit` keeps the first rows that have a value. Raises UserError for an unknown task, a file that is missing or
    damaged, a bad row, and if no row has a value.
    """
    known = look_up(TASKS, task, "recall task")
    rows, origin = _read(known, data)
    kept = [row for row in rows if row.value.strip()]
    if not kept:
        raise UserError("no row has a value", where=origin, remedy="check that these are the rows of a recall evaluation")
    digest = digest_json([astuple(row) for row in rows])
    return RecallRows(kept[:limit], len(rows) - len(kept), digest, origin, known.is_comparable and data is None)


def _read(task: KnownTask, data: Path | None) -> tuple[Sequence[RecallRow | QuestionRow], str]:
    """All rows, and a description of their origin."""
    finder = _RowFinder(task)
    if data is not None:
        shard = _file_shard(_find_file(task, data), finder)
    elif task.hub_id is not None:
        shard = HubShard(f"{task.hub_id}@{_REVISION}", task.hub_id, "validation", task.name, finder, _REVISION)
    elif task.name == OWN:
        raise UserError("it needs rows", where=OWN, remedy="give them with --data FILE")
    else:
        return read_installed()
    try:
        return list(_rows_of(shard, finder)), shard.name
    except UserError as error:
        if data is not None:
            raise
        remedy = "check the dataset and the network, or give local rows with --data"
        raise UserError(error.problem, where=error.where, remedy=remedy) from error


class _RowFinder(FieldFinder):
    """Finds a task's rows in records, and the required columns of tables."""

    def __init__(self, task: KnownTask) -> None:
        super().__init__()
        self._task = task

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
        form: str = self._task.rows
        if form == "either":
            form = "question" if fields.get("text") is None and fields.get("context") is not None else "text"
        missing = next((name for name in _NEEDED[form] if fields.get(name) is None), None)
        if missing is None:
            return form
        needed = ", or ".join(_NEEDS.values()) if self._task.rows == "either" else _NEEDS[form]
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


def _rows_of(shard: Shard, finder: _RowFinder) -> Iterator[RecallRow | QuestionRow]:
    def on_bad(record: int, problem: str, remedy: str) -> None:
        raise UserError(problem, where=shard.place(record), remedy=remedy)

    for number, fields in shard.records(0, on_bad):
        try:
            yield finder.row(fields, number)
        except FieldError as error:
            on_bad(number, str(error), error.remedy)


def _find_file(task: KnownTask, data: Path) -> Path:
    """`data`, or the task's file in that folder: with the task's exact name, or else the only one whose name begins with it."""
    if not data.is_dir():
        return data
    exact = [data / f"{task.name}{suffix}" for suffix in SUFFIXES]
    named = [path for path in exact if path.is_file()]
    begun = [path for path in sorted(data.glob(f"{task.name}*")) if path.is_file() and suffix_of(path.name, SUFFIXES)]
    found = named[:1] or begun
    if not found:
        looked_for = ", ".join([path.name for path in exact] + [f"{task.name}*{suffix}" for suffix in SUFFIXES])
        raise UserError(f"no file for {task.name}: looked for {looked_for}", where=data, remedy="rename it so, or give the file itself")
    if len(found) > 1:
        raise UserError(f"several files for {task.name}: {', '.join(path.name for path in found)}", where=data, remedy="give one of them")
    return found[0]


def _file_shard(path: Path, finder: _RowFinder) -> Shard:
    suffix = suffix_of(path.name, SUFFIXES)
    if not path.is_file():
        raise UserError("no such file or folder", where=path, remedy="check the path")
    if suffix is None:
        raise UserError("not a supported kind of file", where=path, remedy=f"give {', '.join(SUFFIXES)}")
    shared = (str(path), path, path.name[: -len(suffix)], finder)
    return ParquetShard(*shared) if suffix == ".parquet" else JsonLinesShard(*shared, COMPRESSION[suffix])
