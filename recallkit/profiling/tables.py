"""How much a text repeats itself, by source: repeated bigrams, their distances and positions.

Zoology's appendix D analyses text in this way, without a model. There a repeated bigram is one that
occurs earlier in the same sequence of 2048 tokens, bigrams with a stop word or with punctuation are
dropped, and their training counts do not matter. All else is our choice: a bigram is dropped if
either of its tokens, taken alone, is a stop word or contains no letter or digit; figures are by
source although sequences are packed (a token belongs to the source of its document, and figures per
sequence are scaled to `seq_len` predictions); the intervals, the fits, and, beside them, the shares
of all repeated tokens and of AR hits (Zoology 3.1).

Everything is a sum over labelled tokens, made by one query
(queries/profiling/count_repetition.sql).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from recallkit.config import MAX_RESAMPLED_SOURCES
from recallkit.display.cells import too_few
from recallkit.display.notebook import NotebookResult
from recallkit.measure.ratio import MIN_CLUSTERS, Spread, Sum, group_numbers, number_or_none, ratio
from recallkit.measure.rows import ALL, OTHER_SOURCES
from recallkit.profiling.power_law import MIN_TAIL, PowerLaw, fit_power_law, tail_alpha
from recallkit.storage import db, schemas

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

KINDS = {"repeated": "repeated", "content": "content_repeated", "ar_hit": "ar_hits"}
"""Tokens whose distances are fitted: all repeated ones, those of content bigrams, AR hits; and
the column that counts them."""

COUNTS = (
    *("tokens", "content_tokens", "repeated", "content_repeated"),
    *("distinct_repeated", "ar_hits"),
)
"""What is counted of a document. Distinct: a repeated content bigram once per sequence, at its
first repetition."""

NUM_PARTS = 32
"""Parts of a sequence in `positions`."""

FEW_DISTANCES = f"fewer than {MIN_TAIL} distances, or all the same: no fit"
"""A few books are too small a sample of all, and so are many letters beside one of them."""


@dataclass(frozen=True, slots=True, repr=False)
class ProfileTables(NotebookResult):
    """The tables of a profile, by source (ALL first, then the largest). Shares are fractions,
    `*_ci_low` and `*_ci_high` 95 % intervals.

    distances: source x distance (tokens back to the bigram's latest earlier occurrence): tokens at
    exactly that distance, `repeated` all, `content` those of content bigrams, `ar_hits` (null
    without training counts). Distances that do not occur are left out.
    positions: source x bucket of positions (`low`..`high`, both included): tokens, and how many are
    repeated, of content bigrams (`content_tokens`), both (`content_repeated`), AR hits; with shares
    of the bucket's tokens.
    fits: source x kind (repeated, content, ar_hit): the power law of its distances. The number of
    `distances` and their median; `alpha`, its interval given `x_min`, `tail_tokens` and their
    share; `ks` (0 to 1); `gain_exposed` in nats per distance and `alpha_exposed` as in
    profiling.power_law.PowerLaw; a note if there is no fit.
    profile: one row per source. `repeated_bigrams`: tokens that complete a repeated content bigram,
    per `seq_len` tokens; `distinct_bigrams` counts a bigram once per sequence. `repeated_share` and
    `ar_hit_share` are of all tokens. `documents` with predicted tokens, and `effective_documents`,
    (sum n)^2 / sum n^2 of their tokens n: as many of equal size would tell as much.
    """

    distances: pl.DataFrame
    positions: pl.DataFrame
    fits: pl.DataFrame
    profile: pl.DataFrame


def make_tables(
    tokens: Path | pa.Table,
    is_content: np.ndarray,
    seq_len: int,
    *,
    knows_hits: bool,
    x_min: int | None = None,
) -> ProfileTables:
    """The tables of labelled `tokens`, `tokens.parquet` or an Arrow table with its columns.

    `is_content`: the ids that content bigrams consist of, bool (vocab,); `knows_hits`: whether AR
    hits are labelled; `x_min`: where every tail begins, if it is given. Intervals are over
    documents (`measure.ratio.ratio`).
    """
    import pyarrow as pa

    content = pa.table({"id": np.flatnonzero(is_content)})
    with db.connect(views={"tokens": tokens, "content": content}) as connection:
        parameters = {"seq_len": seq_len, "x_min": x_min}
        counts = connection.sql(db.query("profiling/count_repetition"), params=parameters).pl()
    sums = _Sums.from_counts(counts)
    counted = _distances(sums), _positions(sums, seq_len)
    frames = *counted, _fits(sums, seq_len, x_min), _profile(sums, seq_len)
    return ProfileTables(*(frame if knows_hits else _without_hits(frame) for frame in frames))


def _without_hits(frame: pl.DataFrame) -> pl.DataFrame:
    """A table in which nothing is said of AR hits."""
    columns = [name for name in frame.columns if name.startswith("ar_hit")]
    frame = frame.with_columns(pl.lit(None, frame.schema[name]).alias(name) for name in columns)
    return frame.filter(pl.col("kind") != "ar_hit") if "kind" in frame.columns else frame


@dataclass(frozen=True, slots=True)
class _Sums:
    """The rows of the query with sources by their place in `sources`: all together (0), the
    largest first, all further ones as one. `group`: the group of documents that a row's
    document is resampled in."""

    sources: list[str]
    rows: pl.DataFrame

    @classmethod
    def from_counts(cls, counts: pl.DataFrame) -> _Sums:
        sizes = counts.filter(grouped_by="document").group_by("source").agg(pl.col("tokens").sum())
        ordered = sizes.sort("tokens", "source", descending=[True, False])["source"].to_list()
        largest = [name for name in ordered[:MAX_RESAMPLED_SOURCES] if name != OTHER_SOURCES]
        names = [ALL, *largest, *([OTHER_SOURCES] if len(largest) < len(ordered) else [])]
        places = {name: place for place, name in enumerate(largest, 1)}
        last = len(names) - 1
        place = pl.col("source").replace_strict(places, default=last, return_dtype=pl.Int64)
        together = counts.with_columns(source=pl.lit(0, pl.Int64))
        keys = ["grouped_by", "source", "document", "part", "distance", "tail"]
        rows = pl.concat([together, counts.with_columns(source=place)])
        rows = rows.group_by(keys).agg(pl.exclude(keys).sum())
        documents = rows["document"].drop_nulls().unique().sort()
        groups = pl.DataFrame({"document": documents, "group": group_numbers(len(documents))})
        return cls(names, rows.join(groups, "document", "left").sort(keys))

    def by(self, what: str) -> pl.DataFrame:
        """The rows grouped by a document, part, distance or tail; `name` is the source's."""
        rows = self.rows.filter(pl.col("grouped_by") == what, pl.col(what).is_not_null())
        return rows.with_columns(name=pl.Series(self.sources)[rows["source"]])

    def add_up(self, rows: pl.DataFrame, column: str, size: str) -> Sum:
        """A column of rows of documents by group and source, (g, s); `size`: the tokens of a
        document that it is of."""
        by_group = np.zeros((self.rows["group"].drop_nulls().n_unique(), len(self.sources)))
        np.add.at(by_group, tuple(rows["group", "source"].to_numpy().T), rows[column].to_numpy())
        sizes = rows.group_by("source", "document").agg(pl.col(size).sum().cast(pl.Float64))
        source, tokens = sizes.filter(pl.col(size) > 0)["source", size]
        powers = [np.bincount(source, tokens**power, len(self.sources)) for power in (0, 1, 2, 4)]
        return Sum(by_group, Spread.of_powers(powers))


def _distances(sums: _Sums) -> pl.DataFrame:
    rows = sums.by("distance")
    keys = rows.select("distance", "repeated", "ar_hits", source="name", content="content_repeated")
    return schemas.frame_of_columns("profile/distances", keys, {})


def _positions(sums: _Sums, seq_len: int) -> pl.DataFrame:
    # Parts begin at 1 + ceil(part * seq_len / 32): of 2048 positions, 65 is the first of part 1.
    first = [-(-part * seq_len // NUM_PARTS) + 1 for part in range(NUM_PARTS + 1)]
    rows = sums.by("part")
    part = rows["part"].to_numpy()
    columns: dict[str, Any] = {"low": np.array(first)[part], "high": np.array(first)[part + 1] - 1}
    for column in ("repeated", "content_repeated", "ar_hits"):
        columns[f"{column.removesuffix('s')}_share"] = rows[column] / rows["tokens"]
    keys = rows.drop("source").rename({"name": "source"})
    return schemas.frame_of_columns("profile/positions", keys, columns)


_FIGURES = {
    "repeated_bigrams": "content_repeated",
    "distinct_bigrams": "distinct_repeated",
    "repeated_share": "repeated",
    "ar_hit_share": "ar_hits",
}
"""Figures of a profile, and what they count: bigrams per sequence, shares of tokens."""


def _profile(sums: _Sums, seq_len: int) -> pl.DataFrame:
    rows = sums.by("document")
    totals = rows.group_by(source="name", maintain_order=True).agg(pl.col(COUNTS).sum())
    tokens = sums.add_up(rows, "tokens", "tokens")
    effective = tokens.spread.effective
    columns: dict[str, Any] = {
        "documents": tokens.spread.clusters,
        "effective_documents": effective,
    }
    for name, column in _FIGURES.items():
        scale = seq_len if name.endswith("bigrams") else 1
        columns |= ratio(scale * sums.add_up(rows, column, "tokens"), tokens).columns(name)
    columns["note"] = [_note(number) for number in effective]
    return schemas.frame_of_columns("profile/profile", totals, columns)


def _note(effective: float) -> str:
    """Why a source has no intervals, if it has none."""
    return "" if effective >= MIN_CLUSTERS else too_few("its tokens", effective)


def _fits(sums: _Sums, seq_len: int, x_min: int | None) -> pl.DataFrame:
    """The power law of each source and kind, by the interval of the mean of ln d in its tail."""
    distances, tails = sums.by("distance"), sums.by("tail")
    rows = []
    for kind, column in KINDS.items():
        histograms = np.zeros((len(sums.sources), seq_len), np.int64)
        histograms[distances["source"], distances["distance"]] = distances[column]
        fits = [fit_power_law(histogram, x_min) for histogram in histograms]
        starts = np.array([np.inf if fit is None else fit.x_min for fit in fits])
        of_tail = tails.filter(tails["tail"].to_numpy() >= starts[tails["source"]])
        logs, numbers = (sums.add_up(of_tail, name, column) for name in (f"{column}_logs", column))
        mean_log = ratio(logs, numbers)
        for place, source in enumerate(sums.sources):
            ends = [number_or_none(bounds[place]) for bounds in (mean_log.low, mean_log.high)]
            row = _fit_row(histograms[place], fits[place], *ends)
            if fits[place] is not None and ends[0] is None:
                row["note"] = too_few("distances of the tail", mean_log.effective[place])
            rows.append({"source": source, "kind": kind, **row})
    rows.sort(key=lambda row: sums.sources.index(row["source"]))
    empty = pl.DataFrame(schemas.arrow_schema("profile/fits").empty_table())
    return pl.DataFrame(rows, schema=empty.schema)


def _fit_row(
    distances: np.ndarray,
    fit: PowerLaw | None,
    low: float | None,
    high: float | None,
) -> dict[str, Any]:
    """One fit as a row; `low` and `high` bound the mean of ln d in the tail, in which the exponent
    decreases."""
    total, note = int(distances.sum()), "" if fit else FEW_DISTANCES
    row: dict[str, Any] = {"distances": total, "median_distance": None, "note": note}
    if total:
        row["median_distance"] = int(np.searchsorted(np.cumsum(distances), (total + 1) // 2))
    if fit is None:
        return row

    def exponent(mean_log: float | None) -> float | None:
        return None if mean_log is None else tail_alpha(mean_log, fit.x_min, fit.x_max)

    copied = ("alpha", "x_min", "x_max", "ks", "gain_exposed", "alpha_exposed")
    interval = {"alpha_ci_low": exponent(high), "alpha_ci_high": exponent(low)}
    tail = {"tail_tokens": fit.num_tail, "tail_share": fit.num_tail / total}
    return {**row, **{name: getattr(fit, name) for name in copied}, **interval, **tail}
