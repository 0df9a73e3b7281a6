"""Labels, looks up, counts and slices real tokens with recallkit and with other tools, in turn:
seconds and memory.

    python tests/benchmarks/slicing.py
    python tests/benchmarks/slicing.py --repeats 5 --only labels lookup

Ids are those of counting.py, cut into sequences of 2049; the table of counts is that of 800M ids,
tiled. Each method runs in a fresh process a repeat, 2 threads: it runs once on the first sixteenth
of the ids, so that nothing is compiled or imported while it is timed, and then on all. The commands
`count` and `slice` run on the shards' text, as do the tokenisers alone beside them.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import counting, harness
from tests.benchmarks.counting import CHUNK_TOKENS, Columns
from tests.benchmarks.harness import NUM_THREADS

TABLE_TOKENS, SEQUENCE_IDS = 800_000_000, 2049
WARM_UP_SHARE = 16
GROUP_TOKENS = 1 << 20
"""Ours looks up a row group at a time, as `slice` does; the others join all ids at once."""
OURS = "recallkit, 2 threads"

# --------------------------------------------------------------------------------------------------------------- labels


def label_ours(ids: np.ndarray, _: Path) -> Callable[[], Columns]:
    from recallkit.slicing.label_kernels import label_bigrams

    offsets = np.append(np.arange(0, ids.size, SEQUENCE_IDS), ids.size)

    def label() -> Columns:
        labels = label_bigrams(ids, offsets, num_threads=NUM_THREADS)
        return labels.distance, labels.occurrences

    return label


def label_duckdb(ids: np.ndarray, _: Path) -> Callable[[], Columns]:
    import duckdb
    import pyarrow as pa

    connection = duckdb.connect(config={"threads": NUM_THREADS})
    place = np.arange(ids.size, dtype=np.uint32)
    inside = place % SEQUENCE_IDS > 0
    columns = {
        "previous": ids[:-1][inside[1:]],
        "token": ids[inside],
        "place": place[inside],
        "sequence": (place // SEQUENCE_IDS)[inside],
    }
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
        place, *labels = (column.to_numpy() for column in table.columns)
        # The first id of a sequence has no label: place 2050, the second of sequence 1, is row
        # 2048.
        rows = place - place // SEQUENCE_IDS - 1
        distance, occurrences = np.empty((2, rows.size), np.int32)
        distance[rows], occurrences[rows] = labels
        return distance, occurrences

    return label


# --------------------------------------------------------------------------------------------------------------- lookup


def table_of(folder: Path) -> Columns:
    return np.load(folder / "keys.npy"), np.load(folder / "counts.npy")


def keys_of(ids: np.ndarray) -> np.ndarray:
    return (ids[:-1].astype(np.uint64) << np.uint64(32)) | ids[1:]


def lookup_ours(ids: np.ndarray, folder: Path) -> Callable[[], Columns]:
    from recallkit.counting.table import search_counts

    keys, counts = table_of(folder)

    def lookup() -> Columns:
        ends = [*range(GROUP_TOKENS, ids.size - 1, GROUP_TOKENS), ids.size - 1]
        groups = (ids[begin : end + 1] for begin, end in pairwise([0, *ends]))
        return (
            np.concatenate(
                [search_counts(keys, counts, group[:-1], group[1:]) for group in groups]
            ),
        )

    return lookup


def lookup_duckdb(ids: np.ndarray, folder: Path) -> Callable[[], Columns]:
    import duckdb
    import pyarrow as pa

    connection = duckdb.connect(config={"threads": NUM_THREADS})
    keys, counts = table_of(folder)
    connection.register("counted", pa.table({"key": keys, "count": counts}))
    connection.execute("CREATE TABLE bigrams AS FROM counted")
    columns = {"key": keys_of(ids), "row": np.arange(ids.size - 1, dtype=np.uint32)}
    connection.register("queries", pa.table(columns))
    query = (
        "SELECT row, coalesce(count, 0)::BIGINT AS count FROM queries LEFT JOIN bigrams USING (key)"
    )

    def lookup() -> Columns:
        table = connection.sql(query).to_arrow_table()
        result = np.empty(table.num_rows, np.int64)
        result[table["row"].to_numpy()] = table["count"].to_numpy()
        return (result,)

    return lookup


def lookup_polars(ids: np.ndarray, folder: Path) -> Callable[[], Columns]:
    import polars as pl

    keys, counts = table_of(folder)
    table = pl.LazyFrame({"key": keys, "count": counts})
    queries = pl.LazyFrame({"key": keys_of(ids)})
    joined = queries.join(table, on="key", how="left", maintain_order="left")
    query = joined.select(pl.col("count").fill_null(0))
    return lambda: (query.collect()["count"].to_numpy(),)


ON_IDS: dict[str, tuple[str, dict[str, Any], dict[str, float]]] = {
    "labels": (
        "label repeated bigrams",
        {OURS: label_ours, "DuckDB lag window": label_duckdb},
        {"DuckDB lag window": 20.0},
    ),
    "lookup": (
        "look training counts up",
        {OURS: lookup_ours, "DuckDB join": lookup_duckdb, "polars join": lookup_polars},
        {"DuckDB join": 1.0, "polars join": 1.0},
    ),
}
"""Row of the page; methods, which take ids and the folder of the table and give the function that
is timed; targets."""


def measure_on_ids(task: str, method: str, name: str) -> harness.Run:
    """One repeat of one method, in this process."""
    from recallkit.storage.hashing import digest_arrays

    folder = Path(name)
    ids = np.load(folder / "ids.npy")
    prepare = ON_IDS[task][1][method]
    prepare(ids[: ids.size // WARM_UP_SHARE], folder)()
    run, columns = harness.timed(prepare(ids, folder))
    same_type = (np.asarray(column, np.int64) for column in columns)
    return run._replace(answers=[digest_arrays(*same_type)])


def write_inputs(folder: Path, num_tokens: int, table_tokens: int) -> None:
    """The ids, and a table of the counts of `table_tokens` of them, if any."""
    from recallkit.counting.bigram_kernels import count_bigrams, merge_runs

    tiled, start = folder / "tiled.npy", np.zeros(1, np.int64)
    counting.write_ids(tiled, max(table_tokens, num_tokens))
    ids = np.load(tiled, mmap_mode="r")
    np.save(folder / "ids.npy", ids[:num_tokens].astype(np.uint32))  # as sequences.parquet has them
    chunks = (ids[begin : begin + CHUNK_TOKENS] for begin in range(0, table_tokens, CHUNK_TOKENS))
    if table_tokens:
        run = merge_runs([count_bigrams(chunk, start, num_threads=NUM_THREADS) for chunk in chunks])
        np.save(folder / "keys.npy", run.keys)
        np.save(folder / "counts.npy", run.counts)
    tiled.unlink()


# ------------------------------------------------------------------------------------------------------------- commands


def shards_of(tokenizer: str) -> list[str]:
    """All, or one for `tokenizers`, which takes far longer than gigatoken."""
    return harness.shards() if tokenizer == "gigatoken" else harness.shards()[:1]


def tokenize(tokenizer: str, _: Path) -> harness.Run:
    """The tokeniser alone."""
    encode = counting.encoder(fast=tokenizer == "gigatoken")
    texts = counting.texts_of(shards_of(tokenizer))
    encode(texts[:100])
    return harness.timed(lambda: encode(texts))[0]


def run_command(command: str, tokenizer: str, folder: Path) -> harness.Run:
    """The whole command, after a run on another shard."""
    from recallkit import counting as counts
    from recallkit import slicing
    from recallkit.options import TextOptions
    from recallkit.text.open_text import OpenText

    OpenText.fast = tokenizer == "gigatoken"
    table = folder / "counts.duckdb"

    def run(paths: list[str]) -> Any:
        text = TextOptions(paths, "validation", tokenizer=harness.tokenizer_file())
        if command == "count":
            return counts.count(text, table, force=True)
        return slicing.slice_text(text, folder / "slices", counts=table, force=True)

    shards = shards_of(tokenizer)
    run([str(Path(shards[0]).with_name("valid.jsonl.zst"))])
    return harness.timed(lambda: run(shards))[0]


COMMANDS: dict[str, Any] = {
    "count": partial(run_command, "count"),
    "slice": partial(run_command, "slice"),
    "alone": tokenize,
}


def measure_command(command: str, tokenizer: str, name: str) -> harness.Run:
    return COMMANDS[command](tokenizer, Path(name))


def num_tokens_of(tokenizer: str) -> int:
    """GPT-2's tokens of the shards."""
    return counting.encoder()(counting.texts_of(shards_of(tokenizer)))[0].size


