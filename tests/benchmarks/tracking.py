"""Simulates the verdicts of `track` on real text, for runs whose recall by association is known: see docs/track.md.

    python tests/benchmarks/tracking.py                  # 300 runs of each kind, of 10, 20 and 50 documents
    python tests/benchmarks/tracking.py --draws 3 --documents 10 --samples 40 --models control:bigram control:recall

A checkpoint recalls of each of some hundred AR hits of the built-in text something between what two models of the zoo do, one that recalls
hardly and one that recalls much, so that its mean is a known one. Documents are drawn with replacement, and each draw is judged as if it
were all that there is. Printed is the share of draws with each verdict, in %; of runs in which recall appears also how
often the interval of the step contains the true one.
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
    "0.2 at one checkpoint": (0.2,),
    "0.2 at twelve": (0.2,) * 12,
    "none": (0.0,) * 12,
    "1.0 throughout": (1.0,) * 12,
    "appears at the seventh": (0, 0, 0, 0, 0.05, 0.1, 0.4, 0.8, 1, 1, 1, 1),
    "appears slowly, at the seventh": (0, 0.05, 0.1, 0.15, 0.17, 0.19, 0.22, 0.3, 0.4, 0.6, 0.8, 1),
    "1.0, none at the last": (*(1.0,) * 11, 0.0),
    "0.2 at eleven, then none": (*(0.2,) * 11, 0.0),
}
"""By name, the true recall by checkpoint, in nats per AR hit."""
VERDICTS = ("appears", "absent", "gone", "unknown")


def judged(recalled: np.ndarray, documents: np.ndarray, weight: np.ndarray, num_resamples: int = 2000) -> Any:
    """The tables of a run from what its checkpoints recall of each hit, (n, steps), and the hits' documents and weights, (n,)."""
    from recallkit.intervening.run import AskedHits
    from recallkit.measure.intervals import effective_number, freedom_of
    from recallkit.measure.sums import RowSums
    from recallkit.tracking.tables import Tracked, make_tables

    number = len(np.unique(documents))
    tokens = np.full((number, 4), 20.0)
    sums = RowSums(tokens, np.zeros((1, number, 4)), np.full(4, number), effective_number(tokens), freedom_of(tokens))
    hits = AskedHits(None, None, pl.DataFrame({"document": documents, "weight": weight}))  # type: ignore[arg-type]
    run = [Tracked(str(step), step, sums, of_step) for step, of_step in enumerate(recalled.T)]
    return make_tables(run, hits, num_resamples=num_resamples)


def simulate(
    recalled: np.ndarray, asked: pl.DataFrame, recall: Sequence[float], number: int, draws: int, seed: int = 0
) -> tuple[Counter[str], int]:
    """Of draws of `number` documents the verdicts on a run of this true `recall`, and how many intervals of its step contain the true one.

    `recalled` (n, 2): nats of each asked hit of two real models. A checkpoint is between them, where its mean is the true one.
    """
    from recallkit.tracking.tables import LEAST_RECALL

    weight = asked["weight"].to_numpy()
    little, much = np.average(recalled, axis=0, weights=weight)
    share = (np.array(recall) - little) / (much - little)
    run = recalled[:, :1] * (1 - share) + recalled[:, 1:] * share
    of_document = [np.flatnonzero(asked["document"].to_numpy() == each) for each in asked["document"].unique().sort()]
    below = np.flatnonzero(~(np.array(recall) > LEAST_RECALL))
    true_step = int(below[-1]) + 1 if len(below) else 0
    rng, verdicts, covered = np.random.default_rng(seed), Counter[str](), 0
    for _ in range(draws):
        drawn = [of_document[each] for each in rng.integers(len(of_document), size=number)]
        hits, documents = np.concatenate(drawn), np.repeat(np.arange(number), [len(each) for each in drawn])
        found = judged(run[hits], documents, weight[hits]).verdict.row(0, named=True)
        verdicts[found["verdict"]] += 1
        if found["verdict"] == "appears":
            last = len(recall) if found["step_ci_high"] is None else found["step_ci_high"]
            covered += found["step_ci_low"] <= true_step <= last
    return verdicts, covered


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs=2, default=["zoo:rwkv", "zoo:attention"])
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--documents", type=int, nargs="+", default=[10, 20, 50])
    parser.add_argument("--draws", type=int, default=300)
    args = parser.parse_args()
    from recallkit import builtin
    from recallkit.intervening.run import AskedHits
    from recallkit.measure.labelled import open_tokens
    from recallkit.models.spec import list_models
    from recallkit.options import ScoringOptions
    from recallkit.scoring import plan_scores, score_path

    slices, specs, scoring = builtin.slices(), list_models(args.models), ScoringOptions()
    hits = AskedHits.of(open_tokens(slices / "tokens.parquet"), None, args.samples)
    with contextlib.redirect_stdout(io.StringIO()):
        for spec, plan in zip(specs, plan_scores(specs, slices, scoring), strict=True):
            hits.score(spec, scoring, plan.run())
    recalled = hits.recalled([score_path(slices, spec) for spec in specs], [hits.path(spec) for spec in specs])
    means = ", ".join(f"{spec.shown} {mean:.2f}" for spec, mean in zip(specs, hits.means(recalled, 1)[0], strict=True))
    print(f"{len(hits.asked)} AR hits of {hits.documents[0]} documents, recalled by association: {means}; {args.draws} draws\n")
    print(f"| true recall, nats | documents | {' | '.join(VERDICTS)} | step covered |\n|---|--:|--:|--:|--:|--:|--:|")
    for name, recall in RUNS.items():
        for number in args.documents:
            verdicts, covered = simulate(recalled, hits.asked, recall, number, args.draws)
            shares = " | ".join(f"{100 * verdicts[verdict] / args.draws:.1f}" for verdict in VERDICTS)
            steps = f"{100 * covered / verdicts['appears']:.1f}" if verdicts["appears"] and name.startswith("appears") else ""
            print(f"| {name} | {number} | {shares} | {steps} |", flush=True)


if __name__ == "__main__":
    main()
