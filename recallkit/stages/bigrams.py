"""Training bigrams counted exactly, in bounded memory: chunks to sorted runs, runs merged, one DuckDB table.

A chunk of ids is counted in memory and becomes a sorted run on disk; runs of similar size are merged two by two, so
that a stream of any length leaves a few of them. After every run the place in the stream is committed, and a killed
count goes on from there. Totals do not depend on where the chunks were cut.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit import artifacts, db
from recallkit.config import SCHEMA_VERSION
from recallkit.errors import UserError
from recallkit.joining import Boundary, join_documents
from recallkit.records import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import duckdb

    from recallkit.compiled.counting import BigramCounter, BigramRun
    from recallkit.counts import CountsTable
    from recallkit.journal import Journal
    from recallkit.records import EncodedDocuments

CHUNK_TOKENS = 1 << 27
"""Tokens counted in memory at a time: 256 MB of uint16 ids and about twice that of work space."""

SECONDS_A_CHUNK = 120.0
"""A slow stream commits what it has after this time, so that a kill costs at most two minutes."""

_ROWS_AN_INSERT = 1 << 22


@dataclass(frozen=True, slots=True)
class CountingState:
    """Where counting goes on: the next record, the last id before it (packed text), and the tokens so far."""

    position: Position = Position()
    last_id: int | None = None
    num_tokens: int = 0
    num_documents: int = 0

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> CountingState:
        """The inverse of `to_json`."""
        return cls(**{**saved, "position": Position(**saved["position"])})


@dataclass(frozen=True, slots=True)
class _Run:
    """A sorted run on disk: two flat files of `num_rows` little-endian uint64."""

    number: int
    num_rows: int


class _Runs:
    """The sorted runs of a count, kept few by merging neighbours of similar size."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.runs = [_Run(**saved) for saved in journal.state.get("runs", [])]
        self.next_number = max((run.number for run in self.runs), default=-1) + 1
        self._remove_leftovers()

    def _paths(self, number: int) -> tuple[Path, Path]:
        part = self.journal.part(number)
        return part.with_suffix(".keys"), part.with_suffix(".counts")

    def _remove_leftovers(self) -> None:
        """Files of runs that were merged or never committed when the last process was killed."""
        live = {path for run in self.runs for path in self._paths(run.number)}
        for path in self.journal.folder.glob("*part-*"):
            if path not in live:
                path.unlink()

    def load(self, run: _Run) -> BigramRun:
        """A run's arrays, memory-mapped."""
        from recallkit.compiled.counting import BigramRun

        return BigramRun(*(np.memmap(path, "<u8", "r", shape=(run.num_rows,)) for path in self._paths(run.number)))

    def add(self, counted: BigramRun) -> None:
        """Writes a run, unless it is empty; the caller commits."""
        if not len(counted.keys):
            return
        for path, array in zip(self._paths(self.next_number), counted, strict=True):
            with artifacts.replacing(path) as temporary:
                array.astype("<u8", copy=False).tofile(temporary)
        self.runs.append(_Run(self.next_number, len(counted.keys)))
        self.next_number += 1

    def merge_similar(self, *, everything: bool = False) -> list[_Run]:
        """Merges the last two runs while they are of similar size (or until one is left); returns those replaced."""
        replaced = []
        while len(self.runs) > 1 and (everything or self.runs[-2].num_rows < 2 * self.runs[-1].num_rows):
            a, b = self.runs[-2:]
            self.runs[-2:] = [self._merge(a, b)]
            replaced += [a, b]
        return replaced

    def _merge(self, a: _Run, b: _Run) -> _Run:
        from recallkit.compiled.counting import merge_two

        keys_path, counts_path = self._paths(self.next_number)
        with artifacts.replacing(keys_path) as keys_at, artifacts.replacing(counts_path) as counts_at:
            shape = (a.num_rows + b.num_rows,)
            keys, counts = np.memmap(keys_at, "<u8", "w+", shape=shape), np.memmap(counts_at, "<u8", "w+", shape=shape)
            num_rows = merge_two(self.load(a), self.load(b), keys, counts)
            for path, array in ((keys_at, keys), (counts_at, counts)):
                array.flush()
                os.truncate(path, 8 * num_rows)
        self.next_number += 1
        return _Run(self.next_number - 1, num_rows)

    def discard(self, runs: list[_Run]) -> None:
        """Deletes the files of runs that a committed state no longer names."""
        for run in runs:
            for path in self._paths(run.number):
                path.unlink(missing_ok=True)


