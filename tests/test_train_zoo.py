"""The zoo's training: the same tokens for all, an interrupted run ends in the same weights, what is exported loads and scores."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch

from recallkit.models import zoo
from recallkit.models.api import ModelRequest
from recallkit.models.loading import load_model

STEPS = 6


@pytest.fixture(scope="module")
def train_zoo():
    path = Path(__file__).parents[1] / "examples" / "train_zoo.py"
    spec = importlib.util.spec_from_file_location("train_zoo", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(train_zoo, tmp_path_factory):
    """Windows of text that repeats itself, as `prepare` writes them."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    ids = rng.zipf(1.3, (STEPS * train_zoo.BATCH + 80, train_zoo.CONTEXT + 1)).clip(max=4095).astype(np.uint16)
    np.save(folder / "windows.npy", ids[:-80])
    np.save(folder / "held_out.npy", ids[-80:])
    (folder / "manifest.json").write_text(json.dumps({"tokens_of_source": {"made up": int(ids.size)}}))
    return folder


@pytest.fixture
def small(monkeypatch):
    """An architecture of a few thousand weights, trained in seconds."""
    layers = (zoo.LayerConfig("attention", {"num_heads": 2, "short_conv": 3, "qk_norm": True}), zoo.LayerConfig("mamba"))
    config = zoo.ArchitectureConfig(4096, 32, layers, mlp_width=32, max_length=256)
    monkeypatch.setattr(zoo, "architecture", lambda _: config)


def run(train_zoo, data, runs, num_steps=STEPS):
    runs.mkdir(exist_ok=True)
    windows, held_out = np.load(data / "windows.npy"), np.load(data / "held_out.npy")
    return train_zoo.Run("small", runs, windows, held_out, num_steps * train_zoo.BATCH * train_zoo.CONTEXT, "cpu")


def test_an_interrupted_run_ends_in_the_same_weights(train_zoo, data, small, tmp_path):
    whole = run(train_zoo, data, tmp_path / "a")
    losses = list(train_zoo.steps(whole))
    assert len(losses) == STEPS
    interrupted = run(train_zoo, data, tmp_path / "b")
    for _, _ in zip(range(3), train_zoo.steps(interrupted), strict=False):
        pass
    interrupted.save()
    resumed = run(train_zoo, data, tmp_path / "b")
    resumed.restore()
    assert resumed.step == 3
    assert len(list(train_zoo.steps(resumed))) == STEPS - 3
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    assert [point["all"] for point in resumed.curve] == [point["all"] for point in whole.curve]


def test_it_learns_which_tokens_are_frequent(train_zoo, data, small, tmp_path, monkeypatch):
    monkeypatch.setattr(train_zoo, "WARM_UP_STEPS", 1)
    trained = run(train_zoo, data, tmp_path)
    before = trained.measure()["all"]
    assert before == pytest.approx(np.log(4096), abs=0.1)
    list(train_zoo.steps(trained))
    assert trained.curve[-1]["all"] < before - 0.2


def test_the_learning_rate_rises_stays_and_falls(train_zoo, data, small, tmp_path):
    trained = run(train_zoo, data, tmp_path)
    trained.num_steps = 1000
    shares = []
    for trained.step in range(1000):
        shares.append(trained._learning_share())
    assert shares[0] == pytest.approx(1 / 50)
    assert set(shares[49:600]) == {1.0}
    assert shares[800] == pytest.approx(0.5)
    assert min(shares[900:]) == pytest.approx(0.02)


def test_queries_begin_as_keys_and_look_one_token_back(train_zoo):
    from recallkit.models.mixers import make_mixer

    for kind in ("attention", "linear_attention", "retnet", "selective_attention"):
        mixer = make_mixer(kind, 32, num_heads=2, short_conv=3)
        with torch.no_grad():
            train_zoo.start_mimetic(mixer)
        queries, keys = train_zoo.query_and_key_rows(mixer)
        assert torch.equal(queries, keys)
        taps = mixer.short_conv.conv.weight[:, 0]
        assert set(map(tuple, taps[: len(queries)].tolist())) == {(0, 0, 1)}
        assert set(map(tuple, taps[len(queries) : 2 * len(queries)].tolist())) == {(0, 0.5, 0.5)}
    hyena = make_mixer("hyena", 32, max_length=16)
    before = {name: value.clone() for name, value in hyena.state_dict().items()}
    train_zoo.start_mimetic(hyena)
    assert all(torch.equal(value, before[name]) for name, value in hyena.state_dict().items())


def test_what_is_exported_loads_and_its_counts_are_exact(train_zoo, data, small, tmp_path):
    trained = run(train_zoo, data, tmp_path / "runs")
    list(train_zoo.steps(trained))
    options = SimpleNamespace(names=["small"], data=data, runs=tmp_path / "runs", to=tmp_path / "zoo", tokens=STEPS * 1024)
    train_zoo.export(options)
    train_zoo.count(options)
    card = json.loads((tmp_path / "zoo" / "small" / "card.json").read_text())
    assert card["tokens"] == STEPS * 1024
    assert card["curve"] == trained.curve
    model = load_model(ModelRequest(str(tmp_path / "zoo" / "small"), 4096, device="cpu"))
    held_out = np.load(data / "held_out.npy")
    nll = model.score(held_out.astype(np.uint32).ravel(), np.arange(len(held_out) + 1) * 257).nll
    assert nll.mean() == pytest.approx(trained.curve[-1]["all"], abs=0.02)
    counts = pl.read_parquet(tmp_path / "zoo" / "training_bigrams.parquet", glob=False)
    wanted: dict[tuple[int, int], int] = {}
    for window in np.load(data / "windows.npy")[: STEPS * train_zoo.BATCH].tolist():
        for pair in itertools.pairwise(window):
            wanted[pair] = wanted.get(pair, 0) + 1
    assert {(first, second): n for first, second, n in counts.iter_rows()} == wanted


def test_the_text_repeats_where_it_is_made_to(train_zoo):
    rng = np.random.default_rng(0)
    windows = rng.integers(0, 60_000, (50, 257)).astype(np.uint16)
    changed = windows.copy()
    train_zoo.repeat_stretches(changed)
    for before, after in zip(windows, changed, strict=True):
        places = np.flatnonzero(before != after)
        first, last = places[0], places[-1]
        source = np.flatnonzero(before == after[first])
        assert any(np.array_equal(before[s : s + last - first + 1], after[first : last + 1]) for s in source if s < first)
