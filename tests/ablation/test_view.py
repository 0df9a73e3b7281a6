"""What is printed and drawn of ablations: the answer, tables, shares that mean nothing, the map of
losses."""

from __future__ import annotations

import polars as pl
import pytest

from recallkit.ablation.tables import PARTS, AblationTables
from recallkit.ablation.view import ablation_figures, ablation_tables, which_recall
from recallkit.display.cells import Struck
from recallkit.storage.schemas import frame_of
from tests.display.drawings import svg

MANIFEST = {
    "options": {"by": "zero", "heads": False},
    "slices": {
        "max_count": 5,
        "threshold": {"rule": "count", "rate": None},
        "counts": {"num_tokens": 3_000_000, "id": "i", "path": "p"},
    },
}
NEEDED, BREAKS, UNNEEDED, LITTLE = (0.02, 0.8), (0.02, 0.3), (0.99, 0.9), (0.94, 0.8)
"""What is retained, and the share of the loss in AR hits, which are a quarter of the tokens, within
0.02 and 0.1."""
ATTENTION, MAMBA = ("attention", 1), ("mamba", 0)
ITS_PARTS = {"mamba": "0 2", "attention": "1 3", "1+2": "1 2", "1.h0-3": "1.h0 1.h1 1.h2 1.h3"}
OF = "Of its recall gain of 40.0 (38.0 to 42.0) points,"
NONE = (
    "m has a recall gain of 40.0 (38.0 to 42.0) points; none of these mixers is shown to serve "
    "recall in particular."
)
LESS = "retains less, but that loss is not shown to fall on AR hits in particular."


