"""The recipes of docs/track.md, as they are written there, in a plain loop and in stand-ins for the
trainers that they name."""

from __future__ import annotations

from types import MethodType, SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

import recallkit
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.language_model import LanguageModel
from tests.conftest import ROOT
from tests.documented import blocks
from tests.tracking.test_live import metrics_of


def recipe(beginning: str) -> str:
    texts = [block.text for block in blocks(ROOT / "docs" / "track.md") if block.kind == "python"]
    [text] = [text for text in texts if text.startswith(beginning)]
    assert len(text.splitlines()) <= 10
    return text


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(1)
    return LanguageModel(
        ArchitectureConfig(4096, 16, (LayerConfig("base_conv"), LayerConfig("attention")))
    )


@pytest.fixture
def tracker(few_slices, tmp_path) -> recallkit.Tracker:
    return recallkit.Tracker(slices=few_slices, out=tmp_path)


def of_step(tracker, step):
    return metrics_of(tracker.table.filter(step=step).row(0, named=True))


def test_a_plain_loop(home, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def nlls_of(module, ids):
        with torch.no_grad():
            return cross_entropy(
                module(torch.tensor(ids[:, :-1])).transpose(1, 2),
                torch.tensor(ids[:, 1:]),
                reduction="none",
            )

    names = {
        "recallkit": recallkit,
        "loader": range(501),
        "model": model,
        "nlls_of": nlls_of,
        "rank": 0,
        "world": 1,
    }
    exec(recipe("tracker = ").replace("20_000", "3_000"), names)
    tracker = names["tracker"]
    assert tracker.table["tokens"].to_list() == [3000] * 2
    assert tracker.log(1000, model) == pytest.approx(of_step(tracker, 500), rel=1e-5, abs=1e-5), (
        "as the module itself"
    )


def test_olmo_core(model, tracker):
    logged = {}

    class Callback:
        """What a recipe needs of olmo_core.train.callbacks.Callback, version 3.0.0."""

        @property
        def step(self):
            return self.trainer.global_step

    names = {"tracker": tracker, "Callback": Callback}
    exec(recipe("class Recall"), names)
    callback = names["Recall"]()
    trainer = callback.trainer = SimpleNamespace(
        global_step=0, train_module=SimpleNamespace(model=model)
    )
    trainer.record_metric = lambda name, value: logged.setdefault(trainer.global_step, {}).update(
        {name: torch.tensor(value).item()}
    )
    for trainer.global_step in range(1, 502):
        callback.post_step()
    assert logged == {500: pytest.approx(of_step(tracker, 500), abs=1e-6)}


@pytest.mark.slow
def test_olmo_core_itself(model, tracker):
    """Its callback, and its trainer's record of metrics."""
    callbacks = pytest.importorskip(
        "olmo_core.train.callbacks", reason="needs OLMo-core 3: pip install ai2-olmo-core"
    )
    from olmo_core.train.trainer import Trainer

    names = {"tracker": tracker, "Callback": callbacks.Callback}
    exec(recipe("class Recall"), names)
    trainer = SimpleNamespace(
        global_step=499,
        train_module=SimpleNamespace(model=model),
        _metrics={},
        _metrics_reduce_type={},
    )
    trainer.record_metric = MethodType(Trainer.record_metric, trainer)
    callback = names["Recall"]()
    callback.trainer = trainer
    for trainer.global_step in (499, 500, 501):
        callback.post_step()
    metrics_by_step = {
        step: {name: value.item() for name, value in metrics.items()}
        for step, metrics in trainer._metrics.items()
    }
    assert metrics_by_step == {500: pytest.approx(of_step(tracker, 500), abs=1e-6)}
