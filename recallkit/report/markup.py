"""Markup: elements are made only by `tag`, and all data passes through `text`; tables for pages and notebooks; the page as a whole."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from recallkit.config import VERSION, home
from recallkit.display.cells import DASH, Struck
from recallkit.errors import UserError, printable
from recallkit.storage.artifacts import digest_bytes, digest_json, read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.display.tables import Table

MOST_BYTES = 4_000_000
"""Most bytes of a whole page, of which Vega is 0.9 million."""

_VOID = ("meta",)
_MADE_BY = f"Made by recallkit {VERSION}. This file fetches nothing; the text in it is that of the corpus."


def text(value: object) -> str:
    """Data as text: markup and control characters in it are escaped."""
    return html.escape(printable(str(value)))


def tag(name: str, /, *children: str, **attributes: object) -> str:
    """An element around markup. Attributes are data; in their names `_` is written as `-`, and a trailing one is dropped."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>" + ("" if name in _VOID else f"{''.join(children)}</{name}>")


def notes(*lines: str) -> str:
    """Paragraphs of text in small print."""
    return "\n".join(tag("p", text(line), class_="notes") for line in lines)


def facts_list(facts: Mapping[str, str], *more: str, **attributes: object) -> str:
    """Facts by name, as a list; `more` are entries as markup."""
    entries = (tag("dt", text(fact)) + tag("dd", text(value)) + "\n" for fact, value in facts.items())
    return tag("dl", *entries, *more, **attributes)


def data(name: str, value: str) -> str:
    """JSON for the page's script, escaped so that it cannot end its element."""
    safe = value.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="{name}">{safe}</script>'


# -------------------------------------------------------------------------------------------------------------- tables


def table(shown: Table, **attributes: object) -> str:
    """A table that scrolls by itself if it is wider than the page; the first column has the row headers."""
    header = tag("thead", tag("tr", *(tag("th", text(header.replace("-\n", "")), scope="col") for header in shown.headers)))
    rows = (tag("tr", tag("th", _cell(first), scope="row"), *(tag("td", _cell(cell)) for cell in rest)) for first, *rest in shown.rows)
    body = tag("tbody", *(row + "\n" for row in rows))
    return tag("div", tag("table", header, "\n", body), class_="wide", role="region", tabindex=0, aria_label=shown.title, **attributes)


def titled_table(table_: Table) -> str:
    """A table with its title above it and its caption below, which says what a column would say in every row."""
    shown = _said_once(table_)
    lines = (shown.caption or "").split("\n")
    caption = tag("p", " ".join(text(line) for line in lines), class_="notes") if shown.caption else ""
    return tag("h3", text(shown.title)) + table(shown) + caption


def _said_once(shown: Table) -> Table:
    """The table without columns of one figure, the same in every row that has any, which its caption says."""
    columns = [[cell for cell in column if cell] for column in zip(*shown.rows, strict=True)]
    same = {place: cells[0] for place, cells in enumerate(columns) if place and len(cells) > 2 and len(set(cells)) == 1}
    known = {" ".join(shown.headers[place].split()): cell for place, cell in same.items() if cell != DASH}
    sentences = [f"{head[0].upper()}{head[1:]}: {cell} in every row." for head, cell in known.items()]
    headers, *rows = [[cell for place, cell in enumerate(row) if place not in same] for row in (shown.headers, *shown.rows)]
    return replace(shown, headers=headers, rows=rows, caption=" ".join(filter(None, [shown.caption, *sentences])) or None)


class Html(str):
    """A cell that is markup already."""

    __slots__ = ()


def _cell(cell: str) -> str:
    return cell if isinstance(cell, Html) else tag("s", text(cell)) if isinstance(cell, Struck) else text(cell)


_NOTEBOOK = "recallkit-result"
_NOTEBOOK_STYLE = """
.# .wide { overflow-x: auto }
.# table { border-collapse: collapse; font-variant-numeric: tabular-nums }
.# th, .# td { padding: .3em .7em; text-align: right; white-space: nowrap; border-bottom: 1px solid rgb(128 128 128 / .3) }
.# th:first-child { padding-left: 0; text-align: left; white-space: normal }
.# thead th { vertical-align: bottom; white-space: pre-line; opacity: .75 }
.# tbody th { font-weight: normal }
.# h3 { margin: .8em 0 .3em; font-size: 1em }
.# .notes { max-width: 46em; margin: .4em 0; font-size: .9em; opacity: .75 }
.# summary { margin: .6em 0; cursor: pointer }
""".replace("#", _NOTEBOOK)


