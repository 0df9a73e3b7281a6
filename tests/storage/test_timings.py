"""Timings: seconds of a clock that runs forward, amounts, what is kept of earlier runs, and what is
never touched by them."""

from __future__ import annotations

import json
import time

import pytest

from recallkit import attribution, profiling, scoring, slicing
from recallkit.display.cells import duration, timings_lines
from recallkit.options import TextOptions
from recallkit.storage import parquet_files
from recallkit.storage.timings import Stage, Timings, read_timings


def test_stages_have_seconds_amounts_and_rates_and_one_that_fails_is_not_kept():
    timings = Timings()
    with timings.stage("tokenising") as stage:
        time.sleep(0.05)
        stage.amounts.update(tokens=100, bytes=400)
    with pytest.raises(ValueError), timings.stage("x"):
        raise ValueError
    found = timings.to_json()
    assert (list(found["stages"]), found["resumed"]) == (["tokenising"], False)
    first = found["stages"]["tokenising"]
    assert 0.05 <= first["seconds"] == found["seconds"] < 5
    assert first["tokens_per_second"] == pytest.approx(100 / first["seconds"])
    assert first["bytes_per_second"] == pytest.approx(4 * first["tokens_per_second"])
    with timings.stage("scoring", resumed=True):
        pass
    assert timings.to_json()["resumed"] is timings.to_json()["stages"]["scoring"]["resumed"] is True


def test_a_damaged_manifest_has_no_timings(tmp_path):
    path = tmp_path / "manifest.json"
    assert read_timings(path) is None
    for content in ("", "[1]", '{"timings": 3}', '{"timings": {"seconds": 1}}'):
        path.write_text(content)
        assert read_timings(path) is None


def test_durations_are_as_people_say_them():
    shown = {
        0.0123: "0.01 s",
        12.34: "12.3 s",
        59.96: "1 min 0 s",
        754.0: "12 min 34 s",
        3599.7: "1 h 0 min",
        7500.0: "2 h 5 min",
    }
    assert {seconds: duration(seconds) for seconds in shown} == shown


def test_a_line_says_what_took_how_long():
    stages = {
        "tokenising": Stage(seconds=10.0, amounts={"tokens": 12_000_000}),
        "labelling": Stage(True, 2.0),
    }
    timings = {
        "seconds": 12.0,
        "resumed": True,
        "stages": {name: stage.to_json() for name, stage in stages.items()},
    }
    assert timings_lines(timings, "sliced") == [
        (
            "Took 12.0 s: tokenising 10.0 s (1.2M tokens/s), labelling 2.0 s; the time of an "
            "interrupted run is not included."
        )
    ]


# -------------------------------------------------------------------------------------- of commands


def test_no_footer_holds_timings(tmp_path, small_slices):
    text = TextOptions([str(small_slices.parent / "valid.jsonl")], "validation")
    slicing.slice_text(
        text,
        tmp_path / "s",
        counts=small_slices.parent / "counts.duckdb",
        rare=slicing.RareCount(20),
        seq_len=64,
    )
    profiling.profile_slices(tmp_path / "s", tmp_path / "p")
    attribution.gap("control:recall", ["control:bigram"], tmp_path / "s", tmp_path / "g")
    for path in tmp_path.rglob("*.parquet"):
        assert "timings" not in json.dumps(parquet_files.read_manifest(path)), path
    assert {path.name for path in (tmp_path / "s" / "scores").iterdir()} == {
        f"{scoring.score_path(tmp_path, name).stem}{end}"
        for name in ("control:recall", "control:bigram")
        for end in (".parquet", ".json")
    }
    for folder, stages in (
        ("s", ["slicing", "labelling"]),
        ("p", ["profiling"]),
        ("g", ["attributing"]),
    ):
        found = read_timings(tmp_path / folder / "manifest.json")
        assert list(found["stages"]) == stages
        assert found["seconds"] > 0
    timings = scoring.score_timings(tmp_path / "s", "control:recall")
    assert (
        timings["stages"]["scoring"]["tokens"]
        == parquet_files.read_manifest(tmp_path / "s" / "tokens.parquet")["num_rows"]
    )
