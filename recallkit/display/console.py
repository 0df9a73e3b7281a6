"""What people see: results on stdout, notes on stderr, tables that fit 80 columns.

With `--log-json` (events.py) stderr carries events instead.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections import Counter
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from io import StringIO
from typing import TYPE_CHECKING, Any

from recallkit.display.cells import Struck, counted
from recallkit.display.tables import folded
from recallkit.errors import printable
from recallkit.events import note as note
from recallkit.events import strict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from recallkit.display.tables import Table


_SIZES = {"COLUMNS": range(20, 1000), "LINES": range(1, 1000)}
"""Sizes that the environment may give the terminal; for others, such as 0, its own or 80 x 25 is
taken."""


@cache
def terminal() -> Console:
    """The console of results: as wide as the terminal, 80 columns in a pipe or a log. A notebook
    asks results for HTML itself."""
    return _console(force_jupyter=False)


def _console(**options: Any) -> Console:
    from rich.console import Console

    environment = {name: value for name, value in os.environ.items() if _is_usable(name, value)}
    return Console(highlight=False, emoji=False, _environ=environment, **options)


def _is_usable(name: str, value: str) -> bool:
    return name not in _SIZES or value in map(str, _SIZES[name])


_plain: ContextVar[Console | None] = ContextVar("plain", default=None)


def stdout() -> Console:
    """Where results are printed: the `terminal`, or the text that `printed` returns."""
    return _plain.get() or terminal()


@cache
def stderr() -> Console:
    """The console of progress, notes and errors."""
    return _console(stderr=True)


def printed(show: Callable[[], None]) -> str:
    """What `show` prints, as text, as wide as the terminal."""
    from rich.console import Console

    text = StringIO()
    plain = Console(
        file=text,
        width=terminal().width,
        highlight=False,
        emoji=False,
        force_terminal=False,
        force_jupyter=False,
    )
    token = _plain.set(plain)
    try:
        show()
    finally:
        _plain.reset(token)
    return text.getvalue().rstrip()


def print_json(value: Any) -> None:
    """The result as JSON on stdout."""
    sys.stdout.write(json_text(value, indent=2) + "\n")


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON; floats are not rounded; control characters and what is not UTF-8 are escaped."""
    text = json.dumps(strict(value), indent=indent, ensure_ascii=False, allow_nan=False)
    return _OBEYED.sub(lambda match: json.dumps(match[0])[1:-1], text)


_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Characters that JSON does not escape: further control characters, and those that change the
direction of text."""


def print_line(text: str, *, is_path: bool = False) -> None:
    """A line of results, folded at the terminal's width unless it is a path, which people copy;
    a % stays with its figure."""
    from rich.text import Text

    joined = Text(printable(text) if is_path else _TOGETHER.sub(_JOINED, printable(text)))
    lines = [joined] if is_path else joined.wrap(stdout(), stdout().width)
    for line in lines:
        stdout().print(Text(line.plain.replace(_JOINED, " ").rstrip()), soft_wrap=True)


_TOGETHER = re.compile(r" (?=%)|(?<=`recallkit) ")
_JOINED = "\ue000"
"""A character of nobody's, where no line ends: rich ends lines at no-break spaces, too."""


MOST_NOTES = 3
"""Notes below a table; the others are printed with `--full`."""


def print_answer(
    answer: str,
    tables: Sequence[Table] = (),
    notes: Sequence[str] = (),
    *,
    full: bool = False,
    leading: int = 1,
    brief: int = MOST_NOTES,
    places: Mapping[str, Path] | None = None,
) -> None:
    """The answer in a sentence or two, the table that is its evidence, a few notes, and where
    things are: `Tables (Parquet): FOLDER`.

    Unless `full` only the `leading` tables and the first `brief` notes: then it is said how many
    more there are, and how to get them, with figures where the folder of the tables is named, whose
    commands all draw some.
    """
    print_line(answer)
    first, few = (tables, notes) if full else (tables[:leading], notes[:brief])
    if first:
        print_line("")
    print_tables(first)
    for line in few:
        print_line(line)
    more = ((len(tables) - len(first), "table"), (len(notes) - len(few), "note"))
    if rest := [counted(number, f"more {noun}") for number, noun in more if number]:
        figures = ", figures with --figures DIR" if "tables" in (places or {}) else ""
        print_line(f"{' and '.join(rest)} with --full{figures}.")
    for what, place in (places or {}).items():
        print_line(f"{PLACES[what]}: {place}", is_path=True)


PLACES = {
    "tables": "Tables (Parquet)",
    "scores": "Scores (Parquet)",
    "table": "Table (DuckDB)",
    "queries": "a row per query",
    "prompts": "a row per prompt",
    "lm_eval": "lm-eval's files",
}


def print_page(path: Path) -> None:
    """`Page: PATH` on one line, never folded; where the terminal has links (OSC 8), the path opens
    the page."""
    from rich.style import Style
    from rich.text import Text

    link = Text(printable(str(path)), style=Style(link=path.absolute().as_uri()))
    stdout().print(Text("Page: ").append(link), soft_wrap=True)


def print_files(files: Sequence[Path]) -> None:
    """What a command wrote beside its tables, exports and charts: folders, and how many files
    there are in each."""
    for folder, number in Counter(path.parent for path in files).items():
        print_line(f"{counted(number, 'file')} written to {folder}", is_path=True)


