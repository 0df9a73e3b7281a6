"""The gap and its parts, and the arithmetic on printed perplexities."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from recallkit.attribution import price
from recallkit.attribution.answer import PPL, enriched, gap_share, in_short, interval
from recallkit.attribution.charts import figures
from recallkit.attribution.context_gain import far_table, gains_table
from recallkit.attribution.divergence import divergence_table, in_a_sentence
from recallkit.attribution.knee import describe_knees, knee_facts
from recallkit.attribution.published import REFERENCE
from recallkit.counting.table import REPEATED_ONLY
from recallkit.display import cells, console
from recallkit.display.cells import (
    DASH,
    abbreviate,
    counted,
    percent,
    resampled,
    share_range,
    shares_of_leads,
)
from recallkit.display.exports import MOST_NAMED, Look, Measured, bare
from recallkit.display.tables import Table
from recallkit.measure.intervals import MIN_CLUSTERS
from recallkit.measure.shares import MODEL_BETTER, is_void
from recallkit.slicing.definitions import PARTITION, SPLIT, STANDARD
from recallkit.slicing.threshold import counts_warning
from recallkit.slicing.view import about_counts, what_is_copied, what_is_rare

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from recallkit.attribution.answer import Recalled
    from recallkit.attribution.comparison import Comparison
    from recallkit.attribution.published import PublishedGap, PublishedGroup
    from recallkit.attribution.tables import GapTables
    from recallkit.display.cells import Cell, Row

    Facts = Mapping[str, Any]

_KINDS = tuple(slice_.name for slice_ in SPLIT)
_MOST_AS_NAMED = 10
"""Models that a terminal shows in the order in which they were named; more are ranked by perplexity, as on a page."""
_MOST_SOURCES = 5
"""Sources in the table by source, as many as a terminal shows; the Parquet file and pages contain all."""


def look(comparison: Comparison, recalled: Recalled | None = None) -> Look:
    """A comparison as a terminal and its exports show it: slices and contexts that were asked for come right after the table of shares.

    `recalled`: how much of each model's gap would be gone if neither could recall, where that is known (`answer.Recalled`).
    """
    tables, slices, manifest, folder = comparison.tables, comparison.manifest["slices"], comparison.manifest, comparison.folder
    if len(comparison.models) > _MOST_AS_NAMED:
        tables = tables.ordered(comparison.models)
    totals, recalled, models = comparison.totals, recalled or {}, _models(tables)
    shown = shown_tables(tables, slices, manifest, recalled, _MOST_SOURCES)
    is_priced = tables.by_price is not None
    first = {name: shown[name] for name in _FIRST if name in shown and not (is_priced and name == "gap")}
    shares = share_notes((totals[model, "all"], totals[model, "ar_hit"]) for model in models)
    shares = [note for note in shares if not note.endswith(f": {MODEL_BETTER}")]  # the caption says so
    notes = [*_noise_of_reading(manifest.get("reading", {})), *_inexact(manifest["inexact"])]
    below = notes if is_priced else [*shares, *notes]  # shares are not in the table of prices
    warning = warn_of_counts(tables, slices)
    unseen = () if warning else about_counts(slices, None)
    knees = filter(None, [describe_knees(tables.by_count)])
    found = ("max_count", "threshold", "in_training")
    return Look(
        folder,
        "gap",
        comparison.tables,
        shown,
        lambda of: figures(comparison, of.gap["model"].unique().to_list()),
        comparison_answer(comparison, recalled),
        lines=[
            *below,
            *(shares if is_priced else ()),
            *unseen,
            *_bits_per_byte([totals[model, "all"] for model in models]),
            *knees,
        ],
        printed=[*first.values(), *(table for name, table in shown.items() if name not in first)],
        leading=len(first),
        brief=min(console.MOST_NOTES, len(below)),
        facts={
            **{name: slices.get(name) for name in found},
            "warning": warning,
            "knee": knee_facts(tables.by_count),
            **{name: manifest[name] for name in ("inexact", "in_context") if name in manifest},
            "clean": manifest.get("clean", False),
        },
        untold=("by_document",),
        measured=list(_measured(comparison)),
    )


def _measured(comparison: Comparison) -> Iterator[Measured]:
    """Figures for model cards, the reference first: perplexities, and the share of its gap that lies in AR hits."""
    text = ", ".join(bare(name) for name in (comparison.manifest["slices"].get("names") or ["text"])[:MOST_NAMED])
    whole, hits = ([comparison.totals[model, slice_] for model in _models(comparison.tables)] for slice_ in ("all", "ar_hit"))
    for side, rows in (("reference", list(zip(whole, hits, strict=True))[:1]), ("model", zip(whole, hits, strict=True))):
        for of_all, of_hits in rows:
            for name, row in (("Perplexity", of_all), ("Perplexity of AR hits", of_hits)):
                yield Measured(row[side], "perplexity", name, row[f"ppl_{side}"], text)
            if side == "model" and not of_hits["void"]:
                shared = f"Share of the gap to {of_hits['reference']} that lies in AR hits"
                yield Measured(of_hits["model"], "gap_share", shared, of_hits["gap_share"], text)


def comparison_answer(comparison: Comparison, recalled: Recalled) -> str:
    """The answer: where a gap lies, or, if that was asked, what state costs, and how far predictions are apart; `recalled` as in `look`."""
    tables = comparison.tables
    apart = "" if tables.by_divergence is None else f" {in_a_sentence(tables.by_divergence)}"
    if tables.by_price is not None:
        return price.answer(tables.by_price) + apart
    models, in_bits = _models(tables), bool(comparison.manifest["inexact"])
    return in_short(comparison.reference, models, comparison.totals, recalled, in_bits=in_bits) + apart


_FIRST = ("by_price", "gap", "by_slice", "by_overlap", "context_gain", "by_context", "divergence")
"""The table of shares, and those that there are only where somebody asked for what is in them."""


def warn_of_counts(tables: GapTables, slices: Mapping[str, Any]) -> str | None:
    """The warning of `counts_warning` for a comparison; `slices` is the labels' manifest."""
    model = _models(tables)[0]
    shares = tables.by_threshold.filter(model=model).select("threshold", "share_of_tokens").rows()
    return counts_warning(slices, _cells(tables)[model, "ALL", "ar_hit"]["share_of_tokens"], shares)


