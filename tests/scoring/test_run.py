"""Score files: row-aligned with the slices, the same bytes however and by whomever they are made,
refused where they do not fit."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch

from recallkit import scoring, slicing
from recallkit.errors import UserError
from recallkit.models import loading
from recallkit.models.loading import load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from recallkit.options import TextOptions
from recallkit.parallel import processes
from recallkit.scoring import plan as planning
from recallkit.scoring import scores
from recallkit.storage import parquet_files
from recallkit.storage.schemas import arrow_schema
from recallkit.text.tokenizers import load_tokenizer
from tests.models.test_hf import direct


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sequences_of(slices: Path) -> tuple[np.ndarray, np.ndarray]:
    rows = pl.read_parquet(slices / "sequences.parquet")["tokens"].to_list()
    return np.concatenate(rows), np.concatenate([[0], np.cumsum([len(r) for r in rows])])


@pytest.mark.parametrize(("family", "batch_tokens"), [("llama", 64), ("mamba", None)])
def test_a_score_file_holds_the_models_own_nlls(few_slices, tiny_model, family, batch_tokens):
    path = str(tiny_model(family))
    options = scoring.ScoringOptions(device="cpu", batch_tokens=batch_tokens)
    scoring.score(path, few_slices, options, force=True)
    table = pl.read_parquet(scoring.score_path(few_slices, path))
    nll, argmax, _ = direct(path, *sequences_of(few_slices))
    np.testing.assert_allclose(table["nll"], nll, rtol=0, atol=1e-5)
    assert (table["argmax"].to_numpy() == argmax).mean() > 0.99


def row_groups(path: Path) -> list[int]:
    metadata = pq.read_metadata(path)
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def test_rows_and_row_groups_are_those_of_the_slices(few_slices):
    scoring.score("control:bigram", few_slices)
    path = scoring.score_path(few_slices, "control:bigram")
    keys = ["sequence", "position"]
    assert pl.read_parquet(path, columns=keys).equals(
        pl.read_parquet(few_slices / "tokens.parquet", columns=keys)
    )
    assert row_groups(path) == row_groups(few_slices / "tokens.parquet")


SETTLED = scoring.ScoringOptions(device="cpu", batch_tokens=512)
"""The same batches in every run: a probe of the machine's speed may choose others each time."""


@pytest.fixture
def finely(monkeypatch) -> None:
    """Parts of two sequences, so that a small slice directory has many."""
    monkeypatch.setattr(planning, "SEQUENCES_PER_PART", 2)
    monkeypatch.setattr(scores, "SEQUENCES_PER_ROW_GROUP", 16)


def copy_of(slices: Path, folder: Path) -> Path:
    return Path(
        shutil.copytree(slices, folder / "slices", ignore=shutil.ignore_patterns("scores", "gap"))
    )


def only_scores(slices: Path) -> str:
    """The digest of the one score file; nothing unfinished is left."""
    [path] = (slices / "scores").glob("*.parquet")
    assert not list((slices / "scores").glob(".*"))
    return digest(path)


def scores_at_once(model: str, slices: Path) -> str:
    scoring.score(model, slices, SETTLED)
    return only_scores(slices)


@pytest.fixture
def slices(finely, small_slices, tmp_path) -> Path:
    """A copy without scores, with counts of its own text."""
    return copy_of(small_slices, tmp_path)


CONTROL = "control:bigram"


@pytest.fixture
def whole(finely, small_slices, tmp_path) -> str:
    """The digest of a score file made by one process without interruption."""
    return scores_at_once(CONTROL, copy_of(small_slices, tmp_path / "at-once"))


def interrupting_batches(monkeypatch, *numbers):
    """Interrupts the program in batches of these numbers, from 1; returns the batches so far, as
    the calls that score them."""
    original, calls = scores._score_batch, []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) in numbers:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(scores, "_score_batch", failing)
    return calls


