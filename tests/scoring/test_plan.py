"""Models with options of their own, names for results, and everything checked before the first
model is scored."""

from __future__ import annotations

import json
import shutil

import polars as pl
import pytest

import recallkit
from recallkit.errors import UserError
from recallkit.models import loading
from recallkit.scoring import find_scores, plan_scores, score_path
from recallkit.storage import hashing, parquet_files
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import made_up_texts, write_jsonl

GOOD = "control:bigram"


@pytest.fixture
def slices(few_slices, tmp_path):
    return shutil.copytree(
        few_slices, tmp_path / "slices", ignore=shutil.ignore_patterns("scores", "gap")
    )


@pytest.fixture
def model(tiny_model, tmp_path):
    """A tiny model in a folder whose name must not appear in a result."""
    return shutil.copytree(tiny_model("llama"), tmp_path / "PRIVATE/runs/llama")


def truncated_config(path):
    (path / "config.json").write_text("{")


def small_vocabulary(path):
    settings = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**settings, "vocab_size": 100}))


def short_context(path):
    settings = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**settings, "max_position_embeddings": 32}))


def bad_tokenizer(path):
    (path / "tokenizer.json").write_text("{")


BROKEN = {
    truncated_config: "config.json cannot be read",
    small_vocabulary: "its vocabulary has 100 entries, and the text has id ",
    short_context: "its context is 32 ids, but a sequence has 64; read it in windows",
    bad_tokenizer: "its tokenizer cannot be read",
}


@pytest.mark.parametrize(
    ("spoil", "problem"), BROKEN.items(), ids=[spoil.__name__ for spoil in BROKEN]
)
def test_what_is_wrong_with_the_last_model_is_told_before_the_first_is_scored(
    spoil, problem, slices, model, monkeypatch
):
    spoil(model)
    monkeypatch.setattr(loading, "load_model", lambda request: pytest.fail("no weight is read"))
    for ask in (
        lambda: recallkit.gap(GOOD, model, slices=slices),
        lambda: recallkit.score([GOOD, model], slices=slices),
    ):
        with pytest.raises(UserError, match=problem):
            ask()
    assert not (slices / "scores").exists(), "nothing was scored"


@pytest.mark.parametrize(
    ("models", "options", "problem"),
    [
        ([GOOD, "no/such/model"], {}, "no/such/model"),
        ([GOOD, "zoo:mamba,device=cuda:99"], {}, "cuda:99: no (such|CUDA) GPU"),
        ([GOOD, "zoo:mamba,tokenizer=no.json"], {}, "no.json: its tokenizer cannot be read"),
        ([GOOD, "zoo:mamba"], {"counts": "no.duckdb"}, "no.duckdb"),
        (
            ["zoo:mamba", "control:recall,tokenizer=bytes"],
            {},
            "a control model is of the slices' own tokens and keeps no state",
        ),
        (["zoo:mamba,stride=8"], {"carry_state": True}, "two ways to read a long sequence"),
        (
            ["zoo:mamba", "zoo:attention,context=512"],
            {},
            "its context is 256 ids; give --context 256 or less",
        ),
    ],
)
def test_so_are_wrong_options(models, options, problem, slices):
    with pytest.raises(UserError, match=problem):
        recallkit.score(models, slices=slices, **options)
    assert not list(slices.glob("scores/*.parquet"))


def test_counts_of_another_tokenizer_are_told_first(slices, tmp_path):
    shard = write_jsonl(tmp_path / "train.jsonl", made_up_texts(5, 50))
    recallkit.count(shard, tokenizer="bytes", out=tmp_path / "bytes.duckdb")
    with pytest.raises(
        UserError,
        match=(
            "counted with tokenizer bytes, but here recallkit-4k is used; count again with that "
            "tokenizer"
        ),
    ):
        recallkit.score(["zoo:mamba", GOOD], slices=slices, counts=tmp_path / "bytes.duckdb")
    assert not list(slices.glob("scores/*.parquet"))
    with pytest.raises(
        UserError, match="counted with tokenizer bytes, but here recallkit-4k is used"
    ):
        recallkit.eval_recall(
            ["control:unigram", "control:recall"],
            counts=tmp_path / "bytes.duckdb",
            out=tmp_path / "evals",
            limit=2,
        )
    assert not list((tmp_path / "evals").rglob("*.parquet"))


