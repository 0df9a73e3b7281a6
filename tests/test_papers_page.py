"""docs/papers.md: what its command prints, word for word, and that every numbered table of the papers has a line."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.ci

PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")


def test_the_table_is_what_the_command_prints():
    """In a terminal of 80 columns."""
    command = [sys.executable, "-m", "recallkit", "published", "zoology:1"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"}).stdout
    block = PAGE.split("```\n")[1]
    assert [line.rstrip() for line in block.splitlines()] == [line.rstrip() for line in printed.splitlines()]


def test_every_numbered_item_has_a_line():
    """Tables, figures, and the numbered equations of the sections that a toolkit holds."""
    sections = {part.split("\n")[0]: part for part in PAGE.split("\n### ")[1:]}
    wanted = {
        "Zoology": [f"Table {n}" for n in range(1, 17)] + [f"Figure {n}" for n in range(1, 11)],
        "Based": [f"Table {n}" for n in range(1, 14)] + [f"Figure {n}" for n in range(1, 9)] + [f"Algorithm {n}" for n in range(1, 4)],
        "Yun et al.": ["Table 1", "Table 2"] + [f"Figure {n}" for n in range(1, 5)],
    }
    for paper, items in wanted.items():
        named = _names(next(text for title, text in sections.items() if title.startswith(paper)))
        assert [item for item in items if item not in named] == [], paper


def _names(text: str) -> set[str]:
    """`Tables 6 to 8, 10 and 15` as Table 6, Table 7 ...; likewise figures and algorithms."""
    found = set()
    for kind, numbers in re.findall(r"(Table|Figure|Algorithm)s? (\d+(?:(?:, | and | to )\d+)*)", text):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            found |= {f"{kind} {number}" for number in range(int(first), int(last or first) + 1)}
    return found


def test_the_picture_of_the_hybrids_has_the_table_beside_it():
    """What is lost in AR hits, of all tokens, is their share of tokens times what is lost on one of them."""
    picture = (ROOT / "docs" / "hybrids.svg").read_text(encoding="utf-8")
    drawn = re.findall(r'aria-label="([\w-]+), AR hits: ([-\d.]+) of [-\d.]+ nats, ([\d,]+) tokens"', picture)
    others = re.findall(r'aria-label="([\w-]+), other tokens: [-\d.]+ of [-\d.]+ nats, ([\d,]+) tokens"', picture)
    lost = [float(row) for row in re.findall(r"^\| .* \| ([\d.]+) \([\d.]+ to [\d.]+\) \|$", PAGE, re.MULTILINE)]
    shares = [
        int(a.replace(",", "")) / (int(a.replace(",", "")) + int(b.replace(",", ""))) for (*_, a), (_, b) in zip(drawn, others, strict=True)
    ]
    found = sorted(float(part) / share for (_, part, _), share in zip(drawn, shares, strict=True))
    assert len(found) == 6
    for nats in found:
        assert min(abs(nats - row) for row in lost) < 0.006