def test_a_part_that_is_begun_goes_on_where_it_was_interrupted(
    few_slices, tiny_model, tmp_path, monkeypatch, capsys
):
    """One part, a sequence a batch: what was scored is kept, told, and not scored again."""
    slices, model = copy_of(few_slices, tmp_path), str(tiny_model("gpt_neox"))
    one_by_one = replace(SETTLED, batch_tokens=1)
    at_once = scoring.score(model, copy_of(few_slices, tmp_path / "at-once"), one_by_one)

    calls = interrupting_batches(monkeypatch, 4, 7)
    for kept in (3, 5):
        with pytest.raises(KeyboardInterrupt):
            scoring.score(model, slices, one_by_one)
        said = capsys.readouterr().err.splitlines()
        assert said[-1].endswith(f"{kept * 64:,} of {at_once['num_rows']:,} tokens kept")
    assert "resuming after 192 tokens of an interrupted run" in "".join(said)
    assert scoring.score(model, slices, one_by_one) == at_once
    assert (
        len(calls) == 2 + parquet_files.read_manifest(slices / "sequences.parquet")["num_sequences"]
    )
    assert only_scores(slices) == only_scores(tmp_path / "at-once" / slices.name)


def score_share(
    model: object, slices: Path, share: tuple[int, int], **options: object
) -> dict[str, object]:
    """Scores what one of several jobs would."""
    return scoring.make_scores(
        scoring.plan_scores([str(model)], slices, replace(SETTLED, **options), share=share)[0]
    )


def test_shares_are_scored_and_joined(whole, warm_workers, slices):
    told = [score_share(CONTROL, slices, (place, 3)) for place in (3, 1)]
    assert told[0]["parts_done"] < told[1]["parts_done"] < told[1]["num_parts"]
    assert not scoring.score_path(slices, CONTROL).exists()
    scoring.score(CONTROL, slices, replace(SETTLED, workers=2))
    assert only_scores(slices) == whole


def test_a_killed_process_is_replaced_and_nothing_changes(
    whole, warm_workers, dying_worker, slices, capfd
):
    scoring.score(CONTROL, slices, replace(SETTLED, workers=2))
    assert "SIGKILL" in capfd.readouterr().err
    assert only_scores(slices) == whole


