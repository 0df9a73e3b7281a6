"""The page as a whole: its figures are the tables', data in it is text, it fetches nothing, and it is written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import recallkit
from recallkit.attribution import answer as in_answers
from recallkit.attribution.charts import figures as draw
from recallkit.attribution.comparison import Comparison, read_comparison
from recallkit.attribution.tables import NO_HITS, GapTables, attribute_gap
from recallkit.display.charts import model_styles, specification, styles_of
from recallkit.display.tables import Table
from recallkit.errors import UserError
from recallkit.measure.shares import GAP_MAY_BE_ZERO, NO_GAP
from recallkit.report import markup, sections, words
from recallkit.report import words as in_words
from recallkit.report.write import ReportOptions, write_report
from recallkit.storage import artifacts
from tests.attribution.test_tables import Corpus
from tests.known_truth import PATH
from tests.report.conftest import MODELS, REFERENCE
from tests.report.reading import Page

EVIL = "<script>alert('1')</script>&\"\x1b[31m <b>"
CLASSES = "Where the gap lies: each token by what of it is in the context already, and how often training saw its bigram"
TABLE = "Perplexity, and how much of the gap to the reference lies in AR hits, in %"
DATA, SCRIPTS = "application/json", ["text/javascript", "module"]


@pytest.fixture(scope="module")
def written(words):
    return write_report(words)


@pytest.fixture(scope="module")
def page(written) -> Page:
    return Page.read(written.page)


def renamed(tables: GapTables, names: dict[str, str]) -> GapTables:
    """The tables with other names of models, and of sources."""
    columns = ("reference", "model", "source")
    frames = tables.frames()
    return GapTables(**{key: f.with_columns(pl.col(c).replace(names) for c in columns if c in f.columns) for key, f in frames.items()})


def put(tables: GapTables, folder: Path, like: Comparison, **facts: object) -> Path:
    """The tables in a folder, with the manifest of another comparison but for `facts`."""
    artifacts.write_frames(tables, folder, {**like.manifest, **facts})
    return folder


# ------------------------------------------------------------------------------------------------------- what it says


def test_the_page_begins_with_a_row_per_model(comparison, page):
    totals = comparison.totals
    heads, first, *rows = page.models()
    assert heads == ["model", "perplexity", "gap, nats per token", "share of the gap in AR hits050100 %", "where it loses most"]
    assert first == [REFERENCE, f"{totals[MODELS[0], 'all']['ppl_reference']:,.2f}", "reference", "", ""]
    assert [row[0] for row in rows] == sorted(MODELS, key=lambda model: totals[model, "all"]["ppl_model"])
    for model, ppl, gap, share, links in rows:
        whole, hits = totals[model, "all"], totals[model, "ar_hit"]
        assert (ppl, gap) == (f"{whole['ppl_model']:,.2f}", f"{whole['delta_nll']:z.3f}{' ahead' * (whole['delta_nll'] < 0)}")
        assert share == f"{100 * hits['gap_share']:z.1f} %"
        assert links == "AR hits · documents"
    told = [attributes["aria-label"] for name, attributes, _, _ in page.elements if attributes.get("class") == "bar"]
    for model, label in zip([row[0] for row in rows], told, strict=True):
        hits = totals[model, "ar_hit"]
        assert label == (
            f"{100 * hits['gap_share']:.1f} % ({100 * hits['ci_low']:.1f} to {100 * hits['ci_high']:.1f} %); "
            f"control {100 * hits['control_share']:z.1f} %"
        )


def test_models_with_tokenizers_of_their_own_are_compared_in_bits_per_byte(comparison):
    own = replace(comparison, manifest={**comparison.manifest, "inexact": {MODELS[0]: {"all": 0.1}}})
    head, *rows = Page(words.opening(own, {}, model_styles([REFERENCE, *MODELS]), {})).models()
    whole = comparison.totals[comparison.models[0], "all"]
    assert [head[1], rows[0][1], rows[1][1]] == ["bits per byte", f"{whole['bpb_reference']:.3f}", f"{whole['bpb_model']:.3f}"]


def test_every_table_has_the_models_in_the_order_of_the_first_rows(words, comparison, page, tmp_path):
    recallkit.gap(REFERENCE, comparison.models[::-1], slices=words, out=tmp_path)
    other = Page.read(write_report(tmp_path, options=ReportOptions(slices=words)).page)
    order = [row[0] for row in page.models()[1:]]
    assert order == [row[0] for row in other.models()[1:]] == [REFERENCE, *comparison.models]
    for title, (_, *rows) in [*page.tables().items(), *other.tables().items()]:
        found = [row[0] for row in rows if row[0] in order]
        assert found == [model for model in order if model in found], title
    assert [row[0] for row in page.tables()["AR share of the gap by source"][2:]] == comparison.models


def test_what_was_recalled_is_beside_what_lies_in_ar_hits(words, comparison, tmp_path):
    """Of an intervention in the same models and labels; not of another reference."""
    recallkit.intervene([REFERENCE, *MODELS], slices=words, samples=40, out=tmp_path / "same")
    page = Page.read(write_report(words, tmp_path / "page.html", ReportOptions(more=tmp_path / "same")).page)
    found = pl.read_parquet(tmp_path / "same" / "recall_share.parquet").filter(slice="ar_hit")
    known = {row["model"]: row for row in found.iter_rows(named=True)}
    assert page.models()[0][4].startswith("gone without recall")
    assert "#intervene" in [attributes.get("href") for _, attributes, _, _ in page.elements], "a link to how it was measured"
    for row in page.models()[2:]:
        share = known[row[0]]
        assert row[4] == ("means nothing" if share["void"] else f"{100 * share['recall_share']:z.1f} %")
    assert "If neither could recall" in page.texts("p")[0] or "If no model could recall" in page.texts("p")[0]
    assert page.texts("h2").index("Is it recall?") == 1, "right after where the gap lies"
    recallkit.intervene(MODELS, slices=words, samples=40, out=tmp_path / "other")
    page = Page.read(write_report(words, tmp_path / "page.html", ReportOptions(more=tmp_path / "other")).page)
    assert "Is it recall?" in page.texts("h2")
    assert len(page.models()[0]) == 5, "what another reference recalls is no part of this gap"


def test_documents_add_up_to_the_gap(comparison, page):
    for model in comparison.models:
        whole = comparison.totals[model, "all"]
        [title] = [title for title in page.tables() if title.startswith("The documents") and title.endswith(f" of {model}")]
        _, *rows = page.tables()[title]
        figures = [[float(cell.split()[0].replace(",", "")) for cell in row[-5:]] for row in rows]
        gap = whole["delta_nll"] * whole["tokens"]
        tokens, hits, on_hits, on_all, share = map(sum, zip(*figures, strict=True))
        assert (tokens, hits) == (whole["tokens"], comparison.totals[model, "ar_hit"]["tokens"])
        assert on_all == pytest.approx(gap, abs=0.05 * len(rows))
        assert on_hits == pytest.approx(comparison.totals[model, "ar_hit"]["delta_nll"] * hits, abs=0.05 * len(rows))
        assert share == pytest.approx(100, abs=0.05 * len(rows))
        assert ("lead" if gap < 0 else "gap") in title
        sizes = [abs(row[3]) for row in figures[:-1]]
        assert len(rows) == 11
        assert sizes == sorted(sizes, reverse=True)
        assert rows[-1][0].startswith("the ")


def test_a_model_like_the_reference_is_said_to_lose_nothing(words, tmp_path):
    recallkit.gap(REFERENCE, [f"same={REFERENCE}"], slices=words, out=tmp_path)
    page = Page.read(write_report(tmp_path, options=ReportOptions(slices=words)).page)
    assert f"same is behind {REFERENCE} on no AR hit." in page.texts("p")
    assert f"same predicts every document as {REFERENCE} does." in page.texts("p")
    assert page.models()[2][2:] == ["0.000", f"means nothing: {NO_GAP}", "AR hits · documents"]


def test_the_question_and_its_answer(comparison, page):
    assert page.texts("h1") == [f"How much of the perplexity gap to {REFERENCE} is associative recall?"]
    rows = {row["model"]: row for row in comparison.tables.gap.filter(source="ALL", slice="ar_hit").iter_rows(named=True)}
    answer = page.texts("p")[0]
    assert answer.startswith(f"Nearest to {REFERENCE} is control:bigram (perplexity ")
    assert f"Farthest from {REFERENCE} is control:unigram" in answer
    for row in rows.values():
        interval = f"{100 * row['ci_low']:.1f} to {100 * row['ci_high']:.1f} %"
        share = f"{100 * row['gap_share']:.1f} %"
        if row["gap_share"] >= 0:
            enriched = f"{row['gap_share'] / row['share_of_tokens']:.1f} times their share of the tokens"
            assert f"{share} (95 % interval {interval}) of this gap lies in AR hits, {enriched}." in answer
        else:
            said = r"(none of this (gap|lead) lies in AR hits; there it .*|no part of this (gap|lead) is shown to lie in AR hits)"
            assert re.search(rf"{said} \(share {share}, 95 % interval {interval}\)\.", answer)


def test_the_method_says_what_makes_it_again(comparison, page):
    facts = comparison.manifest["slices"]
    facts_shown = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert f"{facts['num_rows']:,} predicted tokens in {facts['num_sequences']:,} sequences of up to 64" in facts_shown["Text"]
    assert facts_shown["Sources (tokens)"].startswith("books ")
    assert "largest training count 9 (" in facts_shown["AR hits"]
    assert facts["counts"]["id"] in facts_shown["Training counts"]
    assert facts["tokenizer"]["digest"] in facts_shown["Tokenizer"]
    [commands] = page.texts("pre")
    assert commands.splitlines() == [
        "recallkit slice valid.jsonl other.jsonl --tokenizer recallkit-4k --counts counts.duckdb --max-count 9 --seq-len 64 "
        "--boundary pack -o DIR",
        "recallkit gap control:recall control:bigram control:unigram --slices DIR",
        "recallkit report DIR",
    ]
    assert str(comparison.folder.parent) not in page.source, "the page tells where it was made"
    labels = artifacts.read_manifest(comparison.slices / "tokens.parquet")
    many = in_words.commands(comparison, {**labels, "names": [f"/data/{number}.jsonl" for number in range(9)], "limit_tokens": 10_000_000})
    assert many[0].startswith("recallkit slice TEXT... ")
    assert many[0].endswith(" --limit-tokens 10000000 -o DIR")
    assert in_words.commands(comparison, {**labels, "drawn": {"tokens": 900, "seed": 3}})[0].endswith(" --sample 900 --seed 3 -o DIR")


def test_every_picture_and_the_text_are_on_the_page(comparison, page, written):
    drawn = draw(comparison)
    assert len(drawn) >= 4
    ordered = sorted(drawn, key=lambda figure: figure.name != "by_count")
    assert page.texts("figcaption") == [figure.caption for figure in ordered], "Zoology's figure 1 comes first"
    assert [text for text in page.texts("h3") if text in {figure.title for figure in drawn}] == [figure.title for figure in ordered]
    styles = styles_of(drawn)
    for figure in drawn:
        assert json.loads(page.with_id(f"specification-{figure.name}")) == specification(figure, styles, on_page=True)
    data = page.token_data()
    assert data["models"] == [REFERENCE, *comparison.models]
    assert len(data["excerpts"]) == written.excerpts > 5
    of = comparison.manifest["slices"]["num_sequences"]
    assert any(text.startswith(f"{written.excerpts} of {of} sequences are on this page") for text in page.texts("p"))


def test_a_share_without_meaning_is_said_so(comparison):
    """Of models that differ by nothing, by noise, and that are better than the reference."""
    notes = {"same": NO_GAP, "noise": GAP_MAY_BE_ZERO, "better": "model is better than the reference overall: shares are of its lead"}
    rows = {
        name: {
            "delta_nll": -0.3 if name == "better" else 0.1,
            "note": note,
            "gap_share": None if name == "same" else 0.5,
            "void": name != "better",
        }
        for name, note in notes.items()
    }
    with_rows = of_models(comparison, rows)
    styles = model_styles([comparison.reference, *rows])
    page = Page(words.opening(with_rows, {}, styles, {}) + sections.tables_section(with_rows, {}).body)
    told = dict(line.split(": ", 1) for line in page.texts("li"))
    assert told == {name: note if name == "better" else f"the share means nothing: {note}" for name, note in notes.items()}
    assert "same (perplexity " in page.texts("p")[0]
    assert ": a share of this gap means nothing" in page.texts("p")[0]
    assert "of this lead lies in AR hits" in page.texts("p")[0], "no headline: one share only means something"
    assert "Shares of a lead: better." in page.texts("p")[1], "not those that mean nothing, nor of a gap"
    shown = {row[0]: row[2:4] for row in page.models()}
    assert shown["noise"] == ["0.100", f"means nothing: {GAP_MAY_BE_ZERO}"]
    assert shown["same"][1] == f"means nothing: {NO_GAP}"
    assert shown["better"] == ["-0.300 ahead", "50.0 %"]
    noise = next(row for row in page.tables()[TABLE] if row[0] == "noise")
    assert noise[6] == "–", "a share that means nothing has no interval"
    assert noise[5] in page.texts("s")


def of_models(comparison: Comparison, rows: dict[str, dict[str, object]]) -> Comparison:
    """The comparison with these models, all with the rows of its first but for these figures of AR hits, and `delta_nll` of all tokens."""
    frames = {
        name: pl.concat(frame.filter(model=MODELS[0]).with_columns(model=pl.lit(model)) for model in rows)
        for name, frame in comparison.tables.frames().items()
    }
    gap = frames["gap"].to_dicts()
    for row in gap:
        if row["slice"] == "ar_hit":
            row.update({name: value for name, value in rows[row["model"]].items() if name != "delta_nll"})
        row["delta_nll"] = rows[row["model"]]["delta_nll"]
    frames["gap"] = pl.DataFrame(gap, schema=frames["gap"].schema)
    return replace(comparison, models=list(rows), tables=GapTables(**frames))


def answer_of(comparison: Comparison) -> str:
    return in_answers.answer(comparison.reference, comparison.models, comparison.totals)


@pytest.mark.parametrize(
    ("delta", "share", "bounds", "answer"),
    [
        (0.3, -0.007, (-0.02, 0.006), "no part of this gap is shown to lie in AR hits (share -0.7 %, 95 % interval -2.0"),
        (0.3, -0.2, (-0.3, -0.1), "none of this gap lies in AR hits; there it is better than the reference (share -20.0 %, 95 % interval"),
        (0.3, 1.2, (1.1, 1.3), "all of this gap lies in AR hits; on the other tokens it is better than the reference (share 120.0 %, 95 %"),
        (-0.3, 0.25, (0.2, 0.3), "25.0 % (95 % interval 20.0 to 30.0 %) of this lead lies in AR hits, 2.5 times their share of"),
        (-0.3, 1.5, (0.8, 1.9), "no part of this lead is shown to lie elsewhere (share 150.0 %"),
        (0.3, 0.5, (None, None), "): 50.0 % of this gap lies in AR hits, 5.0 times their share of the tokens."),
    ],
)
def test_a_share_below_0_or_above_100_percent_is_put_in_words(comparison, delta, share, bounds, answer):
    row = {
        "delta_nll": delta,
        "gap_share": share,
        "enrichment": 10 * share,
        "ci_low": bounds[0],
        "ci_high": bounds[1],
        "note": "",
        "void": False,
    }
    assert answer in answer_of(of_models(comparison, {"m": row}))


@pytest.mark.ci
def test_what_the_answer_says_of_models_of_which_the_truth_is_known(home, tmp_path, short_text):
    """A gap that is all cache, one of knowledge alone, and one of rare bigrams alone, which lies in AR hits without any recall."""
    recallkit.slice(short_text(48, 350), out=tmp_path, counts=recallkit.zoo_counts(), max_count=5, seq_len=256)
    compared = {"cache": ("bigram_cache", "presence", "unigram_cache"), "knowledge": ("bigram", "worse", "worse_at_rare")}
    hits = {}
    for folder, truth in compared.items():
        tables = recallkit.gap([f"{name}={PATH}:{name}" for name in truth], slices=tmp_path, out=tmp_path / folder)
        hits[folder] = {row["model"]: row for row in tables.gap.filter(slice="ar_hit", source="ALL").to_dicts()}
    said = {name: answer_of(recallkit.read_comparison(tmp_path / name, slices=tmp_path)) for name in compared}
    of = hits["cache"]
    assert "Nearest to bigram_cache is presence (perplexity " in said["cache"]
    assert f": {100 * of['presence']['gap_share']:.1f} % (95 % interval" in said["cache"], "where the gap lies; presence recalls nothing"
    assert abs(of["unigram_cache"]["gap_share"]) < 0.02 < of["presence"]["gap_share"], "the same cache: nothing of that gap is in AR hits"
    of = hits["knowledge"]
    assert of["worse_at_rare"]["gap_share"] > 3 * of["worse"]["gap_share"], "and neither recalls"
    assert "worse_at_rare (perplexity " in said["knowledge"]
    assert f": {100 * of['worse_at_rare']['gap_share']:.1f} % (95 % interval" in said["knowledge"]


@pytest.mark.parametrize(
    ("shares", "headline"),
    [
        ((0.2, 0.5, 0.3), "20.0 to 50.0 % of what 3 models lose to ref lies in the 10.00 % of tokens that are AR hits: 2.0 to 5.0 times"),
        ((0.2, 1.2, 0.3), "20.0 to 30.0 % of what 2 of 3 models lose to ref lies in"),
        ((0.2, None, -0.1), ""),
        ((0.2, 0.04, 0.3), "20.0 to 30.0 % of what 2 of 3 models lose to ref lies in"),
    ],
)
def test_the_headline_has_the_range_of_the_shares_that_mean_something(comparison, shares, headline):
    rows = {
        name: {"delta_nll": 0.3, "gap_share": share, "ci_low": share and share - 0.05, "share_of_tokens": 0.1, "note": "", "void": False}
        for name, share in zip("abc", shares, strict=True)
    }
    found = in_answers.headline("ref", list(rows), of_models(comparison, rows).totals)
    assert found.startswith(headline) if headline else found == ""
    rows["b"]["delta_nll"] = -0.3
    assert "what 3 models" not in in_answers.headline("ref", list(rows), of_models(comparison, rows).totals), "a lead is no loss"


def test_a_comparison_without_ar_hits_has_a_page(comparison, tmp_path):
    corpus = Corpus(tmp_path, [(s, p, "web", 1 if p > 1 else None, 9) for s in (0, 1) for p in (1, 2)], max_count=5)
    corpus.score("reference", [1, 2, 1, 2])
    corpus.score("model", [2, 2, 3, 2])
    paths = [tmp_path / "scores" / f"{name}.parquet" for name in ("reference", "model")]
    put(attribute_gap(corpus.path, paths[0], paths[1:]), tmp_path / "a" / "b", comparison, models=["model"])
    page = Page.read(write_report(tmp_path / "a" / "b").page)
    assert page.texts("p")[0].startswith("model (perplexity ")
    assert f"means nothing ({NO_HITS})" in page.texts("p")[0]
    assert "excerpts" not in [attributes.get("id") for _, attributes, _, _ in page.elements]


def test_where_the_text_has_no_ar_hits_the_page_does_not_say_how_to_show_it(small_slices, tmp_path):
    (tmp_path / "text.txt").write_text("memory window layer head scan gate")
    slices = tmp_path / "slices"
    recallkit.slice(tmp_path / "text.txt", out=slices, counts=small_slices.parent / "counts.duckdb", max_count=20, seq_len=64)
    recallkit.gap(REFERENCE, MODELS, slices=slices)
    told = [text for text in Page.read(write_report(slices).page).texts("p") if "The text is not shown here" in text]
    assert told == ["The text is not shown here: no excerpt contains AR hits, or none fits on a page."]
    with pytest.raises(UserError, match=r"no excerpt contains AR hits.*; leave out --slices, --sequence, --document"):
        write_report(slices, options=ReportOptions(slices=slices))


def test_what_a_column_says_in_every_row_is_said_once():
    rows = [["a", "12", "x", "", "2 %"], ["b", "12", "y", "–", "2 %"], ["c", "12", "x", "–", ""], ["d", "12", "x", "–", "2 %"]]
    page = Page(markup.titled_table(Table("T", ["model", "to\nkens", "kind", "note", "share"], rows, "Before.")))
    assert page.tables()["T"] == [["model", "kind"], ["a", "x"], ["b", "y"], ["c", "x"], ["d", "x"]]
    assert page.texts("p") == ["Before. To kens: 12 in every row. Share: 2 % in every row."]
    two = Page(markup.titled_table(Table("T", ["model", "tokens"], [row[:2] for row in rows[:2]])))
    assert two.tables()["T"][0] == ["model", "tokens"], "two rows may be equal by chance"


# ------------------------------------------------------------------------------------------------ data is text alone


@pytest.fixture(scope="module")
def evil(comparison, tmp_path_factory) -> Page:
    """The page of names that are markup, one that is long, and a source called ALL; without its slices."""
    names = {"control:bigram": EVIL, "control:unigram": "models/" * 30 + "mamba", "books": "<i>books</i>", "letters": "ALL"}
    names[REFERENCE] = "ref\" & 'x'"
    slices = {**comparison.manifest["slices"]}
    slices["tokenizer"] = {**slices["tokenizer"], "name": "</dd><img>"}
    facts = {
        "models": [names[model] for model in MODELS],
        "reference": names[REFERENCE],
        "slices": slices,
        "inexact": {EVIL: {"all": 0.25}},
    }
    folder = put(renamed(comparison.tables, names), tmp_path_factory.mktemp("evil") / "deep", comparison, **facts)
    return Page.read(write_report(folder).page)


def test_names_are_text(evil, page):
    shown = EVIL.replace("\x1b", r"\x1b")
    assert [row[0] for row in evil.tables()[CLASSES][2:]] == [shown, "models/" * 30 + "mamba"]
    titles = [attributes["title"] for name, attributes, _, _ in evil.elements if name == "th" and "title" in attributes]
    assert titles == ["ref\" & 'x'", shown, "models/" * 30 + "mamba"], "whole, where the label is short"
    assert {"img", "i"}.isdisjoint(evil.names())
    assert [found.get("type") for name, found, _, _ in evil.elements if name == "script" and found["type"] != DATA] == SCRIPTS
    assert any(fact.endswith(f"25.0 % for {shown}") for fact in evil.texts("dd"))
    assert "\x1b" not in evil.source
    assert len(evil.texts("b")) == len(page.texts("b")), "a name became an element"
    assert [row[2:4] for row in evil.models()] == [row[2:4] for row in page.models()], "a source called ALL was taken for the total"
    assert any(
        "the slices of this comparison were not found" in text and "recallkit report DIR --slices DIR" in text for text in evil.texts("p")
    )


# ------------------------------------------------------------------------------------------------- one file, for everyone


def test_nothing_is_fetched_and_only_the_pages_own_script_runs(page, evil):
    for shown in (page, evil):
        charts = shown.texts("script")[-1]  # nothing of Vega's that could fetch something can: tests/report/test_browser.py
        source = shown.source.replace(charts, "").replace("" if shown is evil else shown.with_id("excerpts"), "")
        for word in ("http:", "https:", "//www", "@import", "<link", "<iframe", "javascript:"):
            assert word not in source, word
        urls = re.findall(r"url\(([^)]*)\)", source)
        assert all(url.startswith("#") for url in urls)
        for name, attributes, _, _ in shown.elements:
            assert not {"src", "srcset", "action", "style"} & set(attributes), (name, attributes)
            assert not any(key.startswith("on") for key in attributes)
            assert attributes.get("href", "#").startswith("#")
        [policy] = [a["content"] for n, a, _, _ in shown.elements if n == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        for kind, contents in (("style", shown.texts("style")), ("script", shown.texts("script")[-2:])):
            digests = [base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in contents]
            assert " ".join([f"{kind}-src", *(f"'sha256-{digest}'" for digest in digests)]) + ";" in policy
        ids = [attributes["id"] for _, attributes, _, _ in shown.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
        assert {attributes["href"][1:] for name, attributes, _, _ in shown.elements if name == "a"} <= set(ids)
    assert all(found.get("scope") in ("row", "col") for name, found, _, _ in page.elements if name == "th")


# ------------------------------------------------------------------------------------------------------------- writing


def test_mistakes_are_one_line_with_a_remedy(comparison, words, tmp_path):
    with pytest.raises(UserError, match="no results here, nor in the folders within; make some with `recallkit gap REFERENCE"):
        write_report(tmp_path)
    with pytest.raises(UserError, match="no such directory"):
        write_report(tmp_path / "nowhere")
    assert not list(tmp_path.iterdir()), "nothing is made where nothing can be said"

    folder = put(comparison.tables, tmp_path / "a" / "b", comparison)
    (folder / "report.html").write_text("<!doctype html><p>mine")
    with pytest.raises(UserError, match="did not write"):
        write_report(folder)
    assert (folder / "report.html").read_text() == "<!doctype html><p>mine"
    (folder / "report.html").unlink()
    for options in (ReportOptions(sequence=[1]), ReportOptions(document=[1])):
        with pytest.raises(UserError, match="the slices of this comparison were not found; give --slices DIR"):
            write_report(folder, options=options)
    with pytest.raises(UserError, match="no such sequence"):
        write_report(folder, options=ReportOptions(slices=words, sequence=[10**7]))

    put(comparison.tables, folder, comparison, models=["others"])
    (folder / "by_count.parquet").write_bytes((comparison.folder / "by_count.parquet").read_bytes())
    with pytest.raises(UserError, match="changed since it was written"):
        write_report(folder)
    assert not (folder / "report.html").exists()


def test_the_same_tables_give_the_same_bytes_and_the_page_is_replaced_whole(words, written, tmp_path):
    folder = shutil.copytree(words, tmp_path / "elsewhere")
    again = write_report(folder, tmp_path / "new" / "page.html")
    assert again.page.read_bytes() == written.page.read_bytes()
    assert again.num_bytes == len(written.page.read_bytes()) < 3_000_000
    assert written.page.parent == read_comparison(words).folder
    os.link(again.page, tmp_path / "before.html")
    asked = Page.read(write_report(folder, again.page, ReportOptions(slices=words, sequence=[7])).page)
    assert [excerpt["sequence"] for excerpt in asked.token_data()["excerpts"] if excerpt["asked"]] == [7]
    assert not again.page.samefile(tmp_path / "before.html"), "written into the file that a reader may have open"
    assert not list(again.page.parent.glob(".*"))


def test_vega_is_put_together_once(words, tmp_path, monkeypatch):
    monkeypatch.setenv("RECALLKIT_HOME", str(tmp_path / "home"))

    def page(name: str) -> str:
        markup._charts_script.cache_clear()
        return artifacts.digest_bytes(write_report(words, tmp_path / name).page.read_bytes())

    whole = page("first.html")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "vl_convert", None)
        assert page("second.html") == whole, "from the cache folder"
    [kept] = (tmp_path / "home").glob("charts-*.json")
    kept.write_text(kept.read_text(encoding="utf-8").replace("vega", "evil", 1), encoding="utf-8")
    assert page("third.html") == whole, "a damaged one is made anew"


def test_a_page_is_made_again_only_of_other_files_or_options_or_where_it_was_edited(words, tmp_path):
    folder, page = Path(shutil.copytree(words, tmp_path / "results")), tmp_path / "page.html"
    made, written_at = write_report(folder, page), page.stat().st_mtime_ns
    assert write_report(folder, page) == made
    assert page.stat().st_mtime_ns == written_at, "left as it is"
    whole = page.read_bytes()
    page.write_bytes(whole.replace(b"</h1>", b"!</h1>", 1))
    write_report(folder, page)
    is_whole = page.read_bytes() == whole  # a megabyte, of which pytest would show the difference
    assert is_whole
    write_report(folder, page, ReportOptions(sequence=[7]))
    assert [excerpt["sequence"] for excerpt in Page.read(page).token_data()["excerpts"] if excerpt["asked"]] == [7]
    comparison = read_comparison(folder)
    put(comparison.tables, comparison.folder, comparison, cluster="source")
    write_report(folder, page)
    is_other = page.read_bytes() != whole
    assert is_other, "intervals are of sources, which the page says"