class _Chunk:
    """Ids waiting to be counted, and where segments (documents, or the whole packed text) begin among them."""

    def __init__(self, dtype: np.dtype[Any], capacity: int, last_id: int | None) -> None:
        self.ids = np.empty(capacity + 1, dtype)
        self.restart(last_id)

    def restart(self, last_id: int | None) -> None:
        """Empties the chunk; packed text goes on from `last_id`, whose bigram with the next id is still to count."""
        self.length = 0
        self.segments: list[np.ndarray] = [np.zeros(1, np.int64)]
        if last_id is not None:
            self.ids[0] = last_id
            self.length = 1

    def has_room(self, count: int) -> bool:
        """Whether `count` more ids fit."""
        return self.length + count <= len(self.ids)

    def append(self, ids: np.ndarray, segment_starts: np.ndarray) -> None:
        """Adds ids; no bigram reaches back over one of `segment_starts`, places among them."""
        self.segments.append(segment_starts + self.length)
        self.ids[self.length : self.length + len(ids)] = ids
        self.length += len(ids)

    def count(self, counter: BigramCounter) -> BigramRun:
        """The sorted run of what the chunk holds."""
        return counter.count(self.ids[: self.length], np.unique(np.concatenate(self.segments)))


def count_stream(
    batches: Iterable[EncodedDocuments],
    journal: Journal,
    *,
    end_token_id: int,
    vocab_size: int,
    boundary: Boundary,
    limit_tokens: int | None = None,
    only: np.ndarray | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
    progress: Callable[[int], None] = lambda _: None,
) -> CountedStream:
    """Counts the bigrams and unigrams of a stream, committing runs to `journal`; goes on where the journal stands.

    `batches` must begin at the position of `counting_state(journal)`. `limit_tokens` ends the stream after exactly that
    many ids, end tokens included. `only`, sorted bigram keys, keeps these bigrams alone. `progress` is told the
    tokens so far. Returns the merged run, still in the journal's folder, and the totals.
    """
    return _Counting(journal, end_token_id, vocab_size, boundary, limit_tokens, only, chunk_tokens, progress).run(batches)


def counting_state(journal: Journal) -> CountingState:
    """Where the journal's last commit stands in the stream."""
    saved = journal.state.get("stream")
    return CountingState.from_json(saved) if saved else CountingState()


@dataclass(frozen=True, slots=True)
class CountedStream:
    """A finished count: the sorted run, the tokens that occur (uint32, sorted) with their counts (uint64), and the totals."""

    bigrams: BigramRun
    tokens: np.ndarray
    token_counts: np.ndarray
    num_tokens: int
    num_documents: int


