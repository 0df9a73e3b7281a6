"""Tables of a sweep, counted by hand: the best rate, the Pareto front, what is said of rates at an
edge; pictures show every point."""

from __future__ import annotations

import math

import pytest

from recallkit.options import SweepOptions
from recallkit.training.runs import runs_of
from recallkit.training.tables import make_tables
from recallkit.training.view import answer, tradeoff_figures, tradeoff_tables
from tests.display.drawings import marks, svg, texts


def tables_of(outcomes, rates=(1e-3, 1e-2, 1e-1), **choices):
    """Tables of models of width 16, 32 ..., whose accuracies and bytes of state are given: [(bytes,
    accuracy at each rate)]."""
    widths = [16 * (place + 1) for place in range(len(outcomes))]
    chosen = {
        "mixers": ["attention"],
        "widths": widths,
        "learning_rates": rates,
        "test_pairs": [2, 4],
        **choices,
    }
    runs = []
    for run in runs_of("cpu", "mqar", SweepOptions(**chosen)):
        state_bytes, accuracies = outcomes[widths.index(run.config.d_model)]
        accuracy, loss = accuracies[rates.index(run.learning_rate)]
        outcome = {
            "parameters": 10,
            "state_bytes": state_bytes,
            "accuracy": accuracy,
            "loss_nats": loss,
            "num_steps": 5,
            "by_distance": [[(2, 10, 9), (8, 30, 3)], [(8, 10, 9)]][: len(run.task.test)],
        }
        runs.append((run, outcome))
    return make_tables(runs)


def test_the_best_rate_counts_and_an_edge_is_said():
    tables = tables_of(
        [
            (8, [(0.5, 1.0), (0.7, 2.0), (0.7, 1.5)]),
            (16, [(0.1, 4.0), (0.9, 0.1), (0.2, math.nan)]),
        ],
    )
    rows = tables.tradeoff.to_dicts()
    assert [(row["learning_rate"], row["loss_nats"], row["at_edge"]) for row in rows] == [
        (0.1, 1.5, True),
        (0.01, 0.1, False),
    ]
    assert tables.by_rate["best"].to_list() == [False, False, True, False, True, False]
    shown = tradeoff_tables(tables)
    assert [row[-2] for row in shown["tradeoff"].rows] == ["0.1*", "0.01"]
    assert shown["pairs"].headers[2:] == ["2", "4"]
    assert shown["pairs"].rows[1][2:] == ["30.0 %", "90.0 %"], "12 of 40, and 9 of 10"


def test_accuracy_by_distance_is_by_test_in_the_table_and_of_all_tests_where_it_is_shown():
    tables = tables_of([(8, [(0.5, 1.0)])], rates=(1e-2,))
    outcome = tables.by_distance.select("pairs", "low", "high", "num_queries", "accuracy").rows()
    assert outcome == [(2, 2, 2, 10, 0.9), (2, 5, 8, 30, 0.1), (4, 5, 8, 10, 0.9)]
    shown = tradeoff_tables(tables)["distance"]
    assert shown.headers[2:] == ["2", "8"]
    assert shown.rows[0][2:] == ["90", "30"], "12 of 40"
    drawn = {figure.name: svg(figure) for figure in tradeoff_figures(tables)}[
        "tradeoff_by_distance"
    ]
    assert sorted(marks(drawn)) == [
        "attention, width 16, 2 ids: 90.0 %",
        "attention, width 16, 5 to 8 ids: 30.0 %",
    ]


def test_a_diverged_run_is_never_the_best():
    (row,) = tables_of([(8, [(0.0, math.nan), (0.0, 9.0)])], rates=(1e-3, 1e-2)).tradeoff.to_dicts()
    assert row["learning_rate"] == 1e-2


def test_the_pareto_front():
    outcomes = [(8, 0.2), (16, 0.1), (16, 0.5), (32, 0.5), (64, 0.4), (64, 0.9)]
    tables = tables_of([(size, [(accuracy, 1.0)]) for size, accuracy in outcomes], rates=(1e-2,))
    assert tables.tradeoff["pareto"].to_list() == [True, False, True, False, False, True]


def test_every_point_is_drawn_and_says_what_it_is():
    tables = tables_of(
        [(8, [(0.25, 1.0), (0.5, 1.0)]), (1024, [(0.75, 1.0), (0.7, 1.0)])],
        rates=(1e-3, 1e-2),
    )
    drawings = {figure.name: svg(figure) for figure in tradeoff_figures(tables)}
    assert list(drawings) == ["tradeoff", "tradeoff_by_pairs", "tradeoff_by_distance"]
    assert sorted(marks(drawings["tradeoff"])) == [
        "attention, width 16: 50.0 %",
        "attention, width 32: 75.0 %",
    ]
    assert list(marks(drawings["tradeoff_by_pairs"])) == [
        "attention, width 32, 2 pairs: 30.0 %",
        "attention, width 32, 4 pairs: 90.0 %",
    ], "of the most accurate model"


def test_one_test_has_no_table_by_pairs():
    tables = tables_of([(8, [(0.5, 1.0)])], rates=(1e-2,), test_pairs=[4])
    assert [figure.name for figure in tradeoff_figures(tables)] == [
        "tradeoff",
        "tradeoff_by_distance",
    ]
    assert list(tradeoff_tables(tables)) == ["tradeoff", "distance"]


def test_several_tasks_have_a_table_and_a_plot_each():
    runs = runs_of(
        "zoology:6",
        "mqar",
        SweepOptions(mixers=["attention"], widths=[16], learning_rates=[1e-2], vocab=1024),
    )
    outcome = {"parameters": 1, "state_bytes": 2, "accuracy": 0.5, "loss_nats": 1.0, "num_steps": 5}
    tables = make_tables([(run, {**outcome, "by_distance": [[(4, 4, 2)]]}) for run in runs])
    assert list(tradeoff_tables(tables)) == [
        f"{name}-{task}" for task in (1, 2, 3, 4) for name in ("tradeoff", "distance")
    ]
    figure = tradeoff_figures(tables)[0]
    assert {f"mqar: 256 ids with {pairs} pairs" for pairs in (8, 16, 32, 64)} <= set(
        texts(svg(figure)),
    )


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        (
            [(800, 0.98), (1600, 0.999), (400, 0.94), (3200, 0.999)],
            "attention (width 32) gives 99.9 % of the answers with 1,600 bytes of state, the "
            "most of 4 models; the smallest state within "
            "5 points of that is the 800 bytes of attention (width 16), with 98.0 %.",
        ),
        (
            [(800, 0.9), (1600, 0.9)],
            (
                "attention (width 16) gives 90.0 % of the answers with 800 bytes of state, the "
                "most of 2 models."
            ),
        ),
        ([(800, 0.9)], "attention (width 16) gives 90.0 % of the answers with 800 bytes of state."),
    ],
)
def test_the_answer_has_the_best_model_and_the_smallest_state_as_good(outcomes, said):
    """Also of equals, and of one model."""
    assert (
        answer(tables_of([(size, [(accuracy, 1.0)]) for size, accuracy in outcomes], rates=(1e-2,)))
        == said
    )
