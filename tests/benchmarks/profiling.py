"""Profiles real tokens, step by step: what labelling and adding up cost beside label_bigrams alone and the tokeniser.

    python tests/benchmarks/profiling.py
    python tests/benchmarks/profiling.py --repeats 5 --shards 4

Ids come from $RECALLKIT_TEST_DATA (corpus/train-0*.jsonl.zst, tokenizers/gpt2.json), packed into sequences of 2049. Every
step runs on all blocks in turn, steps in turn each repeat, after a first round that compiles. Times are those of the
processor, all threads together, which other jobs on the machine change less than the clock's; medians. What counts are the
ratios, all taken in one process.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

sys.path.insert(0, str(Path(__file__).parents[2]))

from recallkit import profiling
from recallkit.profiling.tables import LabelledRows, Labeller, ProfileSums, make_tables
from recallkit.slicing.label_kernels import label_bigrams
from recallkit.text.open_text import OpenText, TextOptions
from recallkit.text.records import Position
from recallkit.text.sequences import SequenceBlock, pack_sequences

SEQ_LEN = 2048


def blocks_of(opened: OpenText) -> list[SequenceBlock]:
    """All sequences of the text."""
    encoded = opened.encoded(Position())
    return list(pack_sequences(encoded, end_token_id=opened.tokenizer.end_token_id, seq_len=SEQ_LEN, boundary="pack"))


def label(labeller: Labeller, block: SequenceBlock) -> LabelledRows:
    return labeller.label(block.ids, block.offsets, block.documents, block.sources)


def tokenise(opened: OpenText) -> None:
    for _ in opened.encoded(Position()):
        pass


def whole(options: TextOptions, folder: Path) -> None:
    profiling.profile(options, folder, options=profiling.ProfileOptions(force=True))


def steps(opened: OpenText, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each step as a function of nothing."""
    blocks = blocks_of(opened)
    labeller = Labeller(profiling.token_mask(opened.tokenizer, profiling.stop_words("ours")), None, 0)
    rows = [label(labeller, block) for block in blocks[:4]]
    sums = ProfileSums(SEQ_LEN)
    times = -(-len(blocks) // len(rows))  # rows are large: the first blocks' stand for all
    yield "label_bigrams", lambda: [label_bigrams(block.ids, block.offsets) for block in blocks]
    yield "Labeller.label", lambda: [label(labeller, block) for block in blocks]
    yield "ProfileSums.add", lambda: [sums.add(one) for one in rows * times][: len(blocks)]
    yield "make_tables", lambda: make_tables(sums, knows_hits=False)
    yield "tokeniser alone", lambda: tokenise(opened)
    yield "profile, the whole", lambda: whole(opened.options, folder)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--shards", type=int, default=2, help="of four")
    given = arguments.parse_args()
    data = Path(os.environ["RECALLKIT_TEST_DATA"])
    shards = [str(shard) for shard in sorted((data / "corpus").glob("train-0*.jsonl.zst"))[: given.shards]]
    opened = OpenText(TextOptions(shards, "validation", str(data / "tokenizers" / "gpt2.json")))
    num_tokens = sum(len(block.ids) - len(block) for block in blocks_of(opened))
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}; {num_tokens:,} GPT-2 tokens in sequences of {SEQ_LEN}")
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        named = list(steps(opened, Path(name)))
        for repeat in range(given.repeats + 1):
            for step, run in named:
                begin = time.process_time()
                run()
                if repeat:
                    seconds[step].append(time.process_time() - begin)
    report(seconds, num_tokens)


def report(seconds: dict[str, list[float]], num_tokens: int) -> None:
    """Medians, and times as shares of the two that the others are measured by."""
    medians = {step: statistics.median(times) for step, times in seconds.items()}
    labels, tokeniser = medians["label_bigrams"], medians["tokeniser alone"]
    print(f"{'':28}{'CPU s':>9}{'ns/token':>10}{'of labels':>11}{'of tokeniser':>14}")
    for step, median in medians.items():
        print(f"{step:28}{median:9.3f}{1e9 * median / num_tokens:10.1f}{median / labels:11.2f}{median / tokeniser:14.3f}")


if __name__ == "__main__":
    main()
