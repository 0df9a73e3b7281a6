"""Prints a profile: what a text repeats, by source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import cells
from recallkit.display.cells import percent, resampled, sparkline
from recallkit.display.exports import MOST_NAMED, Look, bare, command_line
from recallkit.display.tables import Table
from recallkit.measure.ratio import MIN_CLUSTERS
from recallkit.profiling.charts import profile_figures
from recallkit.profiling.tables import ProfileTables
from recallkit.slicing.threshold import counts_warning
from recallkit.slicing.view import what_is_rare
from recallkit.storage.artifacts import read_manifest
from recallkit.storage.result import read_tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MOST_ROWS = 20
"""Sources shown in a terminal's table; the Parquet file contains all of them."""

_MOST_BLOCKS = 12
"""Columns of a curve: distances beyond 4,096 share the last one."""

_KINDS = {"repeated": "repeated", "content": "content", "ar_hit": "AR hits"}


_FACTS = ("num_tokens", "num_sequences", "seq_len", "boundary", "max_count", "counts", "tokenizer", "stop_words", "x_min")


def look(folder: Path, tables: ProfileTables | None = None) -> Look:
    """The profile in a folder as people see it: its tables are read unless they are given. Exact distances are left out of JSON."""
    tables, manifest = tables or read_tables(ProfileTables, folder), read_manifest(folder / "profile.parquet")
    return Look(
        folder,
        "profile",
        tables,
        profile_tables(tables, manifest),
        lambda of: profile_figures(of, manifest["seq_len"]),
        answer(tables, manifest),
        method(tables, manifest),
        command(manifest),
        printed=[profile_table(tables, manifest), distances_table(tables)],
        facts={name: manifest[name] for name in _FACTS},
        untold=["distances"],
    )


def answer(tables: ProfileTables, manifest: Mapping[str, Any]) -> str:
    """What of the whole text is repeated, how much of it are AR hits, and how far back."""
    whole = tables.profile.row(0, named=True)
    fits = tables.fits.filter(source=whole["source"], kind="content").to_dicts()
    back = f", at a median distance of {fits[0]['median_distance']:,} tokens" if fits and fits[0]["median_distance"] is not None else ""
    hits = "" if whole["ar_hit_share"] is None else f", and {percent(whole['ar_hit_share'], 2)} are AR hits"
    told = "" if whole["repeated_bigrams_ci_low"] is None else f" (95 % interval {_BIGRAMS['95 % interval'](whole)})"
    return (
        f"{percent(whole['repeated_share'])} of the tokens complete a bigram that occurred earlier in their sequence{hits}. Per "
        f"{manifest['seq_len']:,} tokens, {whole['repeated_bigrams']:.1f} content bigrams are repeated{told}{back}."
    )


def method(tables: ProfileTables, manifest: Mapping[str, Any]) -> dict[str, str]:
    """How it was measured: the text, what its bigrams are, the intervals."""
    counts = manifest["counts"]
    packing = "documents packed one after the other" if manifest["boundary"] == "pack" else "the context reset at each document"
    whole = tables.profile.row(0, named=True)
    return {
        "Text": f"{manifest['num_tokens']:,} tokens in {manifest['num_sequences']:,} sequences of up to {manifest['seq_len']:,}, "
        f"{packing}; tokenizer {bare(manifest['tokenizer']['name'])}",
        **({} if counts is None else {"Training counts": f"{counts['num_tokens']:,} tokens; id {counts['id']}"}),
        "Bigrams": _what_repeats(manifest),
        "95 % intervals": _what_is_resampled(whole),
    }


def command(manifest: Mapping[str, Any]) -> str:
    """The command that makes it again."""
    names = [bare(name) for name in manifest["names"]]
    words = manifest["stop_words"]["name"]
    options = {
        "tokenizer": bare(manifest["tokenizer"]["name"]),
        "counts": manifest["counts"] and bare(manifest["counts"]["path"]),
        "max_count": manifest["max_count"],
        **{name: manifest[name] for name in ("seq_len", "boundary", "limit_tokens", "x_min")},
        "stop_words": {"ours": None, "file": "FILE"}.get(words, words),
    }
    return command_line("profile", *(names if 0 < len(names) <= MOST_NAMED else ["TEXT..."]), **options, o="DIR")


