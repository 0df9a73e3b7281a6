"""How the project writes: phrases that a well-edited paper would not have are in no document, help,
message, docstring or comment."""

from __future__ import annotations

import re

from tests.conftest import ROOT

PHRASES = (
    r"stands? in (?!for)|stand-ins?",
    r"beside (?:it|which) (?:stands?|are)",
    r"(?:be|been|is|are|was|were|not) told|told (?:apart|from|of)",
    r"as far (?:as|out as)",
    r"\w+'s to say|says? (?:nothing )?of",
    r"(?:graphics|GPU|the|a|one|each|per) cards?(?!\.json)",
    r"as (?:they were|it was) written",
    r"(?<!here )(?:is|are|was|were) no (?:model|text|file|folder|table|number|path|result|part|lookup|proof|law|failure)",
    r"(?:row|line|file|plot|page) a (?:model|query|prompt|document|checkpoint|set|source|token)",
    r"\d[\d.,]*[kM]? a billion",
    r"anew|but for|otherwise than|called otherwise|asked about",
    r"whoever|who(?:so| takes| reads| calls)",
    r"next to what it was next to|traded? places|trades places",
    r"It prints, among others|none of these do",
    r"is a like|(?:as|like) many \w+ elsewhere|19 of 20 samples|any of these[.:]",
    r"not said here|of which no \w+ can tell|not shown to (?:recall|bear)",
    r"the other way a?round|side by side, or|the same: intervals",
    r"not to be had|taken to (?:be|read)|where an? (?:file|directory|folder) is to be",
    r"is no (?:value|square|name for)|(?:columns|slices) of one name",
)
FAULT = re.compile(rf"(?<![\w`])(?:{'|'.join(PHRASES)})(?![\w`])")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
BREAK = re.compile(r'\s*(?:"\s*\n\s*f?"|\n\s*(?:#|--|//)?)\s*')
"""A line's end, in a string or a comment that goes on in the next line."""


def faults(text: str) -> list[str]:
    return FAULT.findall(BREAK.sub(" ", text))


def test_the_worst_are_found():
    for text in (
        "beside it stands what the share can be compared with",
        "how rare, is the slice's to say",
        "as far out as Student's t of that many is",
        "Are they as\n    # they were written?",
        'problem = "a file that is "\n    f"no model"',
        "1.67k a billion; the papers' 125 would be 0.38 times",
        "whether a gap is told from zero",
        "beyond the effect of as many moves elsewhere",
        "AR hits are not shown to bear twice their share",
        "a file, where a directory is to be",
    ):
        assert faults(text), text
    assert faults("There is no model that a card.json names; it says so of none.") == []


def test_documents_and_programs_have_none():
    documents = [
        p
        for p in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
        if p.name not in ("CHANGELOG.md", "log.md")
    ]
    wrong = [
        f"{path.relative_to(ROOT)}: {words}"
        for path in documents
        for words in faults(CODE.sub("", path.read_text(encoding="utf-8")))
    ]
    programs = [
        path
        for suffix in ("py", "sql", "js")
        for path in (ROOT / "recallkit").rglob(f"*.{suffix}")
        if "kernels" not in path.parts
    ]
    wrong += [
        f"{path.relative_to(ROOT)}: {words}"
        for path in programs
        for words in faults(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)
