"""A tracker in a training loop: the same rows as from files, a model and random numbers left as they were, the real Trainer."""

from __future__ import annotations

import random

import polars as pl
import pytest
import torch
from safetensors.torch import save_file

import recallkit
from recallkit.errors import UserError
from recallkit.models import zoo
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.language_model import LanguageModel
from recallkit.tracking.view import look


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(1)
    return LanguageModel(ArchitectureConfig(4096, 16, (LayerConfig("base_conv"), LayerConfig("attention"))))


def test_rows_are_those_of_the_same_weights_in_files(model, small_slices, tmp_path):
    counts = small_slices.parent / "counts.duckdb"
    tracker = recallkit.Tracker(slices=small_slices, reference=None, out=tmp_path / "live")
    live = [tracker.log(0, model)]
    for step, folder in ((0, "checkpoint-0"), (5, "checkpoint-5")):
        if step:
            with torch.no_grad():
                model.embedding.weight.mul_(0.5)
            live.append(tracker.log(step, model))
        (tmp_path / folder).mkdir()
        save_file({name: value.clone() for name, value in model.state_dict().items()}, tmp_path / folder / "model.safetensors")
        (tmp_path / folder / "config.json").write_text(zoo.config_json(model.config))
    found = recallkit.track(
        {"r": "control:recall"},
        [tmp_path / "checkpoint-5", tmp_path / "checkpoint-0"],
        slices=small_slices,
        counts=counts,
        out=tmp_path / "files",
    )
    rows = found.track.filter(pl.col("step").is_not_null()).to_dicts()
    for mine, other in zip(live, rows, strict=True):
        names = [name for name in mine if name not in ("model", "reference") and not name.startswith("ar_gap")]
        assert {name: mine[name] for name in names} == pytest.approx({name: other[name] for name in names}, rel=1e-6)
        assert mine["ar_gap"] is None
    assert pl.read_parquet(tmp_path / "live" / "track.parquet")["step"].to_list() == [0, 5]
    assert look(tmp_path / "live").command == "", "no command makes what a running program was"


class Draws(LanguageModel):
    """Draws random numbers whenever it is read, whatever its mode."""

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        return super().hidden(ids) + 0 * torch.rand(1)


def test_a_model_and_random_numbers_are_left_as_they_were(model, small_slices, tmp_path):
    model = Draws(model.config)
    model.train()
    model.blocks[0].eval()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(4)
    random.seed(4)
    wanted = (torch.rand(3).tolist(), random.random())
    torch.manual_seed(4)
    random.seed(4)
    recallkit.Tracker(slices=small_slices, out=tmp_path).log(3, model)
    assert (torch.rand(3).tolist(), random.random()) == wanted
    assert [model.training, model.blocks[0].training, model.blocks[1].training] == [True, False, True]
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_a_run_is_continued_and_a_step_logged_again_is_replaced(model, small_slices, tmp_path):
    recallkit.Tracker(slices=small_slices, out=tmp_path).log(0, model)
    tracker = recallkit.Tracker(slices=small_slices, out=tmp_path)
    first = tracker.log(10, model)
    with torch.no_grad():
        model.embedding.weight.mul_(0.5)
    second = tracker.log(10, model)
    assert second["nll"] != first["nll"]
    assert tracker.table["step"].to_list() == [0, 10]
    assert tracker.table["nll"].to_list()[1] == second["nll"]
    assert recallkit.Tracker(slices=small_slices, out=tmp_path, force=True).log(7, model)["step"] == 7
    assert pl.read_parquet(tmp_path / "track.parquet")["step"].to_list() == [7]


def test_mistakes_are_named_before_anything_is_written(model, small_slices, tmp_path):
    for given, problem in (
        ({"sample_tokens": 0}, "0 is not a number of tokens"),
        ({"sample_tokens": 5, "slices": "s"}, "slices are scored as they are"),
    ):
        with pytest.raises(UserError, match=problem):
            recallkit.Tracker(**given, out=tmp_path / "t")
    assert not (tmp_path / "t").exists()
    tracker = recallkit.Tracker(slices=small_slices, out=tmp_path)
    for step in (-1, True, 1.5, "7"):
        with pytest.raises(UserError, match="is not a step"):
            tracker.log(step, model)


def test_the_real_trainer_logs_through_the_callback(home, tmp_path):
    """A tiny Llama is trained on ids by transformers' own Trainer, on the built-in sample, limited to a thousand tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=256
    )
    ids = torch.randint(0, 4096, (8, 32))
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = TrainingArguments(
        str(tmp_path / "trainer"),
        max_steps=4,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
    )
    tracker = recallkit.Tracker(sample_tokens=3000, out=tmp_path / "track")
    Trainer(LlamaForCausalLM(config), arguments, train_dataset=data, callbacks=[tracker.callback(every=2)]).train()
    assert tracker.table["step"].to_list() == [2, 4]
    assert tracker.table["tokens"].to_list() == [3000, 3000]
    assert tracker.table["nll"].n_unique() == 2
