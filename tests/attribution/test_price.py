"""What state costs: figures as in the gap, sentences where they are true and where they would be
false, the chart's frontier."""

from __future__ import annotations

import math
from dataclasses import replace

import polars as pl
import pytest

import recallkit
from recallkit.attribution.charts import price_figure
from recallkit.attribution.comparison import read_comparison
from recallkit.attribution.price import answer, price_table, prices
from recallkit.attribution.tables import attribute_gap
from recallkit.attribution.view import ComparisonView
from recallkit.scoring import score_path
from recallkit.slicing.definitions import parse_slices
from recallkit.storage.parquet_files import read_manifest
from tests.attribution.corpus import REFERENCE, Model, scored
from tests.display.drawings import data

UNKNOWN = {"family": "ref", "state_bytes": None, "state_ids": None}


def priced(folder, models, reference=REFERENCE, facts=None, **options):
    labels, scores = scored(folder, {"ref": reference, **models}, **options)
    return prices(labels, scores, {name: UNKNOWN | (facts or {}).get(name, {}) for name in scores})


def test_figures_are_those_of_the_gap(tmp_path):
    facts = {"m": {"family": "m", "state_bytes": 100, "state_ids": 9}}
    by_price = priced(tmp_path, {"m": Model(0.2, 0.08, 0.1, 0.3, 0.2)}, facts=facts)
    reference, row = by_price.to_dicts()
    paths = [tmp_path / f"scores/{name}.parquet" for name in ("ref", "m")]
    slices = parse_slices(["first=NOT repeated"])
    gap = attribute_gap(tmp_path / "tokens.parquet", paths[0], paths[1:], slices=slices).gap.filter(
        source="ALL"
    )
    every, hits, _, _, first = gap.to_dicts()
    for end in ("", "_ci_low", "_ci_high"):
        expected = {
            "gain": hits[f"gain_model{end}"],
            "retained": hits[f"retained{end}"],
            "loss_ar_hit": hits[f"delta_nll{end}"],
            "loss_first": first[f"delta_nll{end}"],
        }
        assert {name: row[f"{name}{end}"] for name in expected} == pytest.approx(
            expected, rel=1e-12
        )
        assert reference[f"gain{end}"] == pytest.approx(hits[f"gain_reference{end}"], rel=1e-12)
        assert reference[f"retained{end}"] is reference[f"loss_first{end}"] is None
    assert (reference["ppl"], row["ppl"]) == pytest.approx(
        (every["ppl_reference"], every["ppl_model"])
    )
    assert [row[name] for name in ("family", "state_bytes", "state_ids", "clusters")] == [
        "m",
        100,
        9,
        40,
    ]
    assert [reference[name] for name in ("family", "state_bytes", "effective_clusters")] == [
        "ref",
        None,
        40,
    ]


