"""Prints a profile: what a text repeats, by source."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from recallkit.display.cells import DASH, figure, resampled, sparkline
from recallkit.display.exports import bare
from recallkit.display.tables import Table
from recallkit.display.views import ResultView
from recallkit.measure.ratio import MIN_CLUSTERS
from recallkit.profiling.charts import profile_figures
from recallkit.profiling.tables import ProfileTables
from recallkit.slicing.threshold import counts_warning
from recallkit.slicing.view import what_is_rare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recallkit.display.charts import Figure

_MOST_ROWS = 20
"""Sources shown in a terminal's table; the Parquet file contains all of them."""

_MOST_BLOCKS = 12
"""Columns of a curve: distances beyond 4,096 share the last one."""

_KINDS = {"repeated": "repeated", "content": "content", "ar_hit": "AR hits"}


_FACTS = (
    "num_tokens",
    "num_sequences",
    "seq_len",
    "boundary",
    "max_count",
    "counts",
    "tokenizer",
    "stop_words",
    "x_min",
)


class ProfileView(ResultView):
    """A profile: what a text repeats, by source. Exact distances are left out of JSON."""

    kind, tables_type = "profile", ProfileTables
    for_parquet_alone = ("distances",)

    def answer(self) -> str:
        """What of the whole text is repeated, how much of it are AR hits, and how far back."""
        every = self.tables.profile.row(0, named=True)
        fits = self.tables.fits.filter(source=every["source"], kind="content").to_dicts()
        back = ""
        if fits and fits[0]["median_distance"] is not None:
            back = f", at a median distance of {fits[0]['median_distance']:,} tokens"
        hits = (
            ""
            if every["ar_hit_share"] is None
            else f", and {figure(every, 'ar_hit_share')} are AR hits"
        )
        interval = figure(every, "repeated_bigrams", ".1f to")
        within = "" if interval == DASH else f" (95 % interval {interval})"
        return (
            f"{figure(every, 'repeated_share')} of the tokens complete a bigram that occurred "
            f"earlier in their sequence{hits}. Per "
            f"{self.manifest['seq_len']:,} tokens, {figure(every, 'repeated_bigrams')} content "
            f"bigrams are repeated{within}{back}."
        )

    @cached_property
    def display_tables(self) -> dict[str, Table]:
        """Repeated bigrams, and the power laws of their distances."""
        return {
            "profile": profile_table(self.tables, self.manifest),
            "fits": fits_table(self.tables),
        }

    def terminal_tables(self) -> list[Table]:
        """Distances as curves in place of their laws."""
        return [self.display_tables["profile"], distances_table(self.tables)]

    def draw(self, tables: Any) -> list[Figure]:
        """See `profile_figures`."""
        return profile_figures(tables, self.manifest["seq_len"])

    def facts(self) -> dict[str, Any]:
        """The text, the threshold, the tokenizer."""
        return {name: self.manifest[name] for name in _FACTS}

    def method(self) -> dict[str, str]:
        """The text, what its bigrams are, the intervals."""
        manifest = self.manifest
        counts = manifest["counts"]
        packing = (
            "documents packed one after the other"
            if manifest["boundary"] == "pack"
            else "the context reset at each document"
        )
        return {
            "Text": f"{manifest['num_tokens']:,} tokens in {manifest['num_sequences']:,} sequences "
            f"of up to {manifest['seq_len']:,}, "
            f"{packing}; tokenizer {bare(manifest['tokenizer']['name'])}",
            **(
                {}
                if counts is None
                else {"Training counts": f"{counts['num_tokens']:,} tokens; id {counts['id']}"}
            ),
            "Bigrams": _what_repeats(manifest),
            "95 % intervals": _what_is_resampled(self.tables.profile.row(0, named=True)),
        }


_BIGRAMS = """
    source
    tokens | tokens | amount
    repeated_bigrams
    repeated_bigrams | 95 % interval | .1f to
    repeated_share ar_hit_share
"""
_LAW = """
    alpha
    alpha | 95 % interval | .2f to
    x_min
"""
_FITS = f"""
    source
    kind | distances of
    distances
    {_LAW}
    tail_share ks gain_exposed alpha_exposed
"""


