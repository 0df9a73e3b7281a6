"""`--log-json`: every line on stderr an event that any parser takes, from every process, whatever
the text holds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from recallkit import events
from recallkit.display import console
from recallkit.display.progress import progress
from tests.conftest import made_up_texts, write_jsonl

ALWAYS = ["time", "level", "event", "command", "pid", "message"]


def events_of(text: str) -> list[dict]:
    """Every line, by a strict parser: neither lone surrogates nor NaN pass."""
    found = [orjson.loads(line) for line in text.splitlines()]
    for event in found:
        assert list(event)[:6] == ALWAYS
        assert event["level"] in ("info", "warning", "error")
        assert event["message"].isprintable()
        at = datetime.fromisoformat(event["time"])
        assert at.tzinfo == UTC
        assert abs(time.time() - at.timestamp()) < 600
        assert len(event["time"]) == len("2026-01-01T00:00:00.000Z")
    return found


@pytest.fixture
def log(monkeypatch, capsys):
    """Events of this process: a function that gives those so far."""
    monkeypatch.setenv(events.VARIABLE, "1")
    monkeypatch.setenv("RECALLKIT_LOG_COMMAND", "test")
    return lambda: events_of(capsys.readouterr().err)


@pytest.fixture
def shard(tmp_path) -> Path:
    return write_jsonl(tmp_path / "t.jsonl", made_up_texts(30, 60))


HOSTILE = 'a\x1b[31m\x00\u202e\ud800\udcff\n"}\\ 界 \u2028'


def test_a_note_is_an_event_and_without_the_option_a_line(log, monkeypatch, capsys):
    console.note("going on", event="resumed", done=7, unit="tokens")
    [event] = log()
    assert {
        name: event[name] for name in ("event", "level", "command", "message", "done", "unit")
    } == {
        "event": "resumed",
        "level": "info",
        "command": "test",
        "message": "going on",
        "done": 7,
        "unit": "tokens",
    }
    monkeypatch.setenv(events.VARIABLE, "off")
    console.note("going on", event="resumed", done=7)
    assert capsys.readouterr().err == "recallkit: going on\n"


def test_any_text_and_number_can_stand_in_an_event(log):
    nested = {HOSTILE: [HOSTILE, (1, float("inf"))], "path": Path(HOSTILE)}
    console.note(
        HOSTILE, level="warning", where=HOSTILE, nan=float("nan"), nested=nested, large=2**80 > 0
    )
    [event] = log()
    assert "\\xd800" in event["message"]
    assert event["where"].startswith("a\x1b[31m\x00\u202e\\ud800\\udcff\n")
    assert event["nan"] is None
    assert event["nested"]["path"] == event["where"]
    [[key, values], _] = event["nested"].items()
    assert (key, values) == (event["where"], [event["where"], [1, None]])


def test_progress_is_told_now_and_then_with_rate_and_rest(log, monkeypatch):
    monkeypatch.setenv("RECALLKIT_LOG_SECONDS", "0.2")
    with progress("scoring x", total=1000, unit="tokens") as show:
        show(500)  # what an earlier run did
        for done in range(500, 600, 5):
            time.sleep(0.025)
            show(done)
    told = log()
    assert 1 <= len(told) <= 4, "20 updates in half a second"
    last = told[-1]
    assert (last["event"], last["task"], last["total"], last["unit"]) == (
        "progress",
        "scoring x",
        1000,
        "tokens",
    )
    assert 500 < last["done"] < 600
    assert 40 < last["rate"] <= 200, "without the 500 that were there: 5 every 25 ms, or slower"
    assert last["eta_seconds"] == pytest.approx((1000 - last["done"]) / last["rate"])


# --------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize("place", ["before", "variable"])
def test_the_option_may_stand_anywhere_and_an_error_is_one_event(
    run_apart, shard, tmp_path, monkeypatch, place
):
    command = ["count", shard, "-o", tmp_path, "--json"]
    if place == "variable":
        monkeypatch.setenv(events.VARIABLE, "1")
    done = run_apart(*(["--log-json"] if place == "before" else []), *command)
    assert (done.returncode, done.stdout) == (1, "")
    [error] = events_of(done.stderr)
    assert (error["event"], error["level"], error["command"], error["status"]) == (
        "error",
        "error",
        "count",
        1,
    )
    assert error["where"] == str(tmp_path)
    assert error["message"] == "; ".join(
        [
            f"{error['where']}: {error['problem']}",
            *([error["remedy"]] if error.get("remedy") else []),
        ]
    )


def test_stages_begin_and_end_with_seconds_and_amounts(run, shard, tmp_path):
    made = run("--log-json", "slice", shard, "-o", tmp_path / "s", "--json")
    done = run("--log-json", "slice", shard, "-o", tmp_path / "s", "--json", "--force")
    stages = [
        event
        for told in (made, done)
        for event in events_of(told.stderr)
        if event["event"] == "stage"
    ]
    assert [(event["stage"], event["state"]) for event in stages] == [
        (stage, state)
        for stage in ("slicing", "labelling", "labelling")
        for state in ("begin", "end")
    ]
    result = json.loads(done.stdout)
    for event in stages[1::2]:
        assert event["seconds"] > 0
        assert event["tokens"] == result["num_rows"]
        assert event["tokens_per_second"] == pytest.approx(result["num_rows"] / event["seconds"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nonsense"], "nonsense"),
        (["slice", "--max-count", "5", "--max-rate", "5"], "cannot be combined"),
        ([], "no command"),
    ],
)
def test_usage_errors_are_events(run, arguments, problem):
    done = run(*arguments, "--log-json")
    [event] = events_of(done.stderr)
    assert (done.returncode, event["event"], event["status"]) == (2, "error", 2)
    assert problem in event["problem"]
    assert event["remedy"]


def test_workers_tell_events_too(run, few_slices, tmp_path, monkeypatch):
    """The lines that a worker prints are whole, although `print` writes pieces and other writers
    share stderr."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    slices = shutil.copytree(few_slices, tmp_path / "slices")
    model = tmp_path / "chatty.py"
    model.write_text(
        "import os, sys, warnings, torch\n"
        "def load(request):\n"
        "    print('printed by', end=' ')\n"
        "    os.write(2, b'written past Python\\r\\x1b[31m\\xff\\n')\n"
        "    print('the model')\n"
        "    warnings.warn('of the model')\n"
        "    return lambda ids: torch.zeros(*ids.shape, 4096)\n"
    )
    command = [
        "score",
        f"{model}:load",
        "--slices",
        slices,
        "--device",
        "cpu",
        "--force",
        "--log-json",
    ]
    done = run(*command, "--workers", 2)
    assert done.returncode == 0, done.stderr
    told = events_of(done.stderr)
    outputs = {event["message"] for event in told if event["event"] == "output"}
    assert {"printed by the model", "written past Python", "\\x1b[31m\\xff"} <= outputs, sorted(
        outputs
    )
    assert any("of the model" in event["message"] for event in told)
    assert {event["command"] for event in told} == {"score"}


