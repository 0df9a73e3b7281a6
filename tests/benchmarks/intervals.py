"""Simulates how often 95 % intervals contain the truth, on real text, for each kind of interval:
see docs/intervals.md.

    python tests/benchmarks/intervals.py                            # all kinds, 300 draws of 20, 50
    and 200 documents python tests/benchmarks/intervals.py accuracy mqar --draws 1000

A population is a set of real documents (rows of a document that is queried, sequences of MQAR),
whose figures over all of them are the truth. Documents are drawn from it with replacement, and each
draw is measured with the program's own code, as if it were all that there is. Printed are, for each
number of documents, the share of draws whose interval contains the truth in %, in brackets the
median width in units of the figure, and how many draws had no interval, if any. 300 draws of 95 %
give 92.5 to 97.5.

Text comes from $RECALLKIT_TEST_DATA (corpus/valid.jsonl.zst, evals/*.jsonl).
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import polars as pl

from tests.benchmarks import harness

if TYPE_CHECKING:
    from recallkit.measure.ratio import Ratio
    from recallkit.measure.sums import Sums, TableSums
    from recallkit.text.corpus import Document

MAX_COUNT = 5
"""Largest training count of AR hits, of the zoo's 3M training tokens."""

Figure = tuple[float | None, float | None, float | None]
"""A value and the bounds of its interval, None where there is none."""
Figures = Mapping[str, Figure]


def figure_of(row: Mapping[str, Any], name: str, suffix: str = "_ci") -> Figure:
    """A figure of a row of a table."""
    return row[name], row[f"{name}{suffix}_low"], row[f"{name}{suffix}_high"]


@dataclass(frozen=True)
class Population:
    """Documents 0 to `size` - 1, and what is measured of some of them, given by their numbers (a
    document may occur several times)."""

    name: str
    size: int
    measure: Callable[[np.ndarray], Figures]


MOST_DOCUMENTS = 1000
"""Documents of a population of `gap`: few enough to be resampled one by one
(`ratio.MOST_GROUPS`)."""
SHORT = 4096
"""Characters of the beginnings of documents."""
CONTROLS = ("control:recall", "control:bigram")
"""They differ by a cache."""
ZOO = ("zoo:attention", "zoo:hybrid", "zoo:based", "zoo:delta", "zoo:mamba", "zoo:hyena")
"""They recall from all to nearly nothing of what the first one does."""


def sliced(
    slices: Path, texts: Sequence[Document], seq_len: int = 256, most: int | None = SHORT
) -> Path:
    """A slice directory of documents, or of the first `most` characters of each, by the zoo's
    counts."""
    import recallkit

    file = slices.with_suffix(".jsonl")
    lines = [json.dumps({"text": text.text[:most], "source": text.source}) for text in texts]
    file.write_text("".join(f"{line}\n" for line in lines))
    with contextlib.redirect_stdout(io.StringIO()):
        recallkit.slice(
            file, out=slices, seq_len=seq_len, max_count=MAX_COUNT, counts=recallkit.zoo_counts()
        )
    return slices


def sums_of(
    name: str,
    folder: Path,
    texts: Sequence[Document],
    models: Sequence[str],
    seq_len: int = 256,
    most: int | None = SHORT,
) -> Sums:
    """The sums of documents under the models."""
    import recallkit
    from recallkit.measure.labelled import open_scores, open_tokens
    from recallkit.measure.sums import add_up
    from recallkit.scoring import score_path

    slices = sliced(folder / name, texts, seq_len, most)
    with contextlib.redirect_stdout(io.StringIO()):
        recallkit.score(models, slices=slices)
    tokens = open_tokens(slices / "tokens.parquet")
    return add_up(tokens, [open_scores(score_path(slices, model), tokens) for model in models])


def documents_of(data: Path) -> Iterator[Document]:
    """Those of the validation shard."""
    from recallkit.text.corpus import open_corpus

    return open_corpus([str(data / "corpus" / "valid.jsonl.zst")]).documents()


