"""A model trained on text: it learns, resumes to the same bytes, adds up gradients and processes,
and what cannot be is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import recallkit
from recallkit import cli
from recallkit.errors import UserError
from recallkit.training.loop import Trainer

TOML = """
[model]
d_model = 16
layers = [{mixer = "attention", options = {num_heads = 2}}, {mixer = "mamba", options = {state = 4}}]

[recipe]
batch = 4
learning_rate = 0.01
"""
SIZES = {"tokens": 8192, "seq_len": 64, "device": "cpu"}
LAST = Path("checkpoint-32", "model.safetensors")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.toml"
    path.write_text(TOML)
    return path


@pytest.fixture(scope="module")
def text(short_text):
    return short_text(60, 1000)


@pytest.fixture(scope="module")
def unstopped(home, model, text, tmp_path_factory):
    """A training that nothing stopped: its folder, and its rows."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, recallkit.train(
        model,
        text,
        **SIZES,
        checkpoint_every=2048,
        out=folder / "out",
    ).training


def stop_at(monkeypatch, step):
    """Ctrl-C as a step begins, counted from 1."""
    real, left = Trainer.gradients, [step]

    def stopped(self, *arguments):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(Trainer, "gradients", stopped)


def weights_of(folder):
    return load_file(folder / LAST)


def test_the_loss_falls_and_the_checkpoint_is_read_with_its_tokenizer(unstopped, text, tmp_path):
    out, trained = unstopped[0] / "out", unstopped[1]
    assert trained["step"].to_list()[-1] == 32
    assert trained["tokens"].to_list() == [step * 4 * 64 for step in trained["step"]]
    losses = trained["loss_nats"].to_list()
    assert losses[0] > 7.5, "4,096 ids, of which it knows nothing"
    assert sum(losses[-5:]) / 5 < losses[0] - 1
    folder = (out / LAST).parent
    recallkit.slice(
        text,
        tokenizer=folder / "tokenizer.json",
        limit_tokens=500,
        out=tmp_path / "slices",
    )
    scores = recallkit.score(folder, slices=tmp_path / "slices", device="cpu").frame
    assert scores["nll_nats"].item() < losses[0] - 0.5


def test_a_stopped_training_resumes_and_ends_in_the_same_bytes(
    unstopped,
    model,
    text,
    tmp_path,
    monkeypatch,
):
    options = {**SIZES, "checkpoint_every": 2048}
    stop_at(monkeypatch, 21)
    with pytest.raises(KeyboardInterrupt):
        recallkit.train(model, text, **options, out=tmp_path / "parts")
    assert not (tmp_path / "parts" / "training.parquet").exists()
    # from step 20 on, where it was saved as it ended, and no step more
    stop_at(
        monkeypatch,
        1 + 32 - 20 + 1,
    )
    recallkit.train(model, text, **options, out=tmp_path / "parts")
    for name in (
        *(f"checkpoint-{step}/model.safetensors" for step in (8, 16, 24, 32)),
        "training.parquet",
    ):
        assert (tmp_path / "parts" / name).read_bytes() == (
            unstopped[0] / "out" / name
        ).read_bytes(), name
    assert not list((tmp_path / "parts").glob(".*partial"))
    for every in (None, "2048"):
        recallkit.train(model, text, **SIZES, checkpoint_every=every, out=tmp_path / "parts")
    with pytest.raises(
        UserError,
        match=r"--checkpoint-every 1,024: the run is finished, .* leave it out, or train again with --force",
    ):
        recallkit.train(model, text, **SIZES, checkpoint_every=1024, out=tmp_path / "parts")


def test_a_checkpoint_of_others_is_not_overwritten_and_damaged_work_is_one_line(
    home,
    model,
    text,
    tmp_path,
    monkeypatch,
):
    theirs = (tmp_path / "out" / LAST).parent
    theirs.mkdir(parents=True)
    (theirs / "config.json").write_text('{"model_type": "llama"}')
    for force, line in (
        (False, "a checkpoint is there already; choose another -o"),
        (True, "did not write.* move this file away"),
    ):
        with pytest.raises(UserError, match=line):
            recallkit.train(model, text, **SIZES, out=tmp_path / "out", force=force)
    assert [path.name for path in theirs.iterdir()] == ["config.json"]
    stop_at(monkeypatch, 5)
    with pytest.raises(KeyboardInterrupt):
        recallkit.train(model, text, **SIZES, out=tmp_path / "cut")
    [windows] = tmp_path.glob("cut/.*partial/part-000000")
    windows.write_bytes(windows.read_bytes()[:-3])
    with pytest.raises(UserError, match="unfinished work is damaged; begin again with --force"):
        recallkit.train(model, text, **SIZES, out=tmp_path / "cut")


