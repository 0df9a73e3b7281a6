"""What there is, `models`, `sources` and `tasks`; and this machine, `bench` and `doctor`."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from recallkit import config
from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import OUTPUT, File, Options, argument, names, option, path
from recallkit.errors import UsageError
from recallkit.options import MODEL_SYNTAX, AnyModels, ForceOptions, Precision, device_option, out_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.bench.results import Results
    from recallkit.doctor.checks import Check


Rows = list[tuple[str, str]]


def _listed(what: str, rows: Rows) -> Outcome[Rows]:
    from recallkit.display.console import print_list

    return Outcome(
        value=lambda: rows, show=lambda full: print_list(what, rows), json=lambda: [{"name": n, "description": d} for n, d in rows]
    )


@dataclass(frozen=True)
class ListModels(Options):
    """What is said of models."""

    models: AnyModels | None = argument(f"With --describe: models ({MODEL_SYNTAX}), or tokenizers alone.", metavar="MODEL")
    _: KW_ONLY
    describe: bool = option("Parameters, state and operations of mixers and zoo models.", False)
    width: int = option("With --describe: channels of the mixers, a multiple of 64.", 1024, least=64, most=1 << 16)
    seq_len: int = option("With --describe: tokens of the sequence.", 2048, least=1, most=config.LONGEST)
    presets: bool = option("The papers' architectures: printed and counted parameters, state, operations.", False)
    full: bool = option("With --describe or --presets: print all tables and notes, not only the first.", False, panel=OUTPUT)


@command(
    "models",
    ListModels,
    examples=("recallkit models", "recallkit models --describe path/to/mamba", "recallkit models --describe --width 1024"),
)
def models(asked: ListModels) -> Outcome[Any]:
    """List the models that can be scored, one per line; with --describe, the costs of mixers and zoo models.

    `--describe MODEL` shows what a model reads: its context, its tokenizer, the token before every text, and the token that ends documents.
    """
    from recallkit.models import describe
    from recallkit.models.loading import describe_models
    from recallkit.models.spec import list_models

    if asked.presets:
        rows = describe.describe_presets()
        return Outcome(value=lambda: rows, show=lambda full: describe.print_presets(rows, full=asked.full), json=lambda: rows)
    if asked.models is None and not asked.describe:
        return _listed("What can be given as MODEL; NAME=MODEL names it.", describe_models())
    if asked.width % 64:
        raise UsageError(f"{asked.width} channels", where="--width", remedy="give a multiple of 64")
    if asked.models is not None:
        inputs = describe.describe_inputs(list_models(asked.models))
        return Outcome(value=lambda: inputs, show=lambda full: describe.print_inputs(inputs), json=lambda: inputs)
    mixers, zoo_models = describe.describe_mixers(asked.width, asked.seq_len), describe.describe_zoo()
    described = {"width": asked.width, "seq_len": asked.seq_len, "mixers": mixers, "models": zoo_models}
    return Outcome(
        value=lambda: described,
        show=lambda full: describe.print_costs(mixers, zoo_models, asked.width, asked.seq_len, full=asked.full),
        json=lambda: described,
    )


@command("sources", Options, examples=("recallkit sources",))
def sources(_: Options) -> Outcome[Rows]:
    """List the kinds of text that can be read, one per line."""
    from recallkit.text.sources import describe_sources

    return _listed("What can be given as SOURCE to `count`, `slice` and `profile`.", describe_sources())


@command("tasks", Options, examples=("recallkit tasks",))
def tasks(_: Options) -> Outcome[Rows]:
    """List the recall tasks of `eval-recall` and the synthetic ones of `mqar` and `train`, one per line."""
    from recallkit import plugins
    from recallkit.recall.run import describe_tasks
    from recallkit.synthetic.tasks import describe_tasks as describe_synthetic

    synthetic = [(name, f"synthetic: {description.rstrip('.')}") for name, description in describe_synthetic()]
    rows = [*describe_tasks(), *synthetic, *plugins.describe("synthetic task")]
    return _listed("What `eval-recall --tasks` takes; synthetic ones: `mqar --task`, `train --task`.", rows)


_many = partial(option, metavar="NUMBERS", least=1, most=config.LONGEST, joined=True)


@dataclass(frozen=True)
class Bench(ForceOptions):
    """What is timed, and at which sizes."""

    what: str | Sequence[str] | None = argument(
        "Architectures of the zoo (based ...) and presets (based-360m ...), or all of a kind: `models`, `presets`. Default: all "
        "architectures.",
        metavar="WHAT",
    )
    _: KW_ONLY
    device: str = device_option()
    dtype: Precision | None = option("Precision.", default="bfloat16 on a GPU, float32 on CPU")
    paper: Literal["table-1", "figure-4", "figure-1"] | None = option(
        "Models and sizes of Based's Table 1 or Figure 4, or the products of its Figure 1 (docs/gpu.md). Other options override these."
    )
    size: str | None = option("Parameters of the architectures: 1.6m, 360m or 1.3b.", metavar="SIZE", default="360m on a GPU, else 1.6m")
    prompt: int | Sequence[int] | None = _many("Tokens of the prompts, joined with commas.", default="4096 on a GPU, else 1024")
    prompt_batch: int | None = option("Rows that are read or scored together.", least=1, most=config.LONGEST, default="2")
    batch: int | Sequence[int] | None = _many("Rows that generate together, joined with commas.", default="128 on a GPU, else 8")
    new: int | None = option("Tokens that each row generates.", least=1, most=config.LONGEST, default="128 on a GPU, else 32")
    repeats: int | None = option("Samples of each time.", least=1, most=1000, default="3")
    out: File | None = out_option("Also write bench.parquet to this folder; the same command resumes.")


@command(
    "bench",
    Bench,
    examples=(
        "recallkit bench based mamba --prompt 256,1024 --batch 1,8 --new 8 --repeats 1 --figures figures",
        "recallkit bench --paper table-1 --device cuda -o table-1",
    ),
    draws=True,
    exports=True,
)
def bench(asked: Bench) -> Outcome["Results"]:
    """Time this machine: scoring, prefill and generation of whole models with random weights, by length and number of rows."""
    from recallkit.bench.measure import choose_work, run
    from recallkit.display import console
    from recallkit.models.devices import choose_device, choose_dtype

    chosen, folder = choose_device(asked.device), path(asked.out)
    given = {"prompts": asked.prompt, "prompt_rows": asked.prompt_batch, "batches": asked.batch}
    work = choose_work(chosen, names(asked.what), asked.paper, size=asked.size, new=asked.new, repeats=asked.repeats, **given)
    precision = choose_dtype(asked.dtype or ("bfloat16" if chosen.type == "cuda" else "float32"))
    results = run(work, chosen, precision, folder, force=asked.force)
    written = [] if folder is None else [f"Written: {folder / 'bench.parquet'}"]

    return Outcome(
        value=lambda: results,
        show=lambda full: console.print_found(results.answer(), list(results.tables().values()), written, full=True),
        json=results.to_json,
        exports=lambda: [({"measurements": results.frame()}, results.tables(), folder)],
        figures=results.figures,
        failure=results.failure_line(),
    )


@command("doctor", Options, examples=("recallkit doctor", "recallkit doctor --json"))
def doctor(_: Options) -> Outcome["Sequence[Check]"]:
    """Check this installation and machine: versions, devices, memory, disks, kernels, tokenizers, the hub; also for bug reports."""
    from recallkit.doctor.examine import doctor_json, examine, failure_line, print_doctor

    checks = examine()
    return Outcome(
        value=lambda: checks,
        show=lambda full: print_doctor(checks),
        json=lambda: doctor_json(checks),
        failure=failure_line(checks),
    )
