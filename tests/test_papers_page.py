"""docs/papers.md: what its command prints, figures as the papers' tables give them, a line and a
mark for every numbered item."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from statistics import mean

import pytest

import recallkit
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
ITEMS = PAGE.split("\n## Item by item\n")[1]
MARKS = ("run here", "smaller here", "preset only", "absent")


def test_the_table_is_what_the_command_prints():
    """In a terminal of 80 columns."""
    command = [sys.executable, "-m", "recallkit", "published", "zoology:5"]
    environment = {**os.environ, "COLUMNS": "80"}
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    block = PAGE.split("```\n")[1]
    shown = [line.rstrip() for line in printed.stdout.splitlines()]
    assert [line.rstrip() for line in block.splitlines()] == shown


def printed(table: str) -> dict[tuple[str, str], dict]:
    """The rows of a paper's table by group and model."""
    rows = recallkit.paper_table(table).rows(named=True)
    return {(row.get("group", ""), row["model"]): row for row in rows}


def nats(better: dict, worse: dict, column: str = "all") -> float:
    """How far one row's perplexity is above another's."""
    return math.log(worse[column] / better[column])


def share(reference: dict, model: dict) -> float:
    """Per cent of the gap that AR hits carry, not clipped (Zoology, C.1)."""
    overall, hits, others = (math.log(reference[column]) for column in ("all", "ar", "other"))
    ar_share = (overall - others) / (hits - others)
    return 100 * ar_share * nats(reference, model, "ar") / nats(reference, model)


def points(better: dict, worse: dict) -> float:
    """Of the mean of Based's three recall tasks."""
    return mean(better[task] - worse[task] for task in ("swde", "fda", "squad_f1"))


def sentences_of_zoology():
    """Words of the page with a place for each figure, and the figures."""
    table = printed("zoology:4")
    attention = {group: row for (group, model), row in table.items() if model == "Attention"}
    rows = {key: row for key, row in table.items() if row["printed"]}
    shares = {key: share(attention[key[0]], row) for key, row in rows.items()}
    nine = [key for key in rows if key[1] in ("H3", "Hyena", "RWKV")]
    twelve = [*nine, *(key for key in rows if key[1] == "Long Conv")]
    yield "RWKV, {:.1f} %.", mean(rows[key]["printed"] for key in nine)
    yield "the nine have a mean of {:.1f} %", mean(min(shares[key], 100) for key in nine)
    yield "the twelve {:.1f} %", mean(min(shares[key], 100) for key in twelve)
    yield "({:.1f} % as stated)", mean(rows[key]["printed"] for key in twelve)
    gaps = [nats(attention[group], table[group, "RWKV"]) for group in ("360M", "70M")]
    yield "gap of {:.2f} nats at 360M counts as much as its {:.2f} at 70M", *gaps
    behind = [table["360M", name]["ar"] - attention["360M"]["ar"] for name in ("Hyena", "RWKV")]
    yield "The {:.2f} and {:.2f} of all AR hits", *behind
    for model in ("H3", "Hyena", "RWKV"):
        several = [shares[group, model] for group in attention]
        yield f"| {model} | {{:.0f}} to {{:.0f}} %", min(several), max(several)
    yield "{:.1f} % (1.4B)", share(*printed("zoology:5").values())


def sentences_of_hybrids():
    """Likewise."""
    table = printed("zoology:2")
    closed = []
    for group in ("125M", "360M"):
        attention, alone = table[group, "Attention"], table[group, "BaseConv"]
        for selection in ("Programmatic", "Learned"):
            hybrid = table[group, f"BaseConv + {selection} selection"]
            closed.append(100 - 100 * nats(attention, hybrid, "ar") / nats(attention, alone, "ar"))
            if group == "125M":
                whole = (alone["all"] - hybrid["all"]) / (alone["all"] - attention["all"])
                yield "A hybrid closes {:.1f} % of the gap", 100 * whole
    yield "in nats, they close {:.1f} and {:.1f} %", *closed[:2]
    yield "{:.1f} % by table 2, and {:.1f} % at 125M", closed[3], closed[1]
    yield "The 85 % of programmatic selection follows ({:.1f} %)", closed[2]
    yield "(theirs {:.0f} % at 125M, {:.0f} % at 360M)", closed[1], closed[3]


