"""docs/number.md quotes what the program prints: its commands are run, on the zoo and the built-in
text."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.documented import Block, blocks, words

PAGE = ROOT / "docs/number.md"
TEXT = PAGE.read_text(encoding="utf-8").splitlines()
BLOCKS = blocks(PAGE)
QUOTES = [block for block in BLOCKS if block.kind == "printed"]


def commands(quote: Block) -> list[str]:
    """Those of the quote's section: its shell block, or of the model that it names."""
    heading = max(number for number in range(quote.line) if TEXT[number].startswith("## "))
    section = [one for one in BLOCKS if one.kind == "shell" and heading < one.line < quote.line]
    if section:
        return section[0].commands
    [model] = re.findall(
        r"^For `(zoo:[\w-]+)`", "\n".join(TEXT[heading : quote.line]), re.MULTILINE
    )
    return [f"recallkit gap zoo:attention {model}"]


def is_same(shown: str, printed: str) -> bool:
    """On other processors figures may differ in the last digit."""
    number = r"\(?(-?\d[\d.,]*)\S*"
    one, other = re.fullmatch(number, shown), re.fullmatch(number, printed)
    if not (one and other):
        return shown == printed
    values = [float(match[1].rstrip(".,").replace(",", "")) for match in (one, other)]
    return values[0] == pytest.approx(values[1], rel=0.01, abs=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("quote", QUOTES, ids=lambda quote: str(quote.line))
def test_the_program_prints_what_is_quoted(quote, tmp_path_factory, tmp_path):
    home = tmp_path_factory.getbasetemp() / "home"  # shared, so that each model is scored once
    environment = {**os.environ, "RECALLKIT_HOME": str(home), "PYTHONPATH": str(ROOT)}
    for command in commands(quote):
        program = [sys.executable, "-m", "recallkit", *words(command)]
        done = subprocess.run(
            program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
    printed = done.stdout.split()
    for passage in quote.text.split("..."):
        shown = passage.split()
        starts = range(len(printed) - len(shown) + 1)
        assert any(all(map(is_same, shown, printed[start:])) for start in starts), passage
