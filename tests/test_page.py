"""The page of a comparison: its figures are the tables', its pictures are to scale, nothing in it runs or is fetched."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recallkit import artifacts, pipeline
from recallkit.attribution.shares import NO_GAP, NOT_TOLD_FROM_ZERO
from recallkit.errors import UserError
from recallkit.page import write_page
from recallkit.scoring import score_path
from recallkit.stages.gap import EMPTY_SLICE, GapTables, attribute_gap
from tests.stages.test_gap import Corpus

REFERENCE, MODELS = "control:recall", ["control:bigram", "control:unigram"]
EVIL = "<script>alert('1')</script>&\"\x1b[31m <b>"


class Page(HTMLParser):
    """A page taken apart: elements as (name, attributes, text in them, name of the parent); fails where tags do not balance."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str], list[str], str]] = []
        self._open: list[int] = []
        self.feed(self.source)
        self.close()
        assert not self._open, [self.elements[index][0] for index in self._open]

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} repeats an attribute"
        self.elements.append((tag, dict(attrs), [], self.elements[self._open[-1]][0] if self._open else ""))
        if tag != "meta":
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag):
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data):
        for index in self._open:
            self.elements[index][2].append(data)

    def texts(self, tag: str) -> list[str]:
        return ["".join(text) for name, _, text, _ in self.elements if name == tag]

    def shapes(self, tag: str, kind: str) -> list[dict[str, str]]:
        """The attributes of the elements `tag` whose classes hold all of `kind`'s."""
        return [a for name, a, _, _ in self.elements if name == tag and set(kind.split()) <= set(a.get("class", "").split())]

    def rows(self) -> list[list[str]]:
        """The table's cells."""
        names = [(name, "".join(text)) for name, _, text, _ in self.elements if name in ("tr", "th", "td")]
        found: list[list[str]] = []
        for name, text in names:
            found.append([]) if name == "tr" else found[-1].append(text)
        return found


@pytest.fixture(scope="module")
def compared(small_slices, tmp_path_factory) -> tuple[Path, GapTables]:
    """A folder with the tables of control models on made-up text, and the tables."""
    folder = tmp_path_factory.mktemp("compared")
    return folder, pipeline.gap(REFERENCE, MODELS, small_slices, folder)


@pytest.fixture(scope="module")
def page(compared) -> Page:
    return Page(write_page(compared[0]))


def written(folder: Path, tables: GapTables, like: Path, **facts: object) -> Page:
    """The page of `tables`, with the manifest of the comparison in `like` but for `facts`."""
    artifacts.write_frames(tables, folder, {**artifacts.read_manifest(like / "gap.parquet"), **facts})
    return Page(write_page(folder))


def renamed(tables: GapTables, names: dict[str, str]) -> GapTables:
    """The tables with other names of models, and of sources."""
    columns = ("reference", "model", "source")
    frames = {field.name: getattr(tables, field.name) for field in fields(tables)}
    return GapTables(**{key: f.with_columns(pl.col(c).replace(names) for c in columns if c in f.columns) for key, f in frames.items()})


def changed_scores(slices: Path, folder: Path, name: str, change) -> Path:
    """Scores of the reference under another name, its NLLs changed."""
    path, out = score_path(slices, REFERENCE), folder / f"{name}.parquet"
    table = pq.read_table(path)
    nlls = pa.array(change(np.asarray(table["nll"])), table.schema.field("nll").type)
    table = table.set_column(table.schema.get_field_index("nll"), "nll", nlls)
    artifacts.write_parquet(out, [table], table.schema, {**artifacts.read_manifest(path), "model": name})
    return out


def test_the_table_holds_the_figures_of_the_gap(compared, page):
    gap = compared[1].gap.filter(pl.col("source") == "ALL")
    header, first, *rows = page.rows()
    cells = {(r["model"], r["slice"]): r for r in gap.iter_rows(named=True)}
    kinds = ("all", "ar_hit", "other")
    assert len(header) == 7
    assert first == [REFERENCE, *(f"{cells[MODELS[0], kind]['ppl_reference']:,.2f}" for kind in kinds), "reference"]
    assert [row[0] for row in rows] == sorted(MODELS, key=lambda model: cells[model, "all"]["ppl_model"])
    for model, *figures in rows:
        hits = cells[model, "ar_hit"]
        shares = [f"{100 * hits['gap_share']:.1f} %", f"{100 * hits['ci_low']:.1f} to {100 * hits['ci_high']:.1f} %"]
        assert figures[:5] == [f"{cells[model, kind]['ppl_model']:,.2f}" for kind in kinds] + shares
        assert figures[5] == f"{100 * hits['gap_share_clipped']:.1f} %"


