"""Timings: seconds of a clock that runs forward, amounts, what is kept of earlier runs, and what is never touched by them."""

from __future__ import annotations

import json
import time

import pytest

from recallkit import attribution, profiling, scoring, slicing
from recallkit.display.cells import duration, timings_lines
from recallkit.options import TextOptions
from recallkit.storage import artifacts
from recallkit.storage.journal import Journal
from recallkit.storage.timings import Stage, Timings, read_timings


def test_a_stage_has_seconds_amounts_and_rates():
    timings = Timings()
    with timings.stage("tokenising") as stage:
        time.sleep(0.05)
        stage.amounts.update(tokens=100, bytes=400)
    with timings.stage("labelling", before=2.0):
        pass
    found = timings.to_json()
    first, second = found["stages"].values()
    assert list(found["stages"]) == ["tokenising", "labelling"]
    assert 0.05 <= first["seconds"] < 5
    assert first["tokens_per_second"] == pytest.approx(100 / first["seconds"])
    assert first["bytes_per_second"] == pytest.approx(4 * first["tokens_per_second"])
    assert 2 <= second["seconds"] < 3
    assert found["seconds"] == pytest.approx(first["seconds"] + second["seconds"])
    assert found["resumed"] is False


def test_a_stage_that_fails_is_not_kept():
    timings = Timings()
    with pytest.raises(ValueError), timings.stage("x"):
        raise ValueError
    assert timings.to_json() == {"seconds": 0, "resumed": False, "stages": {}}


def test_what_is_not_known_is_said(tmp_path):
    timings = Timings()
    timings.keep("tokenising", tmp_path / "no manifest.json", "tokenising")
    assert timings.to_json()["resumed"] is True
    timings = Timings()
    with timings.stage("scoring", resumed=True):
        pass
    assert timings.to_json()["resumed"] is True
    assert timings.to_json()["stages"]["scoring"]["resumed"] is True


def test_a_damaged_manifest_has_no_timings(tmp_path):
    path = tmp_path / "manifest.json"
    assert read_timings(path) is None
    for content in ("", "[1]", '{"timings": 3}', '{"timings": {"seconds": "x", "stages": {}}}', '{"timings": {"seconds": 1}}'):
        path.write_text(content)
        assert read_timings(path) is None


def test_stages_that_are_none_are_left_out(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"id": 1, "timings": {"seconds": 1, "stages": {"a": {"seconds": 1}, "b": 2, "c": {"seconds": None}}}}))
    found = read_timings(path)
    assert found is not None
    assert found["stages"] == {"a": {"seconds": 1}}
    assert read_timings(path, id=1) == found
    assert read_timings(path, id=2) is None


def test_durations_are_as_people_say_them():
    shown = {0.0123: "0.01 s", 12.34: "12.3 s", 59.96: "1 min 0 s", 754.0: "12 min 34 s", 3599.7: "1 h 0 min", 7500.0: "2 h 5 min"}
    assert {seconds: duration(seconds) for seconds in shown} == shown


def test_a_line_says_what_took_how_long():
    timings = Timings()
    timings.add(Stage("tokenising", 10.0, amounts={"tokens": 12_000_000}))
    timings.add(Stage("labelling", 2.0, resumed=True))
    assert timings_lines(timings.to_json()) == [
        "Took 12.0 s: tokenising 10.0 s (1.2M tokens/s), labelling 2.0 s; what an interrupted run did is not in it."
    ]


# ---------------------------------------------------------------------------------------------------- of commands


def test_slices_keep_the_seconds_of_the_first_time_when_they_are_labelled_anew(tmp_path, small_slices):
    text = TextOptions([str(small_slices.parent / "valid.jsonl")], "validation")
    slicing.slice_text(text, tmp_path, counts=None, seq_len=64)
    first = read_timings(tmp_path / "manifest.json")
    slicing.slice_text(text, tmp_path, counts=small_slices.parent / "counts.duckdb", seq_len=64, force=True)
    again = read_timings(tmp_path / "manifest.json")
    assert first is not None
    assert again is not None
    assert list(first["stages"]) == ["slicing", "labelling"]
    assert list(again["stages"]) == ["slicing", "labelling"]
    assert again["stages"]["slicing"] == first["stages"]["slicing"]
    assert again["resumed"] is False
    (tmp_path / "manifest.json").write_text((tmp_path / "manifest.json").read_text()[:-20])
    slicing.slice_text(text, tmp_path, counts=None, seq_len=64, force=True)
    unknown = read_timings(tmp_path / "manifest.json")
    assert unknown is not None
    assert unknown["resumed"] is True
    assert list(unknown["stages"]) == ["labelling"]


def test_no_footer_holds_timings(tmp_path, small_slices):
    text = TextOptions([str(small_slices.parent / "valid.jsonl")], "validation")
    slicing.slice_text(text, tmp_path / "s", counts=small_slices.parent / "counts.duckdb", rare=slicing.RareCount(20), seq_len=64)
    profiling.profile_slices(tmp_path / "s", tmp_path / "p")
    attribution.gap("control:recall", ["control:bigram"], tmp_path / "s", tmp_path / "g")
    for path in tmp_path.rglob("*.parquet"):
        assert "timings" not in json.dumps(artifacts.read_manifest(path)), path
    assert {path.name for path in (tmp_path / "s" / "scores").iterdir()} == {
        f"{scoring.score_path(tmp_path, name).stem}{end}" for name in ("control:recall", "control:bigram") for end in (".parquet", ".json")
    }
    for folder, stages in (("s", ["slicing"]), ("p", ["profiling"]), ("g", ["attributing"])):
        found = read_timings(tmp_path / folder / "manifest.json")
        assert found is not None
        assert list(found["stages"]) == stages
        assert found["seconds"] > 0
    told = scoring.score_timings(tmp_path / "s", "control:recall")
    assert told is not None
    assert told["stages"]["scoring"]["tokens"] == artifacts.read_manifest(tmp_path / "s" / "tokens.parquet")["num_rows"]


def test_a_journal_adds_up_the_seconds_of_all_runs(tmp_path):
    for number in range(3):
        with Journal(tmp_path / "x", {"a": 1}) as journal:
            assert journal.seconds_before >= 0.05 * number
            time.sleep(0.05)
            journal.part(number).write_bytes(b"")
            journal.commit({})
            before = journal.seconds
    with Journal(tmp_path / "x", {"a": 1}) as journal:
        assert before - 0.05 < journal.seconds_before <= before
    state = tmp_path / f".x{artifacts.PARTIAL}" / "state.json"
    for damaged in ("NaN", '"x"', "-1.0", "1e999", "null", "[]"):
        artifacts.write_json(state, {"key": {"a": 1}, "num_parts": 3, "state": {}, "seconds": json.loads(damaged)})
        with Journal(tmp_path / "x", {"a": 1}) as journal:
            assert (journal.seconds_before, journal.num_parts) == (0.0, 3)
