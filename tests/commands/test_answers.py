"""What commands say first, where it is true and where it would be false; what was reused says when
it was made."""

from __future__ import annotations

import json
from datetime import datetime

import polars as pl
import pytest

from recallkit.models.describe import describe_mixers
from recallkit.storage import parquet_files
from tests.conftest import made_up_texts, write_jsonl


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two texts of twelve documents."""
    folder = tmp_path_factory.mktemp("made")
    for seed, name in enumerate(("train", "valid")):
        write_jsonl(folder / f"{name}.jsonl", made_up_texts(12, 120, seed=seed))
    return folder


def first_line(done) -> str:
    """The answer: what is printed up to the first blank line, or the first note."""
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.partition("\n\n")[0].split())


def test_what_is_reused_says_when_it_was_made_and_not_how_long_it_took(run, made):
    counts, slices = made / "counts.duckdb", made / "slices"
    steps = {
        "counted": ["count", made / "train.jsonl", "-o", counts],
        "labelled": [
            "slice",
            made / "valid.jsonl",
            "--counts",
            counts,
            "--seq-len",
            64,
            "-o",
            slices,
        ],
        "scored on cpu": ["score", "zoo:rwkv", "--slices", slices, "--device", "cpu"],
        "scored": ["score", "control:bigram", "--slices", slices],
    }
    now = datetime.now().astimezone()
    day = f"{now.day} {now:%B %Y}"
    for did, arguments in steps.items():
        first, again, forced = (run(*arguments, *more).stdout for more in ((), (), ("--force",)))
        assert "Took " in first
        assert "Took " in forced
        assert "Reused" not in first + forced
        assert "Took " not in again
        assert f"Reused, {did} on {day}." in again
    [listing] = (slices / "scores").glob("zoo-rwkv*.json")
    earlier = json.loads(listing.read_text())
    earlier["timings"]["ended"] = "2026-02-03T23:59:00+00:00"
    listing.write_text(json.dumps(earlier))
    assert "Reused, scored on cpu on 3 February 2026." in run(*steps["scored on cpu"]).stdout
    both = run("score", "control:bigram", "zoo:rwkv", "--slices", slices).stdout
    assert "on 3 February 2026: zoo:rwkv." in both, "of several each day has its models"
    assert f"Reused, scored on {day}: control:bigram." in both
    assert run(*steps["scored on cpu"], "--dtype", "bfloat16").returncode == 1, (
        "with other options nothing is reused"
    )


def test_counts_and_slices_begin_with_their_sizes(run, made, tmp_path):
    done = run("count", made / "train.jsonl", "-o", tmp_path / "c.duckdb", "--json")
    counted = json.loads(done.stdout)
    said = first_line(run("count", made / "train.jsonl", "-o", tmp_path / "c.duckdb"))
    assert said.startswith(
        f"{counted['num_tokens']:,} training tokens of 12 documents, {counted['num_bigrams']:,} "
        "distinct bigrams"
    )
    text = ["slice", made / "valid.jsonl", "--seq-len", 64]
    of_counts = first_line(run(*text, "--counts", tmp_path / "c.duckdb", "-o", tmp_path / "s"))
    tokens = pl.read_parquet(tmp_path / "s" / "tokens.parquet")
    unseen = parquet_files.read_manifest(tmp_path / "s" / "tokens.parquet")["unseen"]["share"]
    assert of_counts.startswith(
        f"{100 * tokens['ar_hit'].mean():.2f} % of {len(tokens):,} tokens (12 documents) are AR "
        "hits"
    )
    assert f"{100 * unseen:.1f} % of the text's bigrams are not in the counts" in of_counts
    without = first_line(run(*text, "-o", tmp_path / "n"))
    assert without == (
        f"{100 * tokens['repeated'].mean():.1f} % of {len(tokens):,} tokens (12 documents) "
        "repeat a bigram of their context."
    )


def test_scores_begin_with_the_least_and_the_greatest_perplexity(run, small_slices):
    names = ["control:unigram", "control:recall", "control:bigram"]
    done = run("score", *names, "--slices", small_slices, "--json")
    ppl = {row["model"]: row["ppl"] for row in json.loads(done.stdout)}
    low, high = min(ppl, key=ppl.__getitem__), max(ppl, key=ppl.__getitem__)
    said = first_line(run("score", *names, "--slices", small_slices))
    assert f"perplexity {ppl[low]:.2f} ({low}) to {ppl[high]:.2f} ({high})." in said
    assert said.startswith("3 models on ")
    assert first_line(run("score", low, "--slices", small_slices)).startswith(
        f"{low}: perplexity {ppl[low]:.2f} on "
    )


def test_models_begin_with_what_they_are_for_and_cost(run):
    assert first_line(run("models")).startswith("What can be given as MODEL")
    states = {row["mixer"]: row["state_elements"] for row in describe_mixers(1024, 2048)}
    said = first_line(run("models", "--describe"))
    assert said.startswith(f"After 2,048 tokens the {len(states)} mixers keep a state of ")
    assert f"({min(states, key=states.__getitem__)}) to" in said
    assert f"({max(states, key=states.__getitem__)})." in said


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--causal"], "none of the sampled tokens can be changed; slice more text"),
        (["--fail-above", "0.1"], "there are no tokens of ar_hit to judge by; slice more text"),
        (["--causal", "--fail-above", "all=0.01"], "nats above the reference's (limit 0.01)"),
    ],
)
def test_a_gap_is_printed_even_where_what_was_asked_besides_cannot_be_measured(
    run, small_slices, tmp_path, options, problem
):
    """Text without a repeated bigram."""
    words = {seed: made_up_texts(1, 400, seed=seed)[0].split() for seed in range(2)}
    write_jsonl(tmp_path / "t.jsonl", [" ".join(dict.fromkeys(words[seed])) for seed in words])
    options_of_text = [
        "--counts",
        small_slices.parent / "counts.duckdb",
        "--boundary",
        "document",
        "--seq-len",
        8,
    ]
    assert (
        run("slice", tmp_path / "t.jsonl", *options_of_text, "-o", tmp_path / "slices").returncode
        == 0
    )
    done = run(
        "gap", "control:bigram", "control:unigram", "--slices", tmp_path / "slices", *options
    )
    assert done.returncode == 1
    assert problem in done.stderr
    assert "Perplexity, recall, and where the gap to the reference lies" in done.stdout


def test_a_result_keeps_the_command_that_was_typed_without_folders(run, made, tmp_path):
    """Also a later result in the same process has its own, and one of Python has none."""
    import recallkit

    text, slices = made / "valid.jsonl", tmp_path / "slices"
    assert run("slice", text, f"--out={slices}", "--seq-len", 64, "--no-such").returncode == 2
    done = run("slice", text, f"--out={slices}", "--seq-len", 64, "--force")
    assert done.returncode == 0, done.stderr

    def command(folder) -> str | None:
        return json.loads((folder / "manifest.json").read_text())["timings"]["command"]

    assert command(slices) == "recallkit slice valid.jsonl --out=slices --seq-len 64 --force"
    recallkit.slice(text, tmp_path / "python", seq_len=64)
    assert command(tmp_path / "python") is None


@pytest.mark.parametrize(
    ("word", "recorded"),
    [
        ("/models/mamba", "mamba"),
        ("b=/models/mamba,dtype=float32", "b=mamba,dtype=float32"),
        ("../run/checkpoint-8", "checkpoint-8"),
        ("run/checkpoint-8", "run/checkpoint-8"),
        ("-o/models/out", "-oout"),
        ("gguf:/models/a.gguf", "gguf:a.gguf"),
        ("~bob/mamba", "mamba"),
        ("file:///models/a.jsonl", "a.jsonl"),
        ("hf://OWNER/NAME/a.jsonl", "hf://OWNER/NAME/a.jsonl"),
        ("far=distance > 512", "'far=distance > 512'"),
        ("https://me:secret@host.example/a.jsonl?key=secret", None),
    ],
)
def test_a_word_of_it_names_no_folder_and_no_secret(word, recorded):
    from recallkit.commands.app import command_line

    words = command_line("gap", [word]).removeprefix("recallkit gap ")
    assert words == recorded if recorded else "secret" not in words and "host.example" in words
