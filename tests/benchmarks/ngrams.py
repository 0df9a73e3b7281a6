"""Counts the n-grams of order 3 to 5 of real tokens with recallkit and with other tools, side by side: seconds, memory, ratios.

    python tests/benchmarks/ngrams.py --tokens 20M --repeats 3
    python tests/benchmarks/ngrams.py --tokens 100M --orders 5

Ids and the way of measuring are those of `counting/run.py` beside it: each method runs in a fresh process a repeat, methods in
turn; it warms up on a million tokens, then counts twice, `first` with memory new from the system and `again` with that
memory. Memory is the peak over both, beyond the ids, imports and warm-up. Every table is compared with ours by digest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.counting import NUM_THREADS, WARM_UP_TOKENS, memory_kb, summarise, write_ids

if TYPE_CHECKING:
    from collections.abc import Callable

Table = tuple[list[np.ndarray], np.ndarray]
"""Keys in columns that sort as the ids do, the first column first, and counts."""

PACKED_IDS = 4
"""16-bit ids in a 64-bit key."""


def windows(ids: np.ndarray, order: int) -> list[np.ndarray]:
    """Views of the ids: the first of every n-gram, the second, and so on."""
    return [ids[k : ids.size - order + 1 + k] for k in range(order)]


def ours(ids: np.ndarray, order: int) -> Callable[[], Table]:
    from recallkit.counting.ngram_kernels import NgramCounter

    counter = NgramCounter(order, num_threads=NUM_THREADS)
    starts = np.zeros(1, np.int64)

    def count() -> Table:
        high, low, counts = counter.count(ids, starts)
        return [high, low], counts

    return count


def duckdb_group_by(ids: np.ndarray, order: int) -> Callable[[], Table]:
    import duckdb
    import pyarrow as pa

    names = [f"id{k}" for k in range(order)]
    connection = duckdb.connect()
    connection.register("ngrams", pa.table(dict(zip(names, windows(ids, order), strict=True))))
    connection.execute(f"SET threads = {NUM_THREADS}")
    query = f"SELECT {', '.join(names)}, count(*) AS num FROM ngrams GROUP BY ALL"

    def count() -> Table:
        table = connection.sql(query).to_arrow_table()
        return [table[name].to_numpy() for name in names], table["num"].to_numpy()

    return count


def polars_streaming(ids: np.ndarray, order: int) -> Callable[[], Table]:
    os.environ["POLARS_MAX_THREADS"] = str(NUM_THREADS)
    import polars as pl

    names = [f"id{k}" for k in range(order)]
    frame = pl.DataFrame(dict(zip(names, windows(ids, order), strict=True))).lazy()
    # Four ids in a key, as polars groups one column faster than several; a fifth stands beside it.
    packed = pl.sum_horizontal(pl.col(name).cast(pl.UInt64) * (1 << 16 * k) for k, name in enumerate(reversed(names[:PACKED_IDS])))
    keys = [packed.alias("key"), *map(pl.col, names[PACKED_IDS:])]
    query = frame.select(keys).group_by(pl.all()).agg(num=pl.len())

    def count() -> Table:
        table = query.collect(engine="streaming")
        return [table[name].to_numpy() for name in ("key", *names[PACKED_IDS:])], table["num"].to_numpy()

    return count


def numpy_unique(ids: np.ndarray, order: int) -> Callable[[], Table]:
    columns = windows(ids, order)

    def count() -> Table:
        keys = columns[0].astype(np.uint64)
        for column in columns[1:]:
            keys <<= np.uint64(16)
            keys |= column
        distinct, counts = np.unique(keys, return_counts=True)
        return [distinct], counts

    return count


METHODS: dict[str, Callable[[np.ndarray, int], Callable[[], Table]]] = {
    "recallkit": ours,
    "DuckDB GROUP BY (Arrow)": duckdb_group_by,
    "polars streaming": polars_streaming,
    "numpy unique": numpy_unique,
}


def measure(name: str, order: int, path: Path) -> dict[str, Any]:
    """One repeat of one method, in this process: seconds of both counts, extra peak memory, digest of the table."""
    ids = np.load(path)
    METHODS[name](ids[:WARM_UP_TOKENS], order)()
    count = METHODS[name](ids, order)
    Path("/proc/self/clear_refs").write_text("5")
    baseline_kb = memory_kb("VmRSS")
    seconds: list[float] = []
    table: Table | None = None
    for _ in range(2):
        del table
        begin = time.perf_counter()
        table = count()
        seconds.append(time.perf_counter() - begin)
    extra_kb = memory_kb("VmHWM") - baseline_kb
    assert table is not None
    return {"seconds": seconds, "extra_mb": extra_kb / 1000, "num_tokens": ids.size, **describe(table, order)}


def describe(table: Table, order: int) -> dict[str, Any]:
    """The number of rows and a digest of ids and counts in the order of the ids, however the keys are packed."""
    keys, counts = table
    rows = np.lexsort(keys[::-1])
    state = hashlib.blake2b(digest_size=16)
    for column in (*unpacked([key[rows] for key in keys], order), counts[rows]):
        state.update(np.ascontiguousarray(column, np.uint64).data)
    return {"num_rows": counts.size, "digest": state.hexdigest()}


def unpacked(keys: list[np.ndarray], order: int) -> list[np.ndarray]:
    """The ids, a column each."""
    from recallkit.counting.ngram_kernels import unpack_ngrams

    if len(keys) == order:
        return keys
    if len(keys) == 2 and keys[1].dtype == np.uint64:
        return unpack_ngrams(keys[0], keys[1], order)
    num_packed = min(order, PACKED_IDS)
    ids = [(keys[0] >> np.uint64(16 * k)) & np.uint64(65535) for k in reversed(range(num_packed))]
    return [*ids, *keys[1:]]


def compare(order: int, path: Path, repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Runs every method in a fresh process, in turn, `repeats` times; numpy where one key holds all ids."""
    names = [name for name in METHODS if order <= PACKED_IDS or name != "numpy unique"]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            command = [sys.executable, __file__, "--measure", name, str(order), str(path)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            results[name].append(json.loads(output.splitlines()[-1]))
    digests = {row["digest"] for rows in results.values() for row in rows}
    assert len(digests) == 1, f"tables of order {order} differ: {digests}"
    return results


def print_rows(order: int, results: dict[str, list[dict[str, Any]]]) -> None:
    summaries = {name: summarise(rows) for name, rows in results.items()}
    mine = summaries["recallkit"]
    distinct = f"{results['recallkit'][0]['num_rows']:,}"
    for name, row in summaries.items():
        rates = f"{row.first_rate:.1f} | {row.again_rate:.1f}"
        ratios = f"{mine.first_rate / row.first_rate:.2f} | {mine.again_rate / row.again_rate:.2f}"
        print(f"| {order} | {name} | {row.first_s:.3f} | {row.again_s:.3f} | {rates} | {ratios} | {row.extra_mb:.0f} | {distinct} |")


def main() -> None:
    from recallkit.config import parse_amount

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=parse_amount, default=20_000_000, help="number of tokens, such as 20M")
    parser.add_argument("--repeats", type=int, default=3, help="processes a method")
    parser.add_argument("--orders", type=int, nargs="+", default=[3, 4, 5], help="lengths of n-grams")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "ids.npy"
        num_base = write_ids(path, options.tokens)
        print(f"{platform.machine()}, {os.cpu_count()} cores, {NUM_THREADS} threads, load before {os.getloadavg()[0]:.1f}")
        print(f"{options.tokens:,} GPT-2 ids of {num_base:,}; {options.repeats} repeats, medians; all tables of an order are equal\n")
        print("| order | method | first, s | again, s | first, Mtok/s | again, Mtok/s | ours/its, first | again | extra, MB | distinct |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for order in options.orders:
            print_rows(order, compare(order, path, options.repeats))
    print(f"\nload after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    if "--measure" in sys.argv:
        method_name, method_order, ids_path = sys.argv[2:]
        print(json.dumps(measure(method_name, int(method_order), Path(ids_path))))
    else:
        main()