class _Counting:
    """The state of `count_stream` between batches."""

    def __init__(
        self,
        journal: Journal,
        end_token_id: int,
        vocab_size: int,
        boundary: Boundary,
        limit_tokens: int | None,
        only: np.ndarray | None,
        chunk_tokens: int,
        progress: Callable[[int], None],
    ) -> None:
        from recallkit.compiled.counting import BigramCounter

        self.journal, self.end_token_id, self.boundary, self.only = journal, end_token_id, boundary, only
        self.limit, self.chunk_tokens, self.progress = limit_tokens, chunk_tokens, progress
        self.state = counting_state(journal)
        self.runs = _Runs(journal)
        self.unigrams = np.array(journal.state.get("unigrams", []), np.uint64)
        self.unigrams = np.concatenate([self.unigrams, np.zeros(max(0, vocab_size - len(self.unigrams)), np.uint64)])
        self.chunk: _Chunk | None = None
        self.counter = BigramCounter()
        self.committed_at = time.monotonic()

    def run(self, batches: Iterable[EncodedDocuments]) -> CountedStream:
        from recallkit.compiled.counting import BigramRun

        for encoded in batches:
            if self._at_limit():
                break
            self._add(encoded)
            self.progress(self.state.num_tokens)
        self._commit()
        replaced = self.runs.merge_similar(everything=True)
        if replaced:
            self._save()
            self.runs.discard(replaced)
        empty = np.empty(0, np.uint64)
        merged = self.runs.load(self.runs.runs[0]) if self.runs.runs else BigramRun(empty, empty)
        seen = np.flatnonzero(self.unigrams).astype(np.uint32)
        return CountedStream(merged, seen, self.unigrams[seen], self.state.num_tokens, self.state.num_documents)

    def _at_limit(self) -> bool:
        return self.limit is not None and self.state.num_tokens >= self.limit

    def _add(self, encoded: EncodedDocuments) -> None:
        ids, starts = join_documents(encoded, self.end_token_id, self.boundary)
        if self.limit is not None:
            ids = ids[: self.limit - self.state.num_tokens]
            starts = starts[starts < len(ids)]
        if self.chunk is None:
            self.chunk = _Chunk(ids.dtype, max(self.chunk_tokens, len(ids)), self._context())
        if not self.chunk.has_room(len(ids)) or time.monotonic() - self.committed_at > SECONDS_A_CHUNK:
            self._commit()
        if not self.chunk.has_room(len(ids)):
            self.chunk = _Chunk(ids.dtype, len(ids), self._context())
        self.chunk.append(ids, starts if self.boundary == "document" else starts[:0])
        self._count_unigrams(ids)
        last = encoded.positions[-1]
        self.state = CountingState(
            position=Position(last.shard, last.record + 1),
            last_id=int(ids[-1]),
            num_tokens=self.state.num_tokens + len(ids),
            num_documents=self.state.num_documents + len(starts),
        )

    def _context(self) -> int | None:
        return self.state.last_id if self.boundary == "pack" else None

    def _count_unigrams(self, ids: np.ndarray) -> None:
        counted = np.bincount(ids, minlength=len(self.unigrams)).astype(np.uint64)
        counted[: len(self.unigrams)] += self.unigrams
        self.unigrams = counted

    def _commit(self) -> None:
        """Turns the chunk into a run and records the place in the stream."""
        if self.chunk is not None and self.chunk.length > 1:
            counted = self.chunk.count(self.counter)
            self.runs.add(_keep_only(counted, self.only) if self.only is not None else counted)
            replaced = self.runs.merge_similar()
            self._save()
            self.runs.discard(replaced)
            self.chunk.restart(self._context())
        self.committed_at = time.monotonic()

    def _save(self) -> None:
        self.journal.commit(
            {"stream": self.state.to_json(), "runs": [asdict(run) for run in self.runs.runs], "unigrams": self.unigrams.tolist()}
        )


def _keep_only(counted: BigramRun, needed: np.ndarray) -> BigramRun:
    """The rows of a run whose key is in `needed` (sorted)."""
    at = np.searchsorted(needed, counted.keys)
    kept = needed[np.minimum(at, len(needed) - 1)] == counted.keys if len(needed) else np.zeros(len(counted.keys), bool)
    return type(counted)(counted.keys[kept], counted.counts[kept])