def shown_tables(
    tables: GapTables,
    slices: Mapping[str, Any],
    manifest: Mapping[str, Any],
    recalled: Recalled | None = None,
    most_sources: int | None = None,
) -> dict[str, Table]:
    """Every table with numbers that has something to show, by file name, the gap first.

    `slices` is the labels' manifest, `manifest` the comparison's; `recalled` as `look` has it.
    """
    found = {
        "gap": gap_table(tables, slices, recalled, has_own_tokenizers=bool(manifest.get("inexact"))),
        "comparators": comparators_table(tables),
        "by_source": by_source_table(tables, most_sources),
        "by_slice": given_table(tables),
        "by_overlap": overlap_table(tables),
        "by_partition": None if slices["counts"].get(REPEATED_ONLY) else partition_table(tables, slices),
        **context_tables(tables, manifest),
        "by_price": None if tables.by_price is None else price.price_table(tables.by_price, slices["seq_len"]),
        "divergence": None if tables.by_divergence is None else divergence_table(tables.by_divergence),
    }
    return {name: table for name, table in found.items() if table is not None}


def gap_table(tables: GapTables, slices: Mapping[str, Any], recalled: Recalled | None = None, *, has_own_tokenizers: bool = False) -> Table:
    """The reference and each model: perplexities, the gap, and the AR hits' share of it; arguments as of `shown_tables`.

    Of models with tokenizers of their own bits per byte, which compare them, if the bytes are known. A narrow terminal leaves out the
    gap in nats, then the perplexity of other tokens.
    """
    found, models = _cells(tables), _models(tables)
    first, hits = found[models[0], "ALL", "all"], found[models[0], "ALL", "ar_hit"]
    told = f"AR hits are {percent(hits['share_of_tokens'], 2)} of {first['tokens']:,} tokens. {what_is_rare(slices)} "
    is_tested = len(models) > 1 and first["effective_clusters"] >= MIN_CLUSTERS
    together = (
        f" Gaps are tested against zero over {'both' if len(models) == 2 else f'all {len(models):,}'} models (Holm)." if is_tested else ""
    )
    least, most = slices["max_count"] // 4, 4 * slices["max_count"]
    told += " ".join([*what_of_training(slices, first["tokens"]), f"Intervals: {resampled(first)}.{together}"])
    if most and any(found[model, "ALL", "ar_hit"]["range_low"] is not None for model in models):
        told += f" Range: the AR share at thresholds from {least:,} to {most:,}."
    told += _leads(tables)
    told += " Control: the share if AR hits differed as the first occurrences of their bigrams do."
    told += " Without recall: how much would be gone if neither model recalled there (`recallkit intervene`)." * bool(recalled)
    in_bits = has_own_tokenizers and first["bpb_reference"] is not None
    rows = gap_rows({(model, kind): row for (model, source, kind), row in found.items() if source == "ALL"}, models, in_bits=in_bits)
    quality = "Bits per byte" if in_bits else "Perplexity"
    warning = warn_of_counts(tables, slices)
    of_gap = ["AR\nshare", "95 %\ninterval", "range", "control"]
    if recalled:
        of_gap.append("without\nrecall")
        rows = [[*row, "" if row is rows[0] else _recall_share(recalled[row[0]]) if row[0] in recalled else DASH] for row in rows]
    kinds = {row[0].partition(":")[0] for row in rows}
    if kinds == {"zoo"}:
        rows = [[row[0].partition(":")[2], *row[1:]] for row in rows]
    return Table(
        f"{quality}, and how much of the gap to the reference lies in AR hits, in %",
        ["model", "all", "AR\nhits", "other", "gap", *of_gap],
        rows,
        caption="\n".join([told, *(about_counts(slices, warning) if warning else ())]),
        groups=[("", 1), (quality.lower(), 3), ("", 1), ("gap in AR hits (%)", len(of_gap))],
        optional=["gap", "other"],
    )


