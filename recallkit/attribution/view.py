"""A comparison as people see it: the answer, the table, and on request thresholds, control, sources, slices and classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.attribution import placebo, price
from recallkit.attribution.answer import PPL, in_short
from recallkit.attribution.charts import figures
from recallkit.attribution.context_gain import far_table, gains_table
from recallkit.attribution.divergence import divergence_table, in_a_sentence
from recallkit.attribution.tables import HITS_OF_REPEATED, has_counts, hit_of, rows_by_slice
from recallkit.counting.table import REPEATED_ONLY
from recallkit.display import cells, console
from recallkit.display.cells import (
    DASH,
    abbreviate,
    counted,
    percent,
    resampled,
    shares_of_leads,
    some_of,
)
from recallkit.display.exports import MOST_NAMED, Look, Measured, bare
from recallkit.display.tables import Table
from recallkit.measure.ratio import MIN_CLUSTERS
from recallkit.measure.rows import count_cuts
from recallkit.measure.shares import is_void
from recallkit.models.prefix import other_prefixes
from recallkit.slicing.definitions import PARTITION, STANDARD
from recallkit.slicing.threshold import counts_warning
from recallkit.slicing.view import about_counts, what_is_copied, what_is_rare

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from recallkit.attribution.comparison import Comparison
    from recallkit.attribution.tables import GapTables
    from recallkit.display.cells import Cell, Row

    Causal = Mapping[str, Row]
    """By model its causal recall on AR hits, `points` and `retained`, where an intervention measured it."""

_MOST_AS_NAMED = 10
"""Models that a terminal shows in the order in which they were named; more are ranked by perplexity, as on a page."""
_MOST_SOURCES = 5
"""Sources in the table by source, as many as a terminal shows; the Parquet file and pages contain all."""
_FIRST = ("by_price", "gap", "by_slice", "context_gain", "by_context", "divergence", "by_placebo")
"""The first table, and those that there are only where somebody asked for what is in them."""


def look(comparison: Comparison, causal: Causal | None = None) -> Look:
    """A comparison as a terminal and its exports show it: what was asked for comes right after the first table.

    `causal`: the causal recall of the same models on the same text, where that is known.
    """
    tables, manifest = comparison.tables, comparison.manifest
    if len(comparison.models) > _MOST_AS_NAMED:
        tables = tables.ordered(comparison.models)
    shown = shown_tables(tables, manifest, causal, _MOST_SOURCES)
    is_priced = tables.by_price is not None
    first = [table for name, table in shown.items() if name in _FIRST and not (is_priced and name == "gap")]
    rest = [table for table in shown.values() if table not in first]
    totals, models = comparison.totals, _models(tables)
    notes = [
        *other_prefixes(manifest["prefixes"]),
        *_noise_of_reading(manifest.get("reading", {})),
        *_inexact(manifest["inexact"]),
    ]
    shares = void_notes(totals[model, "ar_hit"] for model in models)
    below = notes if is_priced else [*shares, *notes]
    warning = warn_of_counts(tables, manifest["slices"])
    labels = {name: manifest["slices"].get(name) for name in ("max_count", "threshold", "in_training")}
    more: dict[str, object] = {name: manifest[name] for name in ("prefixes", "inexact", "in_context") if name in manifest}
    return Look(
        comparison.folder,
        "gap",
        comparison.tables,
        shown,
        lambda chosen: figures(comparison, chosen.gap["model"].unique().to_list()),
        comparison_answer(comparison),
        lines=[
            *below,
            *(shares if is_priced else ()),
            *(() if warning else about_counts(manifest["slices"], None)),
            *_bits_per_byte([totals[model, "all"] for model in models]),
        ],
        printed=[*first, *rest],
        leading=len(first),
        brief=min(console.MOST_NOTES, len(below)),
        facts={**labels, "warning": warning, **more, "clean": manifest.get("clean", False)},
        untold=("by_document",),
        measured=list(_measured(comparison)),
    )


def _measured(comparison: Comparison) -> Iterator[Measured]:
    """Figures for model cards, the reference first: perplexities, recall gain, and what is retained of the reference's."""
    text = ", ".join(bare(name) for name in (comparison.manifest["slices"].get("names") or ["text"])[:MOST_NAMED])
    pairs = [[comparison.totals[model, slice_] for slice_ in ("all", "ar_hit")] for model in _models(comparison.tables)]
    for side, rows in (("reference", pairs[:1]), ("model", pairs)):
        for of_all, of_hits in rows:
            yield Measured(of_all[side], "perplexity", "Perplexity", of_all[f"ppl_{side}"], text)
            if of_hits["tokens"]:
                yield Measured(of_all[side], "perplexity", f"Perplexity of {comparison.hit}s", of_hits[f"ppl_{side}"], text)
                yield Measured(of_all[side], "recall_gain", f"Recall gain on {comparison.hit}s", of_hits[f"gain_{side}"], text)
            if side == "model" and of_hits["retained"] is not None:
                name = f"Retained of the recall of {of_hits['reference']}"
                yield Measured(of_all[side], "recall_retained", name, of_hits["retained"], text)


