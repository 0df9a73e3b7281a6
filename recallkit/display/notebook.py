"""Results in Python: printed, what the command prints; in a notebook its tables as HTML, and its
figures as altair charts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.errors import UsageError
from recallkit.registry import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import polars as pl
    from altair.typing import ChartType

    from recallkit.display.charts import Figure, Style
    from recallkit.display.tables import Table

_MARKUP = {"tables": "recallkit.report.markup:tables_html"}


class NotebookResult:
    """A result that shows itself. What it shows belongs to the function that returned it: copies
    and pickles do not keep it."""

    __slots__ = ("_figures", "_show", "_tables")

    _show: Callable[[], None]
    _tables: Callable[[], Sequence[Table]]
    _figures: Callable[[Sequence[str]], Sequence[Figure]]

    def show_as(
        self,
        show: Callable[[], None],
        tables: Callable[[], Sequence[Table]],
        figures: Callable[[Sequence[str]], Sequence[Figure]],
    ) -> None:
        """Says what prints it, and how to make its tables and figures; nothing is made before
        somebody asks for it."""
        object.__setattr__(self, "_show", show)
        object.__setattr__(self, "_tables", tables)
        object.__setattr__(self, "_figures", figures)

    def __repr__(self) -> str:
        """What the command prints; of a copy the names of its fields."""
        return (
            hasattr(self, "_show") and console.printed(self._show)
        ) or f"{type(self).__name__}({', '.join(type(self).__annotations__)})"

    def _repr_html_(self) -> str | None:
        """For IPython: the tables, or None for the usual text."""
        tables = self._tables() if hasattr(self, "_tables") else ()
        html: str | None = resolve(_MARKUP, "tables", "markup")(tables) if tables else None
        return html

    def figures(self, models: Sequence[str] = ()) -> Sequence[Figure]:
        """What can be drawn of it, of some `models` or of all; nothing of a copy."""
        return self._figures(models) if hasattr(self, "_figures") else ()

    def chart(self, name: str | None = None) -> ChartType:
        """A figure as an altair chart, in the colours of a paper: the first, or the one called
        `name` as in `recallkit.figures`.

        Raises UsageError if there is no such figure.
        """
        from recallkit.display.charts import styles_of
        from recallkit.display.figure_files import WIDTHS

        figures = self.figures()
        by_name = {figure.name: figure for figure in figures}
        if not by_name and hasattr(self, "_figures"):
            raise UsageError(
                "there is too little to draw",
                where=name or "chart",
                remedy="print the result, which has its table",
            )
        if not by_name or name not in (None, *by_name):
            remedy = (
                f"there are {', '.join(by_name)}"
                if by_name
                else "give the folder of the result to recallkit.figures"
            )
            raise UsageError(
                "no such figure" if by_name else "no figures here",
                where=name or "chart",
                remedy=remedy,
            )
        chosen = name or next(iter(by_name))
        return charts([by_name[chosen]], styles_of(figures), WIDTHS["column"])[chosen]


@dataclass(frozen=True, slots=True, repr=False)
class Summary(NotebookResult):
    """What a command found, as one `frame`; printed, what the command prints."""

    frame: pl.DataFrame


def charts(
    figures: Sequence[Figure], styles: Mapping[str, Style], inches: float
) -> dict[str, ChartType]:
    """Figures by name, as altair charts in the colours of a paper, `inches` wide where their
    text is 8 points."""
    import altair as alt

    from recallkit.display.figure_files import laid_out

    return {
        figure.name: alt.Chart.from_dict(_with_named_views(laid_out(figure, styles, inches)))
        for figure in figures
    }


def _with_named_views(drawn: dict[str, Any]) -> dict[str, Any]:
    """The same layers, but choices say by name in which of them they are made: altair would have
    them in all, which Vega refuses."""
    layers, params = [], list(drawn.get("params", ()))
    for number, layer in enumerate(drawn.get("layer", ())):
        params += [{**param, "views": [f"layer {number}"]} for param in layer.get("params", ())]
        layers.append(
            {
                **{key: value for key, value in layer.items() if key != "params"},
                "name": f"layer {number}",
            }
        )
    return {**drawn, "params": params, "layer": layers} if layers else drawn
