"""Pictures of comparisons: every point is a figure of the tables, to scale, and any name is text."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from recallkit import attribution
from recallkit.attribution.chart_lines import _POSITIONS, by_match
from recallkit.attribution.chart_rows import gap_parts, perplexities
from recallkit.attribution.chart_shares import by_source, by_threshold
from recallkit.attribution.charts import figures
from recallkit.attribution.comparison import Comparison, read_comparison
from recallkit.attribution.tables import GapTables
from recallkit.display.chart_parts import bucket_edge, labels, rounded, shorten
from recallkit.display.chart_theme import PAPER, svg
from recallkit.measure.shares import NOT_TOLD_FROM_ZERO, is_void
from tests.display.drawings import Shape, marks, shapes

REFERENCE, MODELS = "control:recall", ["control:bigram", "control:unigram"]
EVIL = "<script>alert('1')</script>&\"\x1b[31m <b>"
NAMES = ["perplexities", "gap_parts", "by_partition", "by_count", "by_distance", "by_match", "by_position", "by_source", "by_threshold"]


@pytest.fixture(scope="module")
def comparison(small_slices, tmp_path_factory) -> Comparison:
    folder = tmp_path_factory.mktemp("compared")
    attribution.gap(REFERENCE, MODELS, small_slices, folder)
    return read_comparison(folder)


@pytest.fixture(scope="module")
def drawn(comparison) -> dict[str, str]:
    return {figure.name: svg(figure) for figure in figures(comparison)}


def changed(comparison: Comparison, change) -> Comparison:
    """The comparison with other tables: `change` gets each frame and its name."""
    frames = {name: change(frame, name) for name, frame in comparison.tables.frames().items()}
    return replace(comparison, tables=GapTables(**frames))


def renamed(comparison: Comparison, names: dict[str, str]) -> Comparison:
    columns = ("reference", "model", "source")
    named = changed(comparison, lambda frame, _: frame.with_columns(pl.col(c).replace(names) for c in columns if c in frame.columns))
    models = [names.get(model, model) for model in comparison.models]
    return replace(named, reference=names.get(comparison.reference, comparison.reference), models=models)


def many(comparison: Comparison, names: list[str]) -> Comparison:
    """One model's rows under many names."""
    first = MODELS[0]
    of = lambda frame, _: pl.concat([frame.filter(model=first).with_columns(model=pl.lit(name)) for name in names])  # noqa: E731
    return replace(changed(comparison, of), models=names)


def tips(found: dict[str, Shape], pattern: str) -> dict[tuple[str, ...], Shape]:
    """The marks whose whole tip is `pattern`, by its groups; fails where there are others."""
    matched = {label: re.fullmatch(pattern, label) for label in found}
    assert all(matched.values()), [label for label, match in matched.items() if not match]
    return {match.groups(): found[label] for label, match in matched.items()}


def check_scale(numbers: list[float], places: list[float], *, falls: bool = False, within: float = 0.15) -> tuple[float, float]:
    """Places are numbers on a linear axis, to a pixel's fraction; returns slope and start."""
    slope, start = np.polyfit(numbers, places, 1)
    assert bool(slope < 0) is falls
    np.testing.assert_allclose(places, slope * np.array(numbers) + start, atol=within)
    return slope, start


def test_every_picture_is_there_and_small(comparison, drawn):
    assert list(drawn) == NAMES
    assert all(len(text) < 60_000 for text in drawn.values())
    assert drawn == {figure.name: svg(figure) for figure in figures(comparison)}, "not the same every time"
    for figure in figures(comparison):
        assert figure.title
        assert figure.caption.endswith(".")


