"""`slice --sample`: whole documents at random, of every source, the same ones again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from recallkit.storage import parquet_files
from recallkit.storage.journal import Journal
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import made_up_texts, write_jsonl

SIZES = {"large": 300, "small": 60, "rare": 2}
"""Documents of each source, of the same lengths."""


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    return {name: made_up_texts(number, 120, seed=number) for name, number in SIZES.items()}


@pytest.fixture(scope="module")
def corpus(texts, tmp_path_factory) -> list[Path]:
    """A file a source; then one document that is longer than any sample here."""
    folder = tmp_path_factory.mktemp("corpus")
    files = [write_jsonl(folder / f"{name}.jsonl", texts[name], name) for name in texts]
    return [*files, write_jsonl(folder / "book.jsonl", ["word " * 20_000], "book")]


def documents(folder: Path) -> list[tuple[str, str]]:
    """(source, text) of each document of a slice directory that was made with `--boundary
    document`."""
    groups = (
        pl.read_parquet(folder / "tokens.parquet")
        .group_by("document", maintain_order=True)
        .agg("source", "token")
    )
    ids = [column.to_numpy().astype("uint32") for column in groups["token"]]
    return list(
        zip(
            groups["source"].list.first().cast(pl.String),
            load_tokenizer(None).decode(ids),
            strict=True,
        )
    )


def test_a_sample_is_of_whole_documents_of_each_source(run, corpus, texts, tmp_path):
    """Of each as large a part as it has of the text, but for what is too long; another seed draws
    others, the same one the same bytes."""
    command = ["slice", *corpus, "--boundary", "document", "--sample", "4k"]
    done = run(*command, "-o", tmp_path / "a")
    assert done.returncode == 0, done.stderr
    drawn = documents(tmp_path / "a")
    for source, text in drawn:
        assert text in texts[source]
    manifest = parquet_files.read_manifest(tmp_path / "a/tokens.parquet")
    amounts = Counter(source for source, _ in drawn)
    by_source = {name: amounts[name] / size for name, size in SIZES.items()}
    # The book is a large part of the text, and that part of the sample has no room for it: the
    # parts of the others are enlarged.
    assert 3600 < manifest["num_rows"] < 4400
    assert by_source["rare"] >= 0.5
    assert 0.5 < by_source["large"] / by_source["small"] < 2
    numbers = {
        "tokens": 4000,
        "seed": 0,
        "documents": len(drawn),
        "sources": 3,
        "of_documents": 363,
        "of_sources": 4,
    }
    of_tokens = manifest["drawn"].pop("of_tokens")
    assert manifest["drawn"] == {**numbers, "left_out": ["book"]}
    assert run("slice", *corpus, "--boundary", "document", "-o", tmp_path / "whole").returncode == 0
    assert of_tokens == pytest.approx(
        parquet_files.read_manifest(tmp_path / "whole/tokens.parquet")["num_rows"],
        rel=0.05,
    )
    said = f"Sample: {len(drawn)} of 363 documents and 3 of 4 sources, drawn with seed 0. "
    said += "Left out because all their documents are too long: book."
    assert said in " ".join(done.stdout.split())
    assert "interval" not in done.stderr
    assert (
        run(*command, "--seed", 0, "-o", tmp_path / "b").returncode
        == run(*command, "--seed", 1, "-o", tmp_path / "c").returncode
        == 0
    )
    assert (tmp_path / "a/tokens.parquet").read_bytes() == (
        tmp_path / "b/tokens.parquet"
    ).read_bytes()
    assert len({*drawn} & {*documents(tmp_path / "c")}) < len(drawn) / 2
    assert "differs in sample" in run(*command, "--seed", 1, "-o", tmp_path / "a").stderr


def test_a_sample_as_large_as_the_text_is_all_of_it(run, corpus, tmp_path):
    for name, more in (("all", []), ("drawn", ["--sample", "1M"])):
        assert run("slice", *corpus[:3], *more, "-o", tmp_path / name).returncode == 0
    assert pl.read_parquet(tmp_path / "all/tokens.parquet").equals(
        pl.read_parquet(tmp_path / "drawn/tokens.parquet"),
    )


def test_an_interrupted_sample_is_resumed_to_the_same_bytes(run, corpus, tmp_path, monkeypatch):
    command = ["slice", *corpus, "--seq-len", 4, "--sample", "20k"]
    assert run(*command, "-o", tmp_path / "whole").returncode == 0
    commit = Journal.commit

    def interrupted(journal: Journal, *arguments: object) -> None:
        commit(journal, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "commit", interrupted)
        assert run(*command, "-o", tmp_path / "again").returncode == 130
    done = run(*command, "-o", tmp_path / "again")
    assert "resuming after" in done.stderr
    assert (tmp_path / "again/sequences.parquet").read_bytes() == (
        tmp_path / "whole/sequences.parquet"
    ).read_bytes()


def test_what_cannot_be_drawn_is_refused(run, corpus, tmp_path):
    out = ["-o", tmp_path / "slices"]
    done = run("slice", corpus[-1], "--sample", 1000, *out)
    assert (
        "--sample: no document is short enough for a sample of 1,000 tokens; draw more tokens"
        in done.stderr
    )
    assert run("slice", corpus[0], "--sample", 1000, "--limit-tokens", 1000, *out).returncode == 2
    assert run("slice", corpus[0], "--sample", 0, *out).returncode == 2


def test_too_few_documents_are_reported_when_they_are_sliced(run, corpus, tmp_path):
    """The remedy is one that this command has."""
    texts = made_up_texts(200, 120)
    joined = [" ".join(texts[start : start + 50]) for start in range(0, 200, 50)]
    long = write_jsonl(tmp_path / "long.jsonl", joined)
    command = ["slice", long, corpus[0], "-o", tmp_path / "slices[1]"]
    limited = run(*command, "--limit-tokens", "9k").stderr
    assert "will have no interval: all tokens come from effectively 2." in limited
    assert "--sample 9000 in place of --limit-tokens draws documents of all of the text" in limited
    assert "no interval" not in run(*command, "--sample", "9k", "--force").stderr
    assert "no interval" not in run(*command, "--force").stderr
    assert "needed; slice more text" in run("slice", long, "-o", tmp_path / "long").stderr
    two = run("slice", corpus[2], "--sample", 90, "-o", tmp_path / "two").stderr
    assert "needed; draw more with --sample" in two
