"""Commands interrupted, by Ctrl-C, SIGTERM and SIGKILL: one line, nothing half, and the same bytes in the end."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from recallkit import attribution
from tests.conftest import made_up_texts, write_jsonl
from tests.faults.conftest import has_committed, left_over, listens, made_of, visible

LINES = {signal.SIGINT: ("interrupted", 130), signal.SIGTERM: ("terminated", 143)}
GOES_ON = "the same command resumes from here"


def check_stopped(process: BaseProcess, number: signal.Signals) -> None:
    """One line of ours as the last, and the exit status that shells know; Python may report what fell into an import before."""
    word, status = LINES[number]
    err = process.err.read_text()
    assert process.exitcode == status, err
    assert err.splitlines()[-1] == f"recallkit: {word}; {GOES_ON}"
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("stage", "number"),
    [("count", signal.SIGINT), *(pytest.param(name, signal.SIGTERM, marks=pytest.mark.slow) for name in ("slice", "profile"))],
)
def test_asked_to_end_a_command_keeps_its_work(listening, text, tmp_path, stage, number):
    def command(name: str) -> list[object]:
        more = ["--limit-tokens", 30_000, "--export", tmp_path / name / "made.parquet"] if stage == "count" else ["--seq-len", 64]
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


INTERRUPTED_AGAIN = """
import atexit, os, signal, sys
from recallkit import cli

number, again = signal.Signals(int(sys.argv[1])), sys.argv[2]

def interrupt():
    os.kill(os.getpid(), number)

class Stderr:
    def write(self, text):
        sys.__stderr__.write(text)
        interrupt()
    def flush(self):
        sys.__stderr__.flush()

def app(**_):
    if again == "line":
        sys.stderr = Stderr()
    else:
        atexit.register(interrupt)
    interrupt()

