"""Markup of a page: elements are made only by `tag`, and all data passes through `text`."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from typing import TYPE_CHECKING, Any

from recallkit.display.tables import Struck
from recallkit.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from recallkit.display.tables import Table

_VOID = ("meta",)


def text(value: object) -> str:
    """Data as text: markup and control characters in it are escaped."""
    return html.escape(printable(str(value)))


def tag(name: str, /, *children: str, **attributes: object) -> str:
    """An element around markup. Attributes are data; in their names `_` is written as `-`, and a trailing one is dropped."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>" + ("" if name in _VOID else f"{''.join(children)}</{name}>")


def figure(cell: str) -> str:
    """A cell of a table, struck out if it is `Struck`."""
    return tag("s", text(cell)) if isinstance(cell, Struck) else text(cell)


def table(label: str, headers: Sequence[str], rows: Iterable[str]) -> str:
    """A table of rows of markup, which scrolls by itself if it is wider than the page."""
    header = tag("thead", tag("tr", *(tag("th", text(header), scope="col") for header in headers)))
    body = tag("tbody", *(row + "\n" for row in rows))
    return tag("div", tag("table", header, "\n", body), class_="wide", role="region", tabindex=0, aria_label=label)


def shown_table(shown: Table) -> str:
    """A table of text with its title above and its caption below; the first column has the row headers."""
    rows = (tag("tr", tag("th", text(first), scope="row"), *(tag("td", figure(cell)) for cell in rest)) for first, *rest in shown.rows)
    lines = (shown.caption or "").split("\n")
    caption = [tag("p", " ".join(text(line) for line in lines), class_="notes")] if shown.caption else []
    return "".join([tag("h3", text(shown.title)), table(shown.title, shown.headers, rows), *caption])


def data(name: str, value: str) -> str:
    """JSON for the page's script, escaped so that it cannot end its element."""
    safe = value.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="{name}">{safe}</script>'


def compact_json(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def policy(style: str, script: str) -> str:
    """The content security policy: this style and this script, and nothing else; nothing is fetched from anywhere."""
    return f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
