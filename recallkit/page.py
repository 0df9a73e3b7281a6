"""One comparison as a page: what `recallkit gap` found, in words, a table and pictures, as one HTML file.

The page runs nothing and fetches nothing, and the same tables give the same bytes. All of its markup is made by `_tag`,
and everything that comes from data goes through `_text`.
"""

from __future__ import annotations

import html
import itertools
import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit import artifacts
from recallkit.attribution.shares import NO_GAP, NOT_TOLD_FROM_ZERO
from recallkit.console import abbreviate, percent
from recallkit.errors import UserError, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_TABLES = ("gap", "by_count", "by_distance", "by_position", "by_threshold")
_SLICES = {"all": "all tokens", "ar_hit": "AR hits", "other": "other tokens"}
_HEAD = b'<!doctype html>\n<html lang="en" data-made-by="recallkit">\n'
_NUM_SOURCES = 6
_FEW_TOKENS = 100
"""A mean over fewer tokens is drawn hollow."""
_NUM_COLOURS = 5
_WIDTH, _TOP, _ROW, _LINE = 420, 30.0, 46, 17
"""In units of the pictures: their width, what stands above the plot, a row with one model, a line of text (12 high)."""

_CSS = """
:root { color-scheme: light dark; --page: #fff; --ink: #1b1b1b; --soft: #5d6166; --rule: #dcdee1; --hits: #e69f00; --rest: #86919c }
@media screen and (prefers-color-scheme: dark) { :root { --page: #15171a; --ink: #e9e9e7; --soft: #a5abb2; --rule: #363b41 } }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; background: var(--page); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif }
h1 { font-size: 1.6rem; line-height: 1.25 } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem } h1, p, li, dd { overflow-wrap: anywhere }
.answer { font-size: 1.15rem } .notes, figcaption { font-size: .875rem } .notes, figcaption, .soft, s, dt { color: var(--soft) }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .35rem .5rem; text-align: right; vertical-align: bottom; border-bottom: 1px solid var(--rule); white-space: nowrap }
thead th { white-space: normal; min-width: 4.5rem }
th:first-child { text-align: left; white-space: normal; min-width: 8rem; overflow-wrap: anywhere }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 2rem }
figure { margin: 0; break-inside: avoid } svg { width: 100%; height: auto; fill: var(--ink); font: 12px system-ui, sans-serif }
text { paint-order: stroke; stroke: var(--page); stroke-width: 3px; font-variant-numeric: tabular-nums } svg .soft { fill: var(--soft) }
.end { text-anchor: end } .middle { text-anchor: middle } .rule { stroke: var(--rule) } .dashed { stroke-dasharray: 4 3 }
.ink { stroke: var(--ink); stroke-width: 1.5 } circle { stroke-width: 1.5 } rect { stroke-width: 0 }
.ar_hit, .rare { fill: var(--hits); stroke: var(--hits) } .other { fill: var(--rest); stroke: var(--rest) } .rare { opacity: .12 }
.m { stroke: var(--c); fill: var(--c) } polyline.m { fill: none; stroke-width: 2 } circle.hollow { fill: var(--page) }
.r { --c: var(--ink) } .m0 { --c: #0072b2 } .m1 { --c: #d55e00 } .m2 { --c: #009e73 } .m3 { --c: #cc79a7 } .m4 { --c: #56b4e9 }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .3rem 1rem } dd { margin: 0 }
@media print { body { max-width: none; padding: 0; font-size: 10pt } * { print-color-adjust: exact } }
"""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A comparison's tables as the page needs them. `models` are sorted by overall perplexity, the best first.

    slices: (model, slice) -> row of the gap table, all sources together; sources: tokens of each, the largest first;
    by_count (repeated tokens), by_distance (AR hits): rows of all models, in the order of buckets; manifest: of the gap.
    """

    reference: str
    models: list[str]
    slices: Mapping[tuple[str, str], dict[str, Any]]
    sources: Mapping[str, int]
    by_count: list[dict[str, Any]]
    by_distance: list[dict[str, Any]]
    manifest: Mapping[str, Any]

    def rows(self, table: list[dict[str, Any]]) -> dict[str, list[tuple[dict[str, Any], float]]]:
        """The rows of the reference and each model, each with its own NLL: any model's rows hold the reference's."""
        found = {self.reference: [(row, row["nll_reference"]) for row in table if row["model"] == self.models[0]]}
        return found | {model: [(row, row["nll_model"]) for row in table if row["model"] == model] for model in self.models}


def write_page(folder: Path) -> Path:
    """Writes `folder`/report.html from the tables of the comparison in `folder`, whole or not at all; returns the file.

    Raises UserError where tables are missing, damaged or of different comparisons, and where the file is not recallkit's own.
    """
    comparison, page = _read_comparison(folder), folder / "report.html"
    artifacts.check_replaceable(page, _HEAD)
    with artifacts.replacing(page) as temporary:
        temporary.write_bytes(_HEAD + _lay_out(comparison).encode())
    return page


def _read_comparison(folder: Path) -> _Comparison:
    import polars as pl

    files = {name: folder / f"{name}.parquet" for name in _TABLES}
    remedy = "make the tables with `recallkit gap REFERENCE MODEL... --slices DIR -o OUT`"
    missing = [path.name for path in files.values() if not path.is_file()]
    if missing:
        raise UserError(f"no tables of a comparison here ({missing[0]} is missing)", where=folder, remedy=remedy)
    manifests = [{**artifacts.read_manifest(path), "kind": "gap"} for path in files.values()]
    if any(manifest != manifests[0] for manifest in manifests):
        raise UserError("tables of different comparisons", where=folder, remedy=remedy)
    gap, by_count, by_distance = (pl.read_parquet(files[name]).to_dicts() for name in _TABLES[:3])
    # Of each model the totals stand first: a source that is itself called ALL comes after them.
    slices = {(row["model"], row["slice"]): row for row in reversed(gap) if row["source"] == "ALL"}
    sources = {row["source"]: row["tokens"] for row in gap[3:] if (row["model"], row["slice"]) == (gap[0]["model"], "all")}
    return _Comparison(
        reference=gap[0]["reference"],
        models=sorted({model for model, _ in slices}, key=lambda model: (slices[model, "all"]["nll_model"], model)),
        slices=slices,
        sources=dict(sorted(sources.items(), key=lambda item: (-item[1], item[0]))),
        by_count=[row for row in by_count if row["repeated"]],
        by_distance=[row for row in by_distance if row["ar_hit"]],
        manifest=manifests[0],
    )


def _lay_out(comparison: _Comparison) -> str:
    """The page after its first lines."""
    pictures = (_draw_perplexities(comparison), _draw_gaps(comparison), _draw_counts(comparison), _draw_distances(comparison))
    body = (
        _tag("h1", "How much of the perplexity gap to ", _text(comparison.reference), " is associative recall?"),
        _tag("p", _answer(comparison), class_="answer"),
        _tag("p", _text(_definition(comparison))),
        _results_table(comparison),
        _tag("div", *pictures, class_="pictures"),
        _tag("h2", "How it was measured"),
        _tag("dl", *(_tag("dt", _text(fact)) + _tag("dd", _text(value)) + "\n" for fact, value in _method(comparison).items())),
    )
    meta = '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    head = _tag("head", meta, _tag("title", "Recall in the gap to ", _text(comparison.reference)), "\n", _tag("style", _CSS))
    return f"{head}\n{_tag('body', _tag('main', *(part + chr(10) for part in body)))}\n</html>\n"


# ------------------------------------------------------------------------------------------------------------ words


def _text(value: object) -> str:
    """Data as text: markup in it is shown, not obeyed, and control characters are written out."""
    return html.escape(printable(str(value)))


def _tag(name: str, *children: str, **attributes: object) -> str:
    """An element around markup. Attributes are data; in their names `_` stands for `-`, and a last one is dropped."""
    shown = {key: f"{value:.2f}" if isinstance(value, float) else value for key, value in attributes.items()}
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"' for key, value in shown.items())
    return f"<{name}{written}>{''.join(children)}</{name}>"


def _ppl(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def _interval(row: Mapping[str, Any]) -> str:
    return "–" if row["ci_low"] is None else f"{100 * row['ci_low']:.1f} to {100 * row['ci_high']:.1f} %"


def _is_void(row: Mapping[str, Any]) -> bool:
    """Whether the share in a row means nothing: there is no gap to speak of, or nothing in the slice."""
    return row["gap_share"] is None or not {NO_GAP, NOT_TOLD_FROM_ZERO}.isdisjoint(row["note"].split("; "))


def _answer(comparison: _Comparison) -> str:
    """The question's answer: a sentence on the model nearest to the reference, and one on the farthest."""
    placed = sorted(comparison.models, key=lambda model: abs(comparison.slices[model, "all"]["delta_nll"]))
    if len(placed) == 1:
        return _claim(comparison, placed[0])
    places = {placed[0]: "Nearest to", placed[-1]: "Farthest from"}
    reference = _tag("b", _text(comparison.reference))
    return " ".join(f"{place} {reference} is {_claim(comparison, model)}" for model, place in places.items())


