"""The recall evaluations: their names, where their rows come from, and the built-in one, headers of installed packages."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Literal

from recallkit import config
from recallkit.errors import UserError
from recallkit.recall.needles import NeedleTask
from recallkit.recall.rows import RecallRow, RowFinder, read_records
from recallkit.registry import look_up
from recallkit.storage.artifacts import digest_bytes, digest_json
from recallkit.text.readers import compressed, suffix_of
from recallkit.text.rows import HubShard
from recallkit.text.sources import file_shard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from importlib.metadata import Distribution
    from pathlib import Path

    from recallkit.recall.rows import QuestionRow
    from recallkit.text.readers import Shard

SUFFIXES = (*compressed(".jsonl"), ".parquet")
_REVISION = "main"
_KEYS = (
    *("Name", "Version", "Summary", "Author", "Author-email", "Maintainer", "Maintainer-email", "License", "License-Expression"),
    *("Home-page", "Download-URL", "Requires-Python", "Keywords", "Description-Content-Type"),
)
"""Headers of packages that are asked for."""
_MOST_CHARACTERS = 4000
_VALUE_CHARACTERS = range(2, 101)
_MOST_ROW_CHARACTERS, _ROW_CHARACTERS = 1 << 28, 250
"""Characters of all rows of a task, which are in memory together; as what a row itself counts."""


@dataclass(frozen=True, slots=True)
class RecallRows:
    """Rows in their order. `num_dropped` others had an empty value, which would match anything.

    `digest` covers all rows as they were read, including dropped ones and those past a limit; `origin` describes
    where they are from; `is_comparable`: whether figures on them are published; `note`: why not, where their number says so.
    """

    rows: Sequence[RecallRow | QuestionRow]
    num_dropped: int
    digest: str
    origin: str
    is_comparable: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class KnownTask:
    """A recall evaluation. `lm_eval_name` is lm-eval's name for it, or that of JRT's authors; `is_comparable`: with published figures, on
    the hub's rows. `num_rows`: how many these were when the figures were made, as their cards say (docs/recall.md); None where no source
    states it.

    `rows`: whether a row is a text with a value, a question with answers, or either; `needles`: what they are made of, where they are made.
    """

    name: str
    hub_id: str | None
    description: str
    lm_eval_name: str | None = None
    is_comparable: bool = False
    rows: Literal["text", "question", "either"] = "text"
    needles: NeedleTask | None = None
    num_rows: int | None = None


OWN = "own"


def _hub_task(name: str, dataset: str, description: str, lm_eval_name: str, num_rows: int | None, **more: Any) -> KnownTask:
    """A task on rows of the authors' on the hub."""
    return KnownTask(name, f"hazyresearch/{dataset}", description, lm_eval_name, is_comparable=True, num_rows=num_rows, **more)


def _question_task(name: str, description: str, num_rows: int | None = None) -> KnownTask:
    """A task of JRT's with several answers to a question, whose dataset and task have the same name."""
    return _hub_task(name, f"based_{name}", description, f"based_{name}", num_rows, rows="question")


TASKS = {
    task.name: task
    for task in (
        _hub_task("swde", "based-swde-v2", "attributes of web pages (SWDE)", "swde", 1111),
        _hub_task("fda", "based-fda", "entries of FDA 510(k) decision summaries", "fda", 1102),
        _hub_task("squad", "based-squad", "answers in Wikipedia paragraphs (SQuAD)", "squad_completion", 2984),
        *(
            _question_task(f"nq_{n}", f"questions to a search engine, in {n} tokens of a Wikipedia page (NQ)", rows)
            for n, rows in ((512, 3157), (1024, None), (2048, None))
        ),
        _question_task("triviaqa", "quiz questions, in pages found for them (TriviaQA)"),
        _question_task("drop", "questions about a Wikipedia paragraph that need several of its facts (DROP)"),
        KnownTask(
            "metadata", None, "headers of installed Python packages; differs between installations, not comparable with published figures"
        ),
        KnownTask("niah_single_1", None, "a number hidden in repeated sentences (RULER's S-NIAH-1)", needles=NeedleTask("noise")),
        KnownTask("niah_single_2", None, "a number hidden in a text (S-NIAH-2)", needles=NeedleTask("text")),
        KnownTask("niah_single_3", None, "a UUID hidden in a text (S-NIAH-3)", needles=NeedleTask("text", "uuid")),
        KnownTask("niah_multikey_1", None, "one of four numbers hidden in a text (MK-NIAH-1)", needles=NeedleTask("text", keys=4)),
        KnownTask(OWN, None, "rows of your own: --data FILE", rows="either"),
    )
}
QUESTION_TASKS = [task.name for task in TASKS.values() if task.rows == "question"]
NEEDLE_TASKS = {task.name: task.needles for task in TASKS.values() if task.needles}
NEEDLE_OPTIONS = ("lengths", "samples", "seed")
"""Options of these tasks alone."""
GROUPS = {"jrt": ("swde", "fda", "squad", *QUESTION_TASKS), "niah": tuple(NEEDLE_TASKS)}
"""Tasks that have a name together: those of Just Read Twice (arXiv 2407.05483), and the needles of RULER (arXiv 2404.06654)."""


