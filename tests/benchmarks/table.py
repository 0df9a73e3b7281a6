"""One table of all stages: ours, the best peer, the ratio and the target. Runs the other benchmarks at a size of minutes.

    python tests/benchmarks/table.py                                # about a quarter of an hour on two cores
    python tests/benchmarks/table.py --only slicing counting

The table is printed as Markdown, as docs/benchmarks.md begins with it; its rows are what the benchmarks print with `harness.print_stage`.
A ratio is that of rates within one run: above 1, ours is faster. What a benchmark prints besides is in FOLDER/SCRIPT.txt, with
--logs FOLDER. A benchmark that fails is named, its rows are left out, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.harness import STAGE

HEADER = "| stage | ours | best peer | ratio | target |\n|---|---|---|---|---|"
RUNS = {
    "reading": ("--repeats 3", "--repeats 1"),
    "counting": ("--tokens 20M --repeats 3", "--tokens 100000 --repeats 1"),
    "scale": ("--tokens 1M --megabytes 200 --repeats 1", "--tokens 200000 --megabytes 1 --repeats 1"),
    "slicing": ("--repeats 3", "--repeats 1"),
    "scoring": ("--repeats 5 --models llama mamba", "--repeats 1 --tokens 128 --seq-len 64 --models llama mamba"),
    "layer_kernels": ("mamba-768 --repeats 3", "mamba --repeats 1 --length 64"),
    "gap": ("--sequences 4000 --repeats 3", "--sequences 16 --repeats 1"),
    "recall": ("--models llama --batches 8 --repeats 3", "--models llama --batches 8 --limit 2 --context 256 --repeats 1"),
    "generation": ("--models llama --batches 8", "--models llama --batches 8 --length 16 --new 2 --repeats 1"),
}
"""Script -> options for a size of minutes, and for one of seconds, at which only whether it works can be seen."""


def run(script: str, options: str, logs: Path | None) -> list[str]:
    """The rows that a benchmark prints. Raises LookupError with its last line of errors if it fails, or prints none."""
    print(f"{script}.py {options}", file=sys.stderr, flush=True)
    command = [sys.executable, str(Path(__file__).with_name(f"{script}.py")), *shlex.split(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
        (logs / f"{script}.txt").write_text(f"$ {script}.py {options}\n{done.stdout}{done.stderr}\n", encoding="utf-8")
    rows = [line.removeprefix(STAGE) for line in done.stdout.splitlines() if line.startswith(STAGE)]
    if done.returncode or not rows:
        raise LookupError(f"{script}.py failed: {(done.stderr.strip().splitlines() or ['it printed no row'])[-1]}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), metavar="SCRIPT", help=", ".join(RUNS))
    parser.add_argument("--quick", action="store_true", help="at a size of seconds: whether it works, not how fast")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep what the benchmarks print")
    given = parser.parse_args()
    rows, problems = [], []
    for script in given.only:
        try:
            rows += run(script, RUNS[script][given.quick], given.logs)
        except LookupError as error:
            problems.append(str(error))
    print(f"{datetime.now(UTC):%d %B %Y}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end\n")
    print("\n".join([HEADER, *rows]))
    sys.exit("\n".join(problems) or None)


if __name__ == "__main__":
    main()