def print_list(what: str, rows: Sequence[tuple[str, str]]) -> None:
    """What is listed, then names, and beside them their descriptions, folded between words at
    the terminal's width."""
    print_line(what)
    print_line("")
    print_rows(rows, max(len(name) for name, _ in rows))


def print_rows(rows: Iterable[tuple[str, str]], width: int) -> None:
    """Names, in a column of this width, and beside them their descriptions; each at once."""
    room = max(20, stdout().width - width - 2)
    for name, description in rows:
        words = printable(description)
        lines = textwrap.wrap(words, room, break_long_words=False, break_on_hyphens=False) or [""]
        for number, line in enumerate(lines):
            sys.stdout.write(f"{'' if number else name:<{width}}  {line}\n")
        sys.stdout.flush()


def print_indented(text: str, columns: int) -> None:
    """A line of results indented by `columns` spaces, its own spaces kept, never folded."""
    from rich.text import Text

    line = "".join(c if c == " " else printable(c) or " " for c in text)
    stdout().print(Text(" " * columns + line), soft_wrap=True)


# ------------------------------------------------------------------------------------------- tables

_LONGEST_CELL = 300
"""Characters per cell: a name of a megabyte would fill the screen; files contain it in full."""
_BETWEEN = (3, 2)
"""Terminal columns between two columns of a table, and fewer where it would not fit."""
_FIGURES = 20
"""Figures, and names as short as these, are never folded if the terminal has 80 columns."""
_LEAST = ((12, 9), (6, 5), (6, 1))
"""Characters that a column of names keeps, and of a word of a header; each pair is tried if the
one before does not fit."""


def print_table(table: Table) -> None:
    """A table on stdout, as wide as the terminal at most: the first column left-aligned, figures
    right-aligned, long names folded."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = _narrowed(table, stdout().width)
    rows = [list(map(_cut, row)) for row in table.rows]
    headers = ["\n".join(map(printable, header.split("\n"))) for header in table.headers]
    between, widths = _layout(headers, rows, stdout().width)
    padding = (0, 1, 0, between - 2)
    rich_table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding)
    for index, (header, width) in enumerate(zip(headers, widths, strict=True)):
        options: dict[str, Any] = {"justify": "right" if index else "left", "width": width}
        rich_table.add_column(Text(header), overflow="fold", **options)
    for cells, row in zip(table.rows, rows, strict=True):
        row[0] = "\n".join(folded(row[0], widths[0]))
        styles = ["strike" if isinstance(cell, Struck) else "" for cell in cells]
        rich_table.add_row(*map(Text, row, styles))
    stdout().print(Text(printable(table.title), style="bold"))
    stdout().print(rich_table)
    print_line("")
    for line in (table.caption or "").splitlines():
        print_line(line)


def print_tables(tables: Iterable[Table]) -> None:
    """Tables below each other, with a blank line in between."""
    follows_caption = False
    for table in tables:
        if follows_caption:
            print_line("")
        print_table(table)
        follows_caption = table.caption is not None  # a table without one ends with a blank line


def _narrowed(table: Table, available: int) -> Table:
    """The table without as many of its optional columns as do not fit."""
    from rich.cells import cell_len

    for header in table.optional:
        columns = zip(table.headers, *table.rows, strict=True)
        texts = ([*name.split("\n"), *map(_cut, cells)] for name, *cells in columns)
        widths = [max(map(cell_len, text)) for text in texts]
        if sum(widths) + _BETWEEN[-1] * (len(widths) - 1) <= available:
            break
        place = list(table.headers).index(header)
        headers, *rows = ([*row[:place], *row[place + 1 :]] for row in (table.headers, *table.rows))
        table = replace(table, headers=headers, rows=rows, groups=())
    return table


def _cut(cell: str) -> str:
    """A cell as it is shown, cut if it is too long; in brackets if it is struck out and no line can
    be drawn through it.

    Not in parentheses: `12.3 (8.0 to 15.1)` has some already.
    """
    is_bracketed = isinstance(cell, Struck) and stdout().color_system is None
    text = printable(f"[{cell}]" if is_bracketed else cell)
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


def _layout(
    headers: Sequence[str], rows: Sequence[Sequence[str]], available: int
) -> tuple[int, list[int]]:
    """What is between columns, and the width of every column: what it needs, less what names and
    headers must yield to fit `available`.

    Columns are moved together first. Then the widest column is narrowed first, and words of headers
    are cut last. If even that is not enough, all columns are narrowed, and figures are folded too.
    """
    from rich.cells import cell_len

    cells = zip(*rows, strict=True) if rows else [()] * len(headers)
    bodies = [max(map(cell_len, column), default=0) for column in cells]
    widths = [
        max(body, *map(cell_len, header.split("\n")))
        for header, body in zip(headers, bodies, strict=True)
    ]
    gaps = len(widths) - 1
    between = next(
        (room for room in _BETWEEN if sum(widths) + room * gaps <= available), _BETWEEN[-1]
    )
    words = [max(map(cell_len, header.split()), default=1) for header in headers]
    figures = [min(body, _FIGURES) for body in bodies[1:]]
    limits = []
    for name, most in _LEAST:
        pairs = zip(figures, words[1:], strict=True)
        limits.append([name, *(max(body, min(word, most)) for body, word in pairs)])
    for least in (*limits, [1] * len(widths)):
        while sum(widths) + between * gaps > available:
            widest = max(
                range(len(widths)), key=lambda place: (widths[place] > least[place], widths[place])
            )
            if widths[widest] <= least[widest]:
                break
            widths[widest] -= 1
    return between, widths
