"""Recall evaluations of models: finished results are reused, interrupted runs resumed; and models compared.

A documents table is identified by everything that determines its numbers: the model's weights and precision, its
tokenizer, the rows asked, and how prompts are made and cut.
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
from recallkit.recall.needles import LENGTHS, SAMPLES, NeedleRow, NoRoomError, longest_prompt, make_needle_rows
from recallkit.recall.tasks import GROUPS, NEEDLE_OPTIONS, NEEDLE_TASKS, OWN, TASKS, RecallRows, load_rows
from recallkit.registry import look_up
from recallkit.storage import artifacts
from recallkit.storage.result import Question, Result, folder_of, words_of
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from recallkit.models.evaluated import EvaluatedModel
    from recallkit.models.spec import ModelSpec
    from recallkit.parallel.parts import Share
    from recallkit.recall.lm_eval_model import Recall
    from recallkit.recall.rows import QuestionRow, RecallRow
    from recallkit.recall.tables import RecallTables
    from recallkit.text.tokenizers import TextTokenizer


def variation(options: RecallOptions) -> str:
    """The settings that differ from the usual ones, if any: `-twice-answer-cut`."""
    tokens = f"-{options.kept_tokens}" * _has_own_cut(options)
    return f"-{options.prompt}" * (options.prompt != "standard") + f"-answer-cut{tokens}" * (options.cut == "answer")


def variant(options: RecallOptions, task: str) -> str:
    """The name of a task, and of the file if rows are local, with version and variation: `swde-v0-twice`."""
    data = path(options.data)
    own = f"-{artifacts.file_slug(data.name.partition('.')[0])}" if task == OWN and data is not None else ""
    return f"{task}{own}-v{options.task_version}{variation(options)}"


def _has_own_cut(options: RecallOptions) -> bool:
    """Whether documents are cut to another length than usual."""
    return options.cut == "answer" and options.kept_tokens != CENTRED_TOKENS


def documents_path(out: Path, model: str, variant: str) -> Path:
    """The file of a model's documents table of a task; the model is given by its name, or without one by its place."""
    return out / "documents" / artifacts.file_slug(model) / f"{variant}.parquet"


