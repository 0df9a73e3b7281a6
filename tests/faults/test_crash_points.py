"""Killed at each place where the names of files change: before a rename, a link, a removal or an fsync, then run again.

A process ends itself there at once, as by SIGKILL: no block is left, no buffer written. Whatever the place, what is visible is whole
and fits together, and the same command makes the same bytes and leaves nothing behind.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from recallkit.verification.run import verify
from tests.faults.conftest import commit_often, made_of
from tests.faults.dying import DEAD, die_at

COMMANDS: dict[str, list[object]] = {
    "count": ["--limit-tokens", 20_000],
    "slice": [],
    "slice again": ["--force", "--max-count", 7],
    "profile": ["--boundary", "document"],
    "score": ["--batch-tokens", 64],
    "gap": [],
    "mqar": [],
}


@pytest.fixture(scope="module")
def counts(start: Callable[..., BaseProcess], text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("counts") / "counts.duckdb"
    process = start("count", text, "-o", path)
    process.join(120)
    assert process.exitcode == 0, process.err.read_text()
    return path


@pytest.fixture
def run(
    start: Callable[..., BaseProcess], command: Callable[[str, Path], list[object]], counts: Path, tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    """Runs a command in a folder until it dies at a point (-1: never) -> its exit status, and what it tallied."""

    def call(name: str, folder: Path, number: int) -> tuple[int, str]:
        arguments = [*command(name.removesuffix(" again"), folder), *COMMANDS[name]]
        if name == "slice again":
            arguments += ["--counts", counts]
        tally = tmp_path / "tally"
        process = start(*arguments, prepared=partial(die_at, number, folder, tally))
        process.join(120)
        assert process.exitcode in (0, DEAD), process.err.read_text() or tally.read_text()
        return process.exitcode, tally.read_text()

    return call


def fresh(folder: Path, name: str, before: Path | None) -> Path:
    """A folder for a command: empty, or with what it replaces."""
    shutil.rmtree(folder, ignore_errors=True)
    if before is None:
        folder.mkdir()
    else:
        shutil.copytree(before, folder)
    return folder


@pytest.fixture
def check(run, start, command, counts, tmp_path) -> Callable[..., int]:
    """Kills a command at each of the points chosen from all -> how many were tried."""

    def call(name: str, choose: Callable[[int], range]) -> int:
        before = None
        if name == "slice again":
            before = tmp_path / "before"
            process = start(*command("slice", before), "--counts", counts, "--max-count", 3, prepared=commit_often)
            process.join(120)
            assert process.exitcode == 0, process.err.read_text()
        whole = fresh(tmp_path / "folder", name, before)
        status, tally = run(name, whole, -1)
        assert status == 0
        wanted = made_of(whole)
        points = choose(int(tally))
        for number in points:
            folder = fresh(tmp_path / "folder", name, before)
            assert run(name, folder, number)[0] == DEAD, f"point {number} was not met"
            assert not [f for f in verify(folder).findings if f.is_error], f"killed at point {number}"
            assert run(name, folder, -1)[0] == 0
            assert made_of(folder) == wanted, f"killed at point {number}"
            found = verify(folder)
            assert not found.findings, f"killed at point {number}"
            assert found.num_files
        return len(points)

    return call


@pytest.mark.parametrize(("name", "share"), [("count", 0.6), ("slice again", 0.9), ("gap", 0.8)])
def test_killed_once(check, name, share):
    assert check(name, lambda total: range(int(total * share), int(total * share) + 1)) == 1


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_every_point(check, name):
    assert check(name, range) > 3
