"""Counts the bigrams of real tokens with recallkit and with other tools, side by side: seconds, memory, targets.

    python tests/benchmarks/counting.py --tokens 100M --repeats 3
    python tests/benchmarks/counting.py --tokens 500M      # in chunks, their runs merged

Ids come from $RECALLKIT_TEST_DATA (corpus/train-0*.jsonl.zst, tokenizers/gpt2.json), tiled to the wanted number. Each
method runs in a fresh process a repeat, methods in turn; it warms up on a million tokens, then counts twice. `first` pays
for memory that the system hands out, `again` reuses it, as every later chunk of a long run does. Memory is the peak over
both, beyond the ids, imports and warm-up. Every whole result is compared with ours by digest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

Table = tuple[np.ndarray, np.ndarray]
NUM_THREADS = 2
CHUNK_TOKENS = 128_000_000
"""Ours counts at most this many tokens at a time."""

WARM_UP_TOKENS = 1_000_000
SAMPLED_FIRSTS = 100
"""tokengrams has no table of all bigrams: it is asked for one first id in this many, the time scaled."""


def ours(ids: np.ndarray) -> Callable[[], Table]:
    from recallkit.counting.bigram_kernels import BigramCounter, merge_runs

    counter = BigramCounter(num_threads=NUM_THREADS)
    starts = np.zeros(1, np.int64)

    def count() -> Table:
        run = None
        for begin in range(0, ids.size, CHUNK_TOKENS):
            # A chunk begins with the last id of the one before, so that the bigram across is counted.
            chunk = counter.count(ids[max(0, begin - 1) : begin + CHUNK_TOKENS], starts)
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
    os.environ["POLARS_MAX_THREADS"] = str(NUM_THREADS)
    import polars as pl

    pairs = pl.DataFrame({"first": ids[:-1], "second": ids[1:]}).lazy()
    # One packed key: polars groups it in two thirds of the time that two columns take.
    packed = pairs.select(pair=pl.col("first").cast(pl.UInt32) * 65536 + pl.col("second"))
    query = packed.group_by("pair").agg(num=pl.len())

    def count() -> Table:
        table = query.collect(engine="streaming")
        pair = table["pair"].to_numpy().astype(np.uint64)
        return ((pair >> np.uint64(16)) << np.uint64(32)) | (pair & np.uint64(65535)), table["num"].to_numpy()

    return count


def numpy_sort(ids: np.ndarray) -> Callable[[], Table]:
    def count() -> Table:
        pairs = ids[:-1].astype(np.uint32)
        pairs <<= 16
        pairs |= ids[1:]
        pairs.sort()
        begins = np.concatenate([[0], np.flatnonzero(pairs[1:] != pairs[:-1]) + 1])
        distinct = pairs[begins].astype(np.uint64)
        return ((distinct >> np.uint64(16)) << np.uint64(32)) | (distinct & np.uint64(65535)), np.diff(begins, append=pairs.size)

    return count


def counter(ids: np.ndarray) -> Callable[[], Table]:
    def count() -> Table:
        tokens = ids.tolist()
        table = Counter(pairwise(tokens))
        keys = np.array([first << 32 | second for first, second in table], np.uint64)
        return keys, np.fromiter(table.values(), np.uint64, len(table))

    return count


def tokengrams(ids: np.ndarray) -> Callable[[], float]:
    from tokengrams import MemmapIndex

    folder = Path(tempfile.mkdtemp(dir=os.environ["RECALLKIT_BENCHMARK_FOLDER"]))
    ids.tofile(folder / "ids.bin")
    firsts = np.unique(ids[:-1])[::SAMPLED_FIRSTS].tolist()

    def count() -> float:
        """Sorts the suffixes, then asks for the counts behind one first id in SAMPLED_FIRSTS: the seconds of the others."""
        index = MemmapIndex.build(str(folder / "ids.bin"), str(folder / "ids.idx"), 50257)
        begin = time.perf_counter()
        for first in firsts:
            index.count_next([first])
        return (time.perf_counter() - begin) * (SAMPLED_FIRSTS - 1)

    return count


class Method(NamedTuple):
    """`prepare` takes ids and gives the function that is timed; `num_tokens` is a slice's, None for all tokens.

    The function returns a table, or a float: seconds to add for work that was sampled.
    """

    prepare: Callable[[np.ndarray], Callable[[], Table | float]]
    num_tokens: int | None = None


METHODS = {
    "recallkit": Method(ours),
    "DuckDB GROUP BY (Arrow)": Method(duckdb_group_by),
    "polars streaming": Method(polars_streaming),
    "numpy sort": Method(numpy_sort),
    "Counter": Method(counter, 4_000_000),
    # Within one tile: suffixes that repeat for a whole tile would take a suffix sort hours, and are no real text.
    "tokengrams": Method(tokengrams, 20_000_000),
}
LARGE_METHODS = ["recallkit", "DuckDB GROUP BY (Arrow)", "polars streaming"]

TARGETS = {
    100: {"DuckDB GROUP BY (Arrow)": 2.0, "polars streaming": 1.2, "tokengrams": 50.0},
    500: {"DuckDB GROUP BY (Arrow)": 2.0, "polars streaming": 1.3},
}
"""Least rate of ours as a multiple of the other's, by millions of tokens (500 for that many and more)."""

