"""The runs of `train-mqar` on a machine with torch and little else, from which the command makes the tables elsewhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

import recallkit
from recallkit.options import SweepOptions
from recallkit.training.jobs import read_run
from recallkit.training.presets import jobs_of
from tests.examples.conftest import EXAMPLES

SMALL = {"mixers": ["attention", "mamba"], "widths": [8], "steps": 2, "examples": 300, "test_examples": 10, "learning_rates": [0.01]}
ARGUMENTS = "--mixers attention mamba --widths 8 --steps 2 --examples 300 --test-examples 10 --learning-rates 0.01 --device cpu".split()
BARE = """
import sys
for name in ("altair", "vl_convert", "polars", "duckdb", "pyarrow", "typer", "rich", "orjson", "zstandard", "numba", "datasets", "lm_eval"):
    sys.modules[name] = None
sys.argv = {arguments!r}
import runpy
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_machine_with_torch_and_little_else_trains_its_share_and_the_command_finds_the_runs(tmp_path, monkeypatch):
    jobs = jobs_of("cpu", SweepOptions(**SMALL))
    for more, done in ((["--share", "2/2"], [False, True, False]), ([], [True, True, True])):
        arguments = [str(EXAMPLES / "05_train_mqar.py"), *ARGUMENTS, "--out", str(tmp_path), *more]
        ran = subprocess.run([sys.executable, "-c", BARE.format(arguments=arguments)], cwd=EXAMPLES.parent, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert [read_run(job, tmp_path) is not None for job in jobs] == done
    assert "[1/3] attention, width 8" in ran.stderr
    monkeypatch.setattr("recallkit.training.loop.train", None)  # nothing is trained
    tables = recallkit.train_mqar(**SMALL, out=tmp_path, device="cpu")
    assert tables.tradeoff["model"].to_list() == ["attention", "mamba", "mamba"]


def test_mistakes_are_one_line(load, monkeypatch, tmp_path):
    for more, said in ((["--share", "3/2"], "--share"), (["--device", "nowhere"], "no such device")):
        monkeypatch.setattr("sys.argv", ["example.py", *ARGUMENTS, "--out", str(tmp_path), *more])
        with pytest.raises(SystemExit, match=said) as refused:
            load("05_train_mqar").main()
        assert "\n" not in refused.value.code
