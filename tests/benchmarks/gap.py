"""Attributes the gap on synthetic slices with recallkit and splits it with keyed and positional joins: seconds, memory.

    python tests/benchmarks/gap.py                   # 8,000 sequences of 2048 tokens, 8 sources, reference and one model
    python tests/benchmarks/gap.py --models 3 --repeats 5

Ours makes all tables with intervals; the others only the split by source and AR hit. Each method runs in a fresh
process a repeat, methods in turn, 2 threads: it warms up on two small row groups, then runs once. Memory is the peak of
that run beyond what the process held after the warm-up. Every split is compared with ours.
"""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness
from tests.benchmarks.harness import NUM_THREADS, verdict

SOURCES = ["Common Crawl", "Web", "Papers", "Books", "Code", "Law", "Q&A", "Wikipedia"]
SOURCE_SHARES = [0.30, 0.20, 0.15, 0.12, 0.10, 0.07, 0.04, 0.02]
SEQ_LEN, SEQUENCES_PER_GROUP = 2048, 512
MAX_COUNT = 1250
DIGEST = "synthetic"
Split = dict[tuple[str, bool], tuple[int, list[float]]]


def label_group(rng: np.random.Generator, first: int, num_sequences: int) -> dict[str, np.ndarray]:
    """Labels of whole sequences: phrases of some ten tokens, fresh ones and copies of earlier ones, as in real text.

    A fresh token's bigram has a log-normal training count; a copy keeps its original's, which is what makes labels
    compress as those of real text do.
    """
    shape = (num_sequences, SEQ_LEN)
    counts = np.exp(rng.normal(9, 3.2, shape)).astype(np.int64)
    distance, match_length = np.zeros((2, *shape), np.int32)
    lag = np.zeros(num_sequences, np.int32)
    rows = np.arange(num_sequences)
    for place in range(1, SEQ_LEN):
        turns = rng.random(num_sequences) < 0.1
        copies = turns & (rng.random(num_sequences) < 0.65)
        drawn = np.exp(rng.random(num_sequences) * math.log(place + 1)).astype(np.int32)
        lag = np.where(copies, np.minimum(drawn, place), np.where(turns, 0, lag))
        distance[:, place] = lag
        match_length[:, place] = np.where(lag > 0, np.where(turns, 0, match_length[:, place - 1]) + 1, 0)
        counts[:, place] = np.where(lag > 0, counts[rows, place - lag], counts[:, place])
    documents = np.cumsum(rng.random(shape) < 1 / 1000, axis=1)
    sources = rng.choice(len(SOURCES), size=(num_sequences, documents.max() + 1), p=SOURCE_SHARES)
    repeated, origin = distance > 0, np.zeros_like(distance)
    for place in range(1, SEQ_LEN):  # of a copy of a copy, where the first was copied from
        lag = distance[:, place]
        origin[:, place] = np.where(lag > 0, lag + origin[rows, place - lag], 0)
    ids = np.minimum(np.exp(rng.random((num_sequences, SEQ_LEN + 1)) * math.log(50_000)), 49_999).astype(np.int32)
    return {
        "sequence": np.repeat(np.arange(first, first + num_sequences, dtype=np.int32), SEQ_LEN),
        "position": np.tile(np.arange(1, SEQ_LEN + 1, dtype=np.int32), num_sequences),
        "document": np.cumsum(np.diff(documents, axis=1, prepend=-1).ravel() != 0, dtype=np.int32) - 1,
        "source": np.take_along_axis(sources, documents, axis=1).ravel().astype(np.int32),
        "prev_token": ids[:, :-1].ravel(),
        "token": ids[:, 1:].ravel(),
        "repeated": repeated.ravel(),
        "context_class": np.where(repeated, 0, np.where(rng.random(shape) < 0.7, 1, 2)).astype(np.int32).ravel(),
        "distance": distance.ravel(),
        "first_distance": origin.ravel(),
        "occurrences": repeated.ravel().astype(np.int32),
        "match_length": match_length.ravel(),
        "overwritten": np.zeros(repeated.size, bool),
        "train_count": counts.ravel(),
        "ar_hit": (repeated & (counts <= MAX_COUNT)).ravel(),
        "in_training": np.zeros(repeated.size, np.int8),
    }


