"""Drawings of figures as SVG, and as files for papers: SVG, PNG and PDF.

vl-convert draws without a browser; its output is checked, so that only shapes and text are in a drawing.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from recallkit.display.charts import specification, styles_of
from recallkit.errors import UserError
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.display.charts import Figure, Style

_SVG = "http://www.w3.org/2000/svg"
_DRAWN = {"svg", "g", "path", "line", "rect", "circle", "text", "tspan", "defs", "clipPath"}
_REFERRING = re.compile(r"(^|:)href$|^on|^src$|^style$")
_LINK = re.compile(r"url\((?!#)|javascript:", re.IGNORECASE)
_UNSEEN = ("class", "role", "aria-roledescription", "aria-hidden", "pointer-events", "version", "stroke-miterlimit")
_DECIMALS = re.compile(r"(\d+\.\d)\d+")


def svg(figure: Figure, styles: Mapping[str, Style] | None = None, *, on_page: bool = True) -> str:
    """The figure as an `<svg>` element, which runs no script and fetches nothing; on a page it is as wide as its place.

    Points are named by `aria-label`, the whole by the figure's title. Raises ValueError for a drawing of anything but shapes and text,
    which would be a bug in a chart.
    """
    import vl_convert

    ET.register_namespace("", _SVG)
    drawn = vl_convert.vegalite_to_svg(specification(figure, styles, on_page=on_page), allowed_base_urls=[])
    root = ET.fromstring(drawn)  # noqa: S314  (vl-convert's own output: no document type, no entities of data)
    names = {each: f"{figure.name}-{place}" for place, each in enumerate(e.get("id", "") for e in root.iter() if "id" in e.attrib)}
    for element in root.iter():
        _check(element)
        for key in [key for key in element.attrib if key in _UNSEEN]:
            del element.attrib[key]
        for key, value in element.attrib.items():
            if key in ("d", "transform", "x", "y", "x2", "y2", "width", "height"):
                element.set(key, _DECIMALS.sub(r"\1", value))
            elif key == "id" or value.startswith("url(#"):  # a page has many drawings, and vl-convert counts on from one to the next
                element.set(key, re.sub(r"[\w-]+(?=\)?$)", lambda at: names[at[0]], value))
    size = {} if on_page else {key: root.attrib[key] for key in ("width", "height")}
    attributes = {"data-made-by": "recallkit", **size, "viewBox": root.attrib["viewBox"], "role": "img", "aria-label": figure.title}
    root.attrib.clear()
    root.attrib.update(attributes)
    return ET.tostring(root, encoding="unicode")


def _check(element: ET.Element) -> None:
    """Raises ValueError if an element is unknown, or has a link, a script or a style."""
    if element.tag.removeprefix(f"{{{_SVG}}}") not in _DRAWN:
        raise ValueError(f"a drawing contains <{element.tag}>")
    for key, value in element.attrib.items():
        name = key.rpartition("}")[2]
        if _REFERRING.search(name) or (name != "aria-label" and _LINK.search(value)):
            raise ValueError(f"a drawing contains the attribute {name}")


ENDINGS = (".svg", ".png", ".pdf")


def save_figures(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Writes each figure as NAME.svg, NAME.png (300 dots per inch) and NAME.pdf, members of the folder's list; returns the files.

    Raises UserError if a file of that name was not written by recallkit: it is not replaced, and nothing else is written.
    """
    import vl_convert

    names = [f"{figure.name}{ending}" for figure in figures for ending in ENDINGS]
    if not names:
        return []
    styles = styles_of(figures)
    with artifacts.adding_members(folder, names) as new:
        for figure in figures:
            drawing = svg(figure, styles, on_page=False)
            contents = (drawing.encode() + b"\n", vl_convert.svg_to_png(drawing, ppi=300), vl_convert.svg_to_pdf(drawing))
            for ending, content in zip(ENDINGS, contents, strict=True):
                (new / f"{figure.name}{ending}").write_bytes(content)
    return [folder / name for name in names]


def check_figures_folder(folder: Path | None) -> None:
    """Raises UserError if charts cannot be written to a folder: checked before the work, not after it."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UserError("not a directory", where=folder, remedy="name another with --figures")
