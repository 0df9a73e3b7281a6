"""Results in Python: printed, what the command prints; in a notebook its tables as HTML, and its figures as altair charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from altair.typing import ChartType

    from recallkit.display.charts import Figure, Style


class Shown:
    """A result that shows itself. What it shows belongs to the function that returned it: copies and pickles do not keep it."""

    __slots__ = ("_figures", "_html", "_text")

    _html: Callable[[], str]
    _figures: Callable[[Sequence[str]], Sequence[Figure]]
    _text: Callable[[], str]

    def show_as(self, html: Callable[[], str], figures: Callable[[Sequence[str]], Sequence[Figure]], text: Callable[[], str]) -> None:
        """Says how to make the markup, the figures and the text; nothing is made before somebody asks for it."""
        object.__setattr__(self, "_html", html)
        object.__setattr__(self, "_figures", figures)
        object.__setattr__(self, "_text", text)

    def __repr__(self) -> str:
        """What the command prints; of a copy the names of its fields."""
        return (hasattr(self, "_text") and self._text()) or f"{type(self).__name__}({', '.join(type(self).__annotations__)})"

    def _repr_html_(self) -> str | None:
        """For IPython: the tables, or None for the usual text."""
        return self._html() if hasattr(self, "_html") else None

    def figures(self, models: Sequence[str] = ()) -> Sequence[Figure]:
        """What can be drawn of it, of some `models` or of all; nothing of a copy."""
        return self._figures(models) if hasattr(self, "_figures") else ()

    def chart(self, name: str | None = None) -> ChartType:
        """A figure as an altair chart, in the colours of a paper: the first, or the one called `name` as in `recallkit.figures`.

        Raises UsageError if there is no such figure.
        """
        from recallkit.display.charts import styles_of
        from recallkit.display.figure_files import WIDTHS

        figures = self.figures()
        found = charts(figures, styles_of(figures), WIDTHS["column"])
        if not found or name not in (None, *found):
            remedy = f"there are {', '.join(found)}" if found else "give the folder of the result to recallkit.figures"
            raise UsageError("no such figure" if found else "no figures here", where=name or "chart", remedy=remedy)
        return found[name or next(iter(found))]


def charts(figures: Sequence[Figure], styles: Mapping[str, Style], inches: float) -> dict[str, ChartType]:
    """Figures by name, as altair charts in the colours of a paper, `inches` wide where their text is 8 points."""
    import altair as alt

    from recallkit.display.figure_files import laid_out

    return {figure.name: alt.Chart.from_dict(laid_out(figure, styles, inches)) for figure in figures}
