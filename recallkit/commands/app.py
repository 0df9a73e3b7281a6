"""The command line as a whole, made from the declarations of the commands: its name, its version, its exit status."""

import inspect
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from recallkit import events
from recallkit.commands import COMMANDS, PANELS
from recallkit.commands.adapter import DECLARED, Command
from recallkit.config import VERSION
from recallkit.declarations import Parameter

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DEFECT = 70
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def _without_type(option: Any) -> Any:
    """`--help` without `<bool>` beside it."""
    if option is not None:
        option.metavar = ""
    return option


class _Command(TyperCommand):
    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))

    def get_params(self, ctx: Any) -> list[Any]:
        found = super().get_params(ctx)
        for argument in found:
            if isinstance(argument, TyperArgument):
                argument.display_type_rich = lambda ctx: ""  # type: ignore[method-assign]  # no `<list[str]>` beside its name
        return found


SYNONYMS = {
    "compare": "gap",
    "diff": "gap",
    "label": "slice",
    "perplexity": "score",
    "causal": "intervene",
    "evaluate": "eval-recall",
    "plot": "report",
    "html": "report",
    "check": "verify",
}
"""Other names that people try for commands."""


class _Group(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if meant := SYNONYMS.get(args[0]):
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{meant}'?")
        return super().resolve_command(ctx, args)

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))

    def get_params(self, ctx: Any) -> list[Any]:
        return [_without_type(option) if getattr(option, "is_flag", False) else option for option in super().get_params(ctx)]


app = typer.Typer(
    name="recallkit",
    cls=_Group,
    help="How much of the gap between an efficient language model and an attention model is associative recall in real text?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"recallkit {VERSION}")
        raise typer.Exit


def _log_json(value: bool) -> None:
    if value:  # handled before this, wherever it is given
        events.start()


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version.")] = False,
    log_json: Annotated[
        bool,
        typer.Option(
            events.OPTION,
            metavar="",
            callback=_log_json,
            is_eager=True,
            help="Make every line on stderr a JSON object: notes, progress, stages, errors. Before or after the command; also "
            f"{events.VARIABLE}=1.",
        ),
    ] = False,
) -> None:
    pass


def _shown(text: str) -> str:
    """Help text as written: square brackets are markup to typer unless they are escaped."""
    return text.replace("[", "\\[")


def _typer_parameter(parameter: Parameter) -> inspect.Parameter:
    """A parameter for typer: words, which the declaration parses."""
    option, is_flag = parameter.option, parameter.kind is bool
    kind: Any = bool if is_flag else list[str] if parameter.is_repeated else str
    said: dict[str, Any] = {"help": _shown(parameter.help()), "show_default": False, "metavar": parameter.metavar}
    said |= {} if is_flag else {"parser": parameter.read}
    said |= {"autocompletion": lambda: list(parameter.choices)} if parameter.choices else {}
    info = typer.Argument(**said) if option.is_argument else typer.Option(*parameter.flags, rich_help_panel=option.panel, **said)
    return inspect.Parameter(parameter.name, inspect.Parameter.KEYWORD_ONLY, default=parameter.default, annotation=Annotated[kind, info])


def as_typer(app: typer.Typer, command: Command) -> None:
    """Adds a declared command to `app`: typer calls a function whose signature is made from the command's options."""

    def run(**given: Any) -> int:
        return command.run(**{name: None if value == [] and name in repeated else value for name, value in given.items()})

    repeated = {parameter.name for parameter in command.parameters if parameter.is_repeated}
    parameters = [_typer_parameter(parameter) for parameter in command.parameters]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    summary = (inspect.getdoc(command.function) or "").partition("\n\n")[0]
    app.command(
        command.name,
        cls=_Command,
        help=_shown(summary),
        epilog=_shown("\n\n".join(["Examples:", *command.examples])),
        rich_help_panel=PANELS.get(command.name),
    )(run)


for _name, _module in COMMANDS.items():
    import_module(_module)
    as_typer(app, DECLARED[_name])
