"""How fast `.jsonl.zst` is read: MB of raw text a second, ours and that of `datasets` streaming, on
the same shard.

    python tests/benchmarks/reading.py [--repeats 5] [--shard FILE.jsonl.zst]

The shard defaults to corpus/train-00.jsonl.zst of $RECALLKIT_TEST_DATA, 30 MB of raw JSON lines.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from recallkit.text.corpus import open_corpus
from tests.benchmarks import harness


def read_with_recallkit(shard: str) -> list[int]:
    """Reads every document; gives the characters of text."""
    return [sum(len(document.text) for document in open_corpus([shard]).documents())]


def read_with_datasets(shard: str) -> list[int]:
    """The same through `datasets`, opening included, as in ours."""
    import datasets

    rows = datasets.load_dataset("json", data_files=shard, split="train", streaming=True)
    return [sum(len(row["text"]) for row in rows)]


READERS = {"recallkit": read_with_recallkit, "`datasets`": read_with_datasets}


def raw_bytes(shard: str) -> int:
    """The length of the decompressed shard."""
    import zstandard

    with zstandard.open(shard, "rb") as file:
        return sum(len(block) for block in iter(lambda: file.read(1 << 20), b""))


def main() -> None:
    args = harness.parse(__doc__, {"--repeats": 5, "--shard": None})
    shard = args.shard or harness.shards()[0]
    work = raw_bytes(shard) / 1e6
    calls = {name: partial(read, shard) for name, read in READERS.items()}
    harness.compare_calls(
        f"{Path(shard).name}: {work:.1f} MB raw",
        calls,
        repeats=args.repeats,
        work=work,
        unit="MB/s",
        stage="read `.jsonl.zst`",
    )


if __name__ == "__main__":
    main()