def _claim(comparison: _Comparison, model: str) -> str:
    """What part of one model's gap is recall, or that no part can be told."""
    whole, hits = comparison.slices[model, "all"], comparison.slices[model, "ar_hit"]
    subject = f"{_tag('b', _text(model))} (perplexity {_ppl(whole['ppl_model'])} against {_ppl(whole['ppl_reference'])})"
    gap = "lead" if whole["delta_nll"] < 0 else "gap"
    if _is_void(hits):
        return f"{subject}: a share of this {gap} means nothing ({_text(hits['note'])})."
    interval = f" (95 % interval {_interval(hits)})" if hits["ci_low"] is not None else ""
    note = f" ({_text(hits['note'])})" if hits["note"] else ""
    return f"{subject}: {_tag('strong', percent(hits['gap_share']))}{interval} of this {gap} is recall{note}."


def _definition(comparison: _Comparison) -> str:
    facts, hits = comparison.manifest["slices"], comparison.slices[comparison.models[0], "ar_hit"]
    return (
        f"Recall is the part of the gap that lies in AR hits: tokens that complete a bigram which stood earlier in the same "
        f"context and was seen at most {facts['max_count']:,} times in {facts['counts']['num_tokens']:,} training tokens. "
        f"They are {percent(hits['share_of_tokens'], 2)} of the tokens."
    )


