"""A process that was stopped is waited for, but not without a word."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from recallkit import config
from recallkit.parallel.job import Done
from recallkit.parallel.processes import work_in_processes


@dataclass(frozen=True)
class Stopping:
    """Its first item stops the process that does it."""

    doing: str = "counting"
    where: str = "text.jsonl"
    remedy: str = ""
    prefers_gpu: bool = False
    max_items_per_task: int = 1

    def open(self, slot: object = None) -> Stopping:
        return self

    def run(self, items: Sequence[int]) -> Iterator[Done]:
        for item in items:
            if item == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            yield Done(1)


@pytest.mark.skipif(sys.platform != "linux", reason="a stopped process is known on Linux alone")
def test_a_stopped_worker_is_waited_for_with_a_word(monkeypatch, capfd):
    monkeypatch.setattr(config, "SECONDS_BEFORE_NOTICE", 0.3)
    said: list[str] = []

    def go_on() -> None:
        end = time.monotonic() + 30
        while not said and time.monotonic() < end:
            time.sleep(0.05)
            said.extend(line for line in capfd.readouterr().err.splitlines() if "waiting for" in line)
        time.sleep(0.8)  # long enough for a second line, which there must not be
        os.kill(int(said[0].partition("process, process ")[2].split()[0]), signal.SIGCONT)

    helper = threading.Thread(target=go_on)
    helper.start()
    done = list(work_in_processes(Stopping(), [0, 1, 2, 3], 2))
    helper.join()
    assert len(done) == 4
    process = said[0].partition("process, process ")[2].split()[0]
    assert said == [
        f"recallkit: text.jsonl: waiting for a counting process, process {process} (it is stopped: `kill -CONT {process}` lets it go on)"
    ]
    assert capfd.readouterr().err == ""
