"""The speed of this machine: `bench`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from recallkit import config
from recallkit.commands import options as opt
from recallkit.commands.adapter import Argument, File, Option, Outcome, command

if TYPE_CHECKING:
    import polars as pl

    from recallkit.bench.results import Results


@command(
    "bench",
    examples=(
        "recallkit bench operations --device cpu --quick",
        "recallkit bench based-360m transformer++-360m --device cuda -o bench",
    ),
    exports=True,
)
def bench(
    what: Annotated[
        str | Sequence[str] | None,
        Argument(
            "Operations (token_nll ...), architectures (based ...) and presets (based-360m ...) by name, or `operations`, `models`, "
            "`presets`; operations and models if none.",
            metavar="WHAT",
        ),
    ] = None,
    *,
    device: opt.Device = "auto",
    dtype: Annotated[opt.Precision | None, Option("Precision.", default="bfloat16 on a GPU, float32 on CPU")] = None,
    size: Annotated[
        str | None, Option("Of the models: 2m, 360m or 1.3b parameters.", metavar="SIZE", default="360m on a GPU, else 2m")
    ] = None,
    prompt: Annotated[int | None, Option("Tokens of the prompt.", least=1, most=config.LONGEST, default="4096 on a GPU, else 1024")] = None,
    batch: Annotated[
        int | None, Option("Rows that generate together.", least=1, most=config.LONGEST, default="128 on a GPU, else 8")
    ] = None,
    new: Annotated[
        int | None, Option("Tokens that each row generates.", least=1, most=config.LONGEST, default="128 on a GPU, else 32")
    ] = None,
    repeats: Annotated[int | None, Option("Samples of each.", least=1, most=1000, default="9 on a GPU, else 5")] = None,
    paper: Annotated[
        bool, Option("Lengths of Based's table 1: prompts of 4,096 tokens, 16,384 for models of 360M parameters, and 2,048 new ones.")
    ] = False,
    quick: Annotated[bool, Option("One small size of each operation, few samples.")] = False,
    out: Annotated[File | None, opt.out("Also write bench.parquet, bench.json and a figure (of several sizes).")] = None,
) -> Outcome["Results"]:
    """Time this machine: operations beside PyTorch's and public kernels, and scoring, prefill and generation of models."""
    from recallkit.bench import run
    from recallkit.bench.plot import bench_figures
    from recallkit.bench.view import bench_tables, print_bench
    from recallkit.display.progress import progress
    from recallkit.models.torch_model import choose_device, choose_dtype

    chosen, folder = choose_device(device), opt.path(out)
    given = {"repeats": repeats, "size": size, "prompt": prompt, "batch": batch, "new": new}
    options = run.chosen_options(chosen, opt.names(what), quick=quick, paper=paper, **given)
    precision = run.usual_dtype(chosen) if dtype is None else choose_dtype(dtype)
    if folder is not None:
        run.make_folder(folder)
    with progress("measuring", total=run.num_steps(options, chosen, precision), unit="measured") as tell:
        results = run.bench(options, chosen, precision, tell)
    files = [] if folder is None else run.write_results(results, folder)
    return Outcome(
        value=lambda: results,
        show=lambda: print_bench(results, files),
        json=results.to_json,
        exports=lambda: [({"measurements": _frame(run.measured_rows(results))}, bench_tables(results), folder)],
        figures=lambda: bench_figures(results),
        failure=results.failure_line(),
    )


def _frame(rows: Any) -> "pl.DataFrame":
    import polars as pl

    return pl.DataFrame(rows)
