"""The loop: batches, the rate, measurement, and the recipes of the papers' tables."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.options import TextTrainingOptions
from recallkit.synthetic.tasks import NOT_ASKED, make_examples
from recallkit.training import loop, recipes


def test_accuracy_and_loss_count_each_answer_once_however_rows_are_batched(monkeypatch):
    """Beside the model's own logits, of which every answer is one."""
    model = loop.new_model(0, ArchitectureConfig(64, 16, (LayerConfig("attention"),)))
    test = make_examples("mqar", num=30, length=16, pairs=2, vocab=64, seed=0)
    is_asked = test.targets != NOT_ASKED
    with torch.no_grad():
        logits, answers = model(test.ids)[is_asked], test.targets[is_asked]
    monkeypatch.setattr(loop, "MEASURED_TOKENS", 16 * 7)
    measured = loop.measure(model, test)
    assert measured.accuracy == pytest.approx((logits.argmax(1) == answers).double().mean().item())
    assert measured.loss_nats == pytest.approx(
        torch.nn.functional.cross_entropy(logits, answers).item(),
        abs=1e-5,
    )
    assert model.training, "it goes on learning"


def test_an_epoch_reads_every_example_once_in_an_order_of_its_own():
    batches = (rows for _, rows in loop.batches([10], 4, seed=1))
    epochs = [torch.cat([next(batches), next(batches)]).tolist() for _ in range(3)]
    assert all(len(set(epoch)) == 8 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    other = [rows for _, rows in itertools.islice(loop.batches([10], 4, seed=2), 2)]
    assert epochs[0] != torch.cat(other).tolist()


def test_batches_of_several_sets_alternate_and_are_of_one_set_each():
    epoch = list(itertools.islice(loop.batches([12, 8, 6], 2, seed=0), 13))
    for part, size in enumerate((12, 8, 6)):
        rows = torch.cat([rows for place, rows in epoch if place == part])
        assert sorted(rows.tolist()) == list(range(size))
    order = [part for part, _ in epoch]
    assert order != sorted(order)


PRINTED = {
    "attention-125m": ("zoology, table 6", (0.9, 0.95), 8e-5, "cosine", 0.1),
    "hyena-158m": ("zoology, table 8", (0.9, 0.98), 1e-5, "cosine", 0.1),
    "hyena-window-64-159m": ("zoology, table 8", (0.9, 0.98), 1e-5, "cosine", 0.1),
    "h3-168m": ("zoology, table 10", (0.9, 0.95), 8e-5, "cosine", 0.1),
    "rwkv-169m": ("zoology, table 11", (0.9, 0.999), 1e-5, "cosine", 0.1),
    "retnet-152m": ("zoology, table 12", (0.9, 0.98), 1e-5, "linear", 0.05),
    "long-conv-128m": ("zoology, table 13", (0.9, 0.95), 8e-5, "linear", 0.1),
    "base-conv-168m": ("zoology, table 15", (0.9, 0.95), 8e-5, "cosine", 0.1),
    "base-conv-learned-166m": ("zoology, table 15", (0.9, 0.95), 8e-5, "cosine", 0.1),
    "based-360m": ("based, table 7", (0.9, 0.95), 8e-5, "cosine", 0.1),
    "based-taylor-8": ("based, table 7", (0.9, 0.95), 8e-5, "cosine", 0.1),
    "transformer++-360m": ("based, table 8", (0.9, 0.95), 8e-5, "cosine", 0.1),
    "mamba-360m": ("based, table 9", (0.9, 0.95), 8e-5, "cosine", 0.1),
    "hyena-360m": ("based, table 10", (0.9, 0.95), 8e-5, "cosine", 0.1),
    "h3-360m": ("based, table 11", (0.9, 0.99), 8e-5, "cosine", 0.1),
    "rwkv5-360m": ("based, table 12", (0.9, 0.99), 8e-5, "cosine", 0.1),
    "gla-360m": ("based, table 13", (0.9, 0.95), 8e-5, "cosine", 0.1),
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_recipe_of_a_preset_is_that_of_its_table(name):
    trained = recipes.find(name, TextTrainingOptions())
    table, betas, lowest, decay, weight_decay = PRINTED[name]
    recipe = trained.recipe
    assert (recipe.betas, recipe.lowest, recipe.decay, recipe.weight_decay) == (
        betas,
        lowest,
        decay,
        weight_decay,
    ), table
    assert (recipe.learning_rate, recipe.batch, recipe.warm_up, trained.seq_len) == (
        8e-4,
        256,
        0.01,
        2048,
    ), table
    assert (recipe.muon, recipe.lists) == (0.0, False)


def test_the_rate_rises_over_a_hundredth_of_the_steps_and_falls_to_the_lowest():
    """20,000 iterations from 8e-4 to 8e-5 (Zoology, table 6); table 13 has a straight line."""
    recipe = loop.Recipe()
    rates = [8e-4 * recipe.share(step, 20_000) for step in range(20_000)]
    assert rates[0] == pytest.approx(8e-4 / 200)
    assert rates[99] == pytest.approx(4e-4)
    assert rates.index(max(rates)) in range(190, 210)
    assert max(rates) == pytest.approx(8e-4, rel=1e-3)
    assert rates[10_000] == pytest.approx((8e-4 + 8e-5) / 2)
    assert rates[5_000] == pytest.approx(8e-5 + (8e-4 - 8e-5) * (0.5 + 0.5 * math.cos(math.pi / 4)))
    assert rates[-1] == pytest.approx(8e-5, rel=1e-3)
    linear = recipes.find("long-conv-76m", TextTrainingOptions()).recipe
    assert 8e-4 * linear.share(5_000, 20_000) == pytest.approx(8e-5 + 0.75 * (8e-4 - 8e-5))


def test_another_rate_takes_the_lowest_with_it():
    recipe = recipes.find("hyena-158m", TextTrainingOptions(learning_rates=1.6e-3, batch=8)).recipe
    assert (recipe.learning_rate, recipe.lowest, recipe.batch) == (1.6e-3, pytest.approx(2e-5), 8)


def test_weight_decay_is_of_matrices_but_not_of_filters():
    """Tables 8 and 15: filter weight decay 0."""
    model = loop.new_model(
        0,
        ArchitectureConfig(64, 16, (LayerConfig("hyena", {"max_length": 8}),)),
    )
    [adam] = loop.optimisers(model, loop.Recipe())
    decayed = {
        id(parameter)
        for group in adam.param_groups
        if group["weight_decay"]
        for parameter in group["params"]
    }
    weights = {name for name, parameter in model.named_parameters() if id(parameter) in decayed}
    assert {"blocks.0.mlp.up.weight", "blocks.0.mlp.down.weight"} <= weights
    assert not [
        name for name in weights if "filter" in name or "norm" in name or "embedding" in name
    ]
    assert sum(len(group["params"]) for group in adam.param_groups) == len(list(model.parameters()))
