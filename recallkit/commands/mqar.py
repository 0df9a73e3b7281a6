"""Multi-query associative recall: `mqar`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recallkit import config
from recallkit.commands.app import app
from recallkit.options import (
    BatchTokens,
    Counts,
    Device,
    DtypeChoice,
    EvaluatedDtype,
    EvaluatedTokenizer,
    Export,
    Figures,
    Force,
    Json,
    TrustRemoteCode,
)


@app.command()
def mqar(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Models to ask (see `recallkit models`), the reference first; the trained ones of the zoo if none.",
            show_default=False,
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=4, max=config.LONGEST, help="Ids of a sequence.  \\[default: 1024; 256 for the zoo]", show_default=False
        ),
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="Numbers of key-value pairs, joined with commas.  \\[default: 16,32,64,128,256; 4,8,16,32,64 for the zoo]",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=1 << 24,
            help="Sequences for each number of pairs.  \\[default: 1000; 50 for the zoo]",
            show_default=False,
        ),
    ] = None,
    power: Annotated[float, typer.Option(help="Of the law by which queries are placed: near the pairs at 0.01, anywhere at 1.")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, max=config.MOST, help="Decides keys, values and places.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="DIR",
            help="The directory to write.  \\[default: mqar; a folder in the cache without MODEL]",
            show_default=False,
        ),
    ] = None,
    counts: Counts = None,
    model_tokenizer: EvaluatedTokenizer = None,
    device: Device = "auto",
    dtype: EvaluatedDtype = DtypeChoice.float32,
    batch_tokens: BatchTokens = None,
    trust_remote_code: TrustRemoteCode = False,
    figures: Figures = None,
    export: Export = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Multi-query associative recall in a model's own vocabulary, without training: accuracy and perplexity by number of pairs; resumes."""
    from recallkit import builtin
    from recallkit.display import console
    from recallkit.display.chart_theme import check_figures_folder
    from recallkit.display.files import print_files
    from recallkit.mqar.run import MqarOptions, choose_size, plan_mqar
    from recallkit.mqar.view import mqar_json, print_mqar, shown_mqar

    size = choose_size(length, None if pairs is None else _numbers(pairs), samples, is_zoo=not models)
    folder = builtin.results_folder("mqar", out, is_builtin=not models)
    options = MqarOptions(
        counts=counts,
        device=device,
        dtype=dtype.value,
        tokenizer=model_tokenizer,
        trust_remote_code=trust_remote_code,
        force=force,
        length=size.length,
        samples=size.samples,
        power=power,
        seed=seed,
        batch_tokens=batch_tokens,
    )
    check_figures_folder(figures)
    tables, compared = plan_mqar(models or builtin.MODELS, size.pairs, folder, options).run()
    written = []
    if figures is not None:
        from recallkit.display.chart_theme import save_figures
        from recallkit.mqar.charts import mqar_figures

        written += save_figures(mqar_figures(tables.mqar, tables.by_distance), figures)
    if export is not None:
        from recallkit.display.exports import export as write_exports

        written += write_exports(tables, shown_mqar(tables), compared, export)
    if as_json:
        console.print_json({"out": str(folder), **mqar_json(tables, compared), "files": [str(path) for path in written]})
        return
    print_mqar(tables, compared, folder)
    print_files(written)


def _numbers(text: str) -> list[int]:
    """`16,32,64`, for typer."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isascii() and word.isdigit() and 0 < int(word) <= config.LONGEST for word in words):
        raise typer.BadParameter(f"--pairs {text!r}: give whole numbers from 1 on, joined with commas")
    return [int(word) for word in words]