SIZED = {"m": {"state_bytes": 2_000, "state_ids": 9}}
UNKNOWABLE = (
    "The recall gain of ref on AR hits is not shown to exceed 0.1 points, so what is retained is "
    "unknown."
)
FIRST = "its loss where a bigram first occurs is"
# 12 nats by document of five first occurrences, one of them of a bigram that returns: ln (0.1 /
# first) and 4 others.
CASES = {
    "one": (
        {"m": Model(0.2, other=0.5)}, {"facts": SIZED},
        (f"m with 2 kB of state retains 25 % of the recall of ref (25 to 25); {FIRST} 0.400 nats "
            "per token (0.400 to 0.400)."),
    ),
    "of unknown size, gaining": (
        {"m": Model(0.8, other=-0.25)}, {},
        (f"m retains 175 % of the recall of ref (175 to 175); {FIRST} -0.200 nats per token "
            "(-0.200 to -0.200)."),
    ),
    "a small loss is not none": (
        {"m": Model(first=0.1 * math.exp(-0.0015))}, {},
        (f"m retains 100 % of the recall of ref (100 to 100); {FIRST} 0.0003 nats per token "
            "(0.0003 to 0.0003)."),
    ),
    "several": (
        {"m": Model(0.2, other=0.5), "n": Model(0.8, other=-0.25), "o": Model()}, {"facts": SIZED},
        "3 models retain 25 % (m) to 175 % (n) of the recall of ref; their loss where a bigram "
            "first occurs is -0.200 (n) to 0.400 "
        "(m) nats per token.",
    ),
    "nothing to retain": (
        {"m": Model()}, {"reference": Model(0.1, hit_spread=0.5)},
        UNKNOWABLE,
    ),
    "no hits": ({"m": Model()}, {"with_hits": 0}, UNKNOWABLE),
    "few documents": ({"m": Model()}, {"documents": 3}, UNKNOWABLE),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_what_the_figures_say(tmp_path, case):
    models, options, sentence = CASES[case]
    assert answer(priced(tmp_path, models, **options)) == sentence


def test_the_table_has_the_figures_of_its_rows(tmp_path):
    facts = {"ref": {"state_bytes": 1_048_576, "state_ids": 9}, **SIZED}
    by_price = priced(tmp_path, {"m": Model(0.2, other=0.5), "n": Model()}, facts=facts)
    table = price_table(by_price)
    ppl = [f"{row['ppl']:.2f}" for row in by_price.to_dicts()]
    assert table.rows == [
        ["ref", "1.05 MB", ppl[0], "40.0", "–", "–", "–"],
        ["m", "2 kB", ppl[1], "10.0", "25 (25 to 25)", "0.916", "0.400 (0.400 to 0.400)"],
        ["n", "–", ppl[2], "40.0", "100 (100 to 100)", "0.000", "0.000 (0.000 to 0.000)"],
    ]
    unknown = "The size of a state is unknown where it cannot be carried, and of recorded NLLs."
    assert f"State: of one sequence after 9 ids. {unknown}" in table.caption
    sized = price_table(by_price.with_columns(state_bytes=1, state_ids=9))
    assert "cannot be carried" not in sized.caption


# --------------------------------------------------------------------------- the command, the chart

FAMILY, MODELS = "zoo:base-conv", ["zoo:mamba,state=int8", "zoo:mamba", "zoo:mamba,ablate=1"]
NAMES = ["zoo:mamba state int8", "zoo:mamba", "zoo:mamba without 1"]


@pytest.fixture(scope="module")
def comparison(few_slices, tmp_path_factory):
    folder = tmp_path_factory.mktemp("priced")
    recallkit.gap(FAMILY, MODELS, slices=few_slices, price=True, out=folder)
    return read_comparison(folder)


def test_gap_has_the_table_where_it_is_asked_with_bytes_and_families(comparison, few_slices):
    by_price = comparison.tables.by_price
    assert by_price["model"].to_list() == [FAMILY, *NAMES]
    assert by_price["family"].to_list() == [FAMILY, *["zoo:mamba"] * 3]
    manifests = [read_manifest(score_path(few_slices, model)) for model in by_price["model"]]
    for name in ("state_bytes", "state_ids"):
        assert by_price[name].to_list() == [manifest[name] for manifest in manifests]
    assert by_price["state_bytes"][1] < by_price["state_bytes"][2]
    view = ComparisonView(comparison)
    assert view.answer() == answer(by_price).replace("zoo:", "")
    assert view.leading() == 1, "the table that was asked for is the one that is printed"
    assert view.terminal_tables()[0].rows[0][0] == FAMILY.removeprefix("zoo:")
    ordered = comparison.tables.ordered(NAMES[::-1]).by_price
    assert ordered["model"].to_list() == [FAMILY, *NAMES[::-1]]


def sized(comparison, sizes, gains, **columns):
    """The comparison with states and gains of these sizes."""
    ends = {f"gain{end}": pl.Series(gains) for end in ("", "_ci_low", "_ci_high")}
    columns = {name: pl.Series(values) for name, values in columns.items()}
    by_price = comparison.tables.by_price.with_columns(
        state_bytes=pl.Series(sizes), state_ids=65, **ends, **columns
    )
    models = by_price["model"].to_list()
    return replace(
        comparison,
        reference=models[0],
        models=models[1:],
        tables=replace(comparison.tables, by_price=by_price),
    )


def test_the_chart_joins_what_nothing_beats(comparison):
    apart = {"model": list("abcd"), "family": list("abcd")}
    [figure] = price_figure(sized(comparison, [400, 100, 200, 50], [0.5, 0.3, 0.2, 0.3], **apart))
    points = {row["label"]: row for row in data(figure)}
    assert {name: (point["x"], point["y"], point["front"]) for name, point in points.items()} == {
        "a": (400, 50, True), "b": (100, 30, False), "c": (200, 20, False), "d": (50, 30, True)
    }  # fmt: skip
    assert "Not drawn" not in figure.caption
    assert "variants" not in figure.caption
    assert points["b"]["tip"] == "b, 100 B: 30.0 (30.0 to 30.0) points"
    assert (
        price_figure(sized(comparison, [None] * 4, [0.5] * 4))
        == price_figure(sized(comparison, [9] * 4, [0.5] * 4))
        == []
    )
    same = data(*price_figure(sized(comparison, [0, 400, 400, 401], [0.5] * 4, **apart)))
    assert [row["x"] for row in same] == [0, 400, 400, 401], "a state of no bytes is known"
    assert len({(row["dx"], row["dy"]) for row in same if row["x"]}) == 3, (
        "labels keep clear of each other"
    )


def test_no_interval_is_between_a_point_and_its_label(comparison):
    apart = {"model": list("abcd"), "family": list("abcd")}
    for sizes, sides in (([400, 100, 103, 10], (-1, 1)), ([400, 103, 100, 10], (1, -1))):
        narrow = sized(comparison, sizes, [0.5, 0.3, 0.4, 0.3], **apart)
        ends = {"gain_ci_low": pl.Series([0.0] * 4), "gain_ci_high": pl.Series([0.9] * 4)}
        by_price = narrow.tables.by_price.with_columns(**ends)
        wide = replace(narrow, tables=replace(narrow.tables, by_price=by_price))
        places = {row["label"]: row["dx"] for row in data(*price_figure(wide))}
        assert (places["b"] * sides[0] > 0, places["c"] * sides[1] > 0) == (True, True)


def test_variants_are_of_one_line_without_those_that_others_of_it_beat(comparison):
    named = {
        "model": ["m", "m cache int4", "m cache window:4+64", "n"],
        "family": ["m", "m", "m", "n"],
    }
    [figure] = price_figure(sized(comparison, [400, 100, 200, 50], [0.5, 0.4, 0.3, 0.1], **named))
    points = {row["label"]: (row["model"], row["apart"]) for row in data(figure)}
    assert points == {
        "m": ("m (ref.)", False),
        "int4": ("m (ref.)", False),
        "window:4+64": ("m (ref.)", True),
        "n": ("n", False),
    }
    assert "is the front of its own variants" in figure.caption
    [left_out] = price_figure(
        sized(comparison, [400, None, 200, 50], [0.5, 0.4, 0.3, 0.1], **named)
    )
    assert "Not drawn, as their state is unknown: m cache int4." in left_out.caption
    assert len(data(left_out)) == 3
