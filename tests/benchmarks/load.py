"""Whole commands under load: CPU seconds, peak memory, and how soon and how often they tell how far they are.

    python tests/benchmarks/load.py                  # everything, in an hour and 8 GB
    python tests/benchmarks/load.py models shards    # some of it
    python tests/benchmarks/load.py --share 0.01     # a hundredth of the size

`documents`: 2 million documents of 20 words, counted, sliced, and the gap of two models on them. `models`: the gap of 100 models, and its
page. `context`: sequences of 32,768 ids through a copy of the zoo's hybrid without a limit. `vocabulary`: a model of 262,144 entries
of width 640, beside the product of its head alone. `bigrams`: 30 million distinct ones, counted, and a text sliced with them.
`shards`: 100,000 files of a document each.

NLLs are planted, as another program would record them. Each command is a process of its own, with so much memory and no more, and a
log for stderr: `first` is when it had its first line, `silence` the longest time without one, both in seconds by the clock, which other
work on the machine prolongs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness

MOST_BYTES = 8 << 30
"""Of a command's address space."""
NUM_WORDS, WORDS_IN_DOCUMENT = 20_000, 20
SEQ_LEN, VOCAB, WIDTH = 32_768, 262_144, 640
SCORED = 8192
"""Tokens that the model of the large vocabulary scores."""
PAGE_BYTES = 5_000_000
"""Most of the page of 100 models."""


# ------------------------------------------------------------------------------------------------------------- measuring


