"""The recipes of docs/track.md, as they are written there, in a plain loop and in stand-ins for the trainers that they name."""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType, SimpleNamespace

import pytest
import torch

import recallkit
from recallkit.errors import UserError
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.language_model import LanguageModel
from tests.conftest import ROOT
from tests.documented import blocks
from tests.tracking.test_live import metrics_of


def recipe(beginning: str) -> str:
    [found] = [block.text for block in blocks(ROOT / "docs" / "track.md") if block.kind == "python" and block.text.startswith(beginning)]
    assert len(found.splitlines()) <= 10
    return found


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(1)
    return LanguageModel(ArchitectureConfig(4096, 16, (LayerConfig("base_conv"), LayerConfig("attention"))))


@pytest.fixture
def tracker(few_slices, tmp_path) -> recallkit.Tracker:
    return recallkit.Tracker(slices=few_slices, out=tmp_path)


def of_step(tracker, step):
    return metrics_of(tracker.table.filter(step=step).row(0, named=True))


def test_a_plain_loop(home, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logged = {}
    wandb = SimpleNamespace(log=lambda metrics, step: logged.update({step: metrics}))
    names = {"recallkit": recallkit, "wandb": wandb, "batches": range(501), "model": model}
    exec(recipe("tracker = ").replace("20_000", "3_000"), names)
    assert names["tracker"].table["tokens"].to_list() == [3000] * 2
    assert logged == {step: of_step(names["tracker"], step) for step in (0, 500)}


def test_torchtitan(model, tracker):
    logged = {}

    class Trainer:
        """What a recipe needs of torchtitan.trainer.Trainer, version 0.3.0."""

        class Config: ...

        step = 0
        model_parts = (model,)
        metrics_processor = SimpleNamespace(logger=SimpleNamespace(log=lambda metrics, step: logged.update({step: metrics})))

        def train(self, steps):
            for _ in range(steps):
                self.step += 1
                self.train_step(iter(()))

        def train_step(self, data_iterator):
            assert self.step not in logged, "the step is trained first"

    names = {"tracker": tracker, "Trainer": Trainer, "dataclass": dataclass}
    exec(recipe("class Followed"), names)
    names["Followed"]().train(501)
    assert logged == {500: of_step(tracker, 500)}


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
    trainer = callback.trainer = SimpleNamespace(global_step=0, train_module=SimpleNamespace(model=model))
    trainer.record_metric = lambda name, value: logged.setdefault(trainer.global_step, {}).update({name: torch.tensor(value).item()})
    for trainer.global_step in range(1, 502):
        callback.post_step()
    assert logged == {500: pytest.approx(of_step(tracker, 500), abs=1e-6)}


@pytest.mark.slow
def test_torchtitan_itself(model, tracker, monkeypatch, tmp_path):
    """The real trainer, built by its configuration, with its own loggers; of a step only what the recipe adds."""
    titan = pytest.importorskip("torchtitan.trainer", reason="needs torchtitan 0.3: pip install torchtitan")
    from torchtitan.components.metrics import BaseLogger, LoggerContainer

    logged = {}

    class Logger(BaseLogger):
        def log(self, metrics, step):
            logged[step] = metrics

    def begin(trainer, config):
        trainer.step, trainer.model_parts = 500, [model]
        trainer.metrics_processor = SimpleNamespace(logger=LoggerContainer())
        trainer.metrics_processor.logger.add_logger(Logger())

    trained = []
    monkeypatch.setattr(titan.Trainer, "__init__", begin)
    monkeypatch.setattr(titan.Trainer, "train_step", lambda self, data_iterator: trained.append(self.step))
    names = {"tracker": tracker, "Trainer": titan.Trainer, "dataclass": dataclass, "__name__": "recipe"}
    exec(recipe("class Followed"), names)
    trainer = names["Followed"].Config().build()
    trainer.train_step(iter(()))
    assert trained == [500]
    assert logged == {500: of_step(tracker, 500)}
    asks_for_masks = pytest.importorskip("torchtitan.models.llama3").model_registry("debugmodel").model.build()
    with pytest.raises(UserError, match="attention_masks must be"):
        recallkit.Tracker(slices=tracker._run.slices, out=tmp_path / "own", tokenizer="bytes").log(1, asks_for_masks)


@pytest.mark.slow
def test_olmo_core_itself(model, tracker):
    """Its callback, and its trainer's record of metrics."""
    callbacks = pytest.importorskip("olmo_core.train.callbacks", reason="needs OLMo-core 3: pip install ai2-olmo-core")
    from olmo_core.train.trainer import Trainer

    names = {"tracker": tracker, "Callback": callbacks.Callback}
    exec(recipe("class Recall"), names)
    trainer = SimpleNamespace(global_step=499, train_module=SimpleNamespace(model=model), _metrics={}, _metrics_reduce_type={})
    trainer.record_metric = MethodType(Trainer.record_metric, trainer)
    callback = names["Recall"]()
    callback.trainer = trainer
    for trainer.global_step in (499, 500, 501):
        callback.post_step()
    found = {step: {name: value.item() for name, value in metrics.items()} for step, metrics in trainer._metrics.items()}
    assert found == {500: pytest.approx(of_step(tracker, 500), abs=1e-6)}