def comparison_path(
    out: Path,
    models: Sequence[str],
    tasks: Sequence[str],
    options: RecallOptions,
    question: Mapping[str, Any],
) -> Path:
    """The folder of the comparison of these models on these tasks, or on a group of that name, such
    as `compared/swde-v1-attention-mamba`.

    Each question has a folder of its own.
    """
    named = [name for name, members in GROUPS.items() if list(tasks) == list(members)] or tasks
    words = [*(variant(options, task) for task in named), *words_of(models)]
    return folder_of(out / "compared", words, question)


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

    def run_share(self, share: Share) -> dict[str, dict[str, Any]]:
        """Answers a share of what is asked; see `lm_eval_model.answer_share`."""
        from recallkit.recall.lm_eval_model import answer_share
        from recallkit.recall.lm_eval_run import requests_of

        def requests(model: EvaluatedModel, task: str) -> dict[str, Any]:
            return requests_of(self._load(task, self._documents(model, task)))

        return answer_share(self.models, self.documents, requests, self.options, share)

    def run(self) -> tuple[RecallTables, Path]:
        """Makes the missing documents tables and lm-eval's files, and the comparison, which is returned with its folder."""
        from recallkit.recall.tables import RecallTables, compare_recall

        models, variants = list(self.models), [variant(self.options, task) for task in self.rows]
        keys = [evaluated.key for evaluated in self.models.values()]
        identity = {"reference": keys[0], "models": keys, "tasks": variants}
        folder = comparison_path(self.out, models, list(self.rows), self.options, identity)
        question = Question("recall", RecallTables, folder, identity)
        question.result.check_replaceable()
        make_missing(self.models, self.documents, self._evaluate)
        timings = Timings()
        for (model, task), documents in self.documents.items():
            timings.keep(f"{model}, {task}", documents.path.with_suffix(".json"), "evaluating")
        with timings.stage("comparing"):
            tables = compare_recall({asked: documents.path for asked, documents in self.documents.items()})
        shown = {**identity, "reference": models[0], "models": models}
        origins = {task: {"origin": rows.origin, "digest": rows.digest, "note": rows.note} for task, rows in self.rows.items()}
        contexts = {name: model.options.context for name, model in self.models.items() if model.options.context is not None}
        needles = {name: value for name, value in self.options.not_usual().items() if name in NEEDLE_OPTIONS}
        if self.options.data is not None and not self.rows.keys().isdisjoint(NEEDLE_TASKS):
            needles["haystack"] = bare(str(self.options.data))
        facts = {**shown, **needles, "rows": origins, "contexts": contexts, "limit": self.options.limit}
        facts |= {"cut_tokens": self.options.kept_tokens} if _has_own_cut(self.options) else {}
        question.write(tables, facts, timings)
        return tables, folder

    def _documents(self, evaluated: EvaluatedModel, task: str) -> list[dict[str, Any]]:
        """What a model is asked."""
        return list(_documents(task, self.rows[task].rows, evaluated.tokenizer, self.options))

    def _load(self, task: str, documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The task as lm-eval has it."""
        from recallkit.recall.lm_eval_run import RecallTask, load_tasks

        options = self.options
        name = (TASKS[task].lm_eval_name or task) + variation(options).replace("-", "_")
        return load_tasks([RecallTask(name, documents, options.task_version, {"prompt": options.prompt, "cut": options.cut})])

    def _evaluate(self, evaluated: EvaluatedModel, task: str, result: Result) -> None:
        """Makes one documents table, with lm-eval's files."""
        from recallkit.recall.lm_eval_model import lm_eval_model
        from recallkit.recall.lm_eval_run import run_tasks, write_results
        from recallkit.recall.tables import write_documents

        options, rows, documents, timings = self.options, self.rows[task], self._documents(evaluated, task), Timings()
        with result.parts(batch_size=options.batch_size) as journal:
            lm = lm_eval_model(evaluated, task, journal, options, timings)
            results = run_tasks(lm, self._load(task, documents), model=evaluated.shown, limit=None)
            write_results(results, self.out / "lm-eval", evaluated.key, evaluated.shown)
            facts = {
                **result.stamp(),
                **_asked(task, options),
                "model": evaluated.shown,
                "source": evaluated.spec,
                "num_rows": len(documents),
                "num_dropped": rows.num_dropped,
                "comparable": rows.is_comparable,
            }
            shared = {name: facts[name] for name in ("model", "task", "version", "prompt", "cut")}
            table = [{**shared, **_recalled(each, lm.recalls[each["prompt"], each["value"]])} for each in documents]
            with result.writing(facts, timings) as new:
                facts |= {"origin": rows.origin, "tokenizer": evaluated.tokenizer.describe()}
                write_documents(new / result.path.name, table, facts)
            journal.finish()


def plan_recall(models: Sequence[str | ModelSpec], tasks: Sequence[str], out: Path, options: RecallOptions = RecallOptions()) -> RecallPlan:
    """Finds rows, models, tokenizers and finished results, so that an error is reported before hours of work.

    The first model is the reference of the comparison. Raises UserError for everything a user can correct.
    """
    check_named_once("task", tasks)
    for task in tasks:
        look_up(dict(describe_tasks()), task, "recall task")
    evaluated = open_prompted(models, options)
    needles = [task for task in tasks if task in NEEDLE_TASKS]
    _check_needle_options(tasks, needles, options)
    rows = {task: load_rows(task, path(options.data), options.limit) for task in tasks if task not in needles}
    rows |= _make_rows(needles, evaluated, options) if needles else {}
    rows = {task: rows[task] for task in tasks}
    documents = {(name, task): _result(model, task, rows[task], out, options) for name, model in evaluated.items() for task in tasks}
    missing_results(evaluated, documents)
    return RecallPlan(evaluated, rows, documents, out, options)


def _check_needle_options(tasks: Sequence[str], needles: Sequence[str], options: RecallOptions) -> None:
    """Raises UserError for options of needles without a task of theirs, and for options of real documents with one."""
    if not needles:
        for name in NEEDLE_OPTIONS:
            if name in options.not_usual():
                raise UserError("applies only to needles in a haystack", where=f"--{name}", remedy="add --tasks niah")
    elif options.prompt != "standard" or options.cut != "left":
        where = "--prompt" if options.prompt != "standard" else "--cut"
        raise UserError(
            f"does not apply to {', '.join(needles)}, whose prompts are never changed or cut", where=where, remedy="leave it out"
        )
    elif options.data is not None and len(needles) < len(tasks):
        others = ", ".join(task for task in tasks if task not in needles)
        problem = f"means rows for {others}, but the text of the haystack for {', '.join(needles)}"
        raise UserError(problem, where="--data", remedy="evaluate them one after the other")
    elif options.data is not None and all(NEEDLE_TASKS[task].haystack == "noise" for task in needles):
        raise UserError(
            f"does not apply to {', '.join(needles)}, whose haystack is repeated sentences", where="--data", remedy="leave it out"
        )


def _make_rows(tasks: Sequence[str], models: Mapping[str, EvaluatedModel], options: RecallOptions) -> dict[str, RecallRows]:
    """The rows of tasks of needles, sized by the tokenizer of the first model. Raises UserError where a model cannot read them whole."""
    contexts = {name: context for name, model in models.items() if (context := _context(model)) is not None}
    most = min(contexts.values(), default=max(LENGTHS))
    lengths = options.every_length or [length for length in LENGTHS if length <= most] or [most]
    reference, samples, data = next(iter(models.values())).tokenizer, options.samples or SAMPLES, path(options.data)

    def make(task: str, lengths: Sequence[int]) -> list[NeedleRow]:
        return make_needle_rows(NEEDLE_TASKS[task], task, reference, lengths=lengths, samples=samples, seed=options.seed, data=data)

    try:
        rows = {task: make(task, lengths) for task in tasks}
    except NoRoomError as error:
        raise UserError(error.problem, where=error.where, remedy=_with_room(error, tasks, make, most)) from error
    found = {}
    for task, made in rows.items():
        for name, context in contexts.items():
            is_same = models[name].tokenizer.digest == reference.digest
            size = max(lengths) if is_same else longest_prompt(made, models[name].tokenizer)
            if size > context:
                problem = f"reads {context:,} ids, and prompts of {task} with their answers have up to {size:,} of its ids"
                raise UserError(problem, where=name, remedy="give shorter --lengths")
        haystack = "repeated sentences" if NEEDLE_TASKS[task].haystack == "noise" else bare(str(data or "the built-in text"))
        digest = artifacts.digest_json([astuple(row) for row in made])
        found[task] = RecallRows(made[: options.limit], 0, digest, f"needles in {haystack}", is_comparable=False)
    return found


def _with_room(error: NoRoomError, tasks: Sequence[str], make: Callable[[str, Sequence[int]], object], most: int) -> str:
    """What to do about a length without room: one with room for every row of all tasks, of at most so many ids.

    How many ids keys and values have is drawn for each length apart, so that none is known to have room before its rows are made.
    """
    length = 0
    while length < most:
        length = min(error.near, most)
        try:
            for task in tasks:
                make(task, [length])
        except NoRoomError as another:
            error = another
        else:
            return f"give {length}"
    return f"leave {error.task} out, or ask models that read more than {most:,} ids"


def _context(model: EvaluatedModel) -> int | None:
    """Ids that a model reads at most; None for one without a limit, or whose limit is not known before it is loaded."""
    known = [limit for limit in (model.options.context, model.facts.max_length) if limit is not None]
    return min(known, default=None)


def evaluate_recall(
    models: Sequence[str | ModelSpec], tasks: Sequence[str], out: Path, options: RecallOptions = RecallOptions()
) -> tuple[RecallTables, Path]:
    """Evaluates each model on each task and compares them: `plan_recall` and `RecallPlan.run`."""
    return plan_recall(models, tasks, out, options).run()


def describe_tasks() -> list[tuple[str, str]]:
    """Name and description of every recall task, of groups of them, and of the sets of lm-eval's own."""
    from recallkit.recall.stock_tasks import SETS

    sets = [(name, f"lm-eval's {', '.join(tasks)}, unchanged") for name, tasks in SETS.items()]
    of = {"jrt": "the tasks of Just Read Twice", "niah": "needles in a haystack, as RULER defines them"}
    groups = [(name, f"{', '.join(tasks)}: {of[name]}") for name, tasks in GROUPS.items()]
    return [*((task.name, task.description) for task in TASKS.values()), *groups, *sets]


def _asked(task: str, options: RecallOptions) -> dict[str, Any]:
    asked = {"task": task, "version": options.task_version, "prompt": options.prompt, "cut": options.cut}
    return {**asked, **({"cut_tokens": options.kept_tokens} if _has_own_cut(options) else {})}


def _result(evaluated: EvaluatedModel, task: str, rows: RecallRows, out: Path, options: RecallOptions) -> Result:
    """A documents table as a result."""
    identity = {**evaluated.identity, **_asked(task, options), "rows": rows.digest, "num_rows": len(rows.rows)}
    path = documents_path(out, evaluated.key, variant(options, task))
    return Result(path, "recall documents", identity, force=options.force, remedy=evaluated.remedy)


def _documents(
    task: str, rows: Sequence[RecallRow | QuestionRow], tokenizer: TextTokenizer, options: RecallOptions
) -> Iterator[dict[str, Any]]:
    """The documents given to lm-eval: a prompt, its value and what else is right, with fields that distinguish the rows."""
    from recallkit.recall.prompts import cut_around_answer, make_prompt

    def centred(document: str, value: str) -> str:
        return cut_around_answer(document, value, tokenizer.encode_with_stops([document])[0][1], options.kept_tokens)

    for number, row in enumerate(rows):
        shorten = centred if options.cut == "answer" else None
        prompt = make_prompt(row, version=options.task_version, kind=options.prompt, task=task, shorten=shorten)
        answers = [answer.strip() if options.task_version else answer for answer in row.answers]
        made = {"length": row.length, "depth": row.depth} if isinstance(row, NeedleRow) else {"length": None, "depth": None}
        fields = {"row": number, "doc_id": row.doc_id, "key": row.key or "", "answers": answers, **made}
        yield {"prompt": prompt.text, "value": prompt.value, "right": list(prompt.answers or (prompt.value,)), **fields}


def _recalled(document: Mapping[str, Any], recall: Recall) -> dict[str, Any]:
    """A row of the documents table, without the fields that are the same for all rows."""
    from recallkit.recall.prompts import has_any

    nlls, answers = recall.answer_nll, document["answers"]
    is_right = has_any(recall.generation, document["right"])
    return {
        "row": document["row"],
        "doc_id": document["doc_id"],
        "key": document["key"] or None,
        "value": document["value"],
        "length": document["length"],
        "depth": document["depth"],
        "prompt_tokens": recall.prompt_tokens,
        "tokens_cut": recall.num_cut,
        "truncated": recall.num_cut > 0,
        "answer_cut": recall.places.answer_cut,
        "generation": recall.generation,
        "contains": is_right,
        "contains_any": is_right or has_any(recall.generation, answers) if answers else None,
        "answer_nll": sum(nlls) / len(nlls) if nlls else None,
        "answer_tokens": len(nlls) if nlls else None,
        "answer_distance": recall.places.distance,
        "occurrences": recall.places.occurrences,
        "prompt_text": document["prompt"],
        "characters_cut": recall.places.characters_cut,
    }