def write_counts(path: Path, counted: CountedStream, meta: dict[str, Any]) -> dict[str, Any]:
    """Writes `counts.duckdb`, whole or not at all; returns `meta` with the table's totals and its id.

    The id is a digest of the counts, the tokenizer and the boundary: equal for equal tables, however they were made.
    """
    keys, counts = counted.bigrams
    identity = artifacts.digest_json([meta.get("tokenizer"), meta.get("boundary"), meta.get("only")])
    meta = {
        **meta,
        "schema_version": SCHEMA_VERSION,
        "num_tokens": counted.num_tokens,
        "num_documents": counted.num_documents,
        "num_bigrams": len(keys),
        "id": artifacts.digest_bytes(
            identity.encode(), artifacts.digest_arrays(keys, counts, counted.tokens, counted.token_counts).encode()
        ),
    }
    with artifacts.replacing(path) as temporary, db.connect(temporary) as connection:
        connection.execute(db.query("counts/create_tables"))
        for start in range(0, len(keys), _ROWS_AN_INSERT):
            part = slice(start, start + _ROWS_AN_INSERT)
            _insert(
                connection,
                "counts/insert_bigrams",
                first=(keys[part] >> 32).astype(np.uint32),
                second=keys[part].astype(np.uint32),
                count=counts[part],
            )
        _insert(connection, "counts/insert_unigrams", token=counted.tokens, count=counted.token_counts)
        connection.executemany(db.query("counts/insert_fact"), [{"key": k, "value": json.dumps(v)} for k, v in meta.items()])
        connection.execute("CHECKPOINT")
    return meta


def _insert(connection: duckdb.DuckDBPyConnection, query: str, **columns: np.ndarray) -> None:
    import pyarrow as pa

    connection.register("batch", pa.table({name: np.asarray(values) for name, values in columns.items()}))
    connection.execute(db.query(query))
    connection.unregister("batch")


def read_foreign_counts(path: Path) -> CountedStream:
    """Reads a table of bigram counts made elsewhere: Parquet or CSV with columns first, second, count.

    Unigram counts are those of the second tokens, exact but for the text's first one. Raises UserError where a column
    is missing or a value is not a whole number from 0 to 2^32 - 1.
    """
    import duckdb
    import pyarrow as pa

    from recallkit.compiled.counting import BigramRun

    if not path.is_file():
        raise UserError("no such file", where=path)
    try:
        with db.connect() as connection:
            db.view_file(connection, "foreign_counts", path)
            columns = connection.execute(db.query("counts/import_table")).fetchnumpy()
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise UserError(
            f"not a table of bigram counts ({str(error).strip().splitlines()[0]})",
            where=path,
            remedy="give Parquet or CSV with whole-number columns first, second, count",
        ) from error
    first, second, counts = (np.asarray(columns[name]) for name in ("first", "second", "count"))
    if not len(first):
        raise UserError("a table without rows", where=path, remedy="give Parquet or CSV with columns first, second, count")
    order = np.argsort(second, kind="stable")
    tokens, starts = np.unique(second[order], return_index=True)
    token_counts = np.add.reduceat(counts[order].astype(np.uint64), starts)
    keys = (first.astype(np.uint64) << np.uint64(32)) | second
    return CountedStream(BigramRun(keys, counts.astype(np.uint64)), tokens.astype(np.uint32), token_counts, int(counts.sum()), 0)


def export_counts(table: CountsTable, path: Path) -> None:
    """Writes the bigrams of a counts table to Parquet (first, second, count), sorted, whole or not at all."""
    import pyarrow as pa

    schema = pa.schema([("first", pa.uint32()), ("second", pa.uint32()), ("count", pa.uint64())])

    def groups() -> Iterator[pa.Table]:
        for start in range(0, len(table.keys), _ROWS_AN_INSERT):
            part = slice(start, start + _ROWS_AN_INSERT)
            keys = table.keys[part]
            yield pa.table([(keys >> np.uint64(32)).astype(np.uint32), keys.astype(np.uint32), table.counts[part]], schema=schema)

    artifacts.write_parquet(path, groups(), schema, {"kind": "bigrams", "counts_id": table.meta["id"]})
