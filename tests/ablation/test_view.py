"""What is printed and drawn of ablations: labels, ranks, shares that mean nothing, the map of losses."""

from __future__ import annotations

import polars as pl
import pytest

from recallkit.ablation.charts import ablation_figures
from recallkit.ablation.tables import PARTS, AblationTables
from recallkit.ablation.view import ablation_tables, answer, which_recall
from recallkit.display.cells import Struck
from recallkit.display.charts import svg

MANIFEST = {
    "by": "zero",
    "placed": [[0, "mamba"], [1, "attention"], [2, "mamba"]],
    "slices": {"max_count": 5, "threshold": {"rule": "count", "rate": None}, "counts": {"num_tokens": 3_000_000, "id": "i", "path": "p"}},
}
SETS = {"0": ("mamba", 0, 3.0), "1": ("attention", 1, 4.0), "2": ("mamba", 2, -0.125), "mamba": ("mamba", None, 0.5)}
"""Set -> kind, layer, loss on AR hits; everything else loses 0.125."""
SHARES = {"0": 0.3, "1": 0.8, "2": 0.9, "mamba": 0.8}
"""The share of the loss that is in AR hits, which are a quarter of the tokens."""


def row(mixers: str, slice_: str, tokens: int) -> dict[str, object]:
    kind, layer, hits = SETS[mixers]
    loss = hits if slice_ == "ar_hit" else 0.125
    figures = {"tokens": tokens, "share_of_tokens": tokens / 100, "nll": 2.0, "nll_ablated": 2.0 + loss, "loss": loss}
    ends = {"loss_ci_low": loss - 0.1, "loss_ci_high": loss + 0.1, "share": None if slice_ == "all" else SHARES[mixers]}
    more = {
        "share_ci_low": SHARES[mixers] - 0.1,
        "share_ci_high": SHARES[mixers] + 0.1,
        "void": slice_ == "all" or mixers == "2",
        "clusters": 9,
        "effective_clusters": 8.5,
    }
    return {"model": "m", "mixers": mixers, "kind": kind, "layer": layer, "cluster": "document", "slice": slice_, **figures, **ends, **more}


def specific(mixers: str) -> dict[str, object]:
    kind, layer, hits = SETS[mixers]
    found = {"loss": 0.125, "loss_ar_hit": hits, "loss_first_rare": 0.125, "specific": hits - 0.125}
    ends = {"specific_ci_low": hits - 0.5, "specific_ci_high": hits + 0.5}
    return {"model": "m", "mixers": mixers, "kind": kind, "layer": layer, "cluster": "document", **found, **ends}


@pytest.fixture
def tables() -> AblationTables:
    sizes = {"all": 100, **dict.fromkeys(PARTS, 25)}
    rows = [row(mixers, slice_, tokens) for mixers in SETS for slice_, tokens in sizes.items()]
    return AblationTables(pl.DataFrame(rows), pl.DataFrame([specific(mixers) for mixers in ("1", "0", "mamba", "2")]))


def test_the_tables_have_a_row_a_set_in_order_and_the_baseline(tables):
    shown = ablation_tables(tables, MANIFEST)
    losses = shown["ablation"]
    assert [cells[0] for cells in losses.rows] == ["as it is (NLL)", "0 mamba", "1 attention", "2 mamba", "mamba", "share of tokens"]
    assert losses.rows[2] == ["1 attention", "+0.12", "+4.00", "+0.12", "+0.12", "+0.12"]
    assert losses.rows[-1][1:3] == ["100.0 %", "25.0 %"]
    assert "replaced by zero" in str(losses.caption)
    ranked = shown["mixers"]
    assert ranked.rows[0] == ["1 attention", "+3.88", "+3.50 to +4.50", "80.0 %", "3.2"]
    assert [isinstance(cells[3], Struck) for cells in ranked.rows] == [False, False, False, True]
    assert "share of the tokens, 25.00 %" in str(ranked.caption)
    assert "their mean over the text" in str(ablation_tables(tables, {**MANIFEST, "by": "mean"})["ablation"].caption)


def test_the_answer_is_of_single_mixers_and_of_ar_hits_in_particular(tables):
    told = "Recall is in 1 attention (3.88 nats per AR hit). "
    told += "Without these AR hits lose more than new, rare bigrams, but are not shown to lose in particular: 0 mamba."
    assert which_recall(tables) == told
    few = AblationTables(tables.ablation, tables.mixers.with_columns(specific_ci_low=pl.lit(None, pl.Float64)))
    assert which_recall(few) == "None of these is shown to matter to AR hits in particular.", "few documents show nothing, neither way"
    none = AblationTables(tables.ablation, tables.mixers.filter(pl.col("layer") == 2))
    assert which_recall(none) == "None of these is shown to matter to AR hits in particular."
    lost = f"Without mixer 1 attention, {tables.mixers['model'][0]} loses 4.00 nats per AR hit, 0.12 per token of all, the most of 4. "
    assert answer(tables) == lost + told
    assert ", the most of" not in answer(none), "of one there is no most"


def test_the_map_has_a_figure_for_every_set_and_slice(tables):
    [figure] = ablation_figures(tables)
    drawn = svg(figure)
    for label in ("0 mamba", "1 attention", "AR hits", "new, rare", "4.00", "-0.12"):
        assert f">{label}<" in drawn
    assert drawn.count(">0.12<") == 4 * len(SETS)
    assert "without 1 attention, AR hits: 4.000 nats per token (3.90 to 4.10)" in drawn
