"""Names that are not UTF-8, which Linux allows: a command works with them or says in one line which is not."""

from __future__ import annotations

import json
import os
import shutil

import pytest

BAD = os.fsdecode(b"caf\xe9")
"""A name in Latin-1."""

COMMANDS = {
    "an output file": ("count", "text.jsonl", "-o", f"{BAD}.duckdb", "--tokenizer", "bytes"),
    "an input file": ("slice", f"{BAD}.jsonl", "-o", "slices", "--tokenizer", "bytes"),
    "a file in a folder": ("slice", "within", "-o", "slices", "--tokenizer", "bytes"),
    "an output folder": ("slice", "text.jsonl", "-o", BAD, "--tokenizer", "bytes"),
    "an input folder": ("score", "control:recall", "--slices", f"{BAD}-slices"),
    "results": ("report", f"{BAD}-slices"),
}


@pytest.mark.parametrize("place", COMMANDS)
def test_they_are_read_or_told_in_one_line(run, small_slices, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "within").mkdir()
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
