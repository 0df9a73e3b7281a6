"""Figures taken apart: the rows that a specification draws, and what can be read in a drawing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import vl_convert

from recallkit.display.charts import Figure, Style, specification


def svg(figure: Figure, styles: Mapping[str, Style] | None = None) -> str:
    """The figure as vl-convert draws it for files."""
    drawn: str = vl_convert.vegalite_to_svg(specification(figure, styles), allowed_base_urls=[])
    return drawn


def data(figure: Figure) -> list[dict[str, Any]]:
    """The rows of every data set of a figure."""
    return list(_rows(specification(figure)))


def _rows(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        if isinstance(part.get("data"), dict):
            # not those of lines across the plot
            yield from (row for row in part["data"]["values"] if not set(row) <= {"model", "x"})
        for key, value in part.items():
            if key != "data":
                yield from _rows(value)
    elif isinstance(part, list):
        for each in part:
            yield from _rows(each)


def texts(drawing: str) -> list[str]:
    """What is written in a drawing, and what its marks are called."""
    found = [
        element.get("aria-label") or element.text or "" for element in ET.fromstring(drawing).iter()
    ]
    return [text for text in found if text.strip()]


@dataclass(frozen=True)
class Mark:
    """A mark that has a name: where it is and its paint, which it may inherit."""

    x: float
    y: float
    paint: Mapping[str, str]


def marks(drawing: str) -> dict[str, Mark]:
    """The marks that say what they are, by what they say; fails where two say the same."""
    found = [mark for part in ET.fromstring(drawing) for mark in _walk(part, 0.0, 0.0, {})]
    assert len({label for label, _ in found}) == len(found)
    return dict(found)


def _walk(
    element: ET.Element, x: float, y: float, paint: Mapping[str, str]
) -> Iterator[tuple[str, Mark]]:
    paint = {
        **paint,
        **{
            key: element.attrib[key]
            for key in ("fill", "stroke", "stroke-dasharray", "opacity")
            if key in element.attrib
        },
    }
    for dx, dy in re.findall(r"translate\(([-\d.e]+),([-\d.e]+)\)", element.get("transform", "")):
        x, y = x + float(dx), y + float(dy)
    if "aria-label" in element.attrib:
        yield element.attrib["aria-label"], Mark(x, y, paint)
    for child in element:
        yield from _walk(child, x, y, paint)