MAX_EXTRA_MB = 2000
"""Memory that ours may take at 500M tokens."""


def measure(name: str, path: Path) -> dict[str, Any]:
    """One repeat of one method, in this process: seconds of both counts, extra peak memory, digest of the table."""
    method = METHODS[name]
    ids = np.load(path)[: method.num_tokens]
    method.prepare(ids[:WARM_UP_TOKENS])()
    count = method.prepare(ids)
    # The system's record of the peak starts again here. ru_maxrss would not do: it carries the parent's peak over.
    Path("/proc/self/clear_refs").write_text("5")
    baseline_kb = memory_kb("VmRSS")
    seconds: list[float] = []
    table: Table | float = 0.0
    for _ in range(2):
        del table
        begin = time.perf_counter()
        table = count()
        seconds.append(time.perf_counter() - begin + (table if isinstance(table, float) else 0))
    extra_kb = memory_kb("VmHWM") - baseline_kb
    return {"seconds": seconds, "extra_mb": extra_kb / 1000, "num_tokens": ids.size, **describe(table)}


def memory_kb(field: str) -> int:
    """This process's memory: VmRSS now, VmHWM at its peak."""
    return int(Path("/proc/self/status").read_text().partition(f"{field}:")[2].split()[0])


def describe(table: Table | float) -> dict[str, Any]:
    """The number of rows and a digest of the table in key order."""
    if isinstance(table, float):
        return {"num_rows": None, "digest": None}
    keys, counts = table
    order = np.argsort(keys)
    state = hashlib.blake2b(digest_size=16)
    for column in (keys, counts):
        state.update(np.ascontiguousarray(column[order], np.uint64).data)
    return {"num_rows": keys.size, "digest": state.hexdigest()}


