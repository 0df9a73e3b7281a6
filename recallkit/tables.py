"""A table as people read it, whoever draws it: a terminal, a page, Markdown, LaTeX.

Cells are finished text, made once from the frames that are written to Parquet, so that a figure reads the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recallkit.errors import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: rf"\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
MARKDOWN_HEAD = "<!-- made by recallkit -->\n"
LATEX_HEAD = "% made by recallkit; needs \\usepackage{booktabs}\n"
"""How an exported file begins, and by what it is known as ours when it is replaced."""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text, never markup; the first column names a row and stands to the left, figures stand to the right."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str | None = None

    def markdown(self) -> str:
        """A pipe table with the title above it and the caption below."""
        lines = [[_markdown(cell) for cell in row] for row in (self.headers, *self.rows)]
        rule = [":--", *["--:"] * (len(self.headers) - 1)]
        body = "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))
        caption = f"\n{_markdown(self.caption)}\n" if self.caption else ""
        return f"{MARKDOWN_HEAD}\n**{_markdown(self.title)}**\n\n{body}\n{caption}"

    def latex(self) -> str:
        """A `table` of booktabs, as the papers print theirs: rules above, under the head and below, the caption under it."""
        lines = [" & ".join(_latex(cell) for cell in row) + r" \\" for row in (self.headers, *self.rows)]
        caption = _latex(f"{self.title}. {self.caption or ''}".strip())
        return (
            f"{LATEX_HEAD}\\begin{{table}}\n\\centering\n\\begin{{tabular}}{{l{'r' * (len(self.headers) - 1)}}}\n\\toprule\n"
            + "\n".join((lines[0], r"\midrule", *lines[1:]))
            + f"\n\\bottomrule\n\\end{{tabular}}\n\\caption{{{caption}}}\n\\end{{table}}\n"
        )


def _markdown(text: str) -> str:
    """Text without a meaning in Markdown or HTML."""
    shown = printable(text.replace("\n", " ")).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{character}" if character in "\\`*_[]|" else character for character in shown)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in printable(text.replace("\n", " ")))