def gap_rows(totals: Mapping[tuple[str, str], Row], models: Sequence[str], *, in_bits: bool = False) -> list[list[str]]:
    """The reference and each model: perplexities of all tokens, AR hits and others; the gap; in % the share, interval, range, control.

    `in_bits`: bits per byte in place of perplexities, which are per token of the reference's.
    """
    of = {model: [totals[model, kind] for kind in _KINDS] for model in models}
    column, form = ("bpb", ".3f") if in_bits else ("ppl", PPL)
    quality = {side: cells.number(f"{column}_{side}", form) for side in ("reference", "model")}
    first = [of[models[0]][0]["reference"], *map(quality["reference"], of[models[0]]), "", "", "reference", "", ""]
    others = ([model, *map(quality["model"], of[model]), _gap(of[model][0]), *_of_hits(totals[model, "ar_hit"])] for model in models)
    return [first, *others]


_gap, _of_tokens = cells.number("delta_nll", "z.3f"), cells.share("share_of_tokens", 2)


def _of_hits(row: Row) -> list[str]:
    """The share of the gap, its interval, its range over thresholds, and the control, in % without the sign."""
    low, high, least, most = (
        None if row["void"] or row[name] is None else 100 * row[name] for name in ("ci_low", "ci_high", "range_low", "range_high")
    )
    return [_gap_share(row), cells.bounds(low, high, "z.1f"), cells.bounds(least, most, "z.0f"), _control_share(row)]


_gap_share, _control_share = (cells.valid(cells.in_percent(column)) for column in ("gap_share", "control_share"))
_recall_share = cells.in_percent("recall_share")


def what_of_training(slices: Mapping[str, Any], tokens: int) -> list[str]:
    """How much of the text is in the training text, if it is known, and how many of its tokens are left out for that, if any.

    `slices` is the labels' manifest, `tokens` the number of those compared.
    """
    copied, left_out = what_is_copied(slices), slices.get("num_rows", tokens) - tokens
    told, exactly = [copied] if copied else [], slices.get("read_exactly")
    if exactly:
        told.append(f"Left out: {counted(left_out, 'token')}, of which a variant reads the first {exactly:,} of every sequence exactly.")
    elif left_out:
        told.append(f"Left out (--clean): the {counted(left_out, 'token')} found there.")
    return told


