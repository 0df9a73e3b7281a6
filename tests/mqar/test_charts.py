"""Figures of multi-query associative recall: every point is drawn and says what it is; what is
missing is missing."""

from __future__ import annotations

import math

import polars as pl

from recallkit.mqar.charts import mqar_figures
from tests.display.drawings import data, marks, svg, texts


def comparison(
    models: list[str], pairs: list[int], **changed: object
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Made-up tables; `changed` replaces columns of every row."""
    rows, distances = [], []
    for place, model in enumerate(models):
        for number in pairs:
            row: dict = {"model": model, "pairs": number, "num_samples": 50, "length": 256}
            for name, value in {
                "accuracy": 0.9 / (place + 1),
                "ar_nll": 1.0 + place,
                "filler_nll": 0.1 * (place + 1),
            }.items():
                row |= {name: value, f"{name}_low": 0.9 * value, f"{name}_high": 1.1 * value}
            rows.append({**row, **changed})
            for high, low in ((4, 3), (8, 5), (16, 9)):
                of = {"num_queries": 5 if high == 4 else 500, "accuracy": 0.5 / high}
                distances.append({"model": model, "pairs": number, "low": low, "high": high, **of})
    return pl.DataFrame(rows, infer_schema_length=None), pl.DataFrame(distances)


def test_every_point_is_drawn_and_says_what_it_is():
    found = {
        figure.name: figure for figure in mqar_figures(*comparison(["one", "<b>two"], [4, 16, 64]))
    }
    assert list(found) == ["mqar_accuracy", "mqar_perplexity", "mqar_by_distance"], (
        "the answer first"
    )
    accuracy, perplexity, by_distance = map(data, found.values())
    assert {(row["panel"], row["model"], row["x"]): row["y"] for row in perplexity} == {
        (panel, model, pairs): math.exp(nll * (place + 1))
        for panel, nll in (("Queried values", 1.0), ("Filler", 0.1))
        for place, model in enumerate(("one (ref.)", "<b>two"))
        for pairs in (4, 16, 64)
    }
    assert [(row["x"], row["y"], row["low"], row["high"]) for row in accuracy[:3]] == [
        (n, 0.9, 0.9 * 0.9, 1.1 * 0.9) for n in (4, 16, 64)
    ]
    assert [row["few"] for row in by_distance] == [True, False, False] * 6
    assert {row["panel"] for row in by_distance} == {"4 pairs", "16 pairs", "64 pairs"}
    drawings = {name: texts(svg(figure)) for name, figure in found.items()}
    assert f"one, 4 pairs: perplexity {math.e:.3g}" in drawings["mqar_perplexity"]
    assert "<b>two, 16 pairs: 45.0 %" in marks(svg(found["mqar_accuracy"]))
    assert drawings["mqar_by_distance"].count("one, 9 to 16 ids: 3.1 % of 500 values") == 3
    assert all("one (ref.)" in shown for shown in drawings.values())


def test_what_is_missing_or_beyond_a_float_is_left_out():
    no_filler = dict.fromkeys(("filler_nll", "filler_nll_low", "filler_nll_high"))
    [_, perplexity, _] = mqar_figures(*comparison(["one", "two"], [64], **no_filler))
    assert {row["panel"] for row in data(perplexity)} == {"Queried values"}
    frames = comparison(["one", "two"], [4, 8])
    huge = pl.when(pl.col("model") == "two").then(900.0)
    rows = frames[0].with_columns(
        ar_nll=huge.otherwise("ar_nll"), ar_nll_high=huge.otherwise("ar_nll_high")
    )
    assert [
        (row["model"], row["panel"])
        for row in data(mqar_figures(rows, frames[1])[1])
        if row["model"] == "two"
    ] == [("two", "Filler")] * 2