def test_processes_that_keep_dying_are_given_up(warm_workers, few_slices, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_serve", _die)
    with pytest.raises(UserError, match=r"keep dying \(exit status 3\)"):
        scoring.score(
            "control:bigram", copy_of(few_slices, tmp_path), scoring.ScoringOptions(workers=2)
        )


def _die(*_: object) -> None:
    os._exit(3)


def test_what_changes_while_it_is_scored_is_noticed(
    finely, small_slices, tiny_model, tmp_path, monkeypatch
):
    slices, model = copy_of(small_slices, tmp_path), tmp_path / "model"
    shutil.copytree(tiny_model("llama"), model)
    original = scores.write_part
    monkeypatch.setattr(scores, "write_part", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    loaded = loading.load_model

    def replaced(request: ModelPlan) -> object:
        (model / "config.json").write_text((model / "config.json").read_text() + "\n")
        return loaded(request)

    monkeypatch.setattr(loading, "load_model", replaced)
    with pytest.raises(UserError, match="its files changed while it was scored"):
        scoring.score(str(model), slices, SETTLED)
    monkeypatch.setattr(loading, "load_model", loaded)
    monkeypatch.setattr(scores, "write_part", original)
    with pytest.raises(UserError, match="replaced while it was scored"):
        scores.SequenceReader(slices / "sequences.parquet", 2, "another digest")
    score_share(str(model), slices, (1, 2))
    [first, *_] = (slices / "scores").glob(".*.partial/part-*[0-9]")
    parquet_files.write_parquet(first, [pq.read_table(first).slice(1)], arrow_schema("scores"), {})
    with pytest.raises(UserError, match="its parts have"):
        scoring.score(str(model), slices, SETTLED)


def test_a_damaged_part_is_removed_and_made_anew(whole, slices):
    score_share(CONTROL, slices, (1, 3))
    part = sorted((slices / "scores").glob(".*.partial/part-*[0-9]"))[1]
    content = part.read_bytes()
    part.write_bytes(content[:60] + b"\xff" * 16 + content[76:])
    with pytest.raises(UserError, match=r"damaged part.*run the same command again"):
        scoring.score(CONTROL, slices, SETTLED)
    scoring.score(CONTROL, slices, SETTLED)
    assert only_scores(slices) == whole


def test_scores_of_several_machines_come_together_in_one_folder(
    run, few_slices, tiny_model, tmp_path
):
    """The models stay where they were scored."""
    models = {"attention": tiny_model("gpt_neox"), "mamba": tiny_model("mamba")}
    together = copy_of(few_slices, tmp_path / "together")
    (together / "scores").mkdir()
    for name, model in models.items():
        there = copy_of(few_slices, tmp_path / name)
        shutil.copytree(model, tmp_path / name / "model")
        assert (
            run(
                "score", f"{name}={tmp_path / name}/model", "--slices", there, "--device", "cpu"
            ).returncode
            == 0
        )
        shutil.rmtree(tmp_path / name / "model")
        for file in (there / "scores").iterdir():
            shutil.copy(file, together / "scores")
    asked = [f"{name}=model" for name in models]
    compared = run("gap", *asked, "--slices", together, "--json")
    assert compared.returncode == 0, compared.stderr
    assert "mamba: not on this machine; its existing scores are used" in compared.stderr
    [row] = [
        row
        for row in json.loads(compared.stdout)["gap"]
        if row["slice"] == "all" and row["source"] == "ALL"
    ]
    nlls = {
        name: pl.read_parquet(together / "scores" / f"{name}.parquet")["nll"].mean()
        for name in models
    }
    assert {"attention": row["nll_reference"], "mamba": row["nll_model"]} == pytest.approx(nlls)

    other, made = tmp_path / "other" / "slices", few_slices.parent
    sliced = run(
        "slice",
        made / "other.jsonl",
        "-o",
        other,
        "--counts",
        made / "counts.duckdb",
        "--max-count",
        20,
        "--seq-len",
        64,
    )
    assert sliced.returncode == 0, sliced.stderr
    shutil.copytree(together / "scores", other / "scores")
    refused = run("gap", *asked, "--slices", other)
    assert refused.returncode == 1
    assert (
        "attention.parquet: already made with other options (differs in sequences_digest)"
        in refused.stderr.splitlines()[-1]
    )
    missing = run("gap", asked[0], "rwkv=model", "--slices", together)
    assert "model: no such file or directory" in missing.stderr.splitlines()[-1]
    forced = run("score", asked[0], "--slices", together, "--force")
    assert "model: no such file or directory" in forced.stderr.splitlines()[-1]
    assert "existing scores are used" not in forced.stderr


def test_a_wrong_option_of_a_share_blocks_nobody(few_slices, tiny_model, tmp_path):
    """Where no part was made yet, another job with other options goes on; where one was, it is
    told."""
    slices, model = copy_of(few_slices, tmp_path), str(tiny_model("llama"))
    with pytest.raises(UserError, match=r"context (holds|is) 256 ids"):
        score_share(model, slices, (1, 2), context=300)
    told = score_share(model, slices, (1, 2), context=20, stride=10)
    assert not told["joined"]
    with pytest.raises(UserError, match="differs in stride"):
        score_share(model, slices, (2, 2), context=20, stride=11)
    done = scoring.score(model, slices, replace(SETTLED, context=20, stride=10))
    told = score_share(model, slices, (2, 2))
    assert told["joined"]
    assert done["stride"] == 10


def test_the_remedy_does_what_was_typed_and_force_alone_goes_back_to_the_usual(
    few_slices, tiny_model, tmp_path
):
    slices, model = (
        copy_of(few_slices, tmp_path),
        shutil.copytree(tiny_model("llama"), tmp_path / "model"),
    )
    half = replace(SETTLED, dtype="bfloat16")
    scoring.score(str(model), slices, SETTLED)
    with pytest.raises(UserError, match=r"differs in dtype.*--dtype bfloat16 .*--force"):
        scoring.score(str(model), slices, half)
    dtypes = [scoring.score(str(model), slices, half, force=True)["dtype"]]
    dtypes += [
        scoring.score(str(model), slices, SETTLED, force=force)["dtype"] for force in (False, True)
    ]
    assert dtypes == ["bfloat16", "bfloat16", "float32"]
    (model / "config.json").write_text((model / "config.json").read_text() + "\n")
    with pytest.raises(UserError, match="differs in model_digest"):
        scoring.score(str(model), slices, SETTLED)


def test_strided_windows_equal_the_models_own_windows(few_slices, tiny_model, tmp_path):
    slices, path = copy_of(few_slices, tmp_path), str(tiny_model("llama"))
    scoring.score(path, slices, scoring.ScoringOptions(device="cpu", context=24, stride=10))
    table = pl.read_parquet(scoring.score_path(slices, path))
    model = load_model(ModelPlan(ModelSpec(path), 4096, device="cpu"))
    ids, offsets = sequences_of(slices)
    expected, chosen = [], [*range(0, len(offsets) - 2, 4), len(offsets) - 2]
    for start, stop in (offsets[[number, number + 1]] for number in chosen):
        sequence, done = ids[start:stop], 0
        while done < len(sequence) - 1:
            end = min(len(sequence) - 1, 24 if done == 0 else done + 10)
            begin = max(0, end - 24)
            window = model.score(sequence[begin : end + 1], np.array([0, end + 1 - begin]))
            expected += window.nll[done - begin :].tolist()
            done = end
    np.testing.assert_allclose(
        table.filter(pl.col("sequence").is_in(chosen))["nll"], expected, rtol=0, atol=1e-5
    )
    assert scoring.score(path, slices)["stride"] == 10, (
        "asked again without options, the scores that are there are found"
    )
    with pytest.raises(UserError, match="differs in stride"):
        scoring.score(path, slices, scoring.ScoringOptions(device="cpu", context=24, stride=11))


def test_the_check_measures_the_distance_to_float64(few_slices, tiny_model, tmp_path):
    slices, path = copy_of(few_slices, tmp_path), str(tiny_model("llama"))
    scoring.score(path, slices, scoring.ScoringOptions(device="cpu", dtype="bfloat16"))
    rough = scoring.check_scores(path, slices)
    scoring.score(path, slices, scoring.ScoringOptions(device="cpu", dtype="float32"), force=True)
    fine = scoring.check_scores(path, slices)
    assert fine["tokens"] == rough["tokens"] > 100
    assert 0 < fine["largest"] < 1e-5 < 1e-3 < rough["largest"]
    assert fine["same_argmax"] == 1
    # A score that is wrong is found where it stands.
    table = pl.read_parquet(scoring.score_path(slices, path))
    nll = table["nll"].to_numpy().copy()
    place = table.with_row_index().filter((pl.col("sequence") == 0) & (pl.col("position") == 17))[
        "index"
    ][0]
    nll[place] += 1
    manifest = parquet_files.read_manifest(scoring.score_path(slices, path))
    spoiled = table.with_columns(nll=pl.Series(nll)).to_arrow().cast(arrow_schema("scores"))
    parquet_files.write_parquet(
        scoring.score_path(slices, path), [spoiled], arrow_schema("scores"), manifest
    )
    found = scoring.check_scores(path, slices)
    assert (found["sequence"], found["position"]) == (0, 17)
    assert found["largest"] == pytest.approx(1, abs=1e-4)


def test_a_model_with_another_tokenizer_reads_the_same_bytes(
    few_slices, tiny_model, tmp_path, capfd
):
    slices, model = copy_of(few_slices, tmp_path), tmp_path / "model"
    shutil.copytree(tiny_model("mamba", vocab_size=256), model)
    path = str(model)
    manifest = scoring.score(
        path, slices, scoring.ScoringOptions(device="cpu", model_tokenizer="bytes")
    )
    assert "another tokenizer (bytes)" in capfd.readouterr().err
    table = pl.read_parquet(scoring.score_path(slices, path))
    assert table.select("sequence", "position").equals(
        pl.read_parquet(slices / "tokens.parquet", columns=["sequence", "position"])
    )
    assert table["exact"].all()
    assert manifest["num_inexact"] == 0
    # The same bytes scored by hand: the first id's bytes are context, an end token is a newline.
    used = load_tokenizer(None)
    first, *_ = pl.read_parquet(slices / "sequences.parquet")["tokens"].to_list()
    pieces = [b"\n" if i == used.end_token_id else used.token_bytes[i] for i in first]
    data = np.frombuffer(b"".join(pieces), np.uint8).astype(np.uint32)
    nll, _, rank = direct(path, data, np.array([0, len(data)]))
    ends = np.cumsum([len(piece) for piece in pieces]) - 1
    mine = table.filter(pl.col("sequence") == 0)
    np.testing.assert_allclose(
        mine["nll"], np.add.reduceat(nll, ends[:-1])[: len(first) - 1], rtol=0, atol=1e-4
    )
    assert mine["context"].to_list() == ends[1:].tolist()
    assert (mine["argmax"] == -1).all()
    assert (np.maximum.reduceat(rank, ends[:-1]) == mine["rank"].to_numpy()).mean() > 0.99
    # Asked again without the option the scores are found; another tokenizer is another question.
    assert scoring.score(path, slices) == {**manifest, "reused": True}
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="cuda: no CUDA GPU"):
            scoring.score(path, slices, scoring.ScoringOptions(device="cuda"))
    with pytest.raises(UserError, match="differs in tokenizer"):
        scoring.score(
            path,
            slices,
            scoring.ScoringOptions(device="cpu", model_tokenizer=str(slices / "tokenizer.json")),
        )


def renamed_end(settings: dict) -> None:
    """The end token under a name that is not among those tried: found only by whom the slices name
    it to."""
    settings["model"]["vocab"]["<stop>"] = settings["model"]["vocab"].pop("<|endoftext|>")
    settings["added_tokens"][0]["content"] = "<stop>"


def another_end(settings: dict) -> None:
    settings["model"]["vocab"]["</s>"] = settings["model"]["vocab"].pop("<|endoftext|>")
    settings["added_tokens"][0]["content"] = "</s>"


def swapped_ids(settings: dict) -> None:
    vocab = settings["model"]["vocab"]
    vocab["Ġthe"], vocab["Ġof"] = vocab["Ġof"], vocab["Ġthe"]


def without_merges(settings: dict) -> None:
    settings["model"]["merges"] = []


def fewer_entries(settings: dict) -> None:
    settings["model"]["merges"] = []
    settings["model"]["vocab"] = {
        token: index for token, index in settings["model"]["vocab"].items() if index <= 256
    }


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda _: None, True),
        (
            lambda settings: settings.update(
                decoder={**settings["decoder"], "trim_offsets": False}, post_processor=None
            ),
            True,
        ),
        (another_end, False),
        (swapped_ids, False),
        (without_merges, False),
        (fewer_entries, False),
    ],
    ids=[
        "the same",
        "written differently",
        "another end token",
        "swapped ids",
        "no merges",
        "fewer entries",
    ],
)
def test_a_models_own_tokenizer_is_known_to_be_the_slices_or_not(
    tiny_model, few_slices, tmp_path, change, same
):
    path = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), path)
    settings = json.loads(load_tokenizer(None).backend.to_str())
    change(settings)
    (path / "tokenizer.json").write_text(json.dumps(settings))
    [plan] = scoring.plan_scores([str(path)], copy_of(few_slices, tmp_path), SETTLED)
    assert plan.own_tokenizer == (None if same else str(path))


def test_an_end_token_that_only_the_user_can_name_is_no_false_alarm(tiny_model, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), path)
    settings = json.loads(load_tokenizer(None).backend.to_str())
    renamed_end(settings)
    (path / "tokenizer.json").write_text(json.dumps(settings))
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "a text of its own " * 20}) + "\n")
    text = TextOptions(
        [str(tmp_path / "text.jsonl")], "validation", tokenizer=str(path), end_token="<stop>"
    )
    slicing.slice_text(text, tmp_path / "slices", counts=None, seq_len=32)
    manifest = scoring.score(str(path), tmp_path / "slices", scoring.ScoringOptions(device="cpu"))
    assert manifest["num_rows"] > 0