def tables_html(tables: Sequence[Table]) -> str:
    """For a notebook: the first table, and the others folded below it, with a style that reaches nothing else."""
    first, *others = [titled_table(shown) for shown in tables] or [""]
    count = f"{len(others)} more table{'s' * (len(others) > 1)}"
    folded = tag("details", tag("summary", text(count)), *others) if others else ""
    return tag("div", f"<style>{_NOTEBOOK_STYLE}</style>", first, folded, class_=_NOTEBOOK)


# ------------------------------------------------------------------------------------------------------------ the page


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page under a heading of its own: `body` is markup; `opening`, too, is what comes first, also without its heading."""

    name: str
    title: str
    body: str
    opening: str = ""


def page(title: str, question: str, opening: str, sections: Sequence[Section]) -> bytes:
    """The page's bytes, with style and scripts in it. `title` and `question` are text, `opening` is markup."""
    style, scripts = _resource("report.css"), {"text/javascript": _resource("report.js"), "module": _charts_script()}
    # This style and these scripts, and nothing else; nothing is fetched from anywhere.
    hashes = " ".join(f"'{_digest(script)}'" for script in scripts.values())
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src {hashes}; base-uri 'none'; form-action 'none'"
    lines = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", text(title)),
        f"<style>{style}</style>",
    ]
    head = tag("head", "\n", *(line + "\n" for line in lines))
    links = [
        tag("a", text(title), href=f"#{name}")
        for name, title in (("top", "The answer"), *((section.name, section.title) for section in sections))
    ]
    contents = tag("nav", *links, aria_label="Contents") if len(sections) > 1 else ""
    body = [
        tag("h1", text(question), id="top"),
        tag(
            "noscript",
            tag("div", text("Charts, the token view, and prompts and generations need JavaScript; the tables do not."), class_="notes"),
        ),
        opening,
        *(_section(section) for section in sections),
        tag("footer", text(_MADE_BY), class_="notes"),
    ]
    written = (f'\n<script type="{kind}">{script}</script>' for kind, script in scripts.items())
    main = tag("main", *(part + "\n" for part in body if part))
    document = f"{head}\n{tag('body', contents, main, *written)}"
    return f'<!doctype html>\n<html lang="en">\n{document}\n</html>\n'.encode("utf-8", "backslashreplace")


class Stamp(NamedTuple):
    """The last line of a page: the digest of what it was made of, and how many excerpts it shows."""

    inputs: str
    excerpts: int


def stamped(content: bytes, stamp: Stamp) -> bytes:
    """A page with its stamp."""
    return content + f"{_STAMP}{stamp.inputs} {stamp.excerpts} -->\n".encode()


def read_stamp(page: Path) -> Stamp | None:
    """The stamp of a page that was not changed since it was written; None if there is no page."""
    content = page.read_bytes() if page.is_file() else b""
    if not content:
        return None
    inputs, num_excerpts, _ = content.rpartition(_STAMP.encode())[2].decode().split()
    return Stamp(inputs, int(num_excerpts))


_STAMP = "<!-- made of "


def resources() -> list[str]:
    """Digests of the style and the scripts of every page."""
    return [digest_bytes(_resource(name).encode()) for name in ("report.css", "report.js", "charts.js")]


def _section(section: Section) -> str:
    parts = [tag("h2", text(section.title)), section.opening, section.body]
    return tag("section", "\n".join(part for part in parts if part), id=section.name)


@cache
def _resource(name: str) -> str:
    return (files("recallkit") / "data" / name).read_text(encoding="utf-8").strip()


@cache
def _charts_script() -> str:
    """Vega, Vega-Lite and our script that draws with them: they take a second or two to put together, so the cache folder keeps them."""
    ours = _resource("charts.js")
    cached = home() / f"charts-{digest_json([version('vl-convert-python'), ours])[:12]}.json"
    with contextlib.suppress(UserError):  # missing or damaged
        return str(read_json(cached)["script"])

    import vl_convert

    script: str = vl_convert.javascript_bundle(ours)
    with contextlib.suppress(UserError, OSError):
        write_json(cached, {"script": script})
    return script


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
