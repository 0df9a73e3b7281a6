"""`recallkit mqar` as a user meets it: models of which the answer is known, a real one by hand,
work gone on with, mistakes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recallkit.errors import UserError
from recallkit.mqar.run import (
    MqarModel,
    evaluate_mqar,
    files_of,
    plan_mqar,
    task_of,
    with_usual_size,
)
from recallkit.mqar.sequences import make_sequences, vocabulary_of
from recallkit.mqar.view import answer, mqar_tables
from recallkit.options import MqarOptions
from recallkit.text.tokenizers import load_tokenizer

VOCAB = 4096
SMALL = MqarOptions(seq_len=64, samples=40, batch_tokens=1024)

PERFECT = """
import torch

def load(request):
    def logits(ids):
        \"\"\"What followed the latest earlier occurrence of an id, with a logit of 40.\"\"\"
        t = ids.shape[1]
        same = (ids[:, :, None] == ids[:, None, :]) & torch.ones(t, t, dtype=torch.bool).tril(-1)
        latest = torch.where(same, torch.arange(t), -1).amax(-1)
        following = torch.gather(ids, 1, (latest + 1).clamp(max=t - 1))
        out = torch.zeros(*ids.shape, 4096)
        return out.scatter_(2, following[..., None], torch.where(latest >= 0, 40.0, 0.0)[..., None])
    return logits
"""

CONSTANT = """
import math
import torch

def uniform(request):
    return lambda ids: torch.zeros(*ids.shape, 4096)

def half_filler(request):
    \"\"\"Half of all probability on the space, whatever the context.\"\"\"
    def logits(ids):
        out = torch.zeros(*ids.shape, 4096)
        out[..., FILLER] = math.log(4095)
        return out
    return logits
"""


@pytest.fixture
def own(tmp_path) -> dict[str, str]:
    """Models of a user's own, by name."""
    filler = vocabulary_of(load_tokenizer(None)).filler
    (tmp_path / "perfect.py").write_text(PERFECT)
    (tmp_path / "constant.py").write_text(CONSTANT.replace("FILLER", str(filler)))
    constant = {name: f"{tmp_path / 'constant.py'}:{name}" for name in ("uniform", "half_filler")}
    return {"perfect": f"{tmp_path / 'perfect.py'}:load", **constant}


def rows_of(tables, model: str) -> list[dict]:
    return tables.mqar.filter(pl.col("model") == model).to_dicts()


def test_models_of_which_the_answer_is_known_are_measured_so(home, own, tmp_path):
    tables, _ = evaluate_mqar(list(own.values()), [2, 8, 16], tmp_path / "out", SMALL)
    for row in rows_of(tables, own["perfect"]):
        assert row["accuracy"] == 1.0
        assert row["ar_ppl"] == pytest.approx(1.0, abs=1e-6)
        assert 0.8 < row["accuracy_low"] < row["accuracy_high"] == 1.0
    for row in rows_of(tables, own["uniform"]):
        assert row["ar_ppl"] == pytest.approx(VOCAB, rel=1e-6)
        assert row["accuracy"] == 0.0, (
            "the lowest of equals is no value, though its rank is the best"
        )
        assert row["accuracy_difference"] == -1.0
    for row in rows_of(tables, own["half_filler"]):
        assert row["ar_ppl"] == pytest.approx(2 * (VOCAB - 1), rel=1e-5)
        assert row["filler_tokens"] == 40 * (64 - 4 * row["pairs"])
        if row["filler_tokens"]:
            assert row["filler_ppl"] == pytest.approx(2.0, rel=1e-5)
            assert row["filler_accuracy"] == 1.0
    ranks = pl.read_parquet(files_of(tmp_path / "out", own["uniform"], 64, 8).queries)["rank"]
    assert (ranks == 0).all()


FIRST = PERFECT.replace("What followed the latest", "What followed the first").replace(
    "latest = torch.where(same, torch.arange(t), -1).amax(-1)",
    (
        "latest = torch.where(same, torch.arange(t), t).amin(-1)\n        latest = "
        "torch.where(latest < t, latest, -1)"
    ),
)


