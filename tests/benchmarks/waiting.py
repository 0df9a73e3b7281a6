"""Scoring on a machine that has other work: seconds and CPU seconds of how OpenMP's threads wait for each other.

    python tests/benchmarks/waiting.py
    python tests/benchmarks/waiting.py --tokens 1000 --repeats 1 --busy 2

Every setting scores the same tokens with the same model in a fresh process, settings in turn: on the machine as it is, then beside
processes that compute without pause, as many as --busy. `ours` sets nothing: it is what recallkit chooses where the user has not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS: dict[str, dict[str, str]] = {
    "ours": {},
    "OpenMP's own": {"GOMP_SPINCOUNT": "300000"},
    "active": {"OMP_WAIT_POLICY": "ACTIVE"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "spin 1,000": {"GOMP_SPINCOUNT": "1000"},
    "spin 10,000": {"GOMP_SPINCOUNT": "10000"},
    "spin 100,000": {"GOMP_SPINCOUNT": "100000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
"""Environment variables of each setting."""
BUSY = "while True: pass"


def measure(model: str, slices: Path) -> dict[str, float]:
    """Seconds and CPU seconds of scoring, without imports and loading, in this process."""
    from recallkit import scoring  # first, as always: it decides how threads wait before torch is imported
    from recallkit.models.loading import load_model
    from recallkit.models.protocol import ModelRequest

    load_model(ModelRequest(model, 4096, device="cpu"))
    begun, used = time.perf_counter(), time.process_time()
    scoring.score(model, slices, scoring.ScoringOptions(device="cpu", batch_tokens=2048), force=True)
    return {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - used}


@contextlib.contextmanager
def beside(num_busy: int) -> Iterator[None]:
    """A block beside so many processes that compute without pause."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(num_busy)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measure_apart(setting: str, model: str, slices: Path) -> dict[str, float]:
    """The same in a fresh process."""
    command = [sys.executable, __file__, "--measure", "--model", model, "--slices", str(slices)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))} | SETTINGS[setting]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="zoo:attention")
    options.add_argument("--tokens", type=int, default=20_000)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--busy", type=int, default=2)
    options.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    options.add_argument("--slices", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        print(json.dumps(measure(given.model, given.slices)))
        return
    import recallkit

    with tempfile.TemporaryDirectory() as name:
        recallkit.slice(limit_tokens=given.tokens, out=Path(name) / "slices")
        runs: dict[tuple[str, int], list[dict[str, float]]] = {}
        for num_busy in (0, given.busy):
            for _ in range(given.repeats):
                for setting in given.settings:
                    with beside(num_busy):
                        runs.setdefault((setting, num_busy), []).append(measure_apart(setting, given.model, Path(name) / "slices"))
    report(runs, given.settings, given.busy)


def report(runs: dict[tuple[str, int], list[dict[str, float]]], settings: list[str], num_busy: int) -> None:
    """Medians, and CPU seconds beside busy processes relative to those of the same setting without."""
    print(f"{'setting':16}{'idle: s':>10}{'CPU s':>8}{f'beside {num_busy}: s':>14}{'CPU s':>8}{'CPU ratio':>11}")
    for setting in settings:
        idle, busy = (
            {key: statistics.median(run[key] for run in runs[setting, number]) for key in ("seconds", "cpu_seconds")}
            for number in (0, num_busy)
        )
        ratio = busy["cpu_seconds"] / idle["cpu_seconds"]
        print(f"{setting:16}{idle['seconds']:10.2f}{idle['cpu_seconds']:8.2f}", end="")
        print(f"{busy['seconds']:14.2f}{busy['cpu_seconds']:8.2f}{ratio:11.2f}")


if __name__ == "__main__":
    main()
