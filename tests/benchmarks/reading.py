"""How fast `.jsonl.zst` is read: MB of raw text a second, ours and that of `datasets` streaming, on the same shard.

    RECALLKIT_TEST_DATA=DIR python tests/benchmarks/reading.py [--repeats 5] [--shard FILE.jsonl.zst]

The two are measured in turns, so that a machine's slow moments meet both; medians are compared. The shard defaults to
DIR/corpus/train-00.jsonl.zst, 30 MB of raw JSON lines.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

from recallkit.text.corpus import open_corpus
from tests.benchmarks import harness


def read_with_recallkit(shard: str) -> int:
    """Reads every document; gives the characters of text."""
    return sum(len(document.text) for document in open_corpus([shard]).documents())


def read_with_datasets(shard: str) -> int:
    """The same through `datasets`, opening included, as in ours."""
    import datasets

    rows = datasets.load_dataset("json", data_files=shard, split="train", streaming=True)
    return sum(len(row["text"]) for row in rows)


READERS = {"recallkit": read_with_recallkit, "datasets": read_with_datasets}


def raw_bytes(shard: str) -> int:
    """The length of the decompressed shard."""
    import zstandard

    with zstandard.open(shard, "rb") as file:
        return sum(len(block) for block in iter(lambda: file.read(1 << 20), b""))


def main() -> None:
    parser = harness.parser_of(__doc__, repeats=5, runs="of each reader")
    parser.add_argument("--shard")
    args = parser.parse_args()
    shard = args.shard or harness.shards()[0]
    lengths = {read(shard) for read in READERS.values()}  # also warms the file cache and the imports
    assert len(lengths) == 1, f"the readers disagree: {lengths} characters"

    def seconds(name: str) -> float:
        start = time.perf_counter()
        READERS[name](shard)
        return time.perf_counter() - start

    megabytes = raw_bytes(shard) / 1e6
    rates = {name: megabytes / median(taken) for name, taken in harness.in_turn(READERS, args.repeats, seconds).items()}
    print(f"{Path(shard).name}: {megabytes:.1f} MB raw, medians of {args.repeats} interleaved repeats")
    for name, rate in rates.items():
        print(f"{name:10} {rate:6.0f} MB/s")
    harness.print_stage("read `.jsonl.zst`", "`datasets`", *rates.values(), "MB/s")


if __name__ == "__main__":
    main()
