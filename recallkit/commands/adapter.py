"""One declaration, two interfaces: a function of declared options is both a command of the command
line and a Python function.

`command` takes a function of one argument, the options as an instance of a dataclass
(`recallkit.declarations`), which returns an `Outcome`. It returns the function for Python, whose
signature is that of the dataclass: type checkers and editors see every option. The command is
entered in `DECLARED`, from which `recallkit.commands.app` makes the command line, and the outcome
is printed, as JSON with `--json`, or written with `--export`, `--figures`.
"""

import functools
import inspect
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, get_args, get_origin

from recallkit.declarations import (
    OUTPUT,
    File,
    Options,
    Parameter,
    names,
    option,
    parameters_of,
    path,
)
from recallkit.errors import UsageError, UserError
from recallkit.options import LabelOptions

if TYPE_CHECKING:
    from recallkit.display.charts import Figure
    from recallkit.display.tables import Table
    from recallkit.display.views import ResultView
    from recallkit.trackers.destinations import Destination
    from recallkit.trackers.packages import Tracker

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E")


def no_figures(models: Sequence[str]) -> "Sequence[Figure]":
    """Of a result that has nothing to draw."""
    return ()


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The result of a command, in every form that can be requested; only the requested one is made.

    `show` prints the answer, or all there is (`full`). `exports` are frames by name (a dataclass or
    a mapping), tables as they are printed, and the folder, if there is one; with `figures`, of some
    models or of all, they are also what a notebook shows of the value. `views` have what is in
    model cards. `failure` ends the command with status 1, after this note.
    """

    value: Callable[[], T]
    show: Callable[[bool], None]
    json: Callable[[], Any]
    exports: Callable[[], Iterable[tuple[Any, Mapping[str, "Table"], Path | None]]] = tuple
    figures: Callable[[Sequence[str]], Sequence["Figure"]] = no_figures
    views: Callable[[], Sequence["ResultView"]] = tuple
    failure: str | None = None

    @classmethod
    def from_views(cls, tables: T, *makers: "Callable[[], ResultView]") -> "Outcome[T]":
        """The tables of a result in a folder, which the first view shows; those of others are
        printed with --full, exported and drawn."""
        views = functools.cache(lambda: [make() for make in makers])
        return cls(
            value=lambda: tables,
            show=lambda full: views()[0].print(*views()[1:], full=full),
            json=lambda: views()[0].json(),
            exports=lambda: [(view.frames, view.display_tables, view.folder) for view in views()],
            figures=lambda models: [figure for view in views() for figure in view.figures(models)],
            views=views,
        )

    @staticmethod
    def of_shares(progress: Mapping[str, Mapping[str, Any]]) -> "Outcome[Any]":
        """How far all shares of each result are together, by its name: `parts_done` of `num_parts`,
        or `joined`."""
        from recallkit.display.console import print_line

        def state(shares: Mapping[str, Any]) -> str:
            if shares["joined"]:
                return "joined"
            done, number = shares["parts_done"], shares["num_parts"]
            rest = "other shares are not done"
            if done == number:
                rest = "run it without --share to join them"
            return f"{done:,} of {number:,} parts are done, {rest}"

        def show(full: bool) -> None:
            for name, shares in progress.items():
                print_line(f"{name}: {state(shares)}")

        return Outcome(value=lambda: progress, show=show, json=lambda: progress)


def _inches(text: Any) -> float:
    from recallkit.display.figure_files import parse_width

    return parse_width(text)


def _formats(text: Any) -> list[str]:
    from recallkit.display.exports import parse_formats

    return parse_formats(text) if isinstance(text, str) else text


@dataclass(frozen=True, kw_only=True)
class Printing(Options):
    """How the command line prints, exports and draws a result. A command has those of these options
    that fit its result."""

    figures: File | None = option(
        "Also write the figures to this folder for a paper, as PDF, SVG and PNG, with LaTeX.",
        metavar="DIR",
        panel=OUTPUT,
    )
    width: float = option(
        "How wide the figures are.",
        "column",
        metavar="column|text|INCHES",
        parse=_inches,
        panel=OUTPUT,
    )
    drawn: str | Sequence[str] | None = option(
        "With --figures: draw only this model and the reference. May be repeated.",
        flags=("--model",),
        metavar="NAME",
        needs="figures",
        panel=OUTPUT,
    )
    export: str | None = option(
        "Also write the tables, as csv, json, md, tex or model cards (card), joined with commas.",
        metavar="FORMATS",
        parse=_formats,
        panel=OUTPUT,
    )
    full: bool = option("Print all tables and notes, not only the first.", False, panel=OUTPUT)
    as_json: bool = option("Print the result as JSON.", False, flags=("--json",), panel=OUTPUT)


ANSWER = ("figures", "width", "export", "full")
"""Options of `Printing` of a result with an answer, tables and charts."""


@dataclass(frozen=True)
class Command:
    """A command of the command line.

    `python` is the dataclass of Python's arguments, `options` that of the command line's, which its
    function takes; `prints` are its options of `Printing`.
    """

    name: str
    function: Callable[..., Outcome[Any]]
    python: Any
    options: type[Options]
    prints: tuple[str, ...]
    examples: tuple[str, ...]

    @property
    def parameters(self) -> list[Parameter]:
        """All options of the command, in the order of its help: what is written and how comes
        last."""
        printing = parameters_of(Printing)
        parameters = (
            parameters_of(self.python)
            | parameters_of(self.options)
            | {name: printing[name] for name in self.prints}
        )
        order = (None, "force", "as_json")
        place = {name: order.index(name if name in order else None) for name in parameters}
        return sorted(
            parameters.values(),
            key=lambda parameter: (parameter.option.panel == OUTPUT, place[parameter.name]),
        )

    def run(self, **values: Any) -> int:
        """Runs it with these values of its options, prints and writes the outcome; returns the exit
        status."""
        from recallkit.display import console

        printing = Printing(**{name: values.pop(name) for name in self.prints})
        options = self.options(**values)
        folder = path(printing.figures)
        if folder is not None:
            from recallkit.display.figure_files import check_figures_folder

            check_figures_folder(folder)
        trackers = _open_trackers(options)
        outcome = self.function(_with_counts_here(options))
        if not printing.as_json:  # before anything that can fail
            outcome.show(printing.full)
        files = _export(outcome, printing.export) if printing.export else []
        if folder is not None:
            files += _draw(outcome, folder, printing)
        if not printing.as_json:
            console.print_files(files)
        elif printing.export or folder:
            console.print_json({**outcome.json(), "files": [str(file) for file in files]})
        else:
            console.print_json(outcome.json())
        is_logged = self.log(trackers, outcome, options)
        if outcome.failure is not None:
            console.note(outcome.failure)
        return int(outcome.failure is not None or not is_logged)

    def call(self, options: Options) -> Any:
        """The value for Python. A tracker that fails is reported, and costs nothing else."""
        from recallkit.display.notebook import NotebookResult

        trackers = _open_trackers(options)
        outcome = self.function(_with_counts_here(options))
        value = outcome.value()
        if isinstance(value, NotebookResult):
            value.show_as(
                lambda: outcome.show(False),
                lambda: [table for _, tables, _ in outcome.exports() for table in tables.values()],
                outcome.figures,
            )
        self.log(trackers, outcome, options)
        return value

    def log(
        self, trackers: "Mapping[Destination, Tracker]", outcome: Outcome[Any], options: Options
    ) -> bool:
        """Logs the outcome, with the options, to the trackers; False if one of them failed."""
        if not trackers:
            return True
        from recallkit.trackers import log_result
        from recallkit.trackers.record import make_record

        logged = parameters_of(type(options)).keys() - {"log_to"}
        settings = {name: value for name, value in options.not_usual().items() if name in logged}
        return not log_result(
            trackers,
            lambda folder: make_record(
                self.name, settings, outcome.exports(), outcome.figures(()), folder
            ),
        )


def _with_counts_here(options: E) -> E:
    """The options, with counts that are at a URL downloaded. Raises UserError as `counts_here`
    does."""
    counts = str(getattr(options, "counts", ""))
    is_index = counts.startswith("infini-gram:")
    if (is_index and isinstance(options, LabelOptions)) or not (is_index or "://" in counts):
        return options
    from recallkit.counting.remote import counts_here

    return replace(options, counts=counts_here(counts))  # type: ignore[type-var]


def _open_trackers(options: Options) -> "dict[Destination, Tracker]":
    """Those of the option `log_to`, if a command has it: opened before the work, so that what is
    missing costs nothing."""
    destinations = getattr(options, "log_to", None)
    if not destinations:
        return {}
    from recallkit.trackers import open_trackers

    return open_trackers(destinations)


def _export(outcome: Outcome[Any], formats: Sequence[str]) -> list[Path]:
    from recallkit.display.cards import write_cards
    from recallkit.display.exports import export

    files = []
    for frames, tables, folder in outcome.exports():
        if folder is None:
            raise UsageError(
                "no directory to write to", where="--export", remedy="name it with -o DIR"
            )
        files += export(frames, tables, folder, formats)
    if "card" in formats:
        measured = [view for view in outcome.views() if view.measured()]
        if not measured:
            raise UsageError(
                "has no figures for a model card",
                where="--export card",
                remedy="`gap` and `eval-recall` have some",
            )
        files += [file for view in measured for file in write_cards(view)]
    return files


def _draw(outcome: Outcome[Any], folder: Path, printing: Printing) -> list[Path]:
    from recallkit.display import console
    from recallkit.display.charts import MOST_COLOURED, styles_of
    from recallkit.display.figure_files import save_figures

    every = figures = outcome.figures(())
    if not figures:
        console.note("no figures are written: this result has nothing to draw")
    elif printing.drawn is not None:
        figures = outcome.figures(choose_models(names(printing.drawn), every))
    if any(len(figure.models) > MOST_COLOURED for figure in figures):
        console.note(
            f"of more than {MOST_COLOURED} models only the reference has a colour: choose some "
            "with `report --model`"
        )
    return save_figures(figures, folder, printing.width, styles_of(every))


def choose_models(typed: Iterable[str], figures: Sequence["Figure"]) -> list[str]:
    """The models of figures that are meant, as results show them, without their folders, or as they
    are typed; and the reference.

    Raises UserError for a name that is none of theirs, and where the reference would be alone.
    """
    from recallkit.display.charts import labels
    from recallkit.models.spec import one_model

    every = list(dict.fromkeys(model for figure in figures for model in figure.models))
    if len(every) < 2:
        raise UserError(
            "these figures are not of several models", where="models", remedy="name none"
        )
    by_name = {label: model for model, label in labels(every, sys.maxsize).items()} | {
        model: model for model in every
    }
    remedy = f"choose from {', '.join(map(shlex.quote, every[1:]))}"
    chosen = {every[0]}
    for name in typed:
        model = by_name.get(name) or by_name.get(one_model(name).shown)
        if model is None:
            raise UserError("no such model in these figures", where=name, remedy=remedy)
        chosen.add(model)
    if len(chosen) < 2:
        raise UserError("the reference, which is always drawn", where=every[0], remedy=remedy)
    return [model for model in every if model in chosen]


DECLARED: dict[str, Command] = {}
"""The commands of the imported modules, by name."""


def command(
    name: str,
    options: Callable[P, Any],
    *,
    examples: tuple[str, ...],
    prints: tuple[str, ...] = (),
) -> Callable[[Callable[[E], Outcome[T]]], Callable[P, T]]:
    """Makes a function the command `name`, and the function that Python calls; the first paragraph
    of its docstring is the help.

    `options` is the dataclass of Python's arguments. The function's own argument may be of a class
    that derives from it: what that adds are options of the command line only. `examples` are
    command lines, the end of the help. `prints` are the options of `Printing` that it has besides
    `--json`.
    """

    def declare(function: Callable[[E], Outcome[T]]) -> Callable[P, T]:
        [parameter] = inspect.signature(function).parameters.values()
        line = parameter.annotation
        DECLARED[name] = declared = Command(
            name, function, options, line, (*prints, "as_json"), examples
        )
        called: Callable[P, T] = _python(
            function, options, lambda arguments: declared.call(line(**arguments))
        )
        return called

    return declare


def checked(options: Callable[P, E]) -> Callable[[Callable[[E], T]], Callable[P, T]]:
    """Makes a function of the Python API only, whose arguments are the fields of a dataclass of
    options."""
    make: Callable[..., E] = options

    def declare(function: Callable[[E], T]) -> Callable[P, T]:
        called: Callable[P, T] = _python(
            function, options, lambda arguments: function(_with_counts_here(make(**arguments)))
        )
        return called

    return declare


def _python(
    function: Callable[..., Any], options: Any, call: Callable[[dict[str, Any]], Any]
) -> Any:
    """`call` with the arguments by name, under the name of `function`: the fields' types are its
    signature, their help its docstring."""
    declared = parameters_of(options)
    arguments = inspect.signature(options).parameters
    result = inspect.signature(function).return_annotation
    result = get_args(result)[0] if get_origin(result) is Outcome else result
    signature = inspect.Signature(
        [*arguments.values()], return_annotation=getattr(result, "__forward_arg__", result)
    )

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return call(signature.bind(*args, **kwargs).arguments)

    lines = (
        ["", "Arguments:", *(f"    {name}: {declared[name].help()}" for name in declared)]
        if declared
        else []
    )
    called.__doc__ = "\n".join([inspect.getdoc(function) or "", *lines])
    called.__signature__ = signature  # type: ignore[attr-defined]
    return called
