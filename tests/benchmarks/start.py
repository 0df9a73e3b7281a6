"""Processor seconds of whole commands on one line of text, beside the imports that they cannot do without.

    python tests/benchmarks/start.py

Every command is a new process, of which user and system time are counted; caches are filled by a first run of each. `slice` is also
run with nothing compiled, as after an installation.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness

TEXT = "One line of text is enough: one line of text costs what every text costs.\n"
COUNT = "count text.txt -o counts.duckdb --force"
SLICE = "slice text.txt --counts counts.duckdb -o slices --force"
COLD = "slice, nothing compiled"
LABELLING = "import duckdb, polars, numba"
COMMANDS = {
    "--help": ("--help", "import typer"),
    "count": (COUNT, "import duckdb, polars"),
    "slice": (SLICE, LABELLING),
    COLD: (SLICE, LABELLING),
    "score zoo:attention": ("score zoo:attention --slices slices --force", "import torch"),
    "score zoo:mamba": ("score zoo:mamba --slices slices --force", "import torch"),
}
"""What is run, and the imports that are its floor."""


def processor_seconds(arguments: list[str], folder: Path, **settings: str) -> float:
    """User and system time of a new interpreter with these arguments, in seconds."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(harness.ROOT),
        "RECALLKIT_HOME": str(folder / "home"),
        **settings,
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or every process would compile every module
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=folder, check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(name: str, folder: Path) -> dict[str, float]:
    """The seconds of a command, and of its floor right after it."""
    command, floor = COMMANDS[name]
    compiled = {"NUMBA_CACHE_DIR": tempfile.mkdtemp(dir=folder)} if name == COLD else {}
    return {
        "seconds": processor_seconds(["-m", "recallkit", *command.split()], folder, **compiled),
        "floor": processor_seconds(["-c", floor], folder),
    }


def main() -> None:
    parser = harness.parser_of(__doc__, repeats=5, runs="of each command")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    args = parser.parse_args()
    print(harness.machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text(TEXT, encoding="utf-8")
        for command in COMMANDS:
            measure(command, folder)
        rows = harness.in_turn(args.commands, args.repeats, lambda command: measure(command, folder))
    print("| command | CPU s | least | floor | CPU s | ratio |\n| --- | --- | --- | --- | --- | --- |")
    for command, runs in rows.items():
        ours, floor = harness.median(runs, "seconds"), harness.median(runs, "floor")
        least = min(run["seconds"] for run in runs)
        print(f"| `{command}` | {ours:.2f} | {least:.2f} | `{COMMANDS[command][1]}` | {floor:.2f} | {ours / floor:.2f} |")


if __name__ == "__main__":
    main()