def comparison_answer(comparison: Comparison) -> str:
    """What is retained, how far behind on AR hits, where the gap lies; or what was asked besides."""
    tables = comparison.tables
    if tables.by_price is not None:
        answer = price.answer(tables.by_price)
    else:
        answer = in_short(comparison.reference, _models(tables), comparison.totals)
    if tables.by_placebo is not None:
        answer += f" {placebo.in_a_sentence(tables.by_placebo, comparison.totals)}"
    if tables.by_divergence is not None:
        answer += f" {in_a_sentence(tables.by_divergence)}"
    return _plain(answer, tables)


def warn_of_counts(tables: GapTables, slices: Mapping[str, Any]) -> str | None:
    """The warning of `counts_warning` for a comparison; `slices` is the labels' manifest."""
    if not has_counts(slices):
        return None
    model = _models(tables)[0]
    shares = tables.by_threshold.filter(model=model).select("threshold", "share_of_tokens").rows()
    return counts_warning(slices, _rows(tables)[model, "ALL", "ar_hit"]["share_of_tokens"], shares)


def shown_tables(
    tables: GapTables, manifest: Mapping[str, Any], causal: Causal | None = None, most_sources: int | None = None
) -> dict[str, Table]:
    """Every table with numbers that has something to show, by file name, the gap first; `manifest`: the comparison's."""
    slices, totals = manifest["slices"], {(row["model"], row["slice"]): row for row in _rows(tables).values() if row["source"] == "ALL"}
    shown = {
        "gap": gap_table(tables, slices, has_own_tokenizers=bool(manifest.get("inexact"))),
        "causal": causal_table(tables, causal or {}),
        "thresholds": thresholds_table(tables, slices) if has_counts(slices) else None,
        "control": control_table(tables, _hits(slices)),
        "by_source": by_source_table(tables, _hits(slices), most_sources),
        "by_slice": by_slice_table(tables),
        "by_partition": partition_table(tables, slices) if _has_all_counts(slices) else None,
        **context_tables(tables, manifest),
        "by_price": None if tables.by_price is None else price.price_table(tables.by_price),
        "by_placebo": None if tables.by_placebo is None else placebo.placebo_table(tables.by_placebo, totals),
        "divergence": None if tables.by_divergence is None else divergence_table(tables.by_divergence),
    }
    return {name: table for name, table in shown.items() if table is not None}


# ------------------------------------------------------------------------------------------- the first table