cli.app = app
cli.run(sys.argv[3:])
"""


@pytest.mark.parametrize(("number", "again"), [(signal.SIGINT, "line"), (signal.SIGTERM, "exit")])
def test_a_second_interrupt_changes_neither_line_nor_status(number, again):
    """One that arrives when the command has ended: while the line is written, while the interpreter ends."""
    command = [sys.executable, "-c", INTERRUPTED_AGAIN, str(int(number)), again, "gap"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    word, status = LINES[number]
    assert (done.returncode, done.stderr) == (status, f"recallkit: {word}; {GOES_ON}\n")


def test_an_interrupted_command_says_so_in_an_event():
    command = [sys.executable, "-c", INTERRUPTED_AGAIN, str(int(signal.SIGINT)), "exit", "gap", "--log-json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 130
    last = json.loads(done.stderr.splitlines()[-1])
    assert (last["event"], last["level"], last["status"]) == ("interrupted", "warning", 130)


def test_ctrl_c_is_heard_at_any_moment(home, tmp_path):
    """Also while modules are being imported, where an exception would be lost or leave the import lock taken."""
    shard = write_jsonl(tmp_path / "long.jsonl", made_up_texts(400, 400) * 20)
    command = [sys.executable, "-m", "recallkit", "count", str(shard), "-o", str(tmp_path / "c.duckdb"), "--force"]
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
    """A batch system sends SIGTERM to all processes of a job: none of them dies on its own and is replaced."""
    shutil.copytree(small_slices, tmp_path / "slices", ignore=shutil.ignore_patterns("scores", "gap"))
    process = listening("score", tiny_model("llama"), "--device", "cpu", "--workers", 2, "--slices", tmp_path / "slices")
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


@dataclass(frozen=True, slots=True)
class Stage:
    """A command that makes `out`, interrupted so many times; `results` are folders that it fills."""

    name: str
    times: int
    arguments: Callable[[Path], list[object]]
    prepare: Callable[[Path], None] = lambda folder: None


@pytest.fixture(scope="session")
def stages(text, small_slices, tiny_model, tmp_path_factory) -> list[Stage]:
    """Every command that writes, the interruptions of all of them 100."""
    rows = [{"doc_id": str(i), "key": "of", "value": "the", "text": f"{text} of:"} for i, text in enumerate(made_up_texts(12, 80, seed=7))]
    given = tmp_path_factory.mktemp("given")
    (given / "fda.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (given / "foreign.csv").write_text("first,second,count\n" + "".join(f"{i},{j},{i + j + 1}\n" for i in range(200) for j in range(200)))
    models = ("control:recall", "control:bigram", "control:unigram")
    compared = given / "compared"
    attribution.gap(models[0], models[1:], small_slices, compared)
    model = tiny_model("gpt_neox")

    def count(*options: object) -> Callable[[Path], list[object]]:
        return lambda folder: ["count", text, "-o", folder / "c.duckdb", "--export", folder / "c.parquet", *options]

    def copy_slices(folder: Path) -> None:
        shutil.copytree(small_slices, folder / "slices", ignore=shutil.ignore_patterns("scores", "gap"))

    def score(*options: object) -> Callable[[Path], list[object]]:
        return lambda folder: ["score", model, "--device", "cpu", "--batch-tokens", 512, "--slices", folder / "slices", *options]

    return [
        Stage("count", 10, count()),
        Stage("count by two", 6, count("--workers", 2)),
        Stage("count some", 8, count("--limit-tokens", 20_000)),
        Stage("import", 6, lambda folder: ["count", "--import", given / "foreign.csv", "-o", folder / "c.duckdb"]),
        Stage("slice", 14, lambda folder: ["slice", text, "-o", folder / "s", "--seq-len", 64]),
        Stage("profile", 14, lambda folder: ["profile", text, "-o", folder / "p", "--seq-len", 64]),
        Stage("score", 10, score(), copy_slices),
        Stage("score by two", 4, score("--workers", 2), copy_slices),
        Stage("gap", 8, lambda folder: ["gap", *models, "--slices", folder / "slices", "-o", folder / "gap"], copy_slices),
        Stage(
            "eval-recall",
            4,
            lambda folder: ["eval-recall", model, "--device", "cpu", "--tasks", "fda", "--data", given, "--batch-size", 2, "-o", folder],
        ),
        Stage(
            "mqar",
            4,
            lambda folder: ["mqar", model, "--device", "cpu", "--seq-len", 32, "--pairs", "4", "--samples", 16, "-o", folder / "m"],
        ),
        Stage("report", 2, lambda folder: ["report", compared, "-o", folder / "r.html"]),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("place", range(13))
def test_a_hundred_interruptions(listening, stages, tmp_path, place):
    assert sum(stage.times for stage in stages) == 100
    stage, rng = stages[place], random.Random(place)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
        stage.prepare(folder)
    process, begun = listening(*stage.arguments(whole)), time.monotonic()
    process.join(240)
    assert process.exitcode == 0, process.err.read_text()
    seconds, interrupted, expected = time.monotonic() - begun, 0, made_of(whole)
    numbers = rng.sample([signal.SIGTERM, signal.SIGINT, signal.SIGKILL], 3)
    for _ in range(6 * stage.times):
        if interrupted == stage.times:
            break
        number = numbers[interrupted % 3]
        process = listening(*stage.arguments(cut))
        process.join(rng.uniform(0.0, 1.0) * seconds)
        if process.exitcode is None and listens(process):
            os.kill(process.pid, number)
            process.join(60)
            interrupted += check_whatever(process, number, cut, expected)
        process.join(240)
        if process.exitcode == 0:  # it was faster: from nothing again
            assert made_of(cut) == expected
            shutil.rmtree(cut)
            cut.mkdir()
            stage.prepare(cut)
    assert interrupted == stage.times
    process = listening(*stage.arguments(cut))
    process.join(240)
    assert process.exitcode == 0, process.err.read_text()
    assert made_of(cut) == expected
    assert not list(cut.rglob(".*"))


def check_whatever(process: BaseProcess, number: signal.Signals, folder: Path, expected: dict[str, object]) -> bool:
    """Checks what an interruption left; whether it was one: a process that was ending anyway may end as it likes."""
    assert process.exitcode is not None, "it goes on for a minute after it was asked to end"
    made = made_of(folder)
    assert {name: content for name, content in made.items() if expected.get(name) != content} == {}
    if made == expected:
        return process.exitcode != 0
    if number == signal.SIGKILL:
        assert process.exitcode == -number
    elif process.exitcode:
        check_stopped(process, number)
        assert not [path for path in left_over(folder) if f".{process.pid}." in path.name]  # one killed before may have left some
    return process.exitcode != 0
