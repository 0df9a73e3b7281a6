"""The built-in recall task: headers of installed Python packages, queried after their METADATA. It needs neither hub nor file.

It shows that everything works; rows differ between installations, and accuracies are not comparable with published ones.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from recallkit.recall.prompts import RecallRow
from recallkit.storage.artifacts import digest_bytes
from recallkit.text.demo_text import installed_projects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recallkit.text.demo_text import InstalledProject

KEYS = (
    "Name",
    "Version",
    "Summary",
    "Author",
    "Author-email",
    "Maintainer",
    "Maintainer-email",
    "License",
    "License-Expression",
    "Home-page",
    "Download-URL",
    "Requires-Python",
    "Keywords",
    "Description-Content-Type",
)
_MOST_CHARACTERS = 4000
_VALUE_CHARACTERS = range(2, 101)


def read_installed() -> tuple[list[RecallRow], str]:
    """The rows of all installed packages, shuffled so that the first ones are a sample, and a description of their origin."""
    projects = installed_projects()
    rows = [row for project in projects for row in _rows_of(project)]
    return sorted(
        rows, key=lambda row: digest_bytes(row.doc_id.encode(), str(row.key).encode())
    ), f"METADATA of {len(projects)} installed packages"


def _rows_of(project: InstalledProject) -> Iterator[RecallRow]:
    """One row per key that occurs once among the headers, and whose line is completely in the document."""
    headers = [(key, value.strip()) for key, value in project.headers if len(value.splitlines()) <= 1]
    lines = [f"{key}: {value}" for key, value in headers]
    document = _cut("\n".join(lines) + f"\n\n{project.description}")
    kept = set(document.split("\n"))
    times = Counter(key for key, _ in headers)
    for (key, value), line in zip(headers, lines, strict=True):
        if key in KEYS and times[key] == 1 and len(value) in _VALUE_CHARACTERS and line in kept:
            yield RecallRow(doc_id=project.name, text=f"{document}\n{key}:", value=value, key=key)


def _cut(document: str) -> str:
    """The lines of a document that end within its first 4,000 characters."""
    return document if len(document) <= _MOST_CHARACTERS else document[: _MOST_CHARACTERS + 1].rpartition("\n")[0]
