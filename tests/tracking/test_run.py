"""The command: its table, page, figure and JSON, and a run that is followed by repeating it."""

from __future__ import annotations

import json
import re
import shlex
import shutil

import polars as pl
import pytest

import recallkit
from recallkit.errors import UserError

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
        ("control:recall", "step-1=control:bigram", "step-01=control:unigram"): "step 1 of",
    }.items():
        done = run("track", *words, "--slices", few_slices)
        assert done.returncode in (1, 2)
        assert problem in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_repeated_command_scores_only_what_is_new(tiny_model, few_slices, tmp_path, capsys):
    """A checkpoint that is replaced is scored again with force; temporary names are passed over, with a note."""
    source, checkpoints, slices = tiny_model("llama"), tmp_path / "run", tmp_path / "slices"
    shutil.copytree(few_slices, slices, ignore=shutil.ignore_patterns("scores"))
    for name in ("checkpoint-0", "checkpoint-10.tmp"):
        shutil.copytree(source, checkpoints / name)
    options = {"slices": slices, "counts": few_slices.parent / "counts.duckdb", "out": tmp_path / "out"}
    pattern = str(checkpoints / "checkpoint-*")
    first = recallkit.track({"r": "control:recall"}, pattern, **options)
    assert f"{pattern}: 1 temporary name skipped" in capsys.readouterr().err
    [scores] = (slices / "scores").glob("*checkpoint-0.*.parquet")
    before = scores.stat().st_mtime_ns
    (checkpoints / "checkpoint-10.tmp").rename(checkpoints / "checkpoint-10")
    second = recallkit.track({"r": "control:recall"}, pattern, **options)
    assert (first.track["step"].to_list(), second.track["step"].to_list()) == ([None, 0], [None, 0, 10])
    assert scores.stat().st_mtime_ns == before
    assert pl.read_parquet(tmp_path / "out" / "track.parquet").height == 3
    shutil.rmtree(checkpoints / "checkpoint-0")
    shutil.copytree(tiny_model("gpt_neox"), checkpoints / "checkpoint-0")
    with pytest.raises(UserError, match="--force"):
        recallkit.track({"r": "control:recall"}, pattern, **options)
    third = recallkit.track({"r": "control:recall"}, pattern, **options, force=True)
    assert third.track["nll"][1] != second.track["nll"][1]