def test_each_model_has_options_of_its_own(slices, model):
    """They are those that each alone would be scored with; the command's are for models without."""
    given = {
        "plain": model,
        "half": f"{model},dtype=bfloat16",
        "windows": f"{model},context=32,stride=16",
    }
    recallkit.gap(given, slices=slices, dtype="float32")
    manifests = {
        name: parquet_files.read_manifest(score_path(slices, name))["options"] for name in given
    }
    assert {name: options["dtype"] for name, options in manifests.items()} == {
        "plain": "float32",
        "half": "bfloat16",
        "windows": "float32",
    }
    assert {name: options.get("context") for name, options in manifests.items()} == {
        "plain": None,
        "half": None,
        "windows": 32,
    }
    recallkit.score({"alone": model}, slices=slices, context=32, stride=16)
    alone, windows = (pl.read_parquet(score_path(slices, name)) for name in ("alone", "windows"))
    assert alone.equals(windows)
    assert len({m["model_digest"] for m in manifests.values()}) == 1


def test_a_name_is_not_reused_for_another_model(slices):
    recallkit.score("mine=zoo:mamba", slices=slices)
    for other in ("mine=zoo:hyena", "mine=zoo:mamba,context=64,stride=32"):
        with pytest.raises(
            UserError,
            match=r"already made with other options .*; give this model another name, or score it again",
        ):
            recallkit.gap([other, GOOD], slices=slices)
    assert [path.name for path in (slices / "scores").glob("*.parquet")] == ["mine.parquet"]


def test_scores_without_a_name_are_filed_as_ever_and_found_by_any_name(slices, model):
    """As before there were names: under the path as it was given; results show its last
    component."""
    table = recallkit.score(model, slices=slices).frame
    assert table["model"].to_list() == ["llama"]
    assert table["path"].to_list() == [
        str(slices / "scores" / f"{hashing.file_slug(str(model))}.parquet")
    ]
    assert (
        find_scores(slices, str(model))
        == find_scores(slices, "llama")
        == score_path(slices, str(model))
    )
    [plan] = plan_scores([str(model)], slices)
    assert plan.result.is_complete()
    for frame in (recallkit.tokens(slices, "llama"), recallkit.tokens(slices, {"llama": model})):
        assert "nll_llama" in frame.collect_schema().names()


def test_no_directory_is_on_a_page(slices, model, run, tmp_path):
    """Nor in what is printed or exported."""
    other = shutil.copytree(model, tmp_path / "PRIVATE/other/llama")
    done = run(
        "gap",
        model,
        other,
        f"third={model},dtype=bfloat16",
        "--slices",
        slices,
        "--export",
        "csv,json,md,tex",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    [folder] = (slices / "gap").iterdir()
    found = json.loads(done.stdout)
    assert {row["model"] for row in found["gap"]} == {"other/llama", "third"}
    assert {row["reference"] for row in found["gap"]} == {"runs/llama"}
    printed = run("gap", model, other, f"third={model},dtype=bfloat16", "--slices", slices)
    page = run("report", folder, "-o", tmp_path / "page.html")
    assert printed.returncode == page.returncode == 0, printed.stderr + page.stderr
    exported = [
        path
        for path in folder.iterdir()
        if path.suffix in (".csv", ".json", ".md", ".tex") and path.name != "manifest.json"
    ]
    assert len(exported) > 4
    texts = {path.name: path.read_text() for path in (*exported, tmp_path / "page.html")}
    tables = printed.stdout.partition("written to")[0].partition("Tables")[0]
    assert [name for name, text in {**texts, "stdout": tables}.items() if "PRIVATE" in text] == []
    assert "other/llama" in texts["page.html"]
    shown = run("tokens", folder, "--model", "third")
    assert shown.returncode == 0, shown.stderr
    assert "PRIVATE" not in shown.stdout


def test_auto_is_float32_on_a_cpu_and_what_was_used_is_recorded(slices, model):
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**settings, "dtype": "bfloat16"}))
    table = recallkit.score(f"{model},dtype=auto", slices=slices, device="cpu").frame
    assert table["dtype"].to_list() == ["float32"]
    assert (
        recallkit.score(model, slices=slices).frame["path"].to_list() == table["path"].to_list()
    ), "the same scores"


def test_an_entry_beyond_the_embedding_is_refused_where_it_is_read(tiny_model, tmp_path):
    """A pad token that was added to the tokenizer and is in no text is none of the model's
    concern."""
    path = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    backend = load_tokenizer(None).backend
    backend.add_special_tokens(["<pad>"])
    backend.save(str(path / "tokenizer.json"))
    texts = {"text": made_up_texts(3, 40), "padded": ["the model <pad>", *made_up_texts(2, 40)]}
    for name, chosen in texts.items():
        recallkit.slice(texts=chosen, models=str(path), seq_len=32, out=tmp_path / name)
    recallkit.score(str(path), slices=tmp_path / "text", device="cpu")
    with pytest.raises(
        UserError,
        match="its vocabulary has 4,096 entries, and the text has id 4,096; name its own tokenizer",
    ):
        plan_scores([str(path)], tmp_path / "padded")
