"""Slices as data: a name, the columns of `tokens.parquet` (or `words.parquet`) that it needs, a
predicate over them, and a sentence.

Everything that is summed, resampled, printed or drawn by slice uses these definitions. A user's own
slice is an expression over the same columns: it may contain only columns and the keywords of
`_KEYWORDS`, so that it has one value per row (it has no function for aggregation, no query, no
file), and polars parses what remains.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from recallkit import config, plugins
from recallkit.errors import UserError
from recallkit.registry import look_up
from recallkit.storage.schemas import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import polars as pl
    import pyarrow as pa

COLUMNS = (*LAYOUTS["tokens"], *LAYOUTS["words"])
"""What expressions may name: columns of `tokens.parquet`, and of `words.parquet` (see
`slicing.words`)."""

_TEXT = r"'(?:[^'\x00-\x1f\x7f\ud800-\udfff]|'')*'"


@dataclass(frozen=True, slots=True)
class Slice:
    """A set of predicted tokens: those whose row in `tokens.parquet` satisfies `predicate`; null
    does not count as satisfied.

    `predicate`: the largest training count of an AR hit -> an expression over `columns`. `option`:
    how a user requests it.
    """

    name: str
    columns: tuple[str, ...]
    predicate: Callable[[int], pl.Expr]
    sentence: str
    option: str


def _define(name: str, expression: str, sentence: str) -> Slice:
    """A built-in slice, from an expression in which {most} is the largest training count of an AR
    hit."""
    words = re.sub(_TEXT, "", expression)
    columns = tuple(column for column in COLUMNS if re.search(rf"\b{column}\b", words))
    return Slice(name, columns, partial(_fill_in, expression), sentence, name)


def _fill_in(expression: str, max_count: int) -> pl.Expr:
    import polars as pl

    return pl.sql_expr(expression.format(most=min(max_count, 2**63 - 1)))


_REPEATING = "Tokens that complete a bigram which is in the context already"
_NEW = "Tokens that complete a bigram which is not in the context yet"
_SEEN_RARELY = "seen at most --max-count times in training"
_SEEN_OFTEN = "seen more than --max-count times in training"
_KEYED = "AR hits whose key, the token before, was followed by"
_IS_IN = "is in the context already"
_CONTAINED = "All tokens of a word that the context already contains"
_NO_FUNCTION_WORD = "that is not in the list of English function words"

SPLIT = (
    _define("all", "repeated IS NOT NULL", "All predicted tokens."),
    _define(
        "ar_hit",
        "ar_hit",
        f"{_REPEATING} and was {_SEEN_RARELY}.",
    ),
    _define("other", "NOT ar_hit", "All tokens that are not AR hits."),
)
"""All tokens, and the two slices that partition them."""

STANDARD = (
    *SPLIT,
    _define(
        "repeated",
        "repeated",
        f"{_REPEATING}, however often seen in training.",
    ),
)
"""Slices of every comparison."""

_MORE = (
    _define(
        "repeated_frequent",
        "repeated AND NOT ar_hit",
        f"{_REPEATING} and was {_SEEN_OFTEN}.",
    ),
    _define(
        "first_rare",
        "NOT repeated AND train_count <= {most}",
        f"{_NEW} and was {_SEEN_RARELY}.",
    ),
    _define(
        "first_frequent",
        "NOT repeated AND train_count > {most}",
        f"{_NEW}, and was {_SEEN_OFTEN}.",
    ),
    _define(
        "overwritten",
        "overwritten AND ar_hit",
        f"{_KEYED} another token since it was last followed by this one.",
    ),
    _define(
        "not_overwritten",
        "ar_hit AND NOT overwritten",
        f"{_KEYED} this token when it last occurred.",
    ),
    _define(
        "rare_word",
        "word_repeated AND word_count <= {most}",
        f"All tokens of a word that {_IS_IN}, and that contains a bigram {_SEEN_RARELY}.",
    ),
    _define(
        "folded",
        "word_folded AND NOT word_repeated",
        f"{_CONTAINED}, but only in another case or inflection.",
    ),
    _define(
        "capitalised",
        "word_kind = 'capitalised'",
        "All tokens of a word with a capital first letter that does not begin a sentence.",
    ),
    _define(
        "number",
        "word_kind = 'number'",
        "All tokens of a run of digits, with at most two letters after them.",
    ),
    _define(
        "identifier",
        "word_kind = 'identifier'",
        "All tokens of a word such as snake_case, camelCase, utf8 or 0xff.",
    ),
    _define(
        "function_word",
        "word_kind = 'function'",
        "All tokens of a word in the list of English function words.",
    ),
    _define(
        "content_word",
        "word_kind <> 'function'",
        f"All tokens of a word {_NO_FUNCTION_WORD}.",
    ),
    _define(
        "state_word",
        "word_kind <> 'function' AND context_class = 'new'",
        f"Tokens of a word {_NO_FUNCTION_WORD}, if the token is not in the context yet.",
    ),
    _define(
        "opening_bracket",
        "opens_bracket",
        "Tokens that open a bracket and do not close it themselves.",
    ),
    _define(
        "closing_bracket",
        "closes_bracket",
        "Tokens that close a bracket which an earlier token of the context opened.",
    ),
    _define(
        "opening_quote",
        "opens_quote",
        "Tokens that open a quotation and do not close it themselves.",
    ),
    _define(
        "closing_quote",
        "closes_quote",
        "Tokens that close a quotation which an earlier token of the context opened.",
    ),
)
SLICES = {slice_.name: slice_ for slice_ in (*STANDARD, *_MORE)}
_COPY = re.compile(r"copy:k([1-9]\d{0,8})", re.ASCII)

SETS = {
    "paper:2606.20936": (
        *("copy:k1", "copy:k2", "copy:k4", "copy:k5", "copy:k8"),
        *("content_word", "function_word", "state_word"),
        *("opening_bracket", "closing_bracket", "opening_quote", "closing_quote"),
    ),
}
"""Slices that one name requests together: a paper's filters, in definitions of ours
(docs/slices.md)."""

CONTEXT_CLASSES = ("bigram", "token", "new")
"""What of a token is in its context already: its bigram, else the token alone, else nothing."""

_CONTEXTS = (
    ("bigram repeated", "repeated", "The bigram is in the context already"),
    (
        "token repeated",
        "context_class = 'token'",
        "The bigram is not in the context yet, its token is",
    ),
    ("token new", "context_class = 'new'", "The token is not in the context yet"),
)
_RARITIES = (("rare", "<=", _SEEN_RARELY), ("frequent", ">", _SEEN_OFTEN))
PARTITION = tuple(
    _define(
        f"{kind}, {how_often}",
        f"{expression} AND train_count {sign} {{most}}",
        f"{sentence}; {rarity}.",
    )
    for kind, expression, sentence in _CONTEXTS
    for how_often, sign, rarity in _RARITIES
)
"""Classes that partition the tokens: by what is in the context already, and by how often the bigram
occurred in training.