def profile_tables(tables: ProfileTables, manifest: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of an export, by the names of their files."""
    return {"profile": profile_table(tables, manifest), "fits": fits_table(tables)}


_BIGRAMS = {
    "source": cells.name("source"),
    "tokens": cells.amount("tokens"),
    "bigrams": cells.number("repeated_bigrams", ".1f"),
    "95 % interval": cells.interval("repeated_bigrams", ".1f"),
    "repeated": cells.share("repeated_share"),
    "AR hits": cells.share("ar_hit_share", 2),
}
_LAW = {
    "alpha": cells.number("alpha", ".2f"),
    "95 % interval": cells.interval("alpha", ".2f"),
    "from": cells.number("x_min"),
}
_FITS = {
    "source": cells.name("source"),
    "distances of": lambda row: _KINDS[row["kind"]],
    "number": cells.number("distances"),
    **_LAW,
    "in tail": cells.share("tail_share"),
    "KS": cells.number("ks", ".3f"),
    "gain": cells.number("gain_exposed", ".3f"),
    "beta": cells.number("alpha_exposed", ".2f"),
}


def profile_table(tables: ProfileTables, manifest: Mapping[str, Any]) -> Table:
    """Repeated bigrams per sequence with their interval, and the shares of repeated tokens and of AR hits."""
    rows, hidden = tables.profile.head(_MOST_ROWS + 1).to_dicts(), len(tables.profile) - _MOST_ROWS - 1
    title = f"Repeated bigrams per {manifest['seq_len']:,} tokens"
    return Table.of(title, _BIGRAMS, rows, _caption(manifest, rows[0]), hidden=hidden)


def distances_table(tables: ProfileTables) -> Table:
    """Of the distances of content bigrams: their median, the exponent of their tail, and their histogram as a sparkline."""
    curves = _curves(tables)
    return Table.of(
        "How far back they last occurred",
        {
            "source": cells.name("source"),
            "median": cells.number("median_distance"),
            **_LAW,
            "distances": lambda row: curves.get(row["source"], ""),
        },
        [row for row in tables.fits.iter_rows(named=True) if row["kind"] == "content"][: _MOST_ROWS + 1],
        'Blocks: distances of 1, 2-3, 4-7 ... tokens. alpha: exponent of a power law of distances at and beyond "from".',
    )


def fits_table(tables: ProfileTables) -> Table:
    """The power laws of every source and kind of distance, with their goodness of fit."""
    return Table.of(
        "Power laws of distances",
        _FITS,
        tables.fits.head(3 * (_MOST_ROWS + 1)).to_dicts(),
        'alpha: exponent of a power law of distances at and beyond "from". KS: its Kolmogorov-Smirnov distance. Gain: nats per distance by '
        "which a power law with exponent beta fits better, because it accounts for how few tokens have so many tokens before them.",
    )


def _curves(tables: ProfileTables) -> dict[str, str]:
    """For each source its distances of content bigrams, in blocks 1, 2-3, 4-7 ... up to the longest that any source has."""
    import polars as pl

    block = pl.col("distance").log(2).floor().cast(pl.Int64).clip(0, _MOST_BLOCKS - 1)
    sums = tables.distances.group_by("source", block.alias("block")).agg(pl.col("content").sum())
    numbers = {(source, place): number for source, place, number in sums.iter_rows()}
    last = max((place for _, place in numbers), default=0)
    curves = {
        source: [numbers.get((source, place), 0) for place in range(last + 1)] for source in tables.profile["source"].head(_MOST_ROWS + 1)
    }
    return {source: sparkline(curve, low=0) for source, curve in curves.items() if any(curve)}


def _what_repeats(manifest: Mapping[str, Any]) -> str:
    """What is counted as a repeated bigram, and as an AR hit."""
    words = manifest["stop_words"]
    listed = {"ours": "our list", "nltk": "nltk's list", "none": "", "file": "the given list"}[words["name"]]
    stopped = f" or a stop word ({listed}, {words['num_words']:,} words)" if listed else ""
    return (
        f"tokens per {manifest['seq_len']:,} that complete a bigram which is in the sequence already, except bigrams with punctuation"
        f"{stopped}. {what_is_rare(manifest)}"
    )


def _what_is_resampled(whole: Mapping[str, Any]) -> str:
    """What intervals resample, and of which rows there are none."""
    of_some = f"; sources with effectively fewer than {MIN_CLUSTERS} have none" * (whole["effective_documents"] >= MIN_CLUSTERS)
    return f"{resampled(whole, 'document', 'document')}{of_some}."


def _caption(manifest: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    lines = (
        f"Bigrams: {_what_repeats(manifest)}",
        f"Intervals: {_what_is_resampled(whole)}",
        counts_warning(manifest, whole["ar_hit_share"]),
    )
    return "\n".join(line for line in lines if line)
