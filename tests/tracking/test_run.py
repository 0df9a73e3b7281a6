"""The command: its table, page, figure and JSON, and a run that is watched while its checkpoints come."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import polars as pl
import pytest

from recallkit.errors import UserError
from recallkit.models.spec import list_models, parse_model
from recallkit.scoring import ScoringOptions
from recallkit.tracking.run import TrackedRun, track, watch

STEPS = ("step-0=control:unigram", "step-10=control:bigram", "step-20=control:recall")


@pytest.fixture(scope="module")
def command(few_slices):
    named = ("--slice", "copy:k2", "--slice", "state_word")
    return ("track", "control:recall", *STEPS, "--slices", few_slices, "--counts", few_slices.parent / "counts.duckdb", *named)


def test_the_command_prints_draws_and_reports(command, run, few_slices, tmp_path):
    done = run(*command, "-o", tmp_path / "out", "--figures", tmp_path / "figures", "--export", "csv,md")
    assert done.returncode == 0, done.stderr
    assert "Recall appears at step 20 (95 % interval 20 to 20): at step 20 the recall gain on AR hits is " in " ".join(done.stdout.split())
    assert {path.name for path in (tmp_path / "figures").iterdir()} >= {"track.svg", "track.png", "by_slice.svg"}
    assert re.search(r"Slices at the last step\n.*\n *slice .*\n─+\ncopy:k2 .* \d\d\.\d\nstate_word .* –\n", done.stdout)
    assert "slices whose tokens all repeat one. Earlier steps: by_slice.parquet." in " ".join(done.stdout.split())
    assert pl.read_parquet(tmp_path / "out" / "by_slice.parquet")["step"].to_list() == [None, None, 0, 0, 10, 10, 20, 20]
    assert pl.read_csv(tmp_path / "out" / "track.csv")["step"].to_list() == [None, 0, 10, 20]
    found = json.loads(run(*command, "-o", tmp_path / "out", "--json").stdout)
    assert (found["verdict"][0]["step"], [row["step"] for row in found["track"]]) == (20, [None, 0, 10, 20])
    page = run("report", tmp_path / "out", "-o", tmp_path / "page.html")
    assert page.returncode == 0, page.stderr
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Recall by step" in html
    assert "Recall appears at step 20" in html
    told = re.sub("<[^>]*>", "", html)
    [again] = re.findall(r"recallkit track control:recall .*? --slices DIR(?: --slice [\w:]+)*", told)
    assert again == f"recallkit track control:recall {' '.join(STEPS)} --slices DIR --slice copy:k2 --slice state_word"
    words = shlex.split(again.replace("DIR", str(few_slices)))[1:]
    repeated = run(*words, "-o", tmp_path / "again", "--json")
    assert repeated.returncode == 0, repeated.stderr
    assert json.loads(repeated.stdout)["track"] == found["track"]


def test_mistakes_are_usage(run, few_slices):
    for words, problem in {
        (): "no model is named",
        ("control:recall",): "no model is named",
        ("control:recall", "control:bigram"): "no step in its name",
        ("control:recall", "step-1=control:bigram", "--until", "3"): "goes with --watch",
        ("control:recall", "step-1=control:bigram", "--watch", "--causal"): "not with --watch",
        ("control:recall", "step-1=control:bigram", "--watch"): "no pattern matches checkpoints still to come",
        ("control:recall", "step-1=control:bigram", "step-01=control:unigram"): "step 1 of",
    }.items():
        done = run("track", *words, "--slices", few_slices)
        assert done.returncode in (1, 2)
        assert problem in done.stderr
        assert done.stderr.count("\n") == 1


def test_checkpoints_are_scored_as_they_come(tiny_model, few_slices, tmp_path, capsys):
    """Each look finds one more; a damaged one is named, and scored once it is mended; one that is replaced is scored again."""
    source, shown, looks = tiny_model("llama"), [], []

    def copy(name: str, source: Path = source) -> None:
        shutil.copytree(source, tmp_path / "run" / name)

    def sleep(_: float) -> None:
        looks.append(len(shown))
        if len(looks) == 1:
            copy("checkpoint-10")
            copy("checkpoint-20")
            (tmp_path / "run" / "checkpoint-20" / "config.json").write_text("{")
        if len(looks) == 4:
            shutil.rmtree(tmp_path / "run" / "checkpoint-0")
            copy("checkpoint-0", tiny_model("gpt_neox"))
        if len(looks) == 6:
            shutil.copy(source / "config.json", tmp_path / "run" / "checkpoint-20" / "config.json")
        assert len(looks) < 20

    copy("checkpoint-0")
    [reference] = list_models({"r": "control:recall"})
    patterns = [parse_model(str(tmp_path / "run" / "checkpoint-*"))]
    options = ScoringOptions(counts=few_slices.parent / "counts.duckdb")
    run = TrackedRun(few_slices, tmp_path / "out", reference, options)
    tables = watch(run, patterns, lambda tables: shown.append(dict(tables.track.select("step", "nll").rows())), until=20, sleep=sleep)
    assert [list(rows) for rows in shown] == [[None, 0], [None, 0, 10], [None, 0, 10], [None, 0, 10, 20]]
    assert shown[1][0] == shown[0][0] == shown[3][20]
    assert shown[2][0] == shown[3][0] != shown[0][0], "other weights"
    assert tables.track["step"].to_list() == [None, 0, 10, 20]
    assert pl.read_parquet(tmp_path / "out" / "track.parquet").height == 4
    notes = capsys.readouterr().err
    assert notes.count("tried again when its files change") == 1
    shutil.rmtree(tmp_path / "run" / "checkpoint-0")
    copy("checkpoint-0")
    with pytest.raises(UserError, match="--force"):
        track(TrackedRun(few_slices, tmp_path / "out", reference, options), patterns)
    tables = track(TrackedRun(few_slices, tmp_path / "out", reference, options, force=True), patterns)
    assert tables.track["nll"][1] == shown[0][0], "scored again"


def test_a_watch_needs_a_readable_reference(few_slices, tmp_path):
    run = TrackedRun(few_slices, tmp_path, list_models("no-such-model")[0])
    with pytest.raises(UserError, match="no-such-model"):
        watch(run, [parse_model("x-*")], print)
