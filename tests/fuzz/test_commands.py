"""What damage and names from data did to commands, found by fuzzing: each ends with a status and
one line that names it."""

from __future__ import annotations

import json
from pathlib import Path

from recallkit.storage.unfinished import MARK
from tests.fuzz.harness import assert_manners, assert_refused, invoke

DEEP = "[" * 100_000 + "]" * 100_000


def test_a_damaged_state_of_unfinished_work(small_slices: Path, tmp_path: Path) -> None:
    journal = tmp_path / ".new.duckdb.partial"
    journal.mkdir()
    command = ("count", small_slices.parent / "valid.jsonl", "-o", tmp_path / "new.duckdb")
    for state in (DEEP, "[]", '{"key": {}, "num_parts": 1, "state": {}}', "\x00"):
        (journal / MARK).write_text('{"files": ["state.json"]}')
        (journal / "state.json").write_text(state)
        assert_refused(invoke(*command), "state.json", "--force")
    assert assert_manners(invoke(*command, "--force")).status == 0


def test_deep_json_beside_a_model(small_slices: Path, tmp_path: Path) -> None:
    for file in ("tokenizer_config.json", "config.json", "tokenizer.json"):
        folder = tmp_path / file.partition(".")[0]
        folder.mkdir()
        (folder / "tokenizer.json").write_text((small_slices / "tokenizer.json").read_text())
        (folder / file).write_text(DEEP)
        command = (
            "count",
            small_slices.parent / "valid.jsonl",
            "--tokenizer",
            folder,
            "-o",
            tmp_path / "c.duckdb",
            "--limit-tokens",
            50,
            "--force",
        )
        assert assert_manners(invoke(*command)).status == 1


NAMES = [
    "'; DROP TABLE bigrams; --",
    "\x1b[31mred",
    "a\nb",
    "x" * 4_000,
    "\x00",
    "ALL",
    "",
    "\u202ertl",
    "{}",
    "$source",
    "a" * 200,
]


def test_sources_of_any_name(small_slices: Path, tmp_path: Path) -> None:
    text, slices = tmp_path / "names.jsonl", tmp_path / "slices"
    rows = [
        {"text": "the cat sat on the cat " * 3 + str(i), "meta": {"pile_set_name": name}}
        for i in range(3)
        for name in NAMES
    ]
    text.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for command in (
        (
            "slice",
            text,
            "--counts",
            small_slices.parent / "counts.duckdb",
            "-o",
            slices,
            "--seq-len",
            32,
        ),
        ("profile", "--slices", slices, "-o", tmp_path / "profile"),
        ("gap", "control:recall", "control:bigram", "--slices", slices),
        ("tokens", slices),
        ("report", slices),
    ):
        outcome = assert_manners(invoke(*command))
        assert outcome.status == 0, outcome.err
        assert "\x1b[31m" not in outcome.out
        assert len(outcome.out) < 20_000
