"""The gap's tables against plain loops over tiny tables, the bootstrap against a naive one, and files that do not fit."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from recallkit.attribution.tables import EMPTY_SLICE, NO_HITS, attribute_gap
from recallkit.attribution.view import share_notes
from recallkit.config import SCHEMA_VERSION
from recallkit.errors import UserError
from recallkit.measure import intervals, labelled, shares
from recallkit.measure.classes import log2_bucket
from recallkit.measure.intervals import MIN_CLUSTERS, expanded_interval
from recallkit.measure.labelled import CLUSTERS
from recallkit.measure.shares import WholeGap
from recallkit.storage.artifacts import write_parquet

LABELS = pa.schema(
    [
        ("sequence", pa.int32()),
        ("position", pa.int32()),
        ("document", pa.int32()),
        ("source", pa.dictionary(pa.int32(), pa.string())),
        ("prev_token", pa.int32()),
        ("token", pa.int32()),
        ("repeated", pa.bool_()),
        ("context_class", pa.dictionary(pa.int32(), pa.string())),
        ("distance", pa.int32()),
        ("first_distance", pa.int32()),
        ("match_length", pa.int32()),
        ("overwritten", pa.bool_()),
        ("train_count", pa.int64()),
        ("ar_hit", pa.bool_()),
    ]
)
SCORES = pa.schema(
    [("sequence", pa.int32()), ("position", pa.int32()), ("nll", pa.float32()), ("argmax", pa.int32()), ("rank", pa.int32())]
)


class Corpus:
    """A folder of slices: tokens as (sequence, position, source, distance or None, train_count), and models' scores.

    A match is as long as the distance is: the two are independent, but for both being 0 of a token that is not repeated. `ids` are
    (previous, token) of each; without them all tokens differ. A sequence is a document of its own. Distances end where sequences begin.
    """

    def __init__(
        self,
        folder,
        tokens,
        *,
        seq_len=64,
        max_count=1250,
        rows_per_group=5,
        digest="d",
        counts=True,
        num_bytes=None,
        ids=None,
        documents=None,
        overwritten=None,
    ):
        self.folder, self.digest, self.rows_per_group, self.seq_len = Path(folder), digest, rows_per_group, seq_len
        tokens = [(s, p, source, min(distance or 0, p - 1) or None, count) for s, p, source, distance, count in tokens]
        self.tokens = [
            dict(
                zip(("sequence", "position", "source", "distance", "train_count"), token, strict=True),
                document=document,
                repeated=token[3] is not None,
                ar_hit=token[3] is not None and token[4] <= max_count,
                match_length=min(token[3] or 0, seq_len),
                prev_token=pair[0],
                token=pair[1],
                overwritten=was_overwritten,
            )
            for token, pair, document, was_overwritten in zip(
                tokens,
                ids or zip(range(len(tokens)), range(1, len(tokens) + 1), strict=True),
                documents or [token[0] for token in tokens],
                overwritten or [False] * len(tokens),
                strict=True,
            )
        ]
        for row, token in enumerate(self.tokens):  # its bigram is that of the token so far back, which is that of another, or the first
            back = token["distance"]
            token["first_distance"] = back and back + (self.tokens[row - back]["first_distance"] or 0)
            before = self.tokens[row - token["position"] + 1 : row]
            known = {before[0]["prev_token"], *(t["token"] for t in before)} if before else {token["prev_token"]}
            token["context_class"] = "bigram" if token["repeated"] else "token" if token["token"] in known else "new"
        self.nlls = {}
        manifest = {
            "kind": "tokens",
            "num_sequences": len({token[0] for token in tokens}),
            "seq_len": seq_len,
            "boundary": "window",
            "max_count": max_count,
            "counts": {"id": "c", "num_tokens": 1000} if counts else None,
            **({} if num_bytes is None else {"num_bytes": num_bytes}),
        }
        self.path = self._write("tokens", pa.Table.from_pylist(self.tokens, LABELS), manifest)

    def _write(self, name, table, manifest):
        path = self.folder / f"{name}.parquet"
        starts = [0]
        for row, token in enumerate(self.tokens):  # a row group holds whole sequences
            if token["position"] == 1 and row - starts[-1] >= self.rows_per_group:
                starts.append(row)
        parts = [table.slice(start, end - start) for start, end in itertools.pairwise([*starts, table.num_rows])]
        common = {"schema_version": SCHEMA_VERSION, "sequences_digest": self.digest, "num_rows": table.num_rows}
        write_parquet(path, parts, table.schema, {**common, **manifest})
        return path

    def score(self, model, nlls, ranks=None, **manifest):
        self.nlls[model] = [float(np.float32(nll)) for nll in nlls]
        rows = [
            {"sequence": t["sequence"], "position": t["position"], "nll": nll, "argmax": -1, "rank": rank}
            for t, nll, rank in zip(self.tokens, nlls, ranks if ranks is not None else [0] * len(nlls), strict=True)
        ]
        return self._write(f"scores/{model}", pa.Table.from_pylist(rows, SCORES), {"kind": "scores", "model": model, **manifest})

    def sums(self, model, keep):
        """Tokens and NLL sums (reference, model) of the tokens that `keep` takes, added up one by one."""
        picked = [i for i, token in enumerate(self.tokens) if keep(token)]
        return len(picked), math.fsum(self.nlls["reference"][i] for i in picked), math.fsum(self.nlls[model][i] for i in picked)


SLICES = {
    "all": lambda t: True,
    "ar_hit": lambda t: t["ar_hit"],
    "other": lambda t: not t["ar_hit"],
    "repeated": lambda t: t["repeated"],
}


def close(found, expected):
    if expected is None or found is None:
        return found is None and expected is None
    return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)


def assert_row(row, sums, whole):
    """One row's figures from its own sums and those of the whole that its shares are of."""
    tokens, reference, model = sums
    gap = whole[2] - whole[1]
    assert row["tokens"] == tokens
    assert close(row["share_of_tokens"], tokens / whole[0])
    means = (None, None) if not tokens else (reference / tokens, model / tokens)
    assert (close(row["nll_reference"], means[0]), close(row["nll_model"], means[1])) == (True, True)
    assert close(row["ppl_reference"], None if not tokens else math.exp(means[0]))
    assert close(row["ppl_model"], None if not tokens else math.exp(means[1]))
    assert close(row["delta_nll"], None if not tokens else means[1] - means[0])
    if gap == 0 or abs(gap) > 1e-6:
        assert close(row["gap_share"], None if not tokens or gap == 0 else (model - reference) / gap)


