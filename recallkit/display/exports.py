"""Results for other programs and for papers: CSV and JSON of every table, Markdown and LaTeX of
what is printed.

Parquet is always written; these formats contain the same figures. Names come from data, and are
text wherever they are read:

- Spreadsheets evaluate a cell as a formula that begins with `=`, `+`, `-` or `@`, some of them
  behind spaces and what cannot be seen. In CSV such a name has an apostrophe before it, which
  spreadsheets read as "this is text".
- Control characters, those that change the direction of text, and others that are not printed are
  written in CSV as in a string of Python (`\\n`, `\\x1b`, `\\u202e`), and a backslash as two. A
  name is what remains without one apostrophe at the beginning, unescaped.
- JSON has them escaped, as its syntax allows; Markdown and LaTeX are one printable line for each
name.

"""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.display.tables import Table


FORMATS = ("csv", "json", "md", "tex", "card")

_FORMULA = ("=", "+", "-", "@")
"""The first characters of formulas; of their other forms, such as fullwidth ones, these are the
plain ones."""
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters that look like a space: fillers of Hangul, and Braille without dots."""


def parse_formats(text: str) -> list[str]:
    """`csv,tex` -> the formats, each once. Raises ValueError for one that is not known."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in FORMATS]
    if unknown or not names:
        raise ValueError(f"{text!r}: give one or more of {', '.join(FORMATS)}")
    return list(dict.fromkeys(names))


def compact_json(value: Any) -> str:
    """JSON for the script of a page, as short as it can be. Raises ValueError for a number that
    is not finite."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def frames_of(tables: Any) -> dict[str, pl.DataFrame]:
    """The frames of a dataclass, or of a mapping, by name; a field that is None has none."""
    frames = (
        tables
        if isinstance(tables, Mapping)
        else {field.name: getattr(tables, field.name) for field in dataclasses.fields(tables)}
    )
    return {name: frame for name, frame in frames.items() if frame is not None}


def export(
    tables: Any, printed: Mapping[str, Table], folder: Path, formats: Sequence[str]
) -> list[Path]:
    """Writes each frame of `tables` as NAME.csv and NAME.json, each of `printed` as NAME.md and
    NAME.tex.

    `tables` is a dataclass of polars frames, or a mapping of names to them. Only the formats asked
    for, as members of the folder's `manifest.json`. Numbers are written in full precision; a null
    is empty in CSV and null in JSON, where non-finite numbers are null, too. Returns the files.
    Raises UserError, before anything is written, if recallkit did not write a file of that name.
    """
    if not (files := _contents(tables, printed, formats)):
        return []
    with artifacts.adding_members(folder, list(files)) as new:
        for name, text in files.items():
            (new / name).write_text(text, encoding="utf-8", newline="")
    return [folder / name for name in files]


def _contents(tables: Any, printed: Mapping[str, Table], formats: Sequence[str]) -> dict[str, str]:
    """Each file's content by its name, format by format; model cards are written elsewhere."""
    writers: dict[str, tuple[Mapping[str, Any], Callable[[str, Any], str]]] = {
        "csv": (frames_of(tables), lambda _, frame: _csv(frame)),
        "json": (frames_of(tables), _json),
        "md": (printed, lambda _, table: table.markdown()),
        "tex": (printed, lambda name, table: table.latex(name)),
    }
    contents: dict[str, str] = {}
    for ending in formats:
        items, write = writers.get(ending, ({}, _json))
        contents |= {f"{name}.{ending}": write(name, item) for name, item in items.items()}
    return contents


def _csv(frame: pl.DataFrame) -> str:
    import polars as pl

    texts = frame.select(pl.col(pl.String, pl.Categorical, pl.Enum).cast(pl.String))
    for column in texts:
        cells = {name: _csv_cell(name) for name in column.unique().drop_nulls()}
        frame = frame.with_columns(column.replace(cells))
    return frame.rename({name: _csv_cell(name) for name in frame.columns}).write_csv()


def _csv_cell(name: str) -> str:
    """A name as the module says; one that begins with an apostrophe gets another."""
    escaped = "".join(map(_escaped, name))
    first = next(filter(_is_visible, name), "")
    is_formula = unicodedata.normalize("NFKC", first)[:1] in _FORMULA
    return f"'{escaped}" if is_formula or escaped.startswith("'") else escaped


def _escaped(character: str) -> str:
    is_shown = character.isprintable() and character != "\\"
    return character if is_shown else character.encode("unicode_escape").decode()


def _is_visible(character: str) -> bool:
    is_mark = unicodedata.category(character) in ("Mn", "Me")
    return character.isprintable() and not (is_mark or character.isspace() or character in _BLANK)


def _json(name: str, frame: pl.DataFrame) -> str:
    """One row per line."""
    lines = ",\n".join(console.json_text(row) for row in frame.iter_rows(named=True))
    return f'{{"made_by": "recallkit", "table": {json.dumps(name)}, "rows": [\n{lines}\n]}}\n'


def bare(name: str) -> str:
    """A file's name without its folder; a hub id, preset or URL as it is."""
    return (
        PurePath(name).name
        if PurePath(name).is_absolute() or name.startswith(("./", "../", "~"))
        else name
    )