The first class is the AR hits.
"""


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}", re.ASCII)
_MOST_SLICES, _LONGEST, _DEEPEST = 16, 500, 8
_KEYWORDS = ("and", "or", "not", "in", "is", "null", "between", "like", "true", "false")
_NUMBER = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])"
_TOKEN = re.compile(
    rf" +|{_TEXT}|(?P<word>[A-Za-z_]\w*)|{_NUMBER}|<=|>=|<>|!=|-(?!-)|/(?!\*)|[<>=+*%(),]",
    re.ASCII,
)
_LIST_OF_VALUES = re.compile(
    rf"\bin\b\s*(?!\s*\(\s*(?:-?{_NUMBER}|{_TEXT})(?:\s*,\s*(?:-?{_NUMBER}|{_TEXT}))*\s*\))",
    re.ASCII | re.IGNORECASE,
)


def parse_slices(
    options: Sequence[str],
    *,
    without: Sequence[Slice] = STANDARD,
) -> tuple[Slice, ...]:
    """The slices that a user requests, `without` those of every comparison: `repeated`, `copy:k4`,
    `name=EXPRESSION`, or one of SETS.

    Raises UserError for an unknown slice, one that is not an expression over the columns, and two
    of the same name.
    """
    singly = itertools.chain(*(SETS.get(option.strip(), (option,)) for option in options))
    requested = dict.fromkeys(map(parse_slice, singly))
    added = {slice_.option: slice_ for slice_ in requested if slice_ not in without}
    names = [slice_.name for slice_ in added.values()]
    for name in names:
        if names.count(name) > 1:
            remedy = "give each a different name"
            raise UserError("two slices with the same name", where=f"slice {name}", remedy=remedy)
    if len(names) > _MOST_SLICES:
        remedy = f"give at most {_MOST_SLICES} at once"
        raise UserError(f"{len(names)} slices", where="--slice", remedy=remedy)
    return tuple(added.values())


def parse_slice(option: str) -> Slice:
    """One slice; see `parse_slices`."""
    name, equals, expression = (part.strip() for part in option.partition("="))
    if equals:
        return _own_slice(name, expression)
    if name.startswith("copy:"):
        return _copy_slice(name)
    if name not in SLICES and (plugin := plugins.find(name, "slice")):
        added: object = plugin.load()
        if not isinstance(added, str):
            problem = f"an object of {type(added).__name__}"
            remedy = "a slice is a string, its expression"
            raise UserError(problem, where=f"slice {name}", remedy=remedy)
        return replace(_own_slice(plugin.entry.name, added), name=name, option=name)
    # A misspelt copy:kN or set gets "did you mean", too.
    return look_up({**SLICES, **dict.fromkeys(["copy:k4", *SETS], SLICES["all"])}, name, "slice")


def _copy_slice(name: str) -> Slice:
    match = _COPY.fullmatch(name)
    gram = int(match[1]) if match else 0
    if not 1 <= gram <= config.LONGEST:
        remedy = "write copy:kN for k-grams of N tokens, 1 or more, such as copy:k4"
        raise UserError("no such slice", where=name, remedy=remedy)
    if gram == 1:
        return _define(name, "context_class <> 'new'", "Tokens that are in the context already.")
    condition = f"match_length >= {gram - 1}"
    gram_is_in = f"a {gram}-gram which {_IS_IN}"
    return _define(name, condition, f"Tokens that complete {gram_is_in} ({condition}).")


def _own_slice(name: str, expression: str) -> Slice:
    if not _NAME.fullmatch(name):
        remedy = "begin with a letter; up to 40 letters, digits, - and _"
        raise UserError("not a name for a slice", where=f"slice {name}"[:80], remedy=remedy)
    if name in SLICES:
        problem = "the name of a built-in slice"
        raise UserError(problem, where=f"slice {name}", remedy="choose another one")
    columns = _check_words(name, expression)
    parse = partial(_parse, name, expression)
    _check_values(name, parse)
    sentence, option = f"Tokens where {expression}.", f"{name}={expression}"
    return Slice(name, columns, lambda _: parse(), sentence, option)


def _fault(
    name: str,
    problem: str,
    remedy: str = "write a condition on columns of tokens.parquet, such as distance > 100",
) -> UserError:
    return UserError(problem, where=f"slice {name}", remedy=remedy)


def _check_words(name: str, expression: str) -> tuple[str, ...]:
    """The columns in an expression.

    Raises UserError for anything but columns, keywords, operators, numbers and quoted text.
    """
    if len(expression) > _LONGEST:
        raise _fault(name, f"{len(expression):,} characters", f"write it in {_LONGEST} or less")
    place, depth, columns = 0, 0, []
    while place < len(expression):
        token = _TOKEN.match(expression, place)
        if token is None:
            raise _fault(name, f"cannot read {expression[place : place + 20]!r}")
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth > _DEEPEST:
            raise _fault(name, f"brackets deeper than {_DEEPEST}", "nest them less")
        if token["word"] and token["word"].lower() not in _KEYWORDS:
            try:
                by_name = {column: column for column in COLUMNS}
                columns.append(look_up(by_name, token["word"], "column"))
            except UserError as error:
                raise _fault(name, f"no column {token['word']}", error.remedy or "") from None
        place = token.end()
    if not columns:
        raise _fault(name, "names no column")
    if _LIST_OF_VALUES.search(re.sub(_TEXT, "''", expression)):
        raise _fault(
            name,
            "IN without a list of values",
            "write numbers or quoted text in brackets: source IN ('web', 'code')",
        )
    return tuple(dict.fromkeys(columns))


def _parse(name: str, expression: str) -> pl.Expr:
    import polars as pl

    try:
        condition = pl.sql_expr(expression)
    except pl.exceptions.PolarsError as error:
        raise _fault(name, f"not an expression ({_first_line(error)})") from error
    # SQL takes a word after a condition as an alias.
    if condition.meta != condition.meta.undo_aliases().meta:
        raise _fault(name, "a word after the condition", "join conditions with AND or OR")
    return condition


def _check_values(name: str, parse: Callable[[], pl.Expr]) -> None:
    """Raises UserError if an expression is not true or false for each row."""
    import polars as pl

    values = {"flag": (True, pl.Boolean), "text": ("web", pl.String)}
    columns = []
    for column_name, column in {**LAYOUTS["tokens"], **LAYOUTS["words"]}.items():
        number = (1, pl.Int64 if column.type == "int64" else pl.Int32)
        value, kind = values.get(column.family, number)
        rows = [value, None if column.nullable else value]
        columns.append(pl.Series(column_name, rows, kind))
    frame = pl.DataFrame(columns)
    [result] = _evaluate([(name, parse())], frame)
    if result.dtype != pl.Boolean or len(result) != frame.height:
        raise _fault(name, f"gives {result.dtype}, not true or false for each token")


def _evaluate(predicates: Sequence[tuple[str, pl.Expr]], frame: pl.DataFrame) -> list[pl.Series]:
    import polars as pl

    results = []
    for name, predicate in predicates:
        try:
            results.append(frame.select(predicate).to_series())
        except pl.exceptions.PolarsError as error:
            problem = f"not a condition on these columns ({_first_line(error)})"
            raise _fault(name, problem) from error
    return results


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


def members(slices: Sequence[Slice], rows: pa.Table, max_count: int) -> list[np.ndarray]:
    """For each slice, which of n rows of `tokens.parquet` are in it, bool (n,).

    `rows` has at least the columns that they need.
    """
    import polars as pl

    needed = {column for slice_ in slices for column in slice_.columns}
    names = [name for name in rows.column_names if name in needed]
    frame = pl.DataFrame([pl.Series(name, _plain(rows[name])) for name in names])
    predicates = [(slice_.name, slice_.predicate(max_count).fill_null(False)) for slice_ in slices]
    return [series.to_numpy() for series in _evaluate(predicates, frame)]


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without dictionary encoding: text is compared as text."""
    import pyarrow as pa

    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
