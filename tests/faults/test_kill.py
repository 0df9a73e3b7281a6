"""Killed for real: SIGKILL once a command has kept some of its work, again some time later, and the
same bytes in the end.

The commands run in processes of their own; only how often they commit is set, so that a run of
seconds has many moments to be killed between. The processes are warm ones: few of the moments are
spent on imports.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from recallkit.storage.journal import Journal
from tests.faults.conftest import commit_often, kept, made_of

COMMANDS = {
    "count": ["--limit-tokens", 30_000],
    "slice": [],
    "score": ["--batch-tokens", 64],
    "ablate": ["--batch-tokens", 64],
    "ablate heads": ["--batch-tokens", 64],
    "gap far": ["--batch-tokens", 1024],
    "track": ["--batch-tokens", 1024],
    "eval-recall": [],
    "mqar": [],
}
"""What keeps parts of its work, and options that are given too."""


def commit_often_and_slowly() -> None:
    """A moment passes after each commit, so that a busy machine has time to notice it before all is
    done."""
    commit_often()
    commit = Journal.commit

    def commit_and_wait(self: Journal, state: dict[str, Any]) -> None:
        commit(self, state)
        time.sleep(0.02)

    Journal.commit = commit_and_wait  # type: ignore[method-assign]


def amounts(folder: Path) -> dict[str, int]:
    """Tokens of the stages of every manifest whose timings are of the whole work."""
    found = {}
    for path in folder.rglob("manifest.json"):
        for name, stage in (
            json.loads(path.read_text()).get("timings", {"stages": {}})["stages"].items()
        ):
            found[f"{path.relative_to(folder)}: {name}"] = stage.get("tokens")
    return found


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("slice", "score") else pytest.param(name, marks=pytest.mark.slow)
        for name in COMMANDS
    ],
)
def test_what_is_killed_goes_on_to_the_same_bytes(
    start: Callable[..., BaseProcess],
    command: Callable[[str, Path], list[object]],
    tmp_path: Path,
    name: str,
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    arguments = {}
    for folder in (whole, cut):
        folder.mkdir()
        arguments[folder] = [*command(name, folder), *COMMANDS[name]]

    def end(folder: Path) -> str:
        process = start(*arguments[folder], prepared=commit_often_and_slowly)
        process.join(120)
        assert process.exitcode == 0, process.err.read_text()
        return process.err.read_text()

    end(whole)
    for _ in range(2):
        before, process = kept(cut), start(*arguments[cut], prepared=commit_often_and_slowly)
        deadline = time.monotonic() + 120
        while kept(cut) <= before and process.exitcode is None and time.monotonic() < deadline:
            time.sleep(0.002)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it has ended before it was killed"
        assert kept(cut)
    assert "resuming after" in end(cut)
    assert made_of(cut) == made_of(whole)
    assert amounts(cut) == amounts(whole)
    assert not list(cut.rglob(".*"))
