"""Results in a notebook: the tables that a command prints as HTML, and the figures that it draws as altair charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from altair.typing import ChartType

    from recallkit.display.charts import Figure


class Shown:
    """A result that a notebook shows. What it shows belongs to the function that returned it: copies and pickles do not keep it."""

    __slots__ = ("_figures", "_html")

    _html: Callable[[], str]
    _figures: Callable[[], Sequence[Figure]]

    def show_as(self, html: Callable[[], str], figures: Callable[[], Sequence[Figure]]) -> None:
        """Says how to make the markup and the figures; nothing is made before a notebook, or `chart`, asks for it."""
        object.__setattr__(self, "_html", html)
        object.__setattr__(self, "_figures", figures)

    def _repr_html_(self) -> str | None:
        """For IPython: the tables, or None for the usual text."""
        return self._html() if hasattr(self, "_html") else None

    def figures(self) -> Sequence[Figure]:
        """What can be drawn of it; nothing of a copy."""
        return self._figures() if hasattr(self, "_figures") else ()

    def chart(self, name: str | None = None) -> ChartType:
        """A figure as an altair chart, in the colours of a paper: the first, or the one called `name` as in `recallkit.figures`.

        Raises UsageError if there is no such figure.
        """
        found = charts(self.figures())
        if not found or name not in (None, *found):
            remedy = f"there are {', '.join(found)}" if found else "give the folder of the result to recallkit.figures"
            raise UsageError("no such figure" if found else "no figures here", where=name or "chart", remedy=remedy)
        return found[name or next(iter(found))]


def charts(figures: Sequence[Figure]) -> dict[str, ChartType]:
    """Figures by name, as altair charts in the colours of a paper."""
    import altair as alt

    from recallkit.display.charts import specification, styles_of

    styles = styles_of(figures)
    return {figure.name: alt.Chart.from_dict(specification(figure, styles)) for figure in figures}