def test_accumulated_gradients_give_the_weights_of_a_whole_batch(home, model, text, tmp_path):
    for name, micro in (("whole", None), ("parts", 3)):
        recallkit.train(
            model,
            text,
            **SIZES,
            out=tmp_path / name,
            micro_batch=micro,
            learning_rates=1e-3,
        )
    complete, parts = weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts")
    assert complete.keys() == parts.keys()
    assert any(np.any(complete[name] != parts[name]) for name in complete), "it computed otherwise"
    for name, values in complete.items():
        np.testing.assert_allclose(parts[name], values, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_two_processes_give_the_curve_of_one_and_write_once(home, model, text, tmp_path):
    words = ["train", model, text, *"--tokens 8192 --seq-len 64 --device cpu --json -o".split()]
    alone = [sys.executable, "-m", "recallkit"]
    spread = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--local-ranks-filter",
        "0",
        "-m",
        "recallkit",
    ]
    shown = {}
    for name, command in (("alone", alone), ("spread", spread)):
        done = subprocess.run(
            [*command, *map(str, words), tmp_path / name],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            env=dict(os.environ),
        )
        assert done.returncode == 0, done.stderr
        shown[name] = json.loads(done.stdout)["training"]
    assert [row["step"] for row in shown["spread"]] == [row["step"] for row in shown["alone"]]
    for one, two in zip(shown["alone"], shown["spread"], strict=True):
        assert two["loss_nats"] == pytest.approx(one["loss_nats"], abs=1e-4)


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[model", "tiny.toml: not a model to train"),
        ("[model]\nd_model = 16", "layers"),
        (TOML + "[more]", "unknown tables more"),
        (TOML + "rate = 1", "a recipe has no rate"),
        (TOML + "decay = 'steps'", "decay is cosine or linear"),
        (TOML + "betas = [0.9, 1]", "not two numbers below 1"),
        (TOML + "clip = 'much'", "clip is 'much'"),
        (TOML + "betas = 5", "betas are 5, not two numbers"),
        (TOML + "falling = 2", "falling is at most 1"),
        (TOML.replace("batch = 4", "batch = true"), "batch is True"),
        (TOML.replace("0.01", "0"), "learning_rate"),
        (TOML.replace("batch = 4", "batch = 0"), "batch is 0"),
        (TOML.replace('"mamba"', '"mambo"'), "mamba"),
        (TOML.replace("state", "stat"), "stat"),
        (
            TOML.replace('mamba", options = {state', 'prefix_linear_attention", options = {prefix'),
            "its first 4 ids before",
        ),
        (TOML.replace("= 16", "= 16\nmax_length = 32\npositions = 'learned'"), "--seq-len 32"),
    ],
)
def test_a_file_that_is_no_model_is_one_line(home, toml, said, tmp_path, text):
    path = tmp_path / "tiny.toml"
    path.write_text(toml)
    with pytest.raises(UserError, match=said) as caught:
        recallkit.train(path, text, **SIZES, out=tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_too_little_text_and_options_of_the_other_kind_are_one_line(
    home,
    model,
    text,
    tmp_path,
    capsys,
):
    for words, said in (
        ([model, text, "--tokens", "1M"], "--tokens 1,000,000: the text has"),
        ([model, text, "--batch", "1000"], "fewer than the 1,000 of a step"),
        ([model, text, "--learning-rates", "0.1,0.2"], "give one"),
        ([model, text, "--widths", "8"], "--widths"),
        ([model, text, "--workers", "2"], "--workers"),
        (["based-361m", text], "based-360m"),
        (["llama", text], "give one of `recallkit models --presets`"),
        (["zoo:mambo", text], "mamba"),
        ([], "name a model"),
        ([model, "--task", "mqar"], "a model and a task"),
        (["--task", "mqar", "--tokens", "1K"], "--tokens"),
        (["--task", "mqar", "--tokenizer", "gpt2.json"], "--tokenizer"),
        (["zoo:attention", text, "--seq-len", "32"], "--no-lists"),
    ):
        with pytest.raises(SystemExit) as caught:
            cli.run(["train", *map(str, words), "--device", "cpu", "-o", str(tmp_path / "out")])
        error = capsys.readouterr().err.strip()
        assert caught.value.code in (1, 2), words
        assert said in error, error
        assert "Traceback" not in error
        assert not (tmp_path / "out").exists()
    # nothing was left of them that is in the way
    recallkit.train(
        model,
        text,
        **SIZES,
        out=tmp_path / "out",
    )


def test_models_of_the_zoo_learn_lists_first_unless_they_read_text_alone(
    home,
    text,
    tmp_path,
    monkeypatch,
):
    monkeypatch.setattr("recallkit.training.lists.STEPS", 1)
    monkeypatch.setattr("recallkit.training.lists.TEST_ROWS", 1)
    sizes = {"tokens": 1024, "device": "cpu"}
    lists = recallkit.train("zoo:attention", text, **sizes, out=tmp_path / "lists").training
    alone = recallkit.train(
        "zoo:attention",
        text,
        **sizes,
        no_lists=True,
        out=tmp_path / "alone",
    ).training
    assert lists["lists_4"].is_between(0, 1).all()
    assert alone["lists_4"].is_null().all()
    assert alone["tokens"].to_list() == [1024]
    assert lists["loss_nats"][0] != alone["loss_nats"][0]
    with monkeypatch.context() as patch:
        stop_at(patch, 2)  # the first step of text
        with pytest.raises(KeyboardInterrupt):
            recallkit.train("zoo:attention", text, **sizes, out=tmp_path / "stopped")
    monkeypatch.setattr("recallkit.training.lists.learn_lists", None)  # they are not learnt again
    assert recallkit.train(
        "zoo:attention",
        text,
        **sizes,
        out=tmp_path / "stopped",
    ).training.equals(lists)
