"""Results for other programs and for papers: CSV and JSON of every table, Markdown and LaTeX of what is printed.

Parquet is always written; these stand beside it, and hold the same figures.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

from recallkit import artifacts
from recallkit.tables import LATEX_HEAD, MARKDOWN_HEAD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.tables import Table

FORMATS = ("csv", "json", "md", "tex")


def parse_formats(text: str) -> list[str]:
    """`csv,tex` -> the formats, each once. Raises ValueError for one that is not known."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in FORMATS]
    if unknown or not names:
        raise ValueError(f"{text!r}: give one or more of {', '.join(FORMATS)}")
    return list(dict.fromkeys(names))


def export(tables: Any, shown: Mapping[str, Table], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Writes each frame of the dataclass `tables` as NAME.csv and NAME.json, each of `shown` as NAME.md and NAME.tex.

    Only the formats asked for; each file whole or not at all. Numbers are written with every digit; JSON has null where a number
    is not finite. Returns the files. Raises UserError where a file of such a name was not written by this function.
    """
    frames = {field.name: getattr(tables, field.name) for field in dataclasses.fields(tables)}
    contents = {
        "csv": {name: (_csv_head(frame), frame.write_csv()) for name, frame in frames.items()} if "csv" in formats else {},
        "json": {name: (_JSON_HEAD, _json(name, frame)) for name, frame in frames.items()} if "json" in formats else {},
        "md": {name: (MARKDOWN_HEAD, table.markdown()) for name, table in shown.items()} if "md" in formats else {},
        "tex": {name: (LATEX_HEAD, table.latex()) for name, table in shown.items()} if "tex" in formats else {},
    }
    written = []
    for ending, texts in contents.items():
        for name, (head, text) in texts.items():
            path = folder / f"{name}.{ending}"
            artifacts.check_replaceable(path, head.encode())
            with artifacts.replacing(path) as temporary:
                temporary.write_text(text, encoding="utf-8")
            written.append(path)
    return written


_JSON_HEAD = '{"made_by": "recallkit"'


def _csv_head(frame: pl.DataFrame) -> str:
    """The first line of a table's CSV file: what such a file is known by."""
    return frame.clear().write_csv()


def _json(name: str, frame: pl.DataFrame) -> str:
    rows = [{key: _finite(value) for key, value in row.items()} for row in frame.iter_rows(named=True)]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    return f'{_JSON_HEAD}, "table": {json.dumps(name)}, "rows": [\n{lines}\n]}}\n'


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
