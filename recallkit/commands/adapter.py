"""One declaration, two interfaces: a function with declared parameters is both a command of the command line and a Python function.

`command` takes a function whose parameters are `Annotated` with an `Option` or an `Argument` and which returns an `Outcome`.
It returns the function for Python: arguments are checked against their declarations, and the outcome's value is
returned. The command is kept in `DECLARED`, from which `recallkit.commands.app` makes the command line: words are
parsed and checked by the same declarations, and the outcome is printed, as JSON with `--json`, or written with `--export`, `--figures`.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from operator import index
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, overload

from recallkit.errors import UsageError

if TYPE_CHECKING:
    from recallkit.display.chart_theme import Figure
    from recallkit.display.tables import Table
    from recallkit.trackers.destinations import Destination
    from recallkit.trackers.tracker import Tracker

File = str | PathLike[str]

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E")

OUTPUT = "Output"
"""Group in the help of the options that say what is written, and how."""

MOST_SHOWN = 1 << 16
"""Larger bounds are the machine's: they are checked, but not shown in the help."""


@dataclass(frozen=True)
class Option:
    """An option of the command line, and an argument of the Python function.

    `flags` default to `--name` of the parameter; `default` is the help's name for the default of a parameter that is None.
    `least` and `most` bound a number. `parse` converts what is given, a word or a value, and raises ValueError with the remedy.
    Several values are given by repeating the option, or `joined` with commas.
    """

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    default: str | None = None
    least: float | None = None
    most: float | None = None
    parse: Callable[[Any], Any] | None = None
    joined: bool = False
    panel: str | None = None


class Argument(Option):
    """The same, given by position instead of a flag."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The result of a command, in every form that can be requested; only the requested one is made.

    `exports` are frames by name (a dataclass or a mapping), tables as they are printed, and the folder, if there is one; with `figures`
    they are also what a notebook shows of the value. `failure` ends the command with status 1, after this note.
    """

    value: Callable[[], T]
    show: Callable[[], None]
    json: Callable[[], Any]
    exports: Callable[[], Iterable[tuple[Any, Mapping[str, "Table"], Path | None]]] = tuple
    figures: Callable[[], Sequence["Figure"]] = tuple
    failure: str | None = None


@dataclass(frozen=True)
class Parameter:
    """A declared parameter: the content of its annotation."""

    name: str
    option: Option
    default: Any
    kind: type
    """bool, int, float, an Enum, or str for everything that is not converted."""
    choices: tuple[str, ...]
    is_many: bool

    @classmethod
    def declared(cls, name: str, annotation: Any, default: Any) -> "Parameter | None":
        """From `Annotated[type, Option(...)]`; None for a parameter without such a declaration."""
        option = next((each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, Option)), None)
        if option is None:
            return None
        given = get_args(annotation)[0]
        kinds = [kind for kind in (get_args(given) if get_origin(given) in (Union, UnionType) else (given,)) if kind is not NoneType]
        choices = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
        single = [kind for kind in kinds if get_origin(kind) is not Sequence]
        kind = single[0] if len(single) == 1 and isinstance(single[0], type) and single[0] is not Any else str
        choices = tuple(each.value for each in kind) if issubclass(kind, Enum) else choices
        return cls(name, option, default, kind, choices, single != kinds)

    @property
    def flags(self) -> tuple[str, ...]:
        """Its names on the command line."""
        return self.option.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def is_repeated(self) -> bool:
        """Whether several values are given as several words."""
        return self.is_many and not self.option.joined

    @property
    def metavar(self) -> str:
        """The placeholder for a value in the help; empty if there is none."""
        usual = {bool: "", int: "N", float: "NUMBER"}.get(self.kind, "TEXT")
        return self.option.metavar or "|".join(self.choices) or usual

    def help(self) -> str:
        """Its description, its bounds if they are of interest, its default."""
        least, most = self.option.least, self.option.most
        has_none = self.kind is bool or self.default in (None, inspect.Parameter.empty)
        default = self.option.default or ("" if has_none else str(self.default))
        bounds = f"  [{least} to {most}]" if least is not None and most is not None and most <= MOST_SHOWN else ""
        return self.option.help + bounds + (f"  [default: {default}]" if default else "")

    def take(self, given: Any) -> Any:
        """An argument from Python, checked: one number as it is, several as a list. Raises UsageError for an invalid one."""
        if given is None or (self.kind is str and not self.choices and self.option.parse is None):
            return given
        is_many = self.is_many and isinstance(given, Iterable) and not isinstance(given, str)
        taken = [self._checked(each, self.name) for each in (given if is_many else [given])]
        return taken if self.is_many else taken[0]

    def read(self, word: Any) -> Any:
        """A word of the command line as a value, several if joined with commas. Raises UsageError for an invalid one."""
        if not isinstance(word, str):  # a default, or parsed already
            return word
        words = [each.strip() for each in word.split(",") if each.strip()] if self.option.joined else [word]
        name = self.metavar if isinstance(self.option, Argument) else self.flags[-1]
        values = [self._checked(self._number(each), name) for each in words]
        return values if self.option.joined else values[0]

    def _number(self, word: str) -> Any:
        try:
            return self.kind(word) if self.kind in (int, float) else word
        except ValueError:
            return word

    def _checked(self, given: Any, where: str) -> Any:
        """A value. Raises UsageError, which names `where`, for one of another type, out of bounds or not among the choices."""
        option = self.option
        if option.parse is not None:
            try:
                return option.parse(given)
            except (ValueError, OverflowError) as error:
                raise UsageError(str(error), where=where) from error
        if self.choices and given not in self.choices:
            raise UsageError(f"{given!r} is none of {', '.join(self.choices)}", where=where, remedy="give one of them")
        if self.kind in (int, float):
            given = _as_number(given, self.kind, where)
            most = float("inf") if option.most is None else option.most
            if option.least is not None and not option.least <= given <= most:
                remedy = f"give {option.least} or more" if option.most is None else f"give {option.least} to {most}"
                raise UsageError(f"{given} is out of bounds", where=where, remedy=remedy)
        return self.kind(given) if issubclass(self.kind, Enum) else given


