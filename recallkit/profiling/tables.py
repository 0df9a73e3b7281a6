"""How much a text repeats itself, by source: repeated bigrams per sequence, their distances, and their positions in the sequence.

Zoology's appendix D analyses text in this way, without a model. There a repeated bigram is one that occurs earlier in the same
sequence of 2048 tokens, bigrams with a stop word or with punctuation are dropped, and their training counts do not matter. All
else is our choice: a bigram is dropped if either of its tokens, taken alone, is a stop word or contains no letter or digit;
figures are by source although sequences are packed (a token belongs to the source of its document, and figures per sequence are
scaled to `seq_len` predictions); the intervals, the fits, and, beside them, the shares of all repeated tokens and of AR hits
(Zoology 3.1).

Text is reduced to histograms while it is streamed, so that memory does not grow with its length.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.attribution.aligned import RowReader, batch_ranges, check_labels
from recallkit.attribution.bootstrap import (
    MIN_CLUSTERS,
    effective_number,
    expanded_interval,
    freedom_of,
    number_or_none,
    ratio_of_squares,
    resample_totals,
)
from recallkit.attribution.breakdowns import NUM_POSITION_BUCKETS
from recallkit.attribution.buckets import position_bucket
from recallkit.config import MAX_RESAMPLED_SOURCES
from recallkit.display.notebook import Shown
from recallkit.errors import UserError
from recallkit.profiling import histogram_kernels
from recallkit.profiling.histogram_kernels import Histograms
from recallkit.profiling.power_law import MIN_TAIL, PowerLaw, cut_points, fit_power_law, tail_alpha
from recallkit.ragged import positions_within, run_starts
from recallkit.slicing.label_kernels import NO_DISTANCE, label_bigrams
from recallkit.storage.artifacts import read_manifest, replacing
from recallkit.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    import polars as pl
    import pyarrow as pa

    from recallkit.counting.table import CountsTable

NUM_GROUPS = 256
"""Groups of documents that are resampled, so that memory does not grow with the text: documents are the units of text that are closest
to independent. Of up to so many documents each is a group."""

OTHER_SOURCES = "other sources"
"""The row of all sources after the first MAX_RESAMPLED_SOURCES in stream order (sizes are known only at the end)."""

MAX_SEQ_LEN = 1 << 18
"""Longest sequence: histograms have a bin for every distance, 24 bytes per source."""

KINDS = ("repeated", "content", "ar_hit")
"""Tokens whose distances are fitted: all repeated ones, those of content bigrams, AR hits. In the order of histogram_kernels.KIND_*."""

_NUM_RESAMPLES = 2000
_COLUMNS = ("sequence", "position", "document", "source", "prev_token", "token", "distance", "occurrences", "ar_hit")
FEW_DISTANCES = f"fewer than {MIN_TAIL} distances, or all the same: no fit"
FEW_DOCUMENTS = f"text of effectively fewer than {MIN_CLUSTERS} documents: no intervals"
"""A few books are too small a sample of all, and so are many letters beside one of them."""


@dataclass(frozen=True, slots=True)
class ProfileTables(Shown):
    """The tables of a profile, by source (ALL first, then the largest). Shares are fractions, `*_ci_low` and `*_ci_high` 95 % intervals.

    distances: source x distance (tokens back to the bigram's latest earlier occurrence): tokens at exactly that distance,
    `repeated` all, `content` those of content bigrams, `ar_hits` (null without training counts). Distances that do not
    occur are left out.
    positions: source x bucket of positions (`low`..`high`, both included): tokens, and how many are repeated, of content
    bigrams (`content_tokens`), both (`content_repeated`), AR hits; with shares of the bucket's tokens.
    fits: source x kind (repeated, content, ar_hit): the power law of its distances. The number of `distances` and their
    median; `alpha`, its interval given `x_min`, `tail_tokens` and their share; `ks` (0 to 1); `gain_*` in nats per
    distance and `alpha_exposed` as in profiling.power_law.PowerLaw; a note if there is no fit.
    profile: one row per source. `repeated_bigrams`: tokens that complete a repeated content bigram, per `seq_len` tokens;
    `distinct_bigrams` counts a bigram once per sequence. `repeated_share` and `ar_hit_share` are of all tokens. `documents` with
    predicted tokens, and `effective_documents`, (sum n)^2 / sum n^2 of their tokens n: as many of equal size would tell as much.
    """

    distances: pl.DataFrame
    positions: pl.DataFrame
    fits: pl.DataFrame
    profile: pl.DataFrame  # written last: if it exists, all others do


def content_mask(texts: Sequence[str], stop_words: Collection[str], dropped: Collection[int] = ()) -> np.ndarray:
    """Which ids of a vocabulary, whose texts are given, can be part of a content bigram: bool (vocab,).

    Excluded are ids whose text, stripped and in lower case, is in `stop_words` (in lower case) or contains no letter or digit, such
    as bytes that are not a whole character, and the ids in `dropped` (end tokens and other special ones).
    """
    stopped = frozenset(stop_words)
    words = (text.strip().lower() for text in texts)
    mask = np.fromiter((word not in stopped and any(map(str.isalnum, word)) for word in words), bool, len(texts))
    mask[list(dropped)] = False
    return mask


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """n predicted tokens with all properties that are counted. `source` indexes `names`; positions are 1..seq_len."""

    names: Sequence[str]
    source: np.ndarray  # (n,) int32
    document: np.ndarray  # (n,) int32, its number in the stream; tokens of a document are together
    position: np.ndarray  # (n,) int32
    content: np.ndarray  # (n,) bool
    distance: np.ndarray  # (n,) int32, NO_DISTANCE if not repeated
    occurrences: np.ndarray  # (n,) int32
    ar_hit: np.ndarray  # (n,) bool


@dataclass(frozen=True, slots=True)
class Labeller:
    """Labels sequences: `mask` as `content_mask` makes it; without `counts` nothing is an AR hit."""

    mask: np.ndarray
    counts: CountsTable | None
    max_count: int

    def label(self, ids: np.ndarray, offsets: np.ndarray, documents: np.ndarray, sources: dict[int, str]) -> LabelledRows:
        """The predicted tokens of sequences `ids[offsets[i]:offsets[i + 1]]`; `documents` (of each id) have their `sources`."""
        inside = np.ones(len(ids) - 1, bool)
        inside[offsets[1:-1] - 1] = False
        found = label_bigrams(ids, offsets)
        lengths = np.diff(offsets) - 1
        is_content = self.mask[ids]
        document = documents[1:][inside]
        names, source = _source_codes(document, sources)
        return LabelledRows(
            names=names,
            source=source,
            document=document,
            position=positions_within(lengths).astype(np.int32) + 1,
            content=(is_content[:-1] & is_content[1:])[inside],
            distance=found.distance,
            occurrences=found.occurrences,
            ar_hit=self._ar_hits(ids, inside, found.distance),
        )

    def _ar_hits(self, ids: np.ndarray, inside: np.ndarray, distance: np.ndarray) -> np.ndarray:
        hits = np.zeros(len(distance), bool)
        if self.counts is not None:
            at = np.flatnonzero(distance != NO_DISTANCE)
            hits[at] = self.counts.lookup(ids[:-1][inside][at], ids[1:][inside][at]) <= self.max_count
        return hits


def _source_codes(documents: np.ndarray, sources: dict[int, str]) -> tuple[list[str], np.ndarray]:
    """Names, and the index of each token's source among them, int32 (n,); consecutive tokens share a document."""
    names = sorted(set(sources.values()))
    code = {name: place for place, name in enumerate(names)}
    starts = run_starts(documents)
    of_runs = np.array([code[sources[document]] for document in documents[starts].tolist()], np.int32)
    return names, np.repeat(of_runs, np.diff(starts, append=len(documents)))


def group_of(documents: np.ndarray) -> np.ndarray:
    """The group, uint8 (n,), of documents by their numbers: the first NUM_GROUPS have one each, further ones one given by a hash.

    Not the number modulo NUM_GROUPS: where sources alternate in a corpus, groups of like composition would vary too little. The hash
    is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    mixed = documents.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    groups: np.ndarray = np.where(documents < NUM_GROUPS, documents, mixed % np.uint64(NUM_GROUPS)).astype(np.uint8)
    return groups


class ProfileSums:
    """Histograms of a stream so far, by source in order of first appearance."""

    def __init__(self, seq_len: int, x_min: int | None = None) -> None:
        self.seq_len = seq_len
        self.sources: list[str] = []
        self.num_tokens = 0
        self.has_others = False
        x_max = seq_len - 1
        self.cuts = cut_points(x_max, x_min)
        self._cut_of = np.maximum(np.searchsorted(self.cuts, np.arange(x_max + 1), side="right") - 1, 0).astype(np.uint8)
        self._sums = self._zeros(1)
        self._open: tuple[int, int, int] | None = None
        """The latest document, which may go on: its number, its source's place, its tokens so far."""

    def _zeros(self, num_sources: int) -> Histograms:
        return Histograms.zeros(num_sources, NUM_GROUPS, self.seq_len - 1, len(self.cuts), NUM_POSITION_BUCKETS)

    def add(self, rows: LabelledRows) -> None:
        """Adds tokens. Raises ValueError if a position or a distance exceeds the sequence."""
        if not len(rows.source):
            return
        if rows.position.min() < 1 or rows.position.max() > self.seq_len or rows.distance.max() >= self.seq_len or rows.distance.min() < -1:
            raise ValueError(f"positions or distances beyond sequences of {self.seq_len}")
        places = self._places(rows)
        starts = run_starts(rows.document)
        sizes = np.diff(starts, append=len(rows.document))
        self._add_documents(rows.document[starts], places[rows.source[starts]], sizes)
        group = np.repeat(group_of(rows.document[starts]), sizes)
        bucket = position_bucket(rows.position, self.seq_len, NUM_POSITION_BUCKETS)
        histogram_kernels.add_tokens(
            self._sums, self._cut_of, places[rows.source], group, bucket, rows.content, rows.distance, rows.occurrences, rows.ar_hit
        )
        self.num_tokens += len(rows.source)

    def _add_documents(self, documents: np.ndarray, places: np.ndarray, sizes: np.ndarray) -> None:
        """Counts the documents that end among these, and keeps the last one open; all (n,), in the order of the stream."""
        if self._open is not None:
            document, place, size = self._open
            if documents[0] == document:
                sizes = np.concatenate([[sizes[0] + size], sizes[1:]])
            else:
                _end_documents(self._sums, np.array([place]), np.array([size]))
        _end_documents(self._sums, places[:-1], sizes[:-1])
        self._open = int(documents[-1]), int(places[-1]), int(sizes[-1])

    def _places(self, rows: LabelledRows) -> np.ndarray:
        """The indexes of the sources of `rows.names`, int32; new ones in the order of their first tokens, however rows are divided."""
        of_runs = rows.source[run_starts(rows.source)]
        codes, first = np.unique(of_runs, return_index=True)
        known = {name: place for place, name in enumerate(self.sources)}
        places = np.zeros(len(rows.names), np.int32)
        for code in codes[np.argsort(first)].tolist():
            name = rows.names[code]
            places[code] = known[name] if name in known else self._place_new(name)
        return places

    def _place_new(self, name: str) -> int:
        if name == OTHER_SOURCES or len(self.sources) >= MAX_RESAMPLED_SOURCES:
            self.has_others = True
            place = MAX_RESAMPLED_SOURCES
        else:
            self.sources.append(name)
            place = len(self.sources) - 1
        if place >= len(self._sums.counts):
            self._grow(min(max(place + 1, 2 * len(self._sums.counts)), MAX_RESAMPLED_SOURCES + 1))
        return place

    def _grow(self, num_sources: int) -> None:
        more = self._zeros(num_sources - len(self._sums.counts))
        self._sums = Histograms(*(np.concatenate([getattr(sums, f.name) for sums in (self._sums, more)]) for f in fields(Histograms)))

    def named(self) -> tuple[list[str], Histograms]:
        """Sources, the largest by tokens first (other sources last), with their histograms; ALL before them. All documents have ended."""
        places = [*range(len(self.sources)), *([MAX_RESAMPLED_SOURCES] if self.has_others else [])]
        names = [*self.sources, OTHER_SOURCES]
        tokens = {place: int(self._sums.counts[place, :, histogram_kernels.TOKENS].sum()) for place in places}
        order = sorted(places, key=lambda place: (place == MAX_RESAMPLED_SOURCES, -tokens[place], names[min(place, len(self.sources))]))
        ended = replace(self._sums, **{name: getattr(self._sums, name).copy() for name in ("documents", "squared_sizes", "fourth_powers")})
        if self._open is not None:
            _, place, size = self._open
            _end_documents(ended, np.array([place]), np.array([size]))
        kept = {f.name: getattr(ended, f.name)[order] for f in fields(Histograms)}
        with_all = {name: np.concatenate([array.sum(axis=0, keepdims=True), array]) for name, array in kept.items()}
        return ["ALL", *(names[min(place, len(self.sources))] for place in order)], Histograms(**with_all)

    def save(self, path: Path) -> dict[str, Any]:
        """Writes the histograms atomically; returns what else `restore` needs, as plain JSON."""
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **{f.name: getattr(self._sums, f.name) for f in fields(Histograms)})
        return {"sources": self.sources, "num_tokens": self.num_tokens, "has_others": self.has_others, "open": self._open}

    def restore(self, path: Path, state: dict[str, Any]) -> None:
        """The inverse of `save`. Raises UserError if the file is damaged."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
                self._sums = Histograms(**{f.name: saved[f.name] for f in fields(Histograms)})
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise UserError("a damaged part of an interrupted run", where=path, remedy="begin again with --force") from error
        self.sources, self.num_tokens, self.has_others = list(state["sources"]), state["num_tokens"], state["has_others"]
        self._open = None if state["open"] is None else tuple(state["open"])


def _end_documents(sums: Histograms, places: np.ndarray, sizes: np.ndarray) -> None:
    """Counts documents of sources at these places, of these sizes in tokens; added one by one, so that blocks decide no bit."""
    np.add.at(sums.documents, places, 1)
    np.add.at(sums.squared_sizes, places, np.square(sizes, dtype=np.float64))
    np.add.at(sums.fourth_powers, places, np.square(np.square(sizes, dtype=np.float64)))


def labelled_rows(tokens: Path, mask: np.ndarray, progress: Callable[[int], None] = lambda _: None) -> Iterator[LabelledRows]:
    """The rows of a `tokens.parquet` in order, about a row group at a time.

    Raises UserError if the file is damaged.
    """
    check_labels(tokens, read_manifest(tokens))
    reader = RowReader(tokens, _COLUMNS, remedy="slice again with --force")
    for start, stop in batch_ranges(tokens):
        yield _rows_of(reader.read(start, stop), mask, tokens)
        progress(stop)


def _rows_of(table: pa.Table, mask: np.ndarray, path: Path) -> LabelledRows:
    table = table.unify_dictionaries().combine_chunks()
    column = {name: table[name].combine_chunks() for name in _COLUMNS}
    previous, token = column["prev_token"].to_numpy(), column["token"].to_numpy()
    if previous.min() < 0 or token.min() < 0 or max(previous.max(), token.max()) >= len(mask):
        raise UserError("damaged (ids beyond the vocabulary)", where=path, remedy="slice again with --force")
    return LabelledRows(
        names=column["source"].dictionary.to_pylist(),
        source=column["source"].indices.to_numpy(),
        document=column["document"].to_numpy(),
        position=column["position"].to_numpy(),
        content=mask[previous] & mask[token],
        distance=column["distance"].fill_null(NO_DISTANCE).to_numpy(),
        occurrences=column["occurrences"].to_numpy(),
        ar_hit=column["ar_hit"].fill_null(False).to_numpy(zero_copy_only=False),
    )


# --------------------------------------------------------------------------------------------------------------- tables


def make_tables(sums: ProfileSums, *, knows_hits: bool, x_min: int | None = None, seed: int = 0) -> ProfileTables:
    """All tables of a finished stream; `knows_hits`: whether AR hits were labelled.

    Intervals are 95 % expanded percentile intervals of 2,000 resamples of the groups of documents, the same for every source and
    figure (bootstrap.expanded_interval). The same sums give bit-identical tables.
    """
    sources, found = sums.named()
    fits = [[fit_power_law(distances, x_min) for distances in found.distances[place]] for place in range(len(sources))]
    resampled = _resample(found, fits, sums.cuts, seed)
    return ProfileTables(
        distances=_distances(sources, found, knows_hits=knows_hits),
        positions=_positions(sources, found, sums.seq_len, knows_hits=knows_hits),
        fits=_fits(sources, found, fits, resampled, knows_hits=knows_hits),
        profile=_profile(sources, found, resampled, sums.seq_len, knows_hits=knows_hits),
    )


@dataclass(frozen=True, slots=True)
class _Resampled:
    """Totals over 2,000 resamples of the groups: counts (r, s, NUM_COUNTS), distances and their logs in the tails (r, s, NUM_KINDS)."""

    counts: np.ndarray
    tail_counts: np.ndarray
    tail_logs: np.ndarray
    clusters: np.ndarray  # (s,) effective number of documents, and no more than of the groups that they share
    freedom: np.ndarray  # (s,) degrees of freedom, of documents or groups likewise


def _resample(found: Histograms, fits: Sequence[Sequence[PowerLaw | None]], cuts: list[int], seed: int) -> _Resampled:
    """Resamples the groups that are not empty."""
    tokens = found.counts[:, :, histogram_kernels.TOKENS]
    kept = tokens[0] > 0
    in_tail = np.array([[[fit is not None and cut >= fit.x_min for cut in cuts] for fit in of_source] for of_source in fits])
    tails = [np.einsum("skgc,skc->gsk", array[:, :, kept], in_tail) for array in (found.cut_counts, found.cut_logs)]
    columns = [found.counts[:, kept].transpose(1, 0, 2), *tails]
    num_groups = len(columns[0])
    totals = resample_totals(np.hstack([array.reshape(num_groups, -1).astype(np.float64) for array in columns]), _NUM_RESAMPLES, seed)
    ends = np.cumsum([array[0].size for array in columns])[:-1]
    parts = [part.reshape(-1, *array.shape[1:]) for part, array in zip(np.split(totals, ends, axis=1), columns, strict=True)]
    return _Resampled(
        parts[0],
        parts[1],
        parts[2],
        clusters=np.minimum(_effective_documents(found), effective_number(tokens.T)),
        freedom=np.minimum(ratio_of_squares(found.squared_sizes, found.fourth_powers) - 1.0, freedom_of(tokens.T)),
    )


def _effective_documents(found: Histograms) -> np.ndarray:
    """The effective number of documents of each source, float64 (s,)."""
    return ratio_of_squares(found.counts[:, :, histogram_kernels.TOKENS].sum(axis=1), found.squared_sizes)


def _ratio_bounds(part: np.ndarray, whole: np.ndarray, resampled: _Resampled) -> np.ndarray:
    """Bounds (2, s) of part / whole, both (r, s); NaN for too few clusters."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return expanded_interval(part / whole, resampled.clusters, resampled.freedom)


