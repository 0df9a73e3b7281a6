"""Folders in which nothing can be made: one line that names the place, and nothing written; a cache
folder is needed by defaults alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.faults.conftest import visible

NOWHERE = "/proc/none"
"""In /proc nobody makes a folder, root neither."""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs /proc, a folder in which none can be made"
)


def assert_refused(done: object) -> None:
    assert done.returncode == 1, done.stderr
    [line] = [
        line
        for line in done.stderr.splitlines()
        if "no tokenizer beside it" not in line and "no --tokenizer" not in line
    ]
    assert line.startswith(f"recallkit: {NOWHERE}")
    assert "No such file or directory" in line


@pytest.mark.parametrize(
    "name", ["count", "slice", "profile", "gap", "report", "eval-recall", "mqar"]
)
def test_a_folder_that_may_not_be_written_is_one_line(
    run: Run, command: Callable[..., list[object]], tmp_path: Path, name: str
) -> None:
    words = command(name, tmp_path)
    before = visible(tmp_path)
    words[words.index("-o") + 1] = f"{NOWHERE}/out"
    assert_refused(run(*words))
    assert {path for path in visible(tmp_path) if "scores" not in path} == set(before)


@pytest.mark.parametrize("name", ["count", "slice", "score", "gap"])
def test_so_it_is_for_the_cache_folder_of_what_is_built_in(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECALLKIT_HOME", NOWHERE)
    assert_refused(run(name))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["count", "slice", "mqar"])
def test_a_cache_folder_that_may_not_be_written_is_not_needed(
    run: Run,
    command: Callable[..., list[object]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    words = command(name, tmp_path)
    monkeypatch.setenv("RECALLKIT_HOME", NOWHERE)
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert NOWHERE not in done.stderr
