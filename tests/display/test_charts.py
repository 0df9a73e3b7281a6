"""What all figures share: checked drawings, files that are whole and ours, names that are text,
styles that tell models apart."""

from __future__ import annotations

import json
import re

import pytest

from recallkit.display.charts import (
    PAPER,
    Figure,
    column,
    labels,
    layer,
    log_number,
    model_styles,
    number,
    plot,
    shorten,
    specification,
    styles_of,
)
from recallkit.display.templates import line_chart
from recallkit.errors import printable
from tests.display.drawings import data, marks, svg, texts

EVIL = "<script>alert('1')</script>&\"\x1b[31m <b>"
SAFE = printable(EVIL)
MODELS = ["a.b[c]", EVIL]


def lines():
    """Two lines of three points, the last of which is of few tokens; the first has a band."""
    rows = [
        {
            "model": model,
            "x": x,
            "y": x * (place + 1),
            "low": None if place else x - 0.5,
            "high": None if place else x + 0.5,
            "few": x == 3,
        }
        for place, model in enumerate(MODELS)
        for x in (1, 2, 3)
    ]
    rows = [{**row, "at": f"step {row['x']}", "shown": f"{row['y']:.1f} nats"} for row in rows]
    return line_chart(rows, MODELS, number("x", "steps"), number("y", "nats"), reference=MODELS[0])


def figure(name="picture", spec=None, models=MODELS) -> Figure:
    return Figure(name, "A picture", "of something", spec or lines(), models)


def test_a_drawing_is_text_and_shapes_that_fetch_nothing():
    drawn = svg(figure())
    assert list(marks(drawn)) == [
        f"{model}, step {x}: {x * (place + 1):.1f} nats"
        for place, model in enumerate(("a.b[c]", SAFE))
        for x in (1, 2, 3)
    ]
    assert {"a.b[c] (ref.)", "steps", "nats"} <= set(texts(drawn))
    assert any(text.startswith("<script>aler") for text in texts(drawn))
    assert set(re.findall(r"https?:[^\"]*", drawn)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }, "names of formats"
    assert not re.search(r"<script| href|src=|style=|<image|<foreignObject", drawn)


def test_on_a_page_colours_are_the_page_s_own_and_in_files_fixed():
    on_page, in_file = (
        json.dumps(specification(figure(), on_page=on_page)) for on_page in (True, False)
    )
    assert {"ink", "m0", "soft", "rule"} <= set(re.findall(r"var\(--(\w+)\)", on_page))
    assert "#" not in on_page
    assert {PAPER["ink"], PAPER["m0"]} <= set(re.findall("#[0-9a-f]{6}", in_file))
    assert "var(" not in in_file


def test_a_page_has_no_more_digits_than_can_be_seen_and_says_nothing_twice():
    models = [f"m{place}" for place in range(100)]
    rows = [
        {"model": name, "x": 2**x, "y": (place + x) / 7, "few": False}
        for place, name in enumerate(models)
        for x in range(20)
    ]
    rows = [
        {
            **row,
            "at": f"up to {row['x']} (2,018 AR hits)",
            "shown": f"{row['y']:.1f} % (94.7 to 97.8 %)",
        }
        for row in rows
    ]
    spec = line_chart(rows, models, number("x", "steps"), number("y", "nats"), reference="m0")
    on_page, in_file = (
        specification(figure(spec=spec, models=models), on_page=on_page)
        for on_page in (True, False)
    )
    assert len(json.dumps(on_page)) < 0.6 * len(json.dumps(in_file))
    assert on_page["data"]["values"][41] == {
        "model": "m2",
        "x": 2,
        "y": 0.42857,
        "at": "up to 2 (2,018 AR hits)",
        "shown": "0.4 % (94.7 to 97.8 %)",
    }
    assert (
        in_file["data"]["values"][41]["tip"]
        == "m2, up to 2 (2,018 AR hits): 0.4 % (94.7 to 97.8 %)"
    )


