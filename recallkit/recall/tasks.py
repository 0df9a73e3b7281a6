"""The recall evaluations: their names, and where their rows come from."""

from __future__ import annotations

import fnmatch
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Literal

from recallkit.errors import UserError
from recallkit.recall.needles import NeedleTask
from recallkit.recall.packages import read_installed
from recallkit.recall.rows import RecallRow, RowFinder, read_records
from recallkit.registry import look_up
from recallkit.storage.hashing import digest_json
from recallkit.text.readers import compressed, suffix_of
from recallkit.text.rows import HubShard
from recallkit.text.sources import file_shard

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from recallkit.recall.rows import QuestionRow
    from recallkit.text.readers import Shard

SUFFIXES = (*compressed(".jsonl"), ".parquet")
_REVISION = "main"
_MOST_ROW_CHARACTERS, _ROW_CHARACTERS = 1 << 28, 250
"""Characters of all rows of a task, which are in memory together; as what a row itself counts."""


@dataclass(frozen=True, slots=True)
class RecallRows:
    """Rows in their order. `num_dropped` others had an empty value, which would match anything.

    `digest` covers all rows as they were read, including dropped ones and those past a limit;
    `origin` describes where they are from; `is_comparable`: whether figures on them are published;
    `note`: why not, where their number says so.
    """

    rows: Sequence[RecallRow | QuestionRow]
    num_dropped: int
    digest: str
    origin: str
    is_comparable: bool
    note: str = ""

    def facts(self) -> dict[str, Any]:
        """Their fields in the manifest of a comparison."""
        return {"origin": self.origin, "digest": self.digest, "note": self.note}


@dataclass(frozen=True, slots=True)
class KnownTask:
    """A recall evaluation. `is_comparable`: with published figures, on the hub's rows. `num_rows`:
    how many these were when the figures were made, as their cards say (docs/recall.md); None where
    no source states it.

    `rows`: whether a row is a text with a value, a question with answers, or either; `needles`:
    what they are made of, where they are made.
    """

    name: str
    hub_id: str | None
    description: str
    is_comparable: bool = False
    rows: Literal["text", "question", "either"] = "text"
    needles: NeedleTask | None = None
    num_rows: int | None = None


OWN = "own"


def _hub_task(
    name: str,
    dataset: str,
    description: str,
    num_rows: int | None,
    rows: Literal["text", "question"] = "text",
) -> KnownTask:
    """A task on rows of the authors' on the hub."""
    hub_id = f"hazyresearch/{dataset}"
    return KnownTask(name, hub_id, description, True, rows, num_rows=num_rows)


def _question_task(name: str, description: str, num_rows: int | None = None) -> KnownTask:
    """A task of JRT's with several answers to a question."""
    return _hub_task(name, f"based_{name}", description, num_rows, "question")


def _needle_task(name: str, description: str, needles: NeedleTask) -> KnownTask:
    return KnownTask(name, None, description, needles=needles)


_WEB_PAGES = "attributes of web pages (SWDE)"
_SUMMARIES = "entries of FDA 510(k) decision summaries"
_PARAGRAPHS = "answers in Wikipedia paragraphs (SQuAD)"
_SEARCHES = "questions to a search engine, in {} tokens of a Wikipedia page (NQ)"
_QUIZZES = "quiz questions, in pages found for them (TriviaQA)"
_FACTS = "questions about a Wikipedia paragraph that need several of its facts (DROP)"
_HEADERS = "headers of installed Python packages"
_DIFFERS = "differs between installations, not comparable with published figures"

TASKS = {
    task.name: task
    for task in (
        _hub_task("swde", "based-swde-v2", _WEB_PAGES, 1111),
        _hub_task("fda", "based-fda", _SUMMARIES, 1102),
        _hub_task("squad", "based-squad", _PARAGRAPHS, 2984),
        _question_task("nq_512", _SEARCHES.format(512), 3157),
        _question_task("nq_1024", _SEARCHES.format(1024)),
        _question_task("nq_2048", _SEARCHES.format(2048)),
        _question_task("triviaqa", _QUIZZES),
        _question_task("drop", _FACTS),
        KnownTask("metadata", None, f"{_HEADERS}; {_DIFFERS}"),
        _needle_task(
            "niah_single_1",
            "a number hidden in repeated sentences (RULER's S-NIAH-1)",
            NeedleTask("noise"),
        ),
        _needle_task(
            "niah_single_2",
            "a number hidden in a text (S-NIAH-2)",
            NeedleTask("text"),
        ),
        _needle_task(
            "niah_single_3",
            "a UUID hidden in a text (S-NIAH-3)",
            NeedleTask("text", "uuid"),
        ),
        _needle_task(
            "niah_multikey_1",
            "one of four numbers hidden in a text (MK-NIAH-1)",
            NeedleTask("text", keys=4),
        ),
        KnownTask(OWN, None, "rows of your own: --data FILE", rows="either"),
    )
}
QUESTION_TASKS = [task.name for task in TASKS.values() if task.rows == "question"]
NEEDLE_TASKS = {task.name: task.needles for task in TASKS.values() if task.needles}
NEEDLE_OPTIONS = ("lengths", "samples", "seed")
"""Options of these tasks alone."""
GROUPS = {"jrt": ("swde", "fda", "squad", *QUESTION_TASKS), "niah": tuple(NEEDLE_TASKS)}
"""Tasks that have a name together: those of Just Read Twice (arXiv 2407.05483), and the needles of
RULER (arXiv 2404.06654)."""


