"""Labels and NLLs of the same tokens, put side by side: row i of `tokens.parquet` and of every
score file is the same token.

So no join on keys is needed, which takes several times as much time and memory. Manifests and
digests, which are checked before a row is read, show that the files are of the same sequences and
unchanged.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from recallkit.counting.table import REPEATED_ONLY
from recallkit.errors import UserError
from recallkit.slicing.definitions import STANDARD, members
from recallkit.slicing.words import needed_columns, words_options, words_path
from recallkit.storage import db, records
from recallkit.storage.parquet_files import read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb
    import polars as pl
    import pyarrow as pa

    from recallkit.slicing.definitions import Slice

CLUSTERS = ("document", "sequence", "source")
"""What can be a cluster, a piece of text that intervals resample: columns of `tokens.parquet`.

Tokens of a document move together, whatever sequence they are in: resampled by sequences, intervals
are far too narrow (docs/intervals.md).
"""

_BATCH_ROWS = 1 << 20
"""Rows read at a time: one row group of 512 sequences of 2048 tokens, or as many small groups as
fit."""

MOST_AT_ONCE = 10
"""Models whose scores are read side by side, at 24 bytes of a model and token in a batch."""

_ALWAYS = ("position", "document", "source", "repeated", "ar_hit", "first_distance")


# ---------------------------------------------------------------------------- what there is to read


@dataclass(frozen=True, slots=True)
class LabelledTokens:
    """The labels of a set of sequences (`tokens.parquet`) and their manifest."""

    path: Path
    manifest: records.Tokens

    @property
    def num_rows(self) -> int:
        """Predicted tokens in the table."""
        return self.manifest["num_rows"]

    @property
    def seq_len(self) -> int:
        """Predictions in a whole sequence: positions are 1..seq_len."""
        return self.manifest["seq_len"]

    @property
    def max_count(self) -> int:
        """Largest training count of an AR hit; 0 if it is not known."""
        return self.manifest["max_count"] or 0

    @property
    def has_counts(self) -> bool:
        """Whether it is known how often bigrams occur in training."""
        return self.manifest["counts"] is not None

    @property
    def counts(self) -> records.Counts:
        """The training counts. Raises UserError if it was labelled without any."""
        if self.manifest["counts"] is None:
            raise no_counts(self.path, "it is unknown which tokens are AR hits")
        return self.manifest["counts"]

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary that the ids are of."""
        return self.manifest["tokenizer"]["vocab_size"]

    @property
    def facts(self) -> records.Labels:
        """What a result records of the labels that it is made of."""
        fields = records.Labels.__annotations__
        facts = {name: value for name, value in self.manifest.items() if name in fields}
        return cast("records.Labels", facts)

    def check_known(self, slices: Sequence[Slice], *, clean: bool) -> None:
        """Raises UserError if slices, or that the text be `clean`, need a column `in_training` or
        training counts that are not known."""
        of_counts = [
            slice_.name
            for slice_ in slices
            if slice_ not in STANDARD and {"ar_hit", "train_count"} & {*slice_.columns}
        ]
        if of_counts and not self.has_counts:
            raise no_counts(self.path, f"no token is known to be in {of_counts[0]}")
        unknown = [
            slice_.name for slice_ in slices if slice_.name in ("first_rare", "first_frequent")
        ]
        counts = self.manifest["counts"]
        if unknown and counts is not None and counts.get(REPEATED_ONLY):
            problem = (
                "labelled with counts of repeated bigrams only, so it is unknown which tokens "
                f"are in {unknown[0]}"
            )
            raise UserError(
                problem, where=self.path, remedy="slice with a table that `recallkit count` made"
            )
        is_needed = clean or any("in_training" in slice_.columns for slice_ in slices)
        if is_needed and self.manifest["in_training"] is None:
            raise UserError(
                (
                    "labelled with counts that have no hashes of n-grams, so it is unknown which "
                    "tokens are in the training text"
                ),
                where=self.path,
                remedy="count the training text again with --force, then slice again with --force",
            )

    def words(self, columns: Sequence[str]) -> RowReader | None:
        """A reader of these columns of the table of words beside this one; None for no columns.

        Raises UserError if there is no such table, or it is of other tokens.
        """
        if not columns:
            return None
        path = words_path(self.path)
        if not path.exists():
            raise UserError(
                "slices of words need this table",
                where=path,
                remedy="make it with `recallkit gap --slice NAME`",
            )
        manifest = read_manifest(path, records.Words)
        if (
            manifest["options"] != words_options(self.manifest)
            or manifest["num_rows"] != self.num_rows
        ):
            remedy = "delete it: `recallkit gap --slice NAME` makes it again"
            raise UserError(
                f"words of other tokens than those in {self.path}", where=path, remedy=remedy
            )
        return RowReader(path, columns)


