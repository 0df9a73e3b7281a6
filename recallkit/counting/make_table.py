"""Writes the table of training counts, one DuckDB file, atomically; imports and exports tables of
bigram counts."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.config import SCHEMA_VERSION
from recallkit.counting.bigrams import CountedStream
from recallkit.counting.table import NGRAM_HASHES, counts_id, digest_hashes
from recallkit.errors import UserError, lacks_resources
from recallkit.storage import artifacts, db, parquet_files
from recallkit.storage.records import check_record
from recallkit.storage.timings import KEY as TIMINGS
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import duckdb

    from recallkit.counting.table import CountsTable

_ROWS_PER_INSERT = 1 << 22


def write_counts(
    path: Path,
    counted: CountedStream,
    meta: dict[str, Any],
    timings: Timings | None = None,
) -> dict[str, Any]:
    """Writes `counts.duckdb` atomically; returns `meta` with the table's totals, its id and the
    `timings`.

    The id is a digest of the counts, the tokenizer and the boundary: equal for equal tables,
    however they were made. Hashes of n-grams, which affect no count, have a digest of their own.
    """
    keys, _ = counted.bigrams
    meta = {
        **meta,
        "schema_version": SCHEMA_VERSION,
        "num_tokens": counted.num_tokens,
        "num_documents": counted.num_documents,
        "num_bigrams": len(keys),
        "unseen": counted.unseen,
        **({} if not counted.hashes else {NGRAM_HASHES: _describe_hashes(counted)}),
        "id": counts_id(meta, *counted.bigrams, counted.tokens, counted.token_counts),
    }
    timings = timings or Timings()
    with (
        _writing(path),
        artifacts.adding(path, "counts", force=True) as temporary,
        db.connect(temporary) as connection,
    ):
        with timings.stage("writing"):
            _insert_all(connection, counted)
            connection.execute("CHECKPOINT")
        meta[TIMINGS] = timings.to_json()
        facts = artifacts.with_digest(meta)
        connection.executemany(
            db.query("counts/insert_fact"),
            [{"key": k, "value": json.dumps(v)} for k, v in facts.items()],
        )
        connection.execute("CHECKPOINT")
    return meta


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A block that writes a database: DuckDB's errors of the disk, as of a failed fsync, are one
    line."""
    import duckdb

    try:
        yield
    except (duckdb.IOException, duckdb.FatalException) as error:
        if lacks_resources(error) or "no space left" in str(error).lower():
            raise
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        remedy = "check the disk and run the same command again: it resumes from here"
        raise UserError(
            f"the counts table could not be written ({first_line})",
            where=path,
            remedy=remedy,
        ) from error


def _describe_hashes(counted: CountedStream) -> dict[str, Any]:
    by_size = {size: run.hashes for size, run in counted.hashes.items()}
    return {
        "most": counted.num_hashes,
        "num": {str(size): len(hashes) for size, hashes in by_size.items()},
        "digest": digest_hashes(by_size),
    }


def _insert_all(connection: duckdb.DuckDBPyConnection, counted: CountedStream) -> None:
    keys, counts = counted.bigrams
    connection.execute(db.query("counts/create_tables"))
    for part in _parts(len(keys)):
        columns = {
            "first": (keys[part] >> 32).astype(np.uint32),
            "second": keys[part].astype(np.uint32),
        }
        _insert(connection, "counts/insert_bigrams", **columns, count=counts[part])
    _insert(connection, "counts/insert_unigrams", token=counted.tokens, count=counted.token_counts)
    if counted.hashes:
        connection.execute(db.query("counts/create_ngram_hashes"))
    for size, (hashes,) in counted.hashes.items():
        for part in _parts(len(hashes)):
            _insert(
                connection,
                "counts/insert_ngram_hashes",
                size=np.full(len(hashes[part]), size, np.uint8),
                hash=hashes[part],
            )


def _parts(num_rows: int) -> Iterator[slice]:
    for start in range(0, num_rows, _ROWS_PER_INSERT):
        yield slice(start, start + _ROWS_PER_INSERT)


def _insert(connection: duckdb.DuckDBPyConnection, query: str, **columns: np.ndarray) -> None:
    import pyarrow as pa

    connection.register(
        "batch",
        pa.table({name: pa.array(values) for name, values in columns.items()}),
    )
    connection.execute(db.query(query))
    connection.unregister("batch")


def read_foreign_counts(path: Path) -> CountedStream:
    """Reads a table of bigram counts made by another program: Parquet or CSV with columns first,
    second, count.

    Unigram counts are summed over second tokens, hence exact except for the first token of the
    text. What held-out text finds unseen is known of tables that `export_counts` wrote, from their
    footers. Raises UserError if a column is missing or a value is not a whole number from 0 to 2^32
    - 1.
    """
    import duckdb

    from recallkit.counting.bigram_kernels import BigramRun

    if not path.is_file():
        raise UserError("no such file", where=path)
    try:
        with db.connect(views={"foreign_counts": path}) as connection:
            columns = connection.execute(db.query("counts/import_table")).fetchnumpy()
    except (
        duckdb.Error,
        OSError,
        RuntimeError,
        UnicodeDecodeError,
    ) as error:  # RuntimeError: of names that are not UTF-8
        if lacks_resources(error):
            raise
        problem = f"not a table of bigram counts ({str(error).strip().splitlines()[0]})"
        raise UserError(
            problem,
            where=path,
            remedy="give Parquet or CSV with whole-number columns first, second, count",
        ) from error
    first, second, counts = (np.asarray(columns[name]) for name in ("first", "second", "count"))
    if not len(first):
        raise UserError(
            "a table without rows",
            where=path,
            remedy="give Parquet or CSV with columns first, second, count",
        )
    order = np.argsort(second, kind="stable")
    tokens, starts = np.unique(second[order], return_index=True)
    token_counts = np.add.reduceat(counts[order].astype(np.uint64), starts)
    keys = (first.astype(np.uint64) << np.uint64(32)) | second
    facts = (parquet_files.footer_facts(path) if path.suffix == ".parquet" else None) or {}
    check_record(facts, path)
    return CountedStream(
        BigramRun(keys, counts.astype(np.uint64)),
        tokens.astype(np.uint32),
        token_counts,
        int(counts.sum()),
        0,
        unseen=facts.get("unseen"),
    )


def export_counts(table: CountsTable, path: Path) -> None:
    """Writes the bigrams of a counts table to Parquet (first, second, count), sorted."""
    import pyarrow as pa

    schema = pa.schema([("first", pa.uint32()), ("second", pa.uint32()), ("count", pa.uint64())])

    def groups() -> Iterator[pa.Table]:
        for part in _parts(len(table.keys)):
            keys = table.keys[part]
            columns = (
                (keys >> np.uint64(32)).astype(np.uint32),
                keys.astype(np.uint32),
                table.counts[part],
            )
            yield pa.Table.from_arrays([pa.array(column) for column in columns], schema=schema)

    facts = {"kind": "bigrams", "counts_id": table.meta["id"], "unseen": table.meta["unseen"]}
    parquet_files.write_parquet(path, groups(), schema, facts)
