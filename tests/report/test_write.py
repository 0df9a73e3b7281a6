"""The page as a whole: its figures are the tables', data in it is text, it fetches nothing, and it is written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from recallkit.attribution import charts
from recallkit.attribution.comparison import Comparison, read_comparison
from recallkit.attribution.tables import EMPTY_SLICE, GapTables, attribute_gap
from recallkit.display.tables import Table
from recallkit.errors import UserError
from recallkit.measure.shares import NO_GAP, NOT_TOLD_FROM_ZERO
from recallkit.report import excerpts, sections
from recallkit.report import words as told
from recallkit.report.write import ReportOptions, write_report
from recallkit.scoring import score_path
from recallkit.storage import artifacts
from tests.attribution.test_tables import Corpus
from tests.report.conftest import HOSTILE, MODELS, REFERENCE
from tests.report.reading import Page

EVIL = "<script>alert('1')</script>&\"\x1b[31m <b>"
TABLE = "Perplexities and shares of the gap"


@pytest.fixture(scope="module")
def written(words):
    return write_report(words)


@pytest.fixture(scope="module")
def page(written) -> Page:
    return Page.read(written.page)


def opening(comparison: Comparison) -> Page:
    """What stands at the top of the page, which no picture is drawn for."""
    return Page(sections.results(comparison, comparison.totals))


def renamed(tables: GapTables, names: dict[str, str]) -> GapTables:
    """The tables with other names of models, and of sources."""
    columns = ("reference", "model", "source")
    frames = tables.frames()
    return GapTables(**{key: f.with_columns(pl.col(c).replace(names) for c in columns if c in f.columns) for key, f in frames.items()})


def changed_scores(slices: Path, folder: Path, name: str, change) -> Path:
    """Scores of the reference under another name, its NLLs changed."""
    path, out = score_path(slices, REFERENCE), folder / f"{name}.parquet"
    table = pq.read_table(path)
    nlls = pa.array(change(np.asarray(table["nll"])), table.schema.field("nll").type)
    table = table.set_column(table.schema.get_field_index("nll"), "nll", nlls)
    artifacts.write_parquet(out, [table], table.schema, {**artifacts.read_manifest(path), "model": name})
    return out


def put(tables: GapTables, folder: Path, like: Comparison, **facts: object) -> Path:
    """The tables in a folder, with the manifest of another comparison but for `facts`."""
    artifacts.write_frames(tables, folder, {**like.manifest, **facts})
    return folder


# ------------------------------------------------------------------------------------------------------- what it says


def test_the_table_holds_the_figures_of_the_gap(comparison, page):
    gap = comparison.tables.gap.filter(pl.col("source") == "ALL")
    header, first, *rows = page.tables()[TABLE]
    cells = {(r["model"], r["slice"]): r for r in gap.iter_rows(named=True)}
    kinds = ("all", "ar_hit", "other")
    assert header[4:] == ["AR share of the gap", "95 % interval", "share of the tokens", "enrichment", "share, clipped"]
    assert first == [REFERENCE, *(f"{cells[MODELS[0], kind]['ppl_reference']:,.2f}" for kind in kinds), "reference"]
    assert [row[0] for row in rows] == sorted(MODELS, key=lambda model: cells[model, "all"]["ppl_model"])
    for model, *figures in rows:
        hits = cells[model, "ar_hit"]
        shares = [f"{100 * hits['gap_share']:.1f} %", f"{100 * hits['ci_low']:.1f} to {100 * hits['ci_high']:.1f} %"]
        assert figures[:5] == [f"{cells[model, kind]['ppl_model']:,.2f}" for kind in kinds] + shares
        assert figures[5:7] == [f"{100 * hits['share_of_tokens']:.2f} %", f"{hits['gap_share'] / hits['share_of_tokens']:.1f}"]
        clipped = f"{100 * hits['gap_share_clipped']:.1f} %"
        assert figures[7] == ("" if clipped == shares[0] else clipped), "only where it differs"


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
            assert re.search(rf"none of this (gap|lead) lies in AR hits; there it .* \(share {share}, 95 % interval {interval}\)\.", answer)


def test_the_method_says_what_makes_it_again(comparison, page):
    facts = comparison.manifest["slices"]
    facts_told = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert f"{facts['num_rows']:,} predicted tokens in {facts['num_sequences']:,} sequences of up to 64" in facts_told["Text"]
    assert facts_told["Sources (tokens)"].startswith("books ")
    assert "largest training count 9 (" in facts_told["AR hits"]
    assert facts["counts"]["id"] in facts_told["Training counts"]
    assert facts["tokenizer"]["digest"] in facts_told["Tokenizer"]
    [commands] = page.texts("pre")
    assert commands.splitlines() == [
        "recallkit slice valid.jsonl other.jsonl --tokenizer recallkit-4k --counts counts.duckdb --max-count 9 --seq-len 64 "
        "--boundary pack -o DIR",
        "recallkit gap control:recall control:bigram control:unigram --slices DIR",
        "recallkit report DIR",
    ]
    assert str(comparison.folder.parent) not in page.source, "the page tells where it was made"


def test_shares_by_source_and_every_picture(comparison, page):
    from recallkit.attribution.charts import figures

    table = page.tables()["AR share of the gap by source"]
    assert [row[0] for row in table[1:]] == ["books", "letters"]
    drawn = figures(comparison)
    assert len(drawn) >= 4
    first = {"by_count": "NLL by training frequency (Zoology, figure 1)", "by_partition": "Where the gap lies"}
    ordered = [figure for name in first for figure in drawn if figure.name == name]
    ordered += [figure for figure in drawn if figure.name not in first]
    assert page.texts("figcaption") == [figure.caption for figure in ordered]
    titles = [first.get(figure.name, figure.title) for figure in ordered]
    assert [text for text in page.texts("h3") if text in titles] == titles
    drawings = [attributes for name, attributes, _, _ in page.elements if name == "svg"]
    assert len(drawings) == len(drawn)
    assert all(drawing["aria-label"] for drawing in drawings)


def test_the_tokens_are_those_of_the_text(comparison, page, written):
    data = page.token_data()
    assert data["models"] == [REFERENCE, *comparison.models]
    assert len(data["excerpts"]) == written.excerpts > 5
    of = comparison.manifest["slices"]["num_sequences"]
    assert any(text.startswith(f"{written.excerpts} of {of} sequences are on this page") for text in page.texts("p"))


@pytest.fixture(scope="module")
def doubtful(words, comparison, tmp_path_factory) -> Page:
    """What is said of models that are the reference, the reference with noise, and better than the reference."""
    folder, rng = tmp_path_factory.mktemp("doubtful"), np.random.default_rng(0)
    changes = {"same": lambda nll: nll, "noise": lambda nll: nll + rng.normal(0, 1, nll.size), "better": lambda nll: nll * 0.5}
    scores = [changed_scores(words, folder, name, change) for name, change in changes.items()]
    tables = attribute_gap(words / "tokens.parquet", score_path(words, REFERENCE), scores)
    return opening(read_comparison(put(tables, folder, comparison, models=list(changes))))


def test_a_share_without_meaning_is_said_so(doubtful):
    notes = dict(line.split(": ", 1) for line in doubtful.texts("li"))
    assert notes["same"] == f"the share means nothing: {NO_GAP}"
    assert notes["noise"] == f"the share means nothing: {NOT_TOLD_FROM_ZERO}"
    assert notes["better"] == "model is better than the reference overall: shares are of its lead"
    ppl = doubtful.tables()[TABLE][1][1]
    assert f"same (perplexity {ppl} against {ppl}): a share of this gap means nothing" in doubtful.texts("p")[0]
    assert re.search(
        r"better \(perplexity .*\): [\d.]+ % \(95 % interval [^)]*\) of this lead lies in AR hits, [\d.]+ times their",
        doubtful.texts("p")[0],
    ), "no headline: one share only means something"
    table, comparators = (doubtful.tables()[name] for name in (TABLE, "What the AR share can be compared with"))
    noise = next(row for row in table if row[0] == "noise")
    compared = next(row for row in comparators if row[0] == "noise")
    assert noise[5] == compared[3] == "–", "a share that means nothing has no interval"
    assert doubtful.texts("s") == [noise[4], *noise[7:9], *compared[1:3]], "every figure of `noise` is struck out; `same` has none"


@pytest.mark.parametrize(
    ("delta", "share", "bounds", "said"),
    [
        (
            0.3,
            -0.007,
            (-0.02, 0.006),
            "none of this gap lies in AR hits; there it is not clearly worse (share -0.7 %, 95 % interval -2.0",
        ),
        (0.3, -0.2, (-0.3, -0.1), "none of this gap lies in AR hits; there it is better than the reference (share -20.0 %, 95 % interval"),
        (0.3, 1.2, (1.1, 1.3), "all of this gap lies in AR hits; on the other tokens it is better than the reference (share 120.0 %, 95 %"),
        (0.3, 1.01, (0.9, 1.1), "all of this gap lies in AR hits; on the other tokens it is not clearly worse (share 101.0 %"),
        (-0.3, 0.25, (0.2, 0.3), "25.0 % (95 % interval 20.0 to 30.0 %) of this lead lies in AR hits, 2.5 times their share of"),
        (-0.3, -0.2, (-0.3, -0.1), "none of this lead lies in AR hits; there it is worse than the reference (share -20.0 %"),
        (-0.3, 1.5, (0.8, 1.9), "all of this lead lies in AR hits; on the other tokens it is not clearly better (share 150.0 %"),
        (0.3, 1.2, (None, None), "all of this gap lies in AR hits; on the other tokens it is better than the reference (share 120.0 %)."),
        (0.3, 0.5, (None, None), "perplexity 2.00 against 3.00): 50.0 % of this gap lies in AR hits, 5.0 times their share of the tokens."),
    ],
)
def test_a_share_below_nothing_or_above_all_is_put_in_words(comparison, delta, share, bounds, said):
    hits = {"gap_share": share, "enrichment": 10 * share, "ci_low": bounds[0], "ci_high": bounds[1], "note": "what the table says"}
    totals = {("m", "all"): {"delta_nll": delta, "ppl_model": 2, "ppl_reference": 3}, ("m", "ar_hit"): hits}
    assert said in re.sub("<[^>]*>", "", told.answer(replace(comparison, models=["m"]), totals))


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ((0.2, 0.5, 0.3), "20.0 to 50.0 % of what 3 models lose to ref lies in the 10.00 % of tokens that are AR hits: 2.0 to 5.0 times"),
        ((0.2, 1.2, 0.3), "20.0 to 30.0 % of what 2 of 3 models lose to ref lies in"),
        ((0.2, None, -0.1), ""),
    ],
)
def test_the_headline_has_the_range_of_the_shares_that_mean_something(comparison, shares, said):
    models = ["a", "b", "c"]
    rows = {"note": "", "share_of_tokens": 0.1}
    totals = {(model, "ar_hit"): {**rows, "gap_share": share} for model, share in zip(models, shares, strict=True)}
    totals |= {(model, "all"): {"delta_nll": 0.3} for model in models}
    of = replace(comparison, models=models, reference="ref")
    headline = re.sub("<[^>]*>", "", told.headline(of, totals))
    assert headline.startswith(said) if said else headline == ""
    ahead = {key: {**row, "delta_nll": -0.3} if key == ("b", "all") else row for key, row in totals.items()}
    assert "what 3 models" not in told.headline(of, ahead), "a lead is no loss"


def test_many_models_are_few_in_the_first_figures(comparison):
    from recallkit.attribution.charts import figures

    names = [f"m{number}" for number in range(6)]
    frames = {
        name: pl.concat(frame.filter(model=MODELS[0]).with_columns(model=pl.lit(other)) for other in names)
        for name, frame in comparison.tables.frames().items()
    }
    gaps = {name: 0.1 * (1 + number) for number, name in enumerate(names)}
    frames["gap"] = frames["gap"].with_columns(delta_nll=pl.col("model").replace_strict(gaps))
    void = (pl.col("model") == "m0") & (pl.col("slice") == "ar_hit")
    frames["gap"] = frames["gap"].with_columns(note=pl.when(void).then(pl.lit(NO_GAP)).otherwise("note"))
    many = replace(comparison, models=names, tables=GapTables(**frames))
    drawn = figures(many)
    first, rest = sections.first_figures(many, drawn)
    shown = Page(first)
    assert [figure.name for figure in rest] == [figure.name for figure in drawn], "figures of all models follow"
    assert len(shown.texts("figcaption")) == 2
    assert all(
        caption.endswith("4 of 6 models, from the nearest to the farthest; figures of all are further down.")
        for caption in shown.texts("figcaption")
    )
    labels = " ".join(attributes.get("aria-label", "") for _, attributes, _, _ in shown.elements)
    assert [name for name in names if f"{name}," in labels] == ["m1", "m2", "m4", "m5"], "from the nearest whose share means something"
    assert not [attributes for _, attributes, _, _ in shown.elements if attributes.get("id", "").startswith("figure-")]


def test_a_comparison_without_ar_hits_has_a_page(comparison, tmp_path):
    corpus = Corpus(tmp_path, [(s, p, "web", 1 if p > 1 else None, 9) for s in (0, 1) for p in (1, 2)], max_count=5)
    corpus.score("reference", [1, 2, 1, 2])
    corpus.score("model", [2, 2, 3, 2])
    paths = [tmp_path / "scores" / f"{name}.parquet" for name in ("reference", "model")]
    put(attribute_gap(corpus.path, paths[0], paths[1:]), tmp_path / "a" / "b", comparison, models=["model"])
    page = Page.read(write_report(tmp_path / "a" / "b").page)
    assert page.texts("p")[0].startswith("model (perplexity ")
    assert f"means nothing ({EMPTY_SLICE})" in page.texts("p")[0]
    assert "excerpts" not in [attributes.get("id") for _, attributes, _, _ in page.elements]


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
    assert [row[0] for row in evil.tables()[TABLE][1:]] == ["ref\" & 'x'", shown, "models/" * 30 + "mamba"]
    assert {"img", "i"}.isdisjoint(evil.names())
    assert evil.names().count("script") == 1
    assert any(fact.endswith(f"25.0 % for {shown}") for fact in evil.texts("dd"))
    assert "\x1b" not in evil.source
    assert len(evil.texts("b")) == len(page.texts("b")), "a name became an element"
    assert [row[1:] for row in evil.tables()[TABLE]] == [row[1:] for row in page.tables()[TABLE]], (
        "a source called ALL was taken for the total"
    )


def test_without_the_slices_there_is_a_page_that_says_how_to_see_the_text(evil):
    assert "excerpts" not in [attributes.get("id") for _, attributes, _, _ in evil.elements]
    assert any(
        "the slices of this comparison were not found" in text and "recallkit report DIR --slices DIR" in text for text in evil.texts("p")
    )


@pytest.fixture(scope="module")
def hostile_page(hostile) -> Page:
    return Page.read(write_report(hostile).page)


def test_hostile_text_is_data(hostile_page):
    assert hostile_page.names().count("script") == 2, "the data and the page's own"
    assert {"img", "b"} & set(hostile_page.names()) <= {"b"}
    between = hostile_page.source.split('id="excerpts">')[1].split("</script>")[0]
    assert "<" not in between
    assert not re.search("[\x00-\x09\x0b-\x1f\u2028\u2029]", between), "what a parser or a reader of JSON could stumble on"
    data = json.loads(between)
    assert data["sources"] == ["<img onerror=alert(3)>"]
    pieces = [piece for piece in data["pieces"].values() if isinstance(piece, str)]
    assert {"<", "/", "\x00", "\x1b"} <= set(pieces)
    shown = "".join(str(entry) for excerpt in data["excerpts"] for _, entry in excerpt["shown"])
    assert "👩" in shown
    assert "\u202e" in shown
    assert "<script>alert" in HOSTILE[0]


def test_another_tokenizer_is_told(hostile_page):
    [line] = [text for text in hostile_page.texts("p") if "has a tokenizer of its own" in text]
    assert "own.py:load" in line


# ------------------------------------------------------------------------------------------------- one file, for everyone


def test_nothing_is_fetched_and_only_the_pages_own_script_runs(page, evil, hostile_page):
    for shown in (page, evil, hostile_page):
        source = shown.source.replace(shown.with_id("excerpts"), "") if shown is not evil else shown.source
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
        for kind, content in (("style", shown.texts("style")[0]), ("script", shown.texts("script")[-1])):
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert f"{kind}-src 'sha256-{digest}'" in policy


def test_identifiers_are_unique_and_links_lead_somewhere(page, hostile_page):
    for shown in (page, hostile_page):
        ids = [attributes["id"] for _, attributes, _, _ in shown.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
        links = [attributes["href"] for name, attributes, _, _ in shown.elements if name == "a"]
        assert len(links) >= 3
        assert {link[1:] for link in links} <= set(ids)


def test_it_is_for_everyone(page):
    attributes = {name: a for name, a, _, _ in page.elements}
    assert attributes["html"]["lang"] == "en"
    assert "width=device-width" in page.source
    assert "prefers-color-scheme: dark" in page.source
    assert all(a.get("scope") in ("row", "col") for name, a, _, _ in page.elements if name == "th")
    assert "noscript" in attributes
    assert any(text.startswith("Keys in the text:") for text in page.texts("p"))


# ------------------------------------------------------------------------------------------------------------- writing


def test_the_same_tables_give_the_same_bytes(words, written, tmp_path):
    folder = tmp_path / "elsewhere"
    shutil.copytree(words, folder)
    again = write_report(folder, tmp_path / "new" / "page.html")
    assert again.page.read_bytes() == written.page.read_bytes()
    assert again.num_bytes == len(written.page.read_bytes()) < 5_000_000
    assert written.page.parent == read_comparison(words).folder


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_memory_of_tables_that_are_gone_is_given_back_before_drawing(words, tmp_path, monkeypatch):
    listed, draw, megabytes = excerpts.list_excerpts, charts.figures, []

    def measure():
        megabytes.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6)

    def list_as_of_a_long_text(*args):
        ones = pa.array(np.ones(1 << 17))
        tables = [pc.add(ones, number) for number in range(200)]  # 210 MB
        measure()
        del tables
        return listed(*args)

    def measure_and_draw(*args):
        measure()
        return draw(*args)

    monkeypatch.setattr(excerpts, "list_excerpts", list_as_of_a_long_text)
    monkeypatch.setattr(charts, "figures", measure_and_draw)
    write_report(words, tmp_path / "page.html")
    read, drawn = megabytes
    assert drawn < read - 100


def test_the_page_is_replaced_whole(comparison, tmp_path):
    folder = put(comparison.tables, tmp_path / "a" / "b", comparison)
    page = folder / "report.html"
    write_report(folder)
    os.link(page, tmp_path / "before.html")
    write_report(folder)
    assert Page.read(page).texts("h1")
    assert not page.samefile(tmp_path / "before.html"), "written into the file that a reader may have open"
    assert not list(folder.glob(".*"))


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
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="not a directory"):
        write_report(folder, options=ReportOptions(figures=tmp_path / "file"))

    put(comparison.tables, folder, comparison, models=["others"])
    (folder / "by_count.parquet").write_bytes((comparison.folder / "by_count.parquet").read_bytes())
    with pytest.raises(UserError, match="not as it was written"):
        write_report(folder)
    assert not (folder / "report.html").exists()


def test_commands_of_a_text_in_many_files(comparison):
    labels = artifacts.read_manifest(comparison.slices / "tokens.parquet")
    many = {**labels, "names": [f"/data/{number}.jsonl" for number in range(9)], "limit_tokens": 10_000_000}
    assert "recallkit slice TEXT... " in told.commands(comparison, many)[0]
    assert " --limit-tokens 10000000 -o DIR" in told.commands(comparison, many)[0]
    hub = {**labels, "names": ["owner/name:split", "/data/a b.txt"]}
    assert "recallkit slice owner/name:split 'a b.txt' " in told.commands(comparison, hub)[0]
    assert told.commands(comparison, None)[0].startswith("recallkit slice TEXT... --tokenizer recallkit-4k --counts COUNTS ")


EDITS = ["reference", "models", "inexact", "recallkit_version", "slices.counts.num_tokens", "slices.tokenizer.name", "slices.max_count"]


@pytest.mark.parametrize("path", EDITS)
@pytest.mark.parametrize("value", [None, [], {"a": 1}])
def test_a_manifest_that_was_edited_is_told_in_a_line(comparison, path, value):
    manifest = json.loads(json.dumps(comparison.manifest))
    *above, last = path.split(".")
    of = manifest
    for key in above:
        of = of[key]
    of[last] = value
    with pytest.raises(UserError, match=r"the manifest has no field|its manifest and its table are of different models"):
        told.check_facts(replace(comparison, manifest=manifest), None)
    told.check_facts(comparison, artifacts.read_manifest(comparison.slices / "tokens.parquet"))


def test_a_table_without_a_models_rows_is_told(comparison):
    gap = comparison.tables.gap.filter((pl.col("model") != MODELS[0]) | (pl.col("slice") != "other"))
    with pytest.raises(UserError, match=f"no row of other tokens for {MODELS[0]}; make it again with --force"):
        told.check_facts(replace(comparison, tables=replace(comparison.tables, gap=gap)), None)


def test_many_models_by_source_stand_in_several_tables():
    models = [f"m{number}" for number in range(17)]
    table = Table("By source", ["source", "tokens", "AR hits", *models], [["s", "1", "2", *map(str, range(17))]], caption="more")
    parts = sections._side_by_side(table, 3)
    assert [part.title for part in parts] == ["By source (1 of 3)", "By source (2 of 3)", "By source (3 of 3)"]
    assert [name for part in parts for name in part.headers[3:]] == models
    assert [cell for part in parts for cell in part.rows[0][3:]] == [str(number) for number in range(17)]
    assert all(list(part.rows[0][:3]) == ["s", "1", "2"] and len(part.headers) <= 11 for part in parts)
    assert [part.caption for part in parts] == [None, None, "more"]
    narrow = replace(table, headers=table.headers[:11], rows=[table.rows[0][:11]])
    assert sections._side_by_side(narrow, 3) == [narrow]


def test_a_damaged_comparison_is_said_to_be_one(comparison, tmp_path):
    folder = put(comparison.tables, tmp_path / "x", comparison)
    (folder / "gap.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match="not as it was written"):
        write_report(folder)


def test_the_slices_may_lie_elsewhere(comparison, words, tmp_path):
    folder = put(comparison.tables, tmp_path / "a" / "b", comparison)
    moved = replace(comparison, folder=folder, slices=None)
    assert read_comparison(folder).slices is None
    with_text = Page.read(write_report(folder, options=ReportOptions(slices=words, sequence=[7])).page)
    assert [e["sequence"] for e in with_text.token_data()["excerpts"] if e["asked"]] == [7]
    assert told.question(moved) == with_text.texts("h1")[0]