def test_the_answer_names_the_nearest_and_the_farthest(compared, page):
    rows = {row["model"]: row for row in compared[1].gap.filter(source="ALL", slice="ar_hit").iter_rows(named=True)}
    answer = page.texts("p")[0]
    assert answer.startswith(f"Nearest to {REFERENCE} is control:bigram (perplexity ")
    assert f"Farthest from {REFERENCE} is control:unigram" in answer
    for row in rows.values():
        interval = f"{100 * row['ci_low']:.1f} to {100 * row['ci_high']:.1f} %"
        assert re.search(rf"{100 * row['gap_share']:.1f} % \(95 % interval {interval}\) of this (gap|lead) is recall", answer)


def test_the_method_says_what_makes_it_again(compared, page):
    facts = artifacts.read_manifest(compared[0] / "gap.parquet")["slices"]
    told = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert f"{facts['num_rows']:,} predicted tokens in {facts['num_sequences']:,} sequences of up to 64" in told["Text"]
    assert told["Sources (tokens)"].startswith("books ")
    assert "largest training count 20," in told["AR hits"]
    assert facts["counts"]["id"] in told["Training counts"]
    assert facts["tokenizer"]["digest"] in told["Tokenizer"]
    assert told["Made again by"].endswith("recallkit gap control:recall control:bigram control:unigram --slices DIR")


def test_bars_are_to_scale(compared, page):
    parts = {(r["model"], r["slice"]): r["delta_nll"] * r["share_of_tokens"] for r in compared[1].gap.filter(source="ALL").to_dicts()}
    for kind in ("ar_hit", "other"):
        assert len(page.shapes("rect", f"{kind} bar")) == len(MODELS)
    drawn = [
        (bar, parts[model, kind])
        for kind in ("ar_hit", "other")
        for bar, model in zip(page.shapes("rect", f"{kind} bar"), MODELS, strict=True)
    ]
    widest, largest = max((float(bar["width"]), abs(part)) for bar, part in drawn)
    for bar, part in drawn:
        assert float(bar["width"]) == pytest.approx(abs(part) / largest * widest, abs=0.02)
    # The two parts of a gap lie side by side, and the whisker's caps where the interval's ends are.
    for model, hits, other in zip(MODELS, page.shapes("rect", "ar_hit bar"), page.shapes("rect", "other bar"), strict=True):
        if parts[model, "ar_hit"] > 0 < parts[model, "other"]:
            assert float(other["x"]) == pytest.approx(float(hits["x"]) + float(hits["width"]), abs=0.02)
    gap = {r["model"]: r for r in compared[1].gap.filter(source="ALL", slice="ar_hit").to_dicts()}
    whole = {r["model"]: r["delta_nll"] for r in compared[1].gap.filter(source="ALL", slice="all").to_dicts()}
    zero = float(page.shapes("rect", "ar_hit bar")[0]["x"])
    caps = [float(line["x1"]) for line in page.shapes("line", "ink") if line["x1"] == line["x2"]]
    for model in MODELS:
        for end in ("ci_low", "ci_high"):
            assert min(abs(zero + gap[model][end] * whole[model] / largest * widest - cap) for cap in caps) < 0.05


@pytest.mark.parametrize(("table", "kept"), [("by_count", "repeated"), ("by_distance", "ar_hit")])
def test_lines_are_to_scale_and_hold_every_bucket(compared, page, table, kept):
    rows = getattr(compared[1], table).filter(pl.col(kept))
    svg = page.source.split("<svg")[3 if table == "by_count" else 4]
    circles = re.findall(r'cy="([\d.]+)" r="3" class="m (\w+)[^>]*><title>([\d,]+) to ([\d,]+): ([\d.]+) nats, ([\d,]+) tokens', svg)
    dots = [(kind, int(low.replace(",", "")), float(y)) for y, kind, low, *_ in circles]
    expected = [("r", r["low"], r["nll_reference"]) for r in rows.filter(model=MODELS[0]).to_dicts()]
    expected += [(f"m{index}", r["low"], r["nll_model"]) for index, m in enumerate(MODELS) for r in rows.filter(model=m).to_dicts()]
    assert sorted(dot[:2] for dot in dots) == sorted(point[:2] for point in expected)
    drawn, values = ([value for *_, value in sorted(points)] for points in (dots, expected))
    slope, start = np.polyfit(values, drawn, 1)
    assert slope < 0
    np.testing.assert_allclose(drawn, slope * np.array(values) + start, atol=0.02)


def test_the_counts_of_ar_hits_are_shaded_up_to_the_threshold(page):
    """At most 20: half a bucket beyond the dot of 9 to 16, and 4 of the 16 counts of the next bucket."""
    svg = page.source.split("<svg")[3]
    dots = re.findall(r'cx="([\d.]+)" cy="[\d.]+" r="3" class="m r[^>]*><title>[1-9][\d,]* to ([\d,]+):', svg)
    step, start = np.polyfit([np.log2(int(high.replace(",", ""))) for _, high in dots], [float(x) for x, _ in dots], 1)
    [shade] = page.shapes("rect", "rare")
    assert float(shade["x"]) + float(shade["width"]) == pytest.approx(start + step * (4 + 0.5 + 4 / 16), abs=0.05)


