"""Figures of comparisons: every point is a figure of the tables, a model looks the same in all of
them, and any name is text."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import polars as pl
import pytest

from recallkit.attribution.charts import figures
from recallkit.attribution.comparison import Comparison
from recallkit.display.charts import PAPER, specification, styles_of
from tests.attribution.corpus import Model, compared
from tests.display.drawings import data, marks, svg, texts

HALF, AHEAD, EQUAL = (
    Model(0.2, other=0.3665),
    Model(0.8, other=-0.188),
    Model(0.2, other=-0.3665, other_spread=1),
)
AXES = {
    "recall": {"Probability of the right token", "returns"},
    "by_count": {"training count of the bigram, up to", "NLL, nats per token"},
    "by_distance": {"tokens back to the bigram, up to", "recall gain, points"},
    "by_match": {"tokens matched, from", "recall gain, points"},
    "by_threshold": {"threshold on the training count"},
}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory) -> Comparison:
    return compared(tmp_path_factory.mktemp("compared"), {"m": HALF, "n": AHEAD, "o": EQUAL})


def drawn(comparison: Comparison) -> dict:
    return {figure.name: figure for figure in figures(comparison)}


def renamed(comparison: Comparison, reference: str, models: list[str]) -> Comparison:
    """Under other names, of which there may be more than models: those come again."""
    copies = ["mno"[number % 3] for number in range(len(models))]

    def copied(frame):
        parts = zip(copies, models, strict=True)
        return pl.concat(
            [
                frame.filter(model=old).with_columns(model=pl.lit(new), reference=pl.lit(reference))
                for old, new in parts
            ]
        )

    frames = {name: copied(frame) for name, frame in comparison.tables.frames().items()}
    return replace(
        comparison, reference=reference, models=models, tables=type(comparison.tables)(**frames)
    )


def test_every_figure_is_there_and_says_what_its_axes_are(comparison):
    found = drawn(comparison)
    assert list(found) == list(AXES)
    for name, figure in found.items():
        drawing = svg(figure)
        assert len(drawing) < 60_000
        assert set(texts(drawing)) >= AXES[name], name
        assert figure.caption.endswith(".")


def test_the_picture_of_the_answer_has_its_probabilities(comparison):
    points = data(drawn(comparison)["recall"])
    assert {(row["model"], row["x"]): row["y"] for row in points} == {
        ("ref (ref.)", 0): pytest.approx(0.1),
        ("ref (ref.)", 1): pytest.approx(0.5),
        ("m", 0): pytest.approx(0.1),
        ("m", 1): pytest.approx(0.2),
        ("n", 0): pytest.approx(0.1),
        ("n", 1): pytest.approx(0.8),
        ("o", 0): pytest.approx(0.1),
        ("o", 1): pytest.approx(0.2),
    }
    labels = {
        "ref 50 %": "reference",
        "m 20 %": "25 % retained",
        "n 80 %": "175 % retained",
        "o 20 %": "25 % retained",
    }
    assert {row["text"]: row["retained"] for row in points} == labels
    assert {"10 %", *labels, *labels.values()} <= set(texts(svg(drawn(comparison)["recall"])))


@pytest.mark.parametrize("number", [3, 10])
def test_labels_of_the_picture_are_apart_in_the_order_of_their_lines(comparison, number):
    figure = drawn(renamed(comparison, "ref", [f"m{place}" for place in range(number)]))["recall"]
    points = [row for row in data(figure) if row["x"]]
    height, most = specification(figure)["height"], max(row["y"] for row in points)
    places = sorted((row["place"], row["y"]) for row in points)
    assert [y for _, y in places] == sorted(y for _, y in places)
    apart = [
        height * (above - below) / most for (below, _), (above, _) in itertools.pairwise(places)
    ]
    assert min(apart) > 27
    assert height * places[0][0] / most > 13
    assert places[-1][0] <= most
    if number == 3:
        at_their_ends = {round(y, 3) for place, y in places if place == pytest.approx(y)}
        assert at_their_ends == {0.5, 0.8}, "where there is room"


@pytest.mark.parametrize(
    ("name", "what", "value", "unit", "x"),
    [
        ("by_count", "training count", "nll", "nats", "high"),
        ("by_distance", "distance", "gain", "points", "high"),
        ("by_match", "length of match", "gain", "points", "low"),
    ],
)
def test_lines_have_every_bucket_of_the_table(comparison, name, what, value, unit, x):
    panels = {True: "bigram repeated (shaded: AR hits)", False: "bigram not repeated", None: None}
    expected = {}
    for row in comparison.tables.frames()[name].to_dicts():
        for model, side in ((row["model"], "model"), ("ref (ref.)", "reference")):
            figure = (100 if value == "gain" else 1) * row[f"{value}_{side}"]
            last = "" if row["low"] == row["high"] else f" to {row['high']:,}"
            tip = f"{what} {row['low']:,}{last} ({row['tokens']:,} tokens): {figure:.2f} {unit}"
            if row.get("slice", "ar_hit") == "ar_hit":
                expected[panels[row.get("repeated")], model, row[x]] = (
                    pytest.approx(figure),
                    row["tokens"] < 100,
                    tip,
                )
    points = data(drawn(comparison)[name])
    assert {
        (row["panel"], row["model"], row["x"]): (row["y"], row["few"], row["tip"].split(", ", 1)[1])
        for row in points
    } == expected


def test_thresholds_have_what_is_retained_and_shares_that_mean_something(comparison):
    expected = {}
    for row in comparison.tables.by_threshold.to_dicts():
        for name, panel in (("retained", "retained"), ("gap_share", "share of the gap")):
            if row[name] is not None and (name == "retained" or row["model"] != "o"):
                ends = [row[f"{name}{end}"] for end in ("", "_ci_low", "_ci_high")]
                expected[panel, row["model"], row["threshold"]] = ends
    points = data(drawn(comparison)["by_threshold"])
    assert {
        (row["panel"], row["model"], row["x"]): [row["y"], row["low"], row["high"]]
        for row in points
    } == expected
    assert {row["tip"] for row in points if row["x"] == 8} >= {
        "m, up to 8 (80 AR hits): 25.0 % (25.0 to 25.0 %)"
    }


@pytest.mark.parametrize(
    ("models", "options", "names"),
    [
        ({"m": HALF}, {"with_hits": 0}, ["by_count"]),
        ({"m": HALF}, {"documents": 1}, ["recall", "by_count", "by_distance", "by_match"]),
        ({"m": EQUAL}, {}, list(AXES)),
    ],
)
def test_what_has_nothing_to_show_is_left_out(tmp_path, models, options, names):
    comparison = compared(tmp_path, models, **options)
    assert list(drawn(comparison)) == names
    assert all(figures(comparison, [model]) for model in models)


def test_a_model_looks_the_same_in_all_figures(tmp_path):
    comparison = compared(tmp_path, {"m": Model(0.3, other=0.2), "n": Model(0.7, other=-0.1)})
    found = figures(comparison)
    styles = styles_of(found)
    paints = {model: set() for model in ("ref", "m", "n")}
    for figure in found:
        for label, mark in marks(svg(figure, styles)).items():
            model = re.match(r"ref|[mn]\b", label)
            paints[model[0] if model else "ref"] |= {
                mark.paint.get("fill"),
                mark.paint.get("stroke"),
            } - {PAPER["page"], "none", None}
    assert paints == {model: {PAPER[styles[model].colour]} for model in paints}


HOSTILE = [
    "<script>alert('1')</script>&\"\x1b[31m <b>",
    "",
    "a.b[c]",
    "line\nbreak",
    "models/" * 30 + "mamba",
    "datum['x']",
]
LONG = [f"organisation/some-model-{number}.3b-instruct" for number in range(6)]


def test_any_name_of_twelve_models_is_text_and_no_figure_is_wider_for_it(comparison):
    found = drawn(renamed(comparison, "ref\" & 'x' {'a': 1}[0]", [*HOSTILE, *LONG]))
    assert list(found) == list(AXES)
    for name, figure in found.items():
        drawing = svg(figure)
        assert "<script" not in drawing
        assert not [text for text in texts(drawing) if "\x1b" in text or "\n" in text]
        shown = " ".join(texts(drawing))
        for model in ("a.b[c]", "line break", "datum['x']", "(no name)"):
            assert model in shown, (name, model)
        assert float(re.search(r'viewBox="0 0 (\d+)', drawing).group(1)) < 460, name