def _profile(sources: list[str], found: Histograms, resampled: _Resampled, seq_len: int, *, knows_hits: bool) -> pl.DataFrame:
    import polars as pl

    totals = found.counts.sum(axis=1)
    tokens = totals[:, histogram_kernels.TOKENS]

    def figure(name: str, counted: int, scale: float, *, known: bool = True) -> dict[str, pl.Series]:
        low, high = scale * _ratio_bounds(resampled.counts[:, :, counted], resampled.counts[:, :, histogram_kernels.TOKENS], resampled)
        values = {name: scale * totals[:, counted] / tokens, f"{name}_ci_low": low, f"{name}_ci_high": high}
        return {key: _numbers(value if known else np.full(len(tokens), np.nan)) for key, value in values.items()}

    hits = pl.Series(totals[:, histogram_kernels.AR_HITS]) if knows_hits else pl.Series([None] * len(sources), dtype=pl.Int64)
    return pl.DataFrame(
        {
            "source": sources,
            "tokens": tokens,
            "documents": found.documents,
            "effective_documents": _effective_documents(found),
            "content_tokens": totals[:, histogram_kernels.CONTENT_TOKENS],
            "content_repeated": totals[:, histogram_kernels.CONTENT_REPEATED],
            **figure("repeated_bigrams", histogram_kernels.CONTENT_REPEATED, seq_len),
            **figure("distinct_bigrams", histogram_kernels.DISTINCT_REPEATED, seq_len),
            "repeated": totals[:, histogram_kernels.REPEATED],
            **figure("repeated_share", histogram_kernels.REPEATED, 1),
            "ar_hits": hits,
            **figure("ar_hit_share", histogram_kernels.AR_HITS, 1, known=knows_hits),
            "note": [FEW_DOCUMENTS if number < MIN_CLUSTERS else "" for number in resampled.clusters],
        }
    )


