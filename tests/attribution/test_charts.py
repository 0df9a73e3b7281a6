"""Figures of comparisons: every point is a figure of the tables, a model looks the same in all of them, and any name is text."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl
import pytest

from recallkit import attribution
from recallkit.attribution.charts import figures
from recallkit.attribution.comparison import Comparison, read_comparison
from recallkit.attribution.tables import GapTables
from recallkit.display.charts import PAPER, labels, styles_of
from recallkit.measure.shares import GAP_MAY_BE_ZERO, is_void
from recallkit.slicing.definitions import parse_slices
from tests.display.drawings import data, marks, svg, texts

REFERENCE, MODELS = "control:recall", ["control:bigram", "control:unigram"]
NAMES = ["gap_parts", "by_partition", "by_slice", "by_count", "by_distance", "by_match", "by_position", "by_source"]
NAMES += ["by_threshold"]
KINDS = {"AR hits": "ar_hit", "other tokens": "other"}


@pytest.fixture(scope="module")
def comparison(small_slices, tmp_path_factory) -> Comparison:
    folder = tmp_path_factory.mktemp("compared")
    attribution.gap(REFERENCE, MODELS, small_slices, folder, question=attribution.GapQuestion(parse_slices(["overwritten"])))
    return read_comparison(folder)


def drawn(comparison: Comparison) -> dict:
    return {figure.name: figure for figure in figures(comparison)}


def changed(comparison: Comparison, change) -> Comparison:
    """The comparison with other tables: `change` gets each frame and its name."""
    frames = {name: change(frame, name) for name, frame in comparison.tables.frames().items()}
    return replace(comparison, tables=GapTables(**frames))


def renamed(comparison: Comparison, names: dict[str, str]) -> Comparison:
    columns = ("reference", "model", "source")
    named = changed(comparison, lambda frame, _: frame.with_columns(pl.col(c).replace(names) for c in columns if c in frame.columns))
    return replace(named, reference=names.get(REFERENCE, REFERENCE), models=[names.get(model, model) for model in comparison.models])


def test_every_figure_is_there_and_says_what_its_axes_are(comparison):
    titles = {
        "gap_parts": {"nats per token behind the reference"},
        "by_partition": {"share of the gap"},
        "by_slice": {"share of the gap"},
        "by_count": {"training count of the bigram, up to", "NLL, nats per token"},
        "by_distance": {"tokens back to the bigram, up to", "NLL, nats per token"},
        "by_match": {"tokens matched, from", "NLL, nats per token"},
        "by_position": {"position in the sequence", "NLL, nats per token"},
        "by_source": {"AR hits' share of the gap"},
        "by_threshold": {"AR hits' share of the gap", "AR hits are bigrams up to"},
    }
    found = drawn(comparison)
    assert list(found) == list(titles)
    for name, figure in found.items():
        drawing = svg(figure)
        assert len(drawing) < 60_000
        assert titles[name] <= set(texts(drawing)), name
        assert figure.caption.endswith(".")


@pytest.mark.parametrize("sign", [1, -1])
def test_parts_of_a_gap_are_its_nats_and_a_lead_lies_left_of_zero(comparison, sign):
    def lead(frame, name):
        return frame.with_columns(delta_nll=sign * pl.col("delta_nll").abs(), note=pl.lit("")) if name == "gap" else frame

    turned = changed(comparison, lead)
    rows = data(drawn(turned)["gap_parts"])
    bars = {(row["model"], row["kind"]): row["nats"] for row in rows if "nats" in row}
    for (model, kind), nats in bars.items():
        row = turned.totals[model, KINDS[kind]]
        assert nats == pytest.approx(row["delta_nll"] * row["share_of_tokens"])
        assert nats * sign > 0
    for row in (row for row in rows if "shown" in row):
        hits, gap = turned.totals[row["model"], "ar_hit"], turned.totals[row["model"], "all"]["delta_nll"]
        assert (row["low"], row["high"]) == pytest.approx((hits["ci_low"] * gap, hits["ci_high"] * gap))
        assert row["shown"] == f"{gap:.3f} nats, {100 * hits['gap_share']:.1f} % in AR hits".replace("-", "−")


@pytest.mark.parametrize(
    ("name", "what", "kind", "panels", "x"),
    [
        ("by_count", "training count", "repeated", {True: "bigram repeated (shaded: AR hits)", False: "bigram not repeated"}, "high"),
        ("by_distance", "distance", "ar_hit", {True: None}, "high"),
        ("by_match", "match length", "ar_hit", {True: None}, "low"),
    ],
)
def test_lines_have_every_bucket_of_the_table(comparison, name, what, kind, panels, x):
    expected = {}
    for row in getattr(comparison.tables, name).to_dicts():
        if row[kind] in panels:
            for model, side in ((row["model"], "model"), (f"{REFERENCE} (ref.)", "reference")):
                expected[panels[row[kind]], model, row[x]] = (row[f"nll_{side}"], row["tokens"] < 100)
                last = "" if row["low"] == row["high"] else f" to {row['high']:,}"
                tokens = f"{row['tokens']:,} token{'s' * (row['tokens'] != 1)}"
                expected_tip = f"{what} {row['low']:,}{last} ({tokens}): {row[f'nll_{side}']:.2f} nats"
                expected[panels[row[kind]], model, row[x]] += (expected_tip,)
    found = {
        (row["panel"], row["model"], row["x"]): (row["y"], row["few"], row["tip"].split(", ", 1)[1])
        for row in data(drawn(comparison)[name])
    }
    assert found == expected


def test_positions_are_means_of_neighbouring_buckets(comparison):
    rows, frame = data(drawn(comparison)["by_position"]), comparison.tables.by_position
    for model in (REFERENCE, *MODELS):
        mine = [row for row in rows if row["model"].removesuffix(" (ref.)") == model]
        assert len(mine) <= 2 * 16
        told = [re.search(r"\(([\d,]+) tokens?\): ([\d.]+) nats", row["tip"]).groups() for row in mine]
        of_table = frame.filter(model=MODELS[0] if model == REFERENCE else model)
        tokens = [int(number.replace(",", "")) for number, _ in told]
        assert sum(tokens) == of_table["tokens"].sum()
        nats = (of_table["nll_reference" if model == REFERENCE else "nll_model"] * of_table["tokens"]).sum()
        assert sum(row["y"] * number for row, number in zip(mine, tokens, strict=True)) == pytest.approx(nats)


@pytest.mark.parametrize("name", ["by_source", "by_threshold", "by_partition", "by_slice"])
def test_shares_are_the_tables_with_their_intervals_and_void_ones_are_left_out(comparison, name):
    gap = [row for row in comparison.tables.gap.to_dicts() if not is_void(row)]
    rows = {
        "by_source": [{**row, "by": row["source"]} for row in gap if row["slice"] == "ar_hit" and row["source"] != "ALL"],
        "by_slice": [{**row, "by": row["slice"]} for row in gap if row["slice"] == "overwritten" and row["source"] == "ALL"],
        "by_partition": [{**row, "by": row["slice"]} for row in comparison.tables.by_partition.to_dicts() if not is_void(row)],
        "by_threshold": [{**row, "by": row["threshold"]} for row in comparison.tables.by_threshold.to_dicts() if not is_void(row)],
    }[name]
    shown = labels([str(row["by"]) for row in rows], 26)
    expected = {(row["model"], row["by"] if name == "by_threshold" else shown[row["by"]]): row for row in rows}
    found = {(row["model"], row["x"] if name == "by_threshold" else row["name"]): row for row in data(drawn(comparison)[name])}
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert [found[key][end] for end in ("share", "low", "high")] == [row[end] for end in ("gap_share", "ci_low", "ci_high")]
        assert f"{100 * row['gap_share']:z.1f} %" in found[key]["tip"]
        beside = {"by_source": comparison.totals[key[0], "ar_hit"]["gap_share"], "by_threshold": None}.get(name, row.get("share_of_tokens"))
        assert found[key]["beside"] == beside


def test_a_model_looks_the_same_in_all_figures(comparison):
    found = figures(comparison)
    styles = styles_of(found)
    seen = {model: set() for model in (REFERENCE, *MODELS)}
    for figure in found:
        if figure.name != "gap_parts":
            for label, mark in marks(svg(figure, styles)).items():
                paints = {mark.paint.get("fill"), mark.paint.get("stroke")} - {PAPER["page"], "none", None}
                seen[next((model for model in seen if label.startswith(model)), REFERENCE)] |= paints
    assert seen == {model: {PAPER[styles[model].colour]} for model in seen}


HOSTILE = ["<script>alert('1')</script>&\"\x1b[31m <b>", "", "a.b[c]", "line\nbreak", "models/" * 30 + "mamba", "datum['x']", "{'a': 1}[0]"]
LONG = [f"organisation/some-model-{number}.3b-instruct" for number in range(5)]


def test_any_name_of_twelve_models_is_text_and_no_figure_is_wider_for_it(comparison):
    names = [*HOSTILE, *LONG]
    copies = lambda frame, _: pl.concat([frame.filter(model=MODELS[0]).with_columns(model=pl.lit(name)) for name in names])  # noqa: E731
    many = replace(changed(comparison, copies), models=names)
    hostile = renamed(many, {REFERENCE: "ref\" & 'x'", "books": HOSTILE[0], "letters": "ALL"})
    found = drawn(replace(hostile, models=names))
    assert list(found) == NAMES
    for name, figure in found.items():
        drawing = svg(figure)
        assert "<script" not in drawing
        assert not [text for text in texts(drawing) if "\x1b" in text or "\n" in text]
        shown = " ".join(texts(drawing))
        for model in ("a.b[c]", "line break", "datum['x']", "{'a': 1}[0]", "(no name)"):
            assert model in shown, (name, model)
        assert float(re.search(r'viewBox="0 0 (\d+)', drawing).group(1)) < 460, name


def test_what_has_nothing_to_show_is_left_out(comparison):
    def without_hits(frame, name):
        if name == "gap":
            hits = pl.col("slice") == "ar_hit"
            empty = [
                pl.when(hits).then(None).otherwise(pl.col(c)).alias(c) for c in ("nll_model", "nll_reference", "delta_nll", "gap_share")
            ]
            return frame.with_columns(*empty, tokens=pl.when(hits).then(0).otherwise(pl.col("tokens")))
        return frame.with_columns(gap_share=pl.lit(None, pl.Float64)) if name == "by_threshold" else frame.clear()

    found = drawn(replace(changed(comparison, without_hits), given=()))
    assert list(found) == ["gap_parts"]


def test_shares_of_a_gap_that_is_none_are_not_drawn(comparison):
    noted = lambda frame, _: frame.with_columns(note=pl.lit(GAP_MAY_BE_ZERO), void=True) if "note" in frame.columns else frame  # noqa: E731
    found = drawn(changed(comparison, noted))
    assert list(found) == ["gap_parts", "by_count", "by_distance", "by_match", "by_position"]
    ends = [row for row in data(found["gap_parts"]) if "shown" in row]
    assert all(row["shown"].endswith("share means nothing") and "low" not in row for row in ends)


def test_one_source_with_a_share_has_no_figure_by_source(comparison):
    """The share of the only other source means nothing, so there is nothing to compare."""

    def without_letters(frame, name):
        is_void = pl.col("void") | (pl.col("source") == "letters")
        return frame.with_columns(void=is_void) if name == "gap" else frame

    assert "by_source" not in drawn(changed(comparison, without_letters))


def test_six_sources_are_drawn_and_the_others_named(comparison):
    def more(frame, name):
        if "source" not in frame.columns:
            return frame
        books = frame.filter(source="books")
        return pl.concat(
            [frame, *(books.with_columns(source=pl.lit(f"source {n}"), tokens=pl.col("tokens") // (n + 2)) for n in range(20))]
        )

    figure = drawn(changed(comparison, more))["by_source"]
    shown = {row["name"] for row in data(figure)}
    every = ("books", "letters", *(f"source {n}" for n in range(20)))
    smaller = figure.caption.partition("Not drawn")[2]
    named = {name for name in every if re.search(rf"{name}\b", smaller)}
    assert (len(shown), len(named)) == (6, 12)
    assert not shown & named
    assert figure.caption.endswith(" more.")