def populations_of_gap(data: Path, folder: Path, limit: int | None) -> Iterator[Population]:
    """Documents, whole or their beginnings, in short and in long sequences; two models, which
    differ by a cache.

    Whole documents differ ten-thousandfold in size: 20 of them are as few as 3 of equal size, most
    often.
    """
    texts = list(itertools.islice(documents_of(data), min(limit or MOST_DOCUMENTS, MOST_DOCUMENTS)))
    for most, seq_len in ((SHORT, 256), (SHORT, 2048), (None, 256), (None, 2048)):
        sums = sums_of(f"gap-{most}-{seq_len}", folder, texts, CONTROLS, seq_len, most)
        parts = [*rows_of_gap(sums), rows_of_largest_source(sums)]
        cut = "whole" if most is None else f"at most {most:,} characters of each"
        yield Population(
            f"gap, sequences of {seq_len}, {cut}", sums.clusters.number, partial(measure_gap, parts)
        )


def populations_of_retained(data: Path, folder: Path, limit: int | None) -> Iterator[Population]:
    """What models of the zoo retain of attention's recall, in the beginnings of documents."""
    texts = list(itertools.islice(documents_of(data), min(limit or INTERVENED, INTERVENED)))
    sums = sums_of("retained", folder, texts, ZOO)
    name = f"retained, at most {SHORT:,} characters of each"
    yield Population(
        name, sums.clusters.number, partial(measure_retained, sums.tables["slices"].slice("ar_hit"))
    )


MINORITY = {"Github": 9, "FreeLaw": 101}
"""Documents by source of a population in which a minority differs."""


def populations_of_minority(data: Path, folder: Path, limit: int | None) -> Iterator[Population]:
    """The beginnings of 101 statutes and of 9 files of code, as they are, and with code's gap made
    another's.

    So that the code's share is small, its gap in AR hits is divided by 3, and that of its other
    tokens multiplied by 2 or 6.
    """
    documents = [text for text in documents_of(data) if len(text.text) > 400]
    texts = []
    for source, number in MINORITY.items():
        texts += [text for text in documents if text.source == source][:number]
    slices = sums_of("minority", folder, texts[:limit], CONTROLS).tables["slices"]
    rows = slices.slice("all", "ar_hit", "other")
    is_code = np.arange(len(rows.by_group["tokens"])) < MINORITY["Github"]
    gaps = rows.gap(1).by_group
    for part, times in ((1, 1), (1 / 3, 2), (1 / 3, 6)):
        factors = np.where(is_code[:, None], [part, times], 1)
        hits, others = (gaps[:, 1:] * factors).T
        nlls = rows.by_group["nll_0"] + np.stack([hits + others, hits, others], axis=1)
        changed = replace(rows, by_group={**rows.by_group, "nll_1": nlls})
        shares = [
            hits[chosen].sum() / (hits + others)[chosen].sum() for chosen in (is_code, ~is_code)
        ]
        name = f"minority, AR shares of code and of the others {shares[0]:.2f}, {shares[1]:.2f}"
        hit_rows, all_tokens = changed.slice("all", "ar_hit"), changed.slice("all")
        part_of_hits = Part(["all tokens", "AR hits"], hit_rows, all_tokens)
        yield Population(name, len(gaps), partial(measure_gap, [part_of_hits]))


class Part(NamedTuple):
    """Rows of a table by name, their sums by document, and those of all tokens, which shares are
    of."""

    names: list[str]
    rows: TableSums
    all_tokens: TableSums


