"""Assembles the page: head, content security policy, heading, sections, with style and script inlined."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from recallkit.report import markup
from recallkit.report.markup import tag, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.report.sections import Section

HEAD = b'<!doctype html>\n<html lang="en" data-made-by="recallkit">\n'
"""The first bytes of a page, which identify it as ours when it is to be replaced."""

MOST_BYTES = 5_000_000
"""Most bytes of a whole page."""


@cache
def _resource(name: str) -> str:
    return (files("recallkit") / "data" / name).read_text(encoding="utf-8").strip()


def lay_out(title: str, question: str, opening: str, sections: Sequence[Section], version: str) -> bytes:
    """The page's bytes. `title`, `question` and `version` are text, `opening` is markup."""
    style, script = _resource("report.css"), _resource("report.js")
    lines = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=markup.policy(style, script)),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", text(title)),
        f"<style>{style}</style>",
    ]
    head = tag("head", "\n", *(line + "\n" for line in lines))
    links = [tag("a", text(section.title), href=f"#{section.name}") for section in sections]
    made_by = f"Made by recallkit {version}. This file fetches nothing; the text in it is that of the corpus."
    body = [
        tag("h1", text(question)),
        opening,
        tag("nav", *links, aria_label="Sections") if len(links) > 1 else "",
        *(_section(section) for section in sections),
        tag("footer", text(made_by), class_="notes"),
    ]
    main = tag("main", *(part + "\n" for part in body if part))
    return HEAD + f"{head}\n{tag('body', main, chr(10), f'<script>{script}</script>')}\n</html>\n".encode("utf-8", "backslashreplace")


def _section(section: Section) -> str:
    parts = [tag("h2", text(section.title)), section.opening, section.body]
    return tag("section", "\n".join(part for part in parts if part), id=section.name)
