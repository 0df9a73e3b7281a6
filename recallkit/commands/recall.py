"""Recall from real documents: `eval-recall` through lm-eval."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recallkit.commands.app import app
from recallkit.options import (
    Context,
    Counts,
    Cut,
    CutChoice,
    Device,
    DtypeChoice,
    EvaluatedDtype,
    EvaluatedTokenizer,
    Export,
    Force,
    Json,
    Prompt,
    PromptChoice,
    TaskVersion,
    TrustRemoteCode,
)


@app.command(name="eval-recall")
def eval_recall(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Models to evaluate (see `recallkit models`), the reference first; control models if none.",
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Tasks, joined with commas (see `recallkit tasks`).  \\[default: those that --data holds, else metadata]",
            show_default=False,
        ),
    ] = None,
    lm_eval_task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run this task of lm-eval, unchanged: its name, or the path of a YAML file; may be repeated.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Local rows (JSONL, Parquet: text, value, key, doc_id, answers) in place of the hub's: a file, or a folder of TASK.jsonl.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="DIR",
            help="The directory to write.  \\[default: evals; a folder in the cache without MODEL and --data]",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="The first rows of each task only.", show_default=False)] = None,
    task_version: TaskVersion = 1,
    prompt: Prompt = PromptChoice.standard,
    cut: Cut = CutChoice.left,
    context: Context = None,
    counts: Counts = None,
    model_tokenizer: EvaluatedTokenizer = None,
    device: Device = "auto",
    dtype: EvaluatedDtype = DtypeChoice.float32,
    batch_size: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=4096, help="Prompts that generate together; 8 on CPU, 32 on a card if not given.", show_default=False
        ),
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    export: Export = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Evaluate recall from real documents: SWDE, FDA, SQuAD, or METADATA of installed packages; accuracy and answer NLL; resumes."""
    from recallkit import builtin, recall
    from recallkit.display import console, exports
    from recallkit.display.files import print_files
    from recallkit.recall.stock_tasks import lm_eval_names, plan_stock, task_names
    from recallkit.recall.tasks import tasks_of
    from recallkit.recall.view import metrics_table, print_metrics, print_recall, recall_json, recall_tables

    named = task_names(tasks) if tasks is not None else [] if lm_eval_task else tasks_of(data)
    stock = lm_eval_names([*(lm_eval_task or ()), *(name for name in named if name == "commonsense")])
    asked = [name for name in named if name != "commonsense"]
    compared = models or (builtin.LIKELIHOOD_MODELS if stock else builtin.RECALL_MODELS)
    folder = builtin.results_folder("evals", out, is_builtin=not (models or data))
    options = recall.RecallOptions(
        limit,
        context,
        batch_size,
        counts,
        device,
        dtype.value,
        model_tokenizer,
        trust_remote_code,
        force,
        version=task_version,
        prompt=prompt.value,
        cut=cut.value,
        data=data,
    )
    own_plan = recall.plan_recall(compared, asked, folder, options) if asked else None
    stock_plan = plan_stock(compared, stock, folder, options) if stock else None
    recalled = own_plan.run() if own_plan else None
    written = []
    if recalled is not None:
        written = exports.export(recalled[0], recall_tables(recalled[0]), recalled[1], export or ())
        if not as_json:
            print_recall(*recalled, folder)
            print_files(written)
    metrics = stock_plan.run() if stock_plan else None
    if metrics is not None:
        written = exports.export({"metrics": metrics}, {"metrics": metrics_table(metrics)}, folder, export or ())
    if as_json:
        found = {**(recall_json(*recalled) if recalled else {}), **({} if metrics is None else {"metrics": metrics.to_dicts()})}
        console.print_json({"out": str(folder), **found})
    elif metrics is not None:
        print_metrics(metrics, folder)
        print_files(written)