def comparators_table(tables: GapTables) -> Table:
    """What the AR hits' share of the gap can be compared with, one row per model, besides the control in the table of the gap."""
    found, models = _cells(tables), _models(tables)
    columns: dict[str, Cell] = {
        "model": cells.name("model"),
        "enrichment": enriched,
        "repeated": lambda row: gap_share(found[row["model"], "ALL", "repeated"]),
        "95 % interval\nof the control": cells.share_interval("control_ci_low", "control_ci_high"),
    }
    return Table.of(
        "What the AR share can be compared with",
        columns,
        [found[model, "ALL", "ar_hit"] for model in models],
        "Enrichment: share of the gap in AR hits over their share of tokens. Repeated: share of the gap in all repeated bigrams, rare or "
        f"not ({percent(found[models[0], 'ALL', 'repeated']['share_of_tokens'], 2)} of tokens). The control is not subtracted."
        f"{_leads(tables)}",
    )


def share_notes(pairs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    """What is to be known of shares, a line for all models of which it holds; of each its rows of the gap table: all tokens, AR hits.

    Where it is only the AR hits' share that is void, that the model leads is a line of its own: other shares are of its lead.
    """
    told: dict[str, list[str]] = {}
    for whole, hits in pairs:
        if is_void(hits) and not is_void(whole) and whole["delta_nll"] < 0:
            told.setdefault(MODEL_BETTER, []).append(hits["model"])
        if hits["note"]:
            told.setdefault("the share means nothing: " * is_void(hits) + hits["note"], []).append(hits["model"])
    return [f"{cells.some_of(models)}: {note}" for note, models in told.items()]


def _leads(tables: GapTables, models: Sequence[str] | None = None) -> str:
    """Which of the models, of all if not given, have shares of a lead, after a space; empty if none has."""
    found = _cells(tables)
    wholes = [found[model, "ALL", "all"] for model in models or _models(tables)]
    return shares_of_leads(whole["model"] for whole in wholes if not is_void(whole) and whole["delta_nll"] < 0)


def _struck(rows: Iterable[Mapping[str, Any]]) -> str:
    """Why shares are struck out, after a space; empty if none is."""
    any_is = any(row["void"] and row["gap_share"] is not None for row in rows)
    return " Struck out: too little text for an interval, or a gap that may be zero (column note)." * any_is


def by_source_table(tables: GapTables, most_columns: int | None = None) -> Table | None:
    """The share of the gap by source, one row per model and one column per source, the largest first; None if there is only one source."""
    found, models = _cells(tables), _models(tables)
    sources = [source for (model, source, kind) in found if (model, kind) == (models[0], "ar_hit") and source != "ALL"]
    if len(sources) < 2:
        return None
    tokens = {source: found[models[0], source, "all"]["tokens"] for source in sources}
    shown = sorted(sources, key=lambda source: (-tokens[source], source))[:most_columns]
    leads = [
        f"{model} in {source}"
        for model in models
        for source in shown
        if not is_void(found[model, source, "ar_hit"]) and found[model, source, "all"]["delta_nll"] < 0
    ]
    hits = {model: [found[model, source, "ar_hit"] for source in shown] for model in models}
    told = [
        f"{counted(hidden, 'smaller source')}: see the Parquet file." if (hidden := len(sources) - len(shown)) else "",
        _struck(row for rows in hits.values() for row in rows).strip(),
        shares_of_leads(leads).strip(),
    ]
    return Table(
        "AR share of the gap by source",
        ["model", *(f"{source}\n{abbreviate(tokens[source])} tokens" for source in shown)],
        [["AR hits, of tokens", *map(_of_tokens, hits[models[0]])], *([model, *map(gap_share, rows)] for model, rows in hits.items())],
        " ".join(filter(None, told)) or None,
    )


def given_table(tables: GapTables) -> Table | None:
    """Perplexities and shares of the gap in the requested slices, one row per slice and model; None if there are none."""
    standard = [slice_.name for slice_ in STANDARD]
    names = [name for name in tables.gap["slice"].unique(maintain_order=True) if name not in standard]
    if not names:
        return None
    found = _cells(tables)
    rows = [found[model, "ALL", name] for name in names for model in _models(tables)]
    return Table.of(
        "The share of the gap to the reference in each slice",
        {
            **_OF_SLICE,
            "reference\nppl": cells.number("ppl_reference", PPL),
            "ppl": cells.number("ppl_model", PPL),
            "share": gap_share,
            "95 % interval": interval,
            "enrichment": enriched,
        },
        rows,
        f"{'Slices may overlap: their shares need not add up to 100 %. ' * (len(names) > 1)}"
        f"Enrichment: share of the gap over share of tokens.{_struck(rows)}{_leads(tables)}",
        groups=[("", 5), ("gap in the slice", 3)],
        optional=["reference\nppl", "ppl"],
    )


def overlap_table(tables: GapTables) -> Table | None:
    """The gap divided among the requested slices, one row per slice and model; None if there are not two."""
    if tables.by_overlap is None:
        return None
    found = {(row["slice"], row["model"]): row for row in tables.by_overlap.iter_rows(named=True)}
    names = list(dict.fromkeys(slice_ for slice_, _ in found))
    rows = [found[name, model] for name in names for model in _models(tables)]
    columns = {
        "share": gap_share,
        "95 % interval": interval,
        "enrichment": enriched,
        "undivided\nshare": cells.valid(cells.share("plain_share")),
    }
    return Table.of(
        "The gap to the reference divided among the slices",
        {**_OF_SLICE, **columns},
        rows,
        f"A token in several slices counts for each in equal parts{_sum(rows, ', so that tokens and shares')} (Shapley values)."
        f"{_leads(tables)}",
        optional=["enrichment"],
    )


def partition_table(tables: GapTables, slices: Mapping[str, Any]) -> Table:
    """Where the gap is: one column per class of PARTITION, with its share of tokens, and of each model's gap."""
    rows: dict[str, list[Row]] = {model: [] for model in _models(tables)}
    for row in tables.by_partition.iter_rows(named=True):
        rows[row["model"]].append({**row, "source": "ALL"})
    first, every = next(iter(rows.values())), [row for of in rows.values() for row in of]
    return Table(
        "Where the gap lies: each token by what of it is in the context already, and how often training saw its bigram",
        ["model", *(class_.name.replace(" ", "\n") for class_ in PARTITION)],
        [["share of tokens", *map(_of_tokens, first)], *([model, *map(gap_share, of)] for model, of in rows.items())],
        f"Rare bigrams: seen at most {slices['max_count']:,} times. The first class is the AR hits"
        f"{_sum(every, '; rows')}.{_struck(every)}{_leads(tables)}",
    )


def _sum(rows: Sequence[Row], what: str) -> str:
    """That shares add up to 100 %, after `what`; empty where one of them is struck out."""
    return "" if any(is_void(row) for row in rows if row["share_of_tokens"]) else f"{what} add up to 100 %"


def context_tables(tables: GapTables, manifest: Mapping[str, Any]) -> dict[str, Table]:
    """What is gained from far context, by file name; empty if that was not asked. `manifest` is the comparison's."""
    if tables.by_context is None:
        return {}
    return {"context_gain": gains_table(tables.by_context, manifest.get("in_context")), "by_context": far_table(tables.by_context)}


def _cells(tables: GapTables) -> dict[tuple[str, str, str], dict[str, Any]]:
    """(model, source, slice) -> row of the gap table; the source ALL is all of them, even if one is called so."""
    rows = reversed(tables.gap.to_dicts())  # the totals of each model come first
    return {(row["model"], row["source"], row["slice"]): row for row in rows}


def _models(tables: GapTables) -> list[str]:
    """The models, in the order in which they were named."""
    return tables.gap["model"].unique(maintain_order=True).to_list()


def _bits_per_byte(rows: list[Mapping[str, Any]]) -> list[str]:
    """One line: bits per byte, which compare models with different tokenizers. Empty if the bytes are not known."""
    if rows[0]["bpb_reference"] is None:
        return []
    pairs = [(rows[0]["reference"], rows[0]["bpb_reference"]), *((row["model"], row["bpb_model"]) for row in rows)]
    return ["Bits per byte: " + ", ".join(f"{model} {bits:.3f}" for model, bits in pairs)]


def _noise_of_reading(found: Mapping[str, Sequence[float]]) -> list[str]:
    """A line of what reading in chunks alone changes in a sequence, at most of all variants, if it changes anything."""
    most, mean = (max((of[place] for of in found.values()), default=0.0) for place in (0, 1))
    said = f"NLLs of a sequence that is read in chunks with nothing compressed differ by up to {most:.1e} nats, on average by {mean:.1e}"
    return [f"Noise: {said}"] if most else []


def _inexact(found: Mapping[str, Any]) -> list[str]:
    """A line for each model with a tokenizer of its own: how much of the text it splits elsewhere."""
    return [
        f"{model}: another tokenizer; {percent(share['all'])} of tokens{_and_hits(share.get('ar_hit'))} do not begin and end where "
        "its tokens do"
        for model, share in found.items()
    ]


def _and_hits(share: float | None) -> str:
    return "" if share is None else f", {percent(share)} of AR hits"


_OF_SLICE = {"slice": cells.name("slice"), "tokens": cells.share("share_of_tokens", 2), "model": cells.name("model")}


def published_json(published: PublishedGap) -> dict[str, Any]:
    """The arithmetic on printed perplexities, row by row."""
    return {"groups": [asdict(group) for group in published.groups], "rows": published.frame.to_dicts()}


def print_published(published: PublishedGap) -> None:
    """The range of the shares that printed perplexities imply, the tables of all groups, and what is remarkable about their rows."""
    notes = [note for group in published.groups for note in _group_notes(published, group)]
    console.print_found(_published_answer(published), list(published_tables(published).values()), notes, full=True)


def _published_answer(published: PublishedGap) -> str:
    """How much of the gaps lies in AR hits, at least none and at most all of it, of the models that are behind their reference."""
    rows = published.frame.to_dicts()
    nlls = {(row["group"], row["model"]): row["all"] for row in rows}
    references = {group.name: group.reference for group in published.groups}
    behind = [
        row
        for row in rows
        if row["gap_share"] is not None and not row["void"] and row["all"] > nlls[row["group"], references[row["group"]]]
    ]
    if not behind:
        return "No model is behind its reference by more than rounding."
    found = share_range(max(0.0, min(row["gap_share"], 1.0)) for row in behind)
    of = "their references" if len(references) > 1 else published.groups[0].reference
    who = f"{behind[0]['model']} loses" if len(behind) == 1 else f"{len(behind)} models lose"
    return f"{found} of what {who} to {of} lies in AR hits."


def _group_notes(published: PublishedGap, group: PublishedGroup) -> list[str]:
    named = f"{group.name}, " if len(published.groups) > 1 else ""
    return [
        f"{named}{row['model']}: {'the share means nothing: ' * row['void']}{row['note']}"
        for row in published.frame.filter(group=group.name).to_dicts()
        if row["note"] not in ("", REFERENCE)
    ]


@cells.valid
def _rounded_share(row: Row) -> str:
    """12.3 ± 0.4 %, the greater distance to what the unrounded perplexities can give; the share alone where that is not known."""
    share, low, high = row["gap_share"], row["gap_share_low"], row["gap_share_high"]
    if share is None or low is None or high is None:
        return percent(share)
    return f"{100 * share:z.1f} ± {100 * max(high - share, share - low):.1f} %"


def published_tables(published: PublishedGap) -> dict[str, Table]:
    """For export: a table for each group, named by its number where there are several."""
    if len(published.groups) == 1:
        return {"published": _group_table(published, published.groups[0])}
    return {f"published_{number}": _group_table(published, group) for number, group in enumerate(published.groups, 1)}


def _group_table(published: PublishedGap, group: PublishedGroup) -> Table:
    """One row per model, as in the given table; the share that it states itself, if it states any."""
    rows = published.frame.filter(group=group.name).to_dicts()
    is_stated, is_ranged = (any(row[name] is not None for row in rows) for name in ("printed", "gap_share_low"))
    implied = next(row["implied_ar_share"] for row in rows if row["model"] == group.reference)
    origin = f"by the row of {group.reference}" if group.ar_share == implied else "as given"
    columns = {
        "model": cells.name("model"),
        **{header: cells.number(column, PPL) for header, column in (("all", "all"), ("AR hits", "ar"), ("other", "other"))},
        "raw share": _rounded_share,
        "clipped": cells.valid(cells.share("gap_share_clipped")),
        **({"stated": cells.share("printed")} if is_stated else {}),
        "enrichment": enriched,
    }
    return Table.of(
        "Share of the gap that lies in AR hits, from printed perplexities" + (f": {group.name}" if group.name else ""),
        columns,
        rows,
        f"AR hits are {percent(group.ar_share, 2)} of tokens, {origin}. "
        f"{'After ±: how far the perplexities before rounding can move a share. ' * is_ranged}"
        "Enrichment: raw share over share of tokens.",
        groups=[("", 1), ("perplexity", 3), ("gap in AR hits", 3 + is_stated)],
    )