def write_corpus(folder: Path, num_sequences: int, num_models: int) -> None:
    """tokens.parquet and scores/0.parquet (the reference), scores/1.parquet ... in the layout of the real stages."""
    import pyarrow as pa

    from recallkit.slicing.labels import PARQUET_OPTIONS
    from recallkit.storage.parquet_files import write_parquet
    from tests.planted import COUNTS, labels_manifest, scores_manifest

    rng = np.random.Generator(np.random.PCG64(0))
    starts = range(0, num_sequences, SEQUENCES_PER_GROUP)
    groups = [label_group(rng, first, min(SEQUENCES_PER_GROUP, num_sequences - first)) for first in starts]
    for before, group in itertools.pairwise(groups):
        group["document"] += before["document"][-1] + 1
    common = {"sequences_digest": DIGEST, "num_rows": num_sequences * SEQ_LEN}
    names = pa.array(SOURCES)

    def labels(group: dict[str, np.ndarray]) -> pa.Table:
        source = pa.DictionaryArray.from_arrays(pa.array(group["source"]), names)
        classes = pa.DictionaryArray.from_arrays(pa.array(group["context_class"]), pa.array(["bigram", "token", "new"]))
        back = {name: pa.array(group[name], mask=~group["repeated"]) for name in ("distance", "first_distance")}
        return pa.table({**group, "source": source, "context_class": classes, **back})

    def scores(group: dict[str, np.ndarray], model: int) -> pa.Table:
        behind = np.where(group["ar_hit"], 0.4 + 0.3 * model, 1 + 0.02 * model)
        nll = (rng.gamma(1.2, 2.0, behind.size) * behind).astype(np.float32)
        unknown = {name: np.zeros(behind.size, np.int32) for name in ("argmax", "rank", "context")}
        places = {name: group[name] for name in ("sequence", "position")}
        return pa.table({**places, "nll": nll, **unknown, "exact": np.ones(behind.size, bool)})

    manifest = labels_manifest(
        **common,
        num_sequences=num_sequences,
        seq_len=SEQ_LEN,
        max_count=MAX_COUNT,
        counts=COUNTS | {"num_tokens": 10**9},
    )
    write_parquet(
        folder / "tokens.parquet",
        map(labels, groups),
        labels(groups[0]).schema,
        manifest,
        **PARQUET_OPTIONS,
    )
    for model in range(num_models):
        write_parquet(
            folder / f"scores/{model}.parquet",
            (scores(group, model) for group in groups),
            scores(groups[0], model).schema,
            scores_manifest(str(model), **common),
            use_dictionary=["sequence", "position"],
            column_encoding={"nll": "BYTE_STREAM_SPLIT"},
        )


def score_files(folder: Path) -> list[Path]:
    return sorted((folder / "scores").glob("*.parquet"))


def ours(folder: Path, num_resamples: int = 2000) -> Split:
    from recallkit.attribution.tables import attribute_gap

    files = score_files(folder)
    gap = attribute_gap(folder / "tokens.parquet", files[0], files[1:], num_resamples=num_resamples).gap
    split: Split = {}
    for row in gap.iter_rows(named=True):
        if row["source"] != "ALL" and row["slice"] in ("ar_hit", "other") and row["tokens"]:
            reference = row["nll_reference"] * row["tokens"]
            sums = split.setdefault((row["source"], row["slice"] == "ar_hit"), (row["tokens"], [reference]))[1]
            sums.append(row["nll_model"] * row["tokens"])
    return split


