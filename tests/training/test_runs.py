"""Sweeps are those that the papers print, and what a user chooses takes the place of a preset's;
models are those that are named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from recallkit.errors import UserError
from recallkit.options import SweepOptions
from recallkit.training.loop import new_model
from recallkit.training.presets import PRESETS
from recallkit.training.runs import runs_of


def shapes(parts):
    return [(part.length, part.pairs) for part in parts]


def sizes(runs, line):
    """The options of a line's models, and their widths."""
    return {(run.config.d_model, run.size) for run in runs if run.line == line}


def mixers(run):
    return [layer.mixer for layer in run.config.layers]


def test_zoologys_figure_2():
    """F.1, experiment 1, with the recipe of E.2."""
    runs = runs_of("zoology:2", "mqar", SweepOptions())
    assert len(runs) == 4 * 4 * 4 * 8
    sequences = {(64, 4), (128, 8), (256, 16), (512, 64)}
    assert {shape for run in runs for shape in shapes(run.task.training)} == sequences
    rates = sorted({run.learning_rate for run in runs})
    assert rates == pytest.approx([10 ** (-4 + 2 * place / 3) for place in range(4)])
    for run in runs:
        config, [trained], [tested] = run.config, run.task.training, run.task.test
        assert (len(config.layers), config.mlp, config.vocab_size) == (2, "swiglu", 8192)
        assert (trained.examples, tested.examples, run.task.options) == (100_000, 3_000, ())
        assert config.positions == ("learned" if run.line == "attention" else "none")
        assert run.batch == {64: 64, 128: 64, 256: 16, 512: 8}[max(trained.length, config.d_model)]
        assert run.steps == 64 * (100_000 // run.batch)
        assert {layer.options.get("short_conv", 0) for layer in config.layers} == {0}


@pytest.mark.parametrize(
    ("preset", "number", "trained", "tested"),
    [
        ("zoology:6", 336, {(256, pairs) for pairs in (8, 16, 32, 64)}, 256),
        ("based:2", 136, {(256, pairs) for pairs in (4, 8, 16, 32, 64)}, 1024),
        ("based:3", 256, {(256, pairs) for pairs in (4, 8, 16, 32, 64)}, 1024),
    ],
)
def test_other_figures_have_their_runs(preset, number, trained, tested):
    """As many as docs/train.md says; every size in every combination (F.1; 3.1 and E.2)."""
    runs = runs_of(preset, "mqar", SweepOptions())
    assert len(runs) == len({run.digest for run in runs}) == number
    assert {shape for run in runs for shape in shapes(run.task.training)} == trained
    assert {part.length for run in runs for part in run.task.test} == {tested}
    for run in runs:
        assert run.config.mlp == ("none" if preset.startswith("based") else "swiglu")
        if run.line == "based":
            assert run.config.d_model in (48, 64, 128)
        if run.line == "relu":
            assert run.config.layers[1].options["feature_dim"] == run.config.d_model


def test_choices_take_the_place_of_a_presets():
    choices = SweepOptions(
        mixers=["linear_attention", "gla"],
        widths=[16],
        mixer_options="feature_dim=2,4,short_conv=0",
        learning_rates=[0.1],
        seq_len=32,
        pairs=[1, 2],
        test_pairs=[3],
        examples=100,
        steps=7,
        batch=5,
    )
    runs = runs_of("cpu", "mqar", choices)
    lines = [(run.line, run.size) for run in runs]
    assert lines == [
        ("linear_attention", "feature_dim 2, short_conv 0"),
        ("linear_attention", "feature_dim 4, short_conv 0"),
        ("gla", ""),
    ], "options are of the mixers that have them"
    for run in runs:
        assert [tuple(part) for part in run.task.training] == [(32, 1, 50), (32, 2, 50)]
        assert [tuple(part) for part in run.task.test] == [(256, 3, 500)]
        assert (run.steps, run.batch, run.learning_rate) == (7, 5, 0.1)
    (task,) = {
        run.task for run in runs_of("zoology:2", "mqar", SweepOptions(seq_len=32, pairs=[2]))
    }
    assert shapes(task.training) == shapes(task.test) == [(32, 2)], (
        "a figure of one shape is tested on what it trains"
    )


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"mixers": ["attentoin"]}, "attention"),
        (
            {"mixers": ["attention"], "mixer_options": "feature_dim=2"},
            "none of these mixers has the option feature_dim",
        ),
        ({"mixer_options": "8,feature_dim=2"}, "'8' is not the value of an option"),
        ({"mixer_options": "feature_dim="}, "'feature_dim=' is not the value of an option"),
        ({"test_examples": 2}, "--test-examples"),
        ({"test_pairs": [65]}, "65 pairs do not fit into 256 ids"),
        ({"examples": 90, "batch": 31}, "--batch"),
    ],
)
def test_mistakes_are_one_line(choices, said):
    with pytest.raises(UserError, match=said) as caught:
        runs_of("cpu", "mqar", SweepOptions(**choices))
    assert "\n" not in caught.value.line()


