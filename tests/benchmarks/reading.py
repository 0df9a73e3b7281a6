"""How fast `.jsonl.zst` is read: MB of raw text a second, ours and that of `datasets` streaming, on the same shard.

    RECALLKIT_TEST_DATA=DIR python tests/benchmarks/reading.py [--repeats 5] [--shard FILE.jsonl.zst]

The two are measured in turns, so that a machine's slow moments meet both; medians are compared. The shard defaults to
DIR/corpus/train-00.jsonl.zst, 30 MB of raw JSON lines.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from recallkit.text.corpus import open_corpus


def read_with_recallkit(shard: Path) -> int:
    """Reads every document; gives the characters of text."""
    return sum(len(document.text) for document in open_corpus([str(shard)]).documents())


def read_with_datasets(shard: Path) -> int:
    """The same through `datasets`, opening included, as in ours."""
    import datasets

    rows = datasets.load_dataset("json", data_files=str(shard), split="train", streaming=True)
    return sum(len(row["text"]) for row in rows)


def raw_bytes(shard: Path) -> int:
    """The length of the decompressed shard."""
    import zstandard

    with zstandard.open(shard, "rb") as file:
        return sum(len(block) for block in iter(lambda: file.read(1 << 20), b""))


def seconds(read: Callable[[Path], int], shard: Path) -> float:
    start = time.perf_counter()
    read(shard)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shard", type=Path)
    options = parser.parse_args()
    folder = os.environ.get("RECALLKIT_TEST_DATA")
    if options.shard is None and folder is None:
        sys.exit("set RECALLKIT_TEST_DATA or give --shard")
    shard = options.shard or Path(str(folder), "corpus", "train-00.jsonl.zst")

    readers = {"recallkit": read_with_recallkit, "datasets": read_with_datasets}
    lengths = {read(shard) for read in readers.values()}  # also warms the file cache and the imports
    assert len(lengths) == 1, f"the readers disagree: {lengths} characters"
    times: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(options.repeats):
        for name, read in readers.items():
            times[name].append(seconds(read, shard))
    megabytes = raw_bytes(shard) / 1e6
    rates = {name: megabytes / statistics.median(taken) for name, taken in times.items()}
    print(f"{shard.name}: {megabytes:.1f} MB raw, medians of {options.repeats} interleaved repeats")
    for name, rate in rates.items():
        print(f"{name:10} {rate:6.0f} MB/s")
    print(f"ratio      {rates['recallkit'] / rates['datasets']:6.1f}")


if __name__ == "__main__":
    main()