def _numbers(values: np.ndarray | Sequence[float | None]) -> pl.Series:
    """Float64, null for NaN."""
    import polars as pl

    return pl.Series(values, dtype=pl.Float64).fill_nan(None)


def _fits(
    sources: list[str], found: Histograms, fits: Sequence[Sequence[PowerLaw | None]], resampled: _Resampled, *, knows_hits: bool
) -> pl.DataFrame:
    import polars as pl

    bounds = [_ratio_bounds(resampled.tail_logs[:, :, k], resampled.tail_counts[:, :, k], resampled) for k in range(len(KINDS))]
    rows = []
    for place, source in enumerate(sources):
        for kind, name in enumerate(KINDS):
            if name == "ar_hit" and not knows_hits:
                continue
            low, high = (number_or_none(value) for value in bounds[kind][:, place])
            rows.append({"source": source, "kind": name, **_fit_row(found.distances[place, kind], fits[place][kind], low, high)})
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

    copied = ("alpha", "x_min", "x_max", "ks", "gain_geometric", "gain_lognormal", "gain_exposed", "alpha_exposed")
    interval = {"alpha_ci_low": exponent(mean_log_high), "alpha_ci_high": exponent(mean_log_low)}
    tail = {"tail_tokens": fit.num_tail, "tail_share": fit.num_tail / total}
    return {**row, **{name: getattr(fit, name) for name in copied}, **interval, **tail}


