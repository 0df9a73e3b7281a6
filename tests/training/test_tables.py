"""Tables of a sweep, counted by hand: the best rate, the Pareto front, what is said of rates at an edge; pictures show every point."""

from __future__ import annotations

import math
import shlex

import pytest
from typer.main import get_command

from recallkit.commands.app import app
from recallkit.options import SweepOptions
from recallkit.training.presets import jobs_of
from recallkit.training.sweep import plan_sweep
from recallkit.training.tables import make_tables
from recallkit.training.view import answer, command, shown_tradeoff, tradeoff_figures
from tests.display.drawings import marks, svg, texts


def made(outcomes, rates=(1e-3, 1e-2, 1e-1), **choices):
    """Tables of models of width 16, 32 ..., whose accuracies and bytes of state are given: [(bytes, accuracy at each rate)]."""
    widths = [16 * (place + 1) for place in range(len(outcomes))]
    chosen = {"mixers": ["attention"], "widths": widths, "learning_rates": rates, "test_pairs": [2, 4], **choices}
    runs = []
    for job in jobs_of("cpu", "mqar", SweepOptions(**chosen)):
        state_bytes, accuracies = outcomes[widths.index(job.architecture.width)]
        accuracy, loss = accuracies[rates.index(job.learning_rate)]
        by_pairs = [[accuracy, loss, part.examples * part.pairs] for part in job.task.test]
        found = {
            "parameters": 10,
            "state_bytes": state_bytes,
            "accuracy": accuracy,
            "loss_nats": loss,
            "num_steps": 5,
            "by_pairs": by_pairs,
        }
        runs.append((job, found))
    return make_tables(runs)


def test_the_best_rate_counts_and_an_edge_is_said():
    tables = made([(8, [(0.5, 1.0), (0.7, 2.0), (0.7, 1.5)]), (16, [(0.1, 4.0), (0.9, 0.1), (0.2, math.nan)])])
    rows = tables.tradeoff.to_dicts()
    assert [(row["learning_rate"], row["loss_nats"], row["lowest_accuracy"], row["at_edge"]) for row in rows] == [
        (0.1, 1.5, 0.5, True),
        (0.01, 0.1, 0.1, False),
    ]
    assert tables.by_rate["best"].to_list() == [False, False, True, False, True, False]
    assert [(row["pairs"], row["num_queries"], row["accuracy"]) for row in tables.by_pairs.to_dicts()] == [
        (2, 500, 0.7),
        (4, 1000, 0.7),
        (2, 500, 0.9),
        (4, 1000, 0.9),
    ]
    shown = shown_tradeoff(tables)
    assert [row[-2] for row in shown["tradeoff"].rows] == ["0.1*", "0.01"]
    assert shown["rates"].rows[1][2:] == ["10.0 %", "90.0 %", "20.0 %"]


def test_a_diverged_run_is_never_the_best():
    (row,) = made([(8, [(0.0, math.nan), (0.0, 9.0)])], rates=(1e-3, 1e-2)).tradeoff.to_dicts()
    assert row["learning_rate"] == 1e-2


def test_the_pareto_front():
    outcomes = [(8, 0.2), (16, 0.1), (16, 0.5), (32, 0.5), (64, 0.4), (64, 0.9)]
    tables = made([(size, [(accuracy, 1.0)]) for size, accuracy in outcomes], rates=(1e-2,))
    assert tables.tradeoff["pareto"].to_list() == [True, False, True, False, False, True]


def test_every_point_is_drawn_and_says_what_it_is():
    tables = made([(8, [(0.25, 1.0), (0.5, 1.0)]), (1024, [(0.75, 1.0), (0.7, 1.0)])], rates=(1e-3, 1e-2))
    drawings = {figure.name: svg(figure) for figure in tradeoff_figures(tables)}
    assert list(drawings) == ["tradeoff", "tradeoff_by_width", "tradeoff_by_learning_rate", "tradeoff_by_pairs"]
    assert sorted(marks(drawings["tradeoff"])) == ["attention, width 16: 50.0 %", "attention, width 32: 75.0 %"]
    assert len(marks(drawings["tradeoff_by_learning_rate"])) == 2, "of the most accurate model"
    assert {"0.001", "0.01"} <= set(texts(drawings["tradeoff_by_learning_rate"]))