def run(folder: Path, *arguments: object) -> dict[str, float]:
    """Runs a command in `folder` and prints a row about it; returns its figures."""
    words = [sys.executable, "-m", "recallkit", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(harness.ROOT), "RECALLKIT_HOME": str(folder / "home")}
    environment.pop("RECALLKIT_LOG_SECONDS", None)  # tests set it
    reading, writing = os.pipe()
    begun = time.monotonic()
    process = os.fork()
    if not process:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        os.chdir(folder)
        os.dup2(writing, 2)
        os.dup2(os.open(folder / "stdout.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
        os.execve(sys.executable, words, environment)
    os.close(writing)
    told, log = [begun], b""
    while part := os.read(reading, 1 << 16):
        told.append(time.monotonic())
        log += part
    os.close(reading)
    _, status, used = os.wait4(process, 0)
    told.append(time.monotonic())
    assert status == 0, log.decode()[-2000:]
    figures = {
        "cpu": used.ru_utime + used.ru_stime,
        "mb": used.ru_maxrss / 1000,
        "first": told[1] - begun,
        "silence": max(after - before for before, after in itertools.pairwise(told)),
    }
    command = " ".join(["recallkit", *map(str, arguments)])
    shown = command if len(command) < 70 else f"{command[:66]} ..."
    print(f"| `{shown}` | {figures['cpu']:.1f} | {figures['mb']:,.0f} | {figures['first']:.1f} | {figures['silence']:.1f} |", flush=True)
    return figures


def made_up_words(rng: np.random.Generator) -> np.ndarray:
    letters = np.array(list("etaoinshrdlucmfw"))
    return np.array(["".join(rng.choice(letters, rng.integers(2, 8))) for _ in range(NUM_WORDS)])


def documents(number: int) -> Any:
    """Lines of JSON, each a document of words that are as frequent as Zipf's law says."""
    rng = np.random.default_rng(0)
    words, shares = made_up_words(rng), 1 / np.arange(1, NUM_WORDS + 1)
    for start in range(0, number, 10_000):
        shape = (min(10_000, number - start), WORDS_IN_DOCUMENT)
        for document in words[rng.choice(NUM_WORDS, shape, p=shares / shares.sum())]:
            yield json.dumps({"text": " ".join(document)}) + "\n"


def plant(slices: Path, number: int) -> list[str]:
    """Arguments that name so many models with recorded NLLs: each retains less of the first one's recall than the one before."""
    import pyarrow.parquet as pq

    pack = json.loads((slices / "pack/manifest.json").read_text())
    ids, lengths = (np.load(slices / "pack" / name, mmap_mode="r") for name in ("ids.npy", "lengths.npy"))
    targets = np.asarray(ids[:, 1:])[np.arange(pack["seq_len"]) < np.asarray(lengths)[:, None] - 1]
    counts = np.bincount(targets) + 1.0
    surprisal = -np.log(counts / counts.sum()).astype(np.float32)[targets]
    repeated = pq.read_table(slices / "tokens.parquet", columns=["repeated"])["repeated"].to_numpy()
    facts = {"sequences_digest": pack["sequences_digest"], "unit": "nats", "prefix": -1}
    named = []
    for model in range(number):
        noise = np.random.default_rng(model).gamma(3, 0.25, len(targets)).astype(np.float32)
        nll = surprisal * noise * np.where(repeated, np.float32(0.3 + 0.6 * model / number), np.float32(1 + 0.001 * model))
        np.save(slices / f"m{model:03}.npy", nll)
        (slices / f"m{model:03}.json").write_text(json.dumps(facts))
        named.append(f"m{model:03}={slices / f'm{model:03}.npy'}")
    return named


# ----------------------------------------------------------------------------------------------------------------- loads


def load_documents(folder: Path, share: float) -> None:
    with (folder / "text.jsonl").open("w") as file:
        file.writelines(documents(max(300, int(2_000_000 * share))))
    run(folder, "count", "text.jsonl", "-o", "counts.duckdb")
    run(folder, "slice", "text.jsonl", "--counts", "counts.duckdb", "--pack", "-o", "slices")
    run(folder, "gap", *plant(folder / "slices", 2), "--slices", "slices")


def load_models(folder: Path, share: float) -> None:
    run(folder, "count", "demo:train", "--limit-tokens", "1M", "-o", "counts.duckdb")
    run(folder, "slice", "demo", "--counts", "counts.duckdb", "--pack", "-o", "slices")
    run(folder, "gap", *plant(folder / "slices", max(12, int(100 * share))), "--slices", "slices", "-o", "gap")
    run(folder, "report", "gap", "--slices", "slices", "-o", "page.html")
    size = (folder / "page.html").stat().st_size
    print(f"page: {size / 1e6:.1f} MB, target {PAGE_BYTES / 1e6:.0f}: {harness.verdict(size <= PAGE_BYTES)}")


def load_context(folder: Path, share: float) -> None:
    model = shutil.copytree(harness.ROOT / "recallkit/data/zoo/hybrid", folder / "hybrid")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_length": None}))
    seq_len = max(512, int(SEQ_LEN * share))
    run(folder, "slice", "demo", "--seq-len", seq_len, "--limit-tokens", 3 * seq_len, "-o", "slices")
    run(folder, "score", "hybrid", "--slices", "slices")


def head_rate(vocab: int, width: int) -> float:
    """Tokens per second of the product of a head alone, by one thread."""
    import torch

    torch.set_num_threads(1)
    hidden, weight = torch.randn(512, width), torch.randn(vocab, width)
    parts = [hidden @ part.T for part in weight.split(1024)]
    begun = time.process_time()
    for _ in range(3):
        parts = [hidden @ part.T for part in weight.split(1024)]
    return 3 * 512 / (time.process_time() - begun) + 0 * len(parts)


def load_vocabulary(folder: Path, share: float) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = json.loads((harness.ROOT / "recallkit/data/tokenizer.json").read_text())
    entries = tokenizer["model"]["vocab"]
    vocab = max(5000, int(VOCAB * share))
    entries |= {f"unused{number}": number for number in range(len(entries), vocab)}
    shape = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2, "num_attention_heads": 10}
    LlamaForCausalLM(LlamaConfig(vocab_size=vocab, tie_word_embeddings=True, **shape)).save_pretrained(folder / "model")
    (folder / "model/tokenizer.json").write_text(json.dumps(tokenizer))
    tokens = max(512, int(SCORED * share))
    run(folder, "slice", "demo", "--tokenizer", "model", "--limit-tokens", tokens, "-o", "slices")
    figures = run(folder, "score", "model", "--slices", "slices")
    bare = harness.apart(head_rate, vocab, WIDTH)
    print(f"score {tokens / figures['cpu']:.0f} tokens per CPU second, the head's product alone {bare:.0f}")


def load_bigrams(folder: Path, share: float) -> None:
    """Of uniform ids nearly every bigram is another one."""
    ids = np.random.default_rng(0).integers(0, 50_256, max(10_000, int(30_200_000 * share)), dtype=np.uint16)
    ids[::1000] = 50_256
    np.save(folder / "ids.npy", ids)
    named = ("--tokenizer", harness.tokenizer_file())
    run(folder, "count", "ids.npy", *named, "-o", "counts.duckdb")
    size = (folder / "counts.duckdb").stat().st_size
    run(folder, "slice", "ids.npy", *named, "--counts", "counts.duckdb", "--limit-tokens", "10M", "-o", "slices")
    print(f"table: {size / 1e6:.0f} MB")


def load_shards(folder: Path, share: float) -> None:
    for number, line in enumerate(documents(max(1200, int(100_000 * share)))):
        path = folder / f"text/{number // 1000:03}/{number:06}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(line)
    run(folder, "count", "text", "-o", "counts.duckdb")
    run(folder, "slice", "text", "--counts", "counts.duckdb", "-o", "slices")
    run(folder, "slice", "text", "--counts", "counts.duckdb", "-o", "slices")
    print(f"manifests: {sum((folder / 'slices' / name).stat().st_size for name in ('manifest.json', 'sequences.json')) / 1000:.0f} kB")


LOADS = {name.removeprefix("load_"): load for name, load in list(globals().items()) if name.startswith("load_")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="*", choices=[*LOADS, []], help="all by default")
    parser.add_argument("--share", type=float, default=1.0, help="of the full sizes (1)")
    given = parser.parse_args()
    print(harness.machine())
    for name in given.loads or LOADS:
        print(f"\n{name}\n\n| command | CPU s | MB | first, s | silence, s |\n| --- | --- | --- | --- | --- |")
        with tempfile.TemporaryDirectory() as folder:
            LOADS[name](Path(folder), given.share)


if __name__ == "__main__":
    main()
