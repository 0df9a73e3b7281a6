"""A tracker in a training loop: the same rows as from files, a model and random numbers left as
they were, the real Trainer."""

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
from recallkit.storage.journal import Journal
from recallkit.tracking.view import TrackView


def metrics_of(row):
    """What is logged of a row without a reference."""
    return {
        "recall/gain": 100 * row["gain"],
        **{f"recall/{name}": row[name] for name in ("ar_nll", "first_nll", "other_nll")},
    }


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(1)
    return LanguageModel(
        ArchitectureConfig(4096, 16, (LayerConfig("base_conv"), LayerConfig("attention")))
    )


def test_rows_are_those_of_the_same_weights_in_files(model, few_slices, tmp_path):
    counts = few_slices.parent / "counts.duckdb"
    tracker = recallkit.Tracker(slices=few_slices, reference=None, out=tmp_path / "live")
    live = [tracker.log(0, model)]
    for step, folder in ((0, "checkpoint-0"), (5, "checkpoint-5")):
        if step:
            with torch.no_grad():
                model.embedding.weight.mul_(0.5)
            live.append(tracker.log(step, model))
        (tmp_path / folder).mkdir()
        save_file(
            {name: value.clone() for name, value in model.state_dict().items()},
            tmp_path / folder / "model.safetensors",
        )
        (tmp_path / folder / "config.json").write_text(zoo.config_json(model.config))
    tables = recallkit.track(
        {"r": "control:recall"},
        [tmp_path / "checkpoint-5", tmp_path / "checkpoint-0"],
        slices=few_slices,
        counts=counts,
        out=tmp_path / "files",
    )
    rows = tables.track.filter(pl.col("step").is_not_null()).to_dicts()
    for logged, mine, other in zip(live, tracker.table.to_dicts(), rows, strict=True):
        names = [
            name
            for name in mine
            if name not in ("model", "reference")
            and not name.startswith(("ar_gap", "retained", "causal"))
        ]
        assert {name: mine[name] for name in names} == pytest.approx(
            {name: other[name] for name in names}, rel=1e-6, abs=1e-9
        )
        assert (mine["ar_gap"], mine["retained"]) == (None, None)
        assert logged == metrics_of(mine)
    assert pl.read_parquet(tmp_path / "live" / "track.parquet")["step"].to_list() == [0, 5]
    assert TrackView(tmp_path / "live").command == "", "no command makes what a running program was"


class Draws(LanguageModel):
    """Draws random numbers whenever it is read, whatever its mode."""

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        return super().hidden(ids) + 0 * torch.rand(1)


def test_a_model_and_random_numbers_are_left_as_they_were(model, few_slices, tmp_path):
    model = Draws(model.config)
    model.train()
    model.blocks[0].eval()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(4)
    random.seed(4)
    wanted = (torch.rand(3).tolist(), random.random())
    torch.manual_seed(4)
    random.seed(4)
    recallkit.Tracker(slices=few_slices, out=tmp_path).log(3, model)
    assert (torch.rand(3).tolist(), random.random()) == wanted
    assert [model.training, model.blocks[0].training, model.blocks[1].training] == [
        True,
        False,
        True,
    ]
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(
        parameter.grad is None and parameter.requires_grad for parameter in model.parameters()
    )


class KeepsATable(LanguageModel):
    """Makes a tensor when it is first read, and keeps it, as rotary embeddings keep their
    angles."""

    table = None

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        self.table = torch.ones(1) if self.table is None else self.table
        return super().hidden(ids) * self.table


def test_a_model_that_has_kept_something_of_being_scored_is_trained_on(model, few_slices, tmp_path):
    model = KeepsATable(model.config)
    recallkit.Tracker(slices=few_slices, out=tmp_path).log(0, model)
    model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
    assert model.embedding.weight.grad is not None


def test_a_run_is_continued_and_a_step_logged_again_is_replaced(model, few_slices, tmp_path):
    recallkit.Tracker(slices=few_slices, out=tmp_path).log(0, model)
    tracker = recallkit.Tracker(slices=few_slices, out=tmp_path)
    first = tracker.log(10, model)
    with torch.no_grad():
        model.embedding.weight.mul_(0.5)
    second = tracker.log(10, model)
    assert second["recall/ar_nll"] != first["recall/ar_nll"]
    assert tracker.table["step"].to_list() == [0, 10]
    assert tracker.table["ar_nll"].to_list()[1] == second["recall/ar_nll"]
    assert recallkit.Tracker(slices=few_slices, out=tmp_path).table.equals(tracker.table)
    recallkit.Tracker(slices=few_slices, out=tmp_path, force=True).log(7, model)
    assert pl.read_parquet(tmp_path / "track.parquet")["step"].to_list() == [7]


def test_another_process_cannot_follow_a_run_in_the_same_folder(few_slices, tmp_path):
    with (
        Journal(tmp_path / "track.parquet", {}),
        pytest.raises(UserError, match="another recallkit process is writing this"),
    ):
        recallkit.Tracker(slices=few_slices, out=tmp_path)
    recallkit.Tracker(slices=few_slices, out=tmp_path)
    recallkit.Tracker(slices=few_slices, out=tmp_path)
    with pytest.raises(UserError, match="another"), Journal(tmp_path / "track.parquet", {}):
        pass


