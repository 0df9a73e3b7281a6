"""Counting at the scale of a training set: billions of tokens in bounded memory, text to table, one process and several.

    python tests/benchmarks/scale.py --tokens 10B --megabytes 1000

`tokens`: tokens after tokenising, through everything that `count` does with them (documents joined, chunks, runs, merges, the
DuckDB table). They are those of $RECALLKIT_TEST_DATA's shards, repeated; every eighth repetition adds 1 to all ids, so that
distinct bigrams grow about as in fresh text. Making them is timed apart and taken off.

`text`: files of text below --text (by default this Python installation), once each, as shards of .jsonl.zst. The whole
command against gigatoken alone on the same documents in memory, with the same threads; in one process, and in two.

`workers`: the same text by one process of one thread, and by two of one thread each.

Each measurement is a process of its own, in turn.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(Path(__file__).parents[2]))

from recallkit.config import parse_amount
from recallkit.text.records import EncodedDocuments, Position
from tests.benchmarks import harness
from tests.benchmarks.counting import read_corpus
from tests.benchmarks.harness import verdict

REPEATS_PER_SHIFT = 8
BATCH_TOKENS = 2_000_000
DOCUMENT_TOKENS = 1000
VOCAB, END = 50257, 50256
SUFFIXES = {".py", ".pyi", ".md", ".rst", ".txt", ".h", ".hpp", ".cuh", ".js"}
NUM_SHARDS = 8
MOST_SECONDS, MOST_MB, LEAST_SHARE, LEAST_GAIN = 180.0, 3000.0, 0.8, 1.5
"""Targets: 10B tokens in this time and extra memory; of the tokeniser's rate; of two workers."""


# --------------------------------------------------------------------------------------------------------------- tokens


