"""What all pictures share: colours, sizes, how a chart becomes SVG and PNG.

A chart is drawn twice from one description. On a page its colours are the page's own (CSS variables, so that light and
dark come from the style sheet); in a file they are fixed. vl-convert turns charts into drawings with nothing but data in
them; what it gives is checked all the same before it goes into a page.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit import artifacts
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import altair as alt

    Chart = alt.Chart | alt.LayerChart | alt.HConcatChart | alt.VConcatChart | alt.ConcatChart | alt.FacetChart

WIDTH, HEIGHT = 340, 220
"""Of a plot, in pixels: text of 11 pixels stays readable where the whole picture is as wide as a phone."""

FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"
_FILE_FONT = "Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"
_PIXELS_PER_INCH = 300
_SVG = "http://www.w3.org/2000/svg"
_DRAWN = {"svg", "g", "path", "line", "rect", "circle", "text", "tspan", "title", "desc", "defs", "clipPath", "linearGradient", "stop"}
_REFERRING = re.compile(r"(^|:)href$|^on|^src$|^style$")
PNG_HEAD, SVG_HEAD = b"\x89PNG", b"<svg"


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours as CSS has them: text, secondary text, grid, background, AR hits, other tokens, the reference, the models in turn."""

    ink: str
    soft: str
    rule: str
    page: str
    hits: str
    rest: str
    reference: str
    models: tuple[str, ...]


PAGE = Palette(
    ink="var(--ink)",
    soft="var(--soft)",
    rule="var(--rule)",
    page="var(--page)",
    hits="var(--hits)",
    rest="var(--rest)",
    reference="var(--ink)",
    models=tuple(f"var(--m{place})" for place in range(7)),
)
"""The style sheet of the page gives these variables, for light and for dark."""

PAPER = Palette(
    ink="#1b1b1b",
    soft="#5d6166",
    rule="#dcdee1",
    page="#ffffff",
    hits="#e69f00",
    rest="#86919c",
    reference="#1b1b1b",
    models=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#a6761d", "#7570b3"),
)
"""Okabe and Ito's colours, which most readers can tell apart, and two more."""

DASHES = ([1, 0], [5, 3], [2, 2])
"""Lines of models that share a colour: the second seven are dashed, the third dotted."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture: `name` is its file's, `title` and `caption` are plain text, `draw` makes the chart in a palette's colours."""

    name: str
    title: str
    caption: str
    draw: Callable[[Palette], Chart]


def model_colours(models: Sequence[str], palette: Palette, reference: str | None = None) -> tuple[list[str], list[str]]:
    """Domain and range of a colour scale: the reference, where there is one, in its own colour, the models in turn."""
    others = [model for model in models if model != reference]
    colours = {model: palette.models[place % len(palette.models)] for place, model in enumerate(others)}
    domain = [*([reference] if reference is not None else []), *others]
    return domain, [palette.reference if model == reference else colours[model] for model in domain]


def model_dashes(models: Sequence[str], reference: str | None = None) -> tuple[list[str], list[list[int]]]:
    """Domain and range of a scale of dashes: what tells models of one colour apart."""
    others = [model for model in models if model != reference]
    rounds = len(PAPER.models)
    dashes = {model: DASHES[place // rounds % len(DASHES)] for place, model in enumerate(others)}
    domain = [*([reference] if reference is not None else []), *others]
    return domain, [DASHES[0] if model == reference else dashes[model] for model in domain]


def themed(chart: Chart, palette: Palette, font: str = FONT) -> dict[str, Any]:
    """The chart's Vega-Lite specification with the palette's colours on everything that is not data."""
    themed_chart = (
        chart.configure(background="transparent" if palette is PAGE else palette.page, font=font, padding=4)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=palette.soft,
            titleColor=palette.soft,
            gridColor=palette.rule,
            domainColor=palette.rule,
            tickColor=palette.rule,
            labelFontSize=11,
            titleFontSize=11,
            titleFontWeight="normal",
        )
        .configure_legend(
            labelColor=palette.ink, titleColor=palette.soft, labelFontSize=11, titleFontSize=11, orient="bottom", labelLimit=180, columns=2
        )
        .configure_header(labelColor=palette.ink, titleColor=palette.soft, labelFontSize=11, titleFontSize=11)
        .configure_text(color=palette.ink, fontSize=11)
    )
    specification: dict[str, Any] = themed_chart.to_dict()
    return specification


def svg(figure: Figure, palette: Palette = PAGE) -> str:
    """The picture as an `<svg>` element that runs and fetches nothing, with no width of its own.

    Raises ValueError where a drawing holds anything but shapes and text: a mistake in a chart, not a user's.
    """
    import vl_convert

    drawn = vl_convert.vegalite_to_svg(themed(figure.draw(palette), palette, FONT if palette is PAGE else _FILE_FONT))
    return _checked(drawn)


def _checked(drawn: str) -> str:
    """The drawing, parsed and written again: well-formed, of known elements, without links, scripts and styles."""
    root = ET.fromstring(drawn)  # noqa: S314  (vl-convert's own output: no document type, no entities of data)
    for element in root.iter():
        if element.tag.removeprefix(f"{{{_SVG}}}") not in _DRAWN:
            raise ValueError(f"a drawing holds <{element.tag}>")
        for name in [key for key in element.attrib if _REFERRING.search(key.rpartition("}")[2])]:
            raise ValueError(f"a drawing holds the attribute {name}")
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    ET.register_namespace("", _SVG)
    return ET.tostring(root, encoding="unicode")


def save_figures(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Writes each picture as NAME.svg and NAME.png (300 dots an inch), whole or not at all; returns the files.

    Raises UserError where a file of such a name is no picture: it is not replaced.
    """
    import vl_convert

    written = []
    for figure in figures:
        specification = themed(figure.draw(PAPER), PAPER, _FILE_FONT)
        drawings = {
            folder / f"{figure.name}.svg": (SVG_HEAD, vl_convert.vegalite_to_svg(specification).encode()),
            folder / f"{figure.name}.png": (PNG_HEAD, vl_convert.vegalite_to_png(specification, scale=_PIXELS_PER_INCH / 72)),
        }
        for path, (head, drawing) in drawings.items():
            artifacts.check_replaceable(path, head)
            with artifacts.replacing(path) as temporary:
                temporary.write_bytes(drawing)
            written.append(path)
    return written


def check_figures_folder(folder: Path | None) -> None:
    """Raises UserError where pictures cannot be put: told before the work, not after it."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UserError("not a directory", where=folder, remedy="name another with --figures")
