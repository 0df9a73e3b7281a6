"""The table of all benchmarks, and the page's table of stages: ours, the best peer, the ratio, the
target.

    python tests/benchmarks/table.py                                # seven minutes on two cores
    python tests/benchmarks/table.py --only slicing counting

Printed is the Markdown table that docs/benchmarks.md begins with; its rows are what the benchmarks
print with `harness.print_stage`. A ratio is that of rates within one run: above 1, ours is faster.
What a benchmark prints besides is in FOLDER/SCRIPT.txt, with --logs FOLDER. A benchmark that fails
is named, its rows are left out, and the exit status is 1.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness
from tests.benchmarks.harness import STAGE


class Benchmark(NamedTuple):
    """A script of this folder: what it is compared with, and the options of a run."""

    peers: str
    smallest: str
    """Options for a size of seconds, at which only whether it works can be seen."""
    stage: str | None = None
    """Options for a size of minutes, of scripts that print rows of the table."""


BENCHMARKS = {
    "reading": Benchmark("`datasets`, streaming", "--repeats 1 --shard {shard}", "--repeats 3"),
    "counting": Benchmark(
        "DuckDB, polars", "--tokens 100000 --repeats 1", "--tokens 20M --repeats 3"
    ),
    "slicing": Benchmark(
        "DuckDB, polars, the tokenizer", "--repeats 1 --only labels --tokens 500000", "--repeats 3"
    ),
    "peer_pipeline": Benchmark(
        "a pipeline by hand", "--repeats 1 --counted {shard} --sliced {shard}"
    ),
    "scoring": Benchmark(
        "the bare forward pass, lm-eval",
        "--models llama --repeats 1 --tokens 128 --seq-len 64",
        "--repeats 5 --models llama mamba",
    ),
    "layer_kernels": Benchmark(
        "transformers' own functions", "lfm2 mamba --repeats 1 --length 64", "mamba-768 --repeats 3"
    ),
    "gap": Benchmark(
        "DuckDB's joins", "--sequences 16 --repeats 1", "--sequences 4000 --repeats 3"
    ),
    "recall": Benchmark(
        "lm-eval",
        "--models llama --batches 1 --limit 2 --context 256 --repeats 1",
        "--models llama --batches 8 --repeats 3",
    ),
    "generation": Benchmark(
        "transformers' `generate`",
        "--models llama --batches 1 --length 16 --new 2 --repeats 1",
        "--models llama --batches 8",
    ),
    "kernels": Benchmark(
        "PyTorch, fla, liger, cut-cross-entropy", "short_conv --quick --repeats 1"
    ),
    "based": Benchmark(
        "Based's Table 1", "figure-4 --models based --prompts 8 --batches 1 --new 3 --repeats 1"
    ),
    "intervals": Benchmark(
        "the truth", "mqar minority retained --draws 3 --documents 10 --limit 20"
    ),
    "validity": Benchmark("known recall", "--quick"),
}


def run(script: str, options: str, logs: str | None) -> list[str]:
    """The rows that a benchmark prints. Raises LookupError with its last line of errors if it
    fails, or prints none."""
    print(f"{script}.py {options}", file=sys.stderr, flush=True)
    command = [sys.executable, str(Path(__file__).with_name(f"{script}.py")), *shlex.split(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if logs is not None:
        Path(logs).mkdir(parents=True, exist_ok=True)
        text = f"$ {script}.py {options}\n{done.stdout}{done.stderr}\n"
        Path(logs, f"{script}.txt").write_text(text, encoding="utf-8")
    lines = done.stdout.splitlines()
    rows = [line.removeprefix(STAGE) for line in lines if line.startswith(STAGE)]
    if done.returncode or not rows:
        errors = done.stderr.strip().splitlines() or ["it printed no row"]
        raise LookupError(f"{script}.py failed: {errors[-1]}")
    return rows


HEADER = "| stage | ours | best peer | ratio | target |\n|---|---|---|---|---|"


def main() -> None:
    stages = {
        script: benchmark.stage for script, benchmark in BENCHMARKS.items() if benchmark.stage
    }
    args = harness.parse(__doc__, {"--only": list(stages), "--logs": None}, only=stages)
    rows, problems = [], []
    for script in args.only:
        try:
            rows += run(script, stages[script], args.logs)
        except LookupError as error:
            problems.append(str(error))
    print(
        f"{datetime.now(UTC):%d %B %Y}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at "
        "the end\n"
    )
    print("\n".join([HEADER, *rows]))
    sys.exit("\n".join(problems) or None)


if __name__ == "__main__":
    main()
