"""A run: its model is the one that is named, its state is counted as the papers count it, it learns, and its file is its own."""

from __future__ import annotations

import math

import pytest
import torch
from recallkit.training.sequences import POWER, Part, Task, examples_of

from recallkit.errors import UserError
from recallkit.models.mixers import MIXERS
from recallkit.training.jobs import Architecture, Job, known_options, layers_of, model_of, read_run, train_run
from recallkit.training.loop import answer_loss

CPU = torch.device("cpu")


def tiny(mixer="attention", *, convolution="mixer", options=(), width=32, length=16, vocab=64, mlp=False, steps=1, **changes):
    convolution = convolution if "short_conv" in known_options(mixer) else "own"
    made = Architecture(mixer, mixer, convolution, tuple(options), width, 2, mlp)
    parts = (Part(length, 2, changes.pop("examples", 16)),), (Part(length, 2, changes.pop("test_examples", 8)),)
    task = Task(*parts, vocab, POWER, 0)
    recipe = {"learning_rate": 1e-2, "batch": 4, "seed": 0, "stop_above": 0.99, "measured_every": 1, **changes}
    return Job(made, task, steps=steps, **recipe)


def outcome(job, folder):
    steps = sum(train_run(job, folder, CPU))
    assert steps == job.steps
    return read_run(job, folder)


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_can_be_trained(mixer):
    job = tiny(mixer)
    model = model_of(job)
    assert len(model.blocks) == 2
    answer_loss(model, examples_of(job.task)[0][0]).backward()
    assert model.embedding.weight.grad.abs().sum() > 0


def test_short_convolutions_are_where_they_are_wanted():
    shape = {kind: layers_of(tiny("linear_attention", convolution=kind).architecture, 16) for kind in ("none", "mixer", "layer")}
    assert [layer.options["short_conv"] for layer in shape["none"]] == [0, 0]
    assert [layer.options["short_conv"] for layer in shape["mixer"]] == [3, 3]
    assert [layer.mixer for layer in shape["layer"]] == ["base_conv", "linear_attention"]
    assert shape["layer"][1].options["short_conv"] == 0
    rotary = {kind: layers_of(tiny("attention", convolution=kind).architecture, 16)[1].options for kind in ("none", "mixer")}
    assert "rope_fraction" not in rotary["none"], "without convolutions, attention has rotary positions"
    assert rotary["mixer"]["rope_fraction"] == 0


def test_each_layer_has_an_mlp_unless_it_is_left_out():
    with_mlp, without = (sum(p.numel() for p in model_of(tiny(mlp=mlp)).parameters()) for mlp in (True, False))
    assert with_mlp - without >= 2 * 8 * 32**2, "8 d^2 a layer"


@pytest.mark.parametrize(
    ("mixer", "options", "elements"),
    [
        ("attention", {}, 2 * 64 * 1024),  # eq. 10
        ("sliding_window", {"window": 32}, 2 * 64 * 32),  # eq. 11
        ("sliding_window", {"window": 1024}, 2 * 64 * 1024),
        ("mamba", {"state": 24}, 2 * 64 * 24),  # eq. 12
        ("h3", {}, 64 * 16),  # eq. 13, with d / 4
        ("hyena", {}, 64 * 1024),  # eq. 14
        ("linear_attention", {"feature_dim": 24}, 65 * (1 + 3 * 24 // 2 + 24**2 // 2)),  # eq. 9
        ("linear_attention", {"feature_dim": 64, "feature_map": "relu"}, 65 * 64),  # eq. 8
    ],
)
def test_the_state_of_a_layer_is_as_large_as_in_the_paper(mixer, options, elements):
    """Based, appendix E.2, after 1,024 ids at a width of 64."""
    made = Architecture(mixer, mixer, "none", tuple(options.items()), 64, 1, mlp=False)
    task = Task((Part(1024, 4, 4),), (Part(1024, 4, 4),), 64, POWER, 0)
    model = model_of(Job(made, task, 1e-2, 1, 4, 0, 0.99, 1))
    assert model.state_size(1024) == elements


SMOOTHING = {"recent", "short", "conv", "seen", "taps"}
"""What short convolutions in front of a mixer keep, numbers of tokens, taps made of weights: no mixer's state, as the papers count it."""
COUNTED = "attention sliding_window linear_attention retnet gla rwkv4 rwkv5 mamba mamba2 hyena long_conv s4d".split()


@pytest.mark.parametrize("mixer", COUNTED)
def test_state_bytes_are_those_of_a_state(mixer, tmp_path):
    job = tiny(mixer, length=24, options={"window": 8}.items() if mixer == "sliding_window" else ())
    model = model_of(job).eval()
    _, state = model.read(torch.randint(0, 64, (1, 24)), model.initial_state(1))
    entries = [entry for block in state for name, entry in block["mixer"].items() if name not in SMOOTHING]
    assert outcome(job, tmp_path)["state_bytes"] == sum(entry.numel() * entry.element_size() for entry in entries)


def test_attention_learns_the_task_and_stops(tmp_path):
    job = tiny(examples=2000, test_examples=200, steps=1500, batch=32, measured_every=25)
    found = outcome(job, tmp_path)
    assert found["curve"][0][2] > 2.5, "values are 32 ids"
    assert found["loss_nats"] < 0.5
    assert found["accuracy"] > 0.99
    assert found["num_steps"] < job.steps


def test_a_runs_file_depends_on_every_choice_but_the_lines_name(tmp_path):
    job = tiny()
    others = [
        job._replace(seed=1),
        job._replace(task=job.task._replace(power=0.01)),
        job._replace(architecture=job.architecture._replace(mlp=True)),
        job._replace(task=job.task._replace(test=(Part(32, 2, 8),))),
    ]
    assert len({each.path(tmp_path) for each in (job, *others)}) == 5
    assert job._replace(architecture=job.architecture._replace(model="another")).path(tmp_path) == job.path(tmp_path)


def test_a_damaged_run_and_sizes_that_do_not_fit_are_one_line(tmp_path):
    job = tiny()
    assert read_run(job, tmp_path) is None
    assert math.isfinite(outcome(job, tmp_path)["loss_nats"])
    for text in ("", "[]", '{"accuracy": 1.0}'):
        job.path(tmp_path).write_text(text)
        with pytest.raises(UserError, match="not the outcome of this run"):
            read_run(job, tmp_path)
    with pytest.raises(UserError, match="width 6"):
        model_of(tiny("retnet", width=6, options={"num_heads": 4}.items()))