@dataclass(frozen=True, slots=True)
class Scores:
    """A model's NLLs of the same tokens, in the same order; or another `column` of a table of
    divergences."""

    path: Path
    model: str
    column: str = "nll"
    read_exactly: int = 0
    """Predictions at the beginning of every sequence in which a variant is the model itself: they
    are left out of every comparison."""


def open_tokens(path: Path, *, needs_counts: bool = True) -> LabelledTokens:
    """The table of labelled tokens at `path`.

    Raises UserError if it is not such a table, is empty, or was labelled without training counts
    where these are needed.
    """
    manifest = read_manifest(path, records.Tokens)
    tokens = LabelledTokens(path, manifest)
    if needs_counts:
        _ = tokens.counts
    if not tokens.num_rows:
        raise UserError("contains no tokens", where=path, remedy="slice a source with longer text")
    return tokens


def no_counts(path: Path, consequence: str) -> UserError:
    """The error of labels without training counts, and how to add these."""
    remedy = (
        f"repeat its `recallkit slice` with --counts FILE -o {path.parent}, or its `recallkit "
        "gap` with --train SOURCE"
    )
    return UserError(
        f"labelled without training counts, so that {consequence}", where=path, remedy=remedy
    )


def open_scores(path: Path, tokens: LabelledTokens, column: str = "nll") -> Scores:
    """The score file at `path`, checked to be of the sequences in `tokens`; of other columns than
    NLLs a file of divergences.

    If it is not, raises UserError with the file and how to make it again.
    """
    record = records.Scores if column == "nll" else records.Divergence
    manifest = read_manifest(path, record)
    model = manifest["model"]
    if manifest["sequences_digest"] != tokens.manifest["sequences_digest"]:
        again = f"recallkit score {manifest['source']} --slices {tokens.path.parent} --force"
        problem = f"scores of other sequences than those of {tokens.path}"
        raise UserError(problem, where=path, remedy=f"score them again with `{again}`")
    return Scores(path, model, column, manifest["read_exactly"] or 0)


# --------------------------------------------------------------------------------------------- rows


