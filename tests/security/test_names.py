"""Names that are paths, or nothing that a file can be called: a file name of ours stays in its
folder, and mistakes are one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from recallkit import mqar, recall, scoring
from recallkit.recall import stock_tasks
from recallkit.storage.hashing import file_slug
from recallkit.storage.result import folder_of

NAMES = [
    "../../x", "/etc/passwd", "..", ".", "..%2f..%2fx", "a/../../b", "~", "~root/x", "zoo:../x", "control:../x", "x" * 300, "CON",
    "nul.txt", "a\\..\\b", "C:\\x", "a\nb", "\x1b[31m", "-rf", " ", "é" * 200, "\u202etxt", "hazyresearch/../x", "model.py:../f",
    "$(id)", "`id`", "a;b", "*",
]  # fmt: skip


def test_a_file_name_stays_in_its_folder(tmp_path):
    for name in (*NAMES, "nul\x00byte", ""):
        slug = file_slug(name)
        assert slug == Path(slug).name
        assert slug not in ("", ".", "..")
        assert len(slug) <= 80
        assert set(slug) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
        assert not slug.startswith(("-", "."))
        places = [
            scoring.score_path(tmp_path, name),
            stock_tasks.metrics_path(tmp_path, name, name),
            mqar.files_of(tmp_path, name, 64, 8).queries,
            recall.documents_path(tmp_path, name, "swde-v0"),
            folder_of(tmp_path, [name], {"models": [name]}),
            folder_of(tmp_path, [name, "vs", name], {}),
        ]
        assert all(tmp_path in place.resolve().parents for place in places)


def test_different_names_have_different_files():
    names = [*NAMES, "a/b", "a-b", "a b", "a:b", "A-B", "x" * 299 + "y"]
    assert len({file_slug(name) for name in names}) == len(names)


CASES = [
    ("score", "../../x"),
    ("score", "zoo:../x"),
    ("gap", "/etc/passwd"),
    ("eval-recall", "x" * 300),
    ("mqar", "a\x1b[31m/b"),
]


@pytest.mark.parametrize(("command", "name"), CASES)
def test_a_model_of_such_a_name_is_one_line(
    run, small_slices, tmp_path, command, name, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    where = ["--slices", small_slices] if command in ("score", "gap") else ["-o", tmp_path / "out"]
    models = ["control:bigram", name] if command == "gap" else [name]
    before = sorted(
        path for path in small_slices.rglob("*") if path.is_file() and "control" not in str(path)
    )
    done = run(command, *models, *where)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("recallkit: ")
    assert (
        sorted(
            path
            for path in small_slices.rglob("*")
            if path.is_file() and "control" not in str(path)
        )
        == before
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("option", ["--data", "--tasks", "--lm-eval-task"])
def test_data_and_tasks_of_such_names_are_one_line(run, tmp_path, option, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = run("eval-recall", "control:copy", option, "../../etc/x\x1b[31m", "-o", tmp_path / "out")
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
