"""The cost of hashing n-grams beside that of counting bigrams: nanoseconds per token, and seconds of a whole `count` with and without.

    python tests/benchmarks/hashes.py --tokens 50M --repeats 3

Ids are those of counting.py, real text that is tiled; the whole count reads $RECALLKIT_TEST_DATA (corpus/train-0*.jsonl.zst,
tokenizers/gpt2.json). Each is measured in turn, `repeats` times, in this process after a warm-up; the least is printed, of seconds of
the processor too, since other work on the machine affects these less. `first` is the first chunk of a text, whose hashes are all
candidates, `later` one that follows.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

NUM_THREADS = 2


def least(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """The least seconds, by the clock and of the processor."""
    found = []
    for _ in range(repeats):
        clock, processor = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - clock, time.process_time() - processor))
    return min(seconds for seconds, _ in found), min(seconds for _, seconds in found)


def kernels(ids: np.ndarray, repeats: int) -> None:
    from recallkit import config
    from recallkit.counting.bigram_kernels import BigramCounter
    from recallkit.counting.hash_kernels import HashSampler
    from recallkit.counting.sorted_runs import HASHES

    starts = np.zeros(1, np.int64)
    bigrams = BigramCounter(num_threads=NUM_THREADS)
    bigrams.count(ids[:1_000_000], starts)
    timed = {"bigrams": lambda: bigrams.count(ids, starts)}
    for size in HASHES.values():
        HashSampler(size, 100).count(ids[:1_000], starts)
        timed[f"{size}-grams, first"] = lambda size=size: HashSampler(size, config.NUM_HASHES, num_threads=NUM_THREADS).count(ids, starts)
        later, half = HashSampler(size, config.NUM_HASHES, num_threads=NUM_THREADS), len(ids) // 2
        later.count(ids[:half], starts)
        timed[f"{size}-grams, later"] = lambda later=later, half=half: later.count(ids[half:], starts)
    for name, work in timed.items():
        num_tokens = len(ids) - len(ids) // 2 if "later" in name else len(ids)
        clock, processor = (1e9 * seconds / num_tokens for seconds in least(work, repeats))
        print(f"{name:20} {clock:8.2f} ns per token, {processor:8.2f} of the processor")


def whole(repeats: int) -> None:
    """`count` of real text, with hashes and without."""
    from recallkit import config, counting
    from recallkit.text.open_text import TextOptions

    data = Path(os.environ["RECALLKIT_TEST_DATA"])
    shards = sorted(str(path) for path in (data / "corpus").glob("train-0*.jsonl.zst"))
    text = TextOptions(shards, "train", tokenizer=str(data / "tokenizers" / "gpt2.json"))
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for num_hashes in (0, config.NUM_HASHES):
            out, options = Path(folder) / f"{num_hashes}.duckdb", counting.CountingOptions(num_hashes=num_hashes)
            seconds[num_hashes] = least(lambda out=out, options=options: counting.count(text, out, force=True, options=options), repeats)
            print(f"count, {num_hashes:,} hashes: {seconds[num_hashes][0]:.2f} s, {seconds[num_hashes][1]:.2f} s of the processor")
    ratios = [more / less for more, less in zip(seconds[config.NUM_HASHES], seconds[0], strict=True)]
    print(f"with hashes: {ratios[0]:.2f} times the seconds, {ratios[1]:.2f} times those of the processor")


def main() -> None:
    from recallkit.config import parse_amount
    from tests.benchmarks.counting import write_ids

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=parse_amount, default=50_000_000, help="number of tokens, such as 50M")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("kernels", "count"))
    options = parser.parse_args()
    if options.only == "count":
        return whole(options.repeats)
    with tempfile.TemporaryDirectory() as folder:
        write_ids(Path(folder) / "ids.npy", options.tokens)
        kernels(np.load(Path(folder) / "ids.npy"), options.repeats)
    if options.only is None:
        whole(options.repeats)
    return None


if __name__ == "__main__":
    main()