def tables_of(*sets: tuple, gain: tuple = (0.4, 0.38, 0.42)) -> AblationTables:
    """Tables of sets: name, kind, layer, what is retained, and the AR hits' share of the loss."""
    mixers, slices = [], []
    for name, (kind, layer), (retained, share) in sets:
        row = {
            "model": "m",
            "mixers": name,
            "kind": kind,
            "layer": layer,
            "cluster": "document",
            "note": "",
            "void": share == 0.9,
        }
        row |= {
            "parts": ITS_PARTS.get(name, name),
            "layers": None,
            "cache_bytes": None,
            "loss": 0.125,
            "loss_ar_hit": 1.0,
            "share_of_tokens": 0.25,
            "clusters": 9,
            "effective_clusters": 8.5,
        }
        row |= {
            "loss_share": share,
            "loss_share_ci_low": share - 0.1,
            "loss_share_ci_high": share + 0.1,
        }
        row |= {
            "retained": retained,
            "retained_ci_low": retained - 0.02,
            "retained_ci_high": retained + 0.02,
        }
        row |= dict(zip(("gain", "gain_ci_low", "gain_ci_high"), gain, strict=True))
        row |= dict.fromkeys(
            ("gain_lost", "gain_lost_ci_low", "gain_lost_ci_high"), 0.4 * (1 - retained)
        )
        mixers.append(row)
        loss = {
            "tokens": 25,
            "nll": 2.0,
            "nll_ablated": 2.0 + row["loss_ar_hit"],
            "loss_ci_low": 0.9,
            "loss_ci_high": 1.1,
        }
        slices += [
            {**row, **loss, "slice": slice_, "loss": 1.0 if slice_ == "ar_hit" else 0.125}
            for slice_ in ("all", *PARTS)
        ]
    return AblationTables(
        frame_of("ablation/ablation", slices), frame_of("ablation/mixers", mixers)
    )


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            [
                ("1", ATTENTION, NEEDED),
                ("0", MAMBA, BREAKS),
                ("2", MAMBA, UNNEEDED),
                ("mamba", ("mamba", None), BREAKS),
            ],
            (
                f"{OF} m retains 2 % (0 to 4) without layer 1 attention. Without layer 0 mamba it "
                f"also {LESS}"
            ),
        ),
        (
            [
                ("1", ATTENTION, NEEDED),
                ("3", ("attention", 3), (0.5, 0.8)),
                ("attention", ("attention", None), NEEDED),
            ],
            (
                f"{OF} m retains 2 % (0 to 4) without layer 1 attention, 50 % (48 to 52) without "
                "layer 3 attention."
            ),
        ),
        (
            [("1+2", ("attention+mamba", None), NEEDED), ("2", MAMBA, UNNEEDED)],
            f"{OF} m retains 2 % (0 to 4) without 1+2.",
        ),
        (
            [("1+2", ("attention+mamba", None), NEEDED), ("1", ATTENTION, NEEDED)],
            f"{OF} m retains 2 % (0 to 4) without layer 1 attention.",
        ),
        (
            [
                ("1.h0-3", ATTENTION, NEEDED),
                ("1.h2", ATTENTION, NEEDED),
                ("1.mamba.h2", ATTENTION, NEEDED),
            ],
            (
                f"{OF} m retains 2 % (0 to 4) without layer 1 attention h2, 2 % (0 to 4) without "
                "layer 1 attention h2."
            ),
        ),
        (
            [("2", MAMBA, UNNEEDED), ("1", ATTENTION, LITTLE)],
            NONE,
        ),
        (
            [("0", MAMBA, BREAKS)],
            f"{NONE} Without layer 0 mamba it {LESS}",
        ),
        (
            [("1", ATTENTION, (0.02, 0.9))],
            f"{NONE} Without layer 1 attention it {LESS}",
        ),
    ],
)
def test_the_answer_names_the_smallest_sets_without_which_ar_hits_lose_in_particular(sets, said):
    assert which_recall(tables_of(*sets)) == said


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (
            (0.001, -0.001, 0.003),
            (
                "m shows no significant recall: its recall gain on AR hits is 0.1 (-0.1 to 0.3) "
                "points."
            ),
        ),
        (
            (-0.03, -0.04, -0.01),
            (
                "m shows no significant recall: its recall gain on AR hits is -3.0 (-4.0 to -1.0) "
                "points."
            ),
        ),
        (
            (0.4, None, None),
            (
                "Which mixers recall depends on is unknown: AR hits come from effectively 4.9 "
                "documents; 5 are needed."
            ),
        ),
    ],
)
def test_where_there_is_no_recall_to_lose_it_is_said(gain, said):
    assert which_recall(tables_of(("1", ATTENTION, NEEDED), gain=gain)) == said


def test_the_tables_have_a_row_for_each_set_and_one_for_the_model_as_it_is():
    sets = [("1", ATTENTION, NEEDED), ("2", ("mamba", 2), UNNEEDED), ("1.h2", ATTENTION, NEEDED)]
    shown = ablation_tables(tables_of(*sets), MANIFEST)
    mixers, losses = shown["mixers"], shown["ablation"]
    assert mixers.rows[:2] == [
        ["1 attention", "2 (0 to 4)", "+0.12", "+1.00", "80.0 %"],
        ["2 mamba", "99 (97 to 101)", "+0.12", "+1.00", "90.0 %"],
    ]
    assert [isinstance(row[-1], Struck) for row in mixers.rows] == [False, True, False]
    assert [row[0] for row in losses.rows] == [
        "unchanged (NLL)",
        "1 attention",
        "2 mamba",
        "1 attention h2",
        "share of tokens",
    ]
    assert losses.rows[-1] == ["share of tokens", *["25.0 %"] * 5]
    assert losses.rows[1] == ["1 attention", "+0.12", "+1.00", "+0.12", "+0.12", "+0.12"]
    assert str(losses.caption).startswith("The outputs of mixers are replaced by zero. ")
    by_mean = ablation_tables(
        tables_of(*sets), {**MANIFEST, "options": {"by": "mean", "heads": True}}
    )["ablation"]
    assert str(by_mean.caption).startswith(
        "The outputs of heads are replaced by their mean over the text. "
    )


