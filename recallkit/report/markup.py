"""The page as a whole, and tables for notebooks: values in templates, which escape all that they
write."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from recallkit.config import VERSION, home
from recallkit.display.cells import DASH, Struck
from recallkit.errors import UserError, printable
from recallkit.storage.artifacts import read_json, write_json
from recallkit.storage.hashing import digest_bytes, digest_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from jinja2 import Environment

    from recallkit.display.tables import Table

MOST_BYTES = 4_000_000
"""Most bytes of a whole page, of which Vega is 0.9 million."""

_MADE_BY = (
    f"Made by recallkit {VERSION}. This file fetches nothing; the text in it is that of the corpus."
)
_TEMPLATES = ("page.html", "sections.html", "parts.html")


@cache
def _templates() -> Environment:
    """The templates: all that they write is escaped, and without control characters, but markup
    of their own macros."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("recallkit", "data"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_printable,
    )
    environment.filters |= {"in_script": _in_script, "said_once": _said_once}
    environment.tests["struck"] = lambda cell: isinstance(cell, Struck)
    return environment


def part(name: str, *values: Any, **more: Any) -> Markup:
    """A macro of parts.html."""
    macros: Any = _templates().get_template("parts.html").module
    text: Markup = getattr(macros, name)(*values, **more)
    return text.strip()


def _printable(value: object) -> object:
    return value if isinstance(value, Markup) else printable(str(value))


def _in_script(json: str) -> Markup:
    """JSON for the page's script, escaped so that it cannot end its element."""
    escaped = json.replace("<", "\\u003c")
    escaped = escaped.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return Markup(escaped)  # noqa: S704


def _said_once(table: Table) -> Table:
    """The table without columns of one figure, the same in every row that has any, which its
    caption says."""
    columns = [list(filter(None, column)) for column in zip(*table.rows, strict=True)]
    same = {
        place: cells[0]
        for place, cells in enumerate(columns)
        if place and len(cells) > 2 and len(set(cells)) == 1
    }
    known = {
        " ".join(table.headers[place].split()): cell for place, cell in same.items() if cell != DASH
    }
    sentences = [
        f"{head[0].upper()}{head[1:]}: {cell} in every row." for head, cell in known.items()
    ]

    def others(row: Sequence[str]) -> list[str]:
        return [cell for place, cell in enumerate(row) if place not in same]

    caption = " ".join(filter(None, [table.caption, *sentences])) or None
    return replace(
        table, headers=others(table.headers), rows=list(map(others, table.rows)), caption=caption
    )


_NOTEBOOK = "recallkit-result"
_NOTEBOOK_STYLE = """
.# .wide { overflow-x: auto }
.# table { border-collapse: collapse; font-variant-numeric: tabular-nums }
.# th, .# td { padding: .3em .7em; text-align: right; white-space: nowrap }
.# th, .# td { border-bottom: 1px solid rgb(128 128 128 / .3) }
.# th:first-child { padding-left: 0; text-align: left; white-space: normal }
.# thead th { vertical-align: bottom; white-space: pre-line; opacity: .75 }
.# tbody th { font-weight: normal }
.# h3 { margin: .8em 0 .3em; font-size: 1em }
.# .notes { max-width: 46em; margin: .4em 0; font-size: .9em; opacity: .75 }
.# summary { margin: .6em 0; cursor: pointer }
""".replace("#", _NOTEBOOK)


def tables_html(tables: Sequence[Table]) -> str:
    """For a notebook: the first table, and the others folded below it, with a style that reaches
    nothing else."""
    return part("notebook", tables, Markup(_NOTEBOOK_STYLE), _NOTEBOOK)  # noqa: S704  (ours)


# ----------------------------------------------------------------------------------------- the page


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page under a heading of its own: the macro of sections.html that writes it,
    and its values. An `answer` comes first."""

    name: str
    title: str
    macro: str
    values: Mapping[str, Any]
    answer: str = ""


def page(
    title: str,
    question: str,
    sections: Sequence[Section],
    answer: str,
    first_screen: Mapping[str, Any] | None = None,
) -> bytes:
    """The page's bytes, with style and scripts in it; `first_screen`: the models of a
    comparison."""
    style = _resource("report.css")
    scripts = {"text/javascript": _resource("report.js"), "module": _charts_script()}
    # This style and these scripts, and nothing else; nothing is fetched from anywhere.
    hashes = " ".join(f"'{_digest(script)}'" for script in scripts.values())
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src {hashes}; base-uri "
        "'none'; form-action 'none'"
    )
    template = _templates().get_template("page.html")
    document = template.render(
        title=title,
        question=question,
        answer=answer,
        first_screen=first_screen,
        sections=sections,
        policy=policy,
        style=Markup(style),  # noqa: S704  (ours)
        scripts={kind: Markup(script) for kind, script in scripts.items()},  # noqa: S704
        made_by=_MADE_BY,
    )
    return f"{document.strip()}\n".encode("utf-8", "backslashreplace")


class Stamp(NamedTuple):
    """The last line of a page: the digest of what it was made of, and how many excerpts it
    shows."""

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
    """Digests of the style, the scripts and the templates of every page."""
    return [
        digest_bytes(_resource(name).encode())
        for name in ("report.css", "report.js", "charts.js", *_TEMPLATES)
    ]


@cache
def _resource(name: str) -> str:
    return (files("recallkit") / "data" / name).read_text(encoding="utf-8").strip()


@cache
def _charts_script() -> str:
    """Vega, Vega-Lite and our script that draws with them: they take a second or two to put
    together, so the cache folder keeps them."""
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