def test_perplexities_stand_at_their_logarithms(comparison, drawn):
    found = tips(marks(drawn["perplexities"]), r"(\S+), (AR hits|other tokens): perplexity ([\d,.]+) \(([\d.]+) nats\), ([\d,]+) tokens")
    kinds = {"AR hits": "ar_hit", "other tokens": "other"}
    expected = {(m, k): comparison.totals[m, k]["nll_model"] for m in MODELS for k in kinds.values()}
    expected |= {(REFERENCE, k): comparison.totals[MODELS[0], k]["nll_reference"] for k in kinds.values()}
    by_key = {(model, kinds[kind]): (shape, nll, ppl) for (model, kind, ppl, nll, _), shape in found.items()}
    assert by_key.keys() == expected.keys()
    for key, (_, nll, ppl) in by_key.items():
        assert float(nll) == pytest.approx(expected[key], abs=0.006)
        assert float(ppl.replace(",", "")) == pytest.approx(np.exp(expected[key]), rel=0.006)
    check_scale([expected[key] for key in by_key], [shape.x for shape, *_ in by_key.values()])
    rows = {model: shape.y for (model, _), (shape, *_) in by_key.items()}
    assert sorted(rows, key=rows.get) == [REFERENCE, *comparison.models], "the reference first, then the best"
    rules = [s.x for s in shapes(drawn["perplexities"]) if s.kind == "line" and s.paint.get("stroke-dasharray") == "4,3"]
    for kind in kinds.values():
        assert min(abs(by_key[REFERENCE, kind][0].x - x) for x in rules) < 1


def test_parts_of_a_gap_lie_side_by_side_to_scale(comparison, drawn):
    found = tips(marks(drawn["gap_parts"]), r"(\S+), (AR hits|other tokens): (-?[\d.]+) of (-?[\d.]+) nats, [\d,]+ tokens")
    totals, zero, unit = comparison.totals, None, []
    bars = {(model, {"AR hits": "ar_hit", "other tokens": "other"}[kind]): shape.box for (model, kind, *_), shape in found.items()}
    assert len(bars) == 2 * len(MODELS)
    for (model, kind), (left, _, right, _) in bars.items():
        row = totals[model, kind]
        unit.append((right - left) / abs(row["delta_nll"] * row["share_of_tokens"]))
    assert unit == pytest.approx([unit[0]] * len(unit), rel=0.02)
    for model in MODELS:
        hits, other = bars[model, "ar_hit"], bars[model, "other"]
        if totals[model, "ar_hit"]["delta_nll"] > 0 < totals[model, "other"]["delta_nll"]:
            assert hits[2] == pytest.approx(other[0], abs=0.2)
            zero = hits[0]
            row, whole = totals[model, "ar_hit"], totals[model, "all"]["delta_nll"]
            caps = [s.x for s in shapes(drawn["gap_parts"]) if s.kind == "line" and s.paint.get("stroke-width") == "1.4"]
            for end in ("ci_low", "ci_high"):
                assert min(abs(zero + row[end] * whole * unit[0] - cap) for cap in caps) < 1
    assert zero is not None


def test_a_lead_lies_left_of_zero(comparison):
    def lead(frame, name):
        return frame.with_columns(delta_nll=-pl.col("delta_nll").abs(), note=pl.lit("")) if name == "gap" else frame

    ahead = svg(next(figure for figure in figures(changed(comparison, lead)) if figure.name == "gap_parts"))
    boxes = {label: shape.box for label, shape in marks(ahead).items()}
    for model in MODELS:
        hits, other = (next(box for label, box in boxes.items() if label.startswith(f"{model}, {kind}")) for kind in ("AR hits", "other"))
        assert other[2] == pytest.approx(hits[0], abs=0.2)
        assert hits[0] < hits[2]