@pytest.mark.parametrize("name", PRESETS)
def test_every_model_of_a_preset_can_be_made(name):
    for config in {
        str(run.config): run.config for run in runs_of(name, "mqar", SweepOptions(widths=[64]))
    }.values():
        with torch.device("meta"):
            assert new_model(0, config).num_parameters()


def one(mixer, **choices):
    """The config of a mixer in the preset `cpu`."""
    return runs_of(
        "cpu",
        "mqar",
        SweepOptions(mixers=mixer, widths=[32], learning_rates=[0.01], **choices),
    )[0].config


def test_short_convolutions_are_where_they_are_wanted():
    layers = {
        name: one(name).layers
        for name in ("linear_attention", "base_conv+linear_attention", "base_conv")
    }
    assert [layer.options["short_conv"] for layer in layers["linear_attention"]] == [3, 3]
    assert [layer.mixer for layer in layers["base_conv+linear_attention"]] == [
        "base_conv",
        "linear_attention",
    ]
    assert layers["base_conv+linear_attention"][1].options["short_conv"] == 0
    assert [layer.options.get("filter") for layer in layers["base_conv"]] == ["short", None]
    assert [
        layer.options["short_conv"]
        for layer in one("linear_attention", mixer_options="short_conv=0").layers
    ] == [0, 0]


def test_mixers_joined_by_plus_take_turns_and_options_apply_to_each():
    layers = one(
        "linear_attention+sliding_window",
        mixer_options="feature_dim=4,window=8",
        layers=4,
    ).layers
    assert [layer.mixer for layer in layers] == ["linear_attention", "sliding_window"] * 2
    assert [layer.options.get("feature_dim") for layer in layers] == [4, None, 4, None]
    assert [layer.options.get("window") for layer in layers] == [None, 8, None, 8]


def test_attention_knows_the_order_of_ids_by_a_convolution_or_by_positions():
    """It is rotary in `cpu`, learned in `zoology:2`; with a short convolution it has none."""
    ids = torch.randint(1, 64, (1, 16), generator=torch.Generator().manual_seed(0))
    swapped = ids.clone()
    swapped[0, [2, 9]] = ids[0, [9, 2]]
    learned = next(
        run.config
        for run in runs_of(
            "zoology:2",
            "mqar",
            SweepOptions(mixers="attention", widths=[32], vocab=256),
        )
    )
    rotary = one("attention", mixer_options="short_conv=0", layers=1)
    assert learned.max_length == 64
    models = {
        "rotary": rotary,
        "learned": replace(learned, layers=learned.layers[:1]),
        "conv": one("attention", layers=1),
    }
    results = {}
    for name, config in models.items():
        model = new_model(0, config).eval()
        if model.positions is not None:
            torch.nn.init.normal_(model.positions.weight)
        results[name] = (
            [layer.options.get("rope_fraction") for layer in config.layers],
            bool(torch.allclose(model(ids)[0, -1], model(swapped)[0, -1], atol=1e-5)),
        )
    assert results == {"rotary": ([None], False), "learned": ([0.0], False), "conv": ([0.0], False)}


@pytest.mark.parametrize(
    ("mixer", "options", "elements"),
    [
        ("attention", "", 2 * 64 * 1024),  # eq. 10
        ("sliding_window", "window=32", 2 * 64 * 32),  # eq. 11
        ("sliding_window", "window=1024", 2 * 64 * 1024),
        ("mamba", "state=24", 2 * 64 * 24),  # eq. 12
        ("h3", "", 64 * 16),  # eq. 13, with d / 4
        ("hyena", "", 64 * 1024),  # eq. 14
        ("linear_attention", "feature_dim=24", 65 * (1 + 3 * 24 // 2 + 24**2 // 2)),  # eq. 9
        ("linear_attention", "feature_dim=64,feature_map=relu", 65 * 64),  # eq. 8
    ],
)
def test_the_state_of_a_layer_is_as_large_as_in_the_paper(mixer, options, elements):
    """Based, appendix E.2, after 1,024 ids at a width of 64."""
    choices = SweepOptions(
        mixers=mixer,
        mixer_options=options or None,
        widths=[64],
        layers=1,
        test_seq_len=1024,
    )
    assert new_model(0, runs_of("cpu", "mqar", choices)[0].config).state_size(1024) == elements
