"""Compares counts of an imported index with those of its own package: a sample of bigrams, queried in a separate process.

Both packages end the process they run in (abort, panic, segmentation fault) if files are not what they expect, and tokengrams
scans the whole index when it opens one. So they are queried in a process of their own, for a limited time, and only if they
are installed: the counts need neither. Run as a module, this file is that process: it reads a query as JSON from stdin and
writes the answer to stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections import Counter

    from recallkit.counting.bigram_kernels import BigramRun

NUM_BIGRAMS = 200
SECONDS = 120.0
"""Time that a package may take: tokengrams scans 10 million positions per second when it opens an index."""


@dataclass(frozen=True, slots=True)
class Checked:
    """How many bigrams were compared, all equal; if none were, `reason` says why."""

    num_bigrams: int
    reason: str | None = None


def check_counts(
    place: Path, question: dict[str, Any], run: BigramRun, end_token_id: int, unseen: Counter[tuple[int, int]], *, seconds: float = SECONDS
) -> Checked:
    """Compares bigrams of `run`, evenly spaced, and some that it lacks with the index's package; end tokens are left out.

    `question` is what the package needs to open the index, `unseen` the bigrams it cannot count. Raises UserError if a count differs.
    """
    package = question["package"]
    if find_spec(package) is None:
        return Checked(0, f"{package.replace('_', '-')} is not installed")
    if question.get("folder", place) is None:
        return Checked(0, "the index has no tables")
    expected = sample_bigrams(run, end_token_id)
    answer, reason = _ask({**question, "bigrams": list(expected)}, seconds)
    for (bigram, count), asked in zip(expected.items(), answer, strict=False):  # no answer is empty
        if asked + unseen[bigram] != count:
            problem = f"its ids contain the bigram {bigram} {count:,} times, but {package.replace('_', '-')} counts {asked:,}"
            raise UserError(problem, where=place, remedy="the index was built from other ids: build it again")
    return Checked(len(answer), reason)


def sample_bigrams(run: BigramRun, end_token_id: int) -> dict[tuple[int, int], int]:
    """Bigrams of the run with their counts, and bigrams of neighbouring ids, most of which it lacks: up to `NUM_BIGRAMS` of each."""
    if not len(run.keys):
        return {}
    rows = np.unique(np.linspace(0, len(run.keys) - 1, NUM_BIGRAMS).astype(np.int64))
    keys = np.asarray(run.keys[rows])
    crossed = (keys >> np.uint64(32) << np.uint64(32)) | np.roll(keys & np.uint64(0xFFFFFFFF), 1)
    asked = np.unique(np.concatenate([keys, crossed]))
    at = np.minimum(np.searchsorted(run.keys, asked), len(run.keys) - 1)
    counts = np.where(run.keys[at] == asked, run.counts[at], np.uint64(0))
    pairs = zip((asked >> np.uint64(32)).tolist(), (asked & np.uint64(0xFFFFFFFF)).tolist(), counts.tolist(), strict=True)
    return {(first, second): count for first, second, count in pairs if end_token_id not in (first, second)}


def _ask(question: dict[str, Any], seconds: float) -> tuple[list[int], str | None]:
    """Counts of the question's bigrams; none, and the reason, if the package fails or takes too long."""
    places = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    name = question["package"].replace("_", "-")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [], f"{name} takes more than {seconds:g} seconds"
    # The engine writes to stdout too, before or after a crash: only a process that exited normally has answered, in its last line.
    answer = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
    return ([], f"{name} fails on it") if answer is None else (answer, None)


def _answer(question: dict[str, Any]) -> list[int]:
    """What the package counts, in the order of the question's bigrams."""
    if question["package"] == "tokengrams":
        import tokengrams

        files = [(ids, places) for ids, places in question["files"]]
        index = tokengrams.ShardedMemmapIndex(files, question["vocab"])
        return [index.count([first, second]) for first, second in question["bigrams"]]
    from infini_gram.engine import InfiniGramEngine

    largest = question["separator"]
    engine = InfiniGramEngine(index_dir=question["folder"], eos_token_id=0, vocab_size=largest, token_dtype=question["dtype"])
    turn = -1 if question["reversed"] else 1
    return [engine.count(input_ids=bigram[::turn])["count"] for bigram in question["bigrams"]]


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(_answer(json.load(sys.stdin))) + "\n")