def write_ids(path: Path, num_tokens: int) -> int:
    """Writes real token ids, uint16, and returns how many there were before tiling.

    Tile i starts elsewhere, and every fourth tile adds 1 to all ids more often than the last: distinct bigrams then
    grow about as in fresh text (7M at 500M tokens).
    """
    base = read_corpus(Path(os.environ["RECALLKIT_TEST_DATA"]))
    ids = np.lib.format.open_memmap(path, "w+", np.uint16, (num_tokens,))
    for tile, begin in enumerate(range(0, num_tokens, base.size)):
        rotated = np.roll((base.astype(np.uint32) + tile // 4) % 50257, tile * 1_000_003)
        ids[begin : begin + base.size] = rotated[: num_tokens - begin]
    ids.flush()
    return int(base.size)


def read_corpus(data: Path) -> np.ndarray:
    """The training shards as one stream of ids, uint16, through gigatoken where installed."""
    import orjson
    import zstandard

    pieces = []
    encode = encoder(data / "tokenizers" / "gpt2.json")
    for shard in sorted((data / "corpus").glob("train-0*.jsonl.zst")):
        lines = zstandard.ZstdDecompressor().stream_reader(shard.read_bytes()).read().splitlines()
        pieces += encode([orjson.loads(line)["text"] for line in lines])
    return np.concatenate(pieces)


def encoder(path: Path) -> Callable[[list[str]], list[np.ndarray]]:
    try:
        from gigatoken import Tokenizer
    except ImportError:
        import tokenizers

        slow = tokenizers.Tokenizer.from_file(str(path))
        return lambda texts: [np.array(encoding.ids, np.uint16) for encoding in slow.encode_batch_fast(texts, add_special_tokens=False)]
    quick = Tokenizer(str(path))
    return lambda texts: [np.asarray(ids).astype(np.uint16) for ids in quick.encode_batch(texts)]


def has_tokengrams(python: str) -> bool:
    return subprocess.run([python, "-c", "import tokengrams"], capture_output=True, check=False).returncode == 0


def compare(names: list[str], path: Path, repeats: int, tokengrams_python: str) -> dict[str, list[dict[str, Any]]]:
    """Runs every method in a fresh process, in turn, `repeats` times."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            python = tokengrams_python if name.startswith("tokengrams") else sys.executable
            command = [python, __file__, "--measure", name, "--ids", str(path)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            results[name].append(json.loads(output.splitlines()[-1]))
    return results


def check_equal(results: dict[str, list[dict[str, Any]]], num_tokens: int) -> None:
    """Every table over all tokens must be ours."""
    digests = {r["digest"] for rows in results.values() for r in rows if r["num_tokens"] == num_tokens and r["digest"]}
    assert len(digests) == 1, f"tables differ: {digests}"


class Summary(NamedTuple):
    """Medians of one method's repeats; rates in million tokens a second."""

    first_s: float
    again_s: float
    first_rate: float
    again_rate: float
    extra_mb: float


def summarise(rows: list[dict[str, Any]]) -> Summary:
    first, again = (statistics.median(row["seconds"][i] for row in rows) for i in (0, 1))
    millions = rows[0]["num_tokens"] / 1e6
    return Summary(first, again, millions / first, millions / again, statistics.median(row["extra_mb"] for row in rows))


def print_table(results: dict[str, list[dict[str, Any]]], num_tokens: int) -> None:
    summaries = {name: summarise(rows) for name, rows in results.items()}
    mine = summaries["recallkit"]
    print(f"{'':33} {'seconds':>17} {'Mtok/s':>16} {'ours/its rate':>16} {'extra':>8}")
    print(f"{'method':24} {'Mtokens':>8} {'first':>8} {'again':>8} {'first':>8} {'again':>7} {'first':>8} {'again':>7} {'MB':>8}")
    for name, row in summaries.items():
        millions = results[name][0]["num_tokens"] / 1e6
        ratios = f"{mine.first_rate / row.first_rate:8.2f} {mine.again_rate / row.again_rate:7.2f}"
        rates = f"{row.first_rate:8.2f} {row.again_rate:7.2f}"
        print(f"{name:24} {millions:8.1f} {row.first_s:8.3f} {row.again_s:8.3f} {rates} {ratios} {row.extra_mb:8.0f}")
    print(f"all whole tables equal: {results['recallkit'][0]['num_rows']:,} distinct bigrams")
    for name, least in TARGETS[500 if num_tokens >= 500_000_000 else 100].items():
        if name in summaries:
            first, again = mine.first_rate / summaries[name].first_rate, mine.again_rate / summaries[name].again_rate
            print(f"target {least:.1f}x {name}: first {first:.2f}x {verdict(first >= least)}, again {again:.2f}x {verdict(again >= least)}")
    if num_tokens >= 500_000_000:
        print(f"target {MAX_EXTRA_MB} MB: {mine.extra_mb:.0f} MB {verdict(mine.extra_mb <= MAX_EXTRA_MB)}")


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def main() -> None:
    from recallkit.config import parse_amount

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=parse_amount, default=100_000_000, help="number of tokens, such as 100M")
    parser.add_argument("--repeats", type=int, default=3, help="processes a method")
    parser.add_argument("--tokengrams-python", default=sys.executable, help="interpreter of an environment that has tokengrams")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["RECALLKIT_BENCHMARK_FOLDER"] = temporary
        path = Path(temporary) / "ids.npy"
        num_base = write_ids(path, options.tokens)
        names = LARGE_METHODS if options.tokens >= 500_000_000 else list(METHODS)
        if not has_tokengrams(options.tokengrams_python):
            names = [name for name in names if not name.startswith("tokengrams")]
        print(f"{platform.machine()}, {os.cpu_count()} cores, {NUM_THREADS} threads, load before {os.getloadavg()[0]:.1f}")
        print(f"{options.tokens:,} GPT-2 ids, tiled from {num_base:,}; {options.repeats} repeats, medians")
        results = compare(names, path, options.repeats, options.tokengrams_python)
    check_equal(results, options.tokens)
    print_table(results, options.tokens)
    if "tokengrams" in results:
        print(f"tokengrams: its index, and its answers for one first id in {SAMPLED_FIRSTS}, scaled")


if __name__ == "__main__":
    if "--measure" in sys.argv:
        _, _, method_name, _, ids_path = sys.argv
        print(json.dumps(measure(method_name, Path(ids_path))))
    else:
        main()
