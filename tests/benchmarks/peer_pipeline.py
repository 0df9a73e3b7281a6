"""`count` and `slice` beside the pipeline that one writes by hand: whole commands in turn,
processor seconds and peak memory.

    python tests/benchmarks/peer_pipeline.py                      # counts three training shards,
    slices the fourth python tests/benchmarks/peer_pipeline.py --counted $C/train-0*.jsonl.zst
    --sliced $C/train-0*.jsonl.zst

The peer is `peer_count` and `peer_slice` below, as little code as does it: gigatoken (`tokenizers`
where it is not installed), sorts in memory, polars and DuckDB. It makes the bigram counts, and 12
of the 16 columns of `tokens.parquet`; it has no hashes of n-grams, text, matches, digests or
resumption, reads one form of record, and takes no vocabulary of more than 2^16. The tables of
counts, and the columns that both have, are compared. Seconds are user and system time of the whole
process, imports included.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGETS = {"count": 1.15, "slice": 1.3}
"""Most processor seconds of ours, as a multiple of the peer's."""
MAX_COUNT = 5
"""The largest training count of an AR hit, for both sides."""
BLOCK = 1 << 22
"""Tokens that the peer labels and writes at a time."""

# ------------------------------------------------------------------------------------------------------------- the peer


def read_records(shards: list[str]) -> Iterator[dict[str, Any]]:
    import io

    import orjson
    import zstandard

    for shard in shards:
        with Path(shard).open("rb") as file:
            for line in io.BufferedReader(
                zstandard.ZstdDecompressor().stream_reader(file), 1 << 20
            ):
                yield orjson.loads(line)


def encode(texts: list[str], tokenizer: str) -> tuple[Any, Any]:
    """The ids of all texts, uint16, each followed by the end token, and how many each has, with
    it."""
    import numpy as np

    try:
        import gigatoken
    except ImportError:
        import tokenizers

        lists = [
            item.ids for item in tokenizers.Tokenizer.from_file(tokenizer).encode_batch_fast(texts)
        ]
        ids, offsets = np.concatenate(lists), np.cumsum([0, *map(len, lists)])
    else:
        layout = gigatoken.Tokenizer(tokenizer).encode_batch(texts).layout
        ids, offsets = (
            np.asarray(layout.content.data),
            np.asarray(layout.offsets.data).astype(np.int64),
        )
    return np.insert(ids.astype(np.uint16), offsets[1:], 50256), np.diff(offsets) + 1


def peer_count(shards: list[str], tokenizer: str, out: str) -> None:
    import duckdb
    import numpy as np
    import pyarrow as pa

    ids, _ = encode([record["text"] for record in read_records(shards)], tokenizer)
    keys = ids[:-1].astype(np.uint32) << 16 | ids[1:]
    keys.sort()
    starts = np.flatnonzero(np.diff(keys, prepend=~keys[:1]))
    counts, keys = np.diff(starts, append=len(keys)), keys[starts]
    with duckdb.connect(out) as connection:
        connection.register(
            "counted", pa.table({"first": keys >> 16, "second": keys & 0xFFFF, "count": counts})
        )
        connection.execute("CREATE OR REPLACE TABLE bigrams AS FROM counted")


def peer_slice(shards: list[str], tokenizer: str, counts: str, out: str) -> None:
    import duckdb
    import numpy as np
    import polars as pl
    import pyarrow.parquet as pq

    records = list(read_records(shards))
    ids, lengths = encode([record["text"] for record in records], tokenizer)
    documents = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[1:]
    sources = pl.Series(
        [record.get("meta", {}).get("pile_set_name", "") for record in records],
        dtype=pl.Categorical,
    )
    del records
    with duckdb.connect(counts, read_only=True) as connection:
        counted = connection.sql(
            "SELECT (first << 16 | second)::UINTEGER AS pair, count AS train_count FROM bigrams"
        ).pl()
    writer = None
    for first in range(0, len(ids) - 1, BLOCK):
        block, document = ids[first : first + BLOCK + 1], documents[first : first + BLOCK]
        row, pairs = np.arange(len(block) - 1), block[:-1].astype(np.uint32) << 16 | block[1:]
        # Sequence, bigram and place in one number: sorted, earlier occurrences of a bigram are
        # neighbours.
        keys = (row >> 11 << 32 | pairs) << 11 | row & 2047
        keys.sort()
        places, bigrams = (keys & 2047).astype(np.int32), keys >> 11
        begins = np.flatnonzero(np.append(True, bigrams[1:] != bigrams[:-1]))
        sizes = np.diff(begins, append=len(row))
        columns = np.empty((3, len(row)), np.int32)
        order = (keys >> 43 << 11) + places
        columns[0, order] = np.diff(places, prepend=places[:1])
        columns[1, order] = places - np.repeat(places[begins], sizes)
        columns[2, order] = row - np.repeat(begins, sizes)
        frame = pl.DataFrame(
            {
                "sequence": ((row + first) >> 11).astype(np.int32),
                "position": (row & 2047).astype(np.int32) + 1,
                "document": document,
                "source": sources.gather(document),
                "prev_token": block[:-1].astype(np.int32),
                "token": block[1:].astype(np.int32),
                **dict(zip(("distance", "first_distance", "occurrences"), columns, strict=True)),
                "pair": pairs,
            },
        )
        repeated, is_rare = pl.col("occurrences") > 0, pl.col("train_count") <= MAX_COUNT
        distances = [
            pl.when(repeated).then(name).alias(name) for name in ("distance", "first_distance")
        ]
        frame = frame.join(counted, on="pair", how="left", maintain_order="left").drop("pair")
        frame = frame.with_columns(
            *distances, pl.col("train_count").fill_null(0), repeated=repeated
        )
        table = frame.with_columns(ar_hit=repeated & is_rare).to_arrow()
        writer = writer or pq.ParquetWriter(out, table.schema, compression="zstd")
        writer.write_table(table)
    if writer is not None:
        writer.close()


