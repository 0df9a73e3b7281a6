"""A placebo for architecture: known checkpoints, mixed by hand to each model's loss; and what is
said of them."""

from __future__ import annotations

import math

import polars as pl
import pytest

import recallkit
from recallkit.attribution.comparison import read_comparison
from recallkit.attribution.placebo import NOT_WORSE, TOO_FAR, in_a_sentence, placebo_table, placebos
from recallkit.attribution.view import ComparisonView
from recallkit.scoring import score_path
from tests.attribution.corpus import REFERENCE, SIZE, Model, compared, scored

LATE, EARLY = Model(0.4, other=0.1), Model(0.15, other=0.5)
"""Checkpoints of a reference that gives AR hits 50 %, and the first occurrences of their bigrams 10
%."""


def gap(model):
    """Nats above the reference by document, on its two AR hits and on all of its tokens."""
    hits = 2 * math.log(0.5 / model.hit)
    return hits, hits + math.log(0.1 / model.first) + 5 * model.other


def at(loss):
    """A model that recalls as the reference does, so many nats per token behind."""
    return Model(other=loss * SIZE / 5)


def made(folder, models, reference=REFERENCE, **options):
    comparison = compared(folder, models, reference, **options)
    _, files = scored(
        folder,
        {"early": EARLY, "late": LATE},
        comparison.totals[next(iter(models)), "all"]["clusters"],
    )
    scores = {name: folder / f"scores/{name}.parquet" for name in ("ref", *models)}
    return placebos(folder / "tokens.parquet", scores, files), comparison.totals


@pytest.mark.parametrize("part", [0.25, 0.75])
@pytest.mark.parametrize(
    ("names", "ends"), [(("late", "ref"), (LATE, Model())), (("early", "late"), (EARLY, LATE))]
)
def test_the_run_is_interpolated_to_the_models_loss(tmp_path, part, names, ends):
    hits, every = [part * a + (1 - part) * b for a, b in zip(*map(gap, ends), strict=True)]
    frame, _ = made(tmp_path, {"m": at(every / SIZE)})
    row = frame.row(0, named=True)
    assert (row["checkpoint"], row["next_checkpoint"], row["note"]) == (*names, "")
    gain = part * (ends[0].hit - 0.1) + (1 - part) * (ends[1].hit - 0.1)
    expected = {"weight": part, "gap_share": hits / every, "gain": gain, "retained": gain / 0.4}
    assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    for name in ("gap_share", "gain", "retained"):
        assert [row[f"{name}_ci_low"], row[f"{name}_ci_high"]] == pytest.approx([row[name]] * 2)


MIDDLE = at(0.8 * gap(LATE)[1] / SIZE)
SAID = (
    "it retains 80 % of the reference's recall (the model: 100 %), and AR hits carry 47 % of its "
    "gap"
)
RUN = "The reference's own run, as a placebo: at the loss of"
CASES = {
    "one": ({"m": MIDDLE}, {}, f"{RUN} m {SAID}."),
    "three": (dict.fromkeys("mno", MIDDLE), {}, (f"{RUN} m {SAID}; at the loss of n {SAID}; 1 "
        "more in the table.")),
    "ahead": ({"m": MIDDLE, "n": Model(0.6)}, {}, f"{RUN} m {SAID}. No placebo for n: {NOT_WORSE}."),
    "perhaps no worse": ({"m": Model(other=0.1, other_spread=2)}, {}, f"No placebo for m: {NOT_WORSE}."),
    "far worse, and a copy": (
        {"m": at(9), "n": Model()}, {}, (f"No placebo for m: {TOO_FAR}. No placebo for n: "
            f"{NOT_WORSE}."),
    ),
    "few documents": ({"m": MIDDLE}, {"documents": 3}, f"No placebo for m: {NOT_WORSE}."),
    "nothing to retain": (
        {"m": at(0.2)}, {"reference": Model(0.5, 0.5)}, ("No placebo for m: the reference's "
            "recall gain is not shown to exceed 0.1 "
            "points."),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_of_it(tmp_path, case):
    models, options, sentence = CASES[case]
    frame, totals = made(tmp_path, models, **options)
    assert in_a_sentence(frame, totals) == sentence
    table = placebo_table(frame, totals)
    assert [row[0] for row in table.rows] == list(models)
    if case == "ahead":
        assert [row[1:] for row in table.rows] == [
            ["100 (100 to 100)", "80 (80 to 80)", "0.0", "47.2 (47.2 to 47.2)", "late, 80%"],
            ["125 (125 to 125)", "–", "100.0", "–", NOT_WORSE],
        ]


def test_gap_compares_each_model_with_checkpoints_where_it_is_asked(small_slices, tmp_path):
    models = ("control:bigram", "control:recall")
    tables = recallkit.gap(*models, slices=small_slices, placebo="control:unigram", out=tmp_path)
    row = tables.by_placebo.row(0, named=True)
    assert (row["checkpoint"], row["next_checkpoint"]) == ("control:unigram", "control:bigram")
    paths = [score_path(small_slices, name) for name in (*models, "control:unigram")]
    nlls = [pl.read_parquet(path)["nll"].cast(pl.Float64).mean() for path in paths]
    assert row["weight"] == pytest.approx((nlls[1] - nlls[0]) / (nlls[2] - nlls[0]), rel=1e-6)
    view = ComparisonView(read_comparison(tmp_path))
    assert view.answer().endswith(
        in_a_sentence(tables.by_placebo, read_comparison(tmp_path).totals)
    )
    assert view.leading() == 2, "beside the first table"
