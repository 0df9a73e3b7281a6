"""Counts the bigrams of real tokens with recallkit, DuckDB and polars, in turn: seconds and memory.

    python tests/benchmarks/counting.py --tokens 100M --repeats 3
    python tests/benchmarks/counting.py --tokens 500M      # in chunks, their runs merged

Ids come from $RECALLKIT_TEST_DATA (corpus/train-0*.jsonl.zst, tokenizers/gpt2.json), tiled to the
wanted number. Each method runs in a fresh process a repeat: it warms up on a million tokens, counts
once, which pays for memory that the system hands out, and is timed when it counts again, as every
later chunk of a long run does. Memory is that of the first count.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness
from tests.benchmarks.harness import NUM_THREADS

if TYPE_CHECKING:
    from collections.abc import Callable

Columns = tuple[np.ndarray, ...]
CHUNK_TOKENS = 128_000_000
"""Ours counts at most this many tokens at a time."""
WARM_UP_TOKENS = 1_000_000


def ours(ids: np.ndarray) -> Callable[[], Columns]:
    from recallkit.counting.bigram_kernels import count_bigrams, merge_runs

    starts = np.zeros(1, np.int64)

    def count() -> Columns:
        run = None
        for begin in range(0, ids.size, CHUNK_TOKENS):
            # A chunk begins with the last id of the one before, so that the bigram across is
            # counted.
            chunk = count_bigrams(
                ids[max(0, begin - 1) : begin + CHUNK_TOKENS], starts, num_threads=NUM_THREADS
            )
            run = merge_runs([run, chunk]) if run else chunk
        assert run is not None
        return run.keys, run.counts

    return count


def duckdb_group_by(ids: np.ndarray) -> Callable[[], Columns]:
    import duckdb
    import pyarrow as pa

    connection = duckdb.connect(config={"threads": NUM_THREADS})
    connection.register("pairs", pa.table({"first": ids[:-1], "second": ids[1:]}))
    query = "SELECT first, second, count(*) AS num FROM pairs GROUP BY ALL"

    def count() -> Columns:
        table = connection.sql(query).to_arrow_table()
        first, second, num = (column.to_numpy() for column in table.columns)
        return (first.astype(np.uint64) << np.uint64(32)) | second, num

    return count


def polars_streaming(ids: np.ndarray) -> Callable[[], Columns]:
    import polars as pl

    pairs = pl.DataFrame({"first": ids[:-1], "second": ids[1:]}).lazy()
    # One packed key: polars groups it in two thirds of the time that two columns take.
    packed = pairs.select(pair=pl.col("first").cast(pl.UInt32) * 65536 + pl.col("second"))
    query = packed.group_by("pair").agg(num=pl.len())

    def count() -> Columns:
        table = query.collect(engine="streaming")
        pair = table["pair"].to_numpy().astype(np.uint64)  # from 16 bits an id to 32
        return ((pair >> np.uint64(16)) << np.uint64(32)) | (pair & np.uint64(65535)), table[
            "num"
        ].to_numpy()

    return count


METHODS = {
    "recallkit": ours,
    "DuckDB GROUP BY": duckdb_group_by,
    "polars streaming": polars_streaming,
}
"""Each takes ids and gives the function that is timed, which returns bigrams and how often they
occur."""


def measure(name: str, path: str) -> harness.Run:
    """One repeat of one method, in this process."""
    from recallkit.storage.hashing import digest_arrays

    ids = np.load(path)
    METHODS[name](ids[:WARM_UP_TOKENS])()
    count = METHODS[name](ids)
    first, _ = harness.timed(count)
    again, (keys, counts) = harness.timed(count)
    order = np.argsort(keys)
    columns = keys[order].astype(np.uint64), counts[order].astype(np.uint64)
    return harness.Run(again.seconds, first.megabytes, [digest_arrays(*columns)])


def texts_of(shards: list[str]) -> list[str]:
    from recallkit.text.corpus import open_corpus

    return [document.text for document in open_corpus(shards).documents()]


def encoder(*, fast: bool = True) -> Callable[[list[str]], tuple[np.ndarray, np.ndarray]]:
    """GPT-2's ids of texts, and their offsets: by gigatoken where it is installed, or else by
    `tokenizers`."""
    from recallkit.text import encoding, tokenizers

    tokenizer = tokenizers.load_tokenizer(harness.tokenizer_file())
    return (encoding.fast_encoder(tokenizer) if fast else None) or tokenizer.encode


def write_ids(path: Path, num_tokens: int) -> None:
    """Writes real token ids, uint16.

    Tile i starts elsewhere, and every fourth tile adds 1 to all ids more often than the last:
    distinct bigrams then grow about as in fresh text (7M at 500M tokens).
    """
    base = encoder()(texts_of(harness.shards()))[0].astype(np.uint32)
    ids = np.lib.format.open_memmap(path, "w+", np.uint16, (num_tokens,))
    for tile, begin in enumerate(range(0, num_tokens, base.size)):
        rotated = np.roll((base + tile // 4) % 50257, tile * 1_000_003)
        ids[begin : begin + base.size] = rotated[: num_tokens - begin]
    ids.flush()


def main() -> None:
    args = harness.parse(__doc__, {"--repeats": 3, "--tokens": 100_000_000})
    with harness.scratch() as folder:
        path = folder / "ids.npy"
        write_ids(path, args.tokens)
        harness.compare(
            f"{args.tokens:,} GPT-2 ids; {harness.machine()}",
            list(METHODS),
            lambda name: harness.apart(measure, name, path),
            repeats=args.repeats,
            work=args.tokens / 1e6,
            unit="Mtok/s",
            stage="count bigrams of ids",
            targets={"DuckDB GROUP BY": 2.0, "polars streaming": 1.2},
        )


if __name__ == "__main__":
    main()
