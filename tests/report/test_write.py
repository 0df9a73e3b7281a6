"""The page as a whole: its figures are the tables', data in it is text, it fetches nothing, and it
is written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import recallkit
from recallkit.attribution.charts import figures as draw
from recallkit.attribution.comparison import Comparison, read_comparison
from recallkit.attribution.tables import GapTables, attribute_gap
from recallkit.attribution.view import ComparisonView
from recallkit.display.charts import specification, styles_of
from recallkit.display.tables import Table
from recallkit.errors import UserError
from recallkit.measure.shares import NO_GAP, NO_HITS
from recallkit.report import markup
from recallkit.report.write import ReportOptions, write_report
from recallkit.storage import hashing, parquet_files
from tests.attribution.corpus import Corpus
from tests.planted import gap_manifest
from tests.report.conftest import MODELS, REFERENCE
from tests.report.reading import Page

EVIL = "<script>alert('1')</script>&\"\x1b[31m <b>"
CLASSES = (
    "Where the gap lies: tokens by what the context already contains and by the bigram's "
    "training count"
)
DATA, SCRIPTS = "application/json", ["text/javascript", "module"]


@pytest.fixture(scope="module")
def written(words):
    return write_report(words)


@pytest.fixture(scope="module")
def page(written) -> Page:
    return Page.read(written.page)


def renamed(tables: GapTables, names: dict[str, str]) -> GapTables:
    """The tables with other names of models, and of sources."""
    import polars as pl

    columns = ("reference", "model", "source")
    frames = tables.frames()
    return GapTables(
        **{
            key: f.with_columns(pl.col(c).replace(names) for c in columns if c in f.columns)
            for key, f in frames.items()
        }
    )


def put(tables: GapTables, folder: Path, like: Comparison, **facts: object) -> Path:
    """The tables in a folder, with the manifest of another comparison but for `facts`."""
    names = list(dict.fromkeys([*tables.gap["reference"], *tables.gap["model"]]))
    manifest = dict(like.manifest)
    if {*names} != {*manifest["scores"]}:
        manifest |= gap_manifest(names[0], names[1:], slices=manifest["slices"])
    parquet_files.write_frames(tables, folder, {**manifest, **facts})
    return folder


# ------------------------------------------------------------------------------------- what it says


def percent(share: float) -> str:
    return f"{100 * share:.{0 if abs(share) >= 0.0995 else 1}f} %"


def within(row: dict[str, float], name: str) -> str:
    return (
        f"{percent(row[name])}({100 * row[f'{name}_ci_low']:z.0f} to "
        f"{100 * row[f'{name}_ci_high']:z.0f})"
    )


def test_the_page_begins_with_a_row_per_model(comparison, page):
    totals = comparison.totals
    assert page.texts("h1") == [
        f"How much of {REFERENCE}'s recall is retained, and where does the gap lie?"
    ]
    heads, *rows = page.models()
    scale = heads.pop(3).removeprefix("first occurrence → AR hit")
    assert heads == [
        *("model", "perplexity", "gap, nats per token"),
        *("retained", "share of the gap in AR hits", "in all repeated bigrams"),
    ]
    assert [row[0] for row in rows] == [
        REFERENCE,
        *sorted(MODELS, key=lambda model: totals[model, "all"]["ppl_model"]),
    ]
    [end] = [end for end in (1, 2, 5, 10, 20, 50, 100) if scale == f"0{end / 2:g}{end} %"]
    lines = [
        attributes for name, attributes, _, _ in page.elements if attributes.get("class") == "gain"
    ]
    for place, (name, ppl, gap, line, *of_gap) in enumerate(rows):
        side, model = ("model", name) if place else ("reference", MODELS[0])
        every, hits, repeated = (totals[model, slice_] for slice_ in ("all", "ar_hit", "repeated"))
        assert ppl == f"{every[f'ppl_{side}']:,.2f}"
        assert line == (
            f"{percent(hits[f'first_p_{side}']).removesuffix(' %')} → {percent(hits[f'p_{side}'])}"
        )
        drawn = [float(lines[place][at].rstrip("%")) * end / 100 for at in ("x1", "x2")]
        assert drawn == pytest.approx(
            [100 * hits[f"first_p_{side}"], 100 * hits[f"p_{side}"]], abs=0.01
        )
        if not place:
            assert (gap, of_gap) == ("reference", ["", "", ""])
        else:
            assert gap == f"{every['delta_nll']:z.3f}"
            assert of_gap == [
                within(hits, "retained"),
                within(hits, "gap_share"),
                percent(repeated["gap_share"]),
            ]
    links = [
        attributes["href"]
        for name, attributes, _, parent in page.elements
        if (name, parent) == ("a", "th")
    ]
    assert links[:2] == ["#losses-1", "#losses-2"]
    assert page.texts("p")[0] == ComparisonView(comparison).answer()


def test_the_legend_says_what_the_columns_are(comparison, page):
    legend = dict(zip(page.texts("dt")[:5], page.texts("dd")[:5], strict=True))
    every, hits, repeated = (
        comparison.totals[MODELS[0], slice_] for slice_ in ("all", "ar_hit", "repeated")
    )
    assert (
        f"at most 9 times in training; {100 * hits['share_of_tokens']:.2f} % of "
        f"{every['tokens']:,} tokens"
    ) in legend["AR hit"]
    assert (
        f"repeated bigrams, {100 * repeated['share_of_tokens']:.0f} % of the tokens"
        in legend["Share of the gap"]
    )
    assert f"a bootstrap over {every['clusters']} documents" in legend["In brackets"]
    assert not any(
        "no meaningful share" in text or "is unknown" in text for text in page.texts("p")
    ), "all figures are there"


def test_every_table_has_the_models_in_the_order_of_the_first_rows(
    words, comparison, page, tmp_path
):
    recallkit.gap(REFERENCE, comparison.models[::-1], slices=words, out=tmp_path)
    other = Page.read(write_report(tmp_path, options=ReportOptions(slices=words)).page)
    order = [row[0] for row in page.models()[1:]]
    assert order == [row[0] for row in other.models()[1:]] == [REFERENCE, *comparison.models]
    for title, (_, *rows) in [*page.tables().items(), *other.tables().items()]:
        shown = [row[0] for row in rows if row[0] in order]
        assert shown == [model for model in order if model in shown], title
    assert [
        row[0]
        for row in page.tables()["AR hits by source: retained recall / share of the gap, %"][2:]
    ] == comparison.models


def test_causal_recall_is_beside_the_recall_gain(words, tmp_path):
    """Of an intervention in the same models and labels; not of another reference."""
    title = "Recall gain beside causal recall"
    recallkit.intervene([REFERENCE, *MODELS], slices=words, samples=40, out=tmp_path / "same")
    page = Page.read(
        write_report(words, tmp_path / "page.html", ReportOptions(more=tmp_path / "same")).page
    )
    assert [row[0] for row in page.tables()[title][1:]] == [row[0] for row in page.models()[1:]]
    recallkit.intervene(MODELS, slices=words, samples=40, out=tmp_path / "other")
    page = Page.read(
        write_report(words, tmp_path / "page.html", ReportOptions(more=tmp_path / "other")).page
    )
    assert title not in page.tables()


def test_documents_add_up_to_the_gap(comparison, page):
    for model in comparison.models:
        whole = comparison.totals[model, "all"]
        [title] = [
            title
            for title in page.tables()
            if title.startswith("The documents") and title.endswith(f" of {model}")
        ]
        _, *rows = page.tables()[title]
        figures = [[float(cell.split()[0].replace(",", "")) for cell in row[-5:]] for row in rows]
        gap = whole["delta_nll"] * whole["tokens"]
        tokens, hits, on_hits, on_all, share = map(sum, zip(*figures, strict=True))
        assert (tokens, hits) == (whole["tokens"], comparison.totals[model, "ar_hit"]["tokens"])
        assert on_all == pytest.approx(gap, abs=0.05 * len(rows))
        assert on_hits == pytest.approx(
            comparison.totals[model, "ar_hit"]["delta_nll"] * hits, abs=0.05 * len(rows)
        )
        assert share == pytest.approx(100, abs=0.05 * len(rows))
        assert ("lead" if gap < 0 else "gap") in title
        sizes = [abs(row[3]) for row in figures[:-1]]
        assert len(rows) == 11
        assert sizes == sorted(sizes, reverse=True)
        assert rows[-1][0].startswith("the ")


def test_a_model_like_the_reference_retains_all_of_its_recall(words, tmp_path):
    recallkit.gap(REFERENCE, [f"same={REFERENCE}"], slices=words, out=tmp_path)
    page = Page.read(write_report(tmp_path, options=ReportOptions(slices=words)).page)
    assert f"same is not behind {REFERENCE} on any AR hit." in page.texts("p")
    assert f"same predicts every document exactly as {REFERENCE} does." in page.texts("p")
    _, _, gap, _, *of_gap = page.models()[2]
    assert (gap, of_gap) == ("0.000", ["100 %(100 to 100)", "–", "–"])
    assert f"same: no meaningful share of the gap: {NO_GAP}" in page.texts("p")


def of_corpus(folder: Path, like: Comparison, tokens: list[tuple], at_hit: float) -> Page:
    """The page of two models of these tokens, of which one is ahead; the reference's NLL of AR hits
    is `at_hit`."""
    corpus = Corpus(folder, tokens, max_count=9)
    hits = [row["ar_hit"] for row in corpus.rows]
    paths = [
        corpus.score("reference", [at_hit if hit else 2.0 for hit in hits]),
        corpus.score("model", [1.5 + row["position"] / 10 for row in corpus.rows]),
    ]
    put(attribute_gap(corpus.path, paths[0], paths[1:]), folder / "a" / "b", like)
    return Page.read(write_report(folder / "a" / "b").page)


@pytest.mark.parametrize(
    ("sequences", "hit", "at_hit", "why"),
    [
        (range(2), lambda sequence: False, 1.0, NO_HITS),
        (
            range(9),
            lambda sequence: sequence == 0,
            1.0,
            "AR hits come from effectively 1.0 documents; 5 are needed",
        ),
        (
            range(9),
            lambda sequence: True,
            2.0,
            "the recall gain of reference is not shown to exceed 0.1 points",
        ),
        (range(9), lambda sequence: True, 1.0, None),
    ],
)
def test_where_it_is_not_known_what_is_retained_the_page_says_why(
    comparison,
    tmp_path,
    sequences: range,
    hit: Callable[[int], bool],
    at_hit: float,
    why: str | None,
):
    tokens = [
        (s, p, "web", 1 if p == 2 else None, 1 if hit(s) else 20) for s in sequences for p in (1, 2)
    ]
    page = of_corpus(tmp_path, comparison, tokens, at_hit)
    assert [text for text in page.texts("p") if "is unknown" in text] == (
        [f"What is retained is unknown: {why}."] if why else []
    )
    line, retained = page.models()[2][3:5]
    assert (retained == "–") == bool(why)
    assert (line == "–") == (why == NO_HITS)
    assert "excerpts" not in [attributes.get("id") for _, attributes, _, _ in page.elements]


def test_the_method_has_the_facts_of_the_manifest(comparison, page):
    facts = comparison.manifest["slices"]
    facts_shown = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert (
        f"{facts['num_rows']:,} predicted tokens in {facts['num_sequences']:,} sequences of up "
        "to 64"
    ) in facts_shown["Text"]
    assert facts_shown["Sources (tokens)"].startswith("books ")
    assert "largest training count 9 (" in facts_shown["AR hits"]
    assert facts["counts"]["id"] in facts_shown["Training counts"]
    assert facts["tokenizer"]["digest"] in facts_shown["Tokenizer"]
    assert str(comparison.folder.parent) not in page.source, "the page tells where it was made"


def test_every_picture_and_the_text_are_on_the_page(comparison, page, written):
    # the first screen has it
    drawn = [figure for figure in draw(comparison) if figure.name != "recall"]
    assert len(drawn) >= 4
    ordered = sorted(drawn, key=lambda figure: figure.name != "by_count")
    assert page.texts("figcaption") == [figure.caption for figure in ordered], (
        "Zoology's figure 1 comes first"
    )
    assert [text for text in page.texts("h3") if text in {figure.title for figure in drawn}] == [
        figure.title for figure in ordered
    ]
    styles = styles_of(drawn)
    for figure in drawn:
        assert json.loads(page.with_id(f"specification-{figure.name}")) == specification(
            figure, styles, on_page=True
        )
    data = page.token_data()
    assert data["models"] == [REFERENCE, *comparison.models]
    assert len(data["excerpts"]) == written.excerpts > 5
    of = comparison.manifest["slices"]["num_sequences"]
    assert any(
        text.startswith(f"This page has {written.excerpts} of {of} sequences:")
        for text in page.texts("p")
    )


def test_where_the_text_has_no_ar_hits_the_page_does_not_say_how_to_show_it(small_slices, tmp_path):
    (tmp_path / "text.txt").write_text("memory window layer head scan gate")
    slices = tmp_path / "slices"
    recallkit.slice(
        tmp_path / "text.txt",
        out=slices,
        counts=small_slices.parent / "counts.duckdb",
        max_count=20,
        seq_len=64,
    )
    recallkit.gap(REFERENCE, MODELS, slices=slices)
    told = [
        text
        for text in Page.read(write_report(slices).page).texts("p")
        if "The text is not shown here" in text
    ]
    assert told == [
        "The text is not shown here: no excerpt contains AR hits, or none fits on a page."
    ]
    with pytest.raises(
        UserError,
        match=r"no excerpt contains AR hits.*; leave out --slices, --sequence, --document",
    ):
        write_report(slices, options=ReportOptions(slices=slices))


def test_what_a_column_says_in_every_row_is_said_once():
    rows = [
        ["a", "12", "x", "", "2 %"],
        ["b", "12", "y", "–", "2 %"],
        ["c", "12", "x", "–", ""],
        ["d", "12", "x", "–", "2 %"],
    ]
    page = Page(
        markup.part(
            "titled_table",
            Table("T", ["model", "to\nkens", "kind", "note", "share"], rows, "Before."),
        )
    )
    assert page.tables()["T"] == [["model", "kind"], ["a", "x"], ["b", "y"], ["c", "x"], ["d", "x"]]
    assert page.texts("p") == ["Before. To kens: 12 in every row. Share: 2 % in every row."]
    two = Page(
        markup.part("titled_table", Table("T", ["model", "tokens"], [row[:2] for row in rows[:2]]))
    )
    assert two.tables()["T"][0] == ["model", "tokens"], "two rows may be equal by chance"


# ------------------------------------------------------------------------------- data is text alone


@pytest.fixture(scope="module")
def evil(comparison, tmp_path_factory) -> Page:
    """The page of names that are markup, one that is long, and a source called ALL; without its
    slices."""
    names = {
        "control:bigram": EVIL,
        "control:unigram": "models/" * 30 + "mamba",
        "books": "<i>books</i>",
        "letters": "ALL",
    }
    names[REFERENCE] = "ref\" & 'x'"
    slices = {**comparison.manifest["slices"]}
    slices["tokenizer"] = {**slices["tokenizer"], "name": "</dd><img>"}
    facts = {
        "slices": slices,
        "prefixes": {EVIL: "<bos>", names[REFERENCE]: ""},
        "inexact": {EVIL: {"all": 0.25}},
    }
    folder = put(
        renamed(comparison.tables, names),
        tmp_path_factory.mktemp("evil") / "deep",
        comparison,
        **facts,
    )
    return Page.read(write_report(folder).page)


def test_names_are_text_and_models_of_other_tokenizers_are_compared_in_bits(evil, comparison, page):
    shown = EVIL.replace("\x1b", r"\x1b")
    assert [row[0] for row in evil.tables()[CLASSES][2:]] == [shown, "models/" * 30 + "mamba"]
    titles = [
        attributes["title"]
        for name, attributes, _, _ in evil.elements
        if name == "th" and "title" in attributes
    ]
    assert titles == ["ref\" & 'x'", shown, "models/" * 30 + "mamba"], (
        "whole, where the label is short"
    )
    assert {"img", "i"}.isdisjoint(evil.names())
    assert [
        found.get("type")
        for name, found, _, _ in evil.elements
        if name == "script" and found["type"] != DATA
    ] == SCRIPTS
    assert any(fact.endswith(f"25.0 % for {shown}") for fact in evil.texts("dd"))
    assert (
        f"Read before every sequence: {shown} <bos>, ref\" & 'x' nothing (bos= makes them equal)"
        in evil.texts("p")
    )
    assert f"<bos> by {shown}" in evil.texts("dd")
    assert "\x1b" not in evil.source
    assert len(evil.texts("b")) == len(page.texts("b")), "a name became an element"
    bits = [comparison.totals[MODELS[0], "all"][f"bpb_{side}"] for side in ("reference", "model")]
    assert [row[1] for row in evil.models()[:3]] == [
        "bits per byte",
        *(f"{figure:.3f}" for figure in bits),
    ]
    assert [row[2:4] for row in evil.models()] == [row[2:4] for row in page.models()], (
        "a source called ALL was taken for the total"
    )
    assert any(
        "the slices of this comparison were not found" in text
        and "recallkit report DIR --slices DIR" in text
        for text in evil.texts("p")
    )


# --------------------------------------------------------------------------- one file, for everyone


def test_nothing_is_fetched_and_only_the_pages_own_script_runs(page, evil):
    for shown in (page, evil):
        # nothing of Vega's that could fetch something can: tests/report/test_browser.py
        charts = shown.texts("script")[-1]
        source = shown.source.replace(charts, "").replace(
            "" if shown is evil else shown.with_id("excerpts"), ""
        )
        for word in ("http:", "https:", "//www", "@import", "<link", "<iframe", "javascript:"):
            assert word not in source, word
        urls = re.findall(r"url\(([^)]*)\)", source)
        assert all(url.startswith("#") for url in urls)
        for name, attributes, _, _ in shown.elements:
            assert not {"src", "srcset", "action", "style"} & set(attributes), (name, attributes)
            assert not any(key.startswith("on") for key in attributes)
            assert attributes.get("href", "#").startswith("#")
        [policy] = [
            a["content"]
            for n, a, _, _ in shown.elements
            if n == "meta" and a.get("http-equiv") == "Content-Security-Policy"
        ]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        for kind, contents in (
            ("style", shown.texts("style")),
            ("script", shown.texts("script")[-2:]),
        ):
            digests = [
                base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
                for content in contents
            ]
            assert (
                " ".join([f"{kind}-src", *(f"'sha256-{digest}'" for digest in digests)]) + ";"
                in policy
            )
        ids = [attributes["id"] for _, attributes, _, _ in shown.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
        assert {
            attributes["href"][1:] for name, attributes, _, _ in shown.elements if name == "a"
        } <= set(ids)
    assert all(
        found.get("scope") in ("row", "col") for name, found, _, _ in page.elements if name == "th"
    )


# ------------------------------------------------------------------------------------------ writing


def test_mistakes_are_one_line_with_a_remedy(comparison, words, tmp_path):
    with pytest.raises(
        UserError,
        match="no results here, nor in the folders within; make some with `recallkit gap REFERENCE",
    ):
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
        with pytest.raises(
            UserError, match="the slices of this comparison were not found; give --slices DIR"
        ):
            write_report(folder, options=options)
    with pytest.raises(UserError, match="no such sequence"):
        write_report(folder, options=ReportOptions(slices=words, sequence=[10**7]))

    put(comparison.tables, folder, comparison, cluster="source")
    (folder / "by_count.parquet").write_bytes((comparison.folder / "by_count.parquet").read_bytes())
    with pytest.raises(UserError, match="changed since it was written"):
        write_report(folder)
    assert not (folder / "report.html").exists()


def test_the_same_tables_give_the_same_bytes_and_the_page_is_replaced_whole(
    words, written, tmp_path
):
    folder = shutil.copytree(words, tmp_path / "elsewhere")
    again = write_report(folder, tmp_path / "new" / "page.html")
    assert again.page.read_bytes() == written.page.read_bytes()
    assert again.num_bytes == len(written.page.read_bytes()) < 3_000_000
    assert written.page.parent == read_comparison(words).folder
    os.link(again.page, tmp_path / "before.html")
    asked = Page.read(
        write_report(folder, again.page, ReportOptions(slices=words, sequence=[7])).page
    )
    assert [
        excerpt["sequence"] for excerpt in asked.token_data()["excerpts"] if excerpt["asked"]
    ] == [7]
    assert not again.page.samefile(tmp_path / "before.html"), (
        "written into the file that a reader may have open"
    )
    assert not list(again.page.parent.glob(".*"))


def test_vega_is_put_together_once(words, tmp_path, monkeypatch):
    monkeypatch.setenv("RECALLKIT_HOME", str(tmp_path / "home"))

    def page(name: str) -> str:
        markup._charts_script.cache_clear()
        return hashing.digest_bytes(write_report(words, tmp_path / name).page.read_bytes())

    whole = page("first.html")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "vl_convert", None)
        assert page("second.html") == whole, "from the cache folder"
    [kept] = (tmp_path / "home").glob("charts-*.json")
    kept.write_text(kept.read_text(encoding="utf-8").replace("vega", "evil", 1), encoding="utf-8")
    assert page("third.html") == whole, "a damaged one is made anew"


def test_a_page_is_made_again_only_of_other_files_or_options_and_never_where_it_was_edited(
    words, tmp_path
):
    folder, page = Path(shutil.copytree(words, tmp_path / "results")), tmp_path / "page.html"
    made, written_at = write_report(folder, page), page.stat().st_mtime_ns
    assert write_report(folder, page) == made
    assert page.stat().st_mtime_ns == written_at, "left as it is"
    whole = page.read_bytes()
    edited = whole.replace(b"</h1>", b"!</h1>", 1)
    page.write_bytes(edited)
    with pytest.raises(UserError, match=r"changed since recallkit wrote it.*move this file away"):
        write_report(folder, page)
    is_kept = page.read_bytes() == edited  # a megabyte, of which pytest would show the difference
    assert is_kept
    page.unlink()
    write_report(folder, page, ReportOptions(sequence=[7]))
    assert [
        excerpt["sequence"]
        for excerpt in Page.read(page).token_data()["excerpts"]
        if excerpt["asked"]
    ] == [7]
    comparison = read_comparison(folder)
    put(comparison.tables, comparison.folder, comparison, cluster="source")
    write_report(folder, page)
    is_other = page.read_bytes() != whole
    assert is_other, "intervals are of sources, which the page says"