def test_nothing_is_fetched_and_nothing_runs(page):
    for word in ("http", "src=", "href", "@import", "url(", "<script", "<link", "<iframe", "javascript", " on"):
        found = page.source if word != " on" else " ".join(key for _, attributes, _, _ in page.elements for key in attributes)
        assert word not in found, word
    assert len(page.source) < 300_000


def test_it_is_for_everyone(page):
    attributes = {name: a for name, a, _, _ in page.elements}
    assert attributes["html"]["lang"] == "en"
    assert "width=device-width" in page.source
    assert "prefers-color-scheme: dark" in page.source
    assert all(a.get("scope") in ("row", "col") for name, a, _, _ in page.elements if name == "th")
    drawings = [a for name, a, _, _ in page.elements if name == "svg"]
    assert len(drawings) == 4
    assert all(a["role"] == "img" and len(a["aria-label"]) > 20 for a in drawings)


@pytest.fixture(scope="module")
def hostile(compared, tmp_path_factory) -> Page:
    """The page with names that are markup, one that is long, and a source called ALL."""
    folder, tables = compared
    names = {
        "control:bigram": EVIL,
        "control:unigram": "models/" * 30 + "mamba",
        "books": "<i>books</i>",
        "letters": "ALL",
        REFERENCE: "ref\" & 'x'",
    }
    models = [names[model] for model in MODELS]
    slices = artifacts.read_manifest(folder / "gap.parquet")["slices"]
    slices["tokenizer"] = {**slices["tokenizer"], "name": "</dd><img>"}
    facts = {"models": models, "slices": slices, "inexact": {EVIL: {"all": 0.25}}}
    return written(tmp_path_factory.mktemp("hostile"), renamed(tables, names), folder, **facts)


def test_names_are_text(hostile, page):
    shown = EVIL.replace("\x1b", r"\x1b")
    assert [row[0] for row in hostile.rows()[1:]] == ["ref\" & 'x'", shown, "models/" * 30 + "mamba"]
    assert [name for name, *_ in hostile.elements if name in ("script", "img", "i")] == []
    assert any(told.endswith(f"25.0 % for {shown}") for told in hostile.texts("dd"))
    assert "\x1b" not in hostile.source
    assert len(hostile.texts("b")) == len(page.texts("b")), "a name became an element"
    assert [row[1:] for row in hostile.rows()] == [row[1:] for row in page.rows()], "a source called ALL was taken for the total"


def test_what_is_drawn_stays_inside_and_apart(hostile, page):
    """Texts by an estimate of their width: 7 units a character, more than any common font of this size needs."""
    for source in (hostile.source, page.source):
        for svg in re.findall(r"<svg.*?</svg>", source, re.DOTALL):
            width, height = (float(size) for size in re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0])
            assert all(0 <= float(x) <= width for x in re.findall(r' c?x[12]?="([^"]+)"', svg))
            assert all(0 <= float(y) <= height for y in re.findall(r' c?y[12]?="([^"]+)"', svg))
            names = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="([^"]*)">([^<]*)</text>(?!</g>)', svg)
            boxes = []
            for x, y, kind, text in names:
                long = 7.0 * len(re.sub(r"&#?\w+;", "x", text))
                left = float(x) - (long if "end" in kind else long / 2 if "middle" in kind else 0)
                assert left > -2
                assert left + long < width + 8, text
                boxes.append((left, left + long, float(y)))
            for (a, b, y), (c, d, z) in itertools.combinations(boxes, 2):
                assert b < c + 2 or d < a + 2 or abs(y - z) > 11, (names, (a, b, y), (c, d, z))


@pytest.fixture(scope="module")
def doubtful(small_slices, compared, tmp_path_factory) -> Page:
    """The page of models that are the reference, the reference with noise, and better than the reference."""
    folder, rng = tmp_path_factory.mktemp("doubtful"), np.random.default_rng(0)
    changes = {"same": lambda nll: nll, "noise": lambda nll: nll + rng.normal(0, 1, nll.size), "better": lambda nll: nll * 0.5}
    scores = [changed_scores(small_slices, folder, name, change) for name, change in changes.items()]
    tables = attribute_gap(small_slices / "tokens.parquet", score_path(small_slices, REFERENCE), scores)
    return written(folder, tables, compared[0], models=list(changes))


