"""A disk that fills while a command writes: one line, nothing half, and the same bytes once there
is room."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from recallkit.counting.bigram_kernels import BigramRun
from recallkit.counting.sorted_runs import RunFiles
from tests.faults.conftest import left_over, made_of, visible


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Gives a folder a size in kilobytes, or another one."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(kilobytes: int) -> Path:
        change = "remount," if place.is_mount() else ""
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"{change}size={kilobytes}k", "tmpfs", str(place)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"this machine lets no test mount a small disk: {done.stderr.strip()}")
        return place

    yield mount
    if place.is_mount():
        subprocess.run(["umount", "-l", str(place)], check=True)


def kilobytes_of(folder: Path) -> int:
    """Of a file system's pages."""
    return sum(-(-path.stat().st_size // 4096) * 4 for path in folder.rglob("*") if path.is_file())


_NAMES = ["count", "slice", "profile", "score", "gap", "report", "eval-recall", "mqar"]
_SLOW = [
    pytest.param(name, share, marks=pytest.mark.slow) for name in _NAMES for share in (0.05, 0.5)
]


@pytest.mark.parametrize(("name", "share"), [("slice", 0.6), *_SLOW])
def test_a_full_disk_is_one_line_and_the_command_goes_on(run, disk, command, tmp_path, name, share):
    whole = tmp_path / "whole"
    whole.mkdir()
    arguments = command(name, whole)
    before = kilobytes_of(whole)
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    expected = made_of(whole)
    small = disk(1 << 16)
    arguments = command(name, small)
    disk(before + 8 + int(share * (kilobytes_of(whole) - before)))
    done = run(*arguments)
    assert done.returncode == 1, done.stderr
    lines = done.stderr.splitlines()
    assert "no space left on the disk" in lines[-1]
    assert "free some" in lines[-1]
    assert "Traceback" not in done.stderr
    assert {
        made: content for made, content in made_of(small).items() if expected.get(made) != content
    } == {}
    assert not left_over(small)
    disk(1 << 16)
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert made_of(small) == expected
    assert not [path for path in visible(small) if path.endswith(".wal")]
    assert not list(small.rglob(".*"))


def test_a_disk_that_is_full_while_runs_are_merged_is_an_error_with_its_number(disk):
    files = RunFiles(disk(200), "tokens")
    keys = np.arange(10_000, dtype=np.uint64)
    run = files.load(files.add(BigramRun(keys, keys)))
    with pytest.raises(OSError, match="No space left") as raised:
        files.merge([run, run], num_threads=1)
    assert raised.value.errno == errno.ENOSPC
