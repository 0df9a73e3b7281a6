"""Counts the bigrams of real tokens with recallkit and with other tools, side by side: seconds, memory, targets.

    python tests/benchmarks/counting.py --tokens 100M --repeats 3
    python tests/benchmarks/counting.py --tokens 500M      # in chunks, their runs merged

Ids come from $RECALLKIT_TEST_DATA (corpus/train-0*.jsonl.zst, tokenizers/gpt2.json), tiled to the wanted number. Each
method runs in a fresh process a repeat, methods in turn; it warms up on a million tokens, then counts twice. `first` pays
for memory that the system hands out, `again` reuses it, as every later chunk of a long run does. Memory is the peak over
both, beyond the ids, imports and warm-up. Every result is compared with ours by digest.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness
from tests.benchmarks.harness import NUM_THREADS, verdict

if TYPE_CHECKING:
    from collections.abc import Callable

Table = tuple[np.ndarray, np.ndarray]
CHUNK_TOKENS = 128_000_000
"""Ours counts at most this many tokens at a time."""

WARM_UP_TOKENS = 1_000_000


def ours(ids: np.ndarray) -> Callable[[], Table]:
    from recallkit.counting.bigram_kernels import count_bigrams, merge_runs

    starts = np.zeros(1, np.int64)

    def count() -> Table:
        run = None
        for begin in range(0, ids.size, CHUNK_TOKENS):
            # A chunk begins with the last id of the one before, so that the bigram across is counted.
            chunk = count_bigrams(ids[max(0, begin - 1) : begin + CHUNK_TOKENS], starts, num_threads=NUM_THREADS)
            run = merge_runs([run, chunk]) if run else chunk
        assert run is not None
        return run

    return count


def duckdb_group_by(ids: np.ndarray) -> Callable[[], Table]:
    import duckdb
    import pyarrow as pa

    pairs = pa.table({"first": ids[:-1], "second": ids[1:]})
    connection = duckdb.connect()
    connection.register("pairs", pairs)
    connection.execute(f"SET threads = {NUM_THREADS}")
    query = "SELECT first, second, count(*) AS num FROM pairs GROUP BY ALL"

    def count() -> Table:
        table = connection.sql(query).to_arrow_table()
        first, second, num = (table[name].to_numpy() for name in ("first", "second", "num"))
        return (first.astype(np.uint64) << np.uint64(32)) | second, num

    return count


def polars_streaming(ids: np.ndarray) -> Callable[[], Table]:
    import polars as pl

    pairs = pl.DataFrame({"first": ids[:-1], "second": ids[1:]}).lazy()
    # One packed key: polars groups it in two thirds of the time that two columns take.
    packed = pairs.select(pair=pl.col("first").cast(pl.UInt32) * 65536 + pl.col("second"))
    query = packed.group_by("pair").agg(num=pl.len())

    def count() -> Table:
        table = query.collect(engine="streaming")
        pair = table["pair"].to_numpy().astype(np.uint64)  # from 16 bits an id to 32
        return ((pair >> np.uint64(16)) << np.uint64(32)) | (pair & np.uint64(65535)), table["num"].to_numpy()

    return count


METHODS = {"recallkit": ours, "DuckDB GROUP BY (Arrow)": duckdb_group_by, "polars streaming": polars_streaming}
"""Each takes ids and gives the function that is timed, which returns bigrams and how often they occur."""

TARGETS = {
    100: {"DuckDB GROUP BY (Arrow)": 2.0, "polars streaming": 1.2},
    500: {"DuckDB GROUP BY (Arrow)": 2.0, "polars streaming": 1.3},
}
"""Least rate of ours as a multiple of the other's, by millions of tokens (500 for that many and more)."""

MAX_EXTRA_MB = 2000
"""Memory that ours may take at 500M tokens."""


def measure(name: str, path: str) -> dict[str, Any]:
    """One repeat of one method, in this process: seconds of both counts, extra peak memory, digest of the table."""
    ids = np.load(path)
    METHODS[name](ids[:WARM_UP_TOKENS])()
    count = METHODS[name](ids)
    before = harness.forget_peak()
    seconds: list[float] = []
    table: Any = None
    for _ in range(2):
        del table
        begin = time.perf_counter()
        table = count()
        seconds.append(time.perf_counter() - begin)
    extra_mb = (harness.memory_kb("VmHWM") - before) / 1000
    return {"first": seconds[0], "again": seconds[1], "extra_mb": extra_mb, "num_rows": table[0].size, "digest": digest_of(table)}


