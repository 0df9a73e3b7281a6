"""The built-in recall evaluation, which needs neither hub nor file: headers of installed packages,
asked for after their METADATA."""

from __future__ import annotations

import re
from collections import Counter
from importlib.metadata import distributions
from typing import TYPE_CHECKING

from recallkit import config
from recallkit.recall.rows import RecallRow
from recallkit.storage.hashing import digest_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message

_KEYS = (
    *("Name", "Version", "Summary", "Author", "Author-email", "Maintainer", "Maintainer-email"),
    *("License", "License-Expression", "Home-page", "Download-URL", "Requires-Python", "Keywords"),
    "Description-Content-Type",
)
"""Headers that are asked for."""
_MOST_CHARACTERS = 4000
_VALUE_CHARACTERS = range(2, 101)


def read_installed() -> tuple[list[RecallRow], str]:
    """The rows, shuffled so that the first ones are a sample, and their origin; they differ between
    installations."""
    packages = installed_packages()
    rows = [row for name, fields in packages.items() for row in _rows_of(name, fields)]
    rows.sort(key=lambda row: digest_bytes(row.doc_id.encode(), str(row.key).encode()))
    return rows, f"METADATA of {len(packages)} installed packages"


def installed_packages() -> dict[str, Message]:
    """Metadata of installed packages by canonical name, of several copies those of the first on the
    path, which Python imports; broken ones are left out."""
    packages: dict[str, Message] = {}
    for distribution in distributions():
        try:
            fields: Message = distribution.metadata  # type: ignore[assignment]
        except (OSError, ValueError):
            continue
        name = re.sub(r"[-_.]+", "-", fields.get("Name") or "").lower()
        if name not in ("", config.DISTRIBUTION):
            packages.setdefault(name, fields)
    return packages


def _rows_of(name: str, fields: Message) -> Iterator[RecallRow]:
    """One row per key that occurs once among the headers, and whose line is completely in the
    document."""
    description = (fields.get("Description") or "").strip()
    if description == "UNKNOWN":
        description = ""
    headers = [(key, str(value).strip()) for key, value in fields.items()]
    headers = [pair for pair in headers if _is_line(*pair)]
    head = "\n".join(f"{key}: {value}" for key, value in headers)
    document = f"{head}\n\n{description}"
    if len(document) > _MOST_CHARACTERS:  # the lines that end within the first 4,000 characters
        document = document[: _MOST_CHARACTERS + 1].rpartition("\n")[0]
    lines = set(document.split("\n"))
    times = Counter(key for key, _ in headers)
    for key, value in headers:
        is_short = len(value) in _VALUE_CHARACTERS
        if key in _KEYS and times[key] == 1 and is_short and f"{key}: {value}" in lines:
            yield RecallRow(doc_id=name, text=f"{document}\n{key}:", value=value, key=key)


def _is_line(key: str, value: str) -> bool:
    """Whether a header is a line of the document."""
    return key.lower() != "description" and len(value.splitlines()) <= 1
