"""`gap --text`: from checkpoints and shards to the answer and its page in one command, by the same
steps as the commands for them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import recallkit
from recallkit.storage import parquet_files
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import made_up_texts, write_jsonl


@pytest.fixture
def here(tmp_path, tiny_model, monkeypatch) -> Path:
    """A folder with two checkpoints, `neox` with a context of 256 and `mamba` without a limit, a
    tokenizer beside each, and two shards."""
    settings = load_tokenizer(None).backend.to_str()
    for name, family in (("neox", "gpt_neox"), ("mamba", "mamba")):
        shutil.copytree(tiny_model(family), tmp_path / name)
        (tmp_path / name / "tokenizer.json").write_text(settings)
    write_jsonl(tmp_path / "train.jsonl", made_up_texts(40, 150, seed=1))
    write_jsonl(tmp_path / "valid.jsonl", made_up_texts(30, 150, seed=2))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(folder: Path, which: str = "gap") -> pl.DataFrame:
    """A table of the only comparison in a slice directory."""
    [path] = folder.glob(f"gap/*/{which}.parquet")
    return pl.read_parquet(path)


def test_one_command_does_what_the_steps_do(run, here):
    done = run(
        "gap", "neox", "mamba", "--text", "valid.jsonl", "--train", "train.jsonl", "--sample", "all"
    )
    assert done.returncode == 0, done.stderr
    chosen = done.stderr.splitlines()[0]
    assert (
        "all of the text, in sequences of 256 tokens of neox's tokenizer, on cpu; everything is "
        "written to slices"
    ) in chosen
    [page] = (here / "slices").glob("gap/*/report.html")
    assert str(page.relative_to(here)) in done.stdout
    assert run("count", "train.jsonl", "--tokenizer", "neox", "-o", "counts.duckdb").returncode == 0
    words = ("--for", "neox", "--for", "mamba", "--counts", "counts.duckdb", "-o", "steps")
    assert run("slice", "valid.jsonl", *words).returncode == 0
    assert run("gap", "neox", "mamba", "--slices", "steps").returncode == 0
    assert rows(here / "slices").equals(rows(here / "steps"))
    before = {path: path.read_bytes() for path in (here / "slices").rglob("*.parquet")}
    again = run(
        "gap", "neox", "mamba", "--text", "valid.jsonl", "--train", "train.jsonl", "--sample", "all"
    )
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert {path: path.read_bytes() for path in (here / "slices").rglob("*.parquet")} == before


def test_without_training_text_all_repeated_bigrams_are_the_answer(run, here):
    """The figures are those of the row of repeated bigrams that counts leave as it is, and nothing
    is called an AR hit."""
    words = ("gap", "zoo:attention", "zoo:mamba", "--text", "valid.jsonl", "--sample", "all")
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "When a bigram returns, attention predicts its last token with probability "
    )
    assert "--train SOURCE gives the counts" in " ".join(done.stdout.split())
    assert len(re.findall("AR hits?", done.stdout)) == 1, "in the line on what counts add"
    alone = rows(here / "slices")
    assert set(alone["slice"]) == {"all", "repeated", "not_repeated"}
    assert rows(here / "slices", "by_threshold").is_empty()
    text = re.sub(
        r"<script.*?</script>|<style.*?</style>",
        "",
        next((here / "slices").glob("gap/*/report.html")).read_text(),
        flags=re.S,
    )
    assert "repeated bigrams" in text
    counted = run(*words, "--train", "train.jsonl")
    assert counted.returncode == 0, counted.stderr
    assert (
        "When a rare bigram returns" in counted.stdout
        or "No token of this text is an AR hit" in counted.stdout
    )
    names = (
        "tokens",
        "nll_model",
        "delta_nll",
        "gain_reference",
        "gain_model",
        "retained",
        "gap_share",
        "gap_share_ci_low",
    )
    both = [
        frame.filter(slice="repeated", source="ALL").select(names)
        for frame in (alone, rows(here / "slices"))
    ]
    assert_frame_equal(*both, rel_tol=1e-9)
    assert both[0]["tokens"][0] > 500


def test_what_needs_counts_is_refused_without_them(run, here):
    assert run("gap", "zoo:attention", "zoo:mamba", "--text", "valid.jsonl").returncode == 0
    for words in (("--price",), ("--slice", "first_rare"), ("--context-gain", "8")):
        refused = run("gap", "zoo:attention", "zoo:mamba", "--slices", "slices", *words)
        assert refused.returncode == 1, words
        assert "labelled without training counts" in refused.stderr
        assert "--train SOURCE" in refused.stderr


def test_models_are_checked_before_anything_is_counted(run, here):
    (here / "bare").mkdir()
    shutil.copytree(here / "neox", here / "bare", dirs_exist_ok=True)
    (here / "bare" / "tokenizer.json").unlink()
    for models, said in (
        (("neox", "nowhere"), "nowhere: no such file or directory"),
        (
            ("bare", "mamba"),
            "bare: brings no tokenizer; name that with which it was trained: PATH,tokenizer=FILE",
        ),
        (("neox", "mamba,device=cuda"), "cuda"),
    ):
        done = run("gap", *models, "--text", "valid.jsonl", "--train", "train.jsonl")
        assert done.returncode != 0, models
        assert said in done.stderr.splitlines()[-1]
        assert not (here / "slices").exists()


def test_another_text_goes_to_another_folder(run, here):
    assert run("gap", "neox", "mamba", "--text", "valid.jsonl").returncode == 0
    refused = run("gap", "neox", "mamba", "--text", "train.jsonl")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].endswith("choose another folder with --slices DIR")
    assert run("gap", "mamba", "twin=mamba", "--text", "valid.jsonl").returncode == 0, (
        "sequences of 256 are read by these models, too"
    )
    assert (
        run("gap", "neox", "mamba", "--text", "train.jsonl", "--slices", "others").returncode == 0
    )
    for words in (("--train", "train.jsonl"), ("--sample", "20k")):
        assert f"{words[0]}: goes with --text" in run("gap", "neox", "mamba", *words).stderr


def test_a_sample_says_what_the_whole_would_take(run, here):
    done = run("gap", "neox", "mamba", "--text", "valid.jsonl", "--sample", "1k")
    assert done.returncode == 0, done.stderr
    said = r"Sample: (\d+) of 30 documents, .* --sample all reads all of about ([\d.]+k) tokens, in about (\d+) (seconds|minutes) here"
    drawn, whole, number, unit = re.search(said, done.stderr).groups()
    manifest = parquet_files.read_manifest(here / "slices" / "tokens.parquet")
    assert manifest["num_rows"] < 1100
    assert int(drawn) == manifest["drawn"]["documents"]
    lists = [here / "slices/manifest.json", *(here / "slices/scores").glob("*.json")]
    seconds = sum(json.loads(path.read_text())["timings"]["seconds"] for path in lists)
    factor = manifest["drawn"]["of_tokens"] / manifest["num_rows"]
    assert len(lists) == 3
    assert int(number) * {"seconds": 1, "minutes": 60}[unit] == pytest.approx(
        seconds * factor, rel=0.25, abs=1
    )
    every = run("slice", "valid.jsonl", "--for", "neox", "--json", "-o", "whole")
    tokens = parquet_files.read_manifest(here / "whole" / "tokens.parquet")["num_rows"]
    assert every.returncode == 0
    assert float(whole.removesuffix("k")) * 1000 == pytest.approx(tokens, rel=0.02)
    assert (
        "--sample all"
        not in run("gap", "neox", "mamba", "--text", "valid.jsonl", "--slices", "all").stderr
    ), "200k are all of it"


def test_a_model_of_the_zoo_reads_any_slices(run, here):
    """It brings its tokenizer and reads sequences longer than its context in windows, and both are
    said."""
    rows = [json.loads(line) for line in (here / "valid.jsonl").read_text().splitlines()]
    (here / "long.jsonl").write_text(
        json.dumps({"text": " ".join(row["text"] for row in rows)}) + "\n"
    )
    assert run("slice", "long.jsonl", "--tokenizer", "bytes", "-o", "slices").returncode == 0
    done = run("gap", "mamba=mamba,tokenizer=bytes", "zoo:mamba", "--slices", "slices")
    assert done.returncode == 0, done.stderr
    assert "zoo:mamba: another tokenizer (recallkit-4k)" in done.stderr
    assert (
        "zoo:mamba: reads longer sequences in windows of 256 ids, its context, that advance by 128"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("words", "length"),
    [
        (("--context", "64"), 64),
        (("--context", "64", "--stride", "32"), 256),
        (("--context", "64", "--carry-state"), 256),
    ],
)
def test_a_context_is_the_length_of_a_sequence_unless_it_is_that_of_windows(
    run, here, words, length
):
    done = run("gap", "mamba", "other=mamba", "zoo:mamba", "--text", "valid.jsonl", *words)
    assert f"in sequences of {length} tokens" in done.stderr
    assert done.returncode == 0, done.stderr


def test_a_damaged_file_is_named_with_a_remedy_that_helps(run, here):
    words = ("gap", "neox", "mamba", "--text", "valid.jsonl", "--train", "train.jsonl")
    first = run(*words)
    for name in ("sequences.parquet", "tokens.parquet"):
        file = here / "slices" / name
        file.write_bytes(file.read_bytes()[:-40] + bytes(40))
        refused = run(*words, "--force")
        assert refused.returncode == 1
        assert "delete it, or choose another folder with --slices DIR" in refused.stderr
        file.unlink()
        again = run(*words)
        assert (again.returncode, again.stdout) == (0, first.stdout), again.stderr


def test_gates_and_interventions_that_need_counts_are_refused_before_models_are_scored(run, here):
    words = ("gap", "zoo:attention", "zoo:mamba", "--text", "valid.jsonl")
    for more in (("--fail-above", "0.1"), ("--causal",)):
        refused = run(*words, *more)
        assert refused.returncode == 1
        assert "labelled without training counts" in refused.stderr
        assert not (here / "slices" / "scores").exists()


def test_what_is_read_once_is_a_text_in_python(here):
    texts = [json.loads(line) for line in (here / "valid.jsonl").read_text().splitlines()]
    trained = [json.loads(line) for line in (here / "train.jsonl").read_text().splitlines()]
    pair, options = ("zoo:attention", "zoo:mamba"), {"sample": "2k"}
    listed = recallkit.gap(*pair, text=texts, train=trained, **options)
    once = recallkit.gap(*pair, text=iter(texts), train=iter(trained), slices="once", **options)
    assert listed.gap.equals(once.gap)
    assert listed.by_count.equals(once.by_count)


def test_a_report_never_scores(run, here):
    for words in ((), ("slices",)):
        done = run("report", *words)
        assert done.returncode != 0
        assert done.stdout == ""
    assert "run `recallkit demo` first" in run("report").stderr


def test_what_the_program_chooses_is_said(run, here):
    """The built-in text, the built-in tokenizer, and counts of an earlier run: where they are not
    what the user named, and only there."""
    said = {
        words: run(*words).stderr
        for words in (
            ("score", "nowhere"),
            ("score", "zoo:nowhere"),
            ("score", "nowhere", "--slices", "s"),
        )
    }
    assert [
        "no --slices: this is measured on the built-in text" in line for line in said.values()
    ] == [True, False, False]
    counted = [
        run("count", "train.jsonl", *words, "-o", f"{len(words)}.duckdb").stderr
        for words in ((), ("--tokenizer", "neox"))
    ]
    assert [
        "no --tokenizer is named: tokens are those of the built-in one" in line for line in counted
    ] == [True, False]
    words = ("gap", "neox", "mamba,device=cpu", "--text", "valid.jsonl")
    first, again = run(*words, "--train", "train.jsonl"), run(*words)
    assert (first.returncode, again.returncode) == (0, 0), again.stderr
    assert [
        "training counts as in the labels of slices" in done.stderr for done in (first, again)
    ] == [False, True]
    assert again.stdout == first.stdout
