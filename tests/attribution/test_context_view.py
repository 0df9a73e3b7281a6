"""The tables of far context as they are printed: figures of the right row, what is void struck out,
what the score is called."""

from __future__ import annotations

import polars as pl
import pytest

import recallkit
from recallkit.attribution.comparison import read_comparison
from recallkit.attribution.context_gain import far_table, gains_table
from recallkit.attribution.view import ComparisonView
from recallkit.display.cells import Struck

REFERENCE, MODELS = "control:recall", ["control:bigram", "control:unigram"]


@pytest.fixture(scope="module")
def compared(small_slices, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    return recallkit.gap(
        REFERENCE, MODELS, slices=small_slices, context_gain=[4, 16], out=folder
    ), folder


def test_figures_are_those_of_their_rows(compared):
    by_context = compared[0].by_context
    shown = gains_table(by_context, None)
    assert [row[:2] for row in shown.rows] == [
        [name, last] for last in ("4", "16") for name in (REFERENCE, *MODELS)
    ]
    row = by_context.filter(
        pl.col("reference_gains").is_null(), model=MODELS[1], last=16, slice="all"
    ).row(0, named=True)
    key = by_context.filter(model=MODELS[1], last=16, slice="key_tokens").row(0, named=True)
    ends = f"({100 * row['far_share_ci_low']:.1f} to {100 * row['far_share_ci_high']:.1f})"
    assert shown.rows[5][2:] == [
        f"{row['context_gain_model']:.3f}",
        f"{100 * row['far_share']:.1f} {ends}",
        f"{key['ppl_model']:,.2f}",
    ]
    assert shown.rows[3][2:4] == [f"{row['context_gain_reference']:.3f}", "reference"]
    far = far_table(by_context)
    classes = ["AR hit", "repeated", "new"]
    assert [row[:3] for row in far.rows] == [
        [model, last, name] for last in ("4", "16") for model in MODELS for name in classes
    ]
    hits = by_context.filter(model=MODELS[0], last=4, slice="ar_hit")
    row = hits.filter(pl.col("reference_gains").is_null()).row(0, named=True)
    gaining = hits.filter(reference_gains=True).row(0, named=True)
    ends = f"({100 * row['far_share_ci_low']:.1f} to {100 * row['far_share_ci_high']:.1f})"
    share = f"{100 * row['far_share']:.1f} {ends}"
    where_gained = [f"{100 * gaining[name]:z.1f}" for name in ("far_share", "mirror_share")]
    assert far.rows[0][3:] == [f"{100 * row['share_of_tokens']:.2f} %", share, *where_gained]


def test_void_shares_are_struck_out(compared):
    void = compared[0].by_context.with_columns(void=pl.lit(value=True))
    assert all(
        isinstance(row[3], Struck) for row in gains_table(void, None).rows if row[0] != REFERENCE
    )
    assert all(
        isinstance(cell, Struck) or cell == "–" for row in far_table(void).rows for cell in row[4:]
    )


def test_only_the_papers_positions_have_the_papers_name(compared):
    ends = {"score": -0.5, "score_ci_low": -0.75, "score_ci_high": -0.25}
    models = {REFERENCE: ends | {"score_ci_high": None}} | dict.fromkeys(MODELS, ends)
    for late, called in (
        (500, "In-context-learning score: NLL at position 500"),
        (256, "Like the in-context-learning score, which uses"),
    ):
        caption = gains_table(
            compared[0].by_context, {"early": 50, "late": late, "sequences": 9, "models": models}
        ).caption
        sentence = caption.splitlines()[1]
        assert sentence.startswith(called)
        assert f"{REFERENCE} -0.50, {MODELS[0]} -0.50 (-0.75 to -0.25)" in sentence


def test_exports_and_json_have_them(compared, small_slices):
    tables, folder = compared
    seen = ComparisonView(read_comparison(folder, small_slices))
    assert list(seen.display_tables)[-2:] == ["context_gain", "by_context"]
    found = seen.json()
    assert found["by_context"] == tables.by_context.to_dicts()
    assert found["in_context"] is None, "sequences of 64 are too short"