def _results_table(comparison: _Comparison) -> str:
    """Perplexities and shares: the reference first, then the models by overall perplexity; below it what to know of a share."""
    heads = ("model", "perplexity of all tokens", "of AR hits", "of other tokens", "AR share of the gap", "95 % interval", "share, clipped")
    first = [comparison.slices[comparison.models[0], kind] for kind in _SLICES]
    cells = [_tag("td", _ppl(row["ppl_reference"])) for row in first] + [_tag("td", "reference", colspan=3, class_="soft")]
    rows, notes = [_tag("tr", _tag("th", _text(comparison.reference), scope="row"), *cells)], []
    for model in comparison.models:
        row, is_void = comparison.slices[model, "ar_hit"], _is_void(comparison.slices[model, "ar_hit"])
        cells = [_tag("td", _ppl(comparison.slices[model, kind]["ppl_model"])) for kind in _SLICES]
        shares = (percent(row["gap_share"]), _interval(row), percent(row["gap_share_clipped"]))
        cells += [_tag("td", _tag("s", share) if is_void and share != "–" else share) for share in shares]
        rows.append(_tag("tr", _tag("th", _text(model), scope="row"), *cells))
        if row["note"]:
            notes.append(_tag("li", _text(f"{model}: {'the share means nothing: ' * is_void}{row['note']}")))
    header = _tag("thead", _tag("tr", *(_tag("th", head, scope="col") for head in heads)))
    table = _tag("table", header, "\n", _tag("tbody", *(row + "\n" for row in rows)))
    region = _tag("div", table, class_="wide", role="region", tabindex=0, aria_label="Perplexities and shares of the gap")
    return region + (_tag("ul", *notes, class_="notes") if notes else "")


