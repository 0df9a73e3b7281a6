"""Recall evaluations of models: finished results are reused, interrupted runs resumed; and models
compared.

A documents table is identified by everything that determines its numbers: the model's weights and
precision, its tokenizer, the rows, and how prompts are made and cut.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from recallkit.declarations import path
from recallkit.display.exports import bare
from recallkit.errors import UserError
from recallkit.models.evaluated import check_named_once, make_missing, missing_results
from recallkit.options import CENTRED_TOKENS, RecallOptions
from recallkit.recall.answering import open_prompted
from recallkit.recall.needles import LENGTHS, SAMPLES, longest_prompt, make_needle_rows
from recallkit.recall.tasks import (
    GROUPS,
    NEEDLE_OPTIONS,
    NEEDLE_TASKS,
    OWN,
    TASKS,
    RecallRows,
    load_rows,
)
from recallkit.registry import look_up
from recallkit.storage import hashing
from recallkit.storage.result import Question, Result, folder_of, words_of
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.models.evaluated import EvaluatedModel
    from recallkit.models.spec import ModelSpec
    from recallkit.recall.tables import RecallTables


def variation(options: RecallOptions) -> str:
    """The settings that differ from the usual ones, if any: `-twice-answer-cut`."""
    words = []
    if options.prompt != "standard":
        words.append(f"-{options.prompt}")
    if options.cut == "answer":
        words.append("-answer-cut")
    if _has_own_cut(options):
        words.append(f"-{options.kept_tokens}")
    return "".join(words)


def variant(options: RecallOptions, task: str) -> str:
    """The name of a task, and of the file if rows are local, with version and variation:
    `swde-v0-twice`."""
    name, data = task, path(options.data)
    if task == OWN and data is not None:
        name = f"{task}-{hashing.file_slug(data.name.partition('.')[0])}"
    return f"{name}-v{options.task_version}{variation(options)}"


def _has_own_cut(options: RecallOptions) -> bool:
    """Whether documents are cut to another length than usual."""
    return options.cut == "answer" and options.kept_tokens != CENTRED_TOKENS


def documents_path(out: Path, model: str, variant: str) -> Path:
    """The file of a model's documents table of a task; the model is given by its name, or without
    one by its place."""
    return out / "documents" / hashing.file_slug(model) / f"{variant}.parquet"


def comparison_path(
    out: Path,
    models: Sequence[str],
    tasks: Sequence[str],
    options: RecallOptions,
    identity: Mapping[str, Any],
) -> Path:
    """The folder of the comparison of these models on these tasks, or on a group of that name, such
    as `compared/swde-v1-attention-mamba`.

    Each question has a folder of its own.
    """
    groups = [name for name, members in GROUPS.items() if list(tasks) == list(members)]
    words = [*(variant(options, task) for task in groups or tasks), *words_of(models)]
    return folder_of(out / "compared", words, identity)


@dataclass(frozen=True, slots=True)
class RecallPlan:
    """Recall evaluations, with everything checked that can be before a model is loaded."""

    models: dict[str, EvaluatedModel]
    """By the names that results show."""
    rows: dict[str, RecallRows]
    """By task."""
    documents: dict[tuple[str, str], Result]
    """The documents table of each model and task."""
    out: Path
    options: RecallOptions

    def run(self) -> tuple[RecallTables, Path]:
        """Makes the missing documents tables and the comparison, which is returned with its
        folder."""
        from recallkit.recall.tables import RecallTables, compare_recall

        models, variants = list(self.models), [variant(self.options, task) for task in self.rows]
        keys = [model.key for model in self.models.values()]
        identity = {"reference": keys[0], "models": keys, "tasks": variants}
        folder = comparison_path(self.out, models, list(self.rows), self.options, identity)
        question = Question("recall", RecallTables, folder, identity)
        question.result.check_replaceable()
        make_missing(self.models, self.documents, self._evaluate)
        timings = Timings()
        for (model, task), documents in self.documents.items():
            listing = documents.path.with_suffix(".json")
            timings.keep(f"{model}, {task}", listing, "evaluating")
        with timings.stage("comparing"):
            tables = compare_recall({pair: table.path for pair, table in self.documents.items()})
        rows = {task: rows.facts() for task, rows in self.rows.items()}
        facts = {**identity, "reference": models[0], "models": models, "rows": rows}
        question.write(tables, facts, timings)
        return tables, folder

    def _evaluate(self, model: EvaluatedModel, task: str, result: Result) -> None:
        """Makes one documents table."""
        from recallkit.recall.evaluation import recall_documents
        from recallkit.recall.prompts import make_documents
        from recallkit.recall.tables import document_row, write_documents

        options, rows, timings = self.options, self.rows[task], Timings()
        documents = list(make_documents(task, rows.rows, model.tokenizer, options))
        with result.parts(batch_size=options.batch_size) as journal:
            recalls = recall_documents(model, task, documents, journal, options, timings)
            facts = {
                **result.stamp(),
                **_settings(task, options),
                "model": model.shown,
                "source": model.location,
                "num_rows": len(documents),
                "num_dropped": rows.num_dropped,
                "comparable": rows.is_comparable,
            }
            shared = {name: facts[name] for name in ("model", "task", "version", "prompt", "cut")}
            pairs = zip(documents, recalls, strict=True)
            table = [shared | document_row(*pair) for pair in pairs]
            with result.writing(facts, timings) as new:
                facts |= {"origin": rows.origin, "tokenizer": model.tokenizer.describe()}
                write_documents(new / result.path.name, table, facts)
            journal.finish()


def plan_recall(
    models: Sequence[str | ModelSpec],
    tasks: Sequence[str],
    out: Path,
    options: RecallOptions = RecallOptions(),
) -> RecallPlan:
    """Finds rows, models, tokenizers and finished results, so that an error is reported before
    hours of work.

    The first model is the reference of the comparison. Raises UserError for everything a user can
    correct.
    """
    check_named_once("task", tasks)
    for task in tasks:
        look_up(dict(describe_tasks()), task, "recall task")
    evaluated = open_prompted(models, options)
    needles = [task for task in tasks if task in NEEDLE_TASKS]
    _check_needle_options(tasks, needles, options)
    rows = {}
    for task in tasks:
        if task in needles:
            rows[task] = _make_needles(task, evaluated, options)
        else:
            rows[task] = load_rows(task, path(options.data), options.limit)
    documents = {}
    for name, model in evaluated.items():
        for task in tasks:
            documents[name, task] = _result(model, task, rows[task], out, options)
    missing_results(evaluated, documents)
    return RecallPlan(evaluated, rows, documents, out, options)


def _check_needle_options(
    tasks: Sequence[str],
    needles: Sequence[str],
    options: RecallOptions,
) -> None:
    """Raises UserError for options of needles without a task of theirs, and for options of real
    documents with one."""
    if not needles:
        for name in NEEDLE_OPTIONS:
            if name in options.not_usual():
                problem = "applies only to needles in a haystack"
                raise UserError(problem, where=f"--{name}", remedy="add --tasks niah")
        return
    names = ", ".join(needles)
    if options.prompt != "standard" or options.cut != "left":
        where = "--prompt" if options.prompt != "standard" else "--cut"
        problem = f"does not apply to {names}, whose prompts are never changed or cut"
        raise UserError(problem, where=where, remedy="leave it out")
    if options.data is None:
        return
    if len(needles) < len(tasks):
        others = ", ".join(task for task in tasks if task not in needles)
        problem = f"means rows for {others}, but the text of the haystack for {names}"
        raise UserError(problem, where="--data", remedy="evaluate them one after the other")
    if all(NEEDLE_TASKS[task].haystack == "noise" for task in needles):
        problem = f"does not apply to {names}, whose haystack is repeated sentences"
        raise UserError(problem, where="--data", remedy="leave it out")


def _make_needles(
    task: str,
    models: Mapping[str, EvaluatedModel],
    options: RecallOptions,
) -> RecallRows:
    """The rows of a task of needles, sized by the tokenizer of the first model. Raises UserError
    where a model cannot read them whole."""
    contexts = {name: _context(model) for name, model in models.items()}
    limits = {name: size for name, size in contexts.items() if size is not None}
    least = min(limits.values(), default=max(LENGTHS))
    lengths = options.every_length or [size for size in LENGTHS if size <= least] or [least]
    reference, data = next(iter(models.values())).tokenizer, path(options.data)
    needle = NEEDLE_TASKS[task]
    rows = make_needle_rows(
        needle,
        task,
        reference,
        lengths=lengths,
        samples=options.samples or SAMPLES,
        seed=options.seed,
        data=data,
    )
    for name, limit in limits.items():
        size = max(lengths)
        if models[name].tokenizer.digest != reference.digest:
            size = longest_prompt(rows, models[name].tokenizer)
        if size > limit:
            most = f"up to {size:,} of its ids"
            problem = f"reads {limit:,} ids, and prompts of {task} with their answers have {most}"
            raise UserError(problem, where=name, remedy="give shorter --lengths")
    haystack = "repeated sentences"
    if needle.haystack == "text":
        haystack = bare(str(data or "the built-in text"))
    digest = hashing.digest_json([astuple(row) for row in rows])
    origin = f"needles in {haystack}"
    return RecallRows(rows[: options.limit], 0, digest, origin, is_comparable=False)


def _context(model: EvaluatedModel) -> int | None:
    """Ids that a model reads at most; None for one without a limit, or whose limit is not known
    before it is loaded."""
    limits = (model.context, model.facts.max_length)
    return min((limit for limit in limits if limit is not None), default=None)


def evaluate_recall(
    models: Sequence[str | ModelSpec],
    tasks: Sequence[str],
    out: Path,
    options: RecallOptions = RecallOptions(),
) -> tuple[RecallTables, Path]:
    """Evaluates each model on each task and compares them: `plan_recall` and `RecallPlan.run`."""
    return plan_recall(models, tasks, out, options).run()


def describe_tasks() -> list[tuple[str, str]]:
    """Name and description of every recall task, of groups of them, and of the sets of lm-eval's
    own."""
    from recallkit.recall.stock_tasks import SETS

    topics = {
        "jrt": "the tasks of Just Read Twice",
        "niah": "needles in a haystack, as RULER defines them",
    }
    own = [(task.name, task.description) for task in TASKS.values()]
    groups = [(name, f"{', '.join(tasks)}: {topics[name]}") for name, tasks in GROUPS.items()]
    sets = [(name, f"lm-eval's {', '.join(tasks)}, unchanged") for name, tasks in SETS.items()]
    return [*own, *groups, *sets]


def _settings(task: str, options: RecallOptions) -> dict[str, Any]:
    """How a task's prompts are made, in identities and manifests."""
    settings = {
        "task": task,
        "version": options.task_version,
        "prompt": options.prompt,
        "cut": options.cut,
    }
    if _has_own_cut(options):
        settings["cut_tokens"] = options.kept_tokens
    return settings


def _result(
    model: EvaluatedModel,
    task: str,
    rows: RecallRows,
    out: Path,
    options: RecallOptions,
) -> Result:
    """A documents table as a result."""
    identity = {
        **model.identity,
        **_settings(task, options),
        "rows": rows.digest,
        "num_rows": len(rows.rows),
    }
    file = documents_path(out, model.key, variant(options, task))
    return Result(file, "recall documents", identity, force=options.force, remedy=model.remedy)
