"""Sequences to labelled tokens: which predicted tokens complete a bigram that occurred earlier in
the context, and how rare it was.

`repeated` and `train_count` are columns of their own, so that any other threshold than that of
`ar_hit` is a query. `match_length` is the length of the preceding context that also occurred there.
What later questions need of a token's context is a column here, so that nothing else reads contexts
again.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.config import MAX_RESAMPLED_SOURCES
from recallkit.parallel import ahead
from recallkit.ragged import run_starts
from recallkit.slicing.definitions import CONTEXT_CLASSES
from recallkit.storage.schemas import arrow_schema
from recallkit.text.sequences import group_ids, sequence_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from pathlib import Path

    import polars as pl
    import pyarrow as pa

    from recallkit.counting.table import CountsTable
    from recallkit.slicing.copies import CopyFinder
    from recallkit.text.vocabulary import DocumentText


_AS_DIFFERENCES = ("position", "first_distance", "occurrences", "match_length")
PARQUET_OPTIONS: dict[str, Any] = {
    "use_dictionary": ["source", "context_class", "train_count"],
    "column_encoding": dict.fromkeys(_AS_DIFFERENCES, "DELTA_BINARY_PACKED"),
    "write_statistics": ["sequence", "position", "document"],
}
"""How `tokens.parquet` is written: every reader knows these encodings (splitting the bytes of whole
numbers saves a tenth, and DuckDB reads that from 2.0 only). As differences of neighbours four
columns are written in seven tenths of the time and read in three quarters; the file is 0.4 %
larger. The smallest and largest values of a row group are kept of the columns that say where in the
text it is."""


def ar_hits(repeated: np.ndarray, train_count: np.ndarray, max_count: int) -> np.ndarray:
    """Which tokens are AR hits, bool (n,): the associative-recall slice of Zoology, section 3.1.

    An AR hit is the last token of a bigram that occurs earlier in the same sequence and occurred at
    most `max_count` times in training. Everything that asks for AR hits reads the column `ar_hit`
    that this makes.
    """
    is_hit: np.ndarray = repeated & (train_count <= max_count)
    return is_hit


def label_group(
    group: pa.Table,
    counts: CountsTable | None,
    max_count: int,
    in_training: np.ndarray | None = None,
) -> pa.Table:
    """Labels a row group of `sequences.parquet`: its rows of `tokens.parquet`.

    Without `counts` the columns `train_count` and `ar_hit` are null: repetition is known, rarity is
    not. Counts of repeated bigrams alone (`CountsTable.is_of_repeated`) leave `train_count` null
    where nothing is repeated. `in_training`: the marks of copies (see `CopyFinder`), int8 (n,), if
    they are known.
    """
    import pyarrow as pa

    from recallkit.slicing.label_kernels import label_bigrams, longest_matches

    ids, offsets = group_ids(group)
    bounds, lengths = list(pairwise(offsets.tolist())), np.diff(offsets) - 1
    previous = np.concatenate([ids[start : stop - 1] for start, stop in bounds])
    token = np.concatenate([ids[start + 1 : stop] for start, stop in bounds])
    position = np.arange(1, lengths.max() + 1, dtype=np.int32)
    labels = label_bigrams(ids, offsets)
    match_length = longest_matches(ids, offsets)
    is_repeated = labels.context_class == CONTEXT_CLASSES.index("bigram")
    repeated = pa.array(is_repeated)
    # A distance is valid where the bigram is repeated: its bits are those of `repeated`.
    is_valid = repeated.buffers()[1]
    distance, first_distance = (
        pa.Array.from_buffers(pa.int32(), len(token), [is_valid, pa.py_buffer(values)])
        for values in (labels.distance, labels.first_distance)
    )
    documents, sources = _spans(group, offsets)
    train_counts, hits = pa.nulls(len(token), pa.int64()), pa.nulls(len(token), pa.bool_())
    if counts is not None:
        looked_up = counts.lookup(previous, token)
        hits = pa.array(ar_hits(is_repeated, looked_up, max_count))
        train_counts = pa.array(looked_up, mask=~is_repeated if counts.is_of_repeated else None)
    columns = [
        pa.array(np.repeat(group["sequence"].to_numpy(), lengths)),
        pa.array(np.concatenate([position[:length] for length in lengths.tolist()])),
        documents,
        sources,
        pa.array(previous.view(np.int32)),
        pa.array(token.view(np.int32)),
        repeated,
        pa.DictionaryArray.from_arrays(
            pa.array(labels.context_class.astype(np.int32)),
            pa.array(CONTEXT_CLASSES),
        ),
        distance,
        first_distance,
        pa.array(labels.occurrences),
        pa.array(match_length),
        pa.array(labels.overwritten),
        train_counts,
        hits,
        pa.nulls(len(token), pa.int8()) if in_training is None else pa.array(in_training),
    ]
    return pa.Table.from_arrays(columns, schema=arrow_schema("tokens"))


def repeated_bigrams(sequences: Path) -> np.ndarray:
    """The distinct bigrams that `sequences.parquet` repeats, each within one sequence: sorted keys
    (uint64), first << 32 | second."""
    keys = [np.empty(0, np.uint64)]
    for group in sequence_groups(sequences):
        labels = label_group(group, None, 0)
        labels = labels.filter(labels["repeated"])
        first = labels["prev_token"].to_numpy().astype(np.uint64)
        second = labels["token"].to_numpy().astype(np.uint64)
        keys.append(np.unique((first << np.uint64(32)) | second))
    return np.unique(np.concatenate(keys))


def _spans(group: pa.Table, offsets: np.ndarray) -> tuple[pa.Array, pa.Array]:
    """Document (int32) and source (dictionary) of each predicted id, from the spans of its
    sequence."""
    import pyarrow as pa

    starts = group["span_starts"].combine_chunks()
    bounds = starts.offsets.to_numpy() - starts.offsets[0].as_py()
    absolute = starts.flatten().to_numpy() + np.repeat(offsets[:-1], np.diff(bounds))
    lengths = np.diff(absolute, append=offsets[-1])
    # A sequence's first id, which is not predicted, is in its first span.
    lengths[bounds[:-1]] -= 1
    documents = group["span_documents"].combine_chunks().flatten().to_numpy()
    names = group["span_sources"].combine_chunks().flatten().dictionary_encode()
    codes = names.indices.to_numpy()
    return pa.array(np.repeat(documents, lengths)), pa.DictionaryArray.from_arrays(
        pa.array(np.repeat(codes, lengths)),
        names.dictionary,
    )


class DocumentSums:
    """Bytes of text and unseen bigrams by document, for the manifest, summed while tokens are
    labelled.

    `text` gives the number of bytes of each id, 0 for an end token; None where they are not known.
    """

    def __init__(self, text: DocumentText | None) -> None:
        self._text = text
        self._sums: list[pl.DataFrame] = []

    def add(self, table: pa.Table) -> None:
        """Adds rows of `tokens.parquet`."""
        import polars as pl

        names = ("document", "token", "prev_token", "ar_hit", "train_count")
        document, token, previous, is_hit, count = (table[name].to_numpy() for name in names)
        starts = run_starts(document)
        differs = token != previous
        num_bytes = np.zeros(len(token), np.int64)
        if self._text is not None:
            num_bytes = self._text.lengths(token, previous)
        values = {
            "tokens": np.ones(len(token), np.int64),
            "num_bytes": num_bytes,
            "bigrams": differs,
            "unseen": differs & (count == 0),
        }
        if table["ar_hit"].null_count == 0:
            values["hits"] = np.where(is_hit, num_bytes, 0)
        sums: dict[str, np.ndarray | None] = {"hits": None}
        for name, value in values.items():
            sums[name] = np.add.reduceat(value, starts, dtype=np.int64)
        keys = {"document": document[starts], "source": table["source"].take(starts).cast("string")}
        self._sums.append(pl.DataFrame({**keys, **sums}, schema_overrides={"hits": pl.Int64}))

    def bytes_by_source(self) -> list[list[Any]] | None:
        """[source, bytes, bytes in AR hits], `ALL` first, then the MAX_RESAMPLED_SOURCES largest by
        tokens, sorted by name.

        Without training counts the bytes in AR hits are None; None where bytes are not known.
        """
        import polars as pl

        if self._text is None:
            return None
        hits = pl.when(pl.col("hits").null_count() == 0).then(pl.col("hits").sum())
        summed = pl.col("tokens", "num_bytes").sum(), hits
        by_source = pl.concat(self._sums).group_by("source").agg(*summed)
        largest_first = by_source.sort("tokens", "source", descending=[True, False])
        largest = largest_first.head(MAX_RESAMPLED_SOURCES).sort("source")
        total = by_source.select(pl.lit("ALL").alias("source"), *summed)
        rows = pl.concat([total, largest]).select("source", "num_bytes", "hits").rows()
        return [list(row) for row in rows]

    def unseen(self) -> dict[str, Any] | None:
        """How many bigrams the counts do not have, as `share_of_documents`; None without bigrams.

        Those of one id twice are left out, as `counting.unseen` does with documents that were
        counted.
        """
        import polars as pl

        documents = pl.concat(self._sums).group_by("document")
        by_document = documents.agg(pl.col("unseen", "bigrams").sum())
        counted = by_document.filter(pl.col("bigrams") > 0).sort("document")
        if not len(counted):
            return None
        return share_of_documents(counted["unseen"].to_numpy(), counted["bigrams"].to_numpy())


def share_of_documents(unseen: np.ndarray, bigrams: np.ndarray) -> dict[str, Any]:
    """The `share` of `bigrams` (n,) that is `unseen` (n,), and its standard error over the n
    documents, None of a single one."""
    total, number = int(bigrams.sum()), len(bigrams)
    share = int(unseen.sum()) / total
    squares = np.square(unseen - share * bigrams).sum()
    error = None if number == 1 else float(np.sqrt(number / (number - 1) * squares) / total)
    return {"share": share, "standard_error": error, "bigrams": total, "documents": number}


def label_sequences(
    groups: Iterable[pa.Table],
    counts: CountsTable | None,
    max_count: int,
    *,
    sums: DocumentSums | None = None,
    copies: CopyFinder | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Generator[pa.Table]:
    """Labels every row group of `sequences.parquet` in turn; `progress` receives the tokens done,
    `sums` every group.

    `copies` finds what was copied from the training text; without it, that is not known.

    While the caller writes one group, which takes longer than labelling it, the next one is read
    and labelled.
    """

    def labelled() -> Iterator[pa.Table]:
        marked = ((group, None) for group in groups) if copies is None else copies.marked(groups)
        for group, in_training in marked:
            table = label_group(group, counts, max_count, in_training)
            if sums is not None:
                sums.add(table)
            if copies is not None:
                copies.count(table)
            yield table

    done = 0
    for table in ahead(labelled()):
        done += table.num_rows
        progress(done)
        yield table


def summarise_slices(tokens: Path) -> pl.DataFrame:
    """Tokens, repeated tokens and AR hits by source, `ALL` first: what `recallkit slice` prints."""
    from recallkit.storage import db

    with db.connect(views={"tokens": tokens}) as connection:
        return db.frame(connection, "slices/summarise_slices")
