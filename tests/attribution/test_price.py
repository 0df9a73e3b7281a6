"""What state costs: losses by class and accuracy against sums by hand; sentences where they are true and where they would be false."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import recallkit
from recallkit.attribution.charts import figures, price_figure
from recallkit.attribution.comparison import read_comparison
from recallkit.attribution.price import answer, far_distance, price_table, prices
from recallkit.attribution.tables import attribute_gap
from recallkit.attribution.view import look
from recallkit.display.charts import styles_of
from recallkit.report import words
from recallkit.report.sections import figures_section
from recallkit.report.sequence import open_excerpts
from recallkit.scoring.identity import score_path
from recallkit.slicing.definitions import parse_slices
from recallkit.storage.artifacts import read_manifest
from tests.attribution.test_tables import Corpus
from tests.display.drawings import data

HITS, FIRST, OVERWRITTEN = [1, 2, 4, 5], [0, 6, 7], [4, 5]
"""Places of a document's tokens: AR hits, two of which are overwritten, and first occurrences; token 3 is repeated but frequent.

Tokens 3 and 5 are far copies: more than 2 tokens back, a quarter of the 8 of a sequence.
"""
SPREAD = 0.05


def priced(folder, models, *, documents=40, ranks=None, spread=SPREAD, facts=None, recalled=None, with_hits=True) -> pl.DataFrame:
    """The table of models, each so many nats above the reference on AR hits that are not overwritten, on overwritten ones, on others.

    In half of the documents by a spread more and in half by it less: one, or that of AR hits, or of each model's, and that of others.
    """
    back, counts = (None, 1, 2, 3, 1, 3, None, None), (9, 0, 3, 2000, 0, 3, 5, 5)
    tokens = [(d, p + 1, "books", back[p] if with_hits else None, counts[p]) for d in range(documents) for p in range(8)]
    overwritten = [p in OVERWRITTEN for p in range(8)] * documents
    corpus = Corpus(folder, tokens, seq_len=8, max_count=8, overwritten=overwritten, rows_per_group=100)
    sign = np.where(np.arange(documents) % 2, 1, -1)[:, None]
    paths = {"ref": corpus.score("ref", np.full(8 * documents, 4.0), ranks)}
    for name, (hits, overwritten, other) in models.items():
        place = np.arange(8)
        more = np.where(np.isin(place, OVERWRITTEN), overwritten, np.where(np.isin(place, HITS), hits, other))
        of_hits, of_others = (spread, spread) if np.isscalar(spread) else spread
        of_hits = of_hits[name] if isinstance(of_hits, dict) else of_hits
        nats = more + sign * np.where(np.isin(place, HITS), of_hits, of_others)
        paths[name] = corpus.score(name, 4.0 + nats.ravel(), ranks)
    unknown = {"family": "ref", "state_bytes": None, "state_ids": None}
    return prices(corpus.path, paths, {name: unknown | (facts or {}).get(name, {}) for name in paths}, recalled or {})


def test_every_figure_is_the_sum_by_hand_and_intervals_are_those_of_the_gap(tmp_path):
    documents = 12
    ranks = np.random.default_rng(0).integers(-1, 3, 8 * documents)
    facts = {"m": {"family": "m", "state_bytes": 100, "state_ids": 9}}
    points = {"points": 0.5, "points_ci_low": 0.4, "points_ci_high": 0.6}
    reference, row = priced(
        tmp_path, {"m": (1.0, 3.0, 0.5)}, documents=documents, ranks=ranks, facts=facts, recalled={"m": points}
    ).to_dicts()
    losses = {"ar_hit": 2.0, "far": 1.75, "first": 0.5, "overwritten": 3.0, "not_overwritten": 1.0}
    for name, loss in losses.items():
        assert math.isclose(row[f"loss_{name}"], loss, rel_tol=1e-6), name
        assert reference[f"loss_{name}"] is None
    assert math.isclose(row["ratio"], 4.0, rel_tol=1e-6)
    assert math.isclose(row["overwriting"], 2.0, rel_tol=1e-6)
    is_right = ranks.reshape(documents, 8)[:, HITS] == 0
    assert row["accuracy"] == reference["accuracy"] == is_right.mean()
    assert row["accuracy_ci_low"] < is_right.mean() < row["accuracy_ci_high"]
    assert math.isclose(reference["ppl"], math.exp(4), rel_tol=1e-6)
    assert math.isclose(row["ppl"], math.exp(4 + 10 / 8), rel_tol=1e-6)
    assert [row[name] for name in ("family", "state_bytes", "state_ids", "recalled", "recalled_ci_low")] == ["m", 100, 9, 0.5, 0.4]
    assert [reference[name] for name in ("family", "state_bytes", "recalled")] == ["ref", None, None]
    given = parse_slices(["far=distance > 2", "first=NOT repeated", "overwritten", "not_overwritten"])
    gap = attribute_gap(tmp_path / "tokens.parquet", tmp_path / "scores/ref.parquet", [tmp_path / "scores/m.parquet"], slices=given).gap
    for of in gap.filter(pl.col("source") == "ALL", pl.col("slice").is_in(list(losses))).to_dicts():
        for end in ("low", "high"):
            assert row[f"loss_{of['slice']}_ci_{end}"] == pytest.approx(of[f"delta_ci_{end}"], rel=1e-9)


def test_intervals_of_comparisons_are_of_ratios_and_differences_not_of_either_loss(tmp_path):
    """Both losses are a half larger in one half of the documents, so that their ratio is the same in all."""
    [_, row] = priced(tmp_path, {"m": (2.0, 2.0, 1.0)}, spread=(0.4, 0.2)).to_dicts()
    assert row["ratio_ci_low"] == pytest.approx(2, abs=1e-5)
    assert row["ratio_ci_high"] == pytest.approx(2, abs=1e-5)
    assert row["overwriting_ci_high"] == pytest.approx(0, abs=1e-5)
    assert row["loss_ar_hit_ci_low"] < 1.95


@pytest.mark.parametrize(("seq_len", "distance"), [(8, 2), (256, 64), (512, 128), (2048, 128)])
def test_what_is_far_depends_on_the_length_of_short_sequences(seq_len, distance):
    assert far_distance(seq_len) == distance


ONE, LOSS, OVER = (
    "Per token m costs AR hits ",
    "The loss of m per token is ",
    " on AR hits whose key has been followed by something else since than on the others.",
)
CASES = {
    "more": ({"m": (1.8, 1.8, 0.5)}, {}, [f"{ONE}3.6 times what it costs first occurrences: 1.800 against 0.500 nats (95 % interval 3."]),
    "less": ({"m": (0.5, 0.5, 2)}, {}, [f"{ONE}0.25 times what it costs first occurrences: 0.500 against 2.000 nats"]),
    "little": (
        {"m": (3e-4, 3e-4, 1e-4)}, {"spread": (1e-5, 1e-5)}, [f"{ONE}3.0 times what it costs first occurrences: 0.0003 against 0.0001 nats"]
    ),
    "hits alone": ({"m": (1, 1, 0)}, {}, [f"{LOSS}1.000 nats in AR hits (95 % interval 0.985 to 1.015), and 0.000 in first "]),
    "first alone": ({"m": (0.1, 0.1, 0.5)}, {"spread": (2, 0.1)}, [f"{LOSS}0.100 nats in AR hits (95 % interval -0.5"]),
    "gains": ({"m": (-1, -1, 0.5)}, {}, [f"{LOSS}-1.000 nats in AR hits (95 % interval -1.015 to -0.985), and 0.500 in first "]),
    "two documents": (
        {"m": (1, 1, 0.5), "n": (-1, -1, 0.5)}, {"documents": 2},
        [f"Of 2 models m costs AR hits most. {LOSS}1.000 nats in AR hits (of too few documents for an interval), and 0.500 in first"],
    ),
    "two gain, two documents": (
        {"m": (-1, -1, 0.5), "n": (-2, -2, 0.5)}, {"documents": 2}, ["Neither of 2 models is shown to lose anything in AR hits. The loss"]
    ),
    "two gain": (
        {"m": (-1, -1, 0.5), "n": (-2, -2, 0.5)}, {},
        [f"Neither of 2 models is shown to lose anything in AR hits. {LOSS}-1.000 nats in AR hits (95 %"],
    ),
    "no hits": ({"m": (1, 1, 0.5)}, {"with_hits": False}, ["No token is an AR hit: there are no two losses to compare."]),
    "several": (
        {"m": (1, 1, 0.1), "n": (2, 2, 0.5), "o": (0, 0, 0)}, {},
        [f"Of 3 models m costs AR hits most in proportion. {ONE}10.0 times what it costs first occurrences: 1.000 against 0.100 nats"],
    ),
    "several in like proportion": (
        {"m": (2, 2, 2.5), "n": (1, 1, 1.1)}, {}, [f"Of 2 models m costs AR hits most. {ONE}0.80 times what it costs first occurrences"]
    ),
    "none shown": (
        {"m": (0.1, 0.1, 0.5), "n": (-1, -1, 0.5)}, {"spread": (2, 0.1)},
        [f"Neither of 2 models is shown to lose anything in AR hits; the largest loss is that of m. {LOSS}0.100 nats in AR hits (95 %"],
    ),
    "the larger loss not shown": (
        {"m": (0.05, 0.05, 0.5), "n": (0.06, 0.06, 0.5)}, {"spread": ({"m": 0.1, "n": 2}, 0.1)},
        [f"Of 2 models m has the largest loss in AR hits that is shown. {ONE}0.1"],
    ),
    "one of two shown": (
        {"m": (1, 1, 0.5), "n": (-1, -1, 0.5)}, {}, [f"Of 2 models m costs AR hits most in proportion. {ONE}2.0 times"]
    ),
    "overwritten more": ({"m": (1, 2, 0.5)}, {}, [f" It loses more{OVER}"]),
    "overwritten less": ({"m": (2, 1, 0.5)}, {}, [f" It loses less{OVER}"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_what_the_losses_say(tmp_path, case):
    models, how, there = CASES[case]
    said = answer(priced(tmp_path, models, **how))
    for sentence in there:
        assert sentence in said
    assert (OVER in said) == case.startswith("overwritten"), "only where the difference is shown"


def test_the_table_has_the_figures_of_its_rows(tmp_path):
    facts = {"ref": {"state_bytes": 1_048_576, "state_ids": 9}, "m": {"state_bytes": 999, "state_ids": 9}}
    by_price = priced(tmp_path, {"m": (1, 3, 0.5), "n": (0, 0, 0)}, facts=facts)
    table = price_table(by_price, 8)
    assert [row[:4] for row in table.rows] == [
        ["ref", "1.05 MB", "54.60", "100.0"], ["m", "999 B", "190.57", "100.0"], ["n", "–", "54.60", "100.0"]
    ]  # fmt: skip
    low, high = (by_price[f"loss_ar_hit_ci_{end}"][1] for end in ("low", "high"))
    assert table.rows[1][4:] == ["2.000", f"{low:.3f} to {high:.3f}", "1.750", "0.500", "3.000, 1.000"]
    assert table.rows[0][4:] == [*["–"] * 4, "–, –"]
    for said in (
        "State: of one sequence after 9 ids.",
        "Of a state that cannot be carried the bytes are unknown.",
        "Right: % of AR hits",
        "more than 2 tokens back",
    ):
        assert said in table.caption
    known = price_table(by_price.with_columns(recalled=pl.lit(0.25), state_bytes=1, state_ids=9), 8)
    assert "Recalled: points of probability" in known.caption
    assert [of.headers[2:4] for of in (table, known)] == [["ppl", "AR hits\nright"], ["ppl", "recalled"]]
    assert "cannot be carried" not in known.caption
    assert known.rows[0][3] == "25.0"


# ---------------------------------------------------------------------------------------------------------------- the command

REFERENCE, MODELS = "control:recall", ["control:bigram", "control:unigram"]


@pytest.fixture(scope="module")
def comparison(small_slices, tmp_path_factory):
    folder = tmp_path_factory.mktemp("priced")
    recallkit.gap(REFERENCE, MODELS, slices=small_slices, price=True, out=folder)
    return read_comparison(folder)


def test_of_equal_logits_one_alone_is_the_first_choice(few_slices, tmp_path):
    (tmp_path / "flat.py").write_text("import torch\n\ndef load(request):\n    return lambda ids: torch.zeros(*ids.shape, 4096)\n")
    flat = f"{tmp_path}/flat.py:load"
    scores = recallkit.score([f"flat={flat}"], slices=few_slices).frame
    tokens, found = (pl.read_parquet(path) for path in (few_slices / "tokens.parquet", scores["path"][0]))
    right, hits = tokens["token"] == found["argmax"], tokens["ar_hit"]
    assert (found["rank"] == 0).all()
    assert scores["accuracy"][0] == right.mean() < 0.1
    priced = recallkit.gap("control:bigram", [f"flat={flat}"], slices=few_slices, price=True, out=tmp_path / "gap")
    assert priced.by_price["accuracy"][1] == right.filter(hits).mean() < 0.1
    shown = open_excerpts(few_slices, [f"flat={flat}"]).read(0)
    assert shown["right_0"].to_list() == right.filter(tokens["sequence"] == 0).to_list()


def test_gap_has_the_table_only_where_it_is_asked(comparison, small_slices):
    by_price = comparison.tables.by_price
    assert by_price["model"].to_list() == by_price["family"].to_list() == [REFERENCE, *MODELS]
    tokens, scores = (pl.read_parquet(path) for path in (small_slices / "tokens.parquet", score_path(small_slices, REFERENCE)))
    assert by_price["accuracy"][0] == pytest.approx((scores["rank"] == 0).filter(tokens["ar_hit"]).mean())
    hits = comparison.totals[MODELS[0], "ar_hit"]
    assert by_price.filter(model=MODELS[0])["loss_ar_hit"][0] == pytest.approx(hits["delta_nll"], rel=1e-9)
    plain = recallkit.gap(REFERENCE, MODELS, slices=small_slices)
    assert plain.by_price is None
    seen = look(comparison)
    assert seen.answer == answer(by_price)
    assert seen.terminal_tables[0].rows[0][0] == REFERENCE
    assert seen.leading == 1, "the table that was asked for is the one that is printed"
    ordered = comparison.tables.ordered(MODELS[::-1]).by_price
    assert ordered["model"].to_list() == [REFERENCE, *MODELS[::-1]]


@pytest.mark.parametrize(("most", "said"), [(0.0, False), (2e-3, True)])
def test_what_reading_in_chunks_changes_is_said_where_it_changes_anything(comparison, most, said):
    lines = look(replace(comparison, manifest={**comparison.manifest, "reading": {MODELS[0]: [most, most / 2]}})).lines
    noise = [line for line in lines if line.startswith("Noise: ")]
    assert len(noise) == said
    assert all("up to 2.0e-03 nats, on average by 1.0e-03" in line for line in noise)


@pytest.mark.parametrize("price", [True, False])
def test_notes_on_shares_are_printed_below_a_table_of_shares_alone(small_slices, tmp_path, price):
    recallkit.gap({"a": REFERENCE, "b": REFERENCE}, slices=small_slices, price=price, out=tmp_path)
    seen = look(read_comparison(tmp_path))
    assert "b: the share means nothing: no gap overall" in seen.lines
    assert any("the share means nothing" in line for line in seen.lines[: seen.brief]) is not price


def test_what_an_intervention_of_the_same_scores_has_found_is_in_it(small_slices, tmp_path):
    models = {"known": REFERENCE, "asked": MODELS[0]}  # under names of their own: other tests have not intervened on these
    found = recallkit.intervene(models, slices=small_slices)
    by_price = recallkit.gap(models, slices=small_slices, price=True, out=tmp_path / "gap").by_price
    points = dict(found.intervene.filter(slice="ar_hit").select("model", "points").rows())
    assert dict(by_price.select("model", "recalled").rows()) == points


# ------------------------------------------------------------------------------------------------------------------ the chart


def sized(comparison, sizes, values=None):
    """The comparison with states of these sizes."""
    by_price = comparison.tables.by_price.with_columns(state_bytes=pl.Series(sizes), state_ids=65)
    by_price = by_price.with_columns(**{f"accuracy{end}": pl.Series(values) for end in ("", "_ci_low", "_ci_high")}) if values else by_price
    return replace(comparison, tables=replace(comparison.tables, by_price=by_price))


def test_the_chart_joins_what_nothing_beats(comparison):
    [figure] = price_figure(sized(comparison, [400, 100, 200], [0.5, 0.3, 0.2]))
    points = {row["label"]: row for row in data(figure)}
    assert {name: (point["x"], point["y"], point["front"]) for name, point in points.items()} == {
        "control:recall": (400, 50, True), "control:bigram": (100, 30, True), "control:unigram": (200, 20, False)
    }  # fmt: skip
    assert figure.caption.startswith("AR hits that models rank first, in %, beside the bytes of state of one sequence. ")
    assert "Not drawn" not in figure.caption
    assert "variants" not in figure.caption
    assert "control:bigram, 100 B: 30.0 (30.0 to 30.0)" in {point["tip"] for point in points.values()}
    assert price_figure(sized(comparison, [None] * 3)) == price_figure(sized(comparison, [9] * 3)) == [], "nothing to compare"
    assert [row["x"] for row in data(*price_figure(sized(comparison, [0, 1, 2])))] == [0, 1, 2], "a state of no bytes is known"


def test_labels_keep_clear_of_each_other(comparison):
    points = data(*price_figure(sized(comparison, [400, 400, 401], [0.5, 0.5, 0.5])))
    assert len({(row["dx"] > 0, row["dy"]) for row in points}) == 3


def test_a_page_answers_what_was_asked(comparison):
    found = sized(comparison, [400, 100, 200])
    drawn = figures(found)
    section = figures_section(drawn, styles_of(drawn)).body
    assert section.index('id="figure-price"') < section.index('id="figure-by_count"')
    assert words.question(found) == "What does a smaller state cost in recall?"
    assert words.commands(found, None)[1].endswith(" --price")
    assert answer(found.tables.by_price) in words.opening(found, {}, styles_of(drawn), {})


def test_variants_are_of_one_line_without_those_that_others_of_it_beat(comparison):
    names, families = ["m", "m cache int4", "m cache window:4+64", "n"], ["m", "m", "m", "n"]
    four = pl.concat([comparison.tables.by_price, comparison.tables.by_price[2:]])
    renamed = four.with_columns(model=pl.Series(names), family=pl.Series(families), recalled=pl.Series([0.5, 0.4, 0.3, 0.1]))
    found = replace(comparison, reference="m", models=names[1:], tables=replace(comparison.tables, by_price=renamed))
    [figure] = price_figure(sized(found, [400, 100, 200, 50]))
    points = {row["label"]: row for row in data(figure)}
    assert {name: (point["model"], point["apart"]) for name, point in points.items()} == {
        "m": ("m (ref.)", False), "int4": ("m (ref.)", False), "window:4+64": ("m (ref.)", True), "n": ("n", False)
    }  # fmt: skip
    assert points["int4"]["y"] == 40, "points recalled, where they were measured of all"
    assert "in points of probability, beside the bytes of state of one sequence. " in figure.caption, "without intervals"
    assert "joins those of its variants" in figure.caption
    [left_out] = price_figure(sized(found, [400, None, 200, 50]))
    assert "Not drawn, as their state is unknown: m cache int4." in left_out.caption
    assert len(data(left_out)) == 3
    alone = replace(found, models=names[1:3], tables=replace(found.tables, by_price=renamed[:3]))
    [alone] = price_figure(sized(alone, [400, 100, 200]))
    assert all(point["apart"] for point in data(alone)), "the frontier is its line"
    assert "joins those of its variants" not in alone.caption


def test_variants_have_bytes_of_their_own_and_the_family_of_the_model(few_slices, tmp_path):
    models = ["zoo:mamba,state=int8", "zoo:mamba", "zoo:mamba,ablate=1"]
    by_price = recallkit.gap("zoo:base-conv", models, slices=few_slices, price=True, out=tmp_path / "gap").by_price
    assert by_price["family"].to_list() == ["zoo:base-conv", *["zoo:mamba"] * 3]
    manifests = [read_manifest(score_path(few_slices, model)) for model in by_price["model"]]
    assert by_price["state_bytes"].to_list() == [manifest["state_bytes"] for manifest in manifests]
    assert by_price["state_ids"].to_list() == [manifest["state_ids"] for manifest in manifests]
    assert by_price["state_bytes"][1] < by_price["state_bytes"][2]