@pytest.mark.parametrize(
    ("name", "what", "column", "kinds"),
    [
        ("by_count", "training count", "repeated", (True, False)),
        ("by_distance", "distance", "ar_hit", (True,)),
        ("by_match", "match length", "ar_hit", (True,)),
    ],
)
def test_lines_hold_every_bucket_to_scale(comparison, drawn, name, what, column, kinds):
    frame = getattr(comparison.tables, name)
    expected = {}
    for panel, kind in enumerate(kinds):
        for row in frame.filter(pl.col(column) == kind).to_dicts():
            for model, nll in ((row["model"], row["nll_model"]), (REFERENCE, row["nll_reference"])):
                expected[panel, model, row["low"], row["high"]] = (nll, row["tokens"])
    every = [s for s in shapes(drawn[name]) if s.label and s.kind == "path"]
    found = {}
    for shape in every:
        model, low, high, nll, tokens = re.fullmatch(
            rf"(\S+), {what} ([\d,]+)(?: to ([\d,]+))?: ([\d.]+) nats, ([\d,]+) tokens?", shape.label
        ).groups()
        key = (model, int(low.replace(",", "")), int((high or low).replace(",", "")))
        panel = int(shape.y > 235)
        found[panel, *key] = (float(nll), int(tokens.replace(",", "")), shape)
    assert {key: value[1] for key, value in found.items()} == {key: value[1] for key, value in expected.items()}
    for panel in range(len(kinds)):
        mine = {key: value for key, value in found.items() if key[0] == panel}
        check_scale([expected[key][0] for key in mine], [shape.y for *_, shape in mine.values()], falls=True)
        places = [np.ceil(np.log2(key[3])) + 1 if key[3] else 0 for key in mine]
        check_scale(places, [shape.x for *_, shape in mine.values()])
        for key, (_, tokens, shape) in mine.items():
            assert (shape.paint["fill"] == "var(--page)") is (tokens < 100), key


def test_the_counts_of_ar_hits_are_shaded_up_to_the_threshold(comparison, drawn):
    """At most 20: half a bucket beyond the place of 9 to 16, and 4 of the 16 counts of the next bucket."""
    assert comparison.manifest["slices"]["max_count"] == 20
    points = {
        label: shape.x for label, shape in ((s.label, s) for s in shapes(drawn["by_count"])) if f"{REFERENCE}, training count" in label
    }
    at = {int(re.search(r"count (?:[\d,]+ to )?([\d,]+):", label).group(1).replace(",", "")): x for label, x in points.items()}
    slope, start = np.polyfit([np.log2(high) for high in at if high], [at[high] for high in at if high], 1)
    [region] = [s for s in shapes(drawn["by_count"]) if s.paint.get("fill") == "var(--hits)"]
    assert region.box[2] == pytest.approx(start + slope * (4 + 0.5 + 4 / 16), abs=0.3)
    assert region.box[0] < min(at.values())


def test_matches_are_numbered_by_the_shortest_of_their_bucket(comparison):
    """Under the points of 4 to 7 stands a 4, where on an axis of distances it would be the longest. Gaps keep their places."""
    ends = {2: (4, 7), 3: (8, 15)}

    def longer(frame, name):
        if name != "by_match":
            return frame
        low, high = (pl.col("low").replace({old: new[side] for old, new in ends.items()}).cast(pl.Int64) for side in (0, 1))
        return frame.with_columns(low, high.alias("high"))

    found = shapes(svg(by_match(changed(comparison, longer))))
    points = {s.label: s for s in found if s.label and s.kind == "path" and s.label.startswith(f"{REFERENCE}, ")}
    at = {re.search(r"match length (\d+)", label).group(1): shape.x for label, shape in points.items()}
    assert sorted(at) == ["1", "4", "8"]
    numbers = [s for s in found if s.kind == "text" and s.text.isdigit()]
    below = {s.text: s.x for s in numbers if s.y > max(p.y for p in numbers) - 1}
    assert {low: below[low] for low in at} == pytest.approx(at, abs=0.6)
    assert (at["8"] - at["4"], at["4"] - at["1"]) == pytest.approx((below["3"] - below["2"], 3 * (below["3"] - below["2"])), abs=1)


@pytest.mark.parametrize(("largest", "edge"), [(0, 0.5), (1, 1.5), (2, 2.5), (3, 3.0), (4, 3.5), (5, 3.75), (1250, 11.5 + 226 / 1024)])
def test_edges_of_buckets(largest, edge):
    assert bucket_edge(largest) == pytest.approx(edge)


