"""What there is, `models`, `sources` and `tasks`; and this machine, `bench` and `doctor`."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import OUTPUT, File, Options, argument, names, option, path
from recallkit.errors import UsageError
from recallkit.options import Precision, device_option, out_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.bench.models import Results
    from recallkit.doctor.checks import Check
    from recallkit.doctor.installation import Part


Rows = list[tuple[str, str]]


def _listed(what: str, rows: Rows) -> Outcome[Rows]:
    from recallkit.display.console import print_list

    return Outcome(
        value=lambda: rows, show=lambda full: print_list(what, rows), json=lambda: [{"name": n, "description": d} for n, d in rows]
    )


@dataclass(frozen=True, kw_only=True)
class ListModels(Options):
    """What is said of models."""

    describe: bool = option("Parameters, state and operations of mixers and zoo models.", False)
    width: int = option("With --describe: channels of the mixers, a multiple of 64.", 1024, least=64, most=1 << 16)
    seq_len: int = option("With --describe: tokens of the sequence.", 2048, least=1, most=config.LONGEST)
    presets: bool = option("The papers' architectures: printed and counted parameters, state, operations.", False)
    full: bool = option("With --describe or --presets: print all tables and notes, not only the first.", False, panel=OUTPUT)


@command("models", ListModels, examples=("recallkit models", "recallkit models --describe --width 1024 --seq-len 2048"))
def models(asked: ListModels) -> Outcome[Any]:
    """List the models that can be scored, one per line; with --describe the costs of mixers and zoo models."""
    from recallkit.models.describe import describe_mixers, describe_presets, describe_zoo, print_costs, print_presets
    from recallkit.models.loading import describe_models

    if asked.presets:
        rows = describe_presets()
        return Outcome(value=lambda: rows, show=lambda full: print_presets(rows, full=asked.full), json=lambda: rows)
    if not asked.describe:
        return _listed("What can be given as MODEL; NAME=MODEL names it.", describe_models())
    if asked.width % 64:
        raise UsageError(f"{asked.width} channels", where="--width", remedy="give a multiple of 64")
    mixers, zoo_models = describe_mixers(asked.width, asked.seq_len), describe_zoo()
    described = {"width": asked.width, "seq_len": asked.seq_len, "mixers": mixers, "models": zoo_models}
    return Outcome(
        value=lambda: described,
        show=lambda full: print_costs(mixers, zoo_models, asked.width, asked.seq_len, full=asked.full),
        json=lambda: described,
    )


@command("sources", Options, examples=("recallkit sources",))
def sources(_: Options) -> Outcome[Rows]:
    """List the kinds of text that can be read, one per line."""
    from recallkit.text.sources import describe_sources

    return _listed("What can be given as SOURCE to `count`, `slice` and `profile`.", describe_sources())


@command("tasks", Options, examples=("recallkit tasks",))
def tasks(_: Options) -> Outcome[Rows]:
    """List the recall tasks, one per line."""
    from recallkit.recall.run import describe_tasks

    return _listed("What `eval-recall --tasks` takes.", describe_tasks())


@dataclass(frozen=True)
class Bench(Options):
    """What is timed, and at which sizes."""

    what: str | Sequence[str] | None = argument(
        "Architectures of the zoo (based ...) and presets (based-360m ...) by name, or `models`, `presets`; all architectures if none.",
        metavar="WHAT",
    )
    _: KW_ONLY
    device: str = device_option()
    dtype: Precision | None = option("Precision.", default="bfloat16 on a GPU, float32 on CPU")
    size: str | None = option("Of the architectures: 2m, 360m or 1.3b parameters.", metavar="SIZE", default="360m on a GPU, else 2m")
    prompt: int | None = option("Tokens of the prompt.", least=1, most=config.LONGEST, default="4096 on a GPU, else 1024")
    batch: int | None = option("Rows that generate together.", least=1, most=config.LONGEST, default="128 on a GPU, else 8")
    new: int | None = option("Tokens that each row generates.", least=1, most=config.LONGEST, default="128 on a GPU, else 32")
    repeats: int | None = option("Samples of each time.", least=1, most=1000, default="3")
    paper: bool = option(
        "Lengths of Based's table 1: prompts of 4,096 tokens, 16,384 for models of 360M parameters, and 2,048 new ones.", False
    )
    quick: bool = option("A short prompt, few new tokens, one sample.", False)
    out: File | None = out_option("Also write bench.parquet and bench.json.")


@command(
    "bench",
    Bench,
    examples=(
        "recallkit bench based mamba --device cpu --quick",
        "recallkit bench based-360m transformer++-360m --device cuda -o bench",
    ),
    exports=True,
)
def bench(asked: Bench) -> Outcome["Results"]:
    """Time this machine: scoring, prefill and generation of whole models with random weights."""
    from recallkit.bench import models
    from recallkit.display import console
    from recallkit.display.progress import progress
    from recallkit.models.devices import choose_device, choose_dtype

    chosen, folder, timed = choose_device(asked.device), path(asked.out), models.choose_models(names(asked.what))
    given = {name: getattr(asked, name) for name in ("quick", "paper", "size", "prompt", "batch", "new", "repeats")}
    work = models.choose_work(chosen, **given)
    precision = choose_dtype(asked.dtype or ("bfloat16" if chosen.type == "cuda" else "float32"))
    if folder is not None:
        models.make_folder(folder)
    results = models.Results(models.describe_machine(chosen, precision), [])
    with progress("measuring", total=len(timed), unit="models") as advance:
        for done, name in enumerate(timed, 1):
            results.rows.extend(models.measure(name, work, chosen, precision))
            advance(done)
    files = [] if folder is None else results.write(folder)

    return Outcome(
        value=lambda: results,
        show=lambda full: console.print_found(results.answer(), [results.table()], [f"Written: {file}" for file in files]),
        json=results.to_json,
        exports=lambda: [({"measurements": results.frame()}, {"models": results.table()}, folder)],
        failure=results.failure_line(),
    )


@dataclass(frozen=True, kw_only=True)
class Doctor(Options):
    """What is examined."""

    full: bool = option("Also start Ray, and give slow checks two minutes instead of 20 seconds.", False)
    sizes: bool = option("Instead, list what each required package takes on disk, and what it is for.", False)


@command("doctor", Doctor, examples=("recallkit doctor", "recallkit doctor --json", "recallkit doctor --sizes"))
def doctor(asked: Doctor) -> Outcome["Sequence[Check] | Sequence[Part]"]:
    """Check this installation and machine: versions, devices, memory, disks, kernels, tokenizers, the hub; for bug reports too."""
    from recallkit.doctor.examine import doctor_json, examine, failure_line, print_doctor
    from recallkit.doctor.installation import installed_parts, print_sizes, sizes_json

    if asked.sizes:
        parts = installed_parts()
        return Outcome(value=lambda: parts, show=lambda full: print_sizes(parts), json=lambda: sizes_json(parts))
    checks = examine(full=asked.full)
    return Outcome(
        value=lambda: checks,
        show=lambda full: print_doctor(checks),
        json=lambda: doctor_json(checks),
        failure=failure_line(checks),
    )