def profile_table(tables: ProfileTables, manifest: Mapping[str, Any]) -> Table:
    """Repeated bigrams per sequence with their interval, and the shares of repeated tokens and
    of AR hits."""
    rows, hidden = (
        tables.profile.head(_MOST_ROWS + 1).to_dicts(),
        len(tables.profile) - _MOST_ROWS - 1,
    )
    title = f"Repeated bigrams per {manifest['seq_len']:,} tokens"
    return Table.from_rows(title, _BIGRAMS, rows, _caption(manifest, rows[0]), hidden=hidden)


def distances_table(tables: ProfileTables) -> Table:
    """Of the distances of content bigrams: their median, the exponent of their tail, and their
    histogram as a sparkline."""
    curves = _curves(tables)
    rows = tables.fits.filter(kind="content").head(_MOST_ROWS + 1).to_dicts()
    for row in rows:
        row["curve"] = curves.get(row["source"], "")
    return Table.from_rows(
        "How far back they last occurred",
        f"source median_distance\n{_LAW}\n curve | distances",
        rows,
        (
            "Blocks: distances of 1, 2-3, 4-7 ... tokens. alpha: exponent of a power law of "
            'distances at and beyond "from".'
        ),
    )


def fits_table(tables: ProfileTables) -> Table:
    """The power laws of every source and kind of distance, with their goodness of fit."""
    rows = tables.fits.head(3 * (_MOST_ROWS + 1)).to_dicts()
    return Table.from_rows(
        "Power laws of distances",
        _FITS,
        [{**row, "kind": _KINDS[row["kind"]]} for row in rows],
        'alpha: exponent of a power law of distances at and beyond "from". KS: its '
        "Kolmogorov-Smirnov distance. Gain: nats per distance by "
        "which a power law with exponent beta fits better, because it accounts for how few tokens "
        "have so many tokens before them.",
    )


def _curves(tables: ProfileTables) -> dict[str, str]:
    """For each source its distances of content bigrams, in blocks 1, 2-3, 4-7 ... up to the
    longest that any source has."""
    import polars as pl

    block = pl.col("distance").log(2).floor().cast(pl.Int64).clip(0, _MOST_BLOCKS - 1)
    sums = tables.distances.group_by("source", block.alias("block")).agg(pl.col("content").sum())
    numbers = {(source, place): number for source, place, number in sums.iter_rows()}
    last = max((place for _, place in numbers), default=0)
    curves = {}
    for source in tables.profile["source"].head(_MOST_ROWS + 1):
        curve = [numbers.get((source, place), 0) for place in range(last + 1)]
        if any(curve):
            curves[source] = sparkline(curve, low=0)
    return curves


def _what_repeats(manifest: Mapping[str, Any]) -> str:
    """What is counted as a repeated bigram, and as an AR hit."""
    words = manifest["stop_words"]
    listed = {"ours": "our list", "nltk": "nltk's list", "none": "", "file": "the given list"}[
        words["name"]
    ]
    stopped = f" or a stop word ({listed}, {words['num_words']:,} words)" if listed else ""
    return (
        f"tokens per {manifest['seq_len']:,} that complete a bigram which is in the sequence "
        "already, except bigrams with punctuation"
        f"{stopped}. {what_is_rare(manifest)}"
    )


def _what_is_resampled(total: Mapping[str, Any]) -> str:
    """What intervals resample, and of which rows there are none."""
    of_some = f"; sources with effectively fewer than {MIN_CLUSTERS} have none" * (
        total["effective_documents"] >= MIN_CLUSTERS
    )
    return f"{resampled(total, 'document', 'document')}{of_some}."


def _caption(manifest: Mapping[str, Any], total: Mapping[str, Any]) -> str:
    lines = (
        f"Bigrams: {_what_repeats(manifest)}",
        f"Intervals: {_what_is_resampled(total)}",
        counts_warning(manifest, total["ar_hit_share"]),
    )
    return "\n".join(line for line in lines if line)
