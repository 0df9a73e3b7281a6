"""One declaration, two interfaces: a function of declared options is both a command of the command line and a Python function.

`command` takes a function of one argument, the options as an instance of a dataclass (`recallkit.declarations`), which returns an
`Outcome`. It returns the function for Python, whose signature is that of the dataclass: type checkers and editors see every
option. The command is kept in `DECLARED`, from which `recallkit.commands.app` makes the command line, and the outcome is
printed, as JSON with `--json`, or written with `--export`, `--figures`.
"""

import contextlib
import errno
import functools
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, get_args, get_origin

from recallkit.declarations import OUTPUT, File, Options, Parameter, names, option, parameters_of, path
from recallkit.errors import UsageError, UserError
from recallkit.options import LabelOptions

if TYPE_CHECKING:
    from recallkit.display.charts import Figure
    from recallkit.display.tables import Table
    from recallkit.display.views import ResultView
    from recallkit.trackers.destinations import Destination, Tracker

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E")


def no_figures(models: Sequence[str]) -> "Sequence[Figure]":
    """Of a result that has nothing to draw."""
    return ()


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The result of a command, in every form that can be requested; only the requested one is made.

    `show` prints the answer, or all there is (`full`). `exports` are frames by name (a dataclass or a mapping), tables as they are
    printed, and the folder, if there is one; with `figures`, of some models or of all, they are also what a notebook shows of the value.
    `views` have what is in model cards. `failure` ends the command with status 1, after this note.
    """

    value: Callable[[], T]
    show: Callable[[bool], None]
    json: Callable[[], Any]
    exports: Callable[[], Iterable[tuple[Any, Mapping[str, "Table"], Path | None]]] = tuple
    figures: Callable[[Sequence[str]], Sequence["Figure"]] = no_figures
    views: Callable[[], Sequence["ResultView"]] = tuple
    failure: str | None = None

    @classmethod
    def of(cls, tables: T, *makers: "Callable[[], ResultView]") -> "Outcome[T]":
        """The tables of a result in a folder, which the first view shows; those of others are printed with --full, exported and drawn."""
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
    def of_shares(made: Mapping[str, Mapping[str, Any]]) -> "Outcome[Any]":
        """How far all shares of each result are together, by its name: `parts_done` of `num_parts`, or `joined`."""
        from recallkit.display.console import print_line

        def line(of: Mapping[str, Any]) -> str:
            if of["joined"]:
                return "joined"
            rest = "run it without --share to join them" if of["parts_done"] == of["num_parts"] else "other shares are not done"
            return f"{of['parts_done']:,} of {of['num_parts']:,} parts are done, {rest}"

        def show(full: bool) -> None:
            for name, of in made.items():
                print_line(f"{name}: {line(of)}")

        return Outcome(
            value=lambda: made,
            show=show,
            json=lambda: made,
        )


def _inches(text: Any) -> float:
    from recallkit.display.figure_files import parse_width

    return parse_width(text)


def _formats(text: Any) -> list[str]:
    from recallkit.display.exports import parse_formats

    return parse_formats(text) if isinstance(text, str) else text


@dataclass(frozen=True, kw_only=True)
class _Printed(Options):
    """How the command line prints what is found."""

    as_json: bool = option("Print the result as JSON.", False, flags=("--json",), panel=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class _Drawn(_Printed):
    """The same of a result with figures."""

    figures: File | None = option(
        "Also write the figures to this folder for a paper, as PDF, SVG and PNG, with LaTeX.", metavar="DIR", panel=OUTPUT
    )
    width: float = option("How wide the figures are.", "column", metavar="column|text|INCHES", parse=_inches, panel=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class _Chosen(_Drawn):
    """The same of results that are there already, of which some models are drawn."""

    drawn: str | Sequence[str] | None = option(
        "With --figures: draw only this model and the reference. May be repeated.", flags=("--model",), metavar="NAME", panel=OUTPUT
    )


@dataclass(frozen=True, kw_only=True)
class _Exported(_Printed):
    """The same of a result with tables."""

    export: str | None = option(
        "Also write the tables, as csv, json, md, tex or model cards (card), joined with commas.",
        metavar="FORMATS",
        parse=_formats,
        panel=OUTPUT,
    )


@dataclass(frozen=True, kw_only=True)
class _Answered(_Exported):
    """The same of a result that is printed as an answer, with more to be asked for."""

    full: bool = option("Print all tables and notes, not only the first.", False, panel=OUTPUT)


_WHEREVER = {"-o": "name a place that may be written with -o"}
_BESIDE_SLICES = {"--slices": "copy the slices to where you may write, and name them with --slices"}
"""What to do about a place that may not be written, by the option that the command must have."""

_SHARED = {"intervene", "scores"}
"""Folders of the slices that every run with these uses, wherever its tables go."""


def _may_not_be_written(error: OSError) -> bool:
    """Whether it is about something new in a folder that is there, and may be searched only."""
    is_refusal = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    if not is_refusal or not isinstance(error.filename, str) or os.path.lexists(error.filename):
        return False
    folder = next(parent for parent in Path(error.filename).absolute().parents if os.path.lexists(parent))
    return os.access(folder, os.X_OK) and not os.access(folder, os.W_OK)


@dataclass(frozen=True)
class Command:
    """A command of the command line.

    `python` is the dataclass of Python's arguments, `options` that of the command line's, which its function takes; `printed` declares
    how the command line prints.
    """

    name: str
    function: Callable[..., Outcome[Any]]
    python: Any
    options: type[Options]
    printed: type[_Printed]
    examples: tuple[str, ...]

    @property
    def parameters(self) -> list[Parameter]:
        """All options of the command, in the order of its help: what is written and how comes last."""
        last = ("force", "as_json")
        found = (parameters_of(self.python) | parameters_of(self.options) | parameters_of(self.printed)).values()
        return sorted(
            found, key=lambda each: (each.option.panel == OUTPUT, each.name in last, last.index(each.name) if each.name in last else 0)
        )

    def run(self, **given: Any) -> int:
        """Runs it with the given arguments, prints and writes the outcome; returns the exit status."""
        from recallkit.display import console
        from recallkit.display.console import print_files

        printed = self.printed(**{name: given.pop(name) for name in parameters_of(self.printed)})
        asked = self.options(**given)
        formats = printed.export if isinstance(printed, _Exported) else None
        folder = path(printed.figures) if isinstance(printed, _Drawn) else None
        if folder is None and isinstance(printed, _Chosen) and printed.drawn is not None:
            raise UsageError("chooses what is drawn", where="--model", remedy="add --figures DIR")
        if folder is not None:
            from recallkit.display.figure_files import check_figures_folder

            check_figures_folder(folder)
        trackers = _open_trackers(asked)
        with self._explaining_places():
            outcome = self.function(_with_counts_here(asked))
        if not printed.as_json:  # before anything that can fail
            outcome.show(getattr(printed, "full", False))
        with self._explaining_places():
            written = _export(outcome, formats) if formats else []
        if isinstance(printed, _Drawn) and folder is not None:
            written += _draw(outcome, folder, printed)
        if printed.as_json:
            console.print_json({**outcome.json(), "files": [str(path) for path in written]} if formats or folder else outcome.json())
        else:
            print_files(written)
        is_logged = self.log(trackers, outcome, asked)
        if outcome.failure is not None:
            console.note(outcome.failure)
        return int(outcome.failure is not None or not is_logged)

    @contextlib.contextmanager
    def _explaining_places(self) -> Iterator[None]:
        """A block whose errors say what to name in place of a folder that may not be written."""
        try:
            yield
        except OSError as error:
            if not _may_not_be_written(error):
                raise
            flags = {flag for parameter in self.parameters for flag in parameter.flags}
            choices = _BESIDE_SLICES if _SHARED & set(Path(error.filename).parts) else _WHEREVER
            remedy = next((words for flag, words in choices.items() if flag in flags), None)
            raise UserError(str(error.strerror), where=error.filename, remedy=remedy) from error

    def call(self, asked: Options) -> Any:
        """The value for Python. A tracker that fails is reported, and costs nothing else."""
        from recallkit.display.notebook import NotebookResult

        trackers = _open_trackers(asked)
        outcome = self.function(_with_counts_here(asked))
        value = outcome.value()
        if isinstance(value, NotebookResult):
            value.show_as(
                lambda: outcome.show(False),
                lambda: [table for _, shown, _ in outcome.exports() for table in shown.values()],
                outcome.figures,
            )
        self.log(trackers, outcome, asked)
        return value

    def log(self, trackers: "Mapping[Destination, Tracker]", outcome: Outcome[Any], asked: Options) -> bool:
        """Logs the outcome, with the options, to the trackers; False if one of them failed."""
        if not trackers:
            return True
        from recallkit.trackers import log_result
        from recallkit.trackers.record import make_record

        options = {name: value for name, value in asked.not_usual().items() if name in parameters_of(type(asked)) and name != "log_to"}
        return not log_result(trackers, lambda folder: make_record(self.name, options, outcome.exports(), outcome.figures(()), folder))


def _with_counts_here(asked: E) -> E:
    """The options, with counts that are at a URL downloaded. Raises UserError as `counts_here` does."""
    given = str(getattr(asked, "counts", ""))
    is_index = given.startswith("infini-gram:")
    if (is_index and isinstance(asked, LabelOptions)) or not (is_index or "://" in given):
        return asked
    from recallkit.counting.remote import counts_here

    return replace(asked, counts=counts_here(asked.counts))  # type: ignore[type-var, attr-defined]


def _open_trackers(asked: Options) -> "dict[Destination, Tracker]":
    """Those of the option `log_to`, if a command has it: opened before the work, so that what is missing costs nothing."""
    if not getattr(asked, "log_to", None):
        return {}
    from recallkit.trackers import open_trackers

    return open_trackers(asked.log_to)  # type: ignore[attr-defined]


def _export(outcome: Outcome[Any], formats: Sequence[str]) -> list[Path]:
    from recallkit.display.cards import write_cards
    from recallkit.display.exports import export

    written = []
    for tables, shown, folder in outcome.exports():
        if folder is None:
            raise UsageError("no directory to write to", where="--export", remedy="name it with -o DIR")
        written += export(tables, shown, folder, formats)
    if "card" in formats:
        measured = [view for view in outcome.views() if view.measured()]
        if not measured:
            raise UsageError("has no figures for a model card", where="--export card", remedy="`gap` and `eval-recall` have some")
        written += [file for view in measured for file in write_cards(view)]
    return written


def _draw(outcome: Outcome[Any], folder: Path, asked: _Drawn) -> list[Path]:
    from recallkit.display import console
    from recallkit.display.charts import MOST_COLOURED, styles_of
    from recallkit.display.figure_files import save_figures

    every = figures = outcome.figures(())
    if not figures:
        console.note("no figures are written: this result has nothing to draw")
    elif isinstance(asked, _Chosen) and asked.drawn is not None:
        figures = outcome.figures(choose_models(names(asked.drawn), every))
    if any(len(figure.models) > MOST_COLOURED for figure in figures):
        console.note(f"of more than {MOST_COLOURED} models only the reference has a colour: choose some with `report --model`")
    return save_figures(figures, folder, asked.width, styles_of(every))


def choose_models(given: Iterable[str], figures: Sequence["Figure"]) -> list[str]:
    """The models of figures that are meant, as results show them, without their folders, or as they are typed; and the reference.

    Raises UserError for a name that is none of theirs, and where the reference would be alone.
    """
    from recallkit.display.charts import labels
    from recallkit.models.spec import one_model

    every = list(dict.fromkeys(model for figure in figures for model in figure.models))
    if len(every) < 2:
        raise UserError("these figures are not of several models", where="models", remedy="name none")
    known = {label: model for model, label in labels(every, sys.maxsize).items()} | {model: model for model in every}
    choice = f"choose from {', '.join(map(shlex.quote, every[1:]))}"
    meant = [known.get(name) or known.get(one_model(name).shown) for name in given]
    for name, model in zip(given, meant, strict=True):
        if model is None:
            raise UserError("no such model in these figures", where=name, remedy=choice)
    chosen = [model for model in every if model in {every[0], *meant}]
    if len(chosen) < 2:
        raise UserError("the reference, which is always drawn", where=every[0], remedy=choice)
    return chosen


DECLARED: dict[str, Command] = {}
"""The commands of the imported modules, by name."""


def command(
    name: str,
    options: Callable[P, Any],
    *,
    examples: tuple[str, ...],
    draws: bool = False,
    chooses: bool = False,
    exports: bool = False,
    answers: bool = False,
) -> Callable[[Callable[[E], Outcome[T]]], Callable[P, T]]:
    """Makes a function the command `name`, and the function that Python calls; the first paragraph of its docstring is the help.

    `options` is the dataclass of Python's arguments. The function's own argument may be of a class that derives from it: what that
    adds are options of the command line only. `examples` are command lines, the end of the help. `draws`: it has figures, hence
    `--figures`; `chooses`: of models to choose from, hence `--model`; `exports`: tables, hence `--export`; `answers`: also an answer,
    hence `--full`.
    """

    def made(function: Callable[[E], Outcome[T]]) -> Callable[P, T]:
        [parameter] = inspect.signature(function).parameters.values()
        tables, figures = _Answered if answers else _Exported if exports else None, _Chosen if chooses else _Drawn if draws else None
        groups = tuple(group for group in (tables, figures) if group is not None) or (_Printed,)
        printed = make_dataclass("Printed", [], bases=groups, frozen=True, kw_only=True)
        DECLARED[name] = declared = Command(name, function, options, parameter.annotation, printed, examples)
        called: Callable[P, T] = _python(function, options, lambda given: declared.call(declared.options(**given)))
        return called

    return made


def checked(options: Callable[P, E]) -> Callable[[Callable[[E], T]], Callable[P, T]]:
    """Makes a function of the Python API only, whose arguments are the fields of a dataclass of options."""

    def made(function: Callable[[E], T]) -> Callable[P, T]:
        made_of: Callable[..., E] = options
        called: Callable[P, T] = _python(function, options, lambda given: function(_with_counts_here(made_of(**given))))
        return called

    return made


def _python(function: Callable[..., Any], options: Any, call: Callable[[dict[str, Any]], Any]) -> Any:
    """`call` with the arguments by name, under the name of `function`: the fields' types are its signature, their help its docstring."""
    declared = parameters_of(options)
    fields = inspect.signature(options).parameters
    positional = [name for name in fields if fields[name].kind is not inspect.Parameter.KEYWORD_ONLY]
    bare = [fields[name] for name in dict.fromkeys((*positional, *declared, *fields))]
    result = inspect.signature(function).return_annotation
    result = get_args(result)[0] if get_origin(result) is Outcome else result
    signature = inspect.Signature(bare, return_annotation=getattr(result, "__forward_arg__", result))

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return call(signature.bind(*args, **kwargs).arguments)

    lines = (
        ["", "Arguments:", *(f"    {name}: {declared[name].help()}" for name in signature.parameters if name in declared)]
        if declared
        else []
    )
    called.__doc__ = "\n".join([inspect.getdoc(function) or "", *lines])
    called.__signature__ = signature  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in bare}
    called.options = options  # type: ignore[attr-defined]  # where its arguments are declared
    return called