def test_positions_are_means_of_neighbouring_buckets(comparison, drawn):
    frame = comparison.tables.by_position
    high = frame["high"].max()
    labels_ = [s.label for s in shapes(drawn["by_position"]) if s.label and s.kind == "path"]
    tokens = frame.filter(model=MODELS[0])["tokens"].sum()
    mine = [
        re.fullmatch(r"(\S+), position ([\d,]+)(?: to ([\d,]+))?: ([\d.]+) nats, ([\d,]+) tokens?", label).groups() for label in labels_
    ]
    for model in (REFERENCE, *MODELS):
        of_model = [row for row in mine if row[0] == model]
        assert len(of_model) <= 2 * _POSITIONS
        assert sum(int(row[4].replace(",", "")) for row in of_model) == tokens
        column = "nll_reference" if model == REFERENCE else "nll_model"
        rows = frame.filter(model=MODELS[0] if model == REFERENCE else model)
        whole = (rows[column] * rows["tokens"]).sum()
        assert sum(float(row[3]) * int(row[4].replace(",", "")) for row in of_model) == pytest.approx(whole, rel=0.003)
        assert max(int((row[2] or row[1]).replace(",", "")) for row in of_model) == high


def test_shares_by_source_and_threshold_are_the_tables(comparison, drawn):
    interval = r"(-?[\d.]+) %(?: \((-?[\d.]+) % to (-?[\d.]+) %\))? of the gap, ([\d,]+) AR hits?"
    found = tips(marks(drawn["by_source"]), rf"(\S+), (\S+): {interval}")
    rows = {(r["model"], r["source"]): r for r in comparison.tables.gap.filter(slice="ar_hit").to_dicts() if r["source"] != "ALL"}
    shown = {key: r for key, r in rows.items() if not is_void(r)}
    assert {key[:2] for key in found} == set(shown)
    for model, source, share, low, _, tokens in found:
        row = shown[model, source]
        assert float(share) == pytest.approx(100 * row["gap_share"], abs=0.06)
        assert low is None or float(low) == pytest.approx(100 * row["ci_low"], abs=0.06)
        assert int(tokens.replace(",", "")) == row["tokens"]

    of_thresholds = {label: mark for label, mark in marks(drawn["by_threshold"]).items() if ", knee: " not in label}
    found = tips(of_thresholds, rf"(\S+), up to ([\d,]+): {interval}")
    sweep = {(r["model"], r["threshold"]): r for r in comparison.tables.by_threshold.to_dicts() if not is_void(r)}
    by_key = {(key[0], int(key[1].replace(",", ""))): (float(key[2]), shape) for key, shape in found.items()}
    assert by_key.keys() == sweep.keys()
    for key, (share, _) in by_key.items():
        assert share == pytest.approx(100 * sweep[key]["gap_share"], abs=0.06)
    for model in MODELS:
        mine = {key: shape for key, (_, shape) in by_key.items() if key[0] == model}
        check_scale([sweep[key]["gap_share"] for key in mine], [shape.y for shape in mine.values()], falls=True)
        check_scale([np.log2(t) + 1 if t else 0 for _, t in mine], [shape.x for shape in mine.values()])


