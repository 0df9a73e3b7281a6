"""`eval-recall`, and lm-eval's own tasks."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from recallkit.commands.adapter import Outcome, checked, command
from recallkit.declarations import Argument, File, Option, names, path
from recallkit.errors import UsageError
from recallkit.options import MODEL_SYNTAX, AnyModels, EvaluationOptions, LogOptions, RecallOptions, out_option

if TYPE_CHECKING:
    import polars as pl

    from recallkit.recall.tables import RecallTables

Models = Annotated[
    AnyModels | None,
    Argument(f"Models to evaluate (see `recallkit models`), {MODEL_SYNTAX}; the reference first; control models if none.", metavar="MODEL"),
]
Out = Annotated[File | None, out_option(default="evals; a folder in the cache without MODEL and --data")]
Shots = Annotated[
    int | None,
    Option("Examples before each question of lm-eval's tasks.", metavar="NUMBER", least=0, most=1000, default="as each task says"),
]


@dataclass(frozen=True)
class EvalRecall(RecallOptions, LogOptions):
    """Which models are asked, and in which tasks."""

    models: Models = None
    _: KW_ONLY
    tasks: Annotated[
        str | Sequence[str] | None,
        Option(
            "Tasks, joined with commas (see `recallkit tasks`).",
            metavar="NAMES",
            default="those that --data contains, else metadata",
            joined=True,
        ),
    ] = None
    out: Out = None


@dataclass(frozen=True, kw_only=True)
class EvalRecallLine(EvalRecall):
    """What the command line has besides: in Python, `eval_stock` is a function."""

    lm_eval_task: Annotated[
        str | Sequence[str] | None,
        Option("Run this task of lm-eval, unchanged: its name, or the path of a YAML file; may be repeated.", metavar="NAME"),
    ] = None
    shots: Shots = None


@command(
    "eval-recall",
    EvalRecall,
    examples=(
        "recallkit eval-recall path/to/attention path/to/mamba --tasks swde,fda --limit 100 -o evals",
        "recallkit eval-recall path/to/model --data rows.jsonl --prompt twice",
    ),
    exports=True,
)
def eval_recall(asked: EvalRecallLine) -> Outcome["RecallTables"]:
    """Evaluate recall from real documents: SWDE, FDA, SQuAD, NQ, TriviaQA, DROP, or METADATA of packages; accuracy and answer NLL; resumes.

    The first model is the reference. Columns: see `RecallTables`, and docs/recall.md.
    """
    from recallkit import builtin, recall
    from recallkit.recall.charts import figures
    from recallkit.recall.stock_tasks import SETS, lm_eval_names, plan_stock, task_names
    from recallkit.recall.tasks import expand_groups, tasks_of
    from recallkit.recall.view import metrics_table, print_metrics, print_recall, recall_json, recall_tables

    is_stock_alone = asked.lm_eval_task is not None and asked.tasks is None
    named = [] if is_stock_alone else tasks_of(path(asked.data)) if asked.tasks is None else expand_groups(task_names(asked.tasks))
    stock = lm_eval_names([*names(asked.lm_eval_task), *(name for name in named if name in SETS)])
    tasks = [name for name in named if name not in SETS]
    compared = builtin.named_models(asked.models, builtin.LIKELIHOOD_MODELS if stock else builtin.RECALL_MODELS)
    folder = builtin.results_folder("evals", path(asked.out), is_builtin=asked.models is None and asked.data is None)
    own_plan = recall.plan_recall(compared, tasks, folder, asked) if tasks else None
    if asked.shots is not None and not stock:
        raise UsageError("is for tasks of lm-eval", where="--shots", remedy="name some with --lm-eval-task, or --tasks superglue")
    stock_plan = plan_stock(compared, stock, folder, asked, shots=asked.shots) if stock else None
    recalled = own_plan.run() if own_plan else None
    metrics = stock_plan.run() if stock_plan else None

    def show() -> None:
        if recalled is not None:
            print_recall(*recalled, folder)
        if metrics is not None:
            print_metrics(metrics, folder)

    def exports() -> list[Any]:
        of_recall = [] if recalled is None else [(recalled[0], recall_tables(recalled[0]), recalled[1])]
        return of_recall + ([] if metrics is None else [({"metrics": metrics}, {"metrics": metrics_table(metrics)}, folder)])

    def json() -> dict[str, Any]:
        found = {**(recall_json(*recalled) if recalled else {}), **({} if metrics is None else {"metrics": metrics.to_dicts()})}
        return {"out": str(folder), **found}

    def value() -> "RecallTables":
        if recalled is None:
            raise UsageError("tasks of lm-eval have metrics of their own", where="tasks", remedy="ask eval_stock for them")
        return recalled[0]

    return Outcome(value=value, show=show, json=json, exports=exports, figures=lambda: [] if recalled is None else figures(recalled[0]))


@dataclass(frozen=True)
class EvalStock(EvaluationOptions):
    """Which models are asked, and in which tasks of lm-eval."""

    tasks: str | Sequence[str]
    models: Models = None
    _: KW_ONLY
    shots: Shots = None
    out: Out = None


@checked(EvalStock)
def eval_stock(asked: EvalStock) -> "pl.DataFrame":
    """Tasks of lm-eval, unchanged: names, paths of YAML files, `commonsense`, `superglue` for those of Based; `eval-recall --lm-eval-task`.

    Returns one row per model, task and metric: model, task, version, metric, filter, value, standard_error, shots, num_documents; and for
    each whole set of tasks its average, by task and then across tasks.
    """
    from recallkit import builtin
    from recallkit.recall.stock_tasks import lm_eval_names, plan_stock, task_names

    named = lm_eval_names(task_names(asked.tasks))
    folder = builtin.results_folder("evals", path(asked.out), is_builtin=asked.models is None)
    return plan_stock(builtin.named_models(asked.models, builtin.LIKELIHOOD_MODELS), named, folder, asked, shots=asked.shots).run()
