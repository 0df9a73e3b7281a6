"""What all charts share: colours, sizes, rendering as SVG, PNG and PDF.

A chart is drawn twice from one description. On a page its colours are the page's (CSS variables, so that light and dark are
defined by the style sheet); in a file they are fixed. vl-convert renders charts to SVG without scripts or links; its output is
nevertheless checked before it is put into a page.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
import zlib
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from recallkit.errors import UserError
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from altair.typing import ChartType

    Chart: TypeAlias = "ChartType | Arrangement"

_Shown = TypeVar("_Shown")

WIDTH, HEIGHT = 340, 220
"""Width of a plot in pixels: text of 11 pixels stays readable when the whole chart is as wide as a phone."""

FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"
_FILE_FONT = "Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"
_FILE_PADDING = {"left": 16, "right": 16, "top": 4, "bottom": 4}
"""Extra room for labels, which may be wider in the reader's font than in the one that the drawing was measured with."""
_PIXELS_PER_INCH = 300
_SVG = "http://www.w3.org/2000/svg"
_GROUP = f"{{{_SVG}}}g"
_DRAWN = {"svg", "g", "path", "line", "rect", "circle", "text", "tspan", "defs", "clipPath"}
_REFERRING = re.compile(r"(^|:)href$|^on|^src$|^style$")
_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that names may contain but XML may not: vl-convert aborts the process if it meets one."""
_LINK = re.compile(r"url\((?!#)|javascript:", re.IGNORECASE)
_PLACES = ("d", "transform", "x", "y", "x1", "y1", "x2", "y2", "width", "height", "r", "points")
_UNSEEN = {"class", "role", "aria-roledescription", "aria-hidden", "pointer-events", "version", "stroke-miterlimit", "clip-rule"}
"""Attributes that Vega adds for styles, scripts and assistive technology: the drawing is the same without them."""
_INHERITED = ("fill", "stroke", "stroke-width", "stroke-dasharray", "font-family", "font-size", "font-weight", "text-anchor")
SVG_HEAD = f'<svg xmlns="{_SVG}" data-made-by="recallkit"'.encode()
PNG_HEAD, PNG_HEAD_AT = b"\x00\x00\x00\x12tEXtSoftware\x00recallkit", 33
PDF_HEAD = b"%PDF-1.7\n%\x80\x80\x80\x80\n% made by recallkit\n"
"""What identifies our files: the first attribute of an SVG, the chunk after a PNG's header, a PDF's first comment."""
_PDF_REFERENCE = re.compile(rb"\b(\d+) 0 R\b")
_PDF_RESOURCES = re.compile(rb"(?:^ +/\w+ \d+ 0 R\n)+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours in CSS notation: text, secondary text, grid, background, AR hits, other tokens, the reference, the models in order."""

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
"""The style sheet of the page defines these variables, for light and for dark."""

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
"""Dashes of models that share a colour: the second seven are dashed, the third dotted."""

SHAPES = ("square", "triangle-up", "diamond", "circle", "triangle-down", "cross", "triangle-right")
"""Shapes of models' points in order, as many as colours; the reference's is a circle."""

ENDINGS = (".svg", ".png", ".pdf")


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Charts arranged as Vega-Lite arranges them: `kind` is the name of the list of them, `options` are its other properties.

    It takes the place of altair's own, which copy all that they hold at every level, and again with every option.
    """

    kind: Literal["layer", "concat", "vconcat"]
    parts: Sequence[Chart]
    options: Mapping[str, Any]

    def to_dict(self, *, validate: bool, context: dict[str, Any]) -> dict[str, Any]:
        """As altair's charts have it."""
        return {self.kind: [part.to_dict(validate=validate, context=context) for part in self.parts], **self.options}


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its text: `name` is the file's, `title` and `caption` are plain text, `draw` makes the chart in a palette's colours."""

    name: str
    title: str
    caption: str
    draw: Callable[[Palette], Chart]


def model_colours(models: Sequence[str], palette: Palette, reference: str | None = None) -> tuple[list[str], list[str]]:
    """Domain and range of a colour scale: the reference, if there is one, in its own colour, the models in order."""
    return _scale(models, reference, palette.reference, lambda place: palette.models[place % len(palette.models)])


def model_dashes(models: Sequence[str], reference: str | None = None) -> tuple[list[str], list[list[int]]]:
    """Domain and range of a scale of dashes, which distinguish models of the same colour."""
    return _scale(models, reference, DASHES[0], lambda place: DASHES[place // len(PAPER.models) % len(DASHES)])


def model_shapes(models: Sequence[str], reference: str | None = None) -> tuple[list[str], list[str]]:
    """Domain and range of a scale of points' shapes, so that models never differ in colour alone."""
    return _scale(models, reference, "circle", lambda place: SHAPES[place % len(SHAPES)])


