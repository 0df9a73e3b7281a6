"""How options are declared: a field that is made by `option` or `argument`, of a frozen dataclass
that derives from `Options`.

The field is an option of the command line and an argument in Python; its value is checked wherever
an instance is made. Groups of options are inherited, so that a command's instance can be handed on
as the group that a package below asks for.
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
    """An option of the command line, or with `is_argument` a word given by its position; and an
    argument of the Python function.

    `flags` default to `--name` of the field; `default` is the help's name for the default of a
    field that is None. `least` and `most` bound a number. `parse` converts a word or a value, and
    raises ValueError with the remedy; it leaves alone what it has converted. Several values are
    written by repeating the option, or `joined` with commas. An option goes only with the field
    that it `needs`, if the command has it, and with none of those that it `excludes`.
    """

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    default: str | None = None
    least: float | None = None
    most: float | None = None
    parse: Callable[[Any], Any] | None = None
    joined: bool = False
    needs: str | None = None
    excludes: tuple[str, ...] = ()
    panel: str | None = None
    is_argument: bool = False


def option(description: str, value: Any = None, **more: Any) -> Any:
    """A field with this help, and `value` as its default (MISSING for none); `more` as in
    `Option`."""
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
        annotation: Any = declared.type
        types = (
            get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
        )
        values = [
            kind for kind in types if kind is not NoneType and get_origin(kind) is not Sequence
        ]
        self.kind = next((kind for kind in (bool, int, float) if values == [kind]), str)
        self.choices = next((get_args(kind) for kind in values if get_origin(kind) is Literal), ())
        self.is_many = any(get_origin(kind) is Sequence for kind in types)

    @property
    def flags(self) -> tuple[str, ...]:
        """Its names on the command line."""
        return self.option.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def is_repeated(self) -> bool:
        """Whether several values are several words."""
        return self.is_many and not self.option.joined

    @property
    def typed(self) -> str:
        """What an error about a word calls it."""
        return self.metavar if self.option.is_argument else self.flags[-1]

    @property
    def metavar(self) -> str:
        """The placeholder for a value in the help; empty if there is none."""
        usual = {bool: "", int: "N", float: "NUMBER"}.get(self.kind, "TEXT")
        return self.option.metavar or "|".join(self.choices) or usual

    def help(self) -> str:
        """Its description, its bounds if they are of interest, its default, or that it has to be
        given."""
        least, most = self.option.least, self.option.most
        is_required = self.default is inspect.Parameter.empty
        has_none = self.kind is bool or self.default is None or is_required
        default = self.option.default or ("" if has_none else str(self.default))
        bounds = (
            f"  [{least} to {most}]"
            if least is not None and most is not None and most <= MOST_SHOWN
            else ""
        )
        return (
            self.option.help
            + bounds
            + "  [required]" * is_required
            + (f"  [default: {default}]" if default else "")
        )

    def take(self, value: Any) -> Any:
        """A value, checked: one number as it is, several as a list. Raises UsageError for an
        invalid one."""
        if value is None or (self.kind is str and not self.choices and self.option.parse is None):
            return value
        if not self.is_many:
            return self._checked(value, self.name)
        values = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
        return [self._checked(item, self.name) for item in values]

    def read(self, word: Any) -> Any:
        """A word of the command line as a value, several if joined with commas. Raises UsageError
        for an invalid one."""
        if not isinstance(word, str):  # a default, or parsed already
            return word
        if not self.option.joined:
            return self._checked(self._number(word), self.typed)
        words = filter(None, map(str.strip, word.split(",")))
        return [self._checked(self._number(part), self.typed) for part in words]

    def _number(self, word: str) -> Any:
        try:
            return self.kind(word) if self.kind in (int, float) else word
        except ValueError:
            return word

    def _checked(self, value: Any, where: str) -> Any:
        """A value. Raises UsageError, which names `where`, for one of another type, out of bounds
        or not among the choices."""
        option = self.option
        if option.parse is not None:
            try:
                return option.parse(value)
            except (ValueError, OverflowError) as error:
                raise UsageError(str(error), where=where) from error
        if self.choices and value not in self.choices:
            raise UsageError(
                f"{value!r} is not one of {', '.join(self.choices)}",
                where=where,
                remedy="give one of them",
            )
        if self.kind not in (int, float):
            return value
        number = _as_number(value, self.kind, where)
        most = float("inf") if option.most is None else option.most
        if option.least is not None and not option.least <= number <= most:
            remedy = (
                f"give {option.least} or more"
                if option.most is None
                else f"give {option.least} to {most}"
            )
            raise UsageError(f"{number} is out of bounds", where=where, remedy=remedy)
        return number


def _as_number(value: Any, kind: type, where: str) -> int | float:
    try:
        return index(value) if kind is int else value + 0.0
    except TypeError as error:
        description, example = ("whole number", "8") if kind is int else ("number", "0.5")
        raise UsageError(
            f"{value!r} is no {description}", where=where, remedy=f"give one such as {example}"
        ) from error


@dataclass(frozen=True)
class Options:
    """Base of all groups of options. Raises UsageError where a value is not what its field
    declares."""

    def __post_init__(self) -> None:
        """Checks and converts every declared field, and refuses those that do not go together."""
        parameters = parameters_of(type(self))
        for name, parameter in parameters.items():
            object.__setattr__(self, name, parameter.take(getattr(self, name)))
        changed = self.not_usual().keys()
        typed = {name: parameters[name].typed if name in parameters else name for name in changed}
        for name, parameter in parameters.items():
            needed = parameter.option.needs
            if needed is not None and name in changed and needed in parameters.keys() - changed:
                flag = parameters[needed].typed
                raise UsageError(
                    f"goes with {flag}", where=typed[name], remedy=f"give {flag} as well"
                )
            for other in parameter.option.excludes:
                if {name, other} <= changed:
                    where = f"{typed[name]} and {typed[other]}"
                    raise UsageError("cannot be combined", where=where, remedy="give one of them")

    def not_usual(self) -> dict[str, Any]:
        """The fields that do not have their default, by name."""
        values = {
            declared.name: (getattr(self, declared.name), declared.default)
            for declared in fields(self)
            if declared.init
        }
        return {
            name: value for name, (value, usual) in values.items() if not _is_same(value, usual)
        }

    def is_usual(self, *groups: "type[Options]") -> bool:
        """Whether every option of these groups has its default: nothing was said of what they
        decide."""
        return (
            self.not_usual()
            .keys()
            .isdisjoint(declared.name for group in groups for declared in fields(group))
        )


def _is_same(value: Any, usual: Any) -> bool:
    """Whether a value is the default; arrays and tables are never asked whether they are equal to
    one."""
    return value is usual or (isinstance(value, str | int | float) and value == usual)


def parameters_of(options: Any) -> dict[str, Parameter]:
    """The declared fields of a class of options: those of the class itself first, then of its
    groups.

    A field that a class sets with `field(init=False)` is not an option of it.
    """
    declared = {
        field.name: field for field in fields(options) if field.init and Option in field.metadata
    }
    own = [name for name in inspect.get_annotations(options) if name in declared]
    return {name: Parameter(declared[name]) for name in dict.fromkeys((*own, *declared))}


# ------------------------------------------------------------------------------------------- values


@overload
def path(name: File) -> Path: ...
@overload
def path(name: None) -> None: ...
@overload
def path(name: File | None) -> Path | None: ...
def path(name: File | None) -> Path | None:
    """A file or folder as a Path. Raises UsageError for a URL, which would become the name of a
    folder."""
    if isinstance(name, str) and "://" in name:
        raise UsageError(
            "a URL, but a file or folder of this machine is expected",
            where=name,
            remedy="download it, and name that",
        )
    return None if name is None else Path(fspath(name))


def text(name: File | None) -> str | None:
    """A path, or the name of something else, as a string."""
    return None if name is None else fspath(name)


def names(value: File | Sequence[File] | None) -> list[str]:
    """One name or many as a list: a string is one name, not a sequence of letters."""
    if value is None:
        return []
    return (
        [fspath(value)] if isinstance(value, str | PathLike) else [fspath(name) for name in value]
    )


def numbers(value: int | Sequence[int] | None) -> list[int]:
    """One number or many as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) else [value]


def amount(value: int | str | None) -> int | None:
    """A number of tokens, such as 10M. Raises ValueError for anything else."""
    try:
        return None if value is None else config.parse_amount(str(value))
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{value!r} is not a number of tokens; give a whole number such as 1250, 10M or 1.5B"
        ) from error


def length(value: int | str) -> int:
    """A number of ids, such as 256 or 4k, which is 4,096. Raises ValueError for anything else."""
    digits, binary, rest = str(value).strip().lower().partition("k")
    if not (digits.isascii() and digits.isdigit() and 0 < int(digits) <= config.LONGEST) or rest:
        raise ValueError(
            f"{value!r} is not a number of ids; give a whole number such as 256, or 4k for 4,096"
        )
    return int(digits) * (1024 if binary else 1)
