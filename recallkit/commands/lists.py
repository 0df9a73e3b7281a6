"""What there is: models, kinds of text, recall tasks."""

from __future__ import annotations

from typing import Annotated

import typer

from recallkit import config
from recallkit.commands.app import app
from recallkit.options import Json


@app.command()
def models(
    describe: Annotated[bool, typer.Option("--describe", help="What mixers and zoo models cost: parameters, state, operations.")] = False,
    width: Annotated[int, typer.Option(min=64, max=1 << 16, help="With --describe: channels of the mixers, a multiple of 64.")] = 1024,
    length: Annotated[int, typer.Option(min=1, max=config.LONGEST, help="With --describe: tokens of the sequence.")] = 2048,
    as_json: Json = False,
) -> None:
    """List the models that can be scored, a line each; with --describe what they and every mixer cost."""
    from recallkit.display.lists import print_list
    from recallkit.models.loading import describe_models

    if not describe:
        print_list(describe_models(), as_json)
        return
    from recallkit.display import console
    from recallkit.models.costs_view import print_costs
    from recallkit.models.describe import describe_mixers, describe_zoo

    if width % 64:
        raise typer.BadParameter(f"--width {width}: give a multiple of 64")
    mixers, zoo_models = describe_mixers(width, length), describe_zoo()
    if as_json:
        console.print_json({"width": width, "length": length, "mixers": mixers, "models": zoo_models})
    else:
        print_costs(mixers, zoo_models, width, length)


@app.command()
def sources(as_json: Json = False) -> None:
    """List the kinds of text that can be read, a line each."""
    from recallkit.display.lists import print_list
    from recallkit.text.corpus import describe_sources

    print_list(describe_sources(), as_json)


@app.command()
def tasks(as_json: Json = False) -> None:
    """List the recall tasks, a line each."""
    from recallkit.display.lists import print_list
    from recallkit.recall.run import describe_tasks

    print_list(describe_tasks(), as_json)
