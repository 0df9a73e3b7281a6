"""Attributes the gap of two control models with recallkit and splits it with a join of DuckDB:
seconds, memory.

    python tests/benchmarks/gap.py                   # 8,000 sequences of 2,048 tokens of real text
    python tests/benchmarks/gap.py --sequences 4000 --repeats 3

Ours makes all tables with intervals; DuckDB only the split by source and AR hit. Each method runs
in a fresh process a repeat, 2 threads: it warms up on 64 sequences, then runs once. Every split is
compared with ours.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness
from tests.benchmarks.harness import NUM_THREADS

SEQ_LEN = 2048
MODELS = ["control:recall", "control:bigram"]
Split = list[tuple[str, bool, int, float, float]]
"""Source, whether AR hits, tokens, and the NLLs of both models."""


def write_scores(folder: Path, num_sequences: int) -> None:
    import recallkit

    text = {"limit_tokens": num_sequences * SEQ_LEN + 1, "counts": recallkit.zoo_counts()}
    recallkit.slice(harness.shards(), folder, seq_len=SEQ_LEN, max_count=5, **text)
    recallkit.score(MODELS, slices=folder, counts=recallkit.zoo_counts())


def score_files(folder: Path) -> list[Path]:
    from recallkit.scoring import score_path

    return [score_path(folder, model) for model in MODELS]


def ours(folder: Path) -> Split:
    from recallkit.attribution.tables import attribute_gap

    reference, model = score_files(folder)
    gap = attribute_gap(folder / "tokens.parquet", reference, [model]).gap
    split = []
    for row in gap.iter_rows(named=True):
        if row["source"] != "ALL" and row["slice"] in ("ar_hit", "other") and row["tokens"]:
            sums = (row["tokens"] * row[nll] for nll in ("nll_reference", "nll_model"))
            split.append((row["source"], row["slice"] == "ar_hit", row["tokens"], *sums))
    return split


def duckdb_split(folder: Path) -> Split:
    import duckdb

    reference, model = score_files(folder)
    query = f"""
        SELECT source, ar_hit, count(*), sum(r.nll::DOUBLE), sum(m.nll::DOUBLE)
        FROM '{folder / "tokens.parquet"}' AS t
        JOIN '{reference}' AS r USING (sequence, position)
        JOIN '{model}' AS m USING (sequence, position)
        GROUP BY ALL
    """
    with duckdb.connect(config={"threads": NUM_THREADS}) as database:
        database.execute("SET enable_progress_bar = false")  # it would be drawn among the results
        return database.execute(query).fetchall()


METHODS = {"recallkit, all tables": ours, "DuckDB, keyed join": duckdb_split}


def measure(method: str, name: str) -> harness.Run:
    """One run after a warm-up, in this process. Sums agree to eight digits."""
    folder = Path(name)
    METHODS[method](folder / "warm-up")
    run, split = harness.timed(lambda: METHODS[method](folder))
    rows = [
        [source, hit, tokens, f"{first:.8g}", f"{second:.8g}"]
        for source, hit, tokens, first, second in split
    ]
    return run._replace(answers=sorted(rows))


def main() -> None:
    args = harness.parse(__doc__, {"--repeats": 5, "--sequences": 8000})
    with harness.scratch() as folder:
        write_scores(folder, args.sequences)
        write_scores(folder / "warm-up", 64)
        harness.compare(
            f"{args.sequences * SEQ_LEN:,} tokens, two score files; {harness.machine()}",
            list(METHODS),
            lambda method: harness.apart(measure, method, folder),
            repeats=args.repeats,
            stage="`gap` from stored scores",
            targets={"DuckDB, keyed join": 2.5},
        )


if __name__ == "__main__":
    main()
