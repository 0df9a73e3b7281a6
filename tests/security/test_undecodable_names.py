"""Names that are not UTF-8, which Linux allows: a command works with them or says in one line which is not."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from recallkit import slicing
from recallkit.errors import UserError
from recallkit.storage import db
from recallkit.storage.ownership import DATABASE_MAGIC, is_ours
from recallkit.text.tokenizers import load_tokenizer

BAD = os.fsdecode(b"caf\xe9")
"""A name in Latin-1."""

COMMANDS = {
    "an output file": ("count", "text.jsonl", "-o", f"{BAD}.duckdb", "--tokenizer", "bytes"),
    "an input file": ("slice", f"{BAD}.jsonl", "-o", "slices", "--tokenizer", "bytes"),
    "a file in a folder": ("slice", "within", "-o", "slices", "--tokenizer", "bytes"),
    "an output folder": ("slice", "text.jsonl", "-o", BAD, "--tokenizer", "bytes"),
    "an input folder": ("score", "control:recall", "--slices", f"{BAD}-slices"),
    "results": ("report", f"{BAD}-slices"),
    "counts": ("slice", "text.jsonl", "-o", "slices", "--counts", f"{BAD}.duckdb"),
    "a tokenizer": ("count", "text.jsonl", "-o", "c.duckdb", "--tokenizer", f"{BAD}.json"),
    "a table of perplexities": ("published", f"{BAD}.csv"),
    "a table of counts": ("count", "--import", f"{BAD}.csv", "--training-tokens", "9", "-o", "c.duckdb"),
    "a model": ("score", f"{BAD}.py:model", "--slices", f"{BAD}-slices"),
    "a field": ("count", "text.jsonl", "-o", "c.duckdb", "--tokenizer", "bytes", "--text-field", BAD),
    "a folder to be read": ("verify", f"{BAD}-slices"),
}


@pytest.mark.parametrize("place", COMMANDS)
def test_they_are_read_or_told_in_one_line(run, small_slices, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "within").mkdir()
    (tmp_path / f"{BAD}.json").write_text(load_tokenizer(None).backend.to_str())
    (tmp_path / f"{BAD}.csv").write_text("model,all,ar,other\na,10,5,11\nb,12,9,12.5\n")
    shutil.copy(small_slices.parent / "counts.duckdb", tmp_path / f"{BAD}.duckdb")
    for name in ("text.jsonl", f"{BAD}.jsonl", f"within/{BAD}.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps({"text": "a b a b " * 20}) + "\n" for _ in range(4)))
    shutil.copytree(small_slices, tmp_path / f"{BAD}-slices")
    done = run(*COMMANDS[place])
    assert done.returncode in (0, 1), done.stderr
    assert "internal error" not in done.stderr
    if done.returncode:
        assert "caf\\udce9" in done.stderr.splitlines()[-1] or "caf\\xdce9" in done.stderr.splitlines()[-1]
        assert "; " in done.stderr.splitlines()[-1]
    assert not [path for path in tmp_path.rglob("*.part") if path.is_file()]


@pytest.mark.parametrize(
    "command", [("slice", "text.jsonl", "--counts", "counts.duckdb"), ("score", "control:recall", "--slices", "slices")]
)
def test_so_is_the_folder_that_a_command_runs_in(run, small_slices, tmp_path, monkeypatch, command):
    shutil.copytree(small_slices.parent, tmp_path / BAD)
    shutil.rmtree(tmp_path / BAD / "slices" / "scores", ignore_errors=True)  # which other tests may have made
    (tmp_path / BAD / "text.jsonl").write_text(json.dumps({"text": "a b a b " * 20}) + "\n")
    monkeypatch.chdir(tmp_path / BAD)
    done = run(*command)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(": a name with characters that are not text; rename it")


def fail_in_a_library() -> None:
    break_slicing(RuntimeError("std::bad_cast"))


def fail_at_half_a_pair() -> None:
    break_slicing(UnicodeEncodeError("utf-8", "text of a document: \ud83d", 20, 21, "surrogates not allowed"))


def break_slicing(error: Exception) -> None:
    """For a process that is started."""

    def broken(*_: object, **__: object) -> None:
        raise error

    slicing.slice_text = broken


@pytest.mark.parametrize("defect", [fail_in_a_library, fail_at_half_a_pair])
def test_a_defect_is_told_as_one_whatever_names_there_are(start, tmp_path, monkeypatch, defect):
    (tmp_path / BAD).mkdir()
    monkeypatch.chdir(tmp_path / BAD)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = start("slice", f"{BAD}.jsonl", "-o", BAD, prepared=defect)
    process.join(60)
    assert process.exitcode == 70, process.err.read_text()
    assert "internal error" in process.err.read_text()


def test_a_database_is_not_opened_at_such_a_path_nor_taken_for_another_program_s(small_slices, tmp_path):
    path = tmp_path / f"{BAD}.duckdb"
    shutil.copy(small_slices.parent / "counts.duckdb", path)
    for opening in (lambda: db.connect(path, read_only=True), lambda: is_ours(path, DATABASE_MAGIC, at=8)):
        with pytest.raises(UserError, match="a name with characters that are not text; rename it"):
            opening()