def gap_table(tables: GapTables, slices: Mapping[str, Any], *, has_own_tokenizers: bool = False) -> Table:
    """The reference and each model: perplexities, the gap, recall gain, what is retained, and where the gap lies.

    Of models with tokenizers of their own bits per byte, which compare them, if the bytes are known. A narrow
    terminal leaves out the perplexity of other tokens.
    """
    first = _rows(tables)[_models(tables)[0], "ALL", "all"]
    in_bits = has_own_tokenizers and first["bpb_reference"] is not None
    rows = cells.without_zoo(first_table_rows(tables, in_bits=in_bits))
    quality = "Bits per byte" if in_bits else "Perplexity"
    form = ".3f" if in_bits else PPL
    hits = "AR\nhits" if has_counts(slices) else "rep."
    columns: dict[str, Cell] = {
        "model": cells.name("model"),
        "all": cells.number("all", form),
        hits: cells.number("hits", form),
        "other": cells.number("other", form),
        "gap,\nnats": _of_models(cells.number("delta_nll", "z.3f")),
        "gain,\npts": cells.in_percent("gain"),
        "retained, %": _of_models(_RETAINED, "reference"),
        "share in\nAR hits, %": _of_models(_SHARE),
        "all\nrep.": _of_models(_repeated),
    }
    shares = 2
    if not has_counts(slices):  # all repeated bigrams take the place of AR hits
        columns.pop("all\nrep.")
        columns["share of the\ngap, %"] = columns.pop("share in\nAR hits, %")
        shares = 1
    return Table.of(
        f"{quality}, recall, and where the gap to the reference lies",
        columns,
        rows,
        _first_caption(tables, slices),
        groups=[("", 1), (quality.lower(), 3), ("", 1), ("recall", 2), ("share of the gap", shares)],
        optional=["other"],
    )


def _sound(cell: Cell) -> Cell:
    """A figure that depends on a share of the gap: a dash where that is void, since it may be of any size."""
    return lambda row: DASH if row["void"] else cell(row)


_RETAINED = cells.with_interval("retained", "z.0f", 100)
_SHARE = _sound(cells.with_interval("gap_share", "z.0f", 100))


def _repeated(row: Row) -> str:
    """The share in all repeated bigrams."""
    cell = _sound(lambda repeated: DASH if repeated["gap_share"] is None else f"{100 * repeated['gap_share']:z.0f}")
    return cell(row["repeated"])


def _of_models(cell: Cell, reference: str = "") -> Cell:
    """A column that only models other than the reference have."""
    return lambda row: reference if row["is_reference"] else cell(row)


def first_table_rows(tables: GapTables, *, in_bits: bool = False) -> list[dict[str, Any]]:
    """A row for the reference and each model: that of its AR hits, with what the first table shows of other slices.

    `all`, `hits`, `other`: perplexities, or with `in_bits` bits per byte; `gain` of the row's own side.
    """
    by_key, models = _rows(tables), _models(tables)
    quality = "bpb" if in_bits else "ppl"
    rows = []
    for model in (None, *models):
        side = "reference" if model is None else "model"
        slices = {name: by_key[model or models[0], "ALL", name] for name in ("all", "ar_hit", "other", "repeated")}
        row = {**slices["ar_hit"], "repeated": slices["repeated"], "is_reference": model is None}
        row |= {name: slices[slice_][f"{quality}_{side}"] for name, slice_ in (("all", "all"), ("hits", "ar_hit"), ("other", "other"))}
        row |= {"model": row[side], "gain": row[f"gain_{side}"], "delta_nll": slices["all"]["delta_nll"]}
        rows.append(row)
    return rows


def _first_caption(tables: GapTables, slices: Mapping[str, Any]) -> str:
    """What the columns of the first table are, and what its figures depend on."""
    by_key, models = _rows(tables), _models(tables)
    first, hits, repeated = (by_key[models[0], "ALL", name] for name in ("all", "ar_hit", "repeated"))
    kind, rare = _hits(slices), what_is_rare(slices)
    shares = f"All rep.: share in all repeated bigrams, {percent(repeated['share_of_tokens'], 0)} of tokens."
    if not has_counts(slices):
        rare = "Without training counts it is unknown which of them are rare (AR hits) and so hardly memorised; "
        rare += "--train SOURCE gives the counts."
        shares = "Share of the gap: the part that repeated bigrams (rep.) carry."
    sentences = [
        f"{_capital(kind)} are {percent(hits['share_of_tokens'], 2)} of {first['tokens']:,} tokens.",
        rare,
        *what_of_training(slices, first["tokens"]),
        f"Gain: p(token) on {kind} less p at the bigram's first occurrence, in points. Retained: gain in % of the reference's.",
        shares,
        f"{'Intervals:' if first['delta_nll_ci_low'] is None else 'Brackets: 95 % intervals,'} {resampled(first)}.",
    ]
    warning = warn_of_counts(tables, slices)
    caption = " ".join(sentences) + _leads(tables)
    return "\n".join([_plain(caption, tables), *(about_counts(slices, warning) if warning else ())])