def small_corpus(folder, **options):
    """Two sources in three sequences, AR hits in each; sequence 2 mixes its sources."""
    tokens = [
        (0, 1, "web", None, 10),
        (0, 2, "web", 1, 0),
        (0, 3, "web", 2, 1250),
        (0, 4, "web", 3, 1251),
        (1, 1, "code", None, 0),
        (1, 2, "code", 1, 7),
        (1, 3, "code", 1, 8),
        (2, 1, "web", None, 3),
        (2, 2, "code", 40, 900),
        (2, 3, "code", 33, 5000),
        (2, 4, "web", 4, 9),
    ]
    return Corpus(folder, tokens, **options)


REFERENCE_NLLS = [2.0, 0.5, 0.25, 1.0, 3.0, 0.5, 0.5, 2.5, 0.75, 1.5, 0.5]
BEHIND_NLLS = [2.5, 2.0, 1.25, 1.25, 3.0, 1.5, 2.5, 2.75, 1.0, 1.75, 3.5]


def figures(tables):
    return {
        name: getattr(tables, name)
        for name in ("gap", "by_count", "by_distance", "by_match", "by_position", "by_threshold", "by_partition")
    }


def assert_same(found, expected):
    """Whether all tables agree but for the order in which NLLs were added up."""
    for name, table in figures(found).items():
        for row, other in zip(table.iter_rows(), getattr(expected, name).iter_rows(), strict=True):
            assert [v for v in row if not isinstance(v, float)] == [v for v in other if not isinstance(v, float)], name
            assert [v for v in row if isinstance(v, float)] == pytest.approx([v for v in other if isinstance(v, float)], rel=1e-12), name


def check_against_loops(corpus, tables, model):
    """Every row of every table recounted token by token."""
    everything = corpus.sums(model, lambda t: True)
    names = ["ALL", *sorted({t["source"] for t in corpus.tokens})]
    gap = tables.gap.filter(pl.col("model") == model)
    assert list(zip(gap["source"], gap["slice"], strict=True)) == [(n, s) for n in names for s in SLICES]
    for row in gap.iter_rows(named=True):
        inside = lambda t, source=row["source"]: source in ("ALL", t["source"])  # noqa: E731
        keep = lambda t, inside=inside, chosen=SLICES[row["slice"]]: inside(t) and chosen(t)  # noqa: E731
        assert_row(row, corpus.sums(model, keep), corpus.sums(model, inside))

    def check_buckets(table, value, group, expected_groups):
        rows = list(getattr(tables, table).filter(pl.col("model") == model).iter_rows(named=True))
        covered = 0
        for row in rows:
            keep = lambda t, row=row: value(t) is not None and row["low"] <= value(t) <= row["high"] and group(t, row)  # noqa: E731
            assert_row(row, corpus.sums(model, keep), everything)
            assert row["tokens"] > 0
            covered += row["tokens"]
        assert covered == expected_groups

    repeated = sum(t["repeated"] for t in corpus.tokens)
    check_buckets("by_count", lambda t: t["train_count"], lambda t, row: t["repeated"] == row["repeated"], len(corpus.tokens))
    check_buckets("by_distance", lambda t: t["distance"], lambda t, row: t["ar_hit"] == row["ar_hit"], repeated)
    check_buckets("by_match", lambda t: t["match_length"], lambda t, row: t["ar_hit"] == row["ar_hit"], len(corpus.tokens))
    check_buckets("by_position", lambda t: t["position"], lambda t, row: t["ar_hit"] == (row["slice"] == "ar_hit"), len(corpus.tokens))
    for row in tables.by_threshold.filter(pl.col("model") == model).iter_rows(named=True):
        assert_row(row, corpus.sums(model, lambda t, row=row: t["repeated"] and t["train_count"] <= row["threshold"]), everything)