def test_knees_are_marked_where_their_counts_are(comparison):
    """Costs of first occurrences such that the models' knees are at known counts: log2(1 + 40) of 50 and of 150 nats."""
    by_count = comparison.tables.by_count
    middle = ((1 + pl.col("low")).log(2) + (1 + pl.col("high")).log(2)) / 2
    counts = {REFERENCE: 150, MODELS[0]: 40, MODELS[1]: None}
    knee = pl.col("model").replace_strict({MODELS[0]: np.log2(41), MODELS[1]: 99.0}, return_dtype=pl.Float64)
    excess = {"model": 0.5 + knee - middle, "reference": 0.5 + np.log2(151) - middle}
    first = {f"nll_first_{side}": pl.col(f"nll_{side}") + nats for side, nats in excess.items()}
    bent = changed(comparison, lambda frame, name: by_count.with_columns(tokens=100, **first) if name == "by_count" else frame)
    [figure] = [figure for figure in figures(bent) if figure.name == "by_threshold"]
    largest = rounded(by_count["high"].max())
    assert figure.caption.endswith(f"{REFERENCE} 150, {MODELS[0]} 40, {MODELS[1]} above {largest}.")
    found = shapes(svg(figure))
    dots = {s.label: s for s in found if re.match(rf"{MODELS[0]}, up to", s.label)}
    at = {int(re.search(r"up to ([\d,]+):", label)[1].replace(",", "")): shape.x for label, shape in dots.items()}
    slope, start = np.polyfit([np.log2(count) for count in at if count], [x for count, x in at.items() if count], 1)
    [line] = [s for s in found if s.label == f"{MODELS[0]}, knee: 40"]
    assert line.x == pytest.approx(start + slope * np.log2(counts[MODELS[0]]), abs=0.3)
    same = [s for s in found if s.kind == "line" and s.y == line.y and s.x == pytest.approx(start + slope * np.log2(150), abs=0.3)]
    assert len(same) == 1, "the reference's"
    assert not [s for s in found if s.label.startswith(f"{MODELS[1]}, knee")]


HOSTILE = [EVIL, "", "a.b[c]", "line\nbreak", "models/" * 30 + "mamba", "models/" * 30 + "x/mamba", "datum['x']", "{'a': 1}[0]"]
LONG = [f"organisation/some-model-{number}.3b-instruct" for number in range(4)]


@pytest.fixture(scope="module")
def twelve(comparison) -> dict[str, str]:
    """Pictures of twelve models, of which most have names that are no names."""
    hostile = many(renamed(comparison, {REFERENCE: "ref\" & 'x'", "books": EVIL, "letters": "ALL"}), [*HOSTILE, *LONG])
    return {figure.name: svg(figure, PAPER) for figure in figures(hostile)}


def test_any_name_is_text(twelve):
    assert list(twelve) == NAMES
    for kind, text in twelve.items():
        found = shapes(text)
        assert "<script" not in text
        assert not [s for s in found if "\x1b" in s.text + s.label or "\n" in s.text + s.label]
        assert not re.search(r"http(?!://www.w3.org/2000/svg)", text)
        shown = " ".join(s.text for s in found)
        for name in ("a.b[c]", "line break", "datum['x']", "{'a': 1}[0]", "(no name)"):
            assert name in shown, (kind, name)
        assert all(len(s.text) <= 60 for s in found)


def test_short_names_keep_their_ends_and_differ():
    assert shorten("models/" * 30 + "mamba", 10) == "mode…mamba"
    folders = ["runs/attention/checkpoint-1000", "runs/mamba/checkpoint-1000", "runs/mamba-with-a-longer-name-than-that"]
    assert list(labels(folders, 24).values()) == ["runs/attent…ckpoint-1000", "runs/mamba/…ckpoint-1000", "mamba-with-…me-than-that"]
    assert list(labels(["models/of/mine/attention-360m", "x"]).values()) == ["attention-360m", "x"]
    found = labels(["models/" * 30 + "mamba", "others/models/" * 30 + "models/models/models/mamba", "mamba", "", "\x1b"], 12)
    assert len(set(found.values())) == 5
    assert all(1 <= len(label) <= 12 for label in found.values())
    assert [rounded(number) for number in (0, 1, 512, 1000, 1024, 1250, 32768, 1 << 20, 10**6)] == "0 1 512 1k 1k 1.25k 32k 1M 1M".split()


