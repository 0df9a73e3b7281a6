"""The command line as a whole, made from the declarations of the commands: its name, its version,
its exit status."""

import inspect
import re
import shlex
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from recallkit import events
from recallkit.commands import ALWAYS, COMMANDS, GROUPS, USUAL
from recallkit.commands.adapter import DECLARED, Command
from recallkit.config import VERSION
from recallkit.declarations import Parameter
from recallkit.display.cells import counted
from recallkit.errors import redacted

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DEFECT = 70
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

HELP_ALL = "--help-all"

WIDEST_NAME = 22
"""Characters of an option with its placeholder that still has its help beside it, in the help of a
command."""


def _write_sections(formatter: Any, sections: dict[str, list[tuple[str, str]]]) -> None:
    """Names and what they are, under the heading of their group; help begins in the same column
    everywhere."""
    names = [name for rows in sections.values() for name, _ in rows]
    width = max(len(name) for name in names if len(name) <= WIDEST_NAME)
    for heading, rows in sections.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl(
                    [(name.ljust(width), text) for name, text in rows], col_max=width
                )


_FOLDERS = re.compile(
    r"(^(?:-\w)?|[=,:])(?:file://(?=/))?(?:~\w*|\.{1,2})?/(?!/)(?:[^=,/]*/)*(?=[^/])"
)
"""Folders of this machine in a word: `/models/` of /models/mamba, name=/models/mamba and
-o/models/mamba."""


_TYPED = "recallkit.typed"
"""Key of the command line in what typer keeps of a call."""


class _Reading:
    """Words are read by their declarations. typer converts them by pydantic, even those that are
    not there: 0.1 s of imports."""

    declared: Command | None = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        this: Any = self
        parameters = {}
        if self.declared is not None:
            ctx.meta[_TYPED] = command_line(self.declared.name, args)
            parameters = {parameter.name: parameter for parameter in self.declared.parameters}
        for word in this.get_params(ctx):
            word.process_value = partial(_read, word, parameters.get(word.name), word.process_value)
        words: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]  # of typer's class beside this one
        return words


def command_line(name: str, words: Iterable[str]) -> str:
    """A command as results record it: as it was typed, without folders and what may be secret."""
    public = (redacted(_FOLDERS.sub(r"\1", word)) for word in words)
    return " ".join(["recallkit", name, *map(shlex.quote, public)])


def _read(
    word: Any,
    parameter: Parameter | None,
    process: Callable[[Any, Any], Any],
    context: Any,
    value: Any,
) -> Any:
    """A value of a command; what belongs to the program itself, such as --version, and what is
    missing is left to typer."""
    if word.value_is_missing(value):
        return process(context, value) if word.required else None
    if parameter is None:
        return process(context, value)
    if parameter.is_repeated:
        return [parameter.read(text) for text in value]
    return parameter.read(value)


class _Command(_Reading, TyperCommand):
    """A command whose help has its usual options, or all by group, and its examples as they can be
    copied."""

    declared: Command

    def invoke(self, ctx: Any) -> Any:
        token = events.COMMAND.set(ctx.meta[_TYPED])
        try:
            return super().invoke(ctx)
        finally:
            events.COMMAND.reset(token)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        name = self.declared.name
        is_short = name in USUAL and HELP_ALL not in ctx.meta
        usual = f"{USUAL[name]} {ALWAYS}".split() if is_short else []
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        more = 0
        for parameter in self.declared.parameters:
            if parameter.option.is_argument:
                sections["Arguments"].append((parameter.metavar, parameter.help()))
            elif is_short and parameter.flags[-1] not in usual:
                more += 1
            else:
                panel = None if is_short else parameter.option.panel
                flags = f"{', '.join(parameter.flags)} {parameter.metavar}".rstrip()
                sections.setdefault(panel or "Options", []).append((flags, parameter.help()))
        sections["Options"].append(("-h, --help", "Show this message and exit."))
        _write_sections(formatter, sections)
        with formatter.section("Examples"):
            formatter.write("".join(f"  {example}\n" for example in self.declared.examples))
        if more:
            formatter.write(
                f"\n`recallkit {name} {HELP_ALL}` shows {counted(more, 'more option')}.\n"
            )


def declared(name: str) -> Command:
    """The command of this name, its module imported."""
    import_module(COMMANDS[name])
    return DECLARED[name]


class _Group(_Reading, TyperGroup):
    """All commands; one is imported when it is used, all of them only for their help."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = _as_typer(declared(cmd_name))
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS:  # what is similar to it is sought among those that are there
            for name in COMMANDS:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections = {}
        for heading, group in GROUPS.items():
            sections[heading] = [(name, self.get_command(ctx, name).help) for name in group]
        _write_sections(formatter, sections)


_SETTINGS = {"help_option_names": ["--help", "-h"]}

app = typer.Typer(
    name="recallkit",
    cls=_Group,
    help=(
        "How much of the gap between an efficient language model and an attention model is "
        "associative recall in real text?"
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_SETTINGS,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"recallkit {VERSION}")
        raise typer.Exit


def _help_all(context: typer.Context, value: bool) -> None:
    if value:
        context.meta[HELP_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


def _log_json(value: bool) -> None:
    if value:  # handled before this, wherever it is given
        events.start()


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    log_json: Annotated[
        bool,
        typer.Option(
            events.OPTION,
            metavar="",
            callback=_log_json,
            is_eager=True,
            help="Make every line on stderr a JSON object: notes, progress, stages, errors. Works "
            "before or after the command; also "
            f"{events.VARIABLE}=1.",
        ),
    ] = False,
) -> None:
    pass


def _typer_parameter(parameter: Parameter) -> Any:
    """A parameter for typer: words, which the declaration reads."""
    settings: dict[str, Any] = {
        "help": parameter.help(),
        "show_default": False,
        "metavar": parameter.metavar,
    }
    if parameter.choices:
        settings["autocompletion"] = lambda: list(parameter.choices)
    return (
        typer.Argument(**settings)
        if parameter.option.is_argument
        else typer.Option(*parameter.flags, **settings)
    )


def _as_typer(command: Command) -> Any:
    """A declared command for typer, which calls a function whose signature is made from the
    command's options."""
    parameters = {parameter.name: parameter for parameter in command.parameters}

    def run(help_all: bool, **words: Any) -> int:
        # typer gives [] for an option that may be repeated, and is not there.
        values = {
            name: None if parameters[name].is_repeated and value == [] else value
            for name, value in words.items()
        }
        return command.run(**values)

    def argument(name: str, kind: Any, default: Any, declaration: Any) -> inspect.Parameter:
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[kind, declaration],
        )

    arguments = []
    for name, parameter in parameters.items():
        kind: Any = bool if parameter.kind is bool else list[str] if parameter.is_repeated else str
        arguments.append(argument(name, kind, parameter.default, _typer_parameter(parameter)))
    help_all = typer.Option(
        HELP_ALL, metavar="", callback=_help_all, is_eager=True, help="Show all options and exit."
    )
    arguments.append(argument("help_all", bool, False, help_all))
    run.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]
    run.__annotations__ = {entry.name: entry.annotation for entry in arguments}
    summary = (inspect.getdoc(command.function) or "").partition("\n\n")[0]
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(command.name, cls=_Command, help=summary, context_settings=_SETTINGS)(run)
    typed: Any = typer.main.get_command(alone)
    typed.declared = command
    return typed