STAGES = [
    ("`count`, text to table", "count", "gigatoken", 0.4),
    ("`slice`, with gigatoken", "slice", "gigatoken", 12 / 114),
    ("`slice`, with `tokenizers`", "slice", "tokenizers", 0.8),
]
"""Row of the page, command, tokeniser, and the least share of the tokeniser's rate."""


def compare_commands(folder: Path, repeats: int) -> None:
    for stage, command, tokenizer, least in STAGES:
        alone = f"{tokenizer} alone"
        methods = {stage: command, alone: "alone"}
        harness.compare(
            stage,
            list(methods),
            lambda name: harness.apart(measure_command, methods[name], tokenizer, folder),  # noqa: B023  called in this turn
            repeats=repeats,
            work=num_tokens_of(tokenizer) / 1e6,
            unit="Mtok/s",
            stage=stage,
            targets={alone: least},
        )


def main() -> None:
    tasks = [*ON_IDS, "slice"]
    args = harness.parse(
        __doc__, {"--repeats": 5, "--only": tasks, "--tokens": 16_400_000}, only=tasks
    )
    print(harness.machine())
    with harness.scratch() as folder:
        write_inputs(folder, args.tokens, TABLE_TOKENS if "lookup" in args.only else 0)
        for task in args.only:
            if task == "slice":
                compare_commands(folder, args.repeats)
                continue
            stage, methods, targets = ON_IDS[task]
            harness.compare(
                f"{stage}, {args.tokens:,} GPT-2 ids",
                list(methods),
                lambda method: harness.apart(measure_on_ids, task, method, folder),  # noqa: B023  called in this turn
                repeats=args.repeats,
                stage=stage,
                targets=targets,
            )


if __name__ == "__main__":
    main()