def test_each_task_is_answered_by_what_it_asks_for(home, own, tmp_path):
    """What followed the latest occurrence is the answer, unless it takes two lookups; what followed
    the first is overwritten."""
    (tmp_path / "first.py").write_text(FIRST)
    models = [own["perfect"], f"{tmp_path / 'first.py'}:load"]
    for task, expected in {
        "read_twice": (1.0, 1.0),
        "overwriting": (1.0, 0.5),
        "overwriting,updates=2": (1.0, 0.75),
        "distractors": (1.0, 1.0),
        "two_hops": (0.0, 0.0),
        "mqar,filler=random": (0.9, 0.9),
    }.items():
        tables, folder = evaluate_mqar(models, [8], tmp_path / "out", replace(SMALL, task=task))
        assert folder.name.startswith(task.split(",")[0])
        rows = tables.mqar.to_dicts()
        assert [row["accuracy"] for row in rows] == pytest.approx(
            expected,
            abs=0.1 if "random" in task else 0,
        )
        assert [(row["task"], row["power"], row["ar_tokens"]) for row in rows] == [
            (task, 0.01, 320),
        ] * 2
    printed = [
        cell
        for table in mqar_tables(tables).values()
        for cell in (table.title, table.caption or "")
    ]
    assert "mqar,filler=random: values recalled, in %, by number of pairs" in printed
    assert answer(tables).startswith("In mqar,filler=random, with 8 pairs in 64 ids, ")


def test_a_task_of_the_users_own_is_asked(run, home, tmp_path):
    own = """
import torch

def repeats(num, length, pairs, vocab, generator, *, gap: int = 1):
    ids = torch.randint(1, vocab, (num, length), generator=generator)
    targets, distances = torch.full_like(ids, -100), torch.zeros_like(ids)
    ids[:, -1 - gap] = ids[:, -3 - gap]
    targets[:, -1 - gap], distances[:, -1 - gap] = ids[:, -2 - gap], 1
    return ids, targets, distances
"""
    (tmp_path / "tasks.py").write_text(own)
    words = [
        "mqar",
        "control:recall",
        "--seq-len",
        16,
        "--samples",
        20,
        "--pairs",
        1,
        "-o",
        tmp_path / "out",
        "--json",
    ]
    done = run(*words, "--task", f"{tmp_path / 'tasks.py'}:repeats,gap=2")
    [row] = json.loads(done.stdout)["mqar"]
    assert (row["accuracy"] > 0.8, row["ar_tokens"], row["power"], row["filler_tokens"]) == (
        True,
        20,
        None,
        0,
    ), done.stderr
    refused = run(
        "mqar",
        "control:recall",
        "--task",
        "copying",
        "--power",
        1,
        "-o",
        tmp_path / "other",
    )
    assert (
        refused.returncode,
        "copying has no power law of query positions; leave it out" in refused.stderr,
    ) == (2, True), refused.stderr