def _method(comparison: _Comparison) -> dict[str, str]:
    """How it was measured, fact by fact."""
    manifest, facts = comparison.manifest, comparison.manifest["slices"]
    counts, tokenizer, hits = facts["counts"], facts["tokenizer"], comparison.slices[comparison.models[0], "ar_hit"]
    sources = [f"{source} {tokens:,}" for source, tokens in comparison.sources.items()]
    more = [f"{len(sources) - _NUM_SOURCES:,} smaller ones"] if len(sources) > _NUM_SOURCES else []
    packing = "documents packed one after the other" if facts["boundary"] == "pack" else "the context reset at each document"
    options = f"--max-count {facts['max_count']} --seq-len {facts['seq_len']} --boundary {facts['boundary']}"
    inexact = [f"{percent(share['all'])} for {model}" for model, share in manifest["inexact"].items()]
    return {
        "Text": f"{facts['num_rows']:,} predicted tokens in {facts['num_sequences']:,} sequences of up to {facts['seq_len']:,}, {packing}",
        "Sources (tokens)": ", ".join(sources[:_NUM_SOURCES] + more),
        "AR hits": f"{hits['tokens']:,} tokens, p = {percent(hits['share_of_tokens'], 2)}; largest training count {facts['max_count']:,}, "
        f"that is {abbreviate(facts['max_count'] / max(1, counts['num_tokens']) * 1e9)} a billion training tokens",
        "Training counts": f"{counts['num_tokens']:,} tokens, {counts['num_bigrams']:,} distinct bigrams; id {counts['id']}",
        "Tokenizer": f"{tokenizer['name']}, {tokenizer['vocab_size']:,} entries; digest {tokenizer['digest']}",
        **({"Tokenizers of their own": f"tokens that do not begin and end where theirs do: {', '.join(inexact)}"} if inexact else {}),
        "Share of the gap": "difference in NLL (the logarithm of perplexity) summed over the AR hits, divided by the same over all tokens "
        "(Zoology, section 3.1); clipped: at most 100 %, as the papers print it",
        "Interval": "95 %, percentile bootstrap over sequences",
        "Program": f"recallkit {manifest['recallkit_version']}, table schema {manifest['schema_version']}",
        "Made again by": f"recallkit slice TEXT... --counts COUNTS {options} -o DIR, then "
        f"recallkit gap {shlex.join([comparison.reference, *manifest['models']])} --slices DIR",
        "Slices": f"sequences {facts['sequences_digest']}",
    }


# --------------------------------------------------------------------------------------------------------- pictures


@dataclass(frozen=True, slots=True)
class _Scale:
    """Values to units of a picture: a linear axis from `start` to `stop`, whose first and last ticks stand at its ends."""

    ticks: Sequence[float]
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0]) * (self.stop - self.start)


def _fit_scale(values: Sequence[float], start: float, stop: float) -> _Scale:
    """A scale that holds all values; its ticks are multiples of 1, 2 or 5 times a power of ten, at most seven steps."""
    low, high = min(values), max(values)
    rough = (high - low or 1.0) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.floor(low / step)
    return _Scale([place * step for place in range(first, max(first + 1, math.ceil(high / step)) + 1)], start, stop)


def _picture(title: str, caption: str, height: float, *parts: str) -> str:
    drawing = _tag("svg", "\n".join(parts), viewBox=f"0 0 {_WIDTH} {height:.0f}", role="img", aria_label=f"{title}. {caption}")
    return _tag("figure", _tag("h2", _text(title)), drawing, _tag("figcaption", _text(caption)))


