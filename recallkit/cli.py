"""The command line: options in, results on stdout, one line on stderr for whatever a user can mend.

Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recallkit import __version__, config
from recallkit.errors import UserError
from recallkit.options import (
    LONGEST,
    MOST,
    Address,
    BatchTokens,
    Boundary,
    BoundaryChoice,
    CarryState,
    Check,
    Context,
    Counts,
    Cut,
    CutChoice,
    Device,
    Dtype,
    DtypeChoice,
    EndToken,
    Engine,
    EngineChoice,
    EvaluatedDtype,
    EvaluatedTokenizer,
    Force,
    Json,
    LimitTokens,
    ModelTokenizer,
    Prompt,
    PromptChoice,
    Share,
    SkipBad,
    Slices,
    SourceField,
    Sources,
    Stride,
    TaskVersion,
    TextField,
    Tokenizer,
    TrustRemoteCode,
    Workers,
    amount,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from recallkit.pipeline import RareCount, TextOptions

app = typer.Typer(
    name="recallkit",
    help="How much of the gap between an efficient language model and an attention model is associative recall in real text?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def _share(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    place, _, shares = text.partition("/")
    if not (place.isdecimal() and shares.isdecimal() and 1 <= int(place) <= int(shares) <= LONGEST):
        raise typer.BadParameter(f"{text!r}: give a share such as 3/16, from 1/16 to 16/16")
    return int(place), int(shares)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"recallkit {__version__}")
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    pass


@app.command()
def demo(as_json: Json = False, force: Force = False) -> None:
    """Run the whole way on the embedded text: slice, score and attribute the gaps between the zoo's trained models; a page tells."""
    from recallkit import console, embedded, pipeline, scoring, views
    from recallkit.page import write_page

    slices = embedded.slices(force=force)
    reference, *models = embedded.MODELS
    for model in embedded.MODELS:
        scoring.score(model, slices, scoring.ScoringOptions(force=force))
    tables = pipeline.gap(reference, models, slices, options=scoring.ScoringOptions(force=force))
    out = pipeline.gap_path(slices, reference, models)
    page = write_page(out)
    sliced = views.manifest_of(slices)
    if as_json:
        console.print_json({"slices": views.slices_json(slices, sliced), "gap": views.gap_json(tables, out), "page": str(page)})
        return
    views.print_slices(slices, sliced)
    views.print_gap(tables, sliced, out)
    console.stdout().print(f"The same as a page: {page}", markup=False, soft_wrap=True)


