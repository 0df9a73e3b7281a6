"""The example that follows a training run: at its smallest size it logs, and its checkpoints are
those that it logged."""

from __future__ import annotations

import runpy
import sys

import polars as pl

import recallkit
from tests.conftest import ROOT


def test_it_logs_every_step_and_its_checkpoints_score_alike(home, tmp_path, monkeypatch, capsys):
    sizes = (
        "--steps 2 --every 1 --checkpoint-every 1 --width 16 --rows 1 --lists 2 --documents 30 "
        "--sample-tokens 1500"
    ).split()
    monkeypatch.setattr(
        sys, "argv", ["08_track_training.py", "--out", str(tmp_path / "track"), *sizes]
    )
    runpy.run_path(str(ROOT / "examples" / "08_track_training.py"), run_name="__main__")
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "step 0",
        "step 1",
        "step 2",
    ]
    live = pl.read_parquet(tmp_path / "track" / "track.parquet")
    assert live["step"].to_list() == [0, 1, 2]
    assert live["nll"].n_unique() == 3
    again = recallkit.track(
        "zoo:rwkv",
        str(tmp_path / "track" / "checkpoint-*"),
        slices=tmp_path / "track" / "slices",
        out=tmp_path / "again",
        device="cpu",
    ).track
    assert again["step"].to_list() == [None, 0, 1]
    assert again["ar_nll"].to_list()[1:] == live["ar_nll"].to_list()[:2]