def test_twelve_models_are_shown_apart(twelve):
    for kind, text in twelve.items():
        boxes = []
        for s in shapes(text):
            if s.kind != "text" or not s.text or s.paint.get("stroke", "none") != "none":
                continue
            wide, anchor = 5.6 * len(s.text), s.paint.get("text-anchor", "start")
            left = s.x - (wide if anchor == "end" else wide / 2 if anchor == "middle" else 0)
            boxes.append((left, left + wide, s.y, s.text))
        width = float(re.search(r'viewBox="0 0 (\d+)', text).group(1))
        assert width < 420, kind
        assert [box for box in boxes if box[0] < -6 or box[1] > width + 12] == []
        for (a, b, y, one), (c, d, z, other) in itertools.combinations(boxes, 2):
            assert b < c + 2 or d < a + 2 or abs(y - z) > 9, (kind, one, other)


def test_what_has_nothing_to_show_is_left_out(comparison):
    def without_hits(frame, name):
        if name == "gap":
            hits = pl.col("slice") == "ar_hit"
            empty = [
                pl.when(hits).then(None).otherwise(pl.col(c)).alias(c) for c in ("nll_model", "nll_reference", "delta_nll", "gap_share")
            ]
            return frame.with_columns(*empty, tokens=pl.when(hits).then(0).otherwise(pl.col("tokens")))
        if name == "by_threshold":
            return frame.with_columns(gap_share=pl.lit(None, pl.Float64))
        return frame.clear()

    found = figures(changed(comparison, without_hits))
    assert [figure.name for figure in found] == ["perplexities", "gap_parts"]
    assert all("AR hits:" not in label for figure in found for label in marks(svg(figure)) if figure.name == "perplexities")
    void = changed(
        comparison, lambda frame, name: frame.with_columns(note=pl.lit(NOT_TOLD_FROM_ZERO)) if "note" in frame.columns else frame
    )
    names = [figure.name for figure in figures(void)]
    assert names == [name for name in NAMES[:7] if name != "by_partition"], "shares of a gap that is none"
    parts = svg(next(figure for figure in figures(void) if figure.name == "gap_parts"))
    assert sum("share means nothing" in s.text for s in shapes(parts)) == len(MODELS)
    assert not [s for s in shapes(parts) if s.paint.get("stroke-width") == "1.4"], "an interval of nothing"


def test_axes_say_what_they_show(drawn):
    titles = {
        "perplexities": {"perplexity"},
        "gap_parts": {"nats per token behind the reference"},
        "by_partition": {"share of the gap"},
        "by_count": {"training count of the bigram, up to", "NLL, nats per token"},
        "by_distance": {"tokens back to the bigram, up to", "NLL, nats per token"},
        "by_match": {"tokens matched, from", "NLL, nats per token"},
        "by_position": {"position in the sequence", "NLL, nats per token"},
        "by_source": {"AR hits' share of the gap, by source"},
        "by_threshold": {"AR hits' share of the gap", "AR hits are bigrams up to"},
    }
    assert titles.keys() == drawn.keys()
    for name, wanted in titles.items():
        assert wanted <= {shape.text for shape in shapes(drawn[name])}, name


def test_no_line_runs_through_a_name(comparison, drawn):
    """Behind every name is a strip of the page's colour, which is drawn after all lines that cross it."""
    for kind in ("perplexities", "gap_parts"):
        found = shapes(drawn[kind])
        named = [shape for shape in found if shape.kind == "text" and shape.text in (REFERENCE, *MODELS)]
        assert len(named) == len(MODELS) + (kind == "perplexities")
        for name in named:
            strips = [
                place
                for place, shape in enumerate(found)
                if shape.kind == "path"
                and shape.paint.get("fill") == "var(--page)"
                and _holds(shape.box, name.x, name.y, 6.5 * len(name.text))
            ]
            assert strips, (kind, name.text)
            after = [shape for shape in found[strips[-1] :] if shape.kind == "line"]
            assert not [line for line in after if line.y <= name.y <= line.y + float(line.attributes.get("y2", 0))], (kind, name.text)


