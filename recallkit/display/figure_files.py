"""Figures as files for papers: SVG, PNG and PDF of the width that they have there, with their
LaTeX; vl-convert draws without a browser."""

from __future__ import annotations

import copy
import itertools
import math
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.display.charts import MOST_COLOURED, WIDTH, specification, styles_of
from recallkit.display.tables import latex_text
from recallkit.errors import UserError
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from recallkit.display.charts import Figure, Spec, Style

_SVG = "http://www.w3.org/2000/svg"


def _drawn(figure: Figure, spec: Spec) -> ET.Element:
    """The drawing of a specification, with its size. Nothing is fetched for it."""
    import vl_convert

    ET.register_namespace("", _SVG)
    root = ET.fromstring(vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]))  # noqa: S314  (its own output, without a document type)
    size = {key: root.attrib[key] for key in ("width", "height", "viewBox")}
    root.attrib.clear()
    root.attrib.update(
        {"data-made-by": "recallkit", **size, "role": "img", "aria-label": figure.title}
    )
    return root


# ------------------------------------------------------------------------------------------ layouts

WIDTHS = {"column": 3.25, "text": 6.75}
"""Inches of a column, and of the text, of ICML's style."""
_POINTS, _PIXELS = 72, 11 / 8
"""Points of an inch, and a chart's pixels of a point: its text of 11 pixels is 8 points."""
_TALLEST = 9.0
"""Inches: the text of a page."""
_LEAST, _NARROWEST = 0.6, 80
"""A plot is at least this part of the width for which it was made, and so many pixels wide, or
fewer are side by side."""


def parse_width(text: str | float) -> float:
    """`column`, `text`, or inches. Raises ValueError for anything else."""
    try:
        inches = WIDTHS.get(str(text)) or float(text)
    except ValueError:
        inches = math.nan
    if not 2 <= inches <= 20:
        raise ValueError(f"{text!r}: give {', '.join(WIDTHS)}, or inches from 2 to 20")
    return inches


def laid_out(figure: Figure, styles: Mapping[str, Style], inches: float) -> Spec:
    """A specification that is drawn `inches` wide where its text of 11 pixels is 8 points.

    As many plots are side by side, and as many entries of the legend, as have room; plots fill the
    width. Of more than MOST_COLOURED models only the first, the reference, has a colour.
    """
    if len(figure.models) > MOST_COLOURED:
        styles = {
            **styles,
            **{model: styles[model]._replace(colour="rest") for model in figure.models[1:]},
        }
    base = specification(figure, styles)
    base["config"]["padding"] = 2
    room = inches * _POINTS * _PIXELS
    least = max(_NARROWEST, _LEAST * _plots(base)[0].get("width", WIDTH))
    panels = len(base["facet"]["sort"]) if "facet" in base else 1

    def placed(plot: float, abreast: int, entries: int) -> tuple[float, Spec]:
        """The layout, and how wide it is."""
        spec = copy.deepcopy(base)
        for part in _plots(spec):
            part["width"] = plot
        for part in _parts(spec):
            if isinstance(part.get("legend"), dict):
                part["legend"]["columns"] = entries
        if "facet" in spec:
            spec["columns"] = abreast
        return float(_drawn(figure, spec).attrib["width"]), spec

    # A legend that is wider than its plots decides the width of the base: it is made narrow enough
    # first.
    entries = next(
        (entries for entries in range(6, 1, -1) if placed(least, 1, entries)[0] <= room), 1
    )
    rows = [math.ceil(panels / abreast) for abreast in range(panels, 0, -1)]
    # As many side by side as fill these rows evenly: 4 of 7 panels in two rows, not 5.
    widths = (math.ceil(panels / row) for row in rows)
    abreast = next((n for n in widths if placed(least, n, entries)[0] <= room), 1)
    plot = room / abreast
    for _ in range(3):  # labels of axes depend on the width, too
        width, spec = placed(plot, abreast, entries)
        plot -= (width - room) / abreast
    return spec


def _plots(spec: Spec) -> list[Spec]:
    """The parts of a specification that are one plot each, or one for every panel."""
    return [
        part for part in _parts(spec) if "width" in part and ("layer" in part or "mark" in part)
    ] or [spec]


