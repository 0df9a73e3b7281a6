"""How fast this machine is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recallkit import config
from recallkit.commands.app import EXIT_FAILED, app
from recallkit.options import Device, DtypeChoice, Json


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
        typer.Option(min=1, max=config.LONGEST, help="Tokens of the prompt.  \\[default: 4096 on a card, else 1024]", show_default=False),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, max=config.LONGEST, help="Rows that generate together.  \\[default: 128 on a card, else 8]", show_default=False
        ),
    ] = None,
    new: Annotated[
        int | None,
        typer.Option(
            min=1, max=config.LONGEST, help="Tokens that each row generates.  \\[default: 128 on a card, else 32]", show_default=False
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Samples of each.  \\[default: 9 on a card, else 5]", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One small size of each operation, few samples.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="DIR", help="Also write bench.parquet, bench.json and a picture (of several sizes).", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Time this machine: operations beside PyTorch's and public kernels, and scoring, prefill and generation of the zoo's models."""
    from recallkit.bench.run import bench as measure
    from recallkit.bench.run import chosen_options, make_folder, num_steps, usual_dtype, write_results
    from recallkit.bench.view import print_bench
    from recallkit.display import console
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
        print_bench(results, files)
    if any(row.is_ours_and_failed for row in results.rows):
        raise typer.Exit(EXIT_FAILED)
