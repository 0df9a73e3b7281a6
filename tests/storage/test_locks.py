"""Waiting for another process: a line with its number after a while, and the work goes on when the lock is free."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recallkit import config
from recallkit.errors import UserError
from recallkit.storage import artifacts, locks
from recallkit.storage.journal import Journal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the number of a lock's holder is known on Linux alone")

HOLD = (
    "import fcntl, os, sys; lock = os.open(sys.argv[1], os.O_RDONLY); fcntl.flock(lock, fcntl.LOCK_EX); print('held', flush=True); input()"
)


@pytest.fixture
def hold() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Starts a process that locks a file or folder until a line is written to it."""
    started: list[subprocess.Popen[str]] = []

    def call(path: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate()


def release_when(process: subprocess.Popen[str], is_time: Callable[[], bool]) -> int:
    """Lets the process go on and release its lock once `is_time`, in a process of its own; returns that one's number."""
    other = os.fork()
    if other == 0:
        end = time.monotonic() + 20
        while not is_time() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        os._exit(0)
    return other


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_folder_that_is_locked_is_waited_for_with_a_word(hold, tmp_path, monkeypatch, capfd, is_stopped):
    monkeypatch.setattr(config, "SECONDS_BEFORE_NOTICE", 0.2)
    process = hold(tmp_path)
    if is_stopped:
        process.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    other = release_when(process, lambda: time.monotonic() > begun + 1)
    with artifacts.holding(tmp_path):
        waited = time.monotonic() - begun
    os.waitpid(other, 0)
    how = f" (it is stopped: `kill -CONT {process.pid}` lets it go on)" if is_stopped else ""
    assert capfd.readouterr().err == f"recallkit: {tmp_path}: waiting for process {process.pid}{how}, which has locked it\n"
    assert 0.9 < waited < 15


def test_a_short_wait_is_not_mentioned(hold, tmp_path, capfd):
    process = hold(tmp_path)
    begun = time.monotonic()
    other = release_when(process, lambda: time.monotonic() > begun + 0.3)
    with artifacts.holding(tmp_path):
        pass
    os.waitpid(other, 0)
    assert capfd.readouterr().err == ""
    assert config.SECONDS_BEFORE_NOTICE == 30


def test_unfinished_work_that_is_waited_for(hold, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(config, "SECONDS_BEFORE_NOTICE", 0.2)
    target = tmp_path / "out"
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "lock").touch()
    process = hold(tmp_path / ".out.partial" / "lock")
    with pytest.raises(UserError, match=re.escape(f"is writing this (process {process.pid})")), Journal(target, {}):
        pass
    begun = time.monotonic()
    other = release_when(process, lambda: time.monotonic() > begun + 1)
    with Journal(target, {}, patient=True):
        pass
    os.waitpid(other, 0)
    assert f"{target}: waiting for process {process.pid}, which has locked it" in capfd.readouterr().err


def test_the_holder_of_a_lock_is_another_process(hold, tmp_path):
    mine = os.open(tmp_path, os.O_RDONLY)
    assert locks.holder(mine) is None
    fcntl.flock(mine, fcntl.LOCK_SH)
    assert locks.holder(mine) is None
    fcntl.flock(mine, fcntl.LOCK_UN)
    process = hold(tmp_path)
    assert locks.holder(mine) == process.pid
    os.close(mine)
