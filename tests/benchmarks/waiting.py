"""Scoring on a machine that has other work: seconds and CPU seconds of how OpenMP's threads wait, and of what glibc does with freed memory.

    python tests/benchmarks/waiting.py
    python tests/benchmarks/waiting.py --tokens 1000 --repeats 1 --busy 2

Every setting scores the same tokens with the same model in a fresh process, settings in turn: on the machine as it is, then beside
processes that compute without pause, as many as --busy. `ours` sets nothing: it is what recallkit chooses where the user has not.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness

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
    "glibc's own": {"GLIBC_TUNABLES": "glibc.malloc.perturb=0"},
}
"""Environment variables of each setting; with any of glibc's, freed memory goes back to the system as in every other program."""


def measure(model: str, slices: str) -> dict[str, float]:
    """Seconds and CPU seconds of scoring, without imports and loading, in this process."""
    from recallkit import scoring  # first, as always: it decides how threads wait before torch is imported
    from recallkit.models.loading import load_model
    from recallkit.models.protocol import ModelRequest

    load_model(ModelRequest(model, 4096, device="cpu"))
    begun, used = time.perf_counter(), time.process_time()
    scoring.score(model, Path(slices), scoring.ScoringOptions(device="cpu", batch_tokens=2048), force=True)
    return {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - used}


@contextlib.contextmanager
def beside(num_busy: int) -> Iterator[None]:
    """A block beside so many processes that compute without pause."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_busy)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main() -> None:
    parser = harness.parser_of(__doc__, repeats=3, runs="of each setting")
    parser.add_argument("--model", default="zoo:attention")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    given = parser.parse_args()
    import recallkit

    for name in [name for name in os.environ if name.startswith(("OMP_", "GOMP_", "MALLOC_", "GLIBC_"))]:
        del os.environ[name]
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        recallkit.slice(limit_tokens=given.tokens, out=Path(folder) / "slices")
        for num_busy in (0, given.busy):
            with beside(num_busy):
                asked = lambda name: harness.apart(measure, given.model, Path(folder) / "slices", **SETTINGS[name])  # noqa: E731
                runs.append(harness.in_turn(given.settings, given.repeats, asked))
    print(f"{'setting':16}{'idle: s':>10}{'CPU s':>8}{f'beside {given.busy}: s':>14}{'CPU s':>8}{'CPU ratio':>11}")
    for name in given.settings:
        (idle, idle_cpu), (busy, busy_cpu) = ([harness.median(of[name], f) for f in ("seconds", "cpu_seconds")] for of in runs)
        print(f"{name:16}{idle:10.2f}{idle_cpu:8.2f}{busy:14.2f}{busy_cpu:8.2f}{busy_cpu / idle_cpu:11.2f}")


if __name__ == "__main__":
    main()