def test_a_real_model_as_a_direct_pass_has_it(home, tiny_model, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    model = str(tiny_model("llama"))
    evaluate_mqar([model], [6], tmp_path, SMALL)
    queries = pl.read_parquet(files_of(tmp_path, model, 64, 6).queries)
    fillers = pl.read_parquet(files_of(tmp_path, model, 64, 6).fillers)
    vocabulary = vocabulary_of(load_tokenizer(None))
    sequences = make_sequences(task_of(SMALL, 6), vocabulary, 40)
    net = AutoModelForCausalLM.from_pretrained(model).double().eval()
    with torch.no_grad():
        log_probabilities = net(torch.from_numpy(sequences.ids)).logits.log_softmax(-1).numpy()
    for sample, (ids, words) in enumerate(zip(sequences.ids, sequences.answers, strict=True)):
        places = np.flatnonzero(words)
        of_sample = queries.filter(pl.col("sample") == sample)
        expected = [-log_probabilities[sample, place, ids[place + 1]] for place in places]
        np.testing.assert_allclose(of_sample["nll"].to_numpy(), expected, rtol=0, atol=3e-5)
        best = [
            int(log_probabilities[sample, place].argmax()) == ids[place + 1] for place in places
        ]
        assert of_sample["right"].to_list() == best
        assert of_sample["place"].to_list() == places.tolist()
        tail = [place for place in range(12, 64) if ids[place] == vocabulary.filler]
        nll = -sum(log_probabilities[sample, place - 1, vocabulary.filler] for place in tail)
        assert fillers["filler_nll"][sample] == pytest.approx(nll, abs=2e-3)
        assert fillers["filler_tokens"][sample] == len(tail)


def test_the_zoo_is_asked_less_than_the_papers_models():
    for is_zoo, size in {
        True: (256, 50, [4, 8, 16, 32, 64]),
        False: (1024, 1000, [16, 32, 64, 128, 256]),
    }.items():
        options = with_usual_size(MqarOptions(), is_zoo=is_zoo)
        assert (options.length, options.num_samples, options.pairs) == size
    assert with_usual_size(MqarOptions(seq_len=64, samples=3, pairs=(8, 4)), is_zoo=True).pairs == [
        4,
        8,
    ]


# ----------------------------------------------------------------------------- found again, gone on


def contents(out: Path) -> dict[str, bytes]:
    """All files; of manifests what does not depend on how long it took."""
    files = {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }
    for name in [name for name in files if name.endswith(".json")]:
        manifest = json.loads(files[name])
        manifest.pop("timings", None)
        files[name] = json.dumps(manifest).encode()
    return files


def test_finished_work_is_reused_and_a_table_that_is_gone_made_again(home, tmp_path, monkeypatch):
    tables, folder = evaluate_mqar(["control:recall", "control:unigram"], [4], tmp_path, SMALL)
    before = contents(tmp_path)
    files_of(tmp_path, "control:unigram", 64, 4).fillers.unlink()
    evaluate_mqar(["control:recall", "control:unigram"], [4], tmp_path, SMALL)
    assert contents(tmp_path) == before
    monkeypatch.setattr(
        MqarModel,
        "model",
        property(lambda self: pytest.fail("nothing is asked again")),
    )
    again, same = evaluate_mqar(["control:recall", "control:unigram"], [4], tmp_path, SMALL)
    assert same == folder
    assert again.mqar.equals(tables.mqar)
    assert contents(tmp_path) == before
    assert evaluate_mqar(["control:unigram"], [4], tmp_path, SMALL)[1] != folder, (
        "another question, another folder"
    )


# ----------------------------------------------------------------------------------------- mistakes


def test_mistakes_are_told_before_any_work(home, tiny_model, tmp_path):
    long = MqarOptions(seq_len=300, samples=40)
    short = str(tiny_model("gpt_neox"))
    for models, pairs, options, message in [
        (
            ["zoo:attention,stride=8"],
            [4],
            SMALL,
            "zoo:attention: stride is not an option of a model here; leave it out",
        ),
        (
            ["control:copy"],
            [4],
            SMALL,
            "control:copy: it reads text, .* evaluate it with `recallkit eval-recall`",
        ),
        (["control:unigram", "control:nothing"], [4], SMALL, "no such control model"),
        (["control:unigram", "control:unigram"], [4], SMALL, "a model is named twice"),
        (["control:unigram"], [4, 4], SMALL, "a number of pairs is named twice"),
        (
            ["control:unigram"],
            [4, 17],
            SMALL,
            "17 pairs do not fit into 64 ids of a vocabulary of 4,095; they need a length of 68",
        ),
        (["control:unigram"], [4], MqarOptions(seq_len=64, samples=40, power=-1.0), "power -1.0"),
        (
            ["control:unigram", "zoo:hyena"],
            [4],
            long,
            "zoo:hyena: its context is 256 ids.* give --seq-len 257 or less",
        ),
        (
            ["control:unigram", short],
            [4],
            long,
            "its context is 256 ids.* give --seq-len 257 or less",
        ),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            evaluate_mqar(models, pairs, tmp_path / "out", options)
        assert "\n" not in caught.value.line()
        assert not list((tmp_path / "out").rglob("*.parquet"))
    bytes_ = MqarOptions(seq_len=1024, samples=2, model_tokenizer="bytes")
    with pytest.raises(
        UserError,
        match=(
            "128 pairs do not fit into 1,024 ids of a vocabulary of 255; they need a length of "
            "512 and a vocabulary of 258 at least"
        ),
    ):
        plan_mqar([str(tiny_model("llama"))], [128], tmp_path / "out", bytes_)
    evaluate_mqar([short], [4], tmp_path / "out", MqarOptions(seq_len=257, samples=2))


# ---------------------------------------------------------------------------------- what is printed


def test_the_command(run, home, tmp_path):
    out, figures = tmp_path / "x[bold]", tmp_path / "figures"
    command = [
        "mqar",
        "control:recall",
        "control:bigram",
        "--seq-len",
        64,
        "--samples",
        10,
        "--pairs",
        "8,4",
        "-o",
        out,
    ]
    done = run(*command, "--figures", figures, "--export", "csv,json,md,tex")
    assert done.returncode == 0, done.stderr
    assert "x[bold]" in done.stdout
    assert {path.stem for path in figures.iterdir() if path.suffix == ".pdf"} == {
        "mqar_perplexity",
        "mqar_accuracy",
        "mqar_by_distance",
    }
    output = json.loads(run(*command, "--json").stdout)
    assert [(row["model"], row["pairs"]) for row in output["mqar"]] == [
        (m, p) for m in ("control:recall", "control:bigram") for p in (4, 8)
    ]
    names = {path.name for path in Path(output["path"]).iterdir()}
    assert {
        "mqar.parquet",
        "by_distance.parquet",
        "mqar.csv",
        "by_distance.json",
        "accuracy.md",
        "perplexity.tex",
        "difference.tex",
    } <= names
    refused = run("mqar", "--pairs", "4,x", "-o", tmp_path / "other")
    assert (refused.returncode, "--pairs: 'x' is no whole number" in refused.stderr) == (2, True)
