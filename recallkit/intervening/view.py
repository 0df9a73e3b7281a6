"""What models lose where earlier occurrences are changed, and how much of a gap is recall, as people see it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from recallkit.display import cells
from recallkit.display.again import command_line
from recallkit.display.cells import counted, percent, powers_of_two, resampled, sparkline
from recallkit.display.exports import Look
from recallkit.display.tables import Table
from recallkit.intervening.changes import CHANGES
from recallkit.intervening.charts import FEW, intervene_figures
from recallkit.intervening.sampling import FIRST_RARE
from recallkit.intervening.tables import REPEATED, InterveneTables
from recallkit.measure.intervals import MIN_CLUSTERS
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    Row = Mapping[str, Any]

_NAMES = {"ar_hit": "AR hits", "repeated_frequent": "other repeated bigrams", REPEATED: "all repeated bigrams"}
_CONTROL = "Nats lost in rare first occurrences, where nothing can be recalled, by the same changes"
_MOST_SAID = 3


def look(folder: Path, tables: InterveneTables | None = None) -> Look:
    """The intervention in a folder as people see it: its tables are read unless they are given."""
    tables, manifest = tables or read_tables(InterveneTables, folder), artifacts.read_manifest(folder / "intervene.parquet")
    return Look(
        folder,
        "intervene",
        tables,
        shown_intervene(tables, manifest),
        intervene_figures(tables),
        answer(tables),
        method(tables, manifest),
        command(manifest),
        lines=_notes(tables),
        facts={name: manifest[name] for name in ("samples", "design", "seed", "excluded", "changed_text", "changed_tokens")},
    )


def method(tables: InterveneTables, manifest: Row) -> dict[str, str]:
    """How it was measured: the sample, the changes, the intervals."""
    first, slices = tables.intervene.row(0, named=True), manifest["slices"]
    return {
        "Text": f"{slices['num_rows']:,} predicted tokens in sequences of up to {slices['seq_len']:,}; of each slice up to "
        f"{manifest['samples']:,} tokens sampled with seed {manifest['seed']}",
        "Changes": _method(manifest),
        "Intervals": f"95 %, {resampled(first, 'document', 'document')}",
    }


def command(manifest: Row) -> str:
    """The command that makes it again."""
    from recallkit.intervening.changed_text import DEFAULT_SLICES

    options = manifest["options"]
    given = () if tuple(options["slices"]) == DEFAULT_SLICES else tuple(options["slices"])
    more = {name: options[name] for name in ("samples", "design", "seed")}
    return command_line("intervene", *manifest["models"], slices="DIR", slice=given, **more)


def shown_intervene(tables: InterveneTables, manifest: Row) -> dict[str, Table]:
    """The tables by name: shares of the gap of several models, what each slice loses, and the curves."""
    slices = tables.intervene["slice"].unique(maintain_order=True).to_list()
    shown = _share_tables(tables) | {f"lost_{slice_}": _lost_table(tables, slice_) for slice_ in slices}
    last = f"lost_{slices[-1]}"
    shown[last] = dataclasses.replace(shown[last], caption=f"{shown[last].caption} {_method(manifest)}")
    curves = _curves_table(tables)
    return shown if curves is None else {**shown, "curves": curves}


def answer(tables: InterveneTables) -> str:
    """One sentence for each of the first models, on the gap to the reference; of a single model, what it recalls."""
    if tables.recall_share.is_empty():
        return _recalled(tables)
    rows = {(row["model"], row["slice"]): row for row in tables.recall_share.to_dicts()}
    said = []
    for (model, slice_), row in rows.items():
        if slice_ == "ar_hit" and not row["void"]:
            said.append(
                f"{percent(row['gap_share'])} of the gap between {model} and {row['reference']} lies in AR hits, and "
                f"{_RECALL['recall'](row)} ({_RECALL['95 % interval'](row)}) of it is there because the reference recalls more."
            )
    return " ".join(said[:_MOST_SAID]) or _recalled(tables)


def _recalled(tables: InterveneTables) -> str:
    """What the first models recall in the first slice that was asked about, in nats."""
    first = tables.intervene["slice"][0]
    rows = tables.intervene.filter(slice=first).head(_MOST_SAID).to_dicts()
    intervals = ("no interval" if row["recall_ci_low"] is None else f"95 % interval {_LOST['95 % interval'](row)}" for row in rows)
    told = [f"{row['model']} {row['recall']:z.2f} nats ({within})" for row, within in zip(rows, intervals, strict=True)]
    name = _NAMES.get(first, first)
    return (
        f"Where the earlier occurrences of {name} are replaced, their tokens cost more than with as many other changes: {'; '.join(told)}."
    )


def _share_tables(tables: InterveneTables) -> dict[str, Table]:
    """For each slice, or AR hits and all repeated bigrams, a table of one row per model; the first one explains and has the control."""
    slices = tables.recall_share["slice"].unique(maintain_order=True).to_list()
    shown = [slice_ for slice_ in slices if slice_ != FIRST_RARE and not (slice_ == "repeated_frequent" and REPEATED in slices)]
    return {f"share_{slice_}": _share_table(tables, slice_, control=slice_ == shown[0] and FIRST_RARE in slices) for slice_ in shown}


_RECALL = {
    "model": cells.name("model"),
    "lies in": cells.valid(cells.share("gap_share")),
    "recall": cells.valid(cells.share("recall_share")),
    "95 % interval": cells.share_interval("recall_share_ci_low", "recall_share_ci_high"),
}
_LOST = {
    "model": cells.name("model"),
    "NLL": cells.number("nll", "z.2f"),
    **{change: cells.number(change, "z.2f") for change in CHANGES},
    "recalled": cells.number("recall", "z.2f"),
    "95 % interval": cells.interval("recall"),
}


def _share_table(tables: InterveneTables, slice_: str, *, control: bool) -> Table:
    rows = tables.recall_share.filter(slice=slice_).to_dicts()
    controls = {row["model"]: row for row in tables.recall_share.filter(slice=FIRST_RARE).to_dicts()}
    called, tokens = _NAMES.get(slice_, slice_), percent(rows[0]["share_of_tokens"], 2)
    told = f"Of the gap to {rows[0]['reference']}, what lies in {called} ({tokens} of tokens), and what recall explains"
    if control:
        told += (
            ": what the reference loses more than the model where earlier occurrences of the bigram are replaced, less what as many "
            "replacements elsewhere cost. Control: the same around rare bigrams that occur for the first time"
        )
    columns = {**_RECALL, "control": lambda row: _RECALL["recall"](controls[row["model"]])} if control else _RECALL
    return Table.of(f"Is it recall? Shares of the gap, {called}", columns, rows, f"{told}.")


def _lost_table(tables: InterveneTables, slice_: str) -> Table:
    rows = tables.intervene.filter(slice=slice_).to_dicts()
    first = rows[0]
    told = f"{first['samples']:,} of {first['tokens']:,} tokens, of {counted(first['documents'], 'document')}"
    title = f"Nats lost in {_NAMES.get(slice_, slice_)} where earlier occurrences are changed"
    return Table.of(_CONTROL if slice_ == FIRST_RARE else title, _LOST, rows, f"{told}; {first['excluded']:,} more left out.")


def _method(manifest: Row) -> str:
    """What the columns mean, and what it cost."""
    passes = manifest["changed_tokens"] / manifest["slices"]["num_rows"]
    told = "; ".join(f"{name}: {change.description}" for name, change in CHANGES.items()).capitalize()
    return f"{told}. Recalled: span less placebo. Design: {manifest['design']}, {passes:.1f} times the text read."


def _notes(tables: InterveneTables) -> list[str]:
    """Why shares mean nothing, once per model, and why there are no intervals."""
    notes = dict.fromkeys((row["model"], row["note"]) for row in tables.recall_share.iter_rows(named=True) if row["note"])
    lines = [f"{model}: the shares mean nothing: {note}" for model, note in notes]
    if tables.intervene["recall_ci_low"].null_count():
        lines.append(f"No interval where tokens are of effectively fewer than {MIN_CLUSTERS} documents.")
    return lines


def _curves_table(tables: InterveneTables) -> Table | None:
    """Recall by distance (AR hits) and by training count (all slices) as curves on one scale; None if there are too few buckets."""
    hits = tables.by_distance.filter(slice="ar_hit")
    if len(hits.filter(hits["samples"] >= FEW)["high"].unique()) < 2:
        return None
    frames = {"distance": hits, "training count": tables.by_count.filter(tables.by_count["slice"] != FIRST_RARE)}
    known = [row["recall"] for frame in (hits, tables.by_count) for row in frame.to_dicts() if row["samples"] >= FEW]
    low, high = min(0.0, *known), max(known)
    models = tables.intervene["model"].unique(maintain_order=True).to_list()
    lines = [[model, *(_curve(frame, model, low, high) for frame in frames.values())] for model in models]
    heads = [f"{what}\n{min(frame['low'].to_list()):,} to {max(frame['high'].to_list()):,}" for what, frame in frames.items()]
    return Table(
        "Nats recalled in AR hits by distance, and in all repeated bigrams by training count",
        ["model", *heads],
        lines,
        caption=f"From {low:z.2f} (▁) to {high:z.2f} (█) nats per token, in steps of powers of two; a space where fewer "
        f"than {FEW} were sampled.",
    )


def _curve(frame: pl.DataFrame, model: str, low: float, high: float) -> str:
    """One model's curve over all buckets of FEW samples and more; where two slices have a bucket, that of the larger sample."""
    rows: Sequence[Row] = frame.filter(model=model).sort("samples").to_dicts()
    found = {row["high"]: row["recall"] for row in rows if row["samples"] >= FEW}
    return sparkline([found.get(end) for end in powers_of_two(frame["high"].to_list())], low, high)
