"""Labels, looks up and slices real tokens with recallkit and with other tools, side by side: seconds, memory, targets.

    python tests/benchmarks/slicing.py
    python tests/benchmarks/slicing.py --repeats 5 --only labels lookup

Ids come from $RECALLKIT_TEST_DATA (corpus/train-0*.jsonl.zst, tokenizers/gpt2.json), cut into sequences of 2049; the
table of counts is that of 800M ids, tiled as in counting.py. Each method runs in a fresh process a repeat, methods in
turn, 2 threads: it runs once on the first sixteenth of the ids, so that nothing is compiled or imported while it is
timed, and then once on all. Memory is the peak of that run beyond what the process held. Whole results are compared
with ours by digest. The command `slice` runs on the shards' text, its share of the tokeniser's rate alone in that
process is what its target is about.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).parents[2]))

from recallkit.options import TextOptions
from tests.benchmarks import counting, harness
from tests.benchmarks.harness import NUM_THREADS, median, verdict

Columns = tuple[np.ndarray, ...]
NUM_TOKENS, TABLE_TOKENS, SEQUENCE_IDS = 16_400_000, 800_000_000, 2049
WARM_UP_SHARE = 16
GROUP_TOKENS = 1 << 20
"""Ours looks up a row group at a time, as `slice` does; the others join all ids at once."""
SLOW_SHARDS = 1
"""Shards that `tokenizers` encodes, which takes it far longer than gigatoken."""


# --------------------------------------------------------------------------------------------------------------- labels


def offsets_of(ids: np.ndarray) -> np.ndarray:
    return np.append(np.arange(0, ids.size, SEQUENCE_IDS), ids.size)


def label_ours(ids: np.ndarray) -> Callable[[], Columns]:
    from recallkit.slicing.label_kernels import label_bigrams

    offsets = offsets_of(ids)

    def label() -> Columns:
        labels = label_bigrams(ids, offsets, num_threads=NUM_THREADS)
        return labels.distance, labels.occurrences

    return label


def label_duckdb(ids: np.ndarray) -> Callable[[], Columns]:
    import duckdb
    import pyarrow as pa

    connection = duckdb.connect()
    connection.execute(f"SET threads = {NUM_THREADS}")
    place = np.arange(ids.size, dtype=np.uint32)
    inside = place % SEQUENCE_IDS > 0
    columns = {"previous": ids[:-1][inside[1:]], "token": ids[inside], "place": place[inside], "sequence": (place // SEQUENCE_IDS)[inside]}
    connection.register("tokens", pa.table(columns))
    query = """
        SELECT
            place,
            coalesce(place - lag(place) OVER bigram, -1)::INTEGER AS distance,
            (row_number() OVER bigram - 1)::INTEGER AS occurrences
        FROM (SELECT sequence, previous, token, place::INTEGER AS place FROM tokens)
        WINDOW bigram AS (PARTITION BY sequence, previous, token ORDER BY place)
    """

    def label() -> Columns:
        table = connection.sql(query).to_arrow_table()
        result = table["place"].to_numpy()
        row = result - result // SEQUENCE_IDS - 1
        distance, occurrences = np.empty((2, row.size), np.int32)
        distance[row], occurrences[row] = table["distance"].to_numpy(), table["occurrences"].to_numpy()
        return distance, occurrences

    return label


# --------------------------------------------------------------------------------------------------------------- lookup


def table_of(folder: Path) -> Columns:
    return np.load(folder / "keys.npy"), np.load(folder / "counts.npy")


def lookup_ours(ids: np.ndarray, folder: Path) -> Callable[[], Columns]:
    from recallkit.counting.table import search_counts

    keys, counts = table_of(folder)

    def lookup() -> Columns:
        ends = [*range(GROUP_TOKENS, ids.size - 1, GROUP_TOKENS), ids.size - 1]
        groups = (ids[begin : end + 1] for begin, end in pairwise([0, *ends]))
        return (np.concatenate([search_counts(keys, counts, group[:-1], group[1:]) for group in groups]),)

    return lookup


def query_columns(ids: np.ndarray) -> dict[str, np.ndarray]:
    return {"key": (ids[:-1].astype(np.uint64) << np.uint64(32)) | ids[1:], "row": np.arange(ids.size - 1, dtype=np.uint32)}


def lookup_duckdb(ids: np.ndarray, folder: Path) -> Callable[[], Columns]:
    import duckdb
    import pyarrow as pa

    connection = duckdb.connect()
    connection.execute(f"SET threads = {NUM_THREADS}")
    keys, counts = table_of(folder)
    connection.register("counted", pa.table({"key": keys, "count": counts}))
    connection.execute("CREATE TABLE bigrams AS FROM counted")
    connection.register("asked", pa.table(query_columns(ids)))
    query = "SELECT row, coalesce(count, 0)::BIGINT AS count FROM asked LEFT JOIN bigrams USING (key)"

    def lookup() -> Columns:
        table = connection.sql(query).to_arrow_table()
        result = np.empty(table.num_rows, np.int64)
        result[table["row"].to_numpy()] = table["count"].to_numpy()
        return (result,)

    return lookup


def lookup_polars(ids: np.ndarray, folder: Path) -> Callable[[], Columns]:
    import polars as pl

    keys, counts = table_of(folder)
    counted = pl.DataFrame({"key": keys, "count": counts})
    queries = pl.DataFrame({"key": query_columns(ids)["key"]})
    joined = queries.lazy().join(counted.lazy(), on="key", how="left", maintain_order="left").select(pl.col("count").fill_null(0))
    return lambda: (joined.collect()["count"].to_numpy(),)


# ---------------------------------------------------------------------------------------------------------------- slice


def slice_command(folder: Path, *, fast: bool) -> dict[str, Any]:
    """The whole of `slice` and the tokeniser alone, on the same documents in this process."""
    from recallkit import slicing
    from recallkit.text import encoding, tokenizers
    from recallkit.text.corpus import open_corpus
    from recallkit.text.open_text import OpenText

    shards = harness.shards()[: None if fast else SLOW_SHARDS]
    tokenizer = tokenizers.load_tokenizer(harness.tokenizer_file())
    documents = list(open_corpus(shards).documents())
    encode = (encoding.fast_encoder(tokenizer) if fast else None) or tokenizer.encode
    batches = [[document.text for document in batch] for batch in encoding._batches(documents)]
    encode(batches[0])
    begin = time.perf_counter()
    num_tokens = sum(len(encode(batch)[0]) for batch in batches)
    alone, num_documents = time.perf_counter() - begin, len(documents)
    del documents, batches  # or Python's collector would look through them again and again

    OpenText.fast = fast

    def run(paths: list[str], out: str) -> dict[str, Any]:
        text = TextOptions(paths, "validation", tokenizer=harness.tokenizer_file())
        return slicing.slice_text(text, folder / out, counts=folder / "counts.duckdb", force=True)

    run([str(Path(shards[0]).with_name("valid.jsonl.zst"))], "warm-up")
    begin = time.perf_counter()
    manifest = run(shards, "slices")
    seconds = time.perf_counter() - begin
    assert manifest["num_rows"] == num_tokens + num_documents - 1
    return {"seconds": seconds, "alone": alone, "num_tokens": num_tokens}


# -------------------------------------------------------------------------------------------------------------- running

LABELS: dict[str, Callable[[np.ndarray], Callable[[], Columns]]] = {
    "recallkit, 2 threads": label_ours,
    "DuckDB lag window": label_duckdb,
}
LOOKUPS: dict[str, Callable[[np.ndarray, Path], Callable[[], Columns]]] = {
    "recallkit, 2 threads": lookup_ours,
    "DuckDB join": lookup_duckdb,
    "polars join": lookup_polars,
}
SLICES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "gigatoken": partial(slice_command, fast=True),
    "tokenizers": partial(slice_command, fast=False),
}
TASKS: dict[str, dict[str, Any]] = {"labels": LABELS, "lookup": LOOKUPS, "slice": SLICES}
TARGETS = {"labels": (20.0, 45.0), "lookup": (1.0, 3.0)}
"""At least, and to reach for: rate of ours as a multiple of the fastest other's."""

