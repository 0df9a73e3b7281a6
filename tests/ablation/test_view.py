"""What is printed and drawn of ablations: labels, ranks, shares that mean nothing, the map of losses."""

from __future__ import annotations

import polars as pl
import pytest

from recallkit.ablation.tables import PARTS, AblationTables
from recallkit.ablation.view import ablation_figures, ablation_tables, which_recall
from recallkit.display.cells import Struck
from tests.display.drawings import svg

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


def mixers(name: str, lost: float | None = None, **more: object) -> dict[str, object]:
    kind, layer, hits = SETS[name]
    lost = hits - 0.125 if lost is None else lost
    found = {
        "loss": 0.125,
        "loss_ar_hit": hits,
        "loss_first_rare": 0.125,
        "recall": 4.5,
        "recall_ci_low": 4.0,
        "recall_ci_high": 5.0,
        "effective_documents": 4.5,
    }
    ends = {"recall_lost": lost, "recall_lost_ci_low": lost - 0.5, "recall_lost_ci_high": lost + 0.5}
    return {"model": "m", "mixers": name, "kind": kind, "layer": layer, "cluster": "document", **found, **ends, **more}


@pytest.fixture
def tables() -> AblationTables:
    sizes = {"all": 100, **dict.fromkeys(PARTS, 25)}
    rows = [row(name, slice_, tokens) for name in SETS for slice_, tokens in sizes.items()]
    return AblationTables(pl.DataFrame(rows), pl.DataFrame([mixers(name) for name in ("1", "0", "mamba", "2")]))


def test_the_tables_have_a_row_a_set_in_order_and_the_baseline(tables):
    shown = ablation_tables(tables, MANIFEST)
    losses = shown["ablation"]
    assert [cells[0] for cells in losses.rows] == ["as it is (NLL)", "0 mamba", "1 attention", "2 mamba", "mamba", "share of tokens"]
    assert losses.rows[2] == ["1 attention", "+0.12", "+4.00", "+0.12", "+0.12", "+0.12"]
    assert losses.rows[-1][1:3] == ["100.0 %", "25.0 %"]
    assert "replaced by zero" in str(losses.caption)
    ranked = shown["mixers"]
    assert ranked.rows[0] == ["1 attention", "+3.88", "+3.38 to +4.38", "80.0 %", "3.2"]
    assert [isinstance(cells[3], Struck) for cells in ranked.rows] == [False, False, False, True]
    assert "share of the tokens, 25.00 %" in str(ranked.caption)
    nothing = AblationTables(tables.ablation.with_columns(loss=-1e-3), tables.mixers.with_columns(recall_lost=-1e-3))
    assert "-0.00" not in str([ablation_tables(nothing, MANIFEST)[name].rows for name in ("ablation", "mixers")])
    assert "their mean over the text" in str(ablation_tables(tables, {**MANIFEST, "by": "mean"})["ablation"].caption)


RECALL = "(4.50 nats per AR hit, 4.00 to 5.00)"


def test_the_answer_is_of_single_mixers_and_of_ar_hits_in_particular(tables):
    told = f"Recall by association {RECALL} goes through 1 attention (3.88 lost without it). "
    told += "Less is also recalled without 0 mamba, but there AR hits are not shown to bear twice their share of the loss."
    assert which_recall(tables) == told
    nowhere = f"Recall by association {RECALL} is not shown to go through any of these mixers."
    none = AblationTables(tables.ablation, tables.mixers.filter(pl.col("layer") == 2))
    assert which_recall(none) == nowhere
    broken = AblationTables(tables.ablation, tables.mixers.filter(pl.col("mixers") == "0"))
    assert which_recall(broken) == (
        f"{nowhere} Less is recalled without 0 mamba, but there AR hits are not shown to bear twice their share of the loss."
    )


