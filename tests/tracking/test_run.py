"""The command: its table, page, figure and JSON, and a run that is followed by repeating it."""

from __future__ import annotations

import json
import shutil

import polars as pl
import pytest

import recallkit
from recallkit.errors import UserError

STEPS = ("step-0=control:unigram", "step-10=control:bigram", "step-20=control:recall")


def test_the_command_prints_draws_and_reports(run, few_slices, tmp_path):
    counts, out, figures = (
        few_slices.parent / "counts.duckdb",
        tmp_path / "out",
        tmp_path / "figures",
    )
    command = ("track", "control:recall", *STEPS, "--slices", few_slices, "--counts", counts)
    command += ("--slice", "copy:k2", "--slice", "state_word", "-o", out)
    printed = run(*command, "--figures", figures, "--export", "csv,md")
    assert printed.returncode == 0, printed.stderr
    answer = "Recall appears at step 20 (95 % interval 20 to 20): at step 20 the recall gain on"
    assert answer in " ".join(printed.stdout.split())
    assert "Slices at the last step" in printed.stdout
    assert {path.name for path in figures.iterdir()} >= {"track.svg", "track.png", "by_slice.svg"}
    assert pl.read_csv(out / "track.csv")["step"].to_list() == [None, 0, 10, 20]
    by_slice = pl.read_parquet(out / "by_slice.parquet")["step"].to_list()
    assert by_slice == [None, None, 0, 0, 10, 10, 20, 20]
    tables = json.loads(run(*command, "--json").stdout)
    assert tables["verdict"][0]["step"] == 20
    assert [row["step"] for row in tables["track"]] == [None, 0, 10, 20]
    page = run("report", out, "-o", tmp_path / "page.html")
    assert page.returncode == 0, page.stderr
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Recall by step" in html
    assert "Recall appears at step 20" in html


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "no model is named"),
        (("control:recall",), "no model is named"),
        (("control:recall", "control:bigram"), "no step in its name"),
        (("control:recall", "step-1=control:bigram", "step-01=control:unigram"), "step 1 of"),
        (("control:recall", "nowhere/step-*"), "no such checkpoints"),
    ],
)
def test_mistakes_are_one_line(run, few_slices, words, problem):
    refused = run("track", *words, "--slices", few_slices)
    assert refused.returncode in (1, 2)
    assert problem in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_repeated_command_scores_only_what_is_new(tiny_model, few_slices, tmp_path, capsys):
    """A checkpoint that is replaced is scored again with force; temporary names are passed over,
    with a note."""
    source, checkpoints, slices = tiny_model("llama"), tmp_path / "run", tmp_path / "slices"
    shutil.copytree(few_slices, slices, ignore=shutil.ignore_patterns("scores"))
    for name in ("checkpoint-0", "checkpoint-10.tmp"):
        shutil.copytree(source, checkpoints / name)
    pattern = str(checkpoints / "checkpoint-*")

    def track(**options):
        counts, out = few_slices.parent / "counts.duckdb", tmp_path / "out"
        reference = {"r": "control:recall"}
        tables = recallkit.track(
            reference, pattern, slices=slices, counts=counts, out=out, **options
        )
        return tables.track

    assert track()["step"].to_list() == [None, 0]
    assert f"{pattern}: 1 temporary name skipped" in capsys.readouterr().err
    [scores] = (slices / "scores").glob("*checkpoint-0.*.parquet")
    before = scores.stat().st_mtime_ns
    (checkpoints / "checkpoint-10.tmp").rename(checkpoints / "checkpoint-10")
    both = track()
    assert both["step"].to_list() == [None, 0, 10]
    assert scores.stat().st_mtime_ns == before
    shutil.rmtree(checkpoints / "checkpoint-0")
    shutil.copytree(tiny_model("gpt_neox"), checkpoints / "checkpoint-0")
    with pytest.raises(UserError, match="--force"):
        track()
    assert track(force=True)["nll"][1] != both["nll"][1]