@app.command()
def count(
    sources: Sources = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="The DuckDB file to write.  \\[default: counts.duckdb]", show_default=False),
    ] = None,
    tokenizer: Tokenizer = None,
    end_token: EndToken = None,
    boundary: Boundary = BoundaryChoice.pack,
    limit_tokens: LimitTokens = None,
    text_field: TextField = None,
    source_field: SourceField = None,
    skip_bad: SkipBad = False,
    only: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep only the bigrams that this slice directory holds.", show_default=False)
    ] = None,
    import_file: Annotated[
        Path | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Make the table of a Parquet or CSV file with columns first, second, count.",
            show_default=False,
        ),
    ] = None,
    training_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=amount,
            help="With --import: tokens of the training text; the sum of the counts if not given.",
            show_default=False,
        ),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the bigrams to this Parquet file.", show_default=False)
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Count training bigrams exactly into a DuckDB table (bigrams, unigrams, meta), in bounded memory; resumes."""
    from recallkit import console, embedded, pipeline, views

    if import_file is not None and sources:
        raise typer.BadParameter("give SOURCE or --import, not both")
    if import_file is not None:
        path = out or Path("counts.duckdb")
        meta = pipeline.import_counts(
            import_file, path, tokenizer=tokenizer, num_tokens=training_tokens, boundary=boundary.value, force=force
        )
    else:
        named = tuple(sources or embedded.TRAINING_TEXT.sources)
        text = _text(named, "train", tokenizer, end_token, boundary, limit_tokens, text_field, source_field, skip_bad)
        is_embedded = text == embedded.TRAINING_TEXT and only is None
        path = out or (embedded.folder() / "counts.duckdb" if is_embedded else Path("counts.duckdb"))
        meta = pipeline.count(text, path, only=only, force=force)
    if export is not None:
        pipeline.export_counts(path, export, force=force)
    if as_json:
        console.print_json(views.counts_json(meta, path))
    else:
        views.print_counts(meta, path)


@app.command(name="slice")
def slice_(
    sources: Sources = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="The directory to write.  \\[default: slices]", show_default=False)
    ] = None,
    counts: Counts = None,
    max_count: Annotated[
        int | None,
        typer.Option(min=0, max=MOST, help=f"Largest count of a rare bigram.  \\[default: {config.MAX_COUNT}]", show_default=False),
    ] = None,
    max_rate: Annotated[
        float | None,
        typer.Option(min=0, help="The same as occurrences a billion training tokens (the papers' 1250 of 10B is 125).", show_default=False),
    ] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LONGEST,
            help=f"Predictions in a sequence.  \\[default: {config.SEQ_LEN}; for the embedded text {config.EMBEDDED_SEQ_LEN}]",
            show_default=False,
        ),
    ] = None,
    tokenizer: Tokenizer = None,
    end_token: EndToken = None,
    boundary: Boundary = BoundaryChoice.pack,
    limit_tokens: LimitTokens = None,
    text_field: TextField = None,
    source_field: SourceField = None,
    skip_bad: SkipBad = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Label every predicted token: is its bigram repeated in the context, how far back, how often in training (AR hit)?"""
    from recallkit import console, embedded, pipeline, views

    if max_count is not None and max_rate is not None:
        raise typer.BadParameter("give --max-count or --max-rate, not both")
    if max_rate is not None and not max_rate < MOST:
        raise typer.BadParameter("--max-rate: give a number of occurrences")
    named = tuple(sources or embedded.VALIDATION_TEXT.sources)
    text = _text(named, "validation", tokenizer, end_token, boundary, limit_tokens, text_field, source_field, skip_bad)
    rare = _rare(max_count, max_rate)
    is_embedded = seq_len is None and (counts, max_count, max_rate) == (None, None, None) and text == embedded.WHOLE_VALIDATION_TEXT
    if is_embedded:
        text, seq_len = embedded.VALIDATION_TEXT, config.EMBEDDED_SEQ_LEN
    if counts is None and not sources and tokenizer is None:
        counts = embedded.counts()
        rare = embedded.RARE if max_count is None and max_rate is None else rare
    path = out or (embedded.folder() / "slices" if is_embedded else Path("slices"))
    manifest = pipeline.slice_text(text, path, counts=counts, rare=rare, seq_len=seq_len or config.SEQ_LEN, force=force)
    if as_json:
        console.print_json(views.slices_json(path, manifest))
    else:
        views.print_slices(path, manifest)