def _has_all_counts(slices: Mapping[str, Any]) -> bool:
    """Whether the counts of new bigrams are known, too."""
    return has_counts(slices) and not slices["counts"].get(REPEATED_ONLY)


def _hits(slices: Mapping[str, Any]) -> str:
    """What the tokens are called on which recall is measured."""
    return f"{hit_of(slices)}s"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _plain(text: str, tables: GapTables) -> str:
    """The text with the names of the zoo's models without `zoo:`, where there are no others."""
    is_zoo = all(name.startswith("zoo:") for name in (tables.gap["reference"][0], *_models(tables)))
    return text.replace("zoo:", "") if is_zoo else text


def what_of_training(slices: Mapping[str, Any], tokens: int) -> list[str]:
    """How much of the text is in the training text, if it is known, and how many of its tokens are left out for that, if any.

    `slices` is the labels' manifest, `tokens` the number of those compared.
    """
    copied, left_out = what_is_copied(slices), slices.get("num_rows", tokens) - tokens
    sentences, exactly = [copied] if copied else [], slices.get("read_exactly")
    if exactly:
        sentences.append(
            f"Left out: {counted(left_out, 'token')}, among them the first {exactly:,} of every sequence, which a variant reads exactly."
        )
    elif left_out:
        sentences.append(f"Left out (--clean): the {counted(left_out, 'token')} that are in it.")
    return sentences


# ---------------------------------------------------------------------------------------------- on request


def causal_table(tables: GapTables, causal: Causal) -> Table | None:
    """Recall gain beside causal recall, where an intervention measured that."""
    rows = [{**row, "causal": causal[row["model"]]} for row in first_table_rows(tables) if row["model"] in causal]
    if not rows:
        return None
    for row in rows:
        side = "reference" if row["is_reference"] else "model"
        row |= {f"gain{end}": row[f"gain_{side}{end}"] for end in ("", "_ci_low", "_ci_high")}
        row |= {f"causal_{name}": value for name, value in row["causal"].items()}
        row.setdefault("causal_retained", None)
    columns = {
        "model": cells.name("model"),
        "recall gain": cells.with_interval("gain", "z.1f", 100),
        "causal recall": cells.with_interval("causal_points", "z.1f", 100),
        "retained, %": _of_models(_RETAINED, "reference"),
        "causally, %": _of_models(cells.with_interval("causal_retained", "z.0f", 100), "reference"),
    }
    caption = (
        "Points of probability on AR hits. Causal recall: how much less probable sampled AR hits become when the earlier occurrences of "
        "their bigrams are broken up (recallkit intervene). Recall gain also includes what a repetition brings besides association: that "
        "the token is present, and how far back."
    )
    return Table.of("Recall gain beside causal recall", columns, cells.without_zoo(rows), caption)


_SLASH = "Before the slash: recall gain in % of the reference's. –: unknown, or not meaningful."


def _retained_and_share(row: Row) -> str:
    """`11 / 29`: what is retained, and the share of the gap, in %; a dash where one is not known or means nothing."""
    retained = DASH if row["retained"] is None else f"{100 * row['retained']:z.0f}"
    share = DASH if is_void(row) else f"{100 * row['gap_share']:z.0f}"
    return f"{retained} / {share}"


def thresholds_table(tables: GapTables, slices: Mapping[str, Any]) -> Table:
    """What is retained and the share of the gap where bigrams up to other training counts are AR hits."""
    cuts = count_cuts(slices["max_count"])
    thresholds = sorted({cuts[name] for name in ("quarter", "half", "most", "double", "fourfold")})
    by_key = {(row["model"], row["threshold"]): row for row in tables.by_threshold.to_dicts()}
    models = _models(tables)
    first = [by_key[models[0], threshold] for threshold in thresholds]
    return Table(
        "AR hits by threshold: retained recall / share of the gap, %",
        ["model", *(f"up to {threshold:,}" for threshold in thresholds)],
        [
            ["AR hits, of tokens", *(percent(row["share_of_tokens"], 2) for row in first)],
            *([model, *(_retained_and_share(by_key[model, threshold]) for threshold in thresholds)] for model in models),
        ],
        f"Threshold: the largest training count that a bigram of AR hits may have. {_SLASH}",
    )


