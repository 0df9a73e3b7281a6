"""`profile` as a whole: of text and of its slices, found again, mistakes, stop words, and the
command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from recallkit import slicing
from recallkit.errors import UserError
from recallkit.options import ProfileOptions, TextOptions
from recallkit.profiling import profile, profile_slices, stop_words, token_mask, token_texts
from recallkit.profiling.tables import ProfileTables
from recallkit.storage import parquet_files
from recallkit.storage.result import read_tables
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import made_up_texts, write_jsonl
from tests.made_tokenizers import NAMES, made


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextOptions:
    folder = tmp_path_factory.mktemp("text")
    books = write_jsonl(folder / "a.jsonl", made_up_texts(90, 300, seed=2), "books")
    letters = write_jsonl(folder / "b.jsonl", made_up_texts(80, 60, seed=3), "letters")
    return TextOptions([str(books), str(letters)], "validation")


def assert_same(one: ProfileTables, other: ProfileTables) -> None:
    for field in fields(ProfileTables):
        assert_frame_equal(getattr(one, field.name), getattr(other, field.name), check_exact=True)


@pytest.mark.parametrize("counted", [True, False])
def test_a_text_is_profiled_by_its_labels(text, small_slices, tmp_path, counted):
    counts, rare = small_slices.parent / "counts.duckdb" if counted else None, slicing.RareCount(20)
    of_text = profile(text, tmp_path, counts=counts, rare=rare, seq_len=64)
    assert_same(of_text, profile_slices(tmp_path / "slices", tmp_path / "again"))
    rows = pl.read_parquet(tmp_path / "slices" / "tokens.parquet")
    total = of_text.profile.row(0, named=True)
    assert (total["tokens"], total["repeated"]) == (len(rows), rows["repeated"].sum())
    assert total["ar_hits"] == (rows["ar_hit"].sum() if counted else None)
    assert dict(of_text.profile.select("source", "tokens").iter_rows()) == {
        "ALL": len(rows),
        **dict(rows.group_by(pl.col("source").cast(pl.String)).len().iter_rows()),
    }
    tokenizer, listed = load_tokenizer(None), set(stop_words("ours"))

    def is_content(index: int) -> bool:
        word = tokenizer.backend.decode([index], skip_special_tokens=False).strip().lower()
        return (
            index != tokenizer.end_token_id
            and word not in listed
            and any(c.isalnum() for c in word)
        )

    wanted = {
        index: is_content(index)
        for index in {*rows["token"].unique(), *rows["prev_token"].unique()}
    }
    content = [wanted[a] and wanted[b] for a, b in rows.select("prev_token", "token").iter_rows()]
    assert 0.2 < sum(content) / len(content) < 0.8
    assert (total["content_tokens"], total["content_repeated"]) == (
        sum(content),
        (rows["repeated"] & pl.Series(content)).sum(),
    )


def test_work_is_found_again_and_not_replaced(text, tmp_path, capsys):
    first = profile(text, tmp_path / "out", seq_len=64)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")}
    assert_same(profile(text, tmp_path / "out", seq_len=64), first)
    assert "profile.parquet is complete: reused" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in files} == files
    for changed in (
        {"seq_len": 32},
        {"options": ProfileOptions(stop_words="none")},
        {"options": ProfileOptions(x_min=2)},
    ):
        with pytest.raises(UserError, match="already made with other options"):
            profile(text, tmp_path / "out", **{"seq_len": 64, **changed})
    forced = profile(text, tmp_path / "out", seq_len=32, options=ProfileOptions(force=True))
    assert forced.distances["distance"].max() < 32
    manifest = parquet_files.read_manifest(tmp_path / "out" / "profile.parquet")
    assert (manifest["kind"], manifest["seq_len"], manifest["stop_words"]["name"]) == (
        "profile",
        32,
        "ours",
    )
    assert manifest["num_tokens"] == forced.profile["tokens"][0]
    assert_same(read_tables(ProfileTables, tmp_path / "out"), forced)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            {"seq_len": 64, "options": ProfileOptions(x_min=63)},
            "no tail of distances begins at 63; give 1 to 62",
        ),
        ({"seq_len": 2, "options": ProfileOptions(x_min=2)}, "give 1 to 1,"),
        ({"rare": slicing.RareCount(max_rate=5.0)}, "a rate needs"),
        ({"options": ProfileOptions(stop_words="no/such/file")}, "no such list"),
    ],
)
def test_mistakes_are_told_before_the_work(text, tmp_path, arguments, problem):
    with pytest.raises(UserError) as refused:
        profile(text, tmp_path / "out", **arguments)
    assert problem in refused.value.line()
    assert not (tmp_path / "out").exists()


# --------------------------------------------------------------------------------------- stop words


def test_a_list_of_ones_own(tmp_path):
    (tmp_path / "words.txt").write_text("# a remark\nThe\n naïve \n\nthe\n", encoding="utf-8-sig")
    assert stop_words(str(tmp_path / "words.txt")) == ["naïve", "the"]
    (tmp_path / "latin").write_bytes("naïve".encode("latin-1"))
    with pytest.raises(UserError, match="UTF-8"):
        stop_words(str(tmp_path / "latin"))


def test_nltk_words_are_the_users_own(tmp_path, monkeypatch):
    import nltk

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    with pytest.raises(UserError, match=r"python -m nltk\.downloader stopwords"):
        stop_words("nltk")
    (tmp_path / "corpora" / "stopwords").mkdir(parents=True)
    (tmp_path / "corpora" / "stopwords" / "english").write_text("of\nThe\nwouldn't\n")
    assert stop_words("nltk") == ["of", "the", "wouldn't"]


@pytest.mark.parametrize("kind", NAMES)
def test_texts_of_every_kind_of_tokenizer(kind):
    tokenizer = made(kind)
    texts = token_texts(tokenizer)
    assert len(texts) == tokenizer.vocab_size
    encoded, _ = tokenizer.encode(["the model recalls"])
    assert (
        "".join(texts[i] for i in encoded).replace(" ", "").replace("##", "") == "themodelrecalls"
    )
    mask = token_mask(tokenizer, ["the"])
    special = [
        index
        for index, token in tokenizer.backend.get_added_tokens_decoder().items()
        if token.special
    ]
    assert not any(mask[index] for index in [tokenizer.end_token_id, *special])
    assert not any(mask[i] for i, t in enumerate(texts) if t.strip().lower() == "the")
    assert any(mask)


# ------------------------------------------------------------------------------------------ command


def test_sentences_are_true_of_a_text_that_is_shorter_than_a_sequence(run: Callable, tmp_path):
    text = write_jsonl(tmp_path / "short.jsonl", made_up_texts(1, 300))
    done = run("profile", text, "-o", tmp_path / "out", "--seq-len", 2048)
    said = " ".join(done.stdout.split())
    total = pl.read_parquet(tmp_path / "out" / "profile.parquet").row(0, named=True)
    assert 0 < total["content_repeated"] < total["tokens"] < 2048
    share, per = (
        100 * total["repeated"] / total["tokens"],
        2048 * total["content_repeated"] / total["tokens"],
    )
    assert (
        f"{share:.1f} % of the tokens complete a bigram that occurred earlier in their sequence. "
        f"Per 2,048 tokens, {per:.1f}"
    ) in said
    assert "Repeated bigrams per 2,048 tokens" in said


def test_command_prints_draws_and_exports(run: Callable, small_slices, tmp_path):
    out, figures = tmp_path / "out", tmp_path / "figures"
    done = run(
        "profile",
        "--slices",
        small_slices,
        "-o",
        out,
        "--figures",
        figures,
        "--export",
        "csv,json,md,tex",
        "--stop-words",
        "none",
    )
    assert done.returncode == 0, done.stderr
    assert {"books", "repeated"} <= set(done.stdout.split())
    profile_rows = pl.read_parquet(out / "profile.parquet")
    assert_frame_equal(
        pl.read_csv(out / "profile.csv").select("source", "tokens"),
        profile_rows.select("source", "tokens"),
    )
    assert (out / "fits.tex").read_text().count("\\\\") > len(profile_rows)
    names = {path.name for path in figures.iterdir()}
    assert {
        "repeated_bigrams.svg",
        "distances.png",
        "repeated_by_position.svg",
        "ar_hits_by_position.png",
    } <= names
    again = run("profile", "--slices", small_slices, "-o", out, "--stop-words", "none", "--json")
    content = json.loads(again.stdout)
    assert content["profile"] == profile_rows.to_dicts()
    assert (content["stop_words"]["num_words"], content["seq_len"]) == (0, 64)