@app.command()
def score(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...", help="Models to score (see `recallkit models`); the trained ones of the zoo if none.", show_default=False
        ),
    ] = None,
    slices: Slices = None,
    counts: Counts = None,
    device: Device = "auto",
    dtype: Dtype = None,
    batch_tokens: BatchTokens = None,
    model_tokenizer: ModelTokenizer = None,
    context: Context = None,
    stride: Stride = None,
    carry_state: CarryState = False,
    trust_remote_code: TrustRemoteCode = False,
    workers: Workers = 1,
    engine: Engine = EngineChoice.local,
    address: Address = None,
    share: Share = None,
    check: Check = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score every predicted token with a model: NLL (nats), argmax and rank to Parquet; resumes."""
    from recallkit import console, embedded, scoring, views
    from recallkit.models.loading import is_control

    if stride is not None and carry_state:
        raise typer.BadParameter("give --stride or --carry-state, not both")
    if share is not None and (force or check or engine is EngineChoice.ray):
        raise typer.BadParameter("--share goes with none of --force, --check and --engine ray")
    if address is not None and engine is not EngineChoice.ray:
        raise typer.BadParameter("--address needs --engine ray")
    folder = slices or embedded.slices()
    options = scoring.ScoringOptions(
        counts,
        device,
        dtype.value if dtype else None,
        batch_tokens,
        force,
        model_tokenizer,
        context,
        stride,
        carry_state,
        trust_remote_code,
        workers,
        engine.value,
        address,
        _share(share),
    )
    names = models or list(embedded.MODELS)
    manifests = {name: scoring.score(name, folder, options) for name in names}
    if share is not None:
        console.print_json(manifests) if as_json else views.print_shares(manifests)
        return
    checks = {name: scoring.check_scores(name, folder, options) for name in names if check and not is_control(name)}
    if as_json:
        console.print_json([views.scores_json(folder, name, manifests[name], checks.get(name)) for name in names])
        return
    views.print_scores(folder, manifests)
    if checks:
        views.print_checks(checks)


@app.command()
def gap(
    reference: Annotated[str | None, typer.Argument(help="The reference, usually the attention model.", show_default=False)] = None,
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help="Models to compare with it.", show_default=False)] = None,
    slices: Slices = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="DIR", help="Directory of the result tables.  \\[default: a folder in the slices]", show_default=False
        ),
    ] = None,
    counts: Counts = None,
    device: Device = "auto",
    dtype: Dtype = None,
    batch_tokens: BatchTokens = None,
    trust_remote_code: TrustRemoteCode = False,
    workers: Workers = 1,
    table: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Do the arithmetic on printed perplexities instead: a CSV with columns model, all, ar, other.",
            show_default=False,
        ),
    ] = None,
    ar_share: Annotated[
        float | None,
        typer.Option(help="With --table: the share of AR tokens, if not to be derived from the reference's row.", show_default=False),
    ] = None,
    fail_above: Annotated[
        float | None,
        typer.Option(
            metavar="NATS", help="Exit 1 if a model's NLL on AR hits is more than this above the reference's.", show_default=False
        ),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Attribute the perplexity gap between REFERENCE and each MODEL to AR hits and other tokens, with 95 % intervals."""
    from recallkit import console, embedded, pipeline, scoring, views

    if table is not None and fail_above is not None:
        raise typer.BadParameter("--fail-above needs models, not a --table")
    if table is not None:
        from recallkit.stages.published import attribute_published

        published = attribute_published(table, reference=reference, ar_share=ar_share)
        console.print_json(views.published_json(published)) if as_json else views.print_published(published)
        return
    if reference is not None and not models:
        raise typer.BadParameter("name at least one model to compare with the reference")
    compared = (reference, *(models or ())) if reference is not None else embedded.MODELS
    folder = slices or embedded.slices()
    target = out or pipeline.gap_path(folder, compared[0], compared[1:])
    options = scoring.ScoringOptions(
        counts, device, dtype.value if dtype else None, batch_tokens, force, trust_remote_code=trust_remote_code, workers=workers
    )
    tables = pipeline.gap(compared[0], compared[1:], folder, target, options)
    if as_json:
        console.print_json(views.gap_json(tables, target))
    else:
        views.print_gap(tables, views.manifest_of(folder), target)
    if fail_above is not None and views.worst_ar_gap(tables) > fail_above:
        console.note(f"a model's NLL on AR hits is more than {fail_above} nats above the reference's")
        raise typer.Exit(EXIT_FAILED)


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
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Evaluate recall from real documents: SWDE, FDA, SQuAD, or METADATA of installed packages; accuracy and answer NLL; resumes."""
    from recallkit import console, embedded, recall, views
    from recallkit.evals.rows import tasks_of
    from recallkit.models.loading import COPY_CONTROL
    from recallkit.stock_tasks import COMMONSENSE, plan_stock

    named = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    if tasks is None and not lm_eval_task:
        named = tasks_of(data)
    stock = [*(lm_eval_task or ()), *(COMMONSENSE if "commonsense" in named else ())]
    asked = [name for name in named if name != "commonsense"]
    if not (asked or stock):
        raise typer.BadParameter("--tasks: name at least one task")
    compared = models or [name for name in embedded.RECALL_MODELS if not stock or name != COPY_CONTROL]
    folder = out or (Path("evals") if models or data else embedded.folder() / "evals")
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
    if recalled is not None and not as_json:
        views.print_recall(*recalled, folder)
    metrics = stock_plan.run() if stock_plan else None
    if as_json:
        found = {**(views.recall_json(*recalled) if recalled else {}), **({} if metrics is None else {"metrics": metrics.to_dicts()})}
        console.print_json({"out": str(folder), **found})
    elif metrics is not None:
        views.print_metrics(metrics, folder)


@app.command()
def tasks(as_json: Json = False) -> None:
    """List the recall tasks, a line each."""
    from recallkit.recall import describe_tasks

    _print_list(describe_tasks(), as_json)


@app.command()
def models(
    describe: Annotated[bool, typer.Option("--describe", help="What mixers and zoo models cost: parameters, state, operations.")] = False,
    width: Annotated[int, typer.Option(min=64, max=1 << 16, help="With --describe: channels of the mixers, a multiple of 64.")] = 1024,
    length: Annotated[int, typer.Option(min=1, max=LONGEST, help="With --describe: tokens of the sequence.")] = 2048,
    as_json: Json = False,
) -> None:
    """List the models that can be scored, a line each; with --describe what they and every mixer cost."""
    from recallkit.models.loading import describe_models

    if not describe:
        _print_list(describe_models(), as_json)
        return
    from recallkit import console, views
    from recallkit.models.describe import describe_mixers, describe_zoo

    if width % 64:
        raise typer.BadParameter(f"--width {width}: give a multiple of 64")
    mixers, zoo_models = describe_mixers(width, length), describe_zoo()
    if as_json:
        console.print_json({"width": width, "length": length, "mixers": mixers, "models": zoo_models})
    else:
        views.print_costs(mixers, zoo_models, width, length)


@app.command()
def bench(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WHAT]...",
            help="Operations (token_nll ...) and architectures (based ...) by name, or `operations`, `models`; everything if none.",
            show_default=False,
        ),
    ] = None,
    device: Device = "auto",
    dtype: Annotated[
        DtypeChoice | None, typer.Option(help="Precision.  \\[default: bfloat16 on a card, float32 on CPU]", show_default=False)
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(help="Of the models: 2m, 360m or 1.3b parameters.  \\[default: 360m on a card, else 2m]", show_default=False),
    ] = None,
    prompt: Annotated[
        int | None,
        typer.Option(min=1, max=LONGEST, help="Tokens of the prompt.  \\[default: 4096 on a card, else 1024]", show_default=False),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, max=LONGEST, help="Rows that generate together.  \\[default: 128 on a card, else 8]", show_default=False),
    ] = None,
    new: Annotated[
        int | None,
        typer.Option(min=1, max=LONGEST, help="Tokens that each row generates.  \\[default: 128 on a card, else 32]", show_default=False),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Samples of each.  \\[default: 9 on a card, else 5]", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One small size of each operation, few samples.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="DIR", help="Also write bench.parquet, bench.json and a picture there.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Time this machine: operations beside PyTorch's and public kernels, and scoring, prefill and generation of the zoo's models."""
    from recallkit import console, views
    from recallkit.bench.run import bench as measure
    from recallkit.bench.run import chosen_options, make_folder, num_steps, usual_dtype, write_results
    from recallkit.models.torch_model import choose_device, choose_dtype

    chosen = choose_device(device)
    options = chosen_options(chosen, what or [], quick=quick, repeats=repeats, size=size, prompt=prompt, batch=batch, new=new)
    precision = usual_dtype(chosen) if dtype is None else choose_dtype(dtype.value)
    if out is not None:
        make_folder(out)
    with console.progress("measuring", total=num_steps(options, chosen, precision), unit="measured") as tell:
        results = measure(options, chosen, precision, tell)
    files = [] if out is None else write_results(results, out)
    if as_json:
        console.print_json(results.to_json())
    else:
        views.print_bench(results, files)
    if any(row.is_ours_and_failed for row in results.rows):
        raise typer.Exit(EXIT_FAILED)


