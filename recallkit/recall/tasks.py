"""Rows of the recall evaluations SWDE, FDA and SQuAD, and of the built-in one: a text that ends with a query, and the value to recall."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.recall.package_metadata import read_installed
from recallkit.recall.prompts import RecallRow
from recallkit.registry import look_up
from recallkit.storage.artifacts import digest_json
from recallkit.text.fields import FieldError, FieldFinder, kind_of, present_names
from recallkit.text.hub import HubShard
from recallkit.text.readers import COMPRESSION, JsonLinesShard, suffix_of
from recallkit.text.tables import ParquetShard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from recallkit.text.readers import Shard

SUFFIXES = (*COMPRESSION, ".parquet")
_REVISION = "main"
_FIELDS = ("doc_id", "text", "value", "key", "answers", "question", "context")


@dataclass(frozen=True, slots=True)
class RecallRows:
    """Rows in their order. `num_dropped` others had an empty value, which would match anything.

    `digest` covers all rows as they were read, including dropped ones and those past a limit; `origin` describes
    where they are from; `is_comparable`: whether figures on them are published.
    """

    rows: list[RecallRow]
    num_dropped: int
    digest: str
    origin: str
    is_comparable: bool


@dataclass(frozen=True, slots=True)
class KnownTask:
    """A recall evaluation. `lm_eval_name` is lm-eval's name for it; `is_comparable`: with published figures, on the hub's rows."""

    name: str
    hub_id: str | None
    description: str
    lm_eval_name: str | None = None
    is_comparable: bool = False


OWN = "own"

TASKS = {
    task.name: task
    for task in (
        KnownTask("swde", "hazyresearch/based-swde-v2", "attributes of web pages (SWDE)", "swde", is_comparable=True),
        KnownTask("fda", "hazyresearch/based-fda", "entries of FDA 510(k) decision summaries", "fda", is_comparable=True),
        KnownTask("squad", "hazyresearch/based-squad", "answers in Wikipedia paragraphs (SQuAD)", "squad_completion", is_comparable=True),
        KnownTask(
            "metadata", None, "headers of installed Python packages; differs between installations, not comparable with published figures"
        ),
        KnownTask(OWN, None, "rows of your own: --data FILE"),
    )
}


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


def _read(task: KnownTask, data: Path | None) -> tuple[list[RecallRow], str]:
    """All rows, and a description of their origin."""
    if data is not None:
        shard = _file_shard(_find_file(task, data))
    elif task.hub_id is not None:
        shard = HubShard(f"{task.hub_id}@{_REVISION}", task.hub_id, "validation", task.name, _FINDER, _REVISION)
    elif task.name == OWN:
        raise UserError("it needs rows", where=OWN, remedy="give them with --data FILE")
    else:
        return read_installed()
    try:
        return list(_rows_of(shard)), shard.name
    except UserError as error:
        if data is not None:
            raise
        remedy = "check the dataset and the network, or give local rows with --data"
        raise UserError(error.problem, where=error.where, remedy=remedy) from error


class _RowFinder(FieldFinder):
    """Finds rows in records, and the required columns of tables."""

    def columns(self, available: Iterable[str]) -> list[str]:
        """The columns of a table that make up a row. Raises FieldError if text or value is missing."""
        names = list(available)
        for name in ("text", "value"):
            if name not in names:
                raise _missing(name, dict.fromkeys(names))
        return [name for name in names if name in _FIELDS]

    def row(self, fields: Mapping[str, Any], number: int) -> RecallRow:
        """The row in a record of this number. Raises FieldError if a field is missing or of another type."""
        text, value = _string(fields, "text"), _string(fields, "value")
        if text is None or value is None:
            raise _missing("text" if text is None else "value", fields)
        if not text.strip():
            raise FieldError("the text is empty", "fix or remove the row")
        return RecallRow(
            doc_id=_doc_id(fields, number),
            text=text,
            value=value,
            key=_string(fields, "key") or None,
            answers=_answers(fields.get("answers")),
            question=_string(fields, "question"),
            context=_string(fields, "context"),
        )


def _missing(name: str, fields: Mapping[str, Any]) -> FieldError:
    return FieldError(f"no {name} ({present_names(fields)})", "every row needs a text and a value")


def _string(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
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


_FINDER = _RowFinder()


def _rows_of(shard: Shard) -> Iterator[RecallRow]:
    def on_bad(record: int, problem: str, remedy: str) -> None:
        raise UserError(problem, where=shard.place(record), remedy=remedy)

    for number, fields in shard.records(0, on_bad):
        try:
            yield _FINDER.row(fields, number)
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


def _file_shard(path: Path) -> Shard:
    suffix = suffix_of(path.name, SUFFIXES)
    if not path.is_file():
        raise UserError("no such file or folder", where=path, remedy="check the path")
    if suffix is None:
        raise UserError("not a supported kind of file", where=path, remedy=f"give {', '.join(SUFFIXES)}")
    shared = (str(path), path, path.name[: -len(suffix)], _FINDER)
    return ParquetShard(*shared) if suffix == ".parquet" else JsonLinesShard(*shared, COMPRESSION[suffix])
