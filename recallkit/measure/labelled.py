"""Row-aligned reading of token labels and score files: row i of each is the same token, so no join on keys is needed.

A keyed join of the same tables takes several times as much time and memory. To make row order safe, three things are checked
before a row is read: the digest of the sequences, the number of rows, and the range of sequences in each row group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit.config import MOST
from recallkit.errors import UserError
from recallkit.slicing.words import words_options, words_path
from recallkit.storage.artifacts import read_manifest
from recallkit.storage.schemas import arrow_errors_as_user_errors, check_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    import pyarrow.parquet as pq

    from recallkit.slicing.definitions import Slice

SLICE_AGAIN, SCORE_AGAIN = "slice again with --force", "score the model again with --force"
_BATCH_ROWS = 1 << 20
"""Rows read at a time: one row group of 512 sequences of 2048 tokens, or as many small groups as fit."""


@dataclass(frozen=True, slots=True)
class LabelledTokens:
    """The labels of a set of sequences (`tokens.parquet`) and their manifest."""

    path: Path
    manifest: dict[str, Any]

    @property
    def num_rows(self) -> int:
        """Predicted tokens in the table."""
        return int(self.manifest["num_rows"])

    @property
    def seq_len(self) -> int:
        """Predictions in a whole sequence: positions are 1..seq_len."""
        return int(self.manifest["seq_len"])

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary that the ids are of."""
        return int((self.manifest.get("tokenizer") or {}).get("vocab_size", MOST))

    def check_copies_known(self, slices: Sequence[Slice], *, clean: bool) -> None:
        """Raises UserError if slices, or that the text be `clean`, need a column `in_training` of which nothing is known."""
        is_needed = clean or any("in_training" in slice_.columns for slice_ in slices)
        if is_needed and self.manifest.get("in_training") is None:
            raise UserError(
                "labelled with counts that have no hashes of n-grams, so that no token is known to be in the training text",
                where=self.path,
                remedy="count the training text again with --force, then slice again with --force",
            )

    def words(self, columns: Sequence[str]) -> RowReader | None:
        """A reader of these columns of the table of words beside this one; None for no columns.

        Raises UserError if there is no such table, or it is of other tokens.
        """
        if not columns:
            return None
        path, remedy = words_path(self.path), "delete it: `recallkit gap --slice NAME` makes it again"
        if not path.exists():
            raise UserError("slices of words need this table", where=path, remedy="make it with `recallkit gap --slice NAME`")
        manifest = read_manifest(path)
        if manifest["options"] != words_options(self.manifest) or manifest["num_rows"] != self.num_rows:
            raise UserError(f"words of other tokens than those of {self.path}", where=path, remedy=remedy)
        return RowReader(path, columns, remedy=remedy)

    @property
    def max_count(self) -> int:
        """Largest training count of an AR hit."""
        return int(self.manifest["max_count"])


@dataclass(frozen=True, slots=True)
class Scores:
    """A model's NLLs of the same tokens, in the same order."""

    path: Path
    model: str


def open_tokens(path: Path) -> LabelledTokens:
    """The table of labelled tokens at `path`.

    Raises UserError if it is not such a table, was labelled without training counts, is empty, or lacks a column that a
    later version added.
    """
    manifest = read_manifest(path)
    if manifest.get("kind") != "tokens":
        raise UserError(f"a table of {manifest.get('kind')}, not of tokens", where=path, remedy="make one with `recallkit slice`")
    if manifest["counts"] is None:
        raise UserError(
            "labelled without training counts, so that no token is known to be an AR hit",
            where=path,
            remedy="label it again with `recallkit slice SOURCE --counts COUNTS`",
        )
    if not manifest["num_rows"]:
        raise UserError("holds no tokens", where=path, remedy="slice a source with longer text")
    check_labels(path, manifest, columns=("context_class",))  # the others are checked when rows are read
    return LabelledTokens(path, manifest)


def check_labels(path: Path, manifest: Mapping[str, Any], *, columns: Iterable[str] | None = None) -> None:
    """Raises UserError if columns of `tokens.parquet` (these, or all) or its number of rows are not as expected.

    No row is read.
    """
    import pyarrow.parquet as pq

    with arrow_errors_as_user_errors(path, SLICE_AGAIN):
        check_schema(pq.read_schema(path), "tokens", path, remedy=SLICE_AGAIN, columns=columns)
        num_rows = pq.read_metadata(path).num_rows
    if num_rows != manifest["num_rows"]:
        raise UserError(f"damaged ({num_rows:,} rows, not {manifest['num_rows']:,})", where=path, remedy=SLICE_AGAIN)