def rows_of_gap(sums: Sums) -> Iterator[Part]:
    """All tokens, AR hits, and of each other table the rows at the 20th, 50th and 80th percentile
    of those that any document in ten has."""
    slices = sums.tables["slices"]
    all_tokens = slices.slice("all")
    yield Part(["all tokens", "AR hits"], slices.slice("all", "ar_hit"), all_tokens)
    for table, rows in sums.tables.items():
        if table not in ("slices", "by_source"):
            common = np.flatnonzero(rows.spread.clusters > sums.clusters.number / 10).tolist()
            places = list(
                dict.fromkeys(common[len(common) * percent // 100] for percent in (20, 50, 80))
            )
            names = [f"{table}: {' '.join(map(str, rows.keys.row(place)))}" for place in places]
            yield Part(names, rows.take(np.array(places)), all_tokens)


def rows_of_largest_source(sums: Sums) -> Part:
    """All tokens and AR hits of the largest source alone."""
    table = sums.tables["by_source"]
    sources = table.keys.with_columns(tokens=table["tokens"].total).with_row_index()
    largest = sources.filter(pl.col("source") != "ALL", slice="all").sort("tokens")["source"][-1]
    places = sources.filter(pl.col("slice").is_in(["all", "ar_hit"]), source=largest)[
        "index"
    ].to_numpy()
    names = ["largest source: all tokens", "largest source: AR hits"]
    return Part(names, table.take(places), table.take(places[:1]))


def drawn_from(rows: TableSums, documents: np.ndarray) -> TableSums:
    """The sums of the documents that are drawn, each a cluster of its own."""
    from recallkit.measure.ratio import Spread

    by_group = {name: sums[documents] for name, sums in rows.by_group.items()}
    return replace(rows, spread=Spread.of_sizes(by_group["tokens"]), by_group=by_group)


def measure_gap(parts: list[Part], documents: np.ndarray) -> Figures:
    """The gap in nats per token and its share of the whole gap, of each row of each part, in the
    documents that are drawn."""
    from recallkit.measure.ratio import ratio

    figures: dict[str, Any] = {}
    for names, rows, all_tokens in parts:
        rows, all_tokens = drawn_from(rows, documents), drawn_from(all_tokens, documents)
        nats, shares = ratio(rows.gap(1), rows["tokens"]), ratio(rows.gap(1), all_tokens.gap(1))
        for place, name in enumerate(names):
            figures[f"{name}, nats"] = ends_of(nats, place)
            if "all tokens" not in name:
                figures[f"{name}, share"] = ends_of(shares, place)
    return figures


def measure_retained(hits: TableSums, documents: np.ndarray) -> Figures:
    """What each model retains in the documents that are drawn, and its recall gain; beside the
    plain percentile interval."""
    from recallkit.measure.ratio import ratio, resample_weights
    from recallkit.measure.shares import retained

    hits, figures = drawn_from(hits, documents), dict[str, Any]()
    weights = resample_weights(len(documents))
    samples = [(weights @ hits.gain(number).by_group)[:, 0] for number in range(len(ZOO))]
    for number, model in enumerate(ZOO):
        figures[f"gain of {model}"] = ends_of(ratio(hits.gain(number), hits["tokens"]), 0)
        if number:
            figure = ends_of(retained(hits.gain(number), hits.gain(0), hits["tokens"]), 0)
            plain = np.quantile(samples[number] / samples[0], [0.025, 0.975])
            figures[f"retained by {model}"] = figure
            figures[f"plain percentile: retained by {model}"] = (figure[0], *plain)
    return figures


def ends_of(figure: Ratio, place: int) -> Figure:
    """A figure of a row and the ends of its interval."""
    value, low, high = (
        None if np.isnan(values[place]) else float(values[place])
        for values in (figure.value, figure.low, figure.high)
    )
    return value, low, high


INTERVENED = 300
"""Documents of the population of `intervene`, all of whose repeated tokens are sampled once, so
that what each loses is known."""
INTERVENED_SLICES = ("ar_hit", "repeated_frequent")
SAMPLES = 200
"""Tokens of each slice that are then sampled of the documents drawn."""


def populations_of_intervene(data: Path, folder: Path, limit: int | None) -> Iterator[Population]:
    """The causal recall of control models in each repeated token of the beginnings of documents; of
    those drawn only a sample is read."""
    from recallkit.intervening import InterventionOptions, intervene
    from recallkit.intervening.tables import read_measures
    from recallkit.measure.labelled import open_scores, open_tokens
    from recallkit.measure.sums import add_up
    from recallkit.scoring import score_path
    from recallkit.slicing.definitions import SLICES

    slice_names = list(INTERVENED_SLICES)
    texts = list(itertools.islice(documents_of(data), min(limit or INTERVENED, INTERVENED)))
    slices = sliced(folder / "intervened", texts)
    with contextlib.redirect_stdout(io.StringIO()):
        intervene(CONTROLS, slices, options=InterventionOptions(samples=10**7, slice=slice_names))
    tokens = open_tokens(slices / "tokens.parquet")
    [path] = slices.glob("intervene/text-*/samples.parquet")
    known = pl.read_parquet(path).filter(excluded="")
    files = [(score_path(slices, model), score_path(path.parent, model)) for model in CONTROLS]
    scores = [open_scores(file, tokens) for file, _ in files]
    text = add_up(tokens, scores, [SLICES[name] for name in slice_names], every_table=False)
    measures = read_measures(known, tokens, open_tokens(path.parent / "tokens.parquet"), files)
    name = f"intervene, {SAMPLES} samples of each slice, at most {SHORT:,} characters of each"
    measure = partial(
        measure_intervention, known, measures, text, tokens.vocab_size, itertools.count()
    )
    yield Population(name, text.clusters.number, measure)


@dataclass(frozen=True)
class DrawnClusters:
    """The documents of a draw, numbered as they were drawn, each a group of its own."""

    number: int

    def numbers(self, clusters: pl.Series) -> np.ndarray:
        return clusters.to_numpy()

    def groups(self, numbers: np.ndarray) -> np.ndarray:
        return numbers


def measure_intervention(
    known: pl.DataFrame,
    measures: Mapping[str, np.ndarray],
    text: Sums,
    vocab_size: int,
    seeds: Iterator[int],
    documents: np.ndarray,
) -> Figures:
    """Causal recall and its share of the gap in the documents that are drawn, by a sample of their
    tokens; of all documents, by all."""
    from recallkit.intervening.sampling import COLUMNS, Pool
    from recallkit.intervening.tables import make_tables
    from recallkit.measure.sums import Sums

    document = text.clusters.groups(known["document"].to_numpy())
    of_document = [np.flatnonzero(document == number) for number in range(text.clusters.number)]
    places = np.concatenate([of_document[number] for number in documents])
    owner = np.repeat(np.arange(len(documents)), [len(of_document[number]) for number in documents])
    census = len(np.unique(documents)) == len(of_document)
    size, rng = (len(places) if census else SAMPLES), np.random.default_rng(next(seeds))
    drawn = (
        known.select("slice", *COLUMNS)[places]
        .with_row_index("row")
        .with_columns(key=rng.random(len(places)))
    )
    samples = []
    for slice_ in INTERVENED_SLICES:
        pool = Pool(size)
        pool.add(drawn.filter(slice=slice_))
        samples.append(pool.sample())
    sample = pl.concat(samples)
    rows = sample["row"].to_numpy()
    sample = sample.with_columns(document=owner[rows])
    table = drawn_from(text.tables["slices"], documents)
    sums = Sums({"slices": table}, DrawnClusters(len(documents)), pl.DataFrame())  # type: ignore[arg-type]
    sampled = {name: values[places[rows]] for name, values in measures.items()}
    tables = make_tables(CONTROLS, sample, sampled, sums, vocab_size)
    figures = {}
    for frame, names in (
        (tables.intervene, ("recall", "points")),
        (tables.retained, ("causal_share",)),
    ):
        for row in frame.unique("slice", keep="first", maintain_order=True).to_dicts():
            for name in names:
                figures[f"{row['slice']}: {name}"] = figure_of(row, name)
    return figures


def populations_of_profile(data: Path, folder: Path, limit: int | None) -> Iterator[Population]:
    """Documents of the validation shard, each cut into sequences of its own, and up to the first
    4,096 tokens of each; the zoo's counts.

    Whole documents differ ten-thousandfold in size: 20 of them are as few as 3 of equal size, most
    often.
    """
    import pyarrow as pa

    from recallkit import builtin, profiling, slicing
    from recallkit.options import TextOptions
    from recallkit.profiling.tables import make_tables
    from recallkit.text.tokenizers import load_tokenizer

    text = TextOptions(
        [str(data / "corpus" / "valid.jsonl.zst")], "validation", boundary="document"
    )
    is_content = profiling.token_mask(load_tokenizer(None), profiling.stop_words("ours"))
    x_min = 32  # one beginning of all tails: the intervals are for a given one
    labels = ["distance", "occurrences", "repeated", "ar_hit"]
    columns = ["source", "document", "position", "prev_token", "token", *labels]

    def population(seq_len: int, most: int | None) -> Population:
        slices = folder / f"profiled-{seq_len}"
        with contextlib.redirect_stdout(io.StringIO()):
            slicing.slice_text(
                text,
                slices,
                counts=builtin.counts(),
                rare=slicing.RareCount(MAX_COUNT),
                seq_len=seq_len,
            )
        rows = pl.read_parquet(slices / "tokens.parquet", columns=columns).with_columns(
            source=pl.lit("text")
        )
        starts = np.flatnonzero(np.diff(rows["document"].to_numpy(), prepend=-1))
        ends = np.append(starts[1:], len(rows))
        ends = ends if most is None else np.minimum(ends, starts + most)

        def measure(documents: np.ndarray) -> Figures:
            chosen = rows[np.concatenate([np.arange(starts[d], ends[d]) for d in documents])]
            numbers = np.repeat(
                np.arange(len(documents), dtype=np.int32), (ends - starts)[documents]
            )
            drawn: pa.Table = chosen.with_columns(document=pl.Series(numbers)).to_arrow()
            tables = make_tables(drawn, is_content, seq_len, knows_hits=True, x_min=x_min)
            row = tables.profile.row(0, named=True)
            figures: dict[str, Figure] = {
                "effective documents": (row["effective_documents"], None, None)
            }
            for name in ("repeated_bigrams", "distinct_bigrams", "repeated_share", "ar_hit_share"):
                figures[name] = figure_of(row, name)
            for row in tables.fits.filter(source="ALL").iter_rows(named=True):
                figures[f"alpha of {row['kind']}"] = figure_of(row, "alpha")
            return figures

        cut = "" if most is None else f", at most {most:,} tokens of a document"
        return Population(f"profile, sequences of {seq_len}{cut}", limit or len(starts), measure)

    for seq_len in (256, 2048):
        for most in (4096, None):
            yield population(seq_len, most)


SHARES = (0.005, 0.02, 0.1, 0.5, 0.98)


def populations_of_accuracy(data: Path, folder: Path, limit: int | None) -> Iterator[Population]:
    """Rows of FDA and of SWDE with their documents; a model is right where its NLL of the answer is
    among the lowest share.

    So proportions of any size have the dependence of real rows. The reference is `control:recall`,
    the other model `control:bigram`: one with the same share of right answers, one with the same
    limit in nats.
    """
    from recallkit.recall.accuracy import by_document, compare_shares
    from recallkit.recall.run import RecallOptions, plan_recall

    for task, file in (("fda", "fda.jsonl"), ("swde", "swde_books.jsonl")):
        options = RecallOptions(data=data / "evals" / file, limit=limit)
        with contextlib.redirect_stdout(io.StringIO()):
            plan = plan_recall(CONTROLS, [task], folder / task, options)
            plan.run()
        outcomes = [pl.read_parquet(plan.documents[model, task].path) for model in CONTROLS]
        names, places = np.unique(outcomes[0]["doc_id"].to_numpy(), return_inverse=True)
        rows = [np.flatnonzero(places == number) for number in range(len(names))]
        reference, other = (table["answer_nll"].to_numpy() for table in outcomes)

        def measure(documents: np.ndarray, rows=rows, reference=reference, other=other) -> Figures:
            taken = np.concatenate([rows[number] for number in documents])
            of_document = np.repeat(
                np.arange(len(documents)), [len(rows[number]) for number in documents]
            ).astype(str)
            figures = {}
            for share in SHARES:
                limits = [np.quantile(nlls, share) for nlls in (reference, other, reference)]
                answers = [reference[taken], other[taken], other[taken]]
                right = np.column_stack(answers) <= limits
                intervals, means = (
                    compare_shares(*by_document(right, of_document)),
                    right.mean(axis=0),
                )
                figures[f"accuracy {share:.1%}"] = (means[0], *intervals.bounds[:, 0])
                for place, name in ((1, "same share"), (2, "same limit")):
                    bounds = intervals.difference_bounds[:, place]
                    figures[f"difference, {share:.1%}, {name}"] = (means[place] - means[0], *bounds)
            return figures

        yield Population(f"accuracies of {task}", len(names), measure)


def populations_of_mqar(_: Path, folder: Path, limit: int | None) -> Iterator[Population]:
    """Sequences of MQAR, asked of two models of the zoo and of `control:recall`, which recalls nine
    in ten values."""
    from recallkit.mqar.run import plan_mqar
    from recallkit.mqar.tables import sample_intervals
    from recallkit.options import MqarOptions
    from recallkit.storage import db, schemas

    models, pairs = ("zoo:attention", "zoo:based", "control:recall"), (4, 16)
    options = MqarOptions(seq_len=128, samples=limit or 400)
    with contextlib.redirect_stdout(io.StringIO()):
        plan = plan_mqar(models, pairs, folder / "mqar", options)
        plan.run()
    for number in pairs:
        results = [plan.queries[model, number] for model in models]
        paths_of = {
            "queries": [result.path for result in results],
            "fillers": [result.others[0] for result in results],
        }
        with db.connect(threads=1) as connection:
            for name, paths in paths_of.items():
                frames = [schemas.read_frame(path) for path in paths]
                labelled = [
                    frame.with_columns(model=pl.lit(model))
                    for frame, model in zip(frames, models, strict=True)
                ]
                connection.register(name, pl.concat(labelled).to_arrow())
            of_models = [
                db.frame(connection, "mqar/sum_samples").filter(model=model).sort("sample")
                for model in models
            ]

        def measure(sequences: np.ndarray, of_models=of_models, number=number) -> Figures:
            renumbered = pl.Series("sample", np.arange(len(sequences)))
            drawn = pl.concat([frame[sequences].with_columns(renumbered) for frame in of_models])
            figures = {}
            for place, row in enumerate(sample_intervals(drawn, models, number)):
                sums = (
                    drawn.filter(model=models[place])
                    .select(pl.exclude("model", "pairs", "sample").sum())
                    .row(0, named=True)
                )
                for name, above, below in NLLS_AND_ACCURACIES:
                    bounds = row[f"{name}_low"], row[f"{name}_high"]
                    figures[f"{name}, {models[place]}"] = (sums[above] / sums[below], *bounds)
                    if place:
                        figures[f"{name}, difference of {models[place]}"] = figure_of(
                            row, f"{name}_difference", ""
                        )
            return figures

        yield Population(f"MQAR of {number} pairs", options.samples, measure)


NLLS_AND_ACCURACIES = [
    ("accuracy", "ar_right", "ar_tokens"),
    ("ar_nll", "ar_nats", "ar_tokens"),
    ("filler_accuracy", "filler_right", "filler_tokens"),
    ("filler_nll", "filler_nats", "filler_tokens"),
]

KINDS: Mapping[str, Callable[[Path, Path, int | None], Iterator[Population]]] = {
    "gap": populations_of_gap,
    "retained": populations_of_retained,
    "minority": populations_of_minority,
    "intervene": populations_of_intervene,
    "profile": populations_of_profile,
    "accuracy": populations_of_accuracy,
    "mqar": populations_of_mqar,
}
"""What makes the populations of a kind: of the folder of real text, a folder to work in, and at
most how many documents."""


# ------------------------------------------------------------------------------------------------------------ simulating


@dataclass
class Coverage:
    """Of a figure and a number of documents: draws, those without an interval, those that contain
    the truth, all widths and figures."""

    draws: int = 0
    missing: int = 0
    covered: int = 0
    widths: list[float] = field(default_factory=list)
    figures: list[float] = field(default_factory=list)

    def add(
        self, truth: float, figure: float | None, low: float | None, high: float | None
    ) -> None:
        self.draws += 1
        self.figures += [] if figure is None else [figure]
        if low is None or high is None or np.isnan(low) or np.isnan(high):
            self.missing += 1
            return
        self.covered += low <= truth <= high
        self.widths.append(high - low)

    @property
    def share(self) -> float:
        """Of the draws with an interval, those that contain the truth; NaN if there is none."""
        return self.covered / (self.draws - self.missing) if self.widths else np.nan


def simulate(
    population: Population, numbers: list[int], draws: int, seed: int = 0
) -> dict[str, tuple[float, dict[int, Coverage]]]:
    """Each figure of a population: its truth, and its coverage by the number of documents that were
    drawn."""
    figures = population.measure(np.arange(population.size))
    truth = {
        name: float(outcomes) for name, (outcomes, _, _) in figures.items() if outcomes is not None
    }
    coverage: dict[str, dict[int, Coverage]] = {name: defaultdict(Coverage) for name in truth}
    for number in numbers:
        rng = np.random.default_rng([seed, number])
        for _ in range(draws):
            drawn = population.measure(rng.integers(0, population.size, number))
            for name in coverage:
                coverage[name][number].add(truth[name], *drawn.get(name, (None, None, None)))
    return {name: (truth[name], coverage[name]) for name in coverage}


def main() -> None:
    options = {"kinds": [], "--draws": 300, "--documents": [20, 50, 200], "--limit": 0}
    args = harness.parse(__doc__, options, kinds=KINDS)
    data = Path(os.environ["RECALLKIT_TEST_DATA"])
    with harness.scratch() as folder:
        for kind in args.kinds or KINDS:
            for population in KINDS[kind](data, folder, args.limit or None):
                begun = time.perf_counter()
                outcomes = simulate(population, args.documents, args.draws)
                seconds = time.perf_counter() - begun
                print(
                    f"\n{population.name}: {population.size:,} documents, {args.draws:,} draws, "
                    f"{seconds:.0f} s\n"
                )
                print("\n".join(table_of(outcomes, args.documents)), flush=True)


def table_of(
    outcomes: Mapping[str, tuple[float, Mapping[int, Coverage]]], numbers: list[int]
) -> Iterator[str]:
    """A Markdown table, a row per figure."""
    yield harness.markdown(
        ["figure", "truth", *(f"{number} documents" for number in numbers)], is_header=True
    )
    for name, (truth, by_number) in outcomes.items():
        yield harness.markdown(
            [name, f"{truth:.4g}", *(cell(by_number[number]) for number in numbers)]
        )


def cell(coverage: Coverage) -> str:
    missing = f", {coverage.missing} without" if coverage.missing else ""
    if not coverage.widths:
        return f"median {np.median(coverage.figures):.3g}" if coverage.figures else "–"
    return f"{100 * coverage.share:.1f} ({np.median(coverage.widths):.3g}){missing}"


if __name__ == "__main__":
    main()