def test_one_figure_alone_where_nothing_else_differs():
    tables = made([(8, [(0.5, 1.0)])], rates=(1e-2,), test_pairs=[4])
    assert [figure.name for figure in tradeoff_figures(tables)] == ["tradeoff"]
    assert list(shown_tradeoff(tables)) == ["tradeoff", "rates"]


def test_several_tasks_have_a_table_and_a_plot_each():
    jobs = jobs_of("zoology:6", "mqar", SweepOptions(mixers=["attention"], widths=[16], learning_rates=[1e-2], vocab=1024))
    found = {"parameters": 1, "state_bytes": 2, "accuracy": 0.5, "loss_nats": 1.0, "num_steps": 5, "by_pairs": [[0.5, 1.0, 4]]}
    tables = make_tables([(job, found) for job in jobs])
    assert list(shown_tradeoff(tables)) == [f"{name}-{task}" for task in (1, 2, 3, 4) for name in ("tradeoff", "rates")]
    figure = tradeoff_figures(tables)[0]
    assert {f"mqar: 256 ids with {pairs} pairs" for pairs in (8, 16, 32, 64)} <= set(texts(svg(figure)))


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        (
            [(800, 0.98), (1600, 0.999), (400, 0.94), (3200, 0.999)],
            "Of 4 models, none gives more values than attention (width 32), 99.9 % of the values with 1,600 bytes of state; the smallest "
            "state within 5 points of that is 800 bytes, of attention (width 16) (98.0 %).",
        ),
        (
            [(800, 0.9), (400, 0.8)],
            "Of 2 models, none gives more values than attention (width 16), 90.0 % of the values with 800 bytes of state; none with a "
            "smaller state is within 5 points of it.",
        ),
        (
            [(800, 0.9), (1600, 0.9)],
            "Of 2 models, none gives more values than attention (width 16), 90.0 % of the values with 800 bytes of state; none has a "
            "smaller state.",
        ),
        ([(800, 0.9)], "attention (width 16) gives 90.0 % of the values with 800 bytes of state."),
        (
            [(800, 0.38), (400, 0.1)],
            "Of 2 models, none gives more values than attention (width 16), 38.0 % of the values with 800 bytes of state: not shown to be "
            "more than guessing among a sequence's values (37.5 %).",
        ),
    ],
)
def test_the_answer_has_the_best_model_and_the_smallest_state_as_good(outcomes, said):
    """Also of equals, of one model, and of models that know which values there are and recall none: tests have 2 and 4 pairs."""
    assert answer(made([(size, [(accuracy, 1.0)]) for size, accuracy in outcomes], rates=(1e-2,))) == said


def test_the_command_has_what_is_not_the_presets(tmp_path):
    choices = {"mixers": ["attention", "mamba"], "learning_rates": [0.001, 0.01], "seq_len": 64, "test_seq_len": 512, "steps": 50}
    kept = plan_sweep("cpu", "mqar", SweepOptions(**choices, mlp="no"), tmp_path).choices
    told = "recallkit train --task mqar --preset cpu --seq-len 64 --learning-rates 0.001,0.01 --mixers attention,mamba "
    told += "--test-seq-len 512 --steps 50 --mlp no -o DIR"
    assert command({"task": "mqar", "preset": "cpu", "choices": kept}) == told
    parsed = get_command(app).commands["train"].make_context("train", shlex.split(told)[2:]).params
    assert (parsed["seq_len"], parsed["test_seq_len"], parsed["mlp"], parsed["learning_rates"]) == (64, 512, "no", [0.001, 0.01])
    assert (
        command({"task": "mqar", "preset": "cpu", "choices": plan_sweep("cpu", "mqar", SweepOptions(), tmp_path).choices})
        == "recallkit train --task mqar --preset cpu -o DIR"
    )
