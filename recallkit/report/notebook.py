"""Tables of a result as HTML for a notebook: those of a page, with a style of their own that reaches nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.report.markup import shown_table, tag, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.display.tables import Table

_NAME = "recallkit-result"
_STYLE = """
.# .wide { overflow-x: auto }
.# table { border-collapse: collapse; font-variant-numeric: tabular-nums }
.# th, .# td { padding: .3em .7em; text-align: right; white-space: nowrap; border-bottom: 1px solid rgb(128 128 128 / .3) }
.# th:first-child { padding-left: 0; text-align: left; white-space: normal }
.# thead th { vertical-align: bottom; white-space: pre-line; opacity: .75 }
.# tbody th { font-weight: normal }
.# h3 { margin: .8em 0 .3em; font-size: 1em }
.# .notes { max-width: 46em; margin: .4em 0; font-size: .9em; opacity: .75 }
.# summary { margin: .6em 0; cursor: pointer }
""".replace("#", _NAME)


def tables_html(tables: Sequence[Table]) -> str:
    """The first table, and the others folded below it. It needs nothing else: no script, no file, no network; names are escaped."""
    first, *others = [shown_table(table) for table in tables] or [""]
    count = f"{len(others)} more table{'s' * (len(others) > 1)}"
    folded = tag("details", tag("summary", text(count)), *others) if others else ""
    return tag("div", f"<style>{_STYLE}</style>", first, folded, class_=_NAME)