def _parts(spec: Any) -> Iterator[dict[str, Any]]:
    """The objects of a specification, from the outside in, without its data."""
    if isinstance(spec, dict):
        yield spec
        for key, value in spec.items():
            if key != "data":
                yield from _parts(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from _parts(value)


# -------------------------------------------------------------------------------------------- files

ENDINGS = (".svg", ".png", ".pdf")


def save_figures(
    figures: Sequence[Figure],
    folder: Path,
    inches: float = WIDTHS["column"],
    styles: Mapping[str, Style] | None = None,
) -> list[Path]:
    """Writes each figure as NAME.svg, NAME.png (300 dots per inch) and NAME.pdf, `inches` wide, and
    figure-NAME.tex, which includes it.

    They are members of the folder's list. `styles` are those of all models, if there are others
    than the figures'. Returns the files. Raises UserError if a file of that name was not written by
    recallkit: it is not replaced, and nothing else is written.
    """
    files = {figure.name: _file_names(figure) for figure in figures}
    names = list(itertools.chain(*files.values()))
    if not names:
        return []
    styles = styles or styles_of(figures)
    with artifacts.adding_members(folder, names) as new:
        for figure in figures:
            for name, content in zip(
                files[figure.name], _contents(figure, styles, inches, folder), strict=True
            ):
                (new / name).write_bytes(content)
    return [folder / name for name in names]


def _file_names(figure: Figure) -> list[str]:
    drawn = [f"{figure.name}{ending}" for ending in ENDINGS]
    return [*drawn, f"figure-{figure.name}.tex"]


def _contents(
    figure: Figure, styles: Mapping[str, Style], inches: float, folder: Path
) -> Iterator[bytes]:
    """The content of each of a figure's files."""
    import vl_convert

    root = _drawn(figure, laid_out(figure, styles, inches))
    tall = float(root.attrib["height"])
    sides = {"width": inches * _POINTS, "height": tall / _PIXELS}
    if sides["height"] > _TALLEST * _POINTS:
        remedy = "draw it with --width text, or fewer models with `report --model`"
        console.note(
            f"{figure.name} is {sides['height'] / _POINTS:.1f} inches tall, more than a page: "
            f"{remedy}"
        )
    width = f"{sides['width'] * _PIXELS:g}"
    root.set("viewBox", f"0 0 {width} {tall:g}")
    root[0].set("width", width)  # the background
    # vl-convert takes a pixel for a point
    in_points, in_pixels = (_sized(root, sides, unit) for unit in ("pt", ""))
    yield in_points.encode() + b"\n"
    yield vl_convert.svg_to_png(in_pixels, ppi=300)
    yield vl_convert.svg_to_pdf(in_pixels)
    yield _latex(figure, inches, folder).encode()


def _sized(root: ET.Element, sides: Mapping[str, float], unit: str) -> str:
    root.attrib.update({side: f"{length:.2f}{unit}" for side, length in sides.items()})
    return ET.tostring(root, encoding="unicode")


def _latex(figure: Figure, inches: float, folder: Path) -> str:
    """An environment that includes the PDF from the folder above, with the first sentence of the
    caption, and `fig:NAME` as its label."""
    star = "*" if inches > WIDTHS["column"] else ""
    sentence = re.match(r".*?[.](?= |$)", figure.caption)
    caption = latex_text(sentence[0] if sentence else figure.caption)
    return (
        "% made by recallkit; needs "
        f"\\usepackage{{graphicx}}\n\\begin{{figure{star}}}\n\\centering\n"
        f"\\includegraphics{{{folder.resolve().name}/{figure.name}.pdf}}\n"
        f"\\caption{{{caption}}}\n\\label{{fig:{figure.name}}}\n\\end{{figure{star}}}\n"
    )


def check_figures_folder(folder: Path | None) -> None:
    """Raises UserError if charts cannot be written to a folder: checked before the work, not
    after it."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UserError("not a directory", where=folder, remedy="name another with --figures")
    if folder is not None:
        artifacts.check_list(folder / artifacts.MANIFEST)
