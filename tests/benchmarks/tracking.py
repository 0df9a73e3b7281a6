"""Simulates the verdicts of `track` on real text, for runs whose recall gain is known: see docs/track.md.

    python tests/benchmarks/tracking.py                  # 300 runs of each kind, of 10, 20 and 50 documents
    python tests/benchmarks/tracking.py --draws 3 --documents 10 --models control:bigram control:recall

A checkpoint is a mixture of two models, one with little recall and one with much, whose probabilities, and so whose gain on every AR hit
of the built-in text, are between theirs. Documents are drawn with replacement, and each draw is judged as if it were all that there is.
Printed is the share of draws with each verdict, in %; of runs in which recall appears also how often the interval of the step contains
the true one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import polars as pl

RUNS = {
    "1 at one checkpoint": (1,),
    "1 at twelve": (1,) * 12,
    "none": (0,) * 12,
    "10 throughout": (10,) * 12,
    "appears at the seventh": (0, 0, 0, 0, 0.2, 0.5, 2, 5, 10, 10, 10, 10),
    "appears slowly, at the seventh": (0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.2, 2, 3, 5, 8, 10),
    "10, none at the last": (*(10,) * 11, 0),
    "1 at eleven, then none": (*(1,) * 11, 0),
}
"""By name, the true recall gain by checkpoint, in points."""
VERDICTS = ("appears", "absent", "gone", "unknown")


def judged(gains: np.ndarray, hits: np.ndarray) -> Any:
    """The tables of a run: `gains` (steps, documents) are sums over the AR hits of documents, of which each has `hits` (documents,)."""
    from recallkit.measure.ratio import Spread
    from recallkit.measure.sums import TableSums
    from recallkit.tracking.tables import make_tables, measure

    keys = pl.DataFrame({"slice": ["all", "ar_hit", "other"]})
    tokens = np.stack([hits] * 3, axis=1).astype(np.float64)
    zero = np.zeros_like(tokens)
    checkpoints = []
    for step, gain in enumerate(gains):
        values = {"nll_0": zero, "first_nll_0": zero, "p_0": np.stack([gain] * 3, axis=1), "first_p_0": zero}
        sums = TableSums(keys, Spread.of_sizes(tokens), {"tokens": tokens, **values})
        checkpoints.append(measure(str(step), step, Path(), sums))
    return make_tables(checkpoints)


def simulate(gains: np.ndarray, hits: np.ndarray, run: Sequence[float], number: int, draws: int) -> tuple[Counter[str], int]:
    """Of draws of `number` documents the verdicts on a run, and how many intervals of its step contain the true one.

    `gains` (documents, 2): sums of two real models over AR hits, of which documents have `hits`. `run`: the true gains, in points.
    """
    little, much = gains.sum(axis=0) / hits.sum()
    share = (np.array(run) / 100 - little) / (much - little)
    mixtures = np.outer(1 - share, gains[:, 0]) + np.outer(share, gains[:, 1])
    true_step = max([0, *(place + 1 for place, gain in enumerate(run) if gain <= 1)])
    rng, verdicts, covered = np.random.default_rng(0), Counter[str](), 0
    for _ in range(draws):
        documents = rng.integers(len(hits), size=number)
        verdict = judged(mixtures[:, documents], hits[documents]).verdict.row(0, named=True)
        verdicts[verdict["verdict"]] += 1
        if verdict["verdict"] == "appears":
            covered += verdict["step_ci_low"] <= true_step <= verdict["step_ci_high"]
    return verdicts, covered


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs=2, default=["zoo:rwkv", "zoo:attention"])
    parser.add_argument("--documents", type=int, nargs="+", default=[10, 20, 50])
    parser.add_argument("--draws", type=int, default=300)
    args = parser.parse_args()
    from recallkit import builtin
    from recallkit.measure.labelled import open_scores, open_tokens
    from recallkit.measure.sums import add_up
    from recallkit.models.spec import list_models
    from recallkit.scoring import plan_scores, score_path

    slices, specs = builtin.slices(), list_models(args.models)
    with contextlib.redirect_stdout(io.StringIO()):
        for plan in plan_scores(specs, slices):
            plan.run()
    labels = open_tokens(slices / "tokens.parquet")
    scores = [open_scores(score_path(slices, spec), labels) for spec in specs]
    sums = add_up(labels, scores, every_table=False).tables["slices"].slice("ar_hit")
    has_hits = sums["tokens"].by_group[:, 0] > 0
    hits = sums["tokens"].by_group[has_hits, 0]
    gains = np.hstack([sums.gain(number).by_group[has_hits] for number in range(2)])
    means = ", ".join(f"{spec.shown} {100 * gain:.1f}" for spec, gain in zip(specs, gains.sum(axis=0) / hits.sum(), strict=True))
    print(f"{hits.sum():.0f} AR hits of {len(hits)} documents, recall gain in points: {means}; {args.draws} draws\n")
    print(f"| true gain, points | documents | {' | '.join(VERDICTS)} | step covered |\n|---|--:|--:|--:|--:|--:|--:|")
    for name, run in RUNS.items():
        for number in args.documents:
            verdicts, covered = simulate(gains, hits, run, number, args.draws)
            shares = " | ".join(f"{100 * verdicts[verdict] / args.draws:.1f}" for verdict in VERDICTS)
            steps = f"{100 * covered / verdicts['appears']:.1f}" if verdicts["appears"] and name.startswith("appears") else ""
            print(f"| {name} | {number} | {shares} | {steps} |", flush=True)


if __name__ == "__main__":
    main()