def _label(text: str, x: float, y: float, kind: str = "") -> str:
    return _tag("text", _text(text), x=x, y=y, class_=kind)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return _tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def _shorten(name: str, length: int) -> str:
    """The ends of long names tell models apart, not their beginnings."""
    name = printable(name)
    return name if len(name) <= length else "…" + name[1 - length :]


def _row_head(name: str, figures: str, place: int) -> str:
    """The first line of row `place`: the model on the left, its figures on the right."""
    y = _TOP + _ROW * place + 14.0
    return _label(_shorten(name, 26), 0, y) + _label(figures, _WIDTH, y, "soft end")


def _axis(scale: _Scale, bottom: float, unit: str, *, with_ppl: bool = False) -> list[str]:
    """Grid lines with the ticks in nats below them, and below those, where wanted, their perplexities."""
    parts = [_line(scale(tick), _TOP, scale(tick), bottom, "rule") for tick in scale.ticks]
    parts += [_label(f"{tick:.4g}", scale(tick), bottom + _LINE, "soft middle") for tick in scale.ticks]
    if with_ppl:
        parts += [_label(abbreviate(math.exp(min(tick, 700.0))), scale(tick), bottom + 2 * _LINE, "soft middle") for tick in scale.ticks]
    return [*parts, _label(unit, _WIDTH / 2, bottom + (2 + with_ppl) * _LINE, "soft middle")]


def _key(*marks: str) -> list[str]:
    """What the marks of a picture mean, in a line on top of it; each mark is drawn around x = 6, y = 10."""
    names = ("AR hits", "other tokens", "reference" if len(marks) > 2 else "")
    return [
        _tag("g", mark, _label(name, 16, 14), transform=f"translate({x} 0)")
        for mark, name, x in zip(marks, names, (0, 90, 205), strict=False)
    ]


def _dot(kind: str, x: float, y: float) -> str:
    """A filled dot for AR hits, a ring for other tokens."""
    return _tag("circle", cx=x, cy=y, r=5, class_=kind if kind == "ar_hit" else f"{kind} hollow")


def _draw_perplexities(comparison: _Comparison) -> str:
    table = [row for (_, kind), row in comparison.slices.items() if kind != "all" and row["tokens"]]
    sides = comparison.rows(table)
    bottom = _TOP + _ROW * len(sides) + 4.0
    scale = _fit_scale([nll for points in sides.values() for _, nll in points], 18, _WIDTH - 18)
    parts = _key(_dot("ar_hit", 6, 10), _dot("other", 6, 10), _line(6, 3, 6, 17, "ink dashed"))
    parts += _axis(scale, bottom, "NLL in nats a token; below it the perplexity", with_ppl=True)
    parts += [_line(scale(nll), _TOP, scale(nll), bottom, f"{row['slice']} dashed") for row, nll in sides[comparison.reference]]
    for place, (name, points) in enumerate(sides.items()):
        y, xs = _TOP + _ROW * place + 30.0, [scale(nll) for _, nll in points]
        shown = {row["slice"]: _ppl(row["ppl_model" if place else "ppl_reference"]) for row, _ in points}
        parts.append(_row_head(name, f"AR hits {shown.get('ar_hit', '–')}, other {shown.get('other', '–')}", place))
        parts += [_line(min(xs), y, max(xs), y, "rule"), *(_dot(row["slice"], x, y) for (row, _), x in zip(points, xs, strict=True))]
    caption = "Perplexity on AR hits and on other tokens. The dashed lines are the reference's."
    return _picture("Where the models differ", caption, bottom + 3 * _LINE + 6, *parts)


