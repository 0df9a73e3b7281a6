"""Recall tasks: `eval-recall` and lm-eval's own tasks, `build-rows`, `mqar`."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from recallkit import config
from recallkit.commands.adapter import ANSWER, Outcome, checked, command
from recallkit.declarations import File, argument, names, numbers, option, path, text
from recallkit.errors import UsageError
from recallkit.options import (
    MODEL_SYNTAX,
    AnyModels,
    ForceOptions,
    LogOptions,
    MqarOptions,
    PromptOptions,
    RecallOptions,
    out_option,
    tokenizer_option,
)

if TYPE_CHECKING:
    import polars as pl

    from recallkit.mqar.tables import MqarTables
    from recallkit.recall.building import BuiltRows
    from recallkit.recall.tables import RecallTables


_models = partial(
    argument,
    (
        f"Models to evaluate (see `recallkit models`), the reference first: {MODEL_SYNTAX}. "
        "Default: control models."
    ),
    metavar="MODEL",
)
_out = partial(out_option, default="evals; a folder in the cache without MODEL and --data")
_shots = partial(
    option,
    "Examples before each question in lm-eval's tasks.",
    least=0,
    most=1000,
    default="each task's own",
)


@dataclass(frozen=True)
class EvalRecall(RecallOptions, LogOptions):
    """Which models are evaluated, on which tasks."""

    models: AnyModels | None = _models()
    _: KW_ONLY
    tasks: str | Sequence[str] | None = option(
        "Tasks, joined with commas (see `recallkit tasks`).",
        metavar="NAMES",
        default="those that --data contains, else metadata",
        joined=True,
    )
    out: File | None = _out()


@dataclass(frozen=True, kw_only=True)
class EvalRecallLine(EvalRecall):
    """What the command line has besides; in Python, `eval_stock` is a function."""

    lm_eval_task: str | Sequence[str] | None = option(
        (
            "Run this task of lm-eval unchanged: its name, or the path of a YAML file. May be "
            "repeated."
        ),
        metavar="NAME",
    )
    shots: int | None = _shots()


@command(
    "eval-recall",
    EvalRecall,
    examples=(
        (
            "recallkit eval-recall path/to/attention path/to/mamba --tasks swde,fda --limit 100 -o "
            "evals"
        ),
        "recallkit eval-recall path/to/model --data rows.jsonl --prompt twice",
    ),
    prints=ANSWER,
)
def eval_recall(options: EvalRecallLine) -> Outcome["RecallTables"]:
    """Evaluate recall of facts in real documents (SWDE, FDA, SQuAD, NQ, TriviaQA, DROP, package
    METADATA) or of needles; resumes.

    The first model is the reference. Columns: see `RecallTables`, and docs/recall.md.
    """
    from recallkit import builtin, recall
    from recallkit.recall.stock_tasks import SETS, lm_eval_names, plan_stock, task_names
    from recallkit.recall.tasks import expand_groups, tasks_of
    from recallkit.recall.view import RecallView, metrics_table, print_metrics

    if options.tasks is not None:
        tasks = expand_groups(task_names(options.tasks))
    else:
        tasks = [] if options.lm_eval_task is not None else tasks_of(path(options.data))
    own = [name for name in tasks if name not in SETS]
    stock = lm_eval_names([*names(options.lm_eval_task), *(name for name in tasks if name in SETS)])
    models = builtin.named_models(
        options.models, builtin.LIKELIHOOD_MODELS if stock else builtin.RECALL_MODELS
    )
    folder = builtin.results_folder(
        "evals", path(options.out), is_builtin=options.models is None and options.data is None
    )
    if options.shots is not None and not stock:
        raise UsageError(
            "is for tasks of lm-eval",
            where="--shots",
            remedy="name some with --lm-eval-task, or --tasks superglue",
        )
    own_plan = recall.plan_recall(models, own, folder, options) if own else None
    stock_plan = plan_stock(models, stock, folder, options, shots=options.shots) if stock else None

    outcome: Outcome[RecallTables] = Outcome(_no_tables, lambda full: None, dict)
    if own_plan is not None:
        recalled, place = own_plan.run()
        outcome = Outcome.from_views(recalled, lambda: RecallView(place, recalled))
    if stock_plan is None:
        return replace(outcome, json=lambda: {"out": str(folder), **outcome.json()})
    metrics = stock_plan.run()

    def show(full: bool) -> None:
        outcome.show(full)
        print_metrics(metrics, folder)

    return replace(
        outcome,
        show=show,
        json=lambda: {"out": str(folder), **outcome.json(), "metrics": metrics.to_dicts()},
        exports=lambda: [
            *outcome.exports(),
            ({"metrics": metrics}, {"metrics": metrics_table(metrics)}, folder),
        ],
    )


def _no_tables() -> "RecallTables":
    raise UsageError(
        "tasks of lm-eval have other metrics", where="tasks", remedy="ask eval_stock for them"
    )


@dataclass(frozen=True)
class EvalStock(PromptOptions):
    """Which models are evaluated, on which tasks of lm-eval."""

    tasks: str | Sequence[str]
    models: AnyModels | None = _models()
    _: KW_ONLY
    shots: int | None = _shots()
    out: File | None = _out()


@checked(EvalStock)
def eval_stock(options: EvalStock) -> "pl.DataFrame":
    """Run tasks of lm-eval unchanged, as `eval-recall --lm-eval-task`: names, YAML files,
    `commonsense` or `superglue` for those of Based.

    Returns one row per model, task and metric: model, task, version, metric, filter, value,
    standard_error, shots, num_documents; and for each whole set of tasks its average, by task and
    then across tasks.
    """
    from recallkit import builtin
    from recallkit.recall.stock_tasks import lm_eval_names, plan_stock, task_names

    tasks = lm_eval_names(task_names(options.tasks))
    models = builtin.named_models(options.models, builtin.LIKELIHOOD_MODELS)
    folder = builtin.results_folder("evals", path(options.out), is_builtin=options.models is None)
    return plan_stock(models, tasks, folder, options, shots=options.shots).run()


@dataclass(frozen=True)
class BuildRows(ForceOptions):
    """Of which documents rows are made, and how."""

    documents: File = argument(
        "Documents with text and pairs: JSON Lines, JSON or Parquet.", MISSING, metavar="FILE"
    )
    out: File = out_option("The JSON Lines file to write.", value=MISSING, metavar="FILE")
    _: KW_ONLY
    tokenizer: File | None = tokenizer_option()
    chunk_tokens: int = option(
        "Tokens of a chunk, as in Based.", config.CHUNK_TOKENS, least=1, most=1 << 20
    )


@command(
    "build-rows",
    BuildRows,
    examples=(
        "recallkit build-rows filings.jsonl -o fda.jsonl --tokenizer gpt2.json",
        "recallkit eval-recall path/to/model --data fda.jsonl",
    ),
)
def build_rows(options: BuildRows) -> Outcome["BuiltRows"]:
    """Build rows for `eval-recall --data` from documents with known pairs, like SWDE and FDA: a
    prompt for each pair in each chunk.

    A record has `text` and `pairs`, {KEY: VALUE}. It is divided into chunks; every pair whose value
    a chunk contains becomes a row.
    """
    from recallkit.recall.building import build_rows as build
    from recallkit.recall.view import built_json, print_built

    built = build(
        path(options.documents),
        path(options.out),
        tokenizer=text(options.tokenizer),
        chunk_tokens=options.chunk_tokens,
        force=options.force,
    )
    return Outcome(lambda: built, lambda full: print_built(built), lambda: built_json(built))


@dataclass(frozen=True)
class Mqar(MqarOptions, LogOptions):
    """Which models are evaluated."""

    models: AnyModels | None = argument(
        (
            f"Models to evaluate (see `recallkit models`), the reference first: {MODEL_SYNTAX}. "
            "Default: the trained models of the zoo."
        ),
        metavar="MODEL",
    )
    _: KW_ONLY
    out: File | None = out_option(default="mqar; a folder in the cache without MODEL")


@command(
    "mqar",
    Mqar,
    examples=(
        "recallkit mqar zoo:attention zoo:mamba --pairs 4,16,64 --figures figures",
        "recallkit mqar path/to/model --seq-len 512 --pairs 16,64 -o mqar",
        "recallkit mqar path/to/model --task overwriting,updates=16 --pairs 16,64",
    ),
    prints=ANSWER,
)
def eval_mqar(options: Mqar) -> Outcome["MqarTables"]:
    """Evaluate recall in synthetic tasks, in a model's own vocabulary and without training;
    resumes.

    The answer has accuracy and perplexity by number of pairs. The first model is the reference.
    Columns: see `MqarTables`.
    """
    from recallkit import builtin
    from recallkit.models.kinds import kind_of
    from recallkit.mqar.run import plan_mqar, with_usual_size
    from recallkit.mqar.view import MqarView

    folder = builtin.results_folder("mqar", path(options.out), is_builtin=options.models is None)
    models = builtin.named_models(options.models)
    is_zoo = all(kind_of(model.location).name == "zoo" for model in models)
    sized = with_usual_size(options, is_zoo=is_zoo)
    tables, place = plan_mqar(models, numbers(sized.pairs), folder, sized).run()
    outcome = Outcome.from_views(tables, lambda: MqarView(place, tables))
    return replace(outcome, json=lambda: {"out": str(folder), **outcome.json()})