def test_a_share_without_meaning_is_said_so(doubtful):
    notes = dict(line.split(": ", 1) for line in doubtful.texts("li"))
    assert notes["same"] == f"the share means nothing: {NO_GAP}"
    assert notes["noise"].startswith(f"the share means nothing: {NOT_TOLD_FROM_ZERO}")
    assert notes["better"] == "model is better than the reference overall: shares are of its lead"
    assert (
        f"same (perplexity {doubtful.rows()[1][1]} against {doubtful.rows()[1][1]}): a share of this gap means nothing"
        in doubtful.texts("p")[0]
    )
    assert "of this lead is recall (model is better" in doubtful.texts("p")[0]
    assert len(doubtful.texts("s")) == 3, "the share of `noise`, its interval and the clipped one are struck out; `same` has none"
    assert sum("share means nothing" in text for text in doubtful.texts("text")) == 2


def test_bars_of_a_lead_lie_left_of_zero(doubtful):
    zero = max(float(line["x1"]) for line in doubtful.shapes("line", "ink") if float(line["y2"]) - float(line["y1"]) > 50)
    hits, other = (doubtful.shapes("rect", f"{kind} bar")[0] for kind in ("ar_hit", "other"))
    assert float(hits["x"]) + float(hits["width"]) == pytest.approx(zero, abs=0.02)
    assert float(other["x"]) + float(other["width"]) == pytest.approx(float(hits["x"]), abs=0.02)


def test_a_comparison_without_ar_hits_has_a_page(compared, tmp_path):
    corpus = Corpus(tmp_path, [(s, p, "web", 1 if p > 1 else None, 9) for s in (0, 1) for p in (1, 2)], max_count=5)
    corpus.score("reference", [1, 2, 1, 2])
    corpus.score("model", [2, 2, 3, 2])
    paths = [tmp_path / "scores" / f"{name}.parquet" for name in ("reference", "model")]
    page = written(tmp_path, attribute_gap(corpus.path, paths[0], paths[1:]), compared[0], models=["model"])
    assert page.texts("p")[0].startswith("model (perplexity ")
    assert f"means nothing ({EMPTY_SLICE})" in page.texts("p")[0]
    assert any(caption.endswith("There are none.") for caption in page.texts("figcaption"))


def test_the_same_tables_give_the_same_bytes(compared, page, tmp_path):
    folder, tables = compared
    written(tmp_path / "elsewhere", tables, folder)
    assert (tmp_path / "elsewhere" / "report.html").read_bytes() == (folder / "report.html").read_bytes()


def test_the_page_is_replaced_whole(compared, tmp_path):
    folder, tables = compared
    written(tmp_path, tables, folder)
    os.link(tmp_path / "report.html", tmp_path / "before.html")
    before = (tmp_path / "before.html").read_bytes()
    again = written(tmp_path, renamed(tables, {"control:bigram": "other"}), folder)
    assert again.source.encode() != before
    assert (tmp_path / "before.html").read_bytes() == before, "written into the file that a reader may have open"
    assert not list(tmp_path.glob(".*"))


def test_mistakes_are_one_line_with_a_remedy(compared, tmp_path):
    folder, tables = compared
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"gap\.parquet is missing\); make the tables with `recallkit gap REFERENCE"):
            write_page(place)
    assert not list(tmp_path.iterdir()), "nothing is made where nothing can be said"

    written(tmp_path, tables, folder)
    (tmp_path / "report.html").write_text("<!doctype html><p>mine")
    with pytest.raises(UserError, match="did not write"):
        write_page(tmp_path)
    assert (tmp_path / "report.html").read_text() == "<!doctype html><p>mine"

    artifacts.write_frames(tables, tmp_path, {**artifacts.read_manifest(folder / "gap.parquet"), "models": ["others"]})
    (tmp_path / "by_count.parquet").write_bytes((folder / "by_count.parquet").read_bytes())
    with pytest.raises(UserError, match="tables of different comparisons"):
        write_page(tmp_path)


def test_many_models_stay_apart(compared, tmp_path):
    """Twelve models: colours repeat dashed, names at the lines' ends stand below each other."""
    folder, tables = compared
    names = [f"model {index}" for index in range(12)]
    copies = [renamed(tables, {"control:bigram": name}) for name in names]
    every = {f.name: pl.concat([getattr(t, f.name).filter(model=n) for t, n in zip(copies, names, strict=True)]) for f in fields(tables)}
    page = written(tmp_path, replace(tables, **every), folder, models=names)
    assert len(page.shapes("polyline", "m0")) == 2 * 3
    assert len(page.shapes("polyline", "m0 dashed")) == 2
    for svg in page.source.split("<svg")[3:]:
        heights = sorted(float(y) for y in re.findall(r'<text x="304" y="([\d.]+)"', svg))
        assert len(heights) == 13
        assert min(b - a for a, b in itertools.pairwise(heights)) > 14.9