def test_a_set_is_named_beside_single_mixers_but_not_beside_a_part_of_it(tables):
    """1+2 in the place of 1, and beside it; a kind beside a mixer of it."""

    def named(*names: tuple[str, str]) -> AblationTables:
        def copied(of: pl.DataFrame) -> pl.DataFrame:
            found = {new: of.filter(pl.col("mixers") == old).with_columns(mixers=pl.lit(new)) for old, new in names}
            layers = {new: pl.lit(int(new) if new.isdecimal() else None, pl.Int64) for new in found}
            return pl.concat([frame.with_columns(layer=layers[new]) for new, frame in found.items()])

        return AblationTables(copied(tables.ablation), copied(tables.mixers))

    goes = f"Recall by association {RECALL} goes through"
    assert which_recall(named(("1", "1+2"), ("0", "0"))).startswith(f"{goes} 1+2 (3.88 lost without it). Less is also recalled without 0")
    for whole in ("1+2", "attention"):
        assert which_recall(named(("1", whole), ("1", "1"))) == f"{goes} 1 attention (3.88 lost without it)."


def test_heads_have_their_own_table_and_the_smallest_group_is_named(tables):
    """h2 of h0-3: both are needed, and the whole is not named again."""
    renamed = {"0": "1.h0-3", "1": "1.h2"}
    ablation, mixers = (
        of.filter(pl.col("mixers").is_in(["0", "1"])).with_columns(
            pl.col("mixers").replace(renamed), kind=pl.lit("attention"), layer=pl.lit(1), excess=3.0, excess_ci_low=2.0, excess_ci_high=4.0
        )
        for of in (tables.ablation.with_columns(share=0.8, share_ci_low=0.7, share_ci_high=0.9), tables.mixers)
    )
    heads = AblationTables(ablation, mixers)
    assert which_recall(heads) == f"Recall by association {RECALL} goes through 1 attention h2 (3.88 lost without it)."
    shown = ablation_tables(heads, MANIFEST)["mixers"]
    assert shown.title == "Which heads recall goes through"
    other = ablation_tables(heads, MANIFEST)["ablation"]
    assert other.title == "What m loses without its heads, nats per token"
    assert "The outputs of heads are replaced by zero." in str(other.caption)
    assert shown.rows[0] == ["1 attention h2", "+3.00", "+2.00 to +4.00", "+3.88", "+3.38 to +4.38"]
    other = AblationTables(ablation, mixers.with_columns(pl.col("mixers").replace({"1.h2": "1.mamba.h2"})))
    assert "h0-3" in which_recall(AblationTables(ablation.with_columns(pl.col("mixers").replace({"1.h2": "1.mamba.h2"})), other.mixers))
    slight = AblationTables(ablation, mixers.with_columns(recall_lost_ci_low=0.1))
    assert which_recall(slight).endswith("is not shown to go through any of these mixers."), "5 % of 4.5 is 0.225"


@pytest.mark.parametrize(
    ("recall", "said"),
    [
        ((0.1, -0.1, 0.3), "m is not shown to recall by association (0.10 nats per AR hit, -0.10 to 0.30), so no mixer can be named."),
        (
            (-0.3, -0.4, -0.1),
            "m is not shown to recall by association (-0.30 nats per AR hit, -0.40 to -0.10), so no mixer can be named.",
        ),
        ((4.0, None, None), "Which mixers recall goes through is not known: AR hits come from effectively 4.5 documents; 5 are needed."),
    ],
)
def test_where_there_is_no_recall_to_lose_it_is_said(tables, recall, said):
    columns = dict(zip(("recall", "recall_ci_low", "recall_ci_high"), recall, strict=True))
    changed = tables.mixers.with_columns(**{name: pl.lit(value, pl.Float64) for name, value in columns.items()})
    assert which_recall(AblationTables(tables.ablation, changed)) == said


def test_the_map_has_a_figure_for_every_set_and_slice(tables):
    [figure] = ablation_figures(tables)
    drawn = svg(figure)
    for label in ("0 mamba", "1 attention", "AR hits", "new, rare", "4.00", "-0.12"):
        assert f">{label}<" in drawn
    assert drawn.count(">0.12<") == 4 * len(SETS)
    assert "without 1 attention, AR hits: 4.000 nats per token (3.90 to 4.10)" in drawn
