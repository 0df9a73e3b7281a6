"""README's table is what `demo` prints: the text, the counts and the models are shipped, so that
its figures are the same everywhere."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def printed(tmp_path):
    """What a command prints in 80 columns."""
    environment = {**os.environ, "COLUMNS": "80", "RECALLKIT_HOME": str(tmp_path)}

    def call(*words: str) -> str:
        program = [sys.executable, "-m", "recallkit", *words]
        done = subprocess.run(
            program, capture_output=True, text=True, check=False, timeout=1200, env=environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def assert_same(shown: str, printed: str) -> None:
    """That these lines are printed, one after the other. On other processors figures may differ in
    the last digit, up to 1 in 100."""
    lines, every = (
        [line.split() for line in text.splitlines() if line.strip()] for text in (shown, printed)
    )
    first = next(place for place, line in enumerate(every) if line[:3] == lines[0][:3])
    found = itertools.chain(*every[first : first + len(lines)])
    for one, other in zip(itertools.chain(*lines), found, strict=True):
        assert one == other or float(one.replace(",", "")) == pytest.approx(
            float(other.replace(",", "")), rel=0.01, abs=0.2
        )


@pytest.mark.slow
def test_the_examples_are_what_is_printed(printed):
    answer = re.search(r"^    When a rare .*?\n\n", README, re.MULTILINE | re.DOTALL)[0]
    said = " ".join(printed("gap", "zoo:attention", "zoo:mamba").split())
    assert " ".join(answer.split()).removesuffix(".") in said
    assert_same(README.split("```")[1], printed("demo"))


def test_the_example_is_short_enough_to_be_read():
    block = README.split("```")[1].strip("\n").splitlines()
    assert len(block) <= 20
    assert max(map(len, (line for line in block if "/" not in line))) <= 80
    assert not [line for line in block if re.search(r"\w/\w+$", line) and line.startswith("   ")], (
        "no word is broken"
    )


def test_it_is_short_and_reads_the_same_elsewhere():
    """An index shows it without the repository: links and pictures have whole addresses."""
    lines = README.splitlines()
    assert len(lines) <= 110
    assert max(map(len, lines)) <= 100
    linked = re.findall(
        r'\]\(([^)]+)\)|^\[[^\]]+\]: (\S+)|(?:src|srcset)="([^"]+)"', README, re.MULTILINE
    )
    addresses = ["".join(each) for each in linked]
    assert len(addresses) > 10
    ours = (
        "https://github.com/recallkit/recallkit/blob/main/",
        "https://raw.githubusercontent.com/recallkit/recallkit/main/",
    )
    for address in addresses:
        place = next(
            (address.removeprefix(start) for start in ours if address.startswith(start)), None
        )
        assert (
            (ROOT / place).is_file() if place else address.startswith("https://arxiv.org/abs/")
        ), address


def test_the_picture_has_what_the_example_says_of_its_models():
    example = README.split("```")[1]
    rows = re.findall(r"^(\S+) .*? ([\d.]+) +(\d+) \(\d+ to \d+\) ", example, re.MULTILINE)
    table = {name: (float(gain), retained) for name, gain, retained in rows}
    light, dark = (
        (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("gap.svg", "gap-dark.svg")
    )
    firsts = dict(re.findall(r'aria-label="zoo:(\S+): ([\d.]+) % at first occurrences"', light))
    ends = re.findall(
        r'aria-label="zoo:(\S+): ([\d.]+) % on AR hits, (?:(\d+) % retained|reference)"', light
    )
    assert len(ends) == 5
    for name, returned, retained in ends:
        assert f">{name} {float(returned):.0f} %<" in light
        if not retained:
            probability = f"{name} predicts its last token with probability {float(returned):.0f} %"
            assert f"{probability} ({firsts[name]} %" in " ".join(README.split())
            continue
        gain = float(returned) - float(firsts[name])
        assert table[name] == (pytest.approx(gain, abs=0.11), retained)
        assert f">{retained} % retained<" in light
    assert re.sub("#[0-9a-f]{6}", "", light) == re.sub("#[0-9a-f]{6}", "", dark), "in other colours"


def test_the_second_picture_has_the_table_of_its_document():
    document = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^smollm2(?: (cache \S+))? +([\d.]+ MB) +[\d.]+ +([\d.]+) ",
        document.partition("\n## ")[0],
        re.MULTILINE,
    )
    light, dark = (
        (ROOT / "docs" / name).read_text(encoding="utf-8")
        for name in ("memory.svg", "memory-dark.svg")
    )
    drawn = re.findall(r'aria-label="smollm2(?:, (cache \S+))?, ([\d.]+ MB): ([\d.]+) ', light)
    assert len(rows) > 3
    assert sorted(drawn) == sorted(rows)
    assert re.sub("#[0-9a-f]{6}", "", light) == re.sub("#[0-9a-f]{6}", "", dark), "in other colours"