def _distances(sources: list[str], found: Histograms, *, knows_hits: bool) -> pl.DataFrame:
    import polars as pl

    place, distance = np.nonzero(found.distances[:, histogram_kernels.KIND_REPEATED])
    counted = {name: found.distances[place, kind, distance] for kind, name in enumerate(("repeated", "content", "ar_hits"))}
    frame = pl.DataFrame(
        {"source": np.array(sources, object)[place].tolist(), "distance": distance, **counted}, schema_overrides={"source": pl.String}
    )
    return frame if knows_hits else frame.with_columns(ar_hits=pl.lit(None, pl.Int64))


def _positions(sources: list[str], found: Histograms, seq_len: int, *, knows_hits: bool) -> pl.DataFrame:
    import polars as pl

    place, bucket = np.nonzero(found.positions[:, :, histogram_kernels.PLACED_TOKENS])
    # The first position of a bucket is 1 + ceil(bucket * seq_len / num_buckets).
    low, high = (-(-(bucket + step) * seq_len // NUM_POSITION_BUCKETS) + 1 - step for step in (0, 1))
    counted = ("tokens", "content_tokens", "repeated", "content_repeated", "ar_hits")  # in the order of histogram_kernels.PLACED_*
    columns = {name: found.positions[place, bucket, index] for index, name in enumerate(counted)}
    names = {"source": np.array(sources, object)[place].tolist()}
    frame = pl.DataFrame({**names, "low": low, "high": high, **columns}, schema_overrides={"source": pl.String})
    frame = frame if knows_hits else frame.with_columns(ar_hits=pl.lit(None, pl.Int64))
    shares = {"repeated_share": "repeated", "content_repeated_share": "content_repeated", "ar_hit_share": "ar_hits"}
    return frame.with_columns(**{name: pl.col(part) / pl.col("tokens") for name, part in shares.items()})