def test_mistakes_are_named_before_anything_is_written(model, few_slices, tmp_path):
    for options, problem in (
        ({"sample_tokens": 0}, "0 is not a number of tokens"),
        ({"sample_tokens": 5, "slices": "s"}, "sample_tokens: slices are read as they are"),
    ):
        with pytest.raises(UserError, match=problem):
            recallkit.Tracker(**options, out=tmp_path / "t")
    assert not (tmp_path / "t").exists()
    tracker = recallkit.Tracker(slices=few_slices, out=tmp_path)
    for step in (-1, True, 1.5, "7"):
        with pytest.raises(UserError, match="is not a step"):
            tracker.log(step, model)


def test_a_tracker_shows_the_run_so_far(model, few_slices, tmp_path, run):
    """As the command does that follows the same weights, which also draws the same curve."""
    tracker = recallkit.Tracker(slices=few_slices, reference="control:recall", out=tmp_path)
    assert tracker._repr_html_() is None
    first = tracker.log(0, model)
    row = tracker.table.row(1, named=True)
    assert first == {
        **metrics_of(row),
        "recall/retained": 100 * row["retained"],
        "recall/ar_gap": row["ar_gap"],
    }
    with pytest.raises(UserError, match="too little to draw"):
        tracker.chart()
    with torch.no_grad():
        model.embedding.weight.mul_(0.5)
    second = tracker.log(50, model)
    lines = repr(tracker).splitlines()
    assert lines[0].startswith("Recall is absent: at step 50 the recall gain")
    shown = [line.split() for line in lines if line.split()[:1] in (["0"], ["50"])]
    assert [(row[0], row[1]) for row in shown] == [
        ("0", f"{first['recall/ar_nll']:.2f}"),
        ("50", f"{second['recall/ar_nll']:.2f}"),
    ]
    assert f"<td>{second['recall/ar_nll']:.2f}</td>" in tracker._repr_html_()
    [curve] = recallkit.figures(tmp_path).values()
    assert tracker.chart().to_dict() == curve.to_dict()
    assert repr(
        recallkit.Tracker(slices=few_slices, reference="control:recall", out=tmp_path)
    ) == repr(tracker), "continued"


def test_a_sharded_model_is_refused(model, few_slices, tmp_path):
    from torch import distributed
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    tracker = recallkit.Tracker(slices=few_slices, out=tmp_path)
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        fully_shard(model, mesh=distributed.init_device_mesh("cpu", (2,)))
        with pytest.raises(UserError, match=r"sharded over processes; read tracker\.batches"):
            tracker.log(0, model)
    finally:
        distributed.destroy_process_group()


def trained(tmp_path, every=None, **options):
    """A tracker, and the Trainer that has trained a tiny Llama on random ids for 4 steps, to which
    it was attached."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=256,
    )
    ids = torch.randint(0, 4096, (8, 32))
    data = [{"input_ids": row, "labels": row} for row in ids]
    usual = {
        "per_device_train_batch_size": 2,
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
    }
    arguments = TrainingArguments(str(tmp_path / "trainer"), max_steps=4, **usual, **options)
    tracker = recallkit.Tracker(sample_tokens=3000, out=tmp_path / "track")
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=data, eval_dataset=data)
    tracker.attach(trainer, every)
    trainer.train()
    return tracker, trainer


def test_the_real_trainer_logs_recall_as_its_own(home, tmp_path, monkeypatch):
    """Beside the loss of the same steps, which logging must not swallow, and in the event file of
    its own TensorBoard callback."""
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs TensorBoard"
    )
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "runs"))
    tracker, trainer = trained(tmp_path, 2, report_to=["tensorboard"], logging_steps=1)
    history = trainer.state.log_history
    assert [row["step"] for row in history if "loss" in row] == [1, 2, 3, 4]
    rows = tracker.table.to_dicts()
    assert [row["tokens"] for row in rows] == [3000, 3000]
    logged = [
        (row["step"], row["recall/ar_nll"], row["recall/gain"])
        for row in history
        if "recall/ar_nll" in row
    ]
    assert logged == [(row["step"], row["ar_nll"], 100 * row["gain"]) for row in rows]
    assert [step for step, *_ in logged] == [2, 4]
    events = accumulators.EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    reported = [(event.step, event.value) for event in events.Scalars("train/recall/gain")]
    assert reported == [(step, pytest.approx(gain)) for step, _, gain in logged]


def test_without_a_number_of_steps_recall_is_logged_whenever_the_trainer_evaluates(home, tmp_path):
    tracker, trainer = trained(
        tmp_path, report_to=[], eval_strategy="steps", eval_steps=2, logging_strategy="no"
    )
    assert tracker.table["step"].to_list() == [2, 4]
    assert [row["step"] for row in trainer.state.log_history if "recall/ar_nll" in row] == [2, 4]
    assert [row["step"] for row in trainer.state.log_history if "eval_loss" in row] == [2, 4]
