"""Sweeps are those that the papers print, and what a user chooses takes the place of a preset's."""

from __future__ import annotations

import itertools
import math

import pytest

from recallkit.errors import UsageError, UserError
from recallkit.options import SweepOptions
from recallkit.training.presets import PRESETS, jobs_of


def shapes(parts):
    return [(part.length, part.pairs) for part in parts]


def sizes(jobs, model, *names):
    options = [{**dict(job.architecture.options), "width": job.architecture.width} for job in jobs if job.architecture.model == model]
    return {tuple(each[name] for name in names) for each in options}


def test_zoologys_figure_2():
    """F.1, experiment 1, with the recipe of E.2."""
    jobs = jobs_of("zoology:2", "mqar", SweepOptions())
    assert {shape for job in jobs for shape in shapes(job.task.training)} == {(64, 4), (128, 8), (256, 16), (512, 64)}
    assert all(shapes(job.task.training) == shapes(job.task.test) for job in jobs)
    rates = sorted({job.learning_rate for job in jobs})
    assert (rates[0], rates[-1], len(rates)) == (1e-4, 1e-2, 4)
    assert [math.log10(high / low) for low, high in itertools.pairwise(rates)] == pytest.approx([2 / 3] * 3)
    for job in jobs:
        made, (trained,), (tested,) = job.architecture, job.task.training, job.task.test
        assert (made.layers, made.mlp, job.task.vocab, dict(job.task.options)) == (2, True, 8192, {})
        assert (trained.examples, tested.examples) == (100_000, 3_000)
        assert made.width in (64, 128, 256, 512)
        assert job.batch == {64: 64, 128: 64, 256: 16, 512: 8}[max(trained.length, made.width)]
        assert job.steps == 64 * (100_000 // job.batch)
    assert len(jobs) == len(set(jobs)) == 4 * 4 * 4 * 8


def test_zoologys_figure_6():
    """F.1, experiments 2 and 3: D of N/32 to N/4 at N = 256, windows of 8 and 32."""
    jobs = jobs_of("zoology:6", "mqar", SweepOptions())
    assert {shape for job in jobs for shape in shapes(job.task.training)} == {(256, 8), (256, 16), (256, 32), (256, 64)}
    assert {job.architecture.width for job in jobs} == {64, 128, 256}
    assert {dict(job.architecture.options).get("window") for job in jobs} == {None, 8, 32}
    assert {job.batch for job in jobs} == {16}


def test_baseds_figure_2():
    """3.1 and the sizes of appendix E.2."""
    jobs = jobs_of("based:2", "mqar", SweepOptions())
    (task,) = {job.task for job in jobs}
    assert shapes(task.training) == [(256, pairs) for pairs in (4, 8, 16, 32, 64)]
    assert shapes(task.test) == [(1024, pairs) for pairs in (4, 8, 16, 32, 64, 128, 256)]
    assert sizes(jobs, "based", "width", "feature_dim") == set(itertools.product((48, 64, 128), (8, 16, 24)))
    assert sizes(jobs, "attention", "width") == {(64,), (128,)}
    assert sizes(jobs, "sliding_window", "width", "window") == {(128, 2**power) for power in range(3, 11)}
    assert sizes(jobs, "mamba", "width", "state") == set(itertools.product((64, 128, 256), (8, 16, 24)))
    assert sizes(jobs, "h3", "width") == sizes(jobs, "hyena", "width") == {(64,), (128,), (256,)}


def test_baseds_figure_3():
    jobs = jobs_of("based:3", "mqar", SweepOptions())
    (task,) = {job.task for job in jobs}
    assert shapes(task.test) == [(1024, 256)], "256 pairs"
    maps = {dict(job.architecture.options)["feature_map"] for job in jobs}
    assert maps == {"taylor", "elu", "identity", "relu", "square", "cosformer", "performer"}
    assert sizes(jobs, "relu", "feature_dim") == sizes(jobs, "relu", "width")


def test_choices_take_the_place_of_a_presets():
    choices = SweepOptions(
        mixers=["linear_attention", "gla"],
        widths=[16],
        feature_dims=[2, 4],
        convolutions=["none", "layer"],
        learning_rates=[0.1],
        seq_len=32,
        pairs=[1, 2],
        test_pairs=[3],
        examples=100,
        steps=7,
        batch=5,
        mlp="no",
    )
    jobs = jobs_of("cpu", "mqar", choices)
    lines = [(job.architecture.model, job.architecture.convolution, dict(job.architecture.options)) for job in jobs]
    assert lines == [
        ("linear_attention alone", "none", {"feature_dim": 2}),
        ("linear_attention alone", "none", {"feature_dim": 4}),
        ("linear_attention + layer", "layer", {"feature_dim": 2}),
        ("linear_attention + layer", "layer", {"feature_dim": 4}),
        ("gla", "own", {}),
    ]
    for job in jobs:
        assert [tuple(part) for part in job.task.training] == [(32, 1, 50), (32, 2, 50)]
        assert [tuple(part) for part in job.task.test] == [(256, 3, 500)]
        assert (job.steps, job.batch, job.learning_rate, job.architecture.mlp) == (7, 5, 0.1, False)
    (task,) = {each.task for each in jobs_of("zoology:2", "mqar", SweepOptions(seq_len=32, pairs=[2]))}
    assert shapes(task.training) == shapes(task.test) == [(32, 2)], "a figure of one shape is tested on what it trains"


def test_mistakes_are_one_line():
    for choices, said in (
        (SweepOptions(mixers=["attentoin"]), "attention"),
        (SweepOptions(mixers=["attention"], feature_dims=[2]), "--feature-dims"),
        (SweepOptions(test_examples=2), "--test-examples"),
        (SweepOptions(convolutions=["wide"]), "--convolutions"),
        (SweepOptions(test_pairs=[65]), "65 pairs do not fit into 256 ids"),
        (SweepOptions(examples=90, batch=31), "--batch"),
    ):
        with pytest.raises(UserError, match=said):
            jobs_of("cpu", "mqar", choices)
    with pytest.raises(UsageError, match="--preset"):
        jobs_of("based:9", "mqar", SweepOptions())


@pytest.mark.parametrize("name", PRESETS)
def test_every_model_of_a_preset_can_be_made(name, monkeypatch):
    from recallkit.models.mixers import make_mixer
    from recallkit.training.jobs import layers_of

    for made in {job.architecture for job in jobs_of(name, "mqar", SweepOptions(widths=[64]))}:
        for layer in layers_of(made, 64):
            make_mixer(layer.mixer, made.width, **layer.options)
