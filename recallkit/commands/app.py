"""The command line as a whole, made from the declarations of the commands: its name, its version, its exit status, its help."""

import difflib
import inspect
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

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


class AsCommand(click.Command):
    """A declared command: click splits the words, the declarations parse them."""

    def __init__(self, declared: Command) -> None:
        self.declared = {parameter.name: parameter for parameter in declared.parameters}
        self.examples = declared.examples
        parameters = [_click_parameter(parameter) for parameter in self.declared.values()]
        super().__init__(declared.name, params=parameters, help=declared.summary, callback=declared.run)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Sets `ctx.params` to the values of the options that are given, the defaults of the others."""
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:  # the shell completes a line that is not finished
            for name, parameter in self.declared.items():
                words = ctx.params[name]
                ctx.params[name] = parameter.default if words in (None, ()) else _value(parameter, words)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Arguments, options, options of each panel, and the examples."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.declared.values():
            panel = "Arguments" if parameter.option.is_argument else parameter.option.panel or "Options"
            flags = parameter.metavar if parameter.option.is_argument else f"{', '.join(parameter.flags)} {parameter.metavar}".rstrip()
            panels.setdefault(panel, []).append((flags, parameter.help()))
        panels["Options"].append(("-h, --help", "Show this message and exit."))
        for panel, rows in panels.items():
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write_text(example)


def _value(parameter: Parameter, given: Any) -> Any:
    return [parameter.read(word) for word in given] if parameter.is_repeated else parameter.read(given)


def _click_parameter(parameter: Parameter) -> click.Parameter:
    def complete(ctx: click.Context, of: click.Parameter, begun: str) -> list[CompletionItem]:
        found = [CompletionItem(choice) for choice in parameter.choices if choice.startswith(begun)]
        return found or [CompletionItem(begun, type="file")]

    is_required = parameter.default is inspect.Parameter.empty
    said: dict[str, Any] = {"metavar": parameter.metavar, "type": click.UNPROCESSED, "shell_complete": complete}
    if parameter.option.is_argument:
        said["metavar"] = ("{}" if is_required else "[{}]").format(parameter.metavar) + ("..." if parameter.is_repeated else "")
        return click.Argument([parameter.name], nargs=-1 if parameter.is_repeated else 1, required=is_required, **said)
    if parameter.kind is bool:
        said = {"is_flag": True, "default": parameter.default}
    said["help"] = parameter.help()
    return click.Option([parameter.name, *parameter.flags], multiple=parameter.is_repeated, required=is_required, **said)


def _declared(name: str) -> Command:
    import_module(COMMANDS[name])
    return DECLARED[name]


class _Group(click.Group):
    """All commands; the module of one is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return AsCommand(_declared(name))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        meant = [SYNONYMS[args[0]]] if args[0] in SYNONYMS else difflib.get_close_matches(args[0], COMMANDS, 1)
        if args[0] not in COMMANDS and meant:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{meant[0]}'?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands of each panel."""
        for panel in dict.fromkeys(PANELS.values()):
            with formatter.section(panel):
                formatter.write_dl([(name, _declared(name).summary) for name, of in PANELS.items() if of == panel])


def _print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"recallkit {VERSION}")
        ctx.exit()


_LOG_JSON = (
    "Make every line on stderr a JSON object: notes, progress, stages, errors. Before or after the command; also "
    f"{events.VARIABLE}=1."
)  # handled before this, wherever it is given

app = _Group(
    "recallkit",
    help="How much of the gap between an efficient language model and an attention model is associative recall in real text?",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    params=[
        click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."),
        click.Option([events.OPTION], is_flag=True, expose_value=False, help=_LOG_JSON),
    ],
)
