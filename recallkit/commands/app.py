"""The command line as a whole: its name, its version, how it ends. Commands are in the modules beside this one."""

from __future__ import annotations

from typing import Annotated

import typer

from recallkit import __version__, events

app = typer.Typer(
    name="recallkit",
    help="How much of the gap between an efficient language model and an attention model is associative recall in real text?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DEFECT = 70
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def _version(value: bool) -> None:
    if value:
        typer.echo(f"recallkit {__version__}")
        raise typer.Exit


def _log_json(value: bool) -> None:
    if value:  # the command line hears it before this, wherever it stands
        events.start()


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    log_json: Annotated[
        bool,
        typer.Option(
            events.OPTION,
            callback=_log_json,
            is_eager=True,
            help="Make every line on stderr a JSON object: notes, progress, stages, errors. Before or behind the command; also "
            f"{events.VARIABLE}=1.",
        ),
    ] = False,
) -> None:
    pass
