"""The runs of `train-mqar` on a machine with torch and little else, from which the command makes the tables elsewhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

import recallkit
from recallkit.training.jobs import read_run
from recallkit.training.presets import Choices, jobs_of
from tests.examples.conftest import EXAMPLES

SMALL = {"mixers": ["attention", "mamba"], "widths": [8], "steps": 2, "examples": 300, "test_examples": 10, "learning_rates": [0.01]}
ARGUMENTS = [
    "--mixers",
    "attention",
    "mamba",
    "--widths",
    8,
    "--steps",
    2,
    "--examples",
    300,
    "--test-examples",
    10,
    "--learning-rates",
    0.01,
]
BARE = """
import sys
for name in ("altair", "vl_convert", "polars", "duckdb", "pyarrow", "typer", "rich", "orjson", "zstandard", "numba", "datasets", "lm_eval"):
    sys.modules[name] = None
sys.argv = {arguments!r}
import runpy
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def example(load):
    return load("05_train_mqar")


def test_a_machine_with_torch_and_little_else_trains_and_the_command_finds_the_runs(tmp_path, monkeypatch):
    arguments = [str(EXAMPLES / "05_train_mqar.py"), *map(str, ARGUMENTS), "--device", "cpu", "--out", str(tmp_path)]
    program = BARE.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], cwd=EXAMPLES.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "[1/3] attention, width 8" in done.stderr
    monkeypatch.setattr("recallkit.training.loop.train", None)  # nothing is trained
    tables = recallkit.train_mqar(**SMALL, out=tmp_path, device="cpu")
    assert tables.tradeoff["model"].to_list() == ["attention", "mamba", "mamba"]


def test_shares_are_disjoint_and_a_stopped_sweep_resumes(example, monkeypatch, call_example, interrupted, tmp_path):
    jobs = jobs_of("cpu", Choices(**SMALL))
    call_example("--share", "2/2")
    assert [read_run(job, tmp_path) is not None for job in jobs] == [False, True, False]
    interrupted(3)
    with pytest.raises(SystemExit) as stopped:
        call_example("--share", "1/2")
    assert stopped.value.code == 130
    assert [read_run(job, tmp_path) is not None for job in jobs] == [True, True, False]
    interrupted(2)
    call_example()
    assert all(read_run(job, tmp_path) is not None for job in jobs)


@pytest.mark.parametrize(("arguments", "said"), [(("--share", "3/2"), "--share"), (("--device", "nowhere"), "no such device")])
def test_mistakes_are_one_line(call_example, arguments, said):
    with pytest.raises(SystemExit, match=said) as refused:
        call_example(*arguments)
    assert "\n" not in refused.value.code


@pytest.fixture
def call_example(example, monkeypatch, tmp_path):
    """Runs the small sweep's command line with further arguments."""

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["example.py", *map(str, ARGUMENTS), "--device", "cpu", "--out", str(tmp_path), *arguments])
        example.main()

    return call
