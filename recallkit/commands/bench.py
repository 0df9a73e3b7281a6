"""The speed of this machine: `bench`."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

from recallkit import config
from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import Argument, File, Option, Options, names, path
from recallkit.options import Device, Precision, out_option

if TYPE_CHECKING:
    from recallkit.bench.models import Results


@dataclass(frozen=True)
class Bench(Options):
    """What is timed, and at which sizes."""

    what: Annotated[
        str | Sequence[str] | None,
        Argument(
            "Architectures of the zoo (based ...) and presets (based-360m ...) by name, or `models`, `presets`; all architectures if none.",
            metavar="WHAT",
        ),
    ] = None
    _: KW_ONLY
    device: Device = "auto"
    dtype: Annotated[Precision | None, Option("Precision.", default="bfloat16 on a GPU, float32 on CPU")] = None
    size: Annotated[
        str | None, Option("Of the architectures: 2m, 360m or 1.3b parameters.", metavar="SIZE", default="360m on a GPU, else 2m")
    ] = None
    prompt: Annotated[int | None, Option("Tokens of the prompt.", least=1, most=config.LONGEST, default="4096 on a GPU, else 1024")] = None
    batch: Annotated[int | None, Option("Rows that generate together.", least=1, most=config.LONGEST, default="128 on a GPU, else 8")] = (
        None
    )
    new: Annotated[int | None, Option("Tokens that each row generates.", least=1, most=config.LONGEST, default="128 on a GPU, else 32")] = (
        None
    )
    repeats: Annotated[int | None, Option("Samples of each time.", least=1, most=1000, default="3")] = None
    paper: Annotated[
        bool, Option("Lengths of Based's table 1: prompts of 4,096 tokens, 16,384 for models of 360M parameters, and 2,048 new ones.")
    ] = False
    quick: Annotated[bool, Option("A short prompt, few new tokens, one sample.")] = False
    out: Annotated[File | None, out_option("Also write bench.parquet and bench.json.")] = None


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
    from recallkit.models.torch_model import choose_device, choose_dtype

    chosen, folder, timed = choose_device(asked.device), path(asked.out), models.choose_models(names(asked.what))
    given = {name: getattr(asked, name) for name in ("quick", "paper", "size", "prompt", "batch", "new", "repeats")}
    work = models.choose_work(chosen, **given)
    precision = choose_dtype(asked.dtype or ("bfloat16" if chosen.type == "cuda" else "float32"))
    if folder is not None:
        models.make_folder(folder)
    results = models.Results(models.describe_machine(chosen, precision), [])
    with progress("measuring", total=len(timed), unit="models") as show:
        for done, name in enumerate(timed, 1):
            results.rows.extend(models.measure(name, work, chosen, precision))
            show(done)
    files = [] if folder is None else results.write(folder)

    def show() -> None:
        console.print_table(results.table())
        for file in files:
            console.print_line(f"Written: {file}", is_path=True)

    return Outcome(
        value=lambda: results,
        show=show,
        json=results.to_json,
        exports=lambda: [({"measurements": results.frame()}, {"models": results.table()}, folder)],
        failure=results.failure_line(),
    )
