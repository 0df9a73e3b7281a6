"""Killed at each place where the names of files change: before a rename, a link, a removal or an
fsync, then run again.

A process ends itself there at once, as by SIGKILL: no block is left, no buffer written. Whatever
the place, what is visible is whole and fits together, and the same command makes the same bytes and
leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from recallkit.verification.run import verify
from tests.conftest import made_up_texts, write_jsonl
from tests.faults.conftest import made_of
from tests.faults.dying import DEAD, NEVER, serve

_SLICE = "slice @text.jsonl --seq-len 32 --counts @counts.duckdb -o @out/s"

COMMANDS: dict[str, tuple[str, str]] = {
    "count": ("", "count @text.jsonl -o @out/c.duckdb --export @out/c.parquet"),
    "slice": ("", _SLICE),
    "slice again": (f"{_SLICE} --max-count 3", f"{_SLICE} --max-count 7 --force"),
    "profile": ("", "profile @text.jsonl --seq-len 32 --boundary document -o @out/p"),
    "score": (_SLICE, "score control:bigram --batch-tokens 256 --slices @out/s"),
    "gap": (_SLICE, "gap control:recall control:bigram --slices @out/s"),
    "gap again": (
        f"{_SLICE}; gap control:recall control:bigram --slices @out/s -o @out/gap",
        "gap control:recall control:bigram --slices @out/s -o @out/gap --cluster sequence --force",
    ),
    "mqar": (
        "",
        "mqar control:bigram --counts @counts.duckdb --seq-len 16 --pairs 2 --samples 4 -o @out/m",
    ),
}
"""What is there before, and the command that is killed."""


@pytest.fixture(scope="module")
def place(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("points")
    write_jsonl(folder / "text.jsonl", made_up_texts(60, 60, seed=5))
    return folder


@pytest.fixture(scope="module")
def run(warm: ForkServerContext, place: Path) -> Iterator[Callable[[str, int], tuple[int, str]]]:
    """Runs a command in a copy of a process that has imported everything, until it dies at a point
    -> exit status, what it tallied."""
    mine, its = warm.Pipe()
    server = warm.Process(target=serve, args=(its, place, dict(os.environ)))
    server.start()

    def call(command: str, number: int = NEVER) -> tuple[int, str]:
        mine.send((command.replace("@", f"{place}/").split(), number))
        assert mine.poll(120), "no answer"
        status, tally, err = mine.recv()
        assert status in (0, DEAD), f"{command}: {tally} {err}"
        return status, tally

    call("count @text.jsonl -o @counts.duckdb")
    yield call
    mine.send(None)
    server.join(10)


@pytest.fixture
def check(run: Callable[..., tuple[int, str]], place: Path) -> Callable[..., int]:
    """Kills a command at each of the points chosen from all -> how many were tried."""

    def call(name: str, choose: Callable[[int], range]) -> int:
        before, command = COMMANDS[name]
        out, kept = place / "out", place / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        for first in filter(None, before.split("; ")):
            run(first)
        out.rename(kept)

        def fresh() -> None:
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(kept, out)

        fresh()
        _, tally = run(command)
        wanted = made_of(out)
        points = choose(int(tally))
        for number in points:
            fresh()
            assert run(command, number)[0] == DEAD, f"point {number} was not met"
            # old members go before new ones come
            errors = [f for f in verify(out).findings if f.is_error and f.kind != "missing"]
            assert not errors, f"killed at point {number}"
            assert run(command)[0] == 0
            assert made_of(out) == wanted, f"killed at point {number}"
            found = verify(out)
            assert (found.findings, found.num_files > 0) == ([], True), f"killed at point {number}"
        return len(points)

    return call


@pytest.mark.parametrize(("name", "at"), [("slice again", 0.7), ("gap again", -8)])
def test_killed_once(check, name, at):
    """At a share of all points, or so many before the end: there the list is renamed already, and
    the members are being renamed."""

    def choose(total: int) -> range:
        point = total + at if at < 0 else int(total * at)
        return range(point, point + 1)

    assert check(name, choose) == 1


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_every_point(check, name):
    assert check(name, range) > 10
