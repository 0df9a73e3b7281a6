"""A run: its model learns, its state is counted as the papers count it, its file is its own;
accuracy by distance has a known truth."""

from __future__ import annotations

import pytest
import torch

from recallkit.errors import UserError
from recallkit.models.mixers import MIXERS
from recallkit.options import SweepOptions
from recallkit.synthetic.tasks import Examples
from recallkit.training.loop import Measured, new_model
from recallkit.training.run import plan_sweep
from recallkit.training.sweep import by_distance

TINY = {
    "seq_len": 16,
    "test_seq_len": 16,
    "pairs": 2,
    "test_pairs": 2,
    "vocab": 64,
    "widths": 32,
    "learning_rates": 1e-2,
}
TINY |= {"examples": 16, "test_examples": 8, "batch": 4, "steps": 1}


def tiny(folder, mixer="attention", task="mqar", **changes):
    """A sweep of one rate, of a line with several sizes in the preset some runs."""
    return plan_sweep(
        "cpu",
        task,
        SweepOptions(**{**TINY, "mixers": mixer, **changes}),
        folder,
        "cpu",
    )


def outcome(sweep):
    run = sweep.runs[0]
    assert sum(sweep.job.train_run(run)) == run.steps
    return sweep.job.outcome(run)


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_can_be_trained(mixer, tmp_path):
    sweep = tiny(
        tmp_path,
        mixer,
        mixer_options="prefix=4" if mixer == "prefix_linear_attention" else None,
    )
    record = outcome(sweep)
    model = new_model(0, sweep.runs[0].config)
    assert len(model.blocks) == 2
    assert record["parameters"] == model.num_parameters()
    assert record["loss_nats"] < 10


def test_attention_learns_the_task_and_stops(tmp_path):
    sweep = tiny(tmp_path, examples=2000, test_examples=200, steps=1500, batch=32)
    record = outcome(sweep)
    assert record["curve"][0][2] > 0.5
    assert record["loss_nats"] < 0.5
    assert record["accuracy"] > 0.99
    assert record["num_steps"] < 1500


def test_a_prefix_is_read_in_both_directions_and_only_what_follows_it_is_asked_for(tmp_path):
    """The 8 ids of four pairs are the prefix, of which the first question may be the last id; not
    the second one."""
    sizes = {"seq_len": 24, "test_seq_len": 24, "pairs": 4, "test_pairs": 4, "vocab": 32}
    sizes |= {
        "examples": 4000,
        "test_examples": 100,
        "steps": 500,
        "batch": 32,
        "mixer": "base_conv+prefix_linear_attention",
    }
    assert (
        outcome(tiny(tmp_path, mixer_options="prefix=8,feature_dim=8", **sizes))["accuracy"] > 0.95
    )
    with pytest.raises(
        UserError,
        match=r"prefix 10: a question is at id 9 of .*; give prefix=9 or less to --mixer-options",
    ):
        tiny(tmp_path, mixer_options="prefix=10", **sizes).train()


def test_a_runs_file_depends_on_every_choice_but_the_lines_name(tmp_path):
    [run] = tiny(tmp_path).runs
    others = [
        tiny(tmp_path, seed=1),
        tiny(tmp_path, task="mqar,power=0.01"),
        tiny(tmp_path, mixer_options="short_conv=0"),
        tiny(tmp_path, layers=3),
        tiny(tmp_path, test_seq_len=32),
    ]
    assert len({run.digest, *(other.runs[0].digest for other in others)}) == 6
    assert run._replace(line="another", size="").digest == run.digest


def test_a_damaged_run_and_sizes_that_do_not_fit_are_one_line(tmp_path):
    sweep = tiny(tmp_path)
    [run] = sweep.runs
    assert sweep.job.outcome(run) is None
    outcome(sweep)
    [file] = (tmp_path / "runs").glob(f"{run.digest}.json")
    for text in ("", "[]", '{"accuracy": 1.0}'):
        file.write_text(text)
        with pytest.raises(UserError, match="not the outcome of this run"):
            sweep.train()
    for mixer, options, said in (
        ("retnet", "num_heads=4", "width 6"),
        ("mamba", "state=much", "state of mamba is 'much'"),
    ):
        with pytest.raises(UserError, match=said) as caught:
            tiny(tmp_path / "other", mixer, widths=6, mixer_options=options).train()
        assert "\n" not in caught.value.line()
    assert not (tmp_path / "other").exists()


def test_distances_are_counted_in_powers_of_two():
    """Of a window that holds the 16 last ids: nothing that is farther. Questions 1, 2, 3 ... 40 ids
    from their answers."""
    distances = torch.arange(40).repeat(2, 1)  # in `Examples` the question itself is not counted
    examples = Examples(torch.zeros(2, 40), torch.ones(2, 40, dtype=torch.int64), distances)
    buckets = by_distance(Measured(0.4, 1.0, (distances < 16).flatten()), examples)
    assert buckets == [
        (1, 2, 2),
        (2, 2, 2),
        (4, 4, 4),
        (8, 8, 8),
        (16, 16, 16),
        (32, 32, 0),
        (64, 16, 0),
    ]


OWN_TASK = """
import torch
def task(num, length, pairs, vocab, generator):
    ids = torch.randint(1, vocab, (num, length), generator=generator)
    targets = torch.full_like(ids, -100)
    targets[:, -1] = ids[:, 0]
    return ids, targets, torch.zeros_like(ids)
"""


def test_a_task_of_ones_own_is_trained_again_once_its_code_changes_and_its_questions_are_counted(
    tmp_path,
):
    file = tmp_path / "own.py"
    file.write_text(OWN_TASK)
    sweep = tiny(tmp_path, task=f"{file}:task")
    [of_test] = outcome(sweep)["by_distance"]
    assert sum(number for _, number, _ in of_test) == 8, (
        "one in each test sequence, whatever `pairs` is"
    )
    file.write_text(OWN_TASK.replace("ids[:, 0]", "ids[:, 1]"))
    assert sweep.job.outcome(sweep.runs[0]) is None


NEAR_AND_FAR = """
import torch
def task(num, length, pairs, vocab, generator):
    ids = torch.randint(2, vocab, (num, length), generator=generator)
    targets, distances = torch.full_like(ids, -100), torch.zeros_like(ids)
    targets[:, 3], distances[:, 3] = 1, 2
    targets[:, -1], distances[:, -1] = ids[:, 0], length - 1
    return ids, targets, distances
"""


def test_accuracy_by_distance_of_answers_of_which_one_kind_can_be_known(tmp_path):
    """What is near is always id 1; what is far is one of 62 ids, of which a window of 4 has seen
    none."""
    file = tmp_path / "own.py"
    file.write_text(NEAR_AND_FAR)
    sizes = {"examples": 640, "test_examples": 200, "batch": 16, "steps": 40}
    frame = (
        tiny(
            tmp_path,
            "sliding_window",
            f"{file}:task",
            mixer_options="window=4,short_conv=0",
            **sizes,
        )
        .train()
        .by_distance
    )
    assert frame.select("low", "high", "num_queries").rows() == [(3, 4, 200), (9, 16, 200)]
    near, far = frame["accuracy"]
    assert near == 1
    assert far < 0.1
