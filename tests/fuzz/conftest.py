"""Good work of every kind, small, for the fuzzing tests to damage: counts, slices, scores, a gap, a
profile, evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import made_up_texts, write_jsonl
from tests.fuzz.harness import assert_manners, invoke


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """A folder with `text.jsonl`, `rows.jsonl`, `counts.duckdb`, `slices` (scored and compared),
    `profile`, `evals` and `mqar`."""
    return make(tmp_path_factory.mktemp("fuzz") / "made")


def make(folder: Path) -> Path:
    """Makes it all in `folder`, in two seconds or so."""
    folder.mkdir()
    text = write_jsonl(folder / "text.jsonl", made_up_texts(12, 60, seed=5), "books")
    rows = [
        {"doc_id": str(i), "text": f"key{i} : value{i} . key{i} :", "value": f"value{i}"}
        for i in range(3)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    counts, slices = folder / "counts.duckdb", folder / "slices"
    for command in (
        ("count", text, "-o", counts, "--export", folder / "bigrams.parquet"),
        ("slice", text, "--counts", counts, "-o", slices, "--seq-len", 32),
        ("gap", "control:recall", "control:bigram", "--slices", slices),
        ("profile", "--slices", slices, "-o", folder / "profile"),
        (
            "eval-recall",
            "control:copy",
            "control:unigram",
            "--data",
            folder / "rows.jsonl",
            "--counts",
            counts,
            "-o",
            folder / "evals",
        ),
        (
            "mqar",
            "control:recall",
            "--counts",
            counts,
            "-o",
            folder / "mqar",
            "--pairs",
            4,
            "--samples",
            2,
            "--seq-len",
            32,
        ),
    ):
        assert assert_manners(invoke(*command)).status == 0, command
    return folder