def _as_number(given: Any, kind: type, where: str) -> int | float:
    try:
        return index(given) if kind is int else given + 0.0
    except TypeError as error:
        what, example = ("whole number", "8") if kind is int else ("number", "0.5")
        raise UsageError(f"{given!r} is no {what}", where=where, remedy=f"give one such as {example}") from error


@dataclass(frozen=True)
class Command:
    """A command of the command line. `parameters` are those of its function, `words` the dataclass of options that Python does not have."""

    name: str
    function: Callable[..., Outcome[Any]]
    parameters: Mapping[str, Parameter]
    words: type | None
    examples: tuple[str, ...]
    exports: bool

    @property
    def options(self) -> list[Parameter]:
        """All options of the command, in the order of its help."""
        more = [("figures", FIGURES), ("export", EXPORT)] if self.exports else []
        common = [Parameter.declared(name, annotation, None) for name, annotation in more]
        last = [self.parameters["force"]] if "force" in self.parameters else []
        first = [each for name, each in self.parameters.items() if name != "force"]
        own = [Parameter.declared(field.name, field.type, field.default) for field in fields(self.words)] if self.words else []
        asked = [*first, *own, *common, *last, Parameter.declared("as_json", JSON, default=False)]
        return sorted((each for each in asked if each is not None), key=lambda each: each.option.panel == OUTPUT)

    def run(self, **given: Any) -> int:
        """Runs it with the given arguments, prints and writes the outcome; returns the exit status."""
        from recallkit.display import console
        from recallkit.display.console import print_files

        as_json = given.pop("as_json")
        formats = given.pop("export") if self.exports else None
        folder = given.pop("figures") if self.exports else None
        own = [self.words(**{field.name: given.pop(field.name) for field in fields(self.words)})] if self.words else []
        if folder is not None:
            from recallkit.display.chart_theme import check_figures_folder

            check_figures_folder(Path(folder))
        trackers = _open_trackers(given)
        outcome = self.function(*own, **given)
        written = [*(_export(outcome, formats) if formats else ()), *(() if folder is None else _draw(outcome, Path(folder)))]
        if as_json:
            console.print_json({**outcome.json(), "files": [str(path) for path in written]} if formats or folder else outcome.json())
        else:
            outcome.show()
            print_files(written)
        is_logged = self.log(trackers, outcome, {**given, **(vars(own[0]) if own else {})})
        if outcome.failure is not None:
            console.note(outcome.failure)
        return int(outcome.failure is not None or not is_logged)

    def call(self, *args: Any, **named: Any) -> Any:
        """The value for Python; `args` and `named` are those of its function. A tracker that fails is reported, and costs nothing else."""
        trackers = _open_trackers(named)
        outcome = self.function(*args, **named)
        value = _shown_value(outcome)
        self.log(trackers, outcome, inspect.signature(self.function).bind(*args, **named).arguments)
        return value

    def log(self, trackers: "Mapping[Destination, Tracker]", outcome: Outcome[Any], given: Mapping[str, Any]) -> bool:
        """Logs the outcome, with the arguments that are `given` and declared, to the trackers; False if one of them failed."""
        if not trackers:
            return True
        from recallkit.trackers import log_result
        from recallkit.trackers.record import make_record

        declared = {*self.parameters, *(field.name for field in (fields(self.words) if self.words else ()))}
        options = {name: value for name, value in given.items() if name in declared - {"log_to"}}
        return not log_result(trackers, lambda folder: make_record(self.name, options, outcome.exports(), outcome.figures(), folder))


