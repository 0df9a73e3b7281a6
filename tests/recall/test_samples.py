"""Prompts and generations of a comparison: verdicts, passages, bounds, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recallkit.errors import UserError
from recallkit.recall.run import RecallOptions, documents_path, evaluate_recall
from recallkit.recall.samples import passages, read_samples
from recallkit.recall.tables import RecallTables
from recallkit.storage import parquet_files, schemas

MODELS = ["control:copy", "control:recall"]


def write_rows(path: Path, number: int) -> Path:
    rows = [
        {
            "doc_id": f"d{i}",
            "key": "Name",
            "value": f"v{i}",
            "text": f"Name: v{i}\n{'<b>filler</b> ' * 30}\nAge: {i}\nName:",
        }
        for i in range(number)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def compared(home, tmp_path_factory) -> tuple[RecallTables, Path]:
    folder = tmp_path_factory.mktemp("samples")
    options = RecallOptions(data=write_rows(folder / "fda.jsonl", 30), context=128)
    return evaluate_recall(MODELS, ["fda"], folder / "evals", options)


def test_each_prompt_has_its_verdicts_and_what_was_read(compared):
    tables, folder = compared
    samples = read_samples(folder, tables)
    data = json.loads(samples.data)
    assert (data["models"], data["tasks"]) == (MODELS, ["fda"])
    rows = [
        schemas.read_frame(documents_path(folder.parent.parent, model, "fda-v1")).to_dicts()
        for model in MODELS
    ]
    for model, of_model in enumerate(rows):
        cut = sum(not row["contains"] and row["answer_cut"] for row in of_model)
        right = sum(row["contains"] for row in of_model)
        assert data["totals"][0][model] == [right, len(of_model) - right - cut, cut]
        assert all(
            row["prompt_text"].startswith("Name: v") and row["prompt_text"].endswith("Name:")
            for row in of_model
        )
    assert data["totals"][0][0][0] == 30, "what copies reads the whole prompt"
    assert data["totals"][0][1][2] == 30, "the other reads the last 80 tokens, without the value"
    assert rows[1][0]["characters_cut"] > 100 > rows[0][0]["characters_cut"] == 0
    assert samples.prompts == samples.shown == 30
    for prompt in data["prompts"]:
        row = int(prompt["value"].removeprefix("v"))
        assert [answer[0] for answer in prompt["answers"]] == ["right", "cut"]
        assert "".join(prompt["answers"][0][1]) == rows[0][row]["generation"]
        assert any(prompt["value"] in parts[1::2] for _, parts in prompt["text"]), (
            "the value is marked"
        )
    some = read_samples(folder, tables, 2000)
    assert 0 < some.shown < samples.shown, "as many as fit"
    assert len(some.data.encode()) < 2300
    assert json.loads(some.data)["totals"] == data["totals"], "numbers are of all prompts"


def test_passages_show_the_value_that_was_read_and_the_end():
    def texts(*arguments: Any) -> list[tuple[bool, str]]:
        return [(is_cut, "|".join(parts)) for is_cut, parts in passages(*arguments)]

    assert texts("a V b v c", "v", 0) == [(False, "a |V| b |v| c")]
    far = "x" * 400 + "V" + "y" * 1000
    assert texts(far, "v", 0) == [
        (False, "… " + "x" * 200 + "|V|" + "y" * 200 + " …"),
        (False, "y" * 320),
    ]
    assert texts(far, "v", 390)[0] == (False, "x" * 10 + "|V|" + "y" * 200 + " …"), (
        "what was cut off is not shown as read"
    )
    assert texts(far, "v", 401) == [
        (True, "… " + "x" * 200 + "|V| …"),
        (False, "… " + "y" * 320),
    ], "the value was cut off"
    assert texts(far, "none", 1300) == [(False, "y" * 101)]
    assert texts("x" * 400 + "V" + "y" * 330, "v", 0) == [
        (False, "… " + "x" * 200 + "|V|" + "y" * 330),
    ], "passages that meet are one"
    assert texts("twice v" + "y" * 500 + "v", "v", 0) == [(False, "… " + "y" * 319 + "|v|")], (
        "the latest mention"
    )


def test_documents_that_are_not_those_compared_are_refused(compared, tmp_path):
    tables, folder = compared
    path = documents_path(folder.parent.parent, MODELS[1], "fda-v1")
    before, manifest, frame = (
        path.read_bytes(),
        parquet_files.read_manifest(path),
        schemas.read_frame(path),
    )

    changed = (
        frame.with_columns(contains=pl.lit(value=True))
        .to_arrow()
        .cast(schemas.arrow_schema("recall documents"))
    )
    try:
        parquet_files.write_parquet(path, [changed], changed.schema, manifest)
        with pytest.raises(
            UserError,
            match="evaluated again with another result since the comparison",
        ):
            read_samples(folder, tables)
        path.unlink()
        with pytest.raises(UserError, match="this table of prompts is missing"):
            read_samples(folder, tables)
    finally:
        path.write_bytes(before)
