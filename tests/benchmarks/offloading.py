"""Times scoring with weights on CPU and disk beside plain loading: seconds per batch, their ratio.

    python tests/benchmarks/offloading.py
    python tests/benchmarks/offloading.py --layers 24 --width 1024 --memory 0.5 --repeats 5

A Llama with random weights in float32 scores batches of one sequence. `cached`: the system has its
file in memory; `read`: the file is dropped from there first, as that of a model larger than memory
is. The three take turns; seconds are by the clock, ratios those within a round.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from recallkit.models.loading import load_model
from recallkit.models.protocol import ModelRequest
from tests.benchmarks import harness
from tests.benchmarks.scoring import Subject, write_random_model

VOCAB_SIZE = 4096


def main() -> None:
    parser = harness.parser_of(__doc__, repeats=3)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--memory", type=float, default=0.1, help="GB of weights in memory")
    parser.add_argument("--ids", type=int, nargs="+", default=[256, 2048], help="of a batch")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    config = {"model_type": "llama", "vocab_size": VOCAB_SIZE, "max_position_embeddings": 2048}
    config |= {"hidden_size": asked.width, "num_hidden_layers": asked.layers}
    config |= {"num_attention_heads": asked.width // 64, "intermediate_size": 4 * asked.width}
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(Subject(config), Path(folder), "cpu", torch.float32)
        file = Path(folder) / "model.safetensors"
        devices = ("cpu", f"balanced:{asked.memory}GB")
        requests = (ModelRequest(folder, VOCAB_SIZE, device=device) for device in devices)
        plain, spread = map(load_model, requests)
        on_disk = sum(weight.numel() * 4 for weight in spread.model.parameters() if weight.is_meta)
        size = file.stat().st_size
        print(f"{size / 1e9:.2f} GB of weights, {on_disk / 1e9:.2f} GB on disk")
        print(harness.machine(1))
        for num_ids in asked.ids:
            ids = np.random.default_rng(0).integers(VOCAB_SIZE, size=num_ids + 1).astype(np.uint32)

            def seconds(name: str, ids: np.ndarray = ids) -> float:
                if name == "read":
                    with file.open("rb") as opened:
                        os.fsync(opened.fileno())  # what is not on disk yet is not dropped
                        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                begin = time.perf_counter()
                (plain if name == "plain" else spread).score(ids, np.array([0, len(ids)]))
                return time.perf_counter() - begin

            times = harness.in_turn(["plain", "cached", "read"], asked.repeats, seconds)
            for name, some in times.items():
                ratios = [one / other for one, other in zip(some, times["plain"], strict=True)]
                middle = statistics.median(ratios)
                ratio = f"{middle:.2f} of plain ({min(ratios):.2f} to {max(ratios):.2f})"
                print(f"{num_ids:>6} ids, {name:6}: {statistics.median(some):7.2f} s, {ratio}")


if __name__ == "__main__":
    main()