@pytest.mark.parametrize("number", [8, 10])
def test_of_more_lines_than_can_be_told_apart_some_are_chosen_on_a_page_and_all_drawn_in_files(
    number,
):
    """The reference and four others in the order of the page's models, which need not be that of a
    chart."""
    models = [f"m{place}" for place in range(number)]
    rows = [{"model": model, "x": 1, "y": 1, "at": "step 1", "shown": "1 nat"} for model in models]
    spec = line_chart(rows, [models[0], *models[:0:-1]], column("x"), column("y"), reference="m0")
    styles = model_styles(models)
    for on_page, expected in (
        (True, [] if number == 8 else ["m0 (ref.)", "m1", "m4", "m6", "m9"]),
        (False, []),
    ):
        [chosen] = [
            param
            for part in specification(figure(spec=spec, models=models), styles, on_page=on_page)[
                "layer"
            ]
            for param in part.get("params", ())
        ]
        assert [row["model"] for row in chosen["value"]] == expected


def test_a_mean_over_few_is_hollow_and_a_band_is_where_there_are_ends():
    drawn = marks(svg(figure()))
    assert [mark.paint["fill"] == PAPER["page"] for mark in drawn.values()] == [
        False,
        False,
        True,
    ] * 2
    assert sum(row["low"] is not None for row in data(figure())) == 3
    [band] = [part for part in specification(figure())["layer"] if part["mark"]["type"] == "area"]
    assert band["transform"] == [{"filter": "isValid(datum.low)"}]


# -------------------------------------------------------------------------------- styles and labels


def test_twenty_two_models_are_told_apart_and_not_by_colour_alone():
    styles = model_styles(f"m{number}" for number in range(22))
    assert len({(style.colour, tuple(style.dash)) for style in styles.values()}) == 22
    assert len({(style.shape, tuple(style.dash)) for style in styles.values()}) == 22
    assert len(model_styles(f"m{number}" for number in range(30))) == 30, "then they come again"


def test_an_architecture_has_its_style_on_every_page_and_a_model_one_in_all_figures():
    alone, among = (
        model_styles(["zoo:mamba"]),
        model_styles(["x", "zoo:attention", "zoo:mamba", "y"]),
    )
    assert alone["zoo:mamba"] == among["zoo:mamba"]
    both, second = figure(), figure("second", models=[EVIL])
    styles = styles_of([second, both])
    found = [mark.paint["stroke"] for mark in marks(svg(both, styles)).values()]
    assert found == [PAPER[styles[model].colour] for model in MODELS for _ in range(3)]


def test_short_names_keep_their_ends_and_differ():
    assert shorten("models/" * 30 + "mamba", 10) == "mode…mamba"
    folders = [
        "runs/attention/checkpoint-1000",
        "runs/mamba/checkpoint-1000",
        "runs/mamba-with-a-longer-name-than-that",
    ]
    assert list(labels(folders, 24).values()) == [
        "runs/attent…ckpoint-1000",
        "runs/mamba/…ckpoint-1000",
        "mamba-with-…me-than-that",
    ]
    assert list(labels(["zoo:mamba", "of/mine/attention", "x"], reference="x").values()) == [
        "mamba",
        "attention",
        "x (ref.)",
    ]
    assert list(labels(["zoo:mamba", "mamba", "mine/based", "yours/based"]).values()) == [
        "zoo:mamba",
        "mamba",
        "mine/based",
        "yours/based",
    ]
    found = labels(
        [
            "models/" * 30 + "mamba",
            "others/models/" * 30 + "models/models/models/mamba",
            "mamba",
            "",
            "\x1b",
        ],
        12,
    )
    assert len(set(found.values())) == 5
    assert all(1 <= len(label) <= 12 for label in found.values())


@pytest.mark.parametrize("values", [[0.0001, 0.001, 0.01], [0, 1, 512, 30_000], [4, 4], [0]])
@pytest.mark.parametrize("base", [2, 10])
def test_a_logarithmic_axis_has_room_for_all_of_its_values(values, base):
    channel = log_number("x", "counts", values, base=base)
    low, high = channel["scale"]["domain"]
    assert low < min(values) <= max(values) < high
    assert (channel["scale"]["type"] == "symlog") is (min(values) == 0), "a logarithm has no 0"
    assert all(low <= tick <= high for tick in channel["axis"].get("values", []))


def test_powers_of_two_have_round_names():
    rows = [{"x": 2**power} for power in (0, 8, 10, 15, 20)]
    axis = log_number("x", "counts", [row["x"] for row in rows], base=2, labelOverlap=False)
    drawn = texts(svg(figure(spec=plot(rows, layer("point", channels={"x": axis})))))
    assert {"1", "256", "512", "1k", "32k", "1M"} <= set(drawn)
