"""`eval-recall`, and lm-eval's own tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from recallkit.commands import options as opt
from recallkit.commands.adapter import Argument, File, Option, Outcome, checked, command
from recallkit.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from recallkit.recall.tables import RecallTables

Models = Annotated[
    opt.AnyModels | None,
    Argument(
        f"Models to evaluate (see `recallkit models`), {opt.MODEL_SYNTAX}; the reference first; control models if none.",
        metavar="MODEL",
    ),
]
Out = Annotated[
    File | None,
    opt.out(default="evals; a folder in the cache without MODEL and --data"),
]

Shots = Annotated[
    int | None,
    Option("Examples before each question of lm-eval's tasks.", metavar="NUMBER", least=0, most=1000, default="as each task says"),
]


@dataclass(frozen=True)
class StockTasks:
    """Options of the command line only: in Python, `eval_stock` is a function."""

    lm_eval_task: Annotated[
        str | Sequence[str] | None,
        Option("Run this task of lm-eval, unchanged: its name, or the path of a YAML file; may be repeated.", metavar="NAME"),
    ] = None
    shots: Shots = None


@command(
    "eval-recall",
    examples=(
        "recallkit eval-recall path/to/attention path/to/mamba --tasks swde,fda --limit 100 -o evals",
        "recallkit eval-recall path/to/model --data rows.jsonl --prompt twice",
    ),
    words=StockTasks,
    exports=True,
)
def eval_recall(
    own: StockTasks | None,
    models: Models = None,
    *,
    tasks: Annotated[
        str | Sequence[str] | None,
        Option(
            "Tasks, joined with commas (see `recallkit tasks`).",
            metavar="NAMES",
            default="those that --data contains, else metadata",
            joined=True,
        ),
    ] = None,
    data: Annotated[
        File | None,
        Option(
            "Local rows (JSONL, Parquet: text, value, key, doc_id, answers) in place of the hub's: a file, or a folder of TASK.jsonl.",
            metavar="PATH",
        ),
    ] = None,
    out: Out = None,
    limit: opt.Limit = None,
    task_version: Annotated[
        int,
        Option(
            "1 strips white space off texts and values, as lm-eval does today; 0 takes them as they are, as the published figures do.",
            least=0,
            most=1,
            panel=opt.PROMPTS,
        ),
    ] = 1,
    prompt: Annotated[
        Literal["standard", "twice"],
        Option("standard: the document, then the query; twice: the document twice (JRT).", panel=opt.PROMPTS),
    ] = "standard",
    cut: Annotated[
        Literal["left", "answer"],
        Option(
            "left: what does not fit the context is cut on the left; answer: documents are cut to 950 tokens around it (JRT).",
            panel=opt.PROMPTS,
        ),
    ] = "left",
    context: opt.Context = None,
    counts: opt.Counts = None,
    model_tokenizer: opt.EvaluatedTokenizer = None,
    device: opt.Device = "auto",
    dtype: opt.EvaluatedDtype = "float32",
    batch_size: opt.BatchSize = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    force: opt.Force = False,
) -> Outcome["RecallTables"]:
    """Evaluate recall from real documents: SWDE, FDA, SQuAD, or METADATA of installed packages; accuracy and answer NLL; resumes.

    The first model is the reference. Columns: see `RecallTables`, and docs/recall.md.
    """
    from recallkit import builtin, recall
    from recallkit.recall.charts import figures
    from recallkit.recall.stock_tasks import SETS, lm_eval_names, plan_stock, task_names
    from recallkit.recall.tasks import tasks_of
    from recallkit.recall.view import metrics_table, print_metrics, print_recall, recall_json, recall_tables

    is_stock_alone = own is not None and own.lm_eval_task is not None and tasks is None
    rows = opt.path(data)
    named = [] if is_stock_alone else tasks_of(rows) if tasks is None else task_names(tasks)
    stock = [] if own is None else lm_eval_names([*opt.names(own.lm_eval_task), *(name for name in named if name in SETS)])
    asked = named if own is None else [name for name in named if name not in SETS]
    compared = opt.models(models, builtin.LIKELIHOOD_MODELS if stock else builtin.RECALL_MODELS)
    folder = builtin.results_folder("evals", opt.path(out), is_builtin=models is None and rows is None)
    options = recall.RecallOptions(
        limit,
        context,
        batch_size,
        opt.path(counts),
        device,
        dtype,
        model_tokenizer,
        trust_remote_code,
        force,
        version=task_version,
        prompt=prompt,
        cut=cut,
        data=rows,
    )
    own_plan = recall.plan_recall(compared, asked, folder, options) if asked else None
    shots = None if own is None else own.shots
    if shots is not None and not stock:
        raise UsageError("is for tasks of lm-eval", where="--shots", remedy="name some with --lm-eval-task, or --tasks superglue")
    stock_plan = plan_stock(compared, stock, folder, options, shots=shots) if stock else None
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
        assert recalled is not None, "Python's function has no tasks of lm-eval"
        return recalled[0]

    return Outcome(value=value, show=show, json=json, exports=exports, figures=lambda: [] if recalled is None else figures(recalled[0]))


@checked
def eval_stock(
    tasks: str | Sequence[str],
    models: Models = None,
    *,
    shots: Shots = None,
    out: Out = None,
    limit: opt.Limit = None,
    context: opt.Context = None,
    counts: opt.Counts = None,
    model_tokenizer: opt.EvaluatedTokenizer = None,
    device: opt.Device = "auto",
    dtype: opt.EvaluatedDtype = "float32",
    batch_size: opt.BatchSize = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    force: opt.Force = False,
) -> "pl.DataFrame":
    """Tasks of lm-eval, unchanged: names, paths of YAML files, `commonsense`, `superglue` for those of Based; `eval-recall --lm-eval-task`.

    Returns one row per model, task and metric: model, task, version, metric, filter, value, standard_error, shots, num_documents; and for
    each whole set of tasks its average, by task and then across tasks.
    """
    from recallkit import builtin, recall
    from recallkit.recall.stock_tasks import lm_eval_names, plan_stock, task_names

    options = recall.RecallOptions(limit, context, batch_size, opt.path(counts), device, dtype, model_tokenizer, trust_remote_code, force)
    named = lm_eval_names(task_names(tasks))
    folder = builtin.results_folder("evals", opt.path(out), is_builtin=models is None)
    return plan_stock(opt.models(models, builtin.LIKELIHOOD_MODELS), named, folder, options, shots=shots).run()
