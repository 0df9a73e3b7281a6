"""Commands interrupted, by Ctrl-C, SIGTERM and SIGKILL: one line, nothing half, and the same bytes
in the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.conftest import made_up_texts, write_jsonl
from tests.faults.conftest import has_committed, left_over, listens, made_of, visible

LINES = {signal.SIGINT: ("interrupted", 130), signal.SIGTERM: ("terminated", 143)}
GOES_ON = "the same command resumes from here"


def check_stopped(process: BaseProcess, number: signal.Signals) -> None:
    """One line of ours as the last, and the exit status that shells know; Python may report what
    fell into an import before."""
    word, status = LINES[number]
    err = process.err.read_text()
    assert process.exitcode == status, err
    assert err.splitlines()[-1] == f"recallkit: {word}; {GOES_ON}"
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("count", signal.SIGINT),
        *(
            pytest.param(name, signal.SIGTERM, marks=pytest.mark.slow)
            for name in ("slice", "profile")
        ),
    ],
)
def test_asked_to_end_a_command_keeps_its_work(listening, text, tmp_path, stage, number):
    def command(name: str) -> list[object]:
        more = (
            ["--limit-tokens", 30_000, "--export", tmp_path / name / "made.parquet"]
            if stage == "count"
            else ["--seq-len", 64]
        )
        return [stage, text, "-o", tmp_path / name / "made", *more]

    process = listening(*command("cut"))
    while not has_committed(tmp_path / "cut") and process.exitcode is None:
        time.sleep(0.005)
    assert process.exitcode is None, "it has ended before it was asked to"
    os.kill(process.pid, number)
    process.join(60)
    check_stopped(process, number)
    assert not visible(tmp_path / "cut")
    assert not left_over(tmp_path / "cut")
    assert has_committed(tmp_path / "cut")
    for name in ("whole", "cut"):
        process = listening(*command(name))
        process.join(120)
        assert process.exitcode == 0, process.err.read_text()
    assert made_of(tmp_path / "cut") == made_of(tmp_path / "whole")
    assert not list((tmp_path / "cut").rglob(".*"))


def terminate_in_an_update() -> None:
    """SIGTERM as the weights of the sixth step are there, and before the step is counted."""
    from recallkit.training.loop import Trainer

    real, left = Trainer.update, [6]

    def update(self: Trainer, share: float) -> None:
        real(self, share)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    Trainer.update = update  # type: ignore[method-assign]


def test_training_that_is_asked_to_end_loses_no_step(start, command, tmp_path):
    for name, prepared in (("whole", None), ("cut", terminate_in_an_update)):
        (tmp_path / name).mkdir()
        process = start(*command("train", tmp_path / name), prepared=prepared)
        process.join(120)
    check_stopped(process, signal.SIGTERM)
    assert not left_over(tmp_path / "cut")
    process = start(*command("train", tmp_path / "cut"))
    process.join(120)
    assert process.exitcode == 0, process.err.read_text()
    assert "resuming after 6 steps" in process.err.read_text()
    assert made_of(tmp_path / "cut") == made_of(tmp_path / "whole")


def test_ctrl_c_is_heard_at_any_moment(home, tmp_path):
    """Also while modules are being imported, where an exception would be lost or leave the import
    lock taken."""
    shard = write_jsonl(tmp_path / "long.jsonl", made_up_texts(400, 400) * 20)
    command = [
        sys.executable,
        "-m",
        "recallkit",
        "count",
        str(shard),
        "-o",
        str(tmp_path / "c.duckdb"),
        "--force",
    ]
    for seconds in (0.0, 0.3):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while not listens(process) and process.poll() is None:
            time.sleep(0.01)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        # Python itself reports an interrupt that fell into an import before ours is heard.
        assert err.splitlines()[-1] == f"recallkit: interrupted; {GOES_ON}"


def test_workers_leave_the_end_to_their_parent(listening, tiny_model, small_slices, tmp_path):
    """A batch system sends SIGTERM to all processes of a job: none of them dies on its own and is
    replaced."""
    shutil.copytree(
        small_slices, tmp_path / "slices", ignore=shutil.ignore_patterns("scores", "gap")
    )
    process = listening(
        "score",
        tiny_model("llama"),
        "--device",
        "cpu",
        "--workers",
        2,
        "--slices",
        tmp_path / "slices",
    )
    while len(workers := listening_workers(process.pid)) < 2 and process.exitcode is None:
        time.sleep(0.01)
    assert process.exitcode is None, process.err.read_text()
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.3)
    assert listening_workers(process.pid) == workers
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    check_stopped(process, signal.SIGTERM)
    assert "died" not in process.err.read_text()
    for pid in workers:
        assert not Path(f"/proc/{pid}").exists()


def listening_workers(parent: int) -> set[int]:
    """The processes that scored or counted for `parent`."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            of = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if of == parent and b"spawn_main" in (place / "cmdline").read_bytes():
                found.add(int(place.name))
        except OSError:
            continue
    return found
