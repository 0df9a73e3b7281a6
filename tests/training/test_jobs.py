"""A run: its model is the one that is named, its state is counted as the papers count it, it learns, and its file is its own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from recallkit.errors import UserError
from recallkit.models.mixers import MIXERS
from recallkit.training.jobs import Architecture, Job, Part, Task, examples_of, known_options, layers_of, model_of, read_run, train_run
from recallkit.training.loop import Trainer

CPU = torch.device("cpu")


def tiny(
    mixer="attention",
    *,
    convolution="mixer",
    options=(),
    width=32,
    length=16,
    vocab=64,
    mlp=False,
    positions="none",
    layers=2,
    steps=1,
    **changes,
):
    convolution = convolution if "short_conv" in known_options(mixer) else "own"
    made = Architecture(mixer, mixer, convolution, tuple(options), width, layers, mlp, positions)
    parts = (Part(length, 2, changes.pop("examples", 16)),), (Part(length, 2, changes.pop("test_examples", 8)),)
    task = Task("mqar", *parts, vocab, (), 0)
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
    before = model.embedding.weight.detach().clone()
    [examples], _ = examples_of(job.task)
    Trainer(model, job.recipe).step(examples.ids, examples.targets, 1.0)
    assert (model.embedding.weight - before).abs().sum() > 0


def test_short_convolutions_are_where_they_are_wanted():
    shape = {kind: layers_of(tiny("linear_attention", convolution=kind).architecture, 16) for kind in ("none", "mixer", "layer")}
    assert [layer.options["short_conv"] for layer in shape["none"]] == [0, 0]
    assert [layer.options["short_conv"] for layer in shape["mixer"]] == [3, 3]
    assert [layer.mixer for layer in shape["layer"]] == ["base_conv", "linear_attention"]
    assert shape["layer"][1].options["short_conv"] == 0


def test_mixers_joined_by_plus_take_turns_and_options_apply_to_each():
    made = tiny(
        "linear_attention+sliding_window", convolution="none", options={"feature_dim": 4, "window": 8}.items(), layers=4
    ).architecture
    layers = layers_of(made, 16)
    assert [layer.mixer for layer in layers] == ["linear_attention", "sliding_window"] * 2
    assert [layer.options.get("feature_dim") for layer in layers] == [4, None, 4, None]
    assert [layer.options.get("window") for layer in layers] == [None, 8, None, 8]
    between = layers_of(made._replace(convolution="layer"), 16)
    assert [layer.mixer for layer in between] == ["base_conv", "linear_attention", "base_conv", "sliding_window"]


def test_positions_are_rotary_learned_or_none():
    """What attention knows of the order of the ids before its own: nothing without positions."""
    ids = torch.randint(1, 64, (1, 16), generator=torch.Generator().manual_seed(0))
    swapped = ids.clone()
    swapped[0, [2, 9]] = ids[0, [9, 2]]
    models = {kind: model_of(tiny(convolution="none", positions=kind, layers=1)).eval() for kind in ("rotary", "learned", "none")}
    nn.init.normal_(models["learned"].positions.weight)
    seen = {kind: bool(torch.allclose(model(ids)[0, -1], model(swapped)[0, -1], atol=1e-5)) for kind, model in models.items()}
    assert seen == {"rotary": False, "learned": False, "none": True}
    assert models["learned"].max_length == 16


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
    made = Architecture(mixer, mixer, "none", tuple(options.items()), 64, 1, mlp=False, positions="none")
    task = Task("mqar", (Part(1024, 4, 4),), (Part(1024, 4, 4),), 64, (), 0)
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
        job._replace(task=job.task._replace(options=(("power", 0.01),))),
        job._replace(architecture=job.architecture._replace(positions="learned")),
        job._replace(architecture=job.architecture._replace(mlp=True)),
        job._replace(task=job.task._replace(test=(Part(32, 2, 8),))),
    ]
    assert len({each.path(tmp_path) for each in (job, *others)}) == 6
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


OWN_TASK = """
import torch
def task(num, length, pairs, vocab, generator):
    ids = torch.randint(1, vocab, (num, length), generator=generator)
    targets = torch.full_like(ids, -100)
    targets[:, -1] = ids[:, 0]
    return ids, targets, torch.zeros_like(ids)
"""


def test_a_task_of_ones_own_is_trained_again_once_its_code_changes_and_its_questions_are_counted(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN_TASK)
    job = tiny("attention")
    job = job._replace(task=job.task._replace(name=f"{file}:task"))
    asked = [row[2] for row in outcome(job, tmp_path)["by_pairs"]]
    assert asked == [8], "one in each test sequence, whatever `pairs` is"
    file.write_text(OWN_TASK.replace("ids[:, 0]", "ids[:, 1]"))
    assert read_run(job, tmp_path) is None