def digest_of(table: Table) -> str:
    """A digest of the table in the order of its keys."""
    order = np.argsort(table[0])
    state = hashlib.blake2b(digest_size=16)
    for column in table:
        state.update(np.ascontiguousarray(column[order], np.uint64).data)
    return state.hexdigest()


def write_ids(path: Path, num_tokens: int) -> int:
    """Writes real token ids, uint16, and returns how many there were before tiling.

    Tile i starts elsewhere, and every fourth tile adds 1 to all ids more often than the last: distinct bigrams then
    grow about as in fresh text (7M at 500M tokens).
    """
    base = read_corpus()
    ids = np.lib.format.open_memmap(path, "w+", np.uint16, (num_tokens,))
    for tile, begin in enumerate(range(0, num_tokens, base.size)):
        rotated = np.roll((base.astype(np.uint32) + tile // 4) % 50257, tile * 1_000_003)
        ids[begin : begin + base.size] = rotated[: num_tokens - begin]
    ids.flush()
    return int(base.size)


def read_corpus() -> np.ndarray:
    """The training shards as one stream of ids, uint16, through gigatoken where installed."""
    from recallkit.text.corpus import open_corpus

    encode = encoder(harness.tokenizer_file())
    return np.concatenate(encode([document.text for document in open_corpus(harness.shards()).documents()]))


def encoder(path: str) -> Callable[[list[str]], list[np.ndarray]]:
    try:
        from gigatoken import Tokenizer
    except ImportError:
        import tokenizers

        slow = tokenizers.Tokenizer.from_file(path)
        return lambda texts: [np.array(encoding.ids, np.uint16) for encoding in slow.encode_batch_fast(texts, add_special_tokens=False)]
    quick = Tokenizer(path)
    return lambda texts: [np.asarray(ids).astype(np.uint16) for ids in quick.encode_batch(texts)]


def print_table(results: dict[str, list[dict[str, Any]]], num_tokens: int) -> None:
    """Medians of each method's repeats; rates in million tokens a second."""
    figures = {name: [harness.median(rows, field) for field in ("first", "again", "extra_mb")] for name, rows in results.items()}
    rates = {name: [num_tokens / 1e6 / seconds for seconds in figures[name][:2]] for name in results}
    ratios = {name: [mine / its for mine, its in zip(rates["recallkit"], rates[name], strict=True)] for name in results}
    print(f"{'':33} {'seconds':>17} {'Mtok/s':>16} {'ours/its rate':>16} {'extra':>8}")
    print(f"{'method':24} {'Mtokens':>8} {'first':>8} {'again':>8} {'first':>8} {'again':>7} {'first':>8} {'again':>7} {'MB':>8}")
    for name, (first, again, extra_mb) in figures.items():
        shown = "".join(f" {two[0]:8.2f} {two[1]:7.2f}" for two in (rates[name], ratios[name]))
        print(f"{name:24} {num_tokens / 1e6:8.1f} {first:8.3f} {again:8.3f}{shown} {extra_mb:8.0f}")
    print(f"all tables equal: {results['recallkit'][0]['num_rows']:,} distinct bigrams")
    peer = max(TARGETS[100], key=lambda name: rates[name][1])  # the best one
    harness.print_stage("count bigrams of ids", peer, rates["recallkit"][1], rates[peer][1], "Mtok/s", target=TARGETS[100][peer])
    for name, least in TARGETS[500 if num_tokens >= 500_000_000 else 100].items():
        if name in results:
            lines = [f"{when} {ratio:.2f}x {verdict(ratio >= least)}" for when, ratio in zip(("first", "again"), ratios[name], strict=True)]
            print(f"target {least:.1f}x {name}: {', '.join(lines)}")
    if num_tokens >= 500_000_000:
        extra_mb = figures["recallkit"][2]
        print(f"target {MAX_EXTRA_MB} MB: {extra_mb:.0f} MB {verdict(extra_mb <= MAX_EXTRA_MB)}")


def main() -> None:
    from recallkit.config import parse_amount

    parser = harness.parser_of(__doc__, repeats=3, runs="processes a method")
    parser.add_argument("--tokens", type=parse_amount, default=100_000_000, help="number of tokens, such as 100M")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ids.npy"
        num_base = write_ids(path, args.tokens)
        print(harness.machine())
        print(f"{args.tokens:,} GPT-2 ids, tiled from {num_base:,}; {args.repeats} repeats, medians")

        results = harness.in_turn(METHODS, args.repeats, lambda name: harness.apart(measure, name, path))
    digests = {row["digest"] for rows in results.values() for row in rows}
    assert len(digests) == 1, f"tables differ: {digests}"
    print_table(results, args.tokens)


if __name__ == "__main__":
    main()