def _open_trackers(given: Mapping[str, Any]) -> "dict[Destination, Tracker]":
    """Those of the argument `log_to`, if a command has it: opened before the work, so that what is missing costs nothing."""
    if not given.get("log_to"):
        return {}
    from recallkit.trackers import open_trackers

    return open_trackers(given["log_to"])


def _export(outcome: Outcome[Any], formats: Sequence[str]) -> list[Path]:
    from recallkit.display.exports import export

    written = []
    for tables, shown, folder in outcome.exports():
        if folder is None:
            raise UsageError("no directory to write to", where="--export", remedy="name it with -o DIR")
        written += export(tables, shown, folder, formats)
    return written


def _draw(outcome: Outcome[Any], folder: Path) -> list[Path]:
    from recallkit.display import console
    from recallkit.display.chart_theme import save_figures

    figures = outcome.figures()
    if not figures:
        console.note("no figures are written: this result has nothing to draw")
    return save_figures(figures, folder)


def _formats(text: Any) -> list[str]:
    from recallkit.display.exports import parse_formats

    return parse_formats(text)


JSON = Annotated[bool, Option("Print the result as JSON.", ("--json",), panel=OUTPUT)]
EXPORT = Annotated[
    str | None,
    Option(
        "Also write the tables as csv or json, and what is printed as md or tex; joined with commas.",
        metavar="FORMATS",
        parse=_formats,
        panel=OUTPUT,
    ),
]
FIGURES = Annotated[File | None, Option("Also write the figures there, as SVG, PNG and PDF for a paper.", metavar="DIR", panel=OUTPUT)]

DECLARED: dict[str, Command] = {}
"""The commands by name, as far as their modules are imported."""


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """A function of the Python API only: its arguments are checked against their declarations."""
    return _python(function, _parameters(function), function)


@overload
def command(
    name: str, *, examples: tuple[str, ...], words: None = None, exports: bool = False
) -> Callable[[Callable[P, Outcome[T]]], Callable[P, T]]: ...


@overload
def command(
    name: str, *, examples: tuple[str, ...], words: type[E], exports: bool = False
) -> Callable[[Callable[Concatenate[E | None, P], Outcome[T]]], Callable[P, T]]: ...


def command(name: str, *, examples: tuple[str, ...], words: type | None = None, exports: bool = False) -> Any:
    """Makes a function the command `name`, and the function that Python calls; the first paragraph of its docstring is the help.

    `examples` are command lines, the end of the help. `exports`: it has tables, hence `--export` and `--figures`. `words` is a
    dataclass of options of the command line only: the function's first parameter, which is None from Python.
    """

    def made(function: Callable[..., Outcome[Any]]) -> Callable[..., Any]:
        parameters = _parameters(function)
        DECLARED[name] = declared = Command(name, function, parameters, words, examples, exports)
        first = () if words is None else (None,)
        return _python(function, parameters, lambda *given, **named: declared.call(*first, *given, **named), skip=len(first))

    return made


def _shown_value(outcome: Outcome[T]) -> T:
    """The value for Python, which a notebook shows as the command prints and draws it."""
    return in_notebooks(outcome.value(), lambda: [table for _, shown, _ in outcome.exports() for table in shown.values()], outcome.figures)


def in_notebooks(value: T, tables: "Callable[[], Sequence[Table]]", figures: "Callable[[], Sequence[Figure]]" = tuple) -> T:
    """The value, with what a notebook shows of it if it is a result that can be shown; nothing is made before it is asked for."""
    from recallkit.display.notebook import Shown

    def html() -> str:
        from recallkit.report.notebook import tables_html

        return tables_html(tables())

    if isinstance(value, Shown):
        value.show_as(html, figures)
    return value


def _parameters(function: Callable[..., Any]) -> dict[str, Parameter]:
    found = [Parameter.declared(each.name, each.annotation, each.default) for each in inspect.signature(function).parameters.values()]
    return {each.name: each for each in found if each is not None}


def _python(
    function: Callable[..., Any], parameters: Mapping[str, Parameter], call: Callable[..., Any], skip: int = 0
) -> Callable[..., Any]:
    """`call` with checked arguments, under the name of `function`: its types without the declarations, its docstring with them."""
    whole = inspect.signature(function)
    bare = [
        each.replace(annotation=get_args(each.annotation)[0] if each.name in parameters else each.annotation)
        for each in list(whole.parameters.values())[skip:]
    ]
    result = get_args(whole.return_annotation)[0] if get_origin(whole.return_annotation) is Outcome else whole.return_annotation
    signature = inspect.Signature(bare, return_annotation=getattr(result, "__forward_arg__", result))

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name, given in bound.arguments.items():
            bound.arguments[name] = parameters[name].take(given) if name in parameters else given
        return call(*bound.args, **bound.kwargs)

    lines = ["", "Arguments:", *(f"    {name}: {each.help()}" for name, each in parameters.items())] if parameters else []
    called.__doc__ = "\n".join([inspect.getdoc(function) or "", *lines])
    called.__signature__ = signature  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in bare}
    return called
