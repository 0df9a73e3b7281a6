"""A table for people to read, independent of how it is rendered: in a terminal, on a page, as
Markdown, as LaTeX.

Cells are finished text, made once from the frames that are written to Parquet, so that a figure
reads the same everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recallkit.display.cells import Struck, cell
from recallkit.errors import printable
from recallkit.storage.schemas import chosen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from recallkit.display.cells import Row
    from recallkit.storage.schemas import Column

_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: rf"\{character}" for character in "&%$#_{}"},
    # after a row's \\ they would be its arguments
    **{character: f"{{{character}}}" for character in "[]*"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textasciigrave{}",
    '"': r"\char34{}",  # an active character in some babel languages
    "–": r"\textendash{}",  # -- next to a hyphen would be a longer dash
    "…": r"\dots{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "-": "-{}",
    "'": "'{}",
}
_LATEX_SPECIAL = re.compile(r"[\\&%$#_{}\[\]*~^`\"–…<>|]|-(?=-)|'(?=')")
"""LaTeX joins two hyphens or apostrophes into one character, so they are separated."""
_LATEX_MINUS = re.compile(r"(?<![^\s(])-(?=\d)")
"""A minus sign before a figure, which LaTeX would print as a hyphen."""
_LAST_LATIN = "\u017f"
"""The last character that pdflatex prints by itself."""
_MARKDOWN_SPECIAL = re.compile(r"[\\`*_\[\]|~^$]|(?<=www)\.|:(?=//)")
"""Inline markup, also of GitHub's Markdown: mathematics, strikethrough, addresses that become
links."""
_MARKDOWN_START = re.compile(r"^(\d*)(?=[#+=>.)-])")
"""The beginning of a heading, a list, a quotation or a rule."""
MARKDOWN_HEAD = "<!-- made by recallkit -->\n"
LATEX_HEAD = "% made by recallkit; needs \\usepackage{booktabs}\n"
"""The first bytes of an exported file, which identify it as ours when it is to be replaced."""
_LATEX_STRIKE = (
    r"\providecommand{\recallkitstruck}[1]{{\setbox0=\hbox{#1}\rlap{\rule[0.5ex]{\wd0}{0.4pt}}\box0}}"
    + " % figures that mean nothing\n"
)
"""Strikes text out without a package."""
_LATEX_FIT = (
    "% and \\usepackage{graphicx}, to narrow a table that is wider than its column\n"
    r"\providecommand{\recallkitfit}[1]{\sbox0{#1}\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi}"
    + "\n"
)
_WIDEST_CELL, _WIDEST_HEADER = 28, 14
"""Characters from which on LaTeX's cells, mostly names, are folded."""
_FOLDED = re.compile(r".*?[/\-_:., ]+|.+")
"""A part of a name, to behind the next place at which it can be folded."""
_OTHER_LETTERS = "% contains letters that XeLaTeX and LuaLaTeX support, but pdfLaTeX does not\n"


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text, never markup; the first column names the row and is left-aligned, figures are
    right-aligned.

    A cell that is `Struck` is struck out: with a line in a terminal, in LaTeX and on the page, with
    `~~` in Markdown; where there is plain text alone, it is in brackets.

    `groups` are headings above the headers, each with the number of columns that it spans (together
    all columns); "" is no heading. Only LaTeX shows them, as the papers do. `optional` are headers
    of columns that a narrow terminal leaves out, in this order.
    """

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str | None = None
    groups: Sequence[tuple[str, int]] = ()
    optional: Sequence[str] = ()

    @classmethod
    def from_rows(
        cls,
        title: str,
        columns: str | Sequence[Column],
        rows: Iterable[Row],
        caption: str | None = None,
        *,
        groups: Sequence[tuple[str, int]] = (),
        hidden: int = 0,
    ) -> Table:
        """The rows with declared columns, chosen as in `schemas.chosen`; a last row says how
        many more are `hidden`."""
        columns = chosen(columns) if isinstance(columns, str) else columns

        def texts(row: Row) -> list[str]:
            return [cell(row, column) for column in columns]

        body = list(map(texts, rows))
        if hidden > 0:
            body.append([f"and {hidden:,} more", *[""] * (len(columns) - 1)])
        optional = sorted(
            (column for column in columns if column.turn), key=lambda column: column.turn
        )
        return cls(
            title,
            [column.label for column in columns],
            body,
            caption,
            groups,
            [column.label for column in optional],
        )

    def markdown(self) -> str:
        """A pipe table with the title above it and the caption below."""
        lines = [list(map(markdown, row)) for row in (self.headers, *self.rows)]
        rule = [":--", *["--:"] * (len(self.headers) - 1)]
        body = "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))
        below = _MARKDOWN_START.sub(r"\1\\", markdown(self.caption or ""))
        caption = f"\n{below}\n" if below else ""
        title = markdown(self.title)
        above = f"**{title}**\n\n" if title else ""  # "****" alone would be a rule
        return f"{MARKDOWN_HEAD}\n{above}{body}\n{caption}"

    def latex(self, name: str = "result") -> str:
        """A `table` of booktabs, as in the papers: rules above, below the header and at the bottom,
        then the caption and a label.

        It is no wider than a column of text: long names are folded, and what is still too wide is
        narrowed. `\\ref{tab:NAME}` refers to it.
        """
        sides = "l" + "r" * (len(self.headers) - 1)

        def line(cells: Iterable[Sequence[str]], widest: int) -> str:
            texts = (
                _latex_cell(parts, side, widest) for parts, side in zip(cells, sides, strict=True)
            )
            return " & ".join(texts) + r" \\"

        head = line((header.split("\n") for header in self.headers), _WIDEST_HEADER)
        rows = [line(zip(row, strict=True), _WIDEST_CELL) for row in self.rows]
        caption = latex_text(f"{self.title.rstrip('.')}. {self.caption or ''}")
        body = (
            f"\\begin{{table}}\n\\centering\n\\recallkitfit{{\\begin{{tabular}}{{{sides}}}\n\\toprule\n"
            + "\n".join((*_latex_groups(self.groups), head, r"\midrule", *rows))
            + f"\n\\bottomrule\n\\end{{tabular}}}}\n\\caption{{{caption}}}\n"
            + f"\\label{{tab:{name}}}\n\\end{{table}}\n"
        )
        letters = _OTHER_LETTERS if any(character > _LAST_LATIN for character in body) else ""
        is_struck = any(isinstance(cell, Struck) for row in self.rows for cell in row)
        struck = _LATEX_STRIKE if is_struck else ""
        return LATEX_HEAD + _LATEX_FIT + letters + struck + body


def markdown(text: str) -> str:
    """Text escaped for Markdown and HTML."""
    escaped = _MARKDOWN_SPECIAL.sub(r"\\\g<0>", printable(text))
    html = escaped.replace("&", "&amp;").replace("<", "&lt;")
    return f"~~{html}~~" if isinstance(text, Struck) else html


def latex_text(text: str) -> str:
    """Text escaped for LaTeX, struck out if it is `Struck`."""
    escaped = _LATEX_SPECIAL.sub(lambda match: _LATEX[match[0]], printable(text))
    signed = _LATEX_MINUS.sub("$-$", escaped)
    return rf"\recallkitstruck{{{signed}}}" if isinstance(text, Struck) else signed


def _latex_cell(parts: Sequence[str], side: str, widest: int) -> str:
    """A cell of some lines, aligned at its `side`; a line of more than `widest` characters is
    folded, and none of them left out."""
    lines = [
        latex_text(Struck(line) if isinstance(part, Struck) else line)
        for part in parts
        for line in folded(printable(part), widest)
    ]
    return rf"\shortstack[{side}]{{" + r"\\".join(lines) + "}" if len(lines) > 1 else lines[0]


def folded(text: str, widest: int) -> list[str]:
    """Lines of at most `widest` characters, folded behind signs that join the parts of names."""
    if len(text) <= widest:
        return [text]
    lines = [""]
    for part in _FOLDED.findall(text):
        for piece in (part[start : start + widest] for start in range(0, len(part), widest)):
            fits = len(lines[-1]) + len(piece.rstrip()) <= widest
            lines[-1:] = [lines[-1] + piece] if fits else [lines[-1], piece]
    return [line.strip() for line in lines if line.strip()]


def _latex_groups(groups: Sequence[tuple[str, int]]) -> list[str]:
    """The line of headings over several columns each, and the rules under them."""
    if not groups:
        return []
    cells, rules, first = [], [], 1
    for name, span in groups:
        cells.append(rf"\multicolumn{{{span}}}{{c}}{{{latex_text(name)}}}")
        rules += [rf"\cmidrule(lr){{{first}-{first + span - 1}}}"] if name else []
        first += span
    return [" & ".join(cells) + r" \\", " ".join(rules)]
