"""`profile` as a whole: text and slices agree, work is found again, a killed run ends in the same bytes, stop words are those asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from recallkit import counting, slicing
from recallkit.errors import UserError
from recallkit.profiling import run as profiling
from recallkit.profiling.run import ProfileOptions, profile, profile_slices, read_profile, stop_words, token_mask, token_texts
from recallkit.profiling.tables import ProfileTables
from recallkit.storage import artifacts
from recallkit.text.open_text import TextOptions
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import made_up_texts, write_jsonl
from tests.made_tokenizers import NAMES, made

FILES = [f"{field.name}.parquet" for field in fields(ProfileTables)]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextOptions:
    folder = tmp_path_factory.mktemp("text")
    books = write_jsonl(folder / "a.jsonl", made_up_texts(90, 300, seed=2), "books")
    letters = write_jsonl(folder / "b.jsonl", made_up_texts(80, 60, seed=3), "letters")
    return TextOptions([str(books), str(letters)], "validation")


def assert_same(one: ProfileTables, other: ProfileTables) -> None:
    for field in fields(ProfileTables):
        assert_frame_equal(getattr(one, field.name), getattr(other, field.name), check_exact=True)


@pytest.mark.parametrize("boundary", ["pack", "document"])
@pytest.mark.parametrize("counted", [True, False])
def test_text_and_its_slices_agree(text, small_slices, tmp_path, boundary, counted):
    text = TextOptions(text.sources, "validation", boundary=boundary)
    counts, rare = small_slices.parent / "counts.duckdb" if counted else None, slicing.RareCount(20)
    slicing.slice_text(text, tmp_path / "slices", counts=counts, rare=rare, seq_len=64)
    of_text = profile(text, tmp_path / "text", counts=counts, rare=rare, seq_len=64)
    of_slices = profile_slices(tmp_path / "slices", tmp_path / "of-slices")
    assert_same(of_text, of_slices)
    rows = pl.read_parquet(tmp_path / "slices" / "tokens.parquet")
    whole = of_text.profile.row(0, named=True)
    assert whole["tokens"] == len(rows)
    assert whole["repeated"] == rows["repeated"].sum()
    assert whole["ar_hits"] == (rows["ar_hit"].sum() if counted else None)
    assert dict(of_text.profile.select("source", "tokens").iter_rows()) == {
        "ALL": len(rows),
        **dict(rows.group_by(pl.col("source").cast(pl.String)).len().iter_rows()),
    }


def test_content_is_decided_by_the_tokens_own_text(text, tmp_path):
    """Of the made-up words some are stop words; what is left is counted by a slow reading of the same slices."""
    slicing.slice_text(text, tmp_path / "slices", counts=None, seq_len=64)
    tables = profile_slices(tmp_path / "slices", tmp_path / "out")
    tokenizer, listed = load_tokenizer(None), set(stop_words("ours"))

    def is_content(index: int) -> bool:
        word = tokenizer.backend.decode([index], skip_special_tokens=False).strip().lower()
        return index != tokenizer.end_token_id and word not in listed and any(c.isalnum() for c in word)

    rows = pl.read_parquet(tmp_path / "slices" / "tokens.parquet")
    kept = {index: is_content(index) for index in {*rows["token"].unique(), *rows["prev_token"].unique()}}
    content = [kept[a] and kept[b] for a, b in rows.select("prev_token", "token").iter_rows()]
    assert 0.2 < sum(content) / len(content) < 0.8
    assert tables.profile["content_tokens"][0] == sum(content)
    assert tables.profile["content_repeated"][0] == (rows["repeated"] & pl.Series(content)).sum()


def test_work_is_found_again_and_not_replaced(text, tmp_path, capsys):
    first = profile(text, tmp_path / "out", seq_len=64)
    before = [(tmp_path / "out" / name).stat().st_mtime_ns for name in FILES]
    assert_same(profile(text, tmp_path / "out", seq_len=64), first)
    assert "is complete: reused" in capsys.readouterr().err
    assert [(tmp_path / "out" / name).stat().st_mtime_ns for name in FILES] == before
    for changed in ({"seq_len": 32}, {"options": ProfileOptions("none")}, {"options": ProfileOptions(x_min=2)}):
        with pytest.raises(UserError, match="already made with other options"):
            profile(text, tmp_path / "out", **{"seq_len": 64, **changed})
    forced = profile(text, tmp_path / "out", seq_len=32, options=ProfileOptions(force=True))
    assert forced.distances["distance"].max() < 32
    manifest = artifacts.read_manifest(tmp_path / "out" / "profile.parquet")
    assert (manifest["kind"], manifest["seq_len"], manifest["stop_words"]["name"]) == ("profile", 32, "ours")
    assert manifest["num_tokens"] == forced.profile["tokens"][0]
    assert_same(read_profile(tmp_path / "out"), forced)


def test_a_foreign_file_is_not_replaced(text, tmp_path):
    (tmp_path / "fits.parquet").write_text("a letter")
    with pytest.raises(UserError, match="did not write"):
        profile(text, tmp_path, seq_len=64, options=ProfileOptions(force=True))
    (tmp_path / "fits.parquet").unlink()
    theirs = pl.DataFrame({"a": [1]})
    theirs.write_parquet(tmp_path / "distances.parquet")
    with pytest.raises(UserError, match="did not write"):
        profile(text, tmp_path, seq_len=64)
    assert pl.read_parquet(tmp_path / "distances.parquet").equals(theirs)


def test_tables_of_two_runs_are_not_taken_for_one(text, tmp_path):
    """A table was removed, or a run with --force was killed between two of them: what is missing or of other options is made anew."""
    first, other = profile(text, tmp_path / "out", seq_len=64), profile(text, tmp_path / "other", seq_len=32)
    (tmp_path / "out" / "fits.parquet").unlink()
    assert_same(profile(text, tmp_path / "out", seq_len=64), first)
    (tmp_path / "other" / "distances.parquet").replace(tmp_path / "out" / "distances.parquet")
    assert not other.distances.equals(first.distances)
    assert_same(profile(text, tmp_path / "out", seq_len=64), first)
    assert_same(read_profile(tmp_path / "out"), first)


def test_a_run_that_fails_goes_on_from_its_last_commit(text, tmp_path, monkeypatch, capsys):
    """Cut at every block in turn: committed histograms and the place in the text belong together."""
    commit_often_here(monkeypatch)
    whole = profile(text, tmp_path / "whole", seq_len=32)
    from recallkit.profiling.tables import ProfileSums

    add, calls, limit = ProfileSums.add, 0, 1

    def fail_later(self, rows):
        nonlocal calls, limit
        calls += 1
        if calls > limit:
            calls, limit = 0, limit + 2
            raise RuntimeError("cut")
        add(self, rows)

    monkeypatch.setattr(ProfileSums, "add", fail_later)
    for _ in range(60):
        try:
            cut = profile(text, tmp_path / "cut", seq_len=32)
            break
        except RuntimeError:
            parts = list((tmp_path / "cut" / ".profile.parquet.partial").glob("part-*"))
            assert len(parts) == 1
    assert capsys.readouterr().err.count("resuming after") > 3
    assert_same(cut, whole)
    assert (tmp_path / "cut" / "profile.parquet").read_bytes() == (tmp_path / "whole" / "profile.parquet").read_bytes()


def commit_often_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from recallkit.text import sequences, tokenizers

    monkeypatch.setattr(profiling, "SECONDS_PER_COMMIT", 0.0)
    monkeypatch.setattr(tokenizers, "_BATCH_CHARACTERS", 20_000)
    monkeypatch.setattr(sequences, "SEQUENCES_PER_ROW_GROUP", 16)


def test_unfinished_work_with_other_options_is_kept(text, tmp_path, monkeypatch):
    commit_often_here(monkeypatch)
    monkeypatch.setattr(profiling, "_write", lambda *_: (_ for _ in ()).throw(RuntimeError("cut")))
    with pytest.raises(RuntimeError):
        profile(text, tmp_path / "out", seq_len=32)
    with pytest.raises(UserError, match="unfinished run with other options"):
        profile(text, tmp_path / "out", seq_len=64)


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"seq_len": 0}, "sequences of 0"),
        ({"seq_len": 1 << 19}, "sequences of 524,288"),
        ({"seq_len": 64, "options": ProfileOptions(x_min=63)}, "no tail of distances begins at 63; give 1 to 62"),
        ({"seq_len": 2, "options": ProfileOptions(x_min=2)}, "give 1 to 1,"),
        ({"rare": slicing.RareCount(max_rate=5.0)}, "a rate needs"),
        ({"options": ProfileOptions("no/such/file")}, "no such list"),
    ],
)
def test_mistakes_are_told_before_the_work(text, tmp_path, arguments, problem):
    with pytest.raises(UserError) as told:
        profile(text, tmp_path / "out", **arguments)
    assert problem in told.value.line()
    assert not (tmp_path / "out").exists()


def test_empty_text_is_told(tmp_path):
    write_jsonl(tmp_path / "t.jsonl", [""])
    with pytest.raises(UserError, match="too short"):
        profile(TextOptions([str(tmp_path / "t.jsonl")], "validation"), tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))


def test_counts_of_other_sequences_are_refused(text, small_slices, tmp_path):
    books = TextOptions(text.sources[:1], "train")
    counting.count(books, tmp_path / "counts.duckdb", only=small_slices)
    with pytest.raises(UserError, match="counted with --only"):
        profile(text, tmp_path / "out", counts=tmp_path / "counts.duckdb")


def test_damaged_slices_are_told(small_slices, tmp_path):
    import pyarrow.parquet as pq

    manifest = artifacts.read_manifest(small_slices / "tokens.parquet")
    rows = pq.read_table(small_slices / "tokens.parquet")
    for column, problem in (("token", "column token is not within"), ("position", "column position is not within")):
        values = rows[column].to_numpy().copy()
        values[100] = 70_000
        changed = rows.set_column(rows.schema.get_field_index(column), column, [values])
        artifacts.write_parquet(tmp_path / "tokens.parquet", [changed], changed.schema, manifest)
        with pytest.raises(UserError, match=problem):
            profile_slices(tmp_path, tmp_path / "out")


# ----------------------------------------------------------------------------------------------------------- stop words


def test_our_stop_words():
    words = stop_words("ours")
    assert {"the", "of", "'s", "don't", "which"} <= set(words)
    assert len(words) > 200
    assert words == sorted(set(words))
    assert not any(word != word.strip().lower() or word.startswith("#") for word in words)
    assert stop_words("none") == []


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
    assert "".join(texts[i] for i in encoded).replace(" ", "").replace("##", "") == "themodelrecalls"
    mask = token_mask(tokenizer, ["the"])
    special = [index for index, token in tokenizer.backend.get_added_tokens_decoder().items() if token.special]
    assert not any(mask[index] for index in [tokenizer.end_token_id, *special])
    assert not any(mask[i] for i, t in enumerate(texts) if t.strip().lower() == "the")
    assert any(mask)


# -------------------------------------------------------------------------------------------------------------- command


def test_command_prints_draws_and_exports(run: Callable, small_slices, tmp_path):
    out, figures = tmp_path / "out", tmp_path / "figures"
    made = run("profile", "--slices", small_slices, "-o", out, "--figures", figures, "--export", "csv,json,md,tex", "--stop-words", "none")
    assert made.returncode == 0, made.stderr
    assert "books" in made.stdout
    assert "alpha" in made.stdout
    assert "in 3" in made.stdout or "training tokens" in made.stdout
    profile_rows = pl.read_parquet(out / "profile.parquet")
    assert_frame_equal(pl.read_csv(out / "profile.csv").select("source", "tokens"), profile_rows.select("source", "tokens"))
    assert (out / "fits.tex").read_text().count("\\\\") > len(profile_rows)
    names = {path.name for path in figures.iterdir()}
    assert {"repeated_bigrams.svg", "distances.png", "repeated_by_position.svg", "ar_hits_by_position.png"} <= names
    again = run("profile", "--slices", small_slices, "-o", out, "--stop-words", "none", "--json")
    assert again.returncode == 0
    found = json.loads(again.stdout)
    assert found["profile"] == profile_rows.to_dicts()
    assert found["stop_words"]["num_words"] == 0
    assert found["seq_len"] == 64


def test_command_fits_80_columns(run: Callable, small_slices, tmp_path, monkeypatch):
    from recallkit.display import console
    from recallkit.profiling.view import distances_table, profile_table

    names = ["ALL", "Gutenberg (PG-19)", "PubMed Abstracts"]
    profile_slices(small_slices, tmp_path)
    tables, manifest = read_profile(tmp_path), artifacts.read_manifest(tmp_path / "profile.parquet")
    renamed = dict(zip(tables.profile["source"], names, strict=True))
    frames = {f.name: getattr(tables, f.name).with_columns(pl.col("source").replace_strict(renamed)) for f in fields(tables)}
    monkeypatch.setenv("COLUMNS", "80")
    from io import StringIO

    from rich.console import Console

    written = StringIO()
    monkeypatch.setattr(console, "stdout", lambda: Console(file=written, width=80, highlight=False))
    for table in (profile_table(ProfileTables(**frames), manifest), distances_table(ProfileTables(**frames))):
        console.print_table(table)
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(" Gutenberg (PG-19) ") for line in lines) == 2
    assert "…" not in written.getvalue()


@pytest.mark.parametrize(("share", "warns"), [(0.16, True), (0.15, False)])
def test_a_threshold_that_calls_common_bigrams_rare_is_warned_of(small_slices, tmp_path, share, warns):
    from recallkit.profiling.view import profile_table

    profile_slices(small_slices, tmp_path)
    tables, manifest = read_profile(tmp_path), artifacts.read_manifest(tmp_path / "profile.parquet")
    tables = replace(tables, profile=tables.profile.with_columns(ar_hit_share=pl.lit(share)))
    last = profile_table(tables, manifest).caption.splitlines()[-1]
    assert last.startswith("Warning: AR hits are 16.0 % of tokens") == warns


def test_no_curve_is_drawn_of_no_distances(tmp_path):
    from recallkit.profiling.view import distances_table

    write_jsonl(tmp_path / "t.jsonl", ["hello world"])
    tables = profile(TextOptions([str(tmp_path / "t.jsonl")], "validation"), tmp_path / "out", seq_len=2)
    assert tables.profile["repeated"].to_list() == [0, 0]
    assert [list(row[1:]) for row in distances_table(tables).rows] == [["–", "–", "–", "–", ""]] * 2


def test_command_needs_no_arguments(run: Callable, home):
    made = run("profile")
    assert made.returncode == 0, made.stderr
    assert "Repeated bigrams in 256 tokens" in made.stdout
    assert "stdlib" in made.stdout
    [numbers] = re.findall(r"Intervals: (\d+) documents resampled \(effective number (\d+)\.\d\)", " ".join(made.stdout.split()))
    assert 50 < int(numbers[1]) <= int(numbers[0]), "a passage of every document, nearly all of one length"
    again = run("profile", "--json")
    found = json.loads(again.stdout)
    assert Path(found["path"]).is_relative_to(home)
    assert 90_000 < found["num_tokens"] < 110_000
    assert found["profile"][0]["documents"] > 50, "of all documents of the built-in validation text"
    sliced = json.loads(run("slice", "--json").stdout)
    theirs = {row["source"]: (row["tokens"], row["repeated"], row["ar_hits"]) for row in sliced["by_source"]}
    assert {row["source"]: (row["tokens"], row["repeated"], row["ar_hits"]) for row in found["profile"]} == theirs


def test_command_refuses_text_beside_slices(run: Callable, small_slices, tmp_path):
    for extra in (["a.jsonl"], ["--seq-len", "32"], ["--boundary", "document"], ["--max-count", "3"]):
        refused = run("profile", *extra, "--slices", small_slices, "-o", tmp_path / "out")
        assert refused.returncode == 2
        assert "--slices: a slice directory brings its own text" in refused.stderr


def test_real_text(test_data, tmp_path):
    """Figures of real text that a wrong count would miss: code repeats more than prose, and distances fall like a power."""
    text = TextOptions(
        [str(test_data / "corpus" / "valid.jsonl.zst")], "validation", str(test_data / "tokenizers" / "gpt2.json"), limit_tokens=1_000_000
    )
    tables = profile(text, tmp_path / "out")
    shares = dict(tables.profile.select("source", "repeated_share").iter_rows())
    assert shares["Github"] > 0.6 > 0.3 > shares["Wikipedia (en)"]
    for row in tables.fits.filter(pl.col("alpha_ci_low").is_not_null()).iter_rows(named=True):
        assert 0.8 < row["alpha_ci_low"] < row["alpha"] < row["alpha_ci_high"] < 5
        assert row["ks"] < (0.1 if row["source"] == "ALL" else 0.2)
    (tmp_path / "w").write_text(
        "\n".join(Path(test_data / "evals" / "nltk-stopwords-english-179.txt").read_text(encoding="utf-8").split()), encoding="utf-8"
    )
    others = profile(text, tmp_path / "nltk", options=ProfileOptions(str(tmp_path / "w")))
    ours, theirs = tables.profile["repeated_bigrams"][0], others.profile["repeated_bigrams"][0]
    assert ours == pytest.approx(theirs, rel=0.1)