def duckdb_split(folder: Path, join: str) -> Split:
    """`join` is the text between two tables, with {n} for the second one's number."""
    import duckdb

    files = score_files(folder)
    tables = [f"{join.split('|')[0]} '{path}' AS s{n} {join.split('|')[1]}" for n, path in enumerate(files)]
    sums = ", ".join(f"sum(s{n}.nll::DOUBLE)" for n in range(len(files)))
    text = f"SELECT t.source, t.ar_hit, count(*), {sums} FROM '{folder / 'tokens.parquet'}' AS t {' '.join(tables)} GROUP BY ALL"
    with duckdb.connect(config={"threads": NUM_THREADS}) as database:
        database.execute("SET enable_progress_bar = false")  # it would be drawn among the results
        return {(source, hit): (tokens, list(nlls)) for source, hit, tokens, *nlls in database.execute(text).fetchall()}


METHODS = {
    "recallkit: all tables, intervals": ours,
    "recallkit: all tables, none": partial(ours, num_resamples=0),
    "DuckDB keyed join: split only": partial(duckdb_split, join="INNER JOIN|USING (sequence, position)"),
    "DuckDB POSITIONAL JOIN: split only": partial(duckdb_split, join="POSITIONAL JOIN|"),
}


def measure(method: str, folder: str) -> dict[str, Any]:
    """One run after a warm-up, in this process: seconds, extra MB at the peak, the split."""
    METHODS[method](Path(folder) / "warm-up")
    figures, split = harness.timed(lambda: METHODS[method](Path(folder)))
    return {**figures, "split": sorted([*key, tokens, nlls] for key, (tokens, nlls) in split.items())}


def same_split(result: list[Any], expected: list[Any]) -> bool:
    return all(
        a[:3] == b[:3] and all(math.isclose(x, y, rel_tol=1e-9) for x, y in zip(a[3], b[3], strict=True))
        for a, b in zip(result, expected, strict=True)
    )


def main() -> None:
    parser = harness.parser_of(__doc__, repeats=5, runs="processes a method")
    parser.add_argument("--sequences", type=int, default=8000)
    parser.add_argument("--models", type=int, default=2, help="score files, the reference included")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder, args.sequences, args.models)
        write_corpus(folder / "warm-up", 64, args.models)
        num_rows = args.sequences * SEQ_LEN
        for path in (folder / "tokens.parquet", folder / "scores/0.parquet"):
            print(f"{path.name}: {path.stat().st_size / num_rows:.2f} bytes a token")
        runs = harness.in_turn(METHODS, args.repeats, lambda method: harness.apart(measure, method, folder))
    report(runs, num_rows, args.models)


def report(runs: dict[str, list[dict[str, Any]]], num_rows: int, num_models: int) -> None:
    """Medians, and whether the targets are met: of two score files <= 6 s and <= 600 MB, of ten <= 15 s."""
    first, bare = list(METHODS)[:2]
    seconds, megabytes = ({method: harness.median(rows, field) for method, rows in runs.items()} for field in ("seconds", "extra_mb"))
    repeats = len(runs[first])
    print(f"\n{num_rows:,} tokens, {num_models} score files, medians of {repeats} interleaved repeats, {NUM_THREADS} threads\n")
    print(f"{'method':38}{'seconds':>9}{'min':>8}{'max':>8}{'extra MB':>10}{'to ours':>9}")
    for method, results in runs.items():
        times = [run["seconds"] for run in results]
        equal = all(same_split(run["split"], runs[first][0]["split"]) for run in results)
        line = f"{method:38}{seconds[method]:9.2f}{min(times):8.2f}{max(times):8.2f}{megabytes[method]:10.0f}"
        print(line + f"{seconds[method] / seconds[first]:8.1f}x{'' if equal else '   NOT EQUAL'}")
    keyed = "DuckDB keyed join: split only"
    harness.print_stage("`gap` from stored scores", "DuckDB, keyed join", seconds[first], seconds[keyed], "s", target=2.5)
    print(f"\nintervals: {seconds[first] - seconds[bare]:.2f} s")
    most = 6 if num_models <= 2 else 15
    memory = f", <= 600 MB {verdict(megabytes[first] <= 600)}" if num_models <= 2 else ""
    print(f"\ntargets: <= {most} s {verdict(seconds[first] <= most)}{memory}")


if __name__ == "__main__":
    main()