PROGRAM = """
import os, subprocess, sys
from recallkit import events; from recallkit.display import console
events.start("program")
os.write(2, b"first\\n")
print("second", file=sys.stderr)
subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('third')"])
sys.stderr.write("x" * 3_000_000)
console.note("a note")
import atexit
atexit.register(lambda: print("at the end", file=sys.stderr))
events.emit_error("last")
"""


def test_nothing_that_is_written_is_lost_and_the_error_comes_last():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    told = events_of(done.stderr)
    messages = [event["message"] for event in told]
    for text in ("first", "second", "a note", "at the end"):
        assert text in messages
    assert sum(message.count("x") for message in messages) == 3_000_000
    assert [event["event"] for event in told if event["message"] != "at the end"][-1] == "error"


LEAVING = """
import atexit, os, sys
from recallkit import __main__ as program, cli
run = cli.run
def run_and_register():
    try:
        run()
    finally:
        atexit.register(os.write, 2, b"at the end\\n")
        atexit.register(print, "the last line")
cli.run = run_and_register
sys.argv = ["recallkit", "--log-json", *sys.argv[1:]]
program.main()
"""


@pytest.mark.parametrize(("word", "status"), [("sources", 0), ("nothing", 2)])
def test_a_process_that_leaves_at_once_has_written_everything_and_has_its_status(word, status):
    command = [sys.executable, "-c", LEAVING, word]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert done.returncode == status
    assert "at the end" in [event["message"] for event in events_of(done.stderr)]
    assert done.stdout.endswith("the last line\n")
