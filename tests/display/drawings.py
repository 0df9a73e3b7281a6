"""Drawings taken apart: every shape and text of an SVG at its absolute place, with the paint that it inherits."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass

PAINT = ("fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "font-family", "text-anchor")


@dataclass(frozen=True)
class Shape:
    """What is drawn: `kind` an element's name, `x` and `y` where its own coordinates begin."""

    kind: str
    x: float
    y: float
    paint: dict[str, str]
    attributes: dict[str, str]
    text: str

    @property
    def label(self) -> str:
        return self.attributes.get("aria-label", "")

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom of a path of straight lines."""
        numbers = [float(n) for n in re.findall(r"-?[\d.]+", self.attributes["d"])]
        if "h" in self.attributes["d"]:
            x, y, width, height = numbers[:4]
            numbers = [x, y, x + width, y + height]
        xs, ys = numbers[::2], numbers[1::2]
        return self.x + min(xs), self.y + min(ys), self.x + max(xs), self.y + max(ys)


def shapes(svg: str | bytes) -> list[Shape]:
    """All of a drawing but what shows nothing, in the order in which it is drawn."""
    return list(_walk(ET.fromstring(svg), 0.0, 0.0, {}))


def _walk(element: ET.Element, x: float, y: float, paint: dict[str, str]) -> Iterator[Shape]:
    paint = paint | {key: element.attrib[key] for key in PAINT if key in element.attrib}
    for dx, dy in re.findall(r"translate\(([-\d.e]+),([-\d.e]+)\)", element.get("transform", "")):
        x, y = x + float(dx), y + float(dy)
    kind = element.tag.rpartition("}")[2]
    seen = {paint.get("fill", "black"), paint.get("stroke", "none")} != {"none"} and element.get("display") != "none"
    if kind in ("path", "line", "rect", "circle", "text") and seen and element.get("d") != "":
        yield Shape(kind, x, y, paint, dict(element.attrib), element.text or "")
    for child in element:
        yield from _walk(child, x, y, paint)


def marks(svg: str) -> dict[str, Shape]:
    """The shapes that say what they are, by what they say; fails where two say the same."""
    found = [shape for shape in shapes(svg) if shape.label and shape.kind != "svg"]
    assert len({shape.label for shape in found}) == len(found)
    return {shape.label: shape for shape in found}
