"""A page taken apart, and comparisons to make pages of."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = ("meta",)


class Page(HTMLParser):
    """Elements as (name, attributes, text in them, name of the parent); fails where tags do not
    balance."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.elements: list[tuple[str, dict[str, str], list[str], str]] = []
        self._open: list[int] = []
        self.feed(source)
        self.close()
        assert not self._open, [self.elements[index][0] for index in self._open]

    @classmethod
    def read(cls, path: Path) -> Page:
        return cls(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} repeats an attribute"
        self.elements.append(
            (tag, dict(attrs), [], self.elements[self._open[-1]][0] if self._open else "")
        )
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag):
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data):
        for index in self._open:
            self.elements[index][2].append(data)

    def texts(self, tag: str) -> list[str]:
        return ["".join(text) for name, _, text, _ in self.elements if name == tag]

    def names(self) -> list[str]:
        return [name for name, *_ in self.elements]

    def with_id(self, name: str) -> str:
        """The text of the element of this id."""
        [found] = [
            "".join(text)
            for _, attributes, text, _ in self.elements
            if attributes.get("id") == name
        ]
        return found

    def tables(self) -> dict[str, list[list[str]]]:
        """Cells of every table, by the name of the region that it scrolls in."""
        found: dict[str, list[list[str]]] = {}
        current: list[list[str]] = []
        for name, attributes, text, _ in self.elements:
            if attributes.get("role") == "region":
                current = found.setdefault(attributes["aria-label"], [])
            elif name == "tr":
                current.append([])
            elif name in ("th", "td"):
                current[-1].append("".join(text))
        return found

    def models(self) -> list[list[str]]:
        """Cells of the rows of models that a comparison's page begins with."""
        found: list[list[str]] = []
        inside = False
        for name, attributes, text, _ in self.elements:
            if name == "table":
                inside = attributes.get("class") == "models"
            elif inside and name == "tr":
                found.append([])
            elif inside and name in ("th", "td"):
                found[-1].append("".join(text).strip())
        return found

    def token_data(self) -> dict[str, Any]:
        """What the token view is made of."""
        data: dict[str, Any] = json.loads(self.with_id("excerpts"))
        return data