def test_every_table_is_what_plain_loops_count(tmp_path):
    corpus = small_corpus(tmp_path)
    paths = [corpus.score("reference", REFERENCE_NLLS), corpus.score("behind", BEHIND_NLLS), corpus.score("noise", BEHIND_NLLS[::-1])]
    tables = attribute_gap(corpus.path, paths[0], paths[1:], num_resamples=50)
    assert tables.gap["model"].unique(maintain_order=True).to_list() == ["behind", "noise"]
    assert tables.gap["reference"].unique().to_list() == ["reference"]
    for model in ("behind", "noise"):
        check_against_loops(corpus, tables, model)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_documents_are_what_plain_loops_count_and_add_up_to_the_totals(tmp_path, cluster):
    corpus, reference, behind = clustered_corpus(tmp_path)
    other = corpus.score("other", np.random.default_rng(9).gamma(1.2, 3, len(corpus.tokens)))
    tables = attribute_gap(corpus.path, reference, [behind, other], cluster=cluster, num_resamples=5)
    rows = tables.by_document.to_dicts()
    sources = {token["document"]: token["source"] for token in corpus.tokens}  # the document without a token has no row
    assert [(row["model"], row["document"], row["source"]) for row in rows] == [
        (model, document, sources[document]) for model in ("behind", "other") for document in sorted(sources)
    ]
    sums = {"tokens": "all", "ar_hits": "ar_hit"}, {"nats": "all", "ar_nats": "ar_hit"}
    for row in rows:
        for (count, of), nats in zip(sums[0].items(), sums[1], strict=True):
            keep = lambda t, row=row, of=of: t["document"] == row["document"] and SLICES[of](t)  # noqa: E731
            expected = corpus.sums(row["model"], keep)
            assert (row[count], row[f"{nats}_reference"], row[f"{nats}_model"]) == (expected[0], *map(pytest.approx, expected[1:]))
    for total in tables.gap.filter(pl.col("source") == "ALL", pl.col("slice").is_in(["all", "ar_hit"])).to_dicts():
        of_model = tables.by_document.filter(pl.col("model") == total["model"]).sum().row(0, named=True)
        count, nats = ("tokens", "nats") if total["slice"] == "all" else ("ar_hits", "ar_nats")
        assert of_model[count] == total["tokens"]
        for side in ("reference", "model"):
            assert of_model[f"{nats}_{side}"] == pytest.approx(total[f"nll_{side}"] * total["tokens"], rel=1e-12)


@st.composite
def corpora(draw):
    num_sequences = draw(st.integers(1, 4))
    tokens = []
    for sequence in range(num_sequences):
        for position in range(1, draw(st.integers(1, 7)) + 1):
            distance = draw(st.none() | st.integers(1, 7))
            count = draw(st.integers(0, 9) | st.sampled_from([1024, 1250, 1251, 2048, 2049, 10**7]))
            tokens.append((sequence, position, draw(st.sampled_from(["a", "b", "ALL of it"])), distance, count))
    nlls = st.lists(st.floats(0, 20, width=32), min_size=len(tokens), max_size=len(tokens))
    return tokens, draw(st.integers(1, 8)), draw(st.integers(0, 3000)), draw(nlls), draw(nlls)


@settings(max_examples=15)
@given(corpora())
def test_any_corpus_is_what_plain_loops_count(tmp_path_factory, drawn):
    tokens, rows_per_group, max_count, reference, model = drawn
    corpus = Corpus(tmp_path_factory.mktemp("corpus"), tokens, rows_per_group=rows_per_group, max_count=max_count, seq_len=7)
    paths = corpus.score("reference", reference), corpus.score("model", model)
    tables = attribute_gap(corpus.path, paths[0], [paths[1]], num_resamples=20)
    check_against_loops(corpus, tables, "model")
    hits = tables.gap.filter(pl.col("source") == "ALL", pl.col("slice") == "ar_hit").row(0, named=True)
    at_limit = tables.by_threshold.filter(pl.col("threshold") == max_count).row(0, named=True)
    for name in ("share_of_tokens", "nll_reference", "nll_model", "delta_nll", "gap_share", "ci_low", "ci_high"):
        assert close(at_limit[name], hits[name]), name
    assert (at_limit["tokens"], at_limit["note"]) == (hits["tokens"], hits["note"])
    for table in figures(tables).values():
        for column in table.select(pl.col(pl.Float64)).iter_columns():
            assert column.drop_nulls().is_finite().all(), column.name


def test_bits_per_byte_are_counted_by_hand(tmp_path):
    # By source the NLLs of REFERENCE_NLLS and BEHIND_NLLS sum to 6.75 and 13.25 (web), 6.25 and 9.75 (code): in bits, over bytes.
    corpus = small_corpus(tmp_path, num_bytes=[["ALL", 40, 10], ["web", 30, 10]])
    tables = attribute_gap(corpus.path, corpus.score("reference", REFERENCE_NLLS), [corpus.score("behind", BEHIND_NLLS)], num_resamples=20)
    rows = {(row["source"], row["slice"]): row for row in tables.gap.iter_rows(named=True)}
    assert [rows["ALL", name]["bytes"] for name in SLICES] == [40, 10, 30, None]
    assert [rows["web", name]["bytes"] for name in SLICES] == [30, 10, 20, None]
    assert rows["ALL", "all"]["bpb_reference"] == pytest.approx(13 / math.log(2) / 40)
    assert rows["ALL", "all"]["bpb_model"] == pytest.approx(23 / math.log(2) / 40)
    assert rows["web", "all"]["bpb_reference"] == pytest.approx(6.75 / math.log(2) / 30)
    hits = [n for n, token in enumerate(corpus.tokens) if token["ar_hit"] and token["source"] == "web"]
    assert rows["web", "ar_hit"]["bpb_model"] == pytest.approx(sum(BEHIND_NLLS[n] for n in hits) / math.log(2) / 10)
    # A source that is not among those whose bytes were counted.
    for column in ("bytes", "bpb_reference", "bpb_model"):
        assert {rows["code", name][column] for name in SLICES} == {None}