def _holds(box: tuple[float, float, float, float], x: float, y: float, width: float) -> bool:
    return box[0] <= x + 0.1 and x + width <= box[2] + 0.1 and box[1] <= y - 8 and y + 3 <= box[3]


def scaled(comparison: Comparison, factor: float, model: str = MODELS[0]) -> Comparison:
    """The comparison with one model's NLLs, differences and shares times `factor`."""
    columns = ("nll_model", "delta_nll", "gap_share", "ci_low", "ci_high")
    is_one = pl.col("model") == model
    of = lambda frame, _: frame.with_columns(  # noqa: E731
        pl.when(is_one).then(pl.col(c) * factor).otherwise(pl.col(c)).alias(c) for c in columns if c in frame.columns
    )
    return changed(comparison, of)


def test_extreme_figures_leave_a_picture_its_ticks_and_its_size(comparison):
    """NLLs of which no perplexity is a float, and a gap a thousand times another's."""
    for draw in (perplexities, gap_parts, by_source, by_threshold):
        figure = draw(scaled(comparison, 3000.0))
        drawing = svg(figure)
        assert size_of(drawing)[0] < 420, figure.name
        ticks = [s for s in shapes(drawing) if s.kind == "text" and s.paint.get("text-anchor") == "middle" and re.match(r"[−\d]", s.text)]
        rows = {round(s.y) for s in ticks}
        assert rows, figure.name
        for y in rows:
            row = sorted((s.x, s.text) for s in ticks if round(s.y) == y)
            assert len({text for _, text in row}) >= 2, (figure.name, row)
            for (x, text), (after, following) in itertools.pairwise(row):
                assert after - x > 2.9 * (len(text) + len(following)), (figure.name, row)


def size_of(drawing: str) -> list[float]:
    return [float(number) for number in re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing).groups()]


def test_bands_and_lines_of_thresholds_end_at_the_plot(comparison):
    """Shares of several hundred per cent: what is beyond the axis is cut, not drawn over the names."""
    drawing = svg(by_threshold(scaled(comparison, 40.0, MODELS[1])))
    root = ET.fromstring(drawing)
    clips = {f"url(#{clip.get('id')})": clip[0] for clip in root.iter("{http://www.w3.org/2000/svg}clipPath")}
    heights = {key: float(rect.get("height")) for key, rect in clips.items()}
    assert set(heights.values()) == {100.0}
    curves = [(path, clip) for path, clip in clipped(root) if "L" in path.get("d", "") and not path.get("aria-label")]
    beyond = [clip for path, clip in curves if min(float(y) for y in re.findall(r"[ML]-?[\d.]+,(-?[\d.]+)", path.get("d"))) < -20]
    assert len(beyond) >= 2, "the band, and a line"
    assert set(beyond) <= set(clips)
    assert not [s for s in shapes(drawing) if s.label.startswith(f"{MODELS[1]}, up to") and s.y < 0], "a dot above the plot"


def clipped(element: ET.Element, clip: str = "") -> Iterator[tuple[ET.Element, str]]:
    """Every element with what cuts it, if anything does."""
    clip = element.get("clip-path", clip)
    yield element, clip
    for child in element:
        yield from clipped(child, clip)


def test_six_sources_are_drawn_and_the_others_named(comparison):
    def more(frame, name):
        if "source" not in frame.columns:
            return frame
        books = frame.filter(source="books")
        extra = [books.with_columns(source=pl.lit(f"source {n}"), tokens=pl.col("tokens") // (n + 2)) for n in range(20)]
        return pl.concat([frame, *extra])

    figure = by_source(changed(comparison, more))
    shown = {shape.text for shape in shapes(svg(figure)) if shape.text == "books" or shape.text.startswith(("source ", "letters"))}
    named = {name for name in ("books", "letters", *(f"source {n}" for n in range(20))) if re.search(rf"{name}\b", figure.caption)}
    assert len(shown) == 6
    assert len(named) == 12
    assert not shown & named
    assert figure.caption.endswith(" more.")