def open_scores(path: Path, tokens: LabelledTokens) -> Scores:
    """The score file at `path`, checked to be of the sequences in `tokens`, row by row.

    If it is not, raises UserError with the file and how to make it again.
    """
    manifest = read_manifest(path)
    if manifest.get("kind") != "scores":
        raise UserError(f"a table of {manifest.get('kind')}, not of scores", where=path, remedy="make one with `recallkit score`")
    model = str(manifest["model"])
    remedy = f"score them again with `recallkit score {manifest.get('source', model)} --slices {tokens.path.parent} --force`"
    if manifest["sequences_digest"] != tokens.manifest["sequences_digest"]:
        raise UserError(f"scores of other sequences than those of {tokens.path}", where=path, remedy=remedy)
    if manifest["num_rows"] != tokens.num_rows:
        raise UserError(f"{manifest['num_rows']} scores for {tokens.num_rows} tokens", where=path, remedy=remedy)
    if not _rows_agree(path, tokens.path):
        raise UserError(f"its rows are not in the order of those of {tokens.path}", where=path, remedy=remedy)
    return Scores(path, model)


def _rows_agree(scores: Path, tokens: Path) -> bool:
    """Whether the footers have the same number of rows and, per row group, the same first and last sequence: no row is read."""
    import pyarrow.parquet as pq

    ours, theirs = pq.read_metadata(tokens), pq.read_metadata(scores)
    if ours.num_rows != theirs.num_rows:
        return False
    spans, other_spans = list(_sequence_spans(ours)), list(_sequence_spans(theirs))
    same_layout = [span[0] for span in spans] == [span[0] for span in other_spans]
    return not same_layout or all(a == b or None in (a[1], b[1]) for a, b in zip(spans, other_spans, strict=True))


def _sequence_spans(metadata: pq.FileMetaData) -> Iterator[tuple[int, tuple[int, int] | None]]:
    """The number of rows of each row group, and its smallest and largest sequence if the writer recorded them."""
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        columns = (group.column(i) for i in range(group.num_columns))
        statistics = next((c.statistics for c in columns if c.path_in_schema == "sequence"), None)
        yield group.num_rows, (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None


def batch_ranges(path: Path) -> list[tuple[int, int]]:
    """Row ranges [start, stop) to read together: whole row groups of `path` if they are of the usual size."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    group = metadata.row_group(0).num_rows
    step = group * max(1, _BATCH_ROWS // group) if group <= 2 * _BATCH_ROWS else _BATCH_ROWS
    return [(start, min(start + step, metadata.num_rows)) for start in range(0, metadata.num_rows, step)]


class RowReader:
    """Reads any range of rows of a Parquet file; each row group is decoded once if the ranges ascend.

    Files of our own are read one whole row group at a time. A file of another layout (rewritten by another tool) costs a
    copy, and one of its row groups is kept in memory. Not thread-safe: each thread opens its own.
    Raises UserError with `remedy` for a file that is damaged or has other columns.
    """

    def __init__(self, path: Path, columns: Sequence[str], *, remedy: str) -> None:
        import numpy as np
        import pyarrow.parquet as pq

        self._path, self._remedy = path, remedy
        layout = str(read_manifest(path)["kind"])
        with arrow_errors_as_user_errors(path, remedy):
            self._file = pq.ParquetFile(path)
            check_schema(self._file.schema_arrow, layout, path, remedy=remedy, columns=columns)
        self._columns = list(columns)
        groups = range(self._file.metadata.num_row_groups)
        self._starts = np.cumsum([0, *(self._file.metadata.row_group(g).num_rows for g in groups)]).tolist()
        self._kept: tuple[int, pa.Table] | None = None

    def read(self, start: int, stop: int) -> pa.Table:
        """Rows [start, stop) of the chosen columns. Raises UserError if they are damaged."""
        import pyarrow as pa

        parts = []
        for group, (first, end) in enumerate(zip(self._starts, self._starts[1:], strict=False)):
            if first < stop and end > start:
                table = self._group(group, keep=end > stop)
                parts.append(table.slice(max(0, start - first), min(end, stop) - max(first, start)))
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts)

    def _group(self, group: int, *, keep: bool) -> pa.Table:
        if self._kept is not None and self._kept[0] == group:
            return self._kept[1]
        self._kept = None
        with arrow_errors_as_user_errors(self._path, self._remedy):
            table = self._file.read_row_group(group, columns=self._columns, use_threads=False)
        if keep:
            self._kept = (group, table)
        return table