def _draw_gaps(comparison: _Comparison) -> str:
    """A bar a model: its parts side by side from zero, those of a lead to the left, and the interval of the AR hits' part."""
    bars = {model: [comparison.slices[model, kind] for kind in ("ar_hit", "other")] for model in comparison.models}
    spans = {model: _stack([(row["delta_nll"] or 0.0) * row["share_of_tokens"] for row in rows]) for model, rows in bars.items()}
    whiskers = {model: _whisker(rows[0], comparison.slices[model, "all"]["delta_nll"]) for model, rows in bars.items()}
    bottom = _TOP + _ROW * len(bars) + 4.0
    ends = [end for model in bars for span in (*spans[model], whiskers[model]) for end in span]
    scale = _fit_scale([0.0, *ends], 18, _WIDTH - 18)
    parts = _key(*(_tag("rect", x=1, y=5, width=10, height=10, class_=kind) for kind in ("ar_hit", "other")))
    parts += [*_axis(scale, bottom, "nats a token behind the reference"), _line(scale(0.0), _TOP, scale(0.0), bottom, "ink")]
    for place, (model, rows) in enumerate(bars.items()):
        y = _TOP + _ROW * place + 21.0
        share = "share means nothing" if _is_void(rows[0]) else f"{percent(rows[0]['gap_share'])} in AR hits"
        parts.append(_row_head(model, f"{comparison.slices[model, 'all']['delta_nll']:.3f} nats, {share}", place))
        for row, (low, high) in zip(rows, spans[model], strict=True):
            parts.append(_tag("rect", x=scale(low), y=y, width=scale(high) - scale(low), height=18, class_=f"{row['slice']} bar"))
        if whiskers[model]:
            low, high = (scale(end) for end in whiskers[model])
            parts += [_line(low, y + 9, high, y + 9, "ink"), *(_line(x, y + 5, x, y + 13, "ink") for x in (low, high))]
    caption = "The gap to the reference, split over AR hits and other tokens, with the 95 % interval of the AR hits' share."
    return _picture("What the gap is made of", caption, bottom + 2 * _LINE + 6, *parts)


def _stack(parts: Sequence[float]) -> list[tuple[float, float]]:
    """Low and high end of each part: positive ones upwards from zero, one on the other, negative ones downwards."""
    ends, spans = {True: 0.0, False: 0.0}, []
    for part in parts:
        start = ends[part > 0]
        ends[part > 0] += part
        spans.append((min(start, start + part), max(start, start + part)))
    return spans


def _whisker(hits: Mapping[str, Any], gap: float) -> tuple[float, ...]:
    """The interval of the AR hits' share, in nats of the gap; empty where there is none, or none with a meaning."""
    return () if _is_void(hits) or hits["ci_low"] is None else (hits["ci_low"] * gap, hits["ci_high"] * gap)


def _draw_counts(comparison: _Comparison) -> str:
    edge = _bucket_edge(comparison.manifest["slices"]["max_count"])
    caption = "NLL of tokens that complete a repeated bigram, by how often training had the bigram; those up to the threshold are AR hits."
    return _draw_lines(comparison, comparison.by_count, "By training count", caption, "training count of the bigram, up to", edge)


def _draw_distances(comparison: _Comparison) -> str:
    caption = "NLL of AR hits, by the distance to the latest earlier occurrence of their bigram in the context."
    return _draw_lines(comparison, comparison.by_distance, "By distance", caption, "tokens back to the bigram, up to")


def _bucket(low: int) -> int:
    """The place of a log2 bucket on its axis: 0 (0), 1 (1), 2 (2), 3 to 4 (3), 5 to 8 (4) ..."""
    return (low - 1).bit_length() + 1 if low else 0


def _bucket_edge(largest: int) -> float:
    """Where, on the axis of buckets, the counts up to `largest` end: within a bucket, in proportion."""
    size = 1 << max(0, _bucket(largest) - 2)
    return _bucket(largest) + 0.5 - (-largest % size) / size