def path_of(
    *rows: tuple[str, float, float, int], gain: tuple = (0.4, 0.38, 0.42)
) -> AblationTables:
    """Tables of a budget's path: what is left, what of the recall gain is retained, the loss, the
    bytes of caches."""
    tables = tables_of(*(("2", MAMBA, (retained, 0.8)) for _, retained, *_ in rows), gain=gain)
    left, _, loss, cache = (list(column) for column in zip(*rows, strict=True))
    return AblationTables(
        tables.ablation,
        tables.mixers.with_columns(
            layers=pl.Series(left), loss=pl.Series(loss), cache_bytes=pl.Series(cache)
        ),
    )


ALL_LAYERS = ("0+1+2+3", 1.0, 0.0, 4000)
OF_GAIN = "of the recall gain of m, 40.0 (38.0 to 42.0) points, with"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [("0+3", 0.91, 0.25, 1000)],
            (
                f"Layers 0 and 3 of 4 keep 91 % (89 to 93) {OF_GAIN} 25 % of the cache and a loss "
                "of 0.25 nats per token."
            ),
        ),
        (
            [("0+1+3", 0.9, 0.2, 3000), ("1", 0.5, 3.0, 1000)],
            (
                f"Layer 1 of 4 keeps 50 % (48 to 52) {OF_GAIN} 25 % of the cache and a loss of "
                "3.00 nats per token."
            ),
        ),
        (
            [("0+1+3", 1.02, -0.01, 3000)],
            (
                f"Layers 0, 1 and 3 of 4 keep 102 % (100 to 104) {OF_GAIN} 75 % of the cache and a "
                "loss of -0.01 nats per token."
            ),
        ),
    ],
)
def test_the_answer_of_a_budget_is_its_last_row(rows, said):
    assert which_recall(path_of(ALL_LAYERS, *rows)) == said


def test_the_answer_of_a_budget_names_no_cache_where_there_is_none_and_no_layers_without_recall():
    without = path_of(("0+1", 1.0, 0.0, 0), ("1", 0.5, 0.1, 0))
    assert (
        which_recall(without)
        == f"Layer 1 of 2 keeps 50 % (48 to 52) {OF_GAIN} a loss of 0.10 nats per token."
    )
    for low in (-0.001, 0.0005):
        tables = path_of(ALL_LAYERS, ("0+1+2", 0.5, 0.1, 3000), gain=(0.001, low, 0.003))
        assert which_recall(tables).startswith(
            "m shows no significant recall: its recall gain on AR hits is 0.1 ("
        )


def test_the_table_of_a_budget_has_a_row_for_each_number_of_layers():
    shown = ablation_tables(
        path_of(ALL_LAYERS, ("0+1+3", 0.9, 0.2, 3000), ("1", 0.5, 3.0, 1000)), MANIFEST
    )["mixers"]
    assert shown.rows == [
        ["4", "0, 1, 2, 3", "40.0", "100 (98 to 102)", "+0.00", "4 kB"],
        ["3", "0, 1, 3", "36.0", "90 (88 to 92)", "+0.20", "3 kB"],
        ["1", "1", "20.0", "50 (48 to 52)", "+3.00", "1 kB"],
    ]
    assert "By backward elimination: from all layers one is removed at a time" in str(shown.caption)


def test_the_map_has_a_figure_for_every_set_and_slice():
    [figure] = ablation_figures(tables_of(("0", MAMBA, BREAKS), ("1", ATTENTION, NEEDED)))
    drawn = svg(figure)
    for label in ("0 mamba", "1 attention", "AR hits", "new, rare", "1.00"):
        assert f">{label}<" in drawn
    assert drawn.count(">0.12<") == 8
    assert "without 1 attention, AR hits: 1.000 (0.900 to 1.100) nats per token" in drawn