def stream(base: np.ndarray, num_tokens: int, spent: list[float]) -> Iterator[EncodedDocuments]:
    """Batches of the base repeated, up to a number of tokens, end tokens left out; the seconds of making them go to `spent`."""
    begun, record, repetition, made = time.perf_counter(), 0, 0, 0
    while made < num_tokens:
        if repetition % REPEATS_PER_SHIFT == 0:
            shifted = ((base.astype(np.uint32) + repetition // REPEATS_PER_SHIFT) % END).astype(np.uint16)
        repetition += 1
        for start in range(0, base.size, BATCH_TOKENS):
            ids = shifted[start : start + min(BATCH_TOKENS, num_tokens - made)]
            if not ids.size:
                break
            offsets = np.append(np.arange(0, ids.size, DOCUMENT_TOKENS), ids.size)
            number = len(offsets) - 1
            batch = EncodedDocuments(ids, offsets, ["s"] * number, [Position(0, record + n) for n in range(number)])
            record, made = record + number, made + ids.size
            spent[0] += time.perf_counter() - begun
            yield batch
            begun = time.perf_counter()


def count_tokens(given: str, num_tokens: int) -> dict[str, Any]:
    """Seconds and extra memory of counting."""
    from recallkit.counting.bigrams import Counters, Counting, count_shard_range, join_shard_ranges
    from recallkit.counting.make_table import write_counts
    from recallkit.storage.journal import Journal

    counting, folder = Counting(END, VOCAB, "pack"), Path(given)
    base = np.load(folder / "base.npy")

    def run(name: str, size: int) -> tuple[dict[str, Any], float]:
        spent = [0.0]
        begin = time.perf_counter()
        with Journal(folder / name / "part-0", {}) as journal:
            words = count_shard_range(stream(base, size, spent), journal, Counters(counting))
            while True:
                try:
                    next(words)
                except StopIteration as end:
                    counted = end.value
                    break
        meta = write_counts(folder / f"{name}.duckdb", join_shard_ranges([counted], folder / name, counting), {})
        return meta, time.perf_counter() - begin - spent[0]

    run("warm", 3_000_000)
    figures, (meta, seconds) = harness.timed(lambda: run("all", num_tokens))
    kept = {name: meta[name] for name in ("num_tokens", "num_bigrams")}
    size_mb, mapped_mb = (folder / "all.duckdb").stat().st_size / 1e6, harness.memory_kb("RssFile") / 1000
    return {**figures, "seconds": seconds, "mapped_mb": mapped_mb, "table_mb": size_mb, **kept}


# ----------------------------------------------------------------------------------------------------------------- text


def write_shards(root: Path, folder: Path, num_bytes: int) -> int:
    """Texts below `root`, each once, in shards; returns the bytes of text."""
    import zstandard

    files = sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    np.random.default_rng(0).shuffle(files)  # type: ignore[arg-type]
    written, seen, shards = 0, set(), [(folder / f"{n}.jsonl.zst").open("wb") for n in range(NUM_SHARDS)]
    compressed = [zstandard.ZstdCompressor(3).stream_writer(shard) for shard in shards]
    for number, path in enumerate(files):
        content = path.read_bytes()
        if written >= num_bytes:
            break
        if not 500 < len(content) < 1_000_000 or hash(content) in seen:
            continue
        seen.add(hash(content))
        try:
            line = json.dumps({"text": content.decode()}, ensure_ascii=False).encode() + b"\n"
        except UnicodeDecodeError:
            continue
        compressed[number % NUM_SHARDS].write(line)
        written += len(content)
    for writer in compressed:
        writer.close()
    return written


def tokeniser_alone(folder: str) -> dict[str, Any]:
    """Seconds of encoding the documents, in memory, in the batches that the command makes."""
    from recallkit.text.encoding import _batches
    from recallkit.text.open_text import OpenText

    opened = OpenText(options_of(folder))
    batches = [[document.text for document in batch] for batch in _batches(opened.corpus.documents())]
    encode = opened.tokenizer.checked_encoder(batches[0][:50])
    begin = time.perf_counter()
    num_tokens = sum(len(encode(batch)[0]) for batch in batches)
    return {"seconds": time.perf_counter() - begin, "num_tokens": num_tokens}


def options_of(folder: str) -> Any:
    from recallkit.options import TextOptions

    shards = [str(path) for path in sorted(Path(folder).glob("*.jsonl.zst"))]
    return TextOptions(shards, "train", tokenizer=harness.tokenizer_file())


def whole_command(folder: str, workers: int) -> dict[str, Any]:
    """Seconds of `count`, from opening the text to the table, once everything is imported and compiled."""
    from recallkit import counting
    from recallkit.counting import bigrams
    from recallkit.counting.run import CountingOptions
    from recallkit.options import TextOptions

    bigrams.SHARD_RANGE_BYTES = 1
    with tempfile.TemporaryDirectory(dir=folder) as name:
        out = Path(name)
        (out / "small.jsonl").write_text('{"text": "' + "a few words " * 1000 + '"}\n')
        counting.count(TextOptions([str(out / "small.jsonl")], "train", tokenizer=options_of(folder).tokenizer), out / "small.duckdb")
        begin = time.perf_counter()
        meta = counting.count(options_of(folder), out / "counts.duckdb", options=CountingOptions(workers=workers))
        return {"seconds": time.perf_counter() - begin, "num_tokens": meta["num_tokens"], "id": meta["id"]}


def report_tokens(folder: Path, num_tokens: int) -> None:
    np.save(folder / "base.npy", read_corpus())
    row = harness.apart(count_tokens, folder, num_tokens)
    rate = row["num_tokens"] / row["seconds"] / 1e6
    print(f"{row['num_tokens']:,} tokens, {row['num_bigrams']:,} distinct bigrams: {row['seconds']:.1f} s, {rate:.0f} Mtok/s")
    print(f"extra memory at its peak {row['extra_mb']:,.0f} MB ({row['mapped_mb']:,.0f} MB of mapped files at the end)")
    print(f"table {row['table_mb']:,.0f} MB")
    if num_tokens >= 10**10:
        print(
            f"target {MOST_SECONDS:.0f} s {verdict(row['seconds'] <= MOST_SECONDS)}, {MOST_MB:.0f} MB {verdict(row['extra_mb'] <= MOST_MB)}"
        )


def report_text(folder: Path, root: Path, num_bytes: int, repeats: int) -> None:
    written = write_shards(root, folder, num_bytes)
    cores = sorted(os.sched_getaffinity(0))
    calls = {
        "alone": lambda: harness.apart(tokeniser_alone, folder),
        "one": lambda: harness.apart(whole_command, folder, 1),
        "two": lambda: harness.apart(whole_command, folder, 2),
        "one thread": lambda: harness.apart(whole_command, folder, 1, cores=cores[:1], RAYON_NUM_THREADS="1"),
    }
    rows = harness.in_turn(calls, repeats, lambda name: calls[name]())
    assert len({row["id"] for name in ("one", "two", "one thread") for row in rows[name]}) == 1, "tables differ"
    seconds = {name: harness.median(found, "seconds") for name, found in rows.items()}
    num_tokens = rows["one"][0]["num_tokens"]
    print(f"\n{written / 1e6:,.0f} MB of text, {num_tokens:,} tokens; medians of {repeats}; all tables equal")
    for name, what in (
        ("alone", "gigatoken alone, two threads, text in memory"),
        ("one", "count, one process"),
        ("two", "count --workers 2"),
        ("one thread", "count, one process on one core"),
    ):
        share = seconds["alone"] / seconds[name]
        rates = f"{written / seconds[name] / 1e6:8.0f} MB/s {num_tokens / seconds[name] / 1e6:7.1f} Mtok/s"
        print(f"{what:46} {seconds[name]:7.2f} s {rates} {share:7.1%}")
    rates = [num_tokens / seconds[name] / 1e6 for name in ("two", "alone")]
    harness.print_stage("`count`, text to table", "gigatoken alone", *rates, "Mtok/s", target=0.4)
    best = max(seconds["alone"] / seconds[name] for name in ("one", "two"))
    print(f"target {LEAST_SHARE:.0%} of the tokeniser's rate: {best:.1%} {verdict(best >= LEAST_SHARE)}")
    gain = seconds["one thread"] / seconds["two"]
    print(f"target {LEAST_GAIN}x with two workers of one thread: {gain:.2f}x {verdict(gain >= LEAST_GAIN)}")


def main() -> None:
    parser = harness.parser_of(__doc__, repeats=3)
    parser.add_argument("--tokens", type=parse_amount, default=10**9, help="tokens to count after tokenising, such as 10B")
    parser.add_argument("--megabytes", type=int, default=400, help="of text for the whole command; 0 leaves it out")
    parser.add_argument("--text", type=Path, default=Path(sys.prefix), help="a folder with files of text")
    given = parser.parse_args()
    print(harness.machine())
    with tempfile.TemporaryDirectory() as name:
        report_tokens(Path(name), given.tokens)
        if given.megabytes:
            report_text(Path(name), given.text, given.megabytes * 1_000_000, given.repeats)
    print(f"load after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