def _draw_lines(
    comparison: _Comparison, table: list[dict[str, Any]], title: str, caption: str, unit: str, edge: float | None = None
) -> str:
    """A line a model over log2 buckets, named at its right end; up to `edge` (in buckets) the counts of AR hits."""
    caption = f"{caption} Hollow: fewer than {_FEW_TOKENS} tokens."
    if not table:
        return _picture(title, f"{caption} There are none.", 1)
    sides, bottom = comparison.rows(table), _TOP + max(220.0, 15.0 * (len(comparison.models) + 1))
    heights = _fit_scale([nll for points in sides.values() for _, nll in points], bottom, _TOP)
    buckets = [_bucket(row["low"]) for row in table]
    places = _Scale([min(buckets) - 0.5, max(buckets) + 0.5], 30, 286)
    parts = [] if edge is None else _shade(places, edge, bottom)
    parts += _line_axes(places, heights, unit)
    names = _spread([heights(points[-1][1]) for points in sides.values()], 15, bottom)
    for index, ((name, points), y) in reversed(list(enumerate(zip(sides.items(), names, strict=True)))):  # the reference on top
        paint = f"m m{(index - 1) % _NUM_COLOURS}" if index else "m r"
        is_dashed = index == 0 or (index - 1) // _NUM_COLOURS % 2
        dots = [(places(_bucket(row["low"])), heights(nll)) for row, nll in points]
        path = " ".join(f"{x:.1f},{height:.1f}" for x, height in [*dots, (places.stop + 8, y), (places.stop + 14, y)])
        parts.append(_tag("polyline", points=path, class_=paint + " dashed" * bool(is_dashed)))
        parts += [_line_dot(row, nll, dot, paint) for (row, nll), dot in zip(points, dots, strict=True)]
        parts.append(_label(_shorten(name, 15), places.stop + 18, y + 4))
    return _picture(title, caption, bottom + 2 * _LINE + 6, *parts)


def _shade(places: _Scale, edge: float, bottom: float) -> list[str]:
    """What lies before `edge` in the colour of AR hits."""
    width = places(min(max(edge, places.ticks[0]), places.ticks[-1])) - places.start
    area = _tag("rect", x=places.start, y=_TOP, width=width, height=bottom - _TOP, class_="rare")
    return [area, _label("AR hits", places.start + 4, _TOP - 5)]


def _line_axes(places: _Scale, heights: _Scale, unit: str) -> list[str]:
    """NLL upwards with grid lines; the upper ends of up to seven buckets below."""
    parts = [_line(places.start, heights(tick), places.stop, heights(tick), "rule") for tick in heights.ticks]
    parts += [_label(f"{tick:.4g}", places.start - 5, heights(tick) + 4, "soft end") for tick in heights.ticks]
    first, last = math.ceil(places.ticks[0]), math.floor(places.ticks[-1])
    for bucket in range(first, last + 1, math.ceil((last - first + 1) / 7)):
        parts.append(_label(abbreviate(1 << bucket >> 1), places(bucket), heights.start + _LINE, "soft middle"))
    below = _label(unit, (places.start + places.stop) / 2, heights.start + 2 * _LINE, "soft middle")
    return [*parts, _label("NLL, nats a token", places.stop, _TOP - 5, "soft end"), below]


def _line_dot(row: Mapping[str, Any], nll: float, dot: tuple[float, float], paint: str) -> str:
    """A bucket's mean, with what it is of for those who point at it."""
    told = _tag("title", f"{row['low']:,} to {row['high']:,}: {nll:.3f} nats, {row['tokens']:,} tokens")
    return _tag("circle", told, cx=dot[0], cy=dot[1], r=3, class_=paint + " hollow" * (row["tokens"] < _FEW_TOKENS))


def _spread(heights: Sequence[float], gap: float, bottom: float) -> list[float]:
    """The heights moved apart to at least `gap`, in their order, none below `bottom`."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    moved = list(heights)
    for above, index in itertools.pairwise(order):
        moved[index] = max(moved[index], moved[above] + gap)
    for index in reversed(order):
        moved[index] = min(moved[index], bottom)
        bottom = moved[index] - gap
    return moved