def control_table(tables: GapTables, hits: str) -> Table:
    """How far each model is behind on AR hits, and the share of the gap beside its control. `hits`:
    what the tokens are called."""
    by_key = _rows(tables)
    columns: dict[str, Cell] = {
        "model": cells.name("model"),
        "behind, nats": cells.with_interval("delta_nll"),
        "share of the gap, %": _sound(cells.with_interval("gap_share", "z.1f", 100)),
        "control, %": _sound(cells.with_interval("control_share", "z.1f", 100)),
    }
    rows = [by_key[model, "ALL", "ar_hit"] for model in _models(tables)]
    caption = (
        f"Control: the share that {hits} would carry if models differed on them as on the first occurrences of the same bigrams. "
        "It is not subtracted."
    )
    if len(rows) > 1 and rows[0]["effective_clusters"] >= MIN_CLUSTERS:
        caption += f" Each gap is tested against zero, corrected for {len(rows):,} models (Holm)."
    title = f"{_capital(hits)}: nats behind the reference, share of the gap, and its control"
    return Table.of(title, columns, rows, caption + _leads(tables))


def by_source_table(tables: GapTables, hits: str, most_columns: int | None = None) -> Table | None:
    """What is retained and the share of the gap by source, the largest first; None if there is only
    one source. `hits`: as above."""
    by_key, models = _rows(tables), _models(tables)
    sources = [source for (model, source, kind) in by_key if (model, kind) == (models[0], "ar_hit") and source != "ALL"]
    if len(sources) < 2:
        return None
    tokens = {source: by_key[models[0], source, "all"]["tokens"] for source in sources}
    shown = sorted(sources, key=lambda source: (-tokens[source], source))[:most_columns]
    leads = [
        f"{model} in {source}"
        for model in models
        for source in shown
        if not is_void(by_key[model, source, "ar_hit"]) and by_key[model, source, "all"]["delta_nll"] < 0
    ]
    rows = {model: [by_key[model, source, "ar_hit"] for source in shown] for model in models}
    hidden = len(sources) - len(shown)
    caption = _SLASH + f" The Parquet file also has {counted(hidden, 'smaller source')}." * (hidden > 0) + shares_of_leads(leads)
    return Table(
        f"{_capital(hits)} by source: retained recall / share of the gap, %",
        ["model", *(f"{source}\n{abbreviate(tokens[source])} tokens" for source in shown)],
        [
            [f"{hits.removesuffix(' bigrams')}, of tokens", *map(_of_tokens, rows[models[0]])],
            *([model, *map(_retained_and_share, of_model)] for model, of_model in rows.items()),
        ],
        caption,
    )


_of_tokens = cells.share("share_of_tokens", 2)
_OF_SLICE = {"slice": cells.name("slice"), "tokens": _of_tokens, "model": cells.name("model")}


def by_slice_table(tables: GapTables) -> Table | None:
    """The requested slices, one row per slice and model; None if there are none."""
    standard = [*(slice_.name for slice_ in STANDARD), *HITS_OF_REPEATED]
    names = [name for name in tables.gap["slice"].unique(maintain_order=True) if name not in standard]
    if not names:
        return None
    by_key = _rows(tables)
    rows = [by_key[model, "ALL", name] for name in names for model in _models(tables)]
    columns = {
        **_OF_SLICE,
        "reference\nppl": cells.number("ppl_reference", PPL),
        "ppl": cells.number("ppl_model", PPL),
        "retained,\n%": _RETAINED,
        "recall effi-\nciency, %": cells.in_percent("efficiency_model"),
        "share of\nthe gap, %": _SHARE,
    }
    optional = ["recall effi-\nciency, %", "reference\nppl", "ppl"]
    caption = "Slices may overlap, so shares need not add up to 100 %. " * (len(names) > 1)
    caption += f"Retained: recall gain on the slice's tokens in % of the reference's.{_leads(tables)}"
    return Table.of("Slices: retained recall and share of the gap", columns, rows, caption, optional=optional)


