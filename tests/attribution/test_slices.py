"""Comparisons with requested slices: questions of their own, read back; and the page about
slices."""

from __future__ import annotations

import itertools
import re
import shlex

import pyarrow.parquet as pq
import pytest

import recallkit
from recallkit import attribution
from recallkit.attribution.comparison import read_comparison
from recallkit.attribution.view import ComparisonView
from recallkit.errors import UserError
from recallkit.report.words import method
from recallkit.slicing.definitions import PARTITION, SLICES, members, parse_slice, parse_slices
from recallkit.storage import artifacts
from tests.conftest import ROOT

MODELS = ("control:recall", ["control:bigram", "control:unigram"])
REQUESTED = ["copy:k4", "far=distance > 20"]


def test_what_is_asked_for_is_a_question_of_its_own(small_slices, tmp_path):
    slices = parse_slices(REQUESTED)
    paths = [
        attribution.gap_path(small_slices, *MODELS, attribution.GapQuestion(which))
        for which in ((), parse_slices(["all"]), slices)
    ]
    assert paths[0] == paths[1] != paths[2]
    tables = attribution.gap(
        *MODELS, small_slices, tmp_path, question=attribution.GapQuestion(slices)
    )
    comparison = read_comparison(tmp_path, small_slices)
    assert (
        [slice_.option for slice_ in comparison.requested]
        == comparison.manifest["slice"]
        == REQUESTED
    )
    assert ComparisonView(comparison).json()["gap"] == tables.gap.to_dicts()
    assert "first occurrences" in method(comparison)["Recall efficiency"]
    with pytest.raises(UserError, match="--force"):
        attribution.gap(*MODELS, small_slices, tmp_path)
    attribution.gap(*MODELS, small_slices, tmp_path, force=True)
    plain = read_comparison(tmp_path)
    assert "Recall efficiency" not in method(plain)
    assert (plain.requested, "slice" in plain.manifest, "slice" in plain.manifest["options"]) == (
        (),
        False,
        False,
    )


def test_a_question_is_told_from_one_of_more_words_that_a_long_name_leaves_out(tmp_path):
    models = [f"{letter * 70}=control:bigram" for letter in "mn"]
    questions = [attribution.GapQuestion(which) for which in (parse_slices(REQUESTED), ())]
    folders = []
    for question in questions:
        folders.append(attribution.gap_path(tmp_path, models[0], models[1:], question))
        names = [model.partition("=")[0] for model in models]
        options = {"reference": names[0], "models": names[1:], **question.options()}
        artifacts.write_json(folders[-1] / artifacts.MANIFEST, {"options": options})
    assert folders[0] != folders[1]
    again = [attribution.gap_path(tmp_path, models[0], models[1:], which) for which in questions]
    assert again == folders


def test_every_line_of_the_documentation_is_right(small_slices, tmp_path):
    text = (ROOT / "docs" / "slices.md").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    commands = [shlex.split(line) for line in lines if line.startswith("recallkit ")]
    expressions = [line for line in lines if not line.startswith("recallkit ")]
    assert (len(commands), len(expressions)) == (2, 6)
    for words in commands:
        requested = [value for option, value in itertools.pairwise(words) if option == "--slice"]
        recallkit.gap(
            words[2],
            words[3],
            slices=small_slices,
            out=tmp_path / str(len(requested)),
            slice=requested,
        )
    rows = pq.read_table(small_slices / "tokens.parquet")
    defined = [parse_slice(f"x={expression}") for expression in expressions]
    assert len(members(defined, rows, 9)) == len(expressions)
    named = re.findall(r"^\| (`.+?`) \|", text, re.MULTILINE)
    assert {*re.findall("`([^`]+)`", " ".join(named))} == {*SLICES, "copy:kN"} - {"all"}
    kinds = [
        line.split("|")[1].strip()
        for line in text.splitlines()
        if line.startswith(("| bigram ", "| token "))
    ]
    assert kinds == list(dict.fromkeys(class_.name.split(",")[0] for class_ in PARTITION))
