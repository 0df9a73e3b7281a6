"""README's example of what is printed has the words that are printed: only names, figures and lines drawn of figures may differ."""

from __future__ import annotations

import re

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def without_figures(text: str) -> str:
    """In one line, # for every figure."""
    return re.sub(r"\d[\d,.]*[kMB]?(?!\w)", "#", " ".join(text.split()))


def test_the_example_has_the_words_that_gap_prints(run, small_slices, tmp_path):
    blocks = README.split("```")[1].strip("\n").split("\n\n")
    tables = [block for block in blocks if "─" in block]
    lines = [line for block in tables for line in block.splitlines() if line.startswith(" ") and "─" not in line and "zoo:" not in line]
    headers = [line.partition("  ")[0] if "%" in line else line for line in (line.strip() for line in lines)]
    prose = [re.split(r"Bits per byte:|\d+ more models", " ".join(block.split()))[0] for block in blocks if block not in tables]
    assert (len(headers), len(prose)) == (10, 8)
    # The rule of the threshold, and the names of models, are those of other labels.
    sentences = [sentence.split("; the papers'")[0].split(": zoo:")[0] for text in prose for sentence in re.split(r"(?<=\.) ", text)]
    counts = small_slices.parent / "counts.duckdb"
    models = ("control:recall", "control:bigram", "control:unigram")
    shown = run("gap", *models, "--slices", small_slices, "--counts", counts, "-o", tmp_path / "gap")
    printed = without_figures(shown.stdout + "\n" + shown.stderr)
    assert [words for words in map(without_figures, (*headers, *sentences)) if words not in printed] == [], printed