# ------------------------------------------------------------------------------------------------------------ measuring


def usage(command: list[str], output: Path) -> harness.Run:
    """Processor seconds, user and system, and MB at the peak, of a command, without an earlier
    `output` of it to reuse.

    Raises SystemExit with what it prints if it fails.
    """
    if str(output) in command:
        shutil.rmtree(output, ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": str(harness.ROOT)}
    with (
        tempfile.TemporaryFile() as printed,
        subprocess.Popen(command, stdout=printed, stderr=printed, env=environment) as process,
    ):
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}: {printed.read().decode()}")
    return harness.Run(used.ru_utime + used.ru_stime, used.ru_maxrss / 1000)


def peer(function: str, *arguments: Any) -> list[str]:
    """A command that runs a function of the peer."""
    return [
        sys.executable,
        "-c",
        f"from tests.benchmarks.peer_pipeline import {function}\n{function}(*{arguments!r})",
    ]


def recallkit(command: str, shards: list[str], *options: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "recallkit",
        command,
        *shards,
        "--tokenizer",
        harness.tokenizer_file(),
        "--force",
        *options,
    ]


OURS, BY_HAND = "recallkit", "by hand"


def commands(folder: Path, counts: list[str], slices: list[str]) -> dict[str, dict[str, list[str]]]:
    """What both sides run of each command; they write to `folder`/ours and `folder`/peer."""
    tokenizer, tables = (
        harness.tokenizer_file(),
        [str(folder / side / "counts.duckdb") for side in ("ours", "peer")],
    )
    labels = [
        "--counts",
        tables[0],
        "--max-count",
        str(MAX_COUNT),
        "-o",
        str(folder / "ours/slices"),
    ]
    return {
        "count": {
            OURS: recallkit("count", counts, "-o", tables[0]),
            BY_HAND: peer("peer_count", counts, tokenizer, tables[1]),
        },
        "slice": {
            OURS: recallkit("slice", slices, *labels),
            BY_HAND: peer(
                "peer_slice", slices, tokenizer, tables[1], str(folder / "peer/tokens.parquet")
            ),
        },
    }


def differing_rows(folder: Path) -> int:
    """How many rows of the peer's tables are not in ours: bigrams, and the labels that both have
    (sources have other names)."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")
        for side in ("ours", "peer"):
            connection.execute(f"ATTACH '{folder}/{side}/counts.duckdb' AS {side} (READ_ONLY)")
        theirs, ours = f"{folder}/peer/tokens.parquet", f"{folder}/ours/slices/tokens.parquet"
        names = [row[0] for row in connection.execute(f"DESCRIBE FROM '{theirs}'").fetchall()]
        columns = ", ".join(name for name in names if name != "source")
        labels = [f"(SELECT {columns} FROM '{path}')" for path in (theirs, ours)]
        query = "SELECT count(*) FROM (FROM {} EXCEPT ALL FROM {})"
        pairs = [("peer.bigrams", "ours.bigrams"), labels]
        return sum(connection.execute(query.format(*pair)).fetchall()[0][0] for pair in pairs)


def main() -> None:
    args = harness.parse(__doc__, {"--repeats": 5, "--counted": [""], "--sliced": [""]})
    counts, slices = (list(filter(None, paths)) for paths in (args.counted, args.sliced))
    print(harness.machine())
    with harness.scratch() as folder:
        (folder / "peer").mkdir()
        by_command = commands(
            folder, counts or harness.shards()[:-1], slices or harness.shards()[-1:]
        )
        output = folder / "ours/slices"
        for sides in by_command.values():  # what is compiled and read first is not measured
            for command in sides.values():
                usage(command, output)
        assert differing_rows(folder) == 0
        print("counts and labels are the same")
        for name, sides in by_command.items():
            harness.compare(
                f"{name}: CPU seconds; at most {TARGETS[name]} times the peer's",
                list(sides),
                lambda side: usage(sides[side], output),  # noqa: B023  called in this turn
                repeats=args.repeats,
            )


if __name__ == "__main__":
    main()
