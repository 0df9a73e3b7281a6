"""How much a text repeats itself, by source: repeated bigrams per sequence, their distances, and their positions in the sequence.

Zoology's appendix D analyses text in this way, without a model. There a repeated bigram is one that occurs earlier in the same
sequence of 2048 tokens, bigrams with a stop word or with punctuation are dropped, and their training counts do not matter. All
else is our choice: a bigram is dropped if either of its tokens, taken alone, is a stop word or contains no letter or digit;
figures are by source although sequences are packed (a token belongs to the source of its document, and figures per sequence are
scaled to `seq_len` predictions); the intervals, the fits, and, beside them, the shares of all repeated tokens and of AR hits
(Zoology 3.1).

Everything is a sum over labelled tokens, made by one query (queries/profiling/count_repetition.sql).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recallkit.config import MAX_RESAMPLED_SOURCES
from recallkit.display.cells import too_few
from recallkit.display.notebook import Shown
from recallkit.measure.intervals import (
    MIN_CLUSTERS,
    NUM_RESAMPLES,
    effective_number,
    expanded_interval,
    freedom_of,
    group_numbers,
    number_or_none,
    resample_totals,
)
from recallkit.measure.sums import ALL, OTHER_SOURCES
from recallkit.profiling.power_law import MIN_TAIL, PowerLaw, fit_power_law, tail_alpha
from recallkit.storage import db
from recallkit.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

KINDS = {"repeated": "repeated", "content": "content_repeated", "ar_hit": "ar_hits"}
"""Tokens whose distances are fitted: all repeated ones, those of content bigrams, AR hits; and the column that counts them."""

COUNTS = ("tokens", "content_tokens", "repeated", "content_repeated", "distinct_repeated", "ar_hits")
"""What is counted of a document. Distinct: a repeated content bigram once per sequence, at its first repetition."""

NUM_PARTS = 32
"""Parts of a sequence in `positions`."""

FEW_DISTANCES = f"fewer than {MIN_TAIL} distances, or all the same: no fit"
"""A few books are too small a sample of all, and so are many letters beside one of them."""


@dataclass(frozen=True, slots=True, repr=False)
class ProfileTables(Shown):
    """The tables of a profile, by source (ALL first, then the largest). Shares are fractions, `*_ci_low` and `*_ci_high` 95 % intervals.

    distances: source x distance (tokens back to the bigram's latest earlier occurrence): tokens at exactly that distance,
    `repeated` all, `content` those of content bigrams, `ar_hits` (null without training counts). Distances that do not
    occur are left out.
    positions: source x bucket of positions (`low`..`high`, both included): tokens, and how many are repeated, of content
    bigrams (`content_tokens`), both (`content_repeated`), AR hits; with shares of the bucket's tokens.
    fits: source x kind (repeated, content, ar_hit): the power law of its distances. The number of `distances` and their
    median; `alpha`, its interval given `x_min`, `tail_tokens` and their share; `ks` (0 to 1); `gain_exposed` in nats per
    distance and `alpha_exposed` as in profiling.power_law.PowerLaw; a note if there is no fit.
    profile: one row per source. `repeated_bigrams`: tokens that complete a repeated content bigram, per `seq_len` tokens;
    `distinct_bigrams` counts a bigram once per sequence. `repeated_share` and `ar_hit_share` are of all tokens. `documents` with
    predicted tokens, and `effective_documents`, (sum n)^2 / sum n^2 of their tokens n: as many of equal size would tell as much.
    """

    distances: pl.DataFrame
    positions: pl.DataFrame
    fits: pl.DataFrame
    profile: pl.DataFrame


def make_tables(
    tokens: Path | pa.Table, is_content: np.ndarray, seq_len: int, *, knows_hits: bool, x_min: int | None = None, seed: int = 0
) -> ProfileTables:
    """The tables of labelled `tokens`, `tokens.parquet` or an Arrow table with its columns.

    `is_content`: the ids that content bigrams consist of, bool (vocab,); `knows_hits`: whether AR hits are labelled; `x_min`: where every
    tail begins, if it is given. Intervals are 95 % expanded percentile intervals over documents, all from the same 2,000 resamples.
    """
    import pyarrow as pa

    with db.connect(views={"tokens": tokens, "content": pa.table({"id": np.flatnonzero(is_content)})}) as connection:
        found = connection.sql(db.query("profiling/count_repetition"), params={"seq_len": seq_len, "x_min": x_min}).pl()
    sums = _Sums.of(found)
    histograms = sums.histograms(seq_len)
    fits = [[fit_power_law(histogram, x_min) for histogram in of_source] for of_source in histograms]
    resampled = _Resampled(sums, fits, seed)
    made = [sums.distances(), sums.positions(seq_len), _fits(sums.sources, histograms, fits, resampled), _profile(sums, resampled, seq_len)]
    return ProfileTables(*(frame if knows_hits else _without_hits(frame) for frame in made))


def _without_hits(frame: pl.DataFrame) -> pl.DataFrame:
    """A table in which nothing is said of AR hits."""
    columns = [name for name in frame.columns if name.startswith("ar_hit")]
    frame = frame.with_columns(pl.lit(None, frame.schema[name]).alias(name) for name in columns)
    return frame.filter(pl.col("kind") != "ar_hit") if "kind" in frame.columns else frame


@dataclass(frozen=True, slots=True)
class _Sums:
    """The rows of the query with sources by their place in `sources`: all together (0), the largest first, all further ones as one."""

    sources: list[str]
    rows: pl.DataFrame

    @classmethod
    def of(cls, found: pl.DataFrame) -> _Sums:
        sizes = found.filter(grouped_by="document").group_by("source").agg(pl.col("tokens").sum())
        ordered = sizes.sort("tokens", "source", descending=[True, False])["source"].to_list()
        kept = [name for name in ordered[:MAX_RESAMPLED_SOURCES] if name != OTHER_SOURCES]
        names = [ALL, *kept, *([OTHER_SOURCES] if len(kept) < len(ordered) else [])]
        places = {name: min(place, len(names) - 1) for place, name in enumerate([*kept, *(n for n in ordered if n not in kept)], start=1)}
        placed = found.with_columns(pl.col("source").replace_strict(places, return_dtype=pl.Int64))
        keys = ["grouped_by", "source", "document", "part", "distance", "tail"]
        summed = pl.concat([placed.with_columns(source=pl.lit(0, pl.Int64)), placed]).group_by(keys).agg(pl.exclude(keys).sum())
        return cls(names, summed.sort(keys))

    def by(self, what: str) -> pl.DataFrame:
        """The rows grouped by a document, part, distance or tail."""
        return self.rows.filter(pl.col("grouped_by") == what, pl.col(what).is_not_null())

    def totals(self) -> pl.DataFrame:
        """COUNTS by source, with the documents and their effective number (`effective_number`)."""
        size = pl.col("tokens").cast(pl.Float64)
        effective = (size.sum() ** 2 / (size**2).sum()).alias("effective_documents")
        return self.by("document").group_by("source").agg(pl.col(*COUNTS).sum(), pl.len().alias("documents"), effective).sort("source")

    def histograms(self, seq_len: int) -> np.ndarray:
        """The number of distances d of each source and kind, int64 (s, 3, seq_len), d from 0."""
        rows = self.by("distance")
        found = np.zeros((len(self.sources), len(KINDS), seq_len), np.int64)
        for kind, column in enumerate(KINDS.values()):
            found[rows["source"], kind, rows["distance"]] = rows[column]
        return found

    def distances(self) -> pl.DataFrame:
        rows = self._named(self.by("distance"))
        return rows.select("source", pl.col("distance").cast(pl.Int64), "repeated", pl.col("content_repeated").alias("content"), "ar_hits")

    def positions(self, seq_len: int) -> pl.DataFrame:
        # The first position of a part is 1 + ceil(part * seq_len / 32): of 2048 positions, 65 is the first of part 1.
        low, high = ((-(-(pl.col("part") + step) * seq_len // NUM_PARTS) + 1 - step).cast(pl.Int64) for step in (0, 1))
        counted = ("tokens", "content_tokens", "repeated", "content_repeated", "ar_hits")
        frame = self._named(self.by("part")).select("source", low.alias("low"), high.alias("high"), *counted)
        shares = {"repeated_share": "repeated", "content_repeated_share": "content_repeated", "ar_hit_share": "ar_hits"}
        return frame.with_columns(**{name: pl.col(part) / pl.col("tokens") for name, part in shares.items()})

    def _named(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(pl.col("source").replace_strict(dict(enumerate(self.sources)), return_dtype=pl.String))


class _Resampled:
    """Totals over 2,000 resamples of documents: `counts` (r, s, 6), and of each kind's tail the distances and their logs, (r, s, 3)."""

    def __init__(self, sums: _Sums, fits: Sequence[Sequence[PowerLaw | None]], seed: int) -> None:
        rows, tails = sums.by("document"), sums.by("tail")
        documents = rows["document"].unique().sort()
        group = group_numbers(len(documents))
        starts = np.array([[np.inf if fit is None else fit.x_min for fit in of_source] for of_source in fits])
        in_tail = tails["tail"].to_numpy()[:, None] >= starts[tails["source"].to_numpy()]
        logs = tails.select(f"{column}_logs" for column in KINDS.values())
        parts = [
            (rows, rows.select(COUNTS).to_numpy()),
            *((tails, values.to_numpy() * in_tail) for values in (tails.select(KINDS.values()), logs)),
        ]
        blocks = []
        for frame, values in parts:
            block = np.zeros((int(group.max()) + 1, len(sums.sources), values.shape[1]))
            np.add.at(block, (group[documents.search_sorted(frame["document"]).to_numpy()], frame["source"].to_numpy()), values)
            blocks.append(block)
        [totals] = resample_totals([np.concatenate(blocks, axis=2).reshape(len(blocks[0]), -1)], NUM_RESAMPLES, seed)
        split = totals.reshape(NUM_RESAMPLES, len(sums.sources), -1)
        self.counts, self.tail_counts, self.tail_logs = np.split(split, [len(COUNTS), len(COUNTS) + len(KINDS)], axis=2)
        sizes = [rows.filter(source=place)["tokens"].to_numpy() for place in range(len(sums.sources))]
        self.effective = np.array([effective_number(size) for size in sizes])
        self._freedom = np.array([freedom_of(size) for size in sizes])

    def bounds(self, part: np.ndarray, whole: np.ndarray) -> np.ndarray:
        """Bounds (2, s) of part / whole, both (r, s); NaN for too few documents."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return expanded_interval(part / whole, self.effective, self._freedom)


def _profile(sums: _Sums, resampled: _Resampled, seq_len: int) -> pl.DataFrame:
    totals = sums.totals()

    def figure(name: str, column: str, scale: float) -> dict[str, pl.Series]:
        low, high = scale * resampled.bounds(resampled.counts[..., COUNTS.index(column)], resampled.counts[..., 0])
        values = {name: scale * totals[column] / totals["tokens"], f"{name}_ci_low": low, f"{name}_ci_high": high}
        return {key: pl.Series(value, dtype=pl.Float64).fill_nan(None) for key, value in values.items()}

    return pl.DataFrame(
        {
            "source": sums.sources,
            "tokens": totals["tokens"],
            "documents": totals["documents"].cast(pl.Int64),
            "effective_documents": totals["effective_documents"],
            "content_tokens": totals["content_tokens"],
            "content_repeated": totals["content_repeated"],
            **figure("repeated_bigrams", "content_repeated", seq_len),
            **figure("distinct_bigrams", "distinct_repeated", seq_len),
            "repeated": totals["repeated"],
            **figure("repeated_share", "repeated", 1),
            "ar_hits": totals["ar_hits"],
            **figure("ar_hit_share", "ar_hits", 1),
            "note": [too_few("its tokens", number) if number < MIN_CLUSTERS else "" for number in resampled.effective.tolist()],
        }
    )


def _fits(sources: list[str], histograms: np.ndarray, fits: Sequence[Sequence[PowerLaw | None]], resampled: _Resampled) -> pl.DataFrame:
    rows = []
    for kind, name in enumerate(KINDS):
        bounds = resampled.bounds(resampled.tail_logs[..., kind], resampled.tail_counts[..., kind])
        for place, source in enumerate(sources):
            ends = [number_or_none(value) for value in bounds[:, place]]
            rows.append({"source": source, "kind": name, **_fit_row(histograms[place, kind], fits[place][kind], *ends)})
    order = {source: place for place, source in enumerate(sources)}
    rows.sort(key=lambda row: order[row["source"]])
    return pl.DataFrame(rows, schema=pl.DataFrame(arrow_schema("profile/fits").empty_table()).schema)


def _fit_row(distances: np.ndarray, fit: PowerLaw | None, mean_log_low: float | None, mean_log_high: float | None) -> dict[str, Any]:
    """One fit as a row; the bounds are of the mean of ln d in the tail, in which the exponent decreases."""
    total = int(distances.sum())
    row: dict[str, Any] = {"distances": total, "median_distance": None, "note": "" if fit else FEW_DISTANCES}
    if total:
        row["median_distance"] = int(np.searchsorted(np.cumsum(distances), (total + 1) // 2))
    if fit is None:
        return row

    def exponent(mean_log: float | None) -> float | None:
        return None if mean_log is None else tail_alpha(mean_log, fit.x_min, fit.x_max)

    copied = ("alpha", "x_min", "x_max", "ks", "gain_exposed", "alpha_exposed")
    interval = {"alpha_ci_low": exponent(mean_log_high), "alpha_ci_high": exponent(mean_log_low)}
    tail = {"tail_tokens": fit.num_tail, "tail_share": fit.num_tail / total}
    return {**row, **{name: getattr(fit, name) for name in copied}, **interval, **tail}