def _scale(models: Sequence[str], reference: str | None, own: _Shown, nth: Callable[[int], _Shown]) -> tuple[list[str], list[_Shown]]:
    """Domain and range of a scale: `own` for the reference, if there is one, and `nth` of the others in order."""
    others = [model for model in models if model != reference]
    first = [] if reference is None else [reference]
    return [*first, *others], [*(own for _ in first), *map(nth, range(len(others)))]


def themed(chart: Chart, palette: Palette, font: str = FONT) -> dict[str, Any]:
    """The chart's Vega-Lite specification with the palette's colours for everything that is not data."""
    import altair as alt

    found: dict[str, Any] = {}
    inner = {"top_level": False, "datasets": found}  # no chart is the outermost; validating one of many layers takes seconds
    specification: dict[str, Any] = {"$schema": alt.SCHEMA_URL, **chart.to_dict(validate=False, context=inner), "datasets": found}
    shown = {"labelColor": palette.soft, "titleColor": palette.soft, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"}
    lines = {"gridColor": palette.rule, "domainColor": palette.rule, "tickColor": palette.rule, "tickSize": 3}
    specification["config"] = {
        "background": "transparent" if palette is PAGE else palette.page,
        "font": font,
        "padding": 4 if palette is PAGE else _FILE_PADDING,
        "view": {"stroke": None, "continuousWidth": WIDTH, "continuousHeight": HEIGHT},
        "axis": {**shown, **lines, "aria": False},  # an axis's tooltip would hide a point's
        "legend": {**shown, "labelColor": palette.ink, "aria": False, "orient": "bottom", "labelLimit": 180, "columns": 2},
        "header": {**shown, "labelColor": palette.ink},
        "text": {"color": palette.ink, "fontSize": 11},
        "concat": {"spacing": 12},
    }
    harmless: dict[str, Any] = without_controls(specification)
    return harmless


def without_controls(value: Any) -> Any:
    """The value, with U+FFFD in place of characters that XML does not allow."""
    if isinstance(value, dict):
        return {without_controls(key): without_controls(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_controls(item) for item in value]
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", value) if isinstance(value, str) else value


def svg(figure: Figure, palette: Palette = PAGE) -> str:
    """The chart as an `<svg>` element without a fixed width, which runs no script and fetches nothing.

    Its points are named by `aria-label`, the whole by the figure's title. Raises ValueError if a drawing contains anything
    but shapes and text, which would be a bug in a chart.
    """
    root = _drawn(figure, themed(figure.draw(palette), palette, FONT if palette is PAGE else _FILE_FONT))
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    return ET.tostring(root, encoding="unicode")


def _drawn(figure: Figure, specification: dict[str, Any]) -> ET.Element:
    """The drawing of a figure's specification, parsed, checked and simplified: the same on every run."""
    import vl_convert

    ET.register_namespace("", _SVG)
    drawn = vl_convert.vegalite_to_svg(specification, allowed_base_urls=[])
    root = ET.fromstring(drawn)  # noqa: S314  (vl-convert's own output: no document type, no entities of data)
    _check(root)
    found = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    _tidy(root, {each: f"{figure.name}-{place}" for place, each in enumerate(found)})
    attributes = dict(root.attrib)
    root.attrib.clear()
    root.attrib.update({"data-made-by": "recallkit", **attributes, "role": "img", "aria-label": figure.title})
    return root


def _check(root: ET.Element) -> None:
    """Raises ValueError if a drawing contains unknown elements, links, scripts or styles."""
    for element in root.iter():
        if element.tag.removeprefix(f"{{{_SVG}}}") not in _DRAWN:
            raise ValueError(f"a drawing contains <{element.tag}>")
        for key, value in element.attrib.items():
            name = key.rpartition("}")[2]
            if _REFERRING.search(name) or (name != "aria-label" and _LINK.search(value)):
                raise ValueError(f"a drawing contains the attribute {name}")


def _tidy(element: ET.Element, ids: Mapping[str, str]) -> None:
    """Removes invisible elements, rounds coordinates to a tenth of a pixel, and moves attributes that all children share to the group.

    This makes a page of eight models' points a third as long. `ids`: new identifiers, because a page contains many
    drawings, and vl-convert counts on from one drawing to the next.
    """
    for child in list(element):
        _tidy(child, ids)
        if _is_nothing(child):
            element.remove(child)
    element[:] = [part for child in element for part in (child if child.tag == _GROUP and not child.attrib else [child])]
    for key in [key for key in element.attrib if key in _UNSEEN or (key, element.attrib[key]) in {("opacity", "1"), ("aria-label", "")}]:
        del element.attrib[key]
    for key in _PLACES:
        if key in element.attrib:
            element.set(key, _DECIMALS.sub(_rounded, element.attrib[key]))
    if element.get("transform") == "translate(0,0)":
        del element.attrib["transform"]
    if "id" in element.attrib:
        element.set("id", ids[element.attrib["id"]])
    for key, value in element.attrib.items():
        if value.startswith("url(#"):
            element.set(key, f"url(#{ids[value.removeprefix('url(#').removesuffix(')')]})")
    if element.tag == _GROUP and len(element):
        _share(element)


_DECIMALS = re.compile(r"-?\d+\.\d+(e-?\d+)?")


def _rounded(found: re.Match[str]) -> str:
    shown = f"{float(found.group()):.1f}".removesuffix(".0")
    return "0" if shown == "-0" else shown


def _is_nothing(element: ET.Element) -> bool:
    """Whether an element draws nothing: an empty group, or a shape without paint, which Vega puts around every group."""
    kind = element.tag.removeprefix(f"{{{_SVG}}}")
    if kind == "g":
        return not len(element) and not element.text
    return kind == "path" and (element.get("display") == "none" or not {"fill", "stroke"} & set(element.attrib))


def _share(group: ET.Element) -> None:
    """Moves paint and font attributes that all children share to the group."""
    for key in _INHERITED:
        found = {child.get(key) for child in group}
        if len(found) == 1 and None not in found and key not in group.attrib:
            group.set(key, found.pop() or "")
            for child in group:
                del child.attrib[key]
    runs = [(key, list(run)) for key, run in groupby(list(group), lambda child: tuple(child.get(name) for name in _INHERITED))]
    if len(runs) > 1 and len(group) > 2 * len(runs):
        group[:] = [_wrapped(run) for _, run in runs]


def _wrapped(run: list[ET.Element]) -> ET.Element:
    """Groups neighbours that are painted alike."""
    group = ET.Element(_GROUP)
    group.extend(run)
    _share(group)
    return group


def save_figures(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Writes each picture as NAME.svg, NAME.png (300 dots per inch) and NAME.pdf, members of the folder's list; returns the files.

    Raises UserError if a file of that name was not written by recallkit: it is not replaced, and nothing else is written.
    """
    pictures = {f"{figure.name}{ending}": figure for figure in figures for ending in ENDINGS}
    if not pictures:
        return []
    with artifacts.adding_members(folder, pictures) as new:
        for name, figure in pictures.items():
            (new / name).write_bytes(_drawing(figure, (new / name).suffix))
    return [folder / name for name in pictures]


def check_picture(path: Path) -> None:
    """Raises UserError if `path` has another suffix, or is a file that recallkit did not write."""
    if path.suffix not in ENDINGS:
        raise UserError(f"charts cannot be written as {path.suffix or 'that'}", where=path, remedy="use .svg, .png or .pdf")
    artifacts.check_replaceable(path)


def save_figure(figure: Figure, path: Path) -> None:
    """Writes one chart as SVG, PNG or PDF, by the suffix of `path`, atomically. Raises UserError as `check_picture` does."""
    check_picture(path)
    with artifacts.adding_members(path.parent, [path.name]) as new:
        (new / path.name).write_bytes(_drawing(figure, path.suffix))


def _drawing(figure: Figure, ending: str) -> bytes:
    return _svg_file(figure) if ending == ".svg" else _png_file(figure) if ending == ".png" else _pdf_file(figure)


@lru_cache(maxsize=1)
def _file_specification(figure: Figure) -> dict[str, Any]:
    """Kept for the next ending: altair takes longer than vl-convert."""
    return themed(figure.draw(PAPER), PAPER, _FILE_FONT)


@lru_cache(maxsize=1)
def _svg_file(figure: Figure) -> bytes:
    drawing: bytes = ET.tostring(_drawn(figure, _file_specification(figure)), encoding="utf-8")
    return drawing + b"\n"


def _png_file(figure: Figure) -> bytes:
    import vl_convert

    drawing: bytes = vl_convert.vegalite_to_png(_file_specification(figure), ppi=_PIXELS_PER_INCH, allowed_base_urls=[])
    software = PNG_HEAD + zlib.crc32(PNG_HEAD[4:]).to_bytes(4, "big")
    return drawing[:PNG_HEAD_AT] + software + drawing[PNG_HEAD_AT:]


def _pdf_file(figure: Figure) -> bytes:
    """The same drawing as the SVG file's, with text as text: the same on every run."""
    import vl_convert

    drawing: bytes = vl_convert.svg_to_pdf(_svg_file(figure).decode())
    return _ordered_pdf(drawing)


def _ordered_pdf(drawing: bytes) -> bytes:
    """A PDF with our comment, its objects numbered in the order in which they are referred to: vl-convert's are in any order."""
    found = drawing.rindex(b"xref\n", 0, drawing.rindex(b"startxref"))
    starts = sorted(int(offset) for offset in re.findall(rb"^(\d{10}) \d{5} n", drawing[found:], re.MULTILINE))
    objects: dict[bytes, tuple[bytes, bytes]] = {}
    for start, end in pairwise([*starts, found]):
        number, _, content = drawing[start:end].partition(b" 0 obj\n")
        facts, stream, rest = content.partition(b"\nstream\n")  # what a stream contains is not for us to change
        objects[number] = _PDF_RESOURCES.sub(_sorted_lines, facts), stream + rest
    trailer = drawing[drawing.rindex(b"trailer\n") : drawing.rindex(b"startxref\n")]
    numbers: dict[bytes, int] = {}
    asked = [trailer]
    while asked:
        for number in _PDF_REFERENCE.findall(asked.pop(0)):
            if number not in numbers:
                numbers[number] = len(numbers) + 1
                asked.append(objects[number][0])

    def renumbered(facts: bytes) -> bytes:
        return _PDF_REFERENCE.sub(lambda at: b"%d 0 R" % numbers[at[1]], facts)

    written, offsets = PDF_HEAD, []
    for number, place in numbers.items():
        offsets.append(len(written))
        written += b"%d 0 obj\n%s%s" % (place, renumbered(objects[number][0]), objects[number][1])
    table = b"".join(b"%010d 00000 n\r\n" % offset for offset in offsets)
    head = b"xref\n0 %d\n0000000000 65535 f\r\n" % (len(offsets) + 1)
    size = re.sub(rb"/Size \d+", b"/Size %d" % (len(offsets) + 1), renumbered(trailer))
    return b"%s%s%s%sstartxref\n%d\n%%%%EOF" % (written, head, table, size, len(written))


def _sorted_lines(found: re.Match[bytes]) -> bytes:
    return b"".join(sorted(found[0].splitlines(keepends=True)))


def check_figures_folder(folder: Path | None) -> None:
    """Raises UserError if charts cannot be written to a folder: checked before the work, not after it."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UserError("not a directory", where=folder, remedy="name another with --figures")
