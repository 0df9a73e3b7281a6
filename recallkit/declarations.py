"""How options are declared: a field that is made by `option` or `argument`, of a frozen dataclass that derives from `Options`.

The field is an option of the command line and an argument in Python; its value is checked wherever an instance is made. Groups of
options are inherited, so that a command's instance can be handed on as the group that a package below asks for.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from operator import index
from os import PathLike, fspath
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, overload

from recallkit import config
from recallkit.errors import UsageError

File = str | PathLike[str]

OUTPUT = "Output"
"""Group in the help of the options that say what is written, and how."""

MOST_SHOWN = 1 << 16
"""Larger bounds are the machine's: they are checked, but not shown in the help."""


@dataclass(frozen=True)
class Option:
    """An option of the command line, or with `is_argument` a word given by its position; and an argument of the Python function.

    `flags` default to `--name` of the field; `default` is the help's name for the default of a field that is None.
    `least` and `most` bound a number. `parse` converts what is given, a word or a value, and raises ValueError with the remedy;
    it leaves alone what it has converted. Several values are given by repeating the option, or `joined` with commas.
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
    is_argument: bool = False


def option(description: str, value: Any = None, **more: Any) -> Any:
    """A field with this help, and `value` as its default (MISSING for none); `more` as in `Option`."""
    return field(default=value, metadata={Option: Option(description, **more)})


def argument(description: str, value: Any = None, **more: Any) -> Any:
    """The same, given by position instead of a flag."""
    return option(description, value, is_argument=True, **more)


class Parameter:
    """A declared field. `kind`: bool, int, float, or str for everything that is not converted."""

    def __init__(self, declared: Field[Any]) -> None:
        self.name = declared.name
        self.option: Option = declared.metadata[Option]
        self.default = inspect.Parameter.empty if declared.default is MISSING else declared.default
        given: Any = declared.type
        kinds = [kind for kind in (get_args(given) if get_origin(given) in (Union, UnionType) else (given,)) if kind is not NoneType]
        single = [kind for kind in kinds if get_origin(kind) is not Sequence]
        self.kind = single[0] if len(single) == 1 and isinstance(single[0], type) and single[0] is not Any else str
        self.choices = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
        self.is_many = single != kinds

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
        """Its description, its bounds if they are of interest, its default, or that it has to be given."""
        least, most = self.option.least, self.option.most
        is_required = self.default is inspect.Parameter.empty
        has_none = self.kind is bool or self.default is None or is_required
        default = self.option.default or ("" if has_none else str(self.default))
        bounds = f"  [{least} to {most}]" if least is not None and most is not None and most <= MOST_SHOWN else ""
        return self.option.help + bounds + "  [required]" * is_required + (f"  [default: {default}]" if default else "")

    def take(self, given: Any) -> Any:
        """A value, checked: one number as it is, several as a list. Raises UsageError for an invalid one."""
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
        name = self.metavar if self.option.is_argument else self.flags[-1]
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
            raise UsageError(f"{given!r} is not one of {', '.join(self.choices)}", where=where, remedy="give one of them")
        if self.kind in (int, float):
            given = _as_number(given, self.kind, where)
            most = float("inf") if option.most is None else option.most
            if option.least is not None and not option.least <= given <= most:
                remedy = f"give {option.least} or more" if option.most is None else f"give {option.least} to {most}"
                raise UsageError(f"{given} is out of bounds", where=where, remedy=remedy)
        return given


def _as_number(given: Any, kind: type, where: str) -> int | float:
    try:
        return index(given) if kind is int else given + 0.0
    except TypeError as error:
        what, example = ("whole number", "8") if kind is int else ("number", "0.5")
        raise UsageError(f"{given!r} is no {what}", where=where, remedy=f"give one such as {example}") from error


@dataclass(frozen=True)
class Options:
    """Base of all groups of options. Raises UsageError where a value is not what its field declares."""

    def __post_init__(self) -> None:
        """Checks and converts every declared field; a group adds what cannot be combined."""
        for name, parameter in parameters_of(type(self)).items():
            object.__setattr__(self, name, parameter.take(getattr(self, name)))

    def not_usual(self) -> dict[str, Any]:
        """The fields that do not have their default, by name."""
        found = {each.name: (getattr(self, each.name), each.default) for each in fields(self) if each.init}
        return {name: value for name, (value, usual) in found.items() if not _is_same(value, usual)}

    def is_usual(self, *groups: "type[Options]") -> bool:
        """Whether every option of these groups has its default: nothing was said of what they decide."""
        return self.not_usual().keys().isdisjoint(each.name for group in groups for each in fields(group))


def _is_same(value: Any, usual: Any) -> bool:
    """Whether a value is the default; arrays and tables are never asked whether they are equal to one."""
    return value is usual or (isinstance(value, str | int | float) and value == usual)


def parameters_of(options: Any) -> dict[str, Parameter]:
    """The declared fields of a class of options: those of the class itself first, then of its groups.

    A field that a class sets with `field(init=False)` is not an option of it.
    """
    found = {each.name: each for each in fields(options) if each.init and Option in each.metadata}
    own = [name for name in inspect.get_annotations(options) if name in found]
    return {name: Parameter(found[name]) for name in dict.fromkeys((*own, *found))}


# -------------------------------------------------------------------------------------------------------------- values


@overload
def path(given: File) -> Path: ...
@overload
def path(given: None) -> None: ...
@overload
def path(given: File | None) -> Path | None: ...
def path(given: File | None) -> Path | None:
    """A file or folder as a Path. Raises UsageError for a URL, which would become the name of a folder."""
    if isinstance(given, str) and "://" in given:
        raise UsageError("a URL, but a file or folder of this machine is expected", where=given, remedy="download it, and name that")
    return None if given is None else Path(fspath(given))


def text(given: File | None) -> str | None:
    """A path, or the name of something else, as a string."""
    return None if given is None else fspath(given)


def names(given: File | Sequence[File] | None) -> list[str]:
    """One name or many as a list: a string is one name, not a sequence of letters."""
    return [] if given is None else [fspath(given)] if isinstance(given, str | PathLike) else [fspath(each) for each in given]


def numbers(given: int | Sequence[int] | None) -> list[int]:
    """One number or many as a list."""
    return [] if given is None else list(given) if isinstance(given, Sequence) else [given]


def amount(given: int | str | None) -> int | None:
    """A number of tokens, such as 10M. Raises ValueError for anything else."""
    try:
        return None if given is None else config.parse_amount(str(given))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{given!r} is not a number of tokens; give a whole number such as 1250, 10M or 1.5B") from error


def length(given: int | str) -> int:
    """A number of ids, such as 256 or 4k, which is 4,096. Raises ValueError for anything else."""
    digits, binary, rest = str(given).strip().lower().partition("k")
    if not (digits.isascii() and digits.isdigit() and 0 < int(digits) <= config.LONGEST) or rest:
        raise ValueError(f"{given!r} is not a number of ids; give a whole number such as 256, or 4k for 4,096")
    return int(digits) * (1024 if binary else 1)