def partition_table(tables: GapTables, slices: Mapping[str, Any]) -> Table:
    """Where the gap is: one column per class of PARTITION, with its share of tokens, and of each model's gap."""
    rows: dict[str, list[Row]] = {model: [] for model in _models(tables)}
    for row in tables.by_partition.iter_rows(named=True):
        rows[row["model"]].append(row)
    first = next(iter(rows.values()))
    share = _sound(cells.share("gap_share"))
    return Table(
        "Where the gap lies: tokens by what the context already contains and by the bigram's training count",
        ["model", *(class_.name.replace(" ", "\n") for class_ in PARTITION)],
        [["share of tokens", *map(_of_tokens, first)], *([model, *map(share, of_model)] for model, of_model in rows.items())],
        f"Rare: seen at most {slices['max_count']:,} times in training. The first class is the AR hits. A model's shares add up to 100 %."
        f"{_leads(tables)}",
    )


def context_tables(tables: GapTables, manifest: Mapping[str, Any]) -> dict[str, Table]:
    """What is gained from far context, by file name; empty if that was not asked. `manifest` is the comparison's."""
    if tables.by_context is None:
        return {}
    return {"context_gain": gains_table(tables.by_context, manifest.get("in_context")), "by_context": far_table(tables.by_context)}


# --------------------------------------------------------------------------------------------------- notes


def void_notes(rows: Iterable[Row]) -> list[str]:
    """Why shares mean nothing, a line for all models of which it holds; of each its row of AR hits."""
    models: dict[str, list[str]] = {}
    for row in rows:
        if row["note"]:
            models.setdefault(row["note"], []).append(row["model"])
    return [f"{some_of(names)}: no meaningful share of the gap: {note}" for note, names in models.items()]


def _leads(tables: GapTables) -> str:
    """Which of the models have shares of a lead, after a space; empty if none has."""
    by_key = _rows(tables)
    wholes = [by_key[model, "ALL", "all"] for model in _models(tables)]
    return shares_of_leads(whole["model"] for whole in wholes if not is_void(whole) and whole["delta_nll"] < 0)


def _rows(tables: GapTables) -> dict[tuple[str, str, str], dict[str, Any]]:
    """(model, source, slice) -> row of the gap table."""
    return rows_by_slice(tables.gap)


def _models(tables: GapTables) -> list[str]:
    """The models, in the order in which they were named."""
    return tables.gap["model"].unique(maintain_order=True).to_list()


def _bits_per_byte(rows: Sequence[Row]) -> list[str]:
    """One line: bits per byte, which compare models with different tokenizers. Empty if the bytes are not known."""
    if rows[0]["bpb_reference"] is None:
        return []
    pairs = [(rows[0]["reference"], rows[0]["bpb_reference"]), *((row["model"], row["bpb_model"]) for row in rows)]
    return ["Bits per byte: " + ", ".join(f"{model} {bits:.3f}" for model, bits in pairs)]


def _noise_of_reading(readings: Mapping[str, Sequence[float]]) -> list[str]:
    """A line of what reading in chunks alone changes in a sequence, at most of all variants, if it changes anything."""
    most, mean = (max((noise[place] for noise in readings.values()), default=0.0) for place in (0, 1))
    what = "reading in chunks with nothing compressed changes NLLs"
    return [f"Noise: {what} by up to {most:.1e} nats, on average by {mean:.1e}"] if most else []


def _inexact(shares: Mapping[str, Any]) -> list[str]:
    """A line for each model with a tokenizer of its own: how much of the text it splits elsewhere."""
    lines = []
    for model, share in shares.items():
        hits = f", {percent(share['ar_hit'])} of AR hits" if share.get("ar_hit") is not None else ""
        lines.append(f"{model}: another tokenizer; {percent(share['all'])} of tokens{hits} do not begin and end where its tokens do")
    return lines