_READ_TASKS = [task for task in TASKS if task not in NEEDLE_TASKS]


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
    found = [task for task in _READ_TASKS if any(name.startswith(task) for name in names)]
    if not found and data.is_dir():
        begun = ", ".join(f"{task}*.jsonl" for task in _READ_TASKS)
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
    is_hub, note = data is None and known.is_comparable, ""
    if is_hub and known.num_rows not in (None, len(rows)):
        note = f"{len(rows):,} rows, while published figures are of {known.num_rows:,}"
    return RecallRows(kept[:limit], len(rows) - len(kept), digest, origin, is_hub and not note, note)


def _read(task: KnownTask, data: Path | None) -> tuple[Sequence[RecallRow | QuestionRow], str]:
    """All rows, and a description of their origin."""
    finder = RowFinder(task.rows)
    if data is not None:
        found = _find_file(task, data)
        shard: Shard = file_shard(found, finder)
    elif task.hub_id is not None:
        shard = HubShard(f"{task.hub_id}@{_REVISION}", task.name, finder, task.hub_id, "validation", _REVISION)
    elif task.name == OWN:
        raise UserError("it needs rows", where=OWN, remedy="give them with --data FILE")
    else:
        return _read_installed()
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
        parts = (row.context, row.question, row.text if isinstance(row, RecallRow) else row.asked, *row.answers)
        total += _ROW_CHARACTERS + sum(len(part) for part in parts if part)
        if total > _MOST_ROW_CHARACTERS:
            problem = f"rows of more than {_MOST_ROW_CHARACTERS:,} characters in all"
            raise UserError(problem, where=where, remedy="give fewer rows")
        fitting.append(row)
    return fitting


def _find_file(task: KnownTask, data: Path) -> Path:
    """`data`, or the task's file in that folder: with the task's exact name, or else the only one whose name begins with it."""
    if not data.is_dir():
        if not data.is_file():
            raise UserError("no such file or folder", where=data, remedy="check the path")
        if suffix_of(data.name, SUFFIXES) is None:
            raise UserError("not a supported kind of file", where=data, remedy=f"give {', '.join(SUFFIXES)}")
        return data
    exact = [data / f"{task.name}{suffix}" for suffix in SUFFIXES]
    named = [path for path in exact if path.is_file()]
    begun = [path for path in sorted(data.glob(f"{task.name}*")) if path.is_file() and suffix_of(path.name, SUFFIXES)]
    found = named[:1] or begun
    if not found:
        looked_for = ", ".join([path.name for path in exact] + [f"{task.name}*{suffix}" for suffix in SUFFIXES])
        raise UserError(f"no file for {task.name}: looked for {looked_for}", where=data, remedy="rename it, or give the file itself")
    if len(found) > 1:
        raise UserError(f"several files for {task.name}: {', '.join(path.name for path in found)}", where=data, remedy="give one of them")
    return found[0]


def _read_installed() -> tuple[list[RecallRow], str]:
    """The built-in task, which needs neither hub nor file: headers of all installed packages, asked for after their METADATA; its origin.

    Rows are shuffled, so that the first ones are a sample; they differ between installations.
    """
    projects = installed_projects()
    rows = [row for project in projects for row in _rows_of(project)]
    rows.sort(key=lambda row: digest_bytes(row.doc_id.encode(), str(row.key).encode()))
    return rows, f"METADATA of {len(projects)} installed packages"


def _rows_of(project: InstalledProject) -> Iterator[RecallRow]:
    """One row per key that occurs once among the headers, and whose line is completely in the document."""
    headers = [(key, value.strip()) for key, value in project.headers if len(value.splitlines()) <= 1]
    lines = [f"{key}: {value}" for key, value in headers]
    document = "\n".join(lines) + f"\n\n{project.description}"
    if len(document) > _MOST_CHARACTERS:  # the lines that end within the first 4,000 characters
        document = document[: _MOST_CHARACTERS + 1].rpartition("\n")[0]
    kept = set(document.split("\n"))
    times = Counter(key for key, _ in headers)
    for (key, value), line in zip(headers, lines, strict=True):
        if key in _KEYS and times[key] == 1 and len(value) in _VALUE_CHARACTERS and line in kept:
            yield RecallRow(doc_id=project.name, text=f"{document}\n{key}:", value=value, key=key)


@dataclass(frozen=True, slots=True)
class InstalledProject:
    """The metadata of an installed project; `headers` are (name, value), the description not among them."""

    name: str
    version: str
    description: str
    headers: tuple[tuple[str, str], ...]


def installed_projects() -> list[InstalledProject]:
    """Installed projects by canonical name, each once even if several copies are on the path; broken ones are left out.

    Among copies, one with a description takes precedence, then the one whose version string sorts last.
    """
    from importlib.metadata import distributions

    found: dict[str, InstalledProject] = {}
    for project in filter(None, map(_described, distributions())):
        if project.name != config.DISTRIBUTION:
            found[project.name] = max(found.get(project.name, project), project, key=_preference)
    return [project for _, project in sorted(found.items())]


def _preference(project: InstalledProject) -> tuple[bool, str, str]:
    return bool(project.description), project.version, project.description


def _described(distribution: Distribution) -> InstalledProject | None:
    """The parsed metadata, with the name in canonical form; None if they are broken or have no name."""
    try:
        fields: Any = distribution.metadata
    except (OSError, ValueError):
        return None
    name = re.sub(r"[-_.]+", "-", fields.get("Name") or "").lower()
    text = (fields.get("Description") or "").strip()
    headers = tuple((header, str(value)) for header, value in fields.items() if header.lower() != "description")
    return InstalledProject(name, str(fields.get("Version")), "" if text == "UNKNOWN" else text, headers) if name else None
