"""The words of docs/glossary.md: what its column `never` has is written nowhere, and its columns
are those of the tables."""

from __future__ import annotations

import fnmatch
import re

from recallkit.storage.schemas import LAYOUTS
from tests.conftest import ROOT
from tests.test_style import BREAK

_HEAD, _RULE, *ROWS = re.findall(
    r"^\|.*\|$", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE
)
CELLS = [[cell.strip() for cell in row.strip("|").split("|")] for row in ROWS]
COLUMNS = [row[3].strip("`") for row in CELLS]
NEVER = [phrase for row in CELLS for phrase in row[4].split(", ") if phrase]
WORD = re.compile(rf"\b(?:{'|'.join(NEVER)})s?\b", re.IGNORECASE)


def words(text: str) -> list[str]:
    """The phrases of a text that are never to be used, also where a line ends inside of one."""
    return WORD.findall(re.sub(r"\s+", " ", BREAK.sub(" ", text)))


def test_words_that_are_never_used_are_found():
    assert len(CELLS) >= 10
    assert words('"12 % of the gap would be "\n    f"gone"') == ["would be gone"]
    assert words("AR shares, and the far share of recallkit, without recallkit") == ["AR shares"]


def test_no_document_and_no_program_has_them():
    documents = [ROOT / "README.md", ROOT / "DESIGN.md", *(ROOT / "docs").rglob("*.md")]
    documents = [path for path in documents if path.name not in ("glossary.md", "log.md")]
    programs = [
        path for suffix in ("py", "sql", "js") for path in (ROOT / "recallkit").rglob(f"*.{suffix}")
    ]
    wrong = []
    for path in (*documents, *programs):
        wrong += [
            f"{path.relative_to(ROOT)}: {phrase}"
            for phrase in words(path.read_text(encoding="utf-8"))
        ]
    assert not wrong, "\n".join(wrong)


def test_its_columns_are_those_of_the_tables():
    tables = {layout.rpartition("/")[2] for layout in LAYOUTS}
    names = tables.union(*LAYOUTS.values())
    assert [column for column in COLUMNS if not fnmatch.filter(names, column)] == []