@app.command()
def sources(as_json: Json = False) -> None:
    """List the kinds of text that can be read, a line each."""
    from recallkit.stages.corpus import describe_sources

    _print_list(describe_sources(), as_json)


def _print_list(rows: list[tuple[str, str]], as_json: bool) -> None:
    from recallkit import console

    if as_json:
        console.print_json([{"name": name, "description": description} for name, description in rows])
        return
    width = max(len(name) for name, _ in rows)
    for name, description in rows:
        typer.echo(f"{name:<{width}}  {description}")


def _text(
    sources: tuple[str, ...],
    default_split: str,
    tokenizer: str | None = None,
    end_token: str | None = None,
    boundary: BoundaryChoice = BoundaryChoice.pack,
    limit_tokens: int | None = None,
    text_field: str | None = None,
    source_field: str | None = None,
    skip_bad: bool = False,
) -> TextOptions:
    from recallkit.pipeline import TextOptions

    return TextOptions(sources, default_split, tokenizer, end_token, boundary.value, limit_tokens, text_field, source_field, skip_bad)


def _rare(max_count: int | None, max_rate: float | None) -> RareCount:
    from recallkit.pipeline import RareCount

    return RareCount(config.MAX_COUNT if max_count is None else max_count, max_rate)


def run(arguments: list[str] | None = None) -> None:
    """Runs a command; exits 0, 1 (it failed), 2 (usage) or 130 (interrupted; the same command goes on)."""
    interrupts: list[threading.Timer] = []
    try:
        with _insistent_interrupts(interrupts):
            status: Any = app(args=arguments, standalone_mode=False)
    except BaseException as error:  # whatever an interrupt was turned into on its way is an interrupt still
        if not interrupts:
            _explain(error)
            raise
        status = EXIT_INTERRUPTED
    if status == EXIT_INTERRUPTED:  # typer turns Ctrl-C inside a command into this status
        given = sys.argv[1:] if arguments is None else arguments
        anew = next((word for word in given if not word.startswith("-")), "") == "bench"  # what times itself keeps nothing
        _stop("interrupted; nothing was written" if anew else "interrupted; the same command goes on from here", EXIT_INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


@contextlib.contextmanager
def _insistent_interrupts(waiting: list[threading.Timer]) -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt where it is safe, and again until it is heard.

    Python drops an exception that falls into a destructor. One that falls into an import can leave the import lock
    taken, and the program waits for ever, or is taken by a library for a missing package: there it waits for the end.
    `waiting` is empty as long as nobody pressed Ctrl-C.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        importing = _is_importing(frame)
        again = threading.Timer(0.02 if importing else 1.0, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        waiting.append(again)
        if not importing:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for timer in waiting:
            timer.cancel()
        signal.signal(signal.SIGINT, before)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported somewhere up the stack."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _stop(line: str, status: int = EXIT_FAILED) -> None:
    sys.stderr.write(f"recallkit: {line}\n")
    sys.exit(status)


def _explain_os_error(error: OSError) -> str:
    where = error.filename if error.filename is not None else "writing"
    if error.errno == errno.ENOSPC:
        return UserError(
            "no space left on the disk", where=where, remedy="free some and run the same command again: it goes on from here"
        ).line()
    return UserError(error.strerror or str(error), where=where).line()


def _explain(error: BaseException) -> None:
    """Ends the program with a line for what a user can mend: our errors, usage errors, the system's, a full disk."""
    if isinstance(error, UserError):
        _stop(error.line())
    if isinstance(error, OSError):
        _stop(_explain_os_error(error))
    show = getattr(error, "show", None)
    if callable(show):
        show()
        sys.exit(int(getattr(error, "exit_code", 2)))
    if "no space left" in str(error).lower():
        _stop(UserError("no space left on the disk", remedy="free some and run the same command again").line())