def clustered_corpus(folder):
    """Documents of unequal lengths, one without a token, in sequences of eight tokens, each document of one of two sources."""
    rng = np.random.default_rng(4)
    lengths = [3, 9, 1, 20, 0, 5, 5, 14, 2, 7, 11, 6, 8]
    documents = np.repeat(np.arange(13), lengths).tolist()
    tokens = [
        (n // 8, n % 8 + 1, "ab"[d % 2], int(rng.integers(1, 9)) if rng.random() < 0.6 else None, int(rng.lognormal(6, 3)))
        for n, d in enumerate(documents)
    ]
    corpus = Corpus(folder, tokens, seq_len=8, documents=documents)
    reference = rng.gamma(1.2, 2, len(tokens))
    return corpus, corpus.score("reference", reference), corpus.score("behind", reference + rng.normal(0.3, 1, len(tokens)))


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_intervals_are_those_of_a_naive_bootstrap_over_clusters(tmp_path, monkeypatch, cluster):
    monkeypatch.setattr(intervals, "MIN_CLUSTERS", 1.5)
    corpus, reference, behind = clustered_corpus(tmp_path)
    models = [behind, corpus.score("further", np.random.default_rng(9).gamma(1.2, 3, len(corpus.tokens)))]
    tables = attribute_gap(corpus.path, reference, models, cluster=cluster, num_resamples=60, seed=3)
    gaps_of = {model: np.subtract(corpus.nlls[model], corpus.nlls["reference"]).tolist() for model in ("behind", "further")}
    # Clusters are numbered as they appear; those without tokens do not occur.
    names = list(dict.fromkeys(token[cluster] for token in corpus.tokens))
    weights = intervals.draw_weights(np.random.Generator(np.random.PCG64(3)), 60, len(names))
    times = [[int(resample[names.index(token[cluster])]) for token in corpus.tokens] for resample in weights]

    def freedom_of(sizes):
        fourths = sum(n**4 for n in sizes)
        return sum(n**2 for n in sizes) ** 2 / fourths - 1 if fourths else math.inf

    def moves(parts, wholes):
        ratio = sum(parts) / sum(wholes) if sum(wholes) else math.nan
        return [part - ratio * whole for part, whole in zip(parts, wholes, strict=True)]

    def check(row, keep, inside):
        part, whole = (list(map(which, corpus.tokens)) for which in (keep, inside))
        clusters_of = [[token[cluster] for token, held in zip(corpus.tokens, chosen, strict=True) if held] for chosen in (part, whole)]
        owners = [[token[cluster] if held else None for token, held in zip(corpus.tokens, chosen, strict=True)] for chosen in (part, whole)]
        sizes = [[own.count(name) for name in names] for own in clusters_of]
        effective = [sum(size) ** 2 / sum(n * n for n in size) for size in sizes]
        freedom = [freedom_of(size) for size in sizes]
        assert (row["clusters"], row["effective_clusters"]) == (np.count_nonzero(sizes[0]), pytest.approx(effective[0]))
        deltas, shares_, gaps = [], [], gaps_of[row["model"]]
        parts, wholes = ([sum(g for g, own in zip(gaps, of, strict=True) if own == name) for name in names] for of in owners)
        for drawn in times:
            gap = sum(n * g for n, g, held in zip(drawn, gaps, part, strict=True) if held)
            tokens = sum(n for n, held in zip(drawn, part, strict=True) if held)
            total = sum(n * g for n, g, held in zip(drawn, gaps, whole, strict=True) if held)
            deltas.append(gap / tokens if tokens else math.nan)
            shares_.append(gap / total if total else math.nan)
        of_delta = effective[0], min(freedom[0], freedom_of(moves(parts, sizes[0])))
        of_share = min(effective), min(*freedom, freedom_of(moves(parts, wholes)))
        found = ((deltas, of_delta, ("delta_ci_low", "delta_ci_high")), (shares_, of_share, ("ci_low", "ci_high")))
        for samples, numbers, columns in found:
            bounds = expanded_interval(np.array(samples), *numbers)
            expected = [None if math.isnan(bound) else pytest.approx(bound, rel=1e-9) for bound in bounds]
            assert [row[name] for name in columns] == expected, (row, columns)

    for row in tables.gap.iter_rows(named=True):
        inside = lambda t, row=row: row["source"] in ("ALL", t["source"])  # noqa: E731
        check(row, lambda t, row=row, inside=inside: inside(t) and SLICES[row["slice"]](t), inside)
    everything = lambda t: True  # noqa: E731
    values = {"by_count": "train_count", "by_distance": "distance", "by_match": "match_length", "by_position": "position"}
    for table, column in values.items():
        for row in getattr(tables, table).iter_rows(named=True):
            group = [(name, row[name]) for name in ("repeated", "ar_hit") if name in row]
            group += [("ar_hit", row["slice"] == "ar_hit")] if "slice" in row else []

            def keep(t, row=row, column=column, group=group):
                return t[column] is not None and row["low"] <= t[column] <= row["high"] and all(t[name] == value for name, value in group)

            check(row, keep, everything)
    for row in tables.by_threshold.filter(pl.col("tokens") > 0).iter_rows(named=True):
        check(row, lambda t, row=row: t["repeated"] and t["train_count"] <= row["threshold"], everything)


def test_many_clusters_are_resampled_in_groups_and_counted_singly(tmp_path, monkeypatch):
    corpus, reference, behind = clustered_corpus(tmp_path)
    single = attribute_gap(corpus.path, reference, [behind])
    monkeypatch.setattr(intervals, "MOST_GROUPS", 4)
    groups = attribute_gap(corpus.path, reference, [behind])
    for name, table in figures(groups).items():
        other = getattr(single, name)
        assert table.select(~cs.contains("ci_")).equals(other.select(~cs.contains("ci_"))), name
    assert not groups.gap.equals(single.gap)
    assert sorted(np.bincount(intervals.group_numbers(10)).tolist()) == [2, 2, 3, 3]


def test_a_document_in_two_batches_is_one_cluster(tmp_path, monkeypatch):
    corpus, reference, behind = clustered_corpus(tmp_path)
    whole = attribute_gap(corpus.path, reference, [behind])
    monkeypatch.setattr(labelled, "_BATCH_ROWS", 3)
    assert_same(attribute_gap(corpus.path, reference, [behind]), whole)


def test_two_runs_agree_to_the_bit(tmp_path):
    corpus, reference, behind = clustered_corpus(tmp_path)
    one, other = (attribute_gap(corpus.path, reference, [behind], num_resamples=200) for _ in range(2))
    for name, table in figures(one).items():
        assert table.equals(getattr(other, name)), name
    other = attribute_gap(corpus.path, reference, [behind], num_resamples=200, seed=1)
    assert not other.gap.equals(one.gap)
    assert other.by_count["nll_model"].equals(one.by_count["nll_model"])


def test_score_files_of_another_layout_are_read_by_rows(tmp_path, monkeypatch):
    corpus = small_corpus(tmp_path)
    paths = corpus.score("reference", REFERENCE_NLLS), corpus.score("behind", BEHIND_NLLS)
    expected = attribute_gap(corpus.path, paths[0], [paths[1]], num_resamples=20)
    corpus.rows_per_group = 7
    corpus.score("behind", BEHIND_NLLS)
    monkeypatch.setattr(labelled, "_BATCH_ROWS", 3)
    assert_same(attribute_gap(corpus.path, paths[0], [paths[1]], num_resamples=20), expected)


# Four tokens in two sequences, five times over: half of them AR hits. Differences in AR hits, and in other tokens; the note, and the
# clipped shares of both.
NOTES = {
    "ordinary": ((1, 1), (0.5, 0.5), "", (2 / 3, 1 / 3)),
    "no gap": ((0, 0), (0, 0), shares.NO_GAP, (None, None)),
    "cancels": ((1, 1), (-1, -1), shares.NO_GAP, (None, None)),
    "not told from zero": ((3, -2), (3, -2), shares.GAP_MAY_BE_ZERO, (0.5, 0.5)),
    "better": ((-1, -1), (-1, -1), shares.MODEL_BETTER, (0.5, 0.5)),
    "better, worse on AR hits": ((1, 1), (-3, -3), f"{shares.MODEL_BETTER}; {shares.WORSE_ON_HITS}", (1, 0)),
    "better, worse on other tokens": ((-3, -3), (1, 1), f"{shares.MODEL_BETTER}; {shares.WORSE_ON_OTHER}", (1, 0)),
    "above 100 %": ((3, 3), (-1, -1), shares.BETTER_ON_OTHER, (1, 0)),
    "negative": ((-1, -1), (3, 3), shares.BETTER_ON_HITS, (-0.5, 1.5)),
    "negative, perhaps": ((1, -1.2), (3, 3), shares.SHARE_MAY_BE_POSITIVE, (-0.1 / 2.9, 3 / 2.9)),
    "above 100 %, perhaps": ((3, 3), (1, -1.2), shares.SHARE_MAY_BE_BELOW, (1, 0)),
    "better, worse on AR hits, perhaps": ((-1, 1.2), (-3, -3), f"{shares.MODEL_BETTER}; {shares.SHARE_MAY_BE_POSITIVE}", (1, 0)),
    "better, worse on other tokens, perhaps": ((-3, -3), (-1, 1.2), f"{shares.MODEL_BETTER}; {shares.SHARE_MAY_BE_BELOW}", (1, 0)),
}


@pytest.mark.parametrize("case", NOTES)
def test_notes_and_clipped_shares(tmp_path, case):
    hits, others, note, clipped = NOTES[case]
    corpus = Corpus(tmp_path, [(s, p, "web", 1 if p == 2 else None, 5) for s in range(10) for p in (1, 2)])
    model = [5.0 + (hits if p == 2 else others)[s % 2] for s in range(10) for p in (1, 2)]
    tables = attribute_gap(corpus.path, corpus.score("reference", [5.0] * 20), [corpus.score("model", model)], num_resamples=100)
    rows = tables.gap.filter(pl.col("source") == "ALL")
    of_any_slice = WholeGap(rows["delta_nll"][0], note != shares.GAP_MAY_BE_ZERO, [], math.inf).describe()
    assert rows["note"].to_list() == [note, note, note, "; ".join(of_any_slice)]
    assert rows["gap_share_clipped"].to_list()[1:3] == pytest.approx(list(clipped))
    assert [shares.is_void(row) for row in rows.iter_rows(named=True)] == [note in (shares.NO_GAP, shares.GAP_MAY_BE_ZERO)] * 4
    if note != shares.GAP_MAY_BE_ZERO:
        assert tables.by_threshold.filter(pl.col("threshold") == 1250)["note"].to_list() == [note]


@pytest.mark.parametrize(("hits", "others"), [(1, 2), (-1, -2), (1, -3), (-3, 1), (3, -1), (-1, 3)])
def test_of_few_documents_only_that_is_said_whatever_the_signs(tmp_path, hits, others):
    """Which model is better, and where, is not told from chance."""
    corpus = Corpus(tmp_path, [(s, p, "web", 1 if p == 2 else None, 5) for s in range(4) for p in (1, 2)])
    scores = corpus.score("reference", [5.0] * 8), [corpus.score("model", [5.0 + others, 5.0 + hits] * 4)]
    rows = attribute_gap(corpus.path, *scores, num_resamples=100).gap.filter(source="ALL").to_dicts()
    assert share_notes([(rows[0], rows[1])]) == [
        "model: the share means nothing: all tokens come from effectively 4.0 documents; 5 are needed"
    ]


def test_hits_of_few_documents_have_no_share_however_many_documents_there_are(tmp_path):
    corpus = Corpus(tmp_path, [(s, p, "web", 1 if p == 2 and s < 2 else None, 5) for s in range(20) for p in (1, 2)])
    tables = attribute_gap(corpus.path, corpus.score("reference", [1.0] * 40), [corpus.score("model", [2.0] * 40)], num_resamples=100)
    rows = {row["slice"]: row for row in tables.gap.filter(source="ALL").iter_rows(named=True)}
    assert (rows["ar_hit"]["note"], rows["ar_hit"]["void"]) == ("AR hits come from effectively 2.0 documents; 5 are needed", True)
    assert (rows["other"]["note"], rows["other"]["void"]) == ("", False)


@pytest.mark.parametrize("unlike", [1, 2])
def test_a_share_that_few_documents_decide_may_be_that_of_the_others_or_of_these(tmp_path, unlike):
    # Of 50 documents, in so many nearly the whole gap is elsewhere, in the others half of it and more is in AR hits: other text may have
    # none of them, or three times as many.
    corpus = Corpus(tmp_path, [(s, p, "web", 1 if p == 2 else None, 5) for s in range(50) for p in (1, 2)])
    gaps = np.array([(25.0 if s < unlike else 0.2 * (s % 3)) if p == 1 else 1.0 for s in range(50) for p in (1, 2)]).reshape(50, 2)
    tables = attribute_gap(corpus.path, corpus.score("reference", [1.0] * 100), [corpus.score("model", gaps.ravel() + 1)])
    row = tables.gap.row(by_predicate=(pl.col("source") == "ALL") & (pl.col("slice") == "ar_hit"), named=True)
    few, others = gaps[:unlike].sum(axis=0), gaps[unlike:].sum(axis=0)
    without, thrice = ((others + number * few)[1] / (others + number * few).sum() for number in (0, 3))
    assert row["ci_low"] < thrice < row["gap_share"] < without < row["ci_high"] + 0.01


def test_one_document_has_no_interval_and_an_empty_slice_no_numbers(tmp_path):
    corpus = Corpus(tmp_path, [(0, 1, "web", None, 5), (0, 2, "web", None, 5)])
    tables = attribute_gap(corpus.path, corpus.score("reference", [1, 2]), [corpus.score("model", [2, 2])])
    rows = {row["slice"]: row for row in tables.gap.filter(pl.col("source") == "web").iter_rows(named=True)}
    few = "all tokens come from effectively 1.0 documents; 5 are needed"
    assert [rows[name]["note"] for name in SLICES] == [few, NO_HITS, f"{shares.ALL_TOKENS}; {few}", EMPTY_SLICE]
    assert all(map(shares.is_void, rows.values()))
    assert (rows["other"]["gap_share"], rows["other"]["gap_share_clipped"]) == (1, 1)
    assert {rows[name][column] for name in SLICES for column in ("ci_low", "ci_high", "delta_ci_low", "delta_ci_high")} == {None}
    unknown = [
        value for name, value in rows["ar_hit"].items() if name not in ("reference", "model", "source", "slice", "tokens", "note", "void")
    ]
    assert sorted(unknown, key=str) == [0, 0, 0.0, *[None] * 20, "document"]


def many_sources(folder):
    """Five sources in eight sequences, two of a source each but the last: of 6, 4, 4, 2 and 2 tokens; second ones are AR hits."""
    lengths = {"e": [3, 3], "d": [2, 2], "c": [2, 2], "b": [1, 1], "a": [2]}
    tokens, sequence = [], 0
    for source, each in lengths.items():
        for length in each:
            tokens += [(sequence, p, source, 1 if p == 2 else None, 5) for p in range(1, length + 1)]
            sequence += 1
    corpus = Corpus(folder, tokens, rows_per_group=4)
    rng = np.random.default_rng(5)
    return corpus, [corpus.score(name, rng.gamma(1.2, 2, len(tokens)) + behind) for behind, name in enumerate(("reference", "one", "two"))]


def test_sources_beyond_the_largest_are_one_row_and_all_is_still_of_every_source(tmp_path, monkeypatch):
    corpus, paths = many_sources(tmp_path)
    every = attribute_gap(corpus.path, paths[0], paths[1:], num_resamples=50)
    monkeypatch.setattr("recallkit.measure.sums.MAX_RESAMPLED_SOURCES", 2)
    few = attribute_gap(corpus.path, paths[0], paths[1:], num_resamples=50)
    # Of the two sources of four tokens the first by name is among the two largest.
    assert few.gap["source"].unique(maintain_order=True).to_list() == ["ALL", "c", "e", "other sources"]
    kept = pl.col("source") != "other sources"
    assert few.gap.filter(kept).equals(every.gap.filter(pl.col("source").is_in(["ALL", "c", "e"])))
    for row in few.gap.filter(~kept).iter_rows(named=True):
        further = lambda t: t["source"] in "abd"  # noqa: E731
        keep = lambda t, chosen=SLICES[row["slice"]], further=further: further(t) and chosen(t)  # noqa: E731
        assert_row(row, corpus.sums(row["model"], keep), corpus.sums(row["model"], further))
    for name in ("by_count", "by_distance", "by_match", "by_position", "by_threshold"):
        assert getattr(few, name).equals(getattr(every, name)), name


def test_thresholds_end_above_the_largest_count_and_hold_the_papers_and_the_files(tmp_path):
    corpus = Corpus(tmp_path, [(0, 1, "web", None, 0), (0, 2, "web", 1, 5)], max_count=40)
    tables = attribute_gap(corpus.path, corpus.score("reference", [1, 2]), [corpus.score("model", [2, 2])], num_resamples=0)
    assert tables.by_threshold["threshold"].to_list() == [0, 1, 2, 4, 8, 10, 20, 40, 80, 160, 1250]
    assert tables.by_threshold["tokens"].to_list() == [0] * 4 + [1] * 7
    assert tables.gap["ci_low"].null_count() == tables.gap.height


PLANTED = {10**6: 0.0, 0: 0.5, 10: 1.5, 40: 1.0, 160: -2.0, 161: 5.0}
"""Training count -> gap of a token, nats: 6 in all. The shares up to 8, 10, 40, 160 and 256 are 1/12, 1/3, 1/2, 1/6 and 1."""


def test_the_range_is_of_the_shares_from_a_quarter_of_the_threshold_to_four_times_it(tmp_path):
    tokens = [(sequence, place + 1, "web", 1, count) for sequence in range(12) for place, count in enumerate(PLANTED)]
    corpus = Corpus(tmp_path, tokens, max_count=40)
    reference, behind = [2.0] * len(tokens), [2 + gap for _ in range(12) for gap in PLANTED.values()]
    scores = [corpus.score("behind", behind), corpus.score("alike", [3.0, 1.0] * (len(tokens) // 2))]
    gap = attribute_gap(corpus.path, corpus.score("reference", reference), scores).gap.filter(pl.col("source") == "ALL")
    found = {(row["model"], row["slice"]): (row["range_low"], row["range_high"]) for row in gap.iter_rows(named=True)}
    assert found["behind", "ar_hit"] == pytest.approx((1 / 6, 1 / 2))
    assert found["alike", "ar_hit"] == (None, None), "a void share has no range"
    assert {ends for (_, kind), ends in found.items() if kind != "ar_hit"} == {(None, None)}


@pytest.mark.parametrize("max_count", [2**51 + 1, 2**64])
def test_a_threshold_that_no_count_reaches_is_one_row_more(tmp_path, max_count):
    corpus = Corpus(tmp_path, [(0, 1, "web", None, 2**40), (0, 2, "web", 1, 5)], max_count=max_count)
    tables = attribute_gap(corpus.path, corpus.score("reference", [1, 2]), [corpus.score("model", [2, 2])], num_resamples=0)
    last = tables.by_threshold.row(-1, named=True)
    assert (last["threshold"], last["tokens"]) == (min(4 * max_count, 2**63 - 1), 1)
    assert tables.by_count.select("low", "high", "tokens").rows() == [(5, 8, 1), (2**39 + 1, 2**40, 1)]


def test_a_perplexity_beyond_floats_is_infinite_and_the_rest_is_as_ever(tmp_path):
    corpus = small_corpus(tmp_path)
    tables = attribute_gap(corpus.path, corpus.score("reference", REFERENCE_NLLS), [corpus.score("model", [1000.0] * 11)], num_resamples=20)
    for name, table in figures(tables).items():
        rows = table.filter(pl.col("tokens") > 0)
        assert (set(rows["ppl_model"]), set(rows["nll_model"])) == ({math.inf}, {1000.0}), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sequences_digest": "other"}, "scores of other sequences"),
        ({"kind": "tokens"}, "a table of tokens, not of scores"),
    ],
)
def test_scores_of_other_sequences_are_refused(tmp_path, change, message):
    corpus = small_corpus(tmp_path)
    reference, model = corpus.score("reference", REFERENCE_NLLS), corpus.score("behind", BEHIND_NLLS, **change)
    with pytest.raises(UserError, match=message) as caught:
        attribute_gap(corpus.path, reference, [model])
    assert str(model) in caught.value.line()
    assert "recallkit score" in caught.value.line()


def test_nlls_that_are_no_numbers_are_refused_by_model(tmp_path):
    corpus = small_corpus(tmp_path)
    reference, model = corpus.score("reference", REFERENCE_NLLS), corpus.score("behind", [math.nan, *BEHIND_NLLS[1:]])
    with pytest.raises(UserError, match="NLLs that are not finite numbers") as caught:
        attribute_gap(corpus.path, reference, [model])
    assert str(model) in caught.value.line()


def test_labels_without_counts_no_tokens_and_no_or_repeated_models_are_refused(tmp_path):
    corpus = small_corpus(tmp_path / "a")
    reference, model = corpus.score("reference", REFERENCE_NLLS), corpus.score("behind", BEHIND_NLLS)
    with pytest.raises(UserError, match="behind: given twice"):
        attribute_gap(corpus.path, reference, [model, model])
    with pytest.raises(UserError, match="no model to compare"):
        attribute_gap(corpus.path, reference, [])
    with pytest.raises(UserError, match="a table of scores, not of tokens"):
        attribute_gap(model, reference, [model])
    uncounted = small_corpus(tmp_path / "b", counts=False)
    with pytest.raises(UserError, match=r"without training counts.*--counts"):
        attribute_gap(uncounted.path, reference, [model])
    empty = Corpus(tmp_path / "c", [])
    with pytest.raises(UserError, match="contains no tokens"):
        attribute_gap(empty.path, reference, [model])
    with pytest.raises(UserError, match="no such table"):
        attribute_gap(tmp_path / "absent.parquet", reference, [model])


def test_log2_buckets_change_just_above_each_power_of_two():
    assert log2_bucket(np.arange(18)).tolist() == [0, 1, 2, 3, 3, *[4] * 4, *[5] * 8, 6]
    edges = np.array([[2**k, 2**k + 1] for k in range(1, 50)])
    assert (np.diff(log2_bucket(edges.ravel()).reshape(-1, 2).astype(int)) == 1).all()


def test_expanded_percentiles_reach_as_far_as_students_t():
    # Of exactly normal samples the bounds are those of the t interval of a mean, scaled as resampling scales: by sqrt((m - 1) / m).
    grid = (np.arange(20_000) + 0.5) / 20_000
    samples = stats.norm.ppf(grid)[:, None].repeat(3, axis=1)
    m = np.array([MIN_CLUSTERS, 12.5, 1e6])
    low, high = expanded_interval(samples, m, m - 1)
    assert high == pytest.approx(stats.t.ppf(0.975, m - 1) * np.sqrt(m / (m - 1)), rel=4e-3)
    assert low == pytest.approx(-high)
    assert np.isnan(expanded_interval(samples, MIN_CLUSTERS - 0.01, 9)).all()
    assert np.isnan(expanded_interval(samples[:0], m, m)).all()


def test_expanded_percentiles_leave_out_what_is_no_number():
    samples = np.array([[1.0, np.nan], [2.0, np.inf], [np.nan, np.nan], [3.0, np.nan]])
    low, high = expanded_interval(samples, 1e9, 1e9, 0.5)
    assert (low[0], high[0]) == pytest.approx((1.5, 2.5))
    assert np.isnan([low[1], high[1]]).all()


def test_the_effective_number_of_clusters():
    assert intervals.effective_number(np.array([[4, 1], [4, 0], [4, 0], [0, 0]])).tolist() == [3, 1]
    assert intervals.effective_number(np.zeros((3, 2))).tolist() == [0, 0]
    assert intervals.effective_number(np.array([100, 1, 1])) == pytest.approx(102**2 / 10_002)


def test_the_degrees_of_freedom_of_clusters_are_those_of_their_variance():
    assert intervals.freedom_of(np.full((7, 1), 3)).tolist() == [6]
    # The mean of squares of normal figures, in proportion to the sizes, varies as chi squared of that many degrees (and one more).
    sizes, rng = np.array([1, 2, 2, 5, 9, 10.0]), np.random.default_rng(0)
    squares = np.square(sizes * rng.normal(size=(200_000, len(sizes)))).sum(axis=1)
    assert 2 * squares.mean() ** 2 / squares.var() == pytest.approx(intervals.freedom_of(sizes) + 1, rel=0.02)