def sentences_of_based():
    """Likewise."""
    table = printed("based:1")
    small, large = "360M, 30B", "1.3B, 50B"
    gains = [points(table[size, "Based"], table[size, "Mamba"]) for size in (small, large)]
    yield "Based is {:.2f} points", gains[0]
    yield "at 1.3B and 50B it is {:.2f}.", gains[1]
    gains = [points(table[size, "Transformer++"], table[size, "Mamba"]) for size in (small, large)]
    yield "Attention's {:.1f} points", gains[0]
    yield "at 1.3B and 50B they are {:.1f}.", gains[1]
    small, large = "360M, 10B", "1.3B, 10B"
    attention = {size: table[size, "Transformer++"] for size in (small, large)}
    for model in ("Mamba", "Based"):
        shares = [share(attention[size], table[size, model]) for size in (small, large)]
        yield f"| {model} | {{:.0f}} % (360M, 10B), {{:.0f}} % (1.3B, 10B) |", *shares
    yield "{:.1f} % (Based, 360M)", share(attention[small], table[small, "H3"])
    yield "and {:.1f} to 40 there", table["1.3B, 50B", "Based"]["ar"]


SENTENCES = [sentences_of_zoology, sentences_of_hybrids, sentences_of_based]


@pytest.mark.parametrize("sentences", SENTENCES)
def test_figures_are_those_of_the_printed_tables(sentences):
    for words, *figures in sentences():
        assert words.format(*figures) in TEXT


def test_every_item_has_one_mark_and_the_count_is_right():
    rows = re.findall(r"^\| (?!paper's item|---).*\|$", ITEMS, re.MULTILINE)
    marks = [row.split("|")[3].strip() for row in rows]
    assert set(marks) == set(MARKS)
    counts = ", ".join(f"{marks.count(mark)} {mark}" for mark in MARKS)
    assert f"Of {len(rows)} rows: {counts}." in TEXT


def test_every_numbered_item_has_a_line():
    """Tables, figures and algorithms, and the sections that have none."""
    sections = {part.split("\n")[0]: part for part in ITEMS.split("\n### ")[1:]}
    numbered = {
        "Zoology": {"Table": 16, "Figure": 10, "Algorithm": 11, "Listing": 2},
        "Based": {"Table": 13, "Figure": 8, "Algorithm": 3, "Listing": 3},
        "Yun et al.": {"Table": 2, "Figure": 4},
    }
    for paper, kinds in numbered.items():
        [section] = [text for title, text in sections.items() if title.startswith(paper)]
        for kind, last in kinds.items():
            assert set(range(1, last + 1)) <= numbers_of(kind, section), (paper, kind)
        for place in ("D.1.1", "F.2", "G, gap") if paper == "Zoology" else ():
            assert f"\n| {place}" in section


def numbers_of(kind: str, text: str) -> set[int]:
    """`Tables 6 to 8, 10 and 15`: 6, 7, 8, 10, 15."""
    numbers = set()
    for several in re.findall(rf"{kind}s? (\d+(?:(?:, | and | to )\d+)*)", text):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", several):
            numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def test_the_picture_of_the_hybrids_has_the_table_beside_it():
    """What is lost in AR hits, of all tokens, is their share of tokens times what is lost on one of
    them."""
    picture = (ROOT / "docs" / "hybrids.svg").read_text(encoding="utf-8")
    hits = re.findall(r'AR hits: ([-\d.]+) of [-\d.]+ nats, ([\d,]+) tokens"', picture)
    others = re.findall(r'other tokens: [-\d.]+ of [-\d.]+ nats, ([\d,]+) tokens"', picture)
    rows = re.findall(r"^\| .* \| ([\d.]+) \([\d.]+ to [\d.]+\) \|$", PAGE, re.MULTILINE)
    lost = [float(row) for row in rows]
    assert len(hits) == 6
    for (part, hit_tokens), other_tokens in zip(hits, others, strict=True):
        count = int(hit_tokens.replace(",", ""))
        share = count / (count + int(other_tokens.replace(",", "")))
        assert min(abs(float(part) / share - row) for row in lost) < 0.006