_READ_TASKS = [task for task in TASKS if task not in NEEDLE_TASKS]


def expand_groups(names: Sequence[str]) -> list[str]:
    """Names of tasks, a group's replaced by those of its tasks."""
    return [task for name in names for task in GROUPS.get(name, (name,))]


def tasks_of(data: Path | None) -> list[str]:
    """The default tasks: those that a folder has files for, the one that a file is named for.

    `metadata` without data, `own` for a file of another name. Raises UserError for a folder without
    any.
    """
    if data is None:
        return ["metadata"]
    is_folder = data.is_dir()
    paths = sorted(data.iterdir()) if is_folder else [data]
    names = [path.name for path in paths if not is_folder or suffix_of(path.name, SUFFIXES)]
    tasks = [task for task in _READ_TASKS if fnmatch.filter(names, f"{task}*")]
    if not tasks and is_folder:
        patterns = ", ".join(f"{task}*.jsonl" for task in _READ_TASKS)
        remedy = f"name files {patterns}, or give a file"
        raise UserError("no rows in this folder", where=data, remedy=remedy)
    return tasks or [OWN]


def load_rows(task: str, data: Path | None = None, limit: int | None = None) -> RecallRows:
    """The rows of a task: of the hub's validation split, or of `data`, a file or a folder with a
    file for the task.

    `limit` keeps the first rows that have a value. Raises UserError for an unknown task, a file
    that is missing or damaged, a bad row, and if no row has a value.
    """
    known = look_up(TASKS, task, "recall task")
    every_row, origin = _read(known, data)
    rows = [row for row in every_row if row.value.strip()]
    if not rows:
        remedy = "check that these are the rows of a recall evaluation"
        raise UserError("no row has a value", where=origin, remedy=remedy)
    number, is_hub, note = len(every_row), data is None and known.is_comparable, ""
    if is_hub and known.num_rows not in (None, number):
        note = f"{number:,} rows, while published figures are of {known.num_rows:,}"
    digest = digest_json([astuple(row) for row in every_row])
    is_comparable = is_hub and not note
    return RecallRows(rows[:limit], number - len(rows), digest, origin, is_comparable, note)


def _read(task: KnownTask, data: Path | None) -> tuple[Sequence[RecallRow | QuestionRow], str]:
    """All rows, and a description of their origin."""
    finder = RowFinder(task.rows)
    if data is not None:
        shard: Shard = file_shard(_find_file(task, data), finder)
    elif task.hub_id is not None:
        name = f"{task.hub_id}@{_REVISION}"
        shard = HubShard(name, task.name, finder, task.hub_id, "validation", _REVISION)
    elif task.name == OWN:
        raise UserError("it needs rows", where=OWN, remedy="give them with --data FILE")
    else:
        return read_installed()
    try:
        return _fitting(read_records(shard, finder.row), shard.name), shard.name
    except UserError as error:
        if data is not None:
            raise
        remedy = "check the dataset and the network, or give local rows with --data"
        raise UserError(error.problem, where=error.where, remedy=remedy) from error


def _fitting(rows: Iterable[RecallRow | QuestionRow], where: str) -> list[RecallRow | QuestionRow]:
    """All rows. Raises UserError for more than fit into memory."""
    fitting, total = [], 0
    for row in rows:
        text = row.text if isinstance(row, RecallRow) else row.orig_question
        parts = (row.context, row.question, text, *row.answers)
        total += _ROW_CHARACTERS + sum(len(part) for part in parts if part)
        if total > _MOST_ROW_CHARACTERS:
            problem = f"rows of more than {_MOST_ROW_CHARACTERS:,} characters in all"
            raise UserError(problem, where=where, remedy="give fewer rows")
        fitting.append(row)
    return fitting


def _find_file(task: KnownTask, data: Path) -> Path:
    """`data`, or the task's file in that folder: with the task's exact name, or else the only one
    whose name begins with it."""
    if not data.is_dir():
        if not data.is_file():
            raise UserError("no such file or folder", where=data, remedy="check the path")
        if suffix_of(data.name, SUFFIXES) is None:
            remedy = f"give {', '.join(SUFFIXES)}"
            raise UserError("not a supported kind of file", where=data, remedy=remedy)
        return data
    for suffix in SUFFIXES:
        if (path := data / f"{task.name}{suffix}").is_file():
            return path
    near = sorted(path for path in data.glob(f"{task.name}*") if path.is_file())
    near = [path for path in near if suffix_of(path.name, SUFFIXES)]
    if not near:
        patterns = [f"{task.name}{star}{suffix}" for star in ("", "*") for suffix in SUFFIXES]
        problem = f"no file for {task.name}: looked for {', '.join(patterns)}"
        raise UserError(problem, where=data, remedy="rename it, or give the file itself")
    if len(near) > 1:
        names = ", ".join(path.name for path in near)
        problem = f"several files for {task.name}: {names}"
        raise UserError(problem, where=data, remedy="give one of them")
    return near[0]
