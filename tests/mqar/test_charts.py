"""Pictures of multi-query associative recall: every point is drawn and says what it is; what is missing is missing; names are text."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import polars as pl
import pytest

from recallkit.display.chart_theme import PAGE, PAPER, save_figures, svg
from recallkit.mqar.charts import mqar_figures

FIGURES = ("mqar_perplexity", "mqar_accuracy", "mqar_by_distance")
NASTY = '"><script>alert(1)</script> <b>&amp;'


def comparison(models: list[str], pairs: list[int], **changed: object) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Made-up tables; `changed` replaces columns of every row."""
    rows, distances = [], []
    for place, model in enumerate(models):
        for number in pairs:
            row: dict = {"model": model, "pairs": number, "num_samples": 50, "length": 256}
            for name, value in {"accuracy": 0.9 / (place + 1), "ar_nll": 1.0 + place, "filler_nll": 0.1 * (place + 1)}.items():
                row |= {name: value, f"{name}_low": 0.9 * value, f"{name}_high": 1.1 * value}
            rows.append({**row, **changed})
            for high, low in ((4, 3), (8, 5), (16, 9)):
                num_queries = 5 if high == 4 else 500
                distances.append(
                    {"model": model, "pairs": number, "low": low, "high": high, "num_queries": num_queries, "accuracy": 0.5 / high}
                )
    return pl.DataFrame(rows, infer_schema_length=None), pl.DataFrame(distances)


def drawn(frames: tuple[pl.DataFrame, pl.DataFrame], palette=PAPER) -> dict[str, str]:
    return {figure.name: svg(figure, palette) for figure in mqar_figures(*frames)}


def texts(drawing: str) -> list[str]:
    """Labels of points, and text, of a drawing that is well-formed."""
    found = [element.get("aria-label") or element.text or "" for element in ET.fromstring(drawing).iter()]
    return [text for text in found if text.strip()]


@pytest.mark.parametrize("palette", [PAGE, PAPER])
def test_every_point_is_drawn_and_says_what_it_is(palette):
    drawings = drawn(comparison(["one", "two"], [4, 16, 64]), palette)
    assert tuple(drawings) == FIGURES
    perplexity, accuracy, by_distance = map(texts, drawings.values())
    assert [text for text in accuracy if re.match(r"(one|two), \d+ pairs: ", text)].count("two, 16 pairs: 45.0 %") == 1
    assert sum(bool(re.match(r"(one|two), \d+ pairs: \d+\.\d %$", text)) for text in accuracy) == 6
    assert sum(bool(re.match(r"(one|two), \d+ pairs: perplexity ", text)) for text in perplexity) == 12, "of values and of filler"
    assert f"one, 4 pairs: perplexity {math.e:.3g}" in perplexity
    assert sum(bool(re.match(r"(one|two), \d+ to \d+ ids: ", text)) for text in by_distance) == 18
    assert "one, 9 to 16 ids: 3.1 % of 500 values" in by_distance
    assert all(f"{number} pairs" in by_distance for number in (4, 16, 64))
    for drawing in drawings.values():
        assert "NaN" not in drawing
        assert "one (ref.)" in texts(drawing)


def test_no_filler_no_plot_of_it():
    none = dict.fromkeys(("filler_nll", "filler_nll_low", "filler_nll_high"))
    shown = texts(drawn(comparison(["one", "two"], [64], **none))["mqar_perplexity"])
    assert "Values asked for" in shown
    assert "Filler" not in shown
    both = texts(drawn(comparison(["one", "two"], [64]))["mqar_perplexity"])
    assert "Filler" in both


def test_what_no_number_holds_is_left_out():
    frames = comparison(["one", "two"], [4, 8])
    huge = pl.when(pl.col("model") == "two").then(900.0)
    frames = (frames[0].with_columns(ar_nll=huge.otherwise("ar_nll"), ar_nll_high=huge.otherwise("ar_nll_high")), frames[1])
    shown = texts(drawn(frames)["mqar_perplexity"])
    assert sum(text.startswith("two, ") for text in shown) == 2, "its filler alone"
    assert sum(text.startswith("one, ") for text in shown) == 4


def test_without_intervals_and_with_a_single_number():
    none = dict.fromkeys(f"{name}_{end}" for name in ("accuracy", "ar_nll", "filler_nll") for end in ("low", "high"))
    for drawing in drawn(comparison(["alone"], [16], accuracy=0.0, **none)).values():
        assert "NaN" not in drawing
        assert any(text.startswith("alone, ") for text in texts(drawing))


def test_names_and_many_models(tmp_path):
    models = [NASTY, "a" * 90, "a" * 89 + "b", *(f"zoo:model-{place}" for place in range(9))]
    figures = mqar_figures(*comparison(models, [4, 8, 16]))
    for figure in figures:
        drawing = svg(figure, PAGE)
        assert "<script" not in drawing
        assert not re.search(r"https?://(?!www\.w3\.org)", drawing)
    paths = save_figures(figures, tmp_path / "figures")
    assert {path.name for path in paths} == {f"{name}.{ending}" for name in FIGURES for ending in ("svg", "png", "pdf")}