LEAST_SHARE = 0.8
"""Least rate of the whole command as a share of its tokeniser's."""


def measure(task: str, method: str, folder: str) -> dict[str, Any]:
    """One repeat of one method, in this process: seconds, extra peak memory, digest of the result."""
    from recallkit.storage.hashing import digest_arrays

    if task == "slice":
        return SLICES[method](Path(folder))
    ids = np.load(Path(folder) / "ids.npy")
    extra = (Path(folder),) if task == "lookup" else ()
    TASKS[task][method](ids[: ids.size // WARM_UP_SHARE], *extra)()
    figures, columns = harness.timed(TASKS[task][method](ids, *extra))
    return {**figures, "digest": digest_arrays(*(np.asarray(column, np.int64) for column in columns))}


def write_inputs(folder: Path, tasks: list[str], num_tokens: int) -> float:
    """The ids, a table of the counts of 800M ids, and for the command a database of the shards' counts.

    Returns the seconds that `count` took for the database; 0 without it.
    """
    from recallkit.counting import count
    from recallkit.counting.bigram_kernels import count_bigrams, merge_runs

    tiled, seconds = folder / "tiled.npy", 0.0
    counting.write_ids(tiled, max(TABLE_TOKENS, num_tokens) if "lookup" in tasks else num_tokens)
    ids = np.load(tiled, mmap_mode="r")
    # uint32, as sequences.parquet holds them.
    np.save(folder / "ids.npy", ids[:num_tokens].astype(np.uint32))
    if "lookup" in tasks:
        chunks = (ids[begin : begin + counting.CHUNK_TOKENS] for begin in range(0, ids.size, counting.CHUNK_TOKENS))
        run = merge_runs([count_bigrams(chunk, np.zeros(1, np.int64), num_threads=NUM_THREADS) for chunk in chunks])
        np.save(folder / "keys.npy", run.keys)
        np.save(folder / "counts.npy", run.counts)
    if "slice" in tasks:
        valid = str(Path(harness.shards()[0]).with_name("valid.jsonl.zst"))
        for shards in ([valid], harness.shards()):  # the first is not timed
            text = TextOptions(shards, "train", tokenizer=harness.tokenizer_file())
            begin = time.perf_counter()
            count(text, folder / "counts.duckdb", force=True)
            seconds = time.perf_counter() - begin
    tiled.unlink()
    return seconds


def report(task: str, results: dict[str, list[dict[str, Any]]], num_tokens: int) -> None:
    """Medians, ratios to ours at 2 threads, and whether the target is met."""
    first = next(iter(results))
    seconds = {method: median(rows, "seconds") for method, rows in results.items()}
    print(f"\n{task:28}{'seconds':>9}{'min':>8}{'max':>8}{'M/s':>8}{'ours/its':>10}{'extra MB':>10}")
    for method, rows in results.items():
        times = [row["seconds"] for row in rows]
        line = f"{method:28}{seconds[method]:9.3f}{min(times):8.3f}{max(times):8.3f}{num_tokens / 1e6 / seconds[method]:8.1f}"
        print(line + f"{seconds[method] / seconds[first]:10.2f}{median(rows, 'extra_mb'):10.0f}")
    digests = {row["digest"] for rows in results.values() for row in rows}
    assert len(digests) == 1, f"{task}: results differ"
    print("all results equal")
    rival = min((method for method in results if method != first), key=lambda method: seconds[method])
    stage = {"labels": "label repeated bigrams", "lookup": "look training counts up"}[task]
    harness.print_stage(stage, rival, seconds[first], seconds[rival], "s", target=TARGETS[task][0])
    ratio, (least, reach) = seconds[rival] / seconds[first], TARGETS[task]
    print(f"{ratio:.1f}x {rival}: target {least:.0f}x {verdict(ratio >= least)}, reach {reach:.0f}x {verdict(ratio >= reach)}")


def report_slice(results: dict[str, list[dict[str, Any]]]) -> None:
    """The command's rate beside its tokeniser's."""
    for method, rows in results.items():
        seconds, alone, millions = median(rows, "seconds"), median(rows, "alone"), rows[0]["num_tokens"] / 1e6
        share = float(statistics.median(row["alone"] / row["seconds"] for row in rows))
        rates = f"slice {seconds:.2f} s ({millions / seconds:.2f} Mtok/s), tokeniser alone {alone:.2f} s ({millions / alone:.2f} Mtok/s)"
        print(f"\n{method}, {millions:.1f} Mtok: {rates}")
        target = 12 / 114 if method == "gigatoken" else LEAST_SHARE
        harness.print_stage(f"`slice`, with {method}", f"{method} alone", millions / seconds, millions / alone, "Mtok/s", target=target)
        print(f"  share of its rate {share:.1%}, target {LEAST_SHARE:.0%} {verdict(share >= LEAST_SHARE)}")


def main() -> None:
    parser = harness.parser_of(__doc__, repeats=5, runs="processes a method")
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="TASK", help="labels, lookup, slice")
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS, help="ids that are labelled and looked up")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        counting_seconds = write_inputs(Path(name), args.only, args.tokens)
        print(f"{harness.machine()}; {args.tokens:,} GPT-2 ids")
        if "lookup" in args.only:
            size = np.load(Path(name) / "keys.npy", mmap_mode="r").size
            print(f"{size:,} distinct bigrams in the table; {args.repeats} repeats, medians")
        for task in args.only:
            results = harness.in_turn(TASKS[task], args.repeats, lambda method, task=task: harness.apart(measure, task, method, name))
            if task != "slice":
                report(task, results, args.tokens)
                continue
            report_slice(results)
            millions, alone = results["gigatoken"][0]["num_tokens"] / 1e6, median(results["gigatoken"], "alone")
            rates = millions / counting_seconds, millions / alone
            harness.print_stage("`count`, text to table", "gigatoken alone", *rates, "Mtok/s", target=0.4)
    print(f"\nload after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