def batch_ranges(path: Path) -> list[tuple[int, int]]:
    """Row ranges [start, stop) to read together: whole row groups, which contain whole sequences,
    of about _BATCH_ROWS rows."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    ranges, start, stop = [], 0, 0
    for group in range(metadata.num_row_groups):
        stop += metadata.row_group(group).num_rows
        if stop - start >= _BATCH_ROWS or stop == metadata.num_rows:
            ranges.append((start, stop))
            start = stop
    return ranges


class RowReader:
    """Reads any range of rows of a table of ours. Raises UserError if the file has changed since it
    was written."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        import pyarrow.parquet as pq

        read_manifest(path)
        self._file, self._columns = pq.ParquetFile(path, pre_buffer=False), list(columns)
        metadata = self._file.metadata
        self._ends = np.cumsum(
            [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        )

    def read(self, start: int, stop: int) -> pa.Table:
        """Rows [start, stop) of the chosen columns."""
        # With row groups that end at 4, 8 and 12, rows [5, 8) are in group 1 alone, from its row 1
        # on.
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right")
        rows = self._file.read_row_groups(range(first, last + 1), columns=self._columns)
        return rows.slice(start - (self._ends[first - 1] if first else 0), stop - start)


# ------------------------------------------------------------------------------------------ batches


def batches(
    tokens: LabelledTokens,
    scores: Sequence[Scores] = (),
    columns: Sequence[str] = (),
    *,
    slices: Sequence[Slice] = (),
    cluster: str = "document",
    clean: bool = False,
) -> Iterator[pa.Table]:
    """The tokens in batches of about a million: labels and NLLs, a row per token.

    Columns are those of _ALWAYS and `columns`; `cluster`, one of CLUSTERS; `slices`, in which bit i
    is set of a token in slice i; and of the score files in their order, from 0: `nll_i` in nats,
    `first_nll_i`, the NLL of the first occurrence of its bigram in its sequence, where nothing can
    be recalled (its own of a token that repeats nothing), and the probabilities of both, `p_i` and
    `first_p_i` = exp(-NLL). A first occurrence counts even where it is in the training text itself.
    Without training counts, `ar_hit` is `repeated`: every repeated bigram may be rare.
    `clean`: without tokens that are known to be in the training text. Predictions that a variant of
    one of the models makes exactly (`Scores.read_exactly`) are left out.

    Raises UserError if a file is damaged, or an NLL is not a finite number.
    """
    import pyarrow as pa

    tokens.check_known(slices, clean=clean)
    of_words = needed_columns(slices)
    needed = [column for slice_ in slices for column in slice_.columns if column not in of_words]
    needed += ["in_training"] if clean else []
    names = dict.fromkeys([*_ALWAYS, *columns, cluster, *needed])
    labels, words = RowReader(tokens.path, list(names)), tokens.words(of_words)
    readers = [RowReader(score.path, [score.column]) for score in scores]
    exactly = max((score.read_exactly for score in scores), default=0)
    for start, stop in batch_ranges(tokens.path):
        rows = labels.read(start, stop)
        if not tokens.has_counts:
            place = rows.schema.get_field_index("ar_hit")
            rows = rows.set_column(place, "ar_hit", rows["repeated"])
        labelled = rows if words is None else _beside(rows, words.read(start, stop))
        sets = pa.array(_sets(slices, labelled, tokens.max_count))
        rows = rows.append_column("slices", sets).append_column("cluster", rows[cluster])
        # Of a bigram that occurs first 3 tokens back 3 rows above; of one that occurs first here
        # the row itself.
        first = np.arange(len(rows)) - rows["first_distance"].fill_null(0).to_numpy()
        for number, (score, reader) in enumerate(zip(scores, readers, strict=True)):
            nll = reader.read(start, stop)[score.column].to_numpy().astype(np.float32, copy=False)
            _check_finite(nll, score, tokens)
            p = np.exp(-nll.astype(np.float64))
            values = {"nll": nll, "first_nll": nll[first], "p": p, "first_p": p[first]}
            for name, value in values.items():
                rows = rows.append_column(f"{name}_{number}", pa.array(value))
        # After what is looked up in the tokens that are left out.
        rows = rows.filter(pa.array(rows["in_training"].to_numpy() == 0)) if clean else rows
        yield rows.filter(pa.array(rows["position"].to_numpy() > exactly)) if exactly else rows


def _beside(rows: pa.Table, others: pa.Table) -> pa.Table:
    """The columns of both."""
    for name in others.column_names:
        rows = rows.append_column(name, others[name])
    return rows


def _sets(slices: Sequence[Slice], rows: pa.Table, max_count: int) -> np.ndarray:
    """The slices that have each row, int64 (n,): bit i is that of slice i."""
    sets = np.zeros(len(rows), np.int64)
    for bit, is_member in enumerate(members(slices, rows, max_count) if slices else []):
        sets += is_member.astype(np.int64) << bit
    return sets


def _check_finite(nll: np.ndarray, score: Scores, tokens: LabelledTokens) -> None:
    if not np.isfinite(nll).all():
        again = f"recallkit score {score.model} --slices {tokens.path.parent} --force"
        remedy = f"check the model's precision, then score it again with `{again}`"
        problem = "contains NLLs that are not finite numbers"
        raise UserError(problem, where=score.path, remedy=remedy)


@dataclass(frozen=True, slots=True)
class TokenQuery:
    """What `queries/measure/QUERY.sql` finds in `tokens`, a batch of rows, with these parameters;
    sums are in the order of rows.

    `scores`: the numbers of the score files whose values the query has as nll_0, nll_1 ..., if not
    all.
    """

    name: str
    parameters: Mapping[str, float]
    scores: Sequence[int] | None = None

    def ask(self, rows: pa.Table, database: duckdb.DuckDBPyConnection) -> pa.Table:
        """The answer for these rows."""
        if self.scores is not None:
            labels = [name for name in rows.column_names if not name.rpartition("_")[2].isdecimal()]
            chosen = [f"nll_{number}" for number in self.scores]
            renamed = [f"nll_{place}" for place in range(len(chosen))]
            rows = rows.select([*labels, *chosen]).rename_columns([*labels, *renamed])
        database.register("tokens", rows)
        return database.sql(
            db.query(f"measure/{self.name}"), params=dict(self.parameters)
        ).to_arrow_table()


def answers(
    queries: Sequence[TokenQuery], rows: Iterator[pa.Table]
) -> Iterator[list[pl.DataFrame]]:
    """What each query finds in one batch of rows after another.

    Two batches are queried at a time, each by one thread, while further ones are read.
    """
    import polars as pl

    def ask(rows: pa.Table) -> list[pa.Table]:
        with database.cursor() as cursor:
            return [query.ask(rows, cursor) for query in queries]

    with db.connect(threads=1) as database, ThreadPoolExecutor(2) as pool:
        waiting: deque[Future[list[pa.Table]]] = deque()
        for batch in rows:
            waiting.append(pool.submit(ask, batch))
            if len(waiting) > 1:
                yield [pl.DataFrame(table) for table in waiting.popleft().result()]
        for future in waiting:
            yield [pl.DataFrame(table) for table in future.result()]


def all_answers(queries: Sequence[TokenQuery], rows: Iterator[pa.Table]) -> list[pl.DataFrame]:
    """What each query finds in all batches, one after another."""
    import polars as pl

    return [pl.concat(parts) for parts in zip(*answers(queries, rows), strict=True)]
