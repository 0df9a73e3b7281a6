"""The gap's tables: every figure against the oracle's, what is void, and files that do not fit."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.attribution import tables
from recallkit.attribution.tables import attribute_gap
from recallkit.errors import UserError
from recallkit.measure import labelled, shares
from recallkit.measure.labelled import CLUSTERS
from recallkit.slicing.definitions import parse_slices
from tests.attribution.corpus import Corpus, random_corpus
from tests.attribution.oracle import EVERY, RESAMPLES, Oracle
from tests.planted import TOKENIZER

REQUESTED = ["copy:k3", "far=distance > 3 AND source <> 'b'", "none=token < 0"]
SLICES = {
    "all": EVERY,
    "ar_hit": pl.col("ar_hit"),
    "other": ~pl.col("ar_hit"),
    "repeated": pl.col("repeated"),
    "copy:k3": pl.col("match_length") >= 2,
    "far": (pl.col("distance") > 3) & (pl.col("source") != "b"),
    "none": pl.col("token") < 0,
}
KINDS = {"bigram repeated": "bigram", "token repeated": "token", "token new": "new"}


def of_source(row):
    return EVERY if row["source"] == "ALL" else pl.col("source") == row["source"]


def of_class(row):
    kind, how_often = row["slice"].split(", ")
    is_rare = pl.col("train_count") <= 5
    return (pl.col("context_class") == KINDS[kind]) & (is_rare == (how_often == "rare"))


def between(column, row):
    return pl.col(column).is_between(row["low"], row["high"])


def in_bucket(column):
    return lambda row: SLICES[row["slice"]] & between(column, row)


HAS = {
    "gap": lambda row: of_source(row) & SLICES[row["slice"]],
    "by_count": lambda row: (pl.col("repeated") == row["repeated"]) & between("train_count", row),
    "by_threshold": lambda row: pl.col("repeated") & (pl.col("train_count") <= row["threshold"]),
    "by_distance": in_bucket("distance"),
    "by_match": in_bucket("match_length"),
    "by_position": in_bucket("position"),
    "by_partition": of_class,
}
"""By table the tokens of a row, by what names it."""


def scored(corpus, seed):
    """Files of a reference that recalls, of a model that recalls less, and of noise."""
    rng, repeated = np.random.default_rng(seed), np.array([row["repeated"] for row in corpus.rows])
    nll, noise = rng.gamma(1.2, 2, (2, len(repeated)))
    models = {
        "ref": 1 + nll * (1 - 0.9 * repeated),
        "less": 1 + nll * (1 - 0.5 * repeated),
        "noise": noise,
    }
    return [corpus.score(name, nlls) for name, nlls in models.items()]


def attributed(corpus, paths, **options):
    slices = parse_slices(REQUESTED)
    return attribute_gap(
        corpus.path, paths[0], paths[1:], slices=slices, num_resamples=RESAMPLES, **options
    )


def assert_row(oracle, row, part, whole):
    """Whether a row has the oracle's figures of these tokens, to nine digits."""
    expected = oracle.figures(part, whole, ["ref", "less", "noise"].index(row["model"]))
    figures = {
        name: math.nan if row[name] is None else row[name] for name in expected if name in row
    }
    expected = {name: expected[name] for name in figures}
    assert figures == pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True), row


def assert_as_the_oracle_has_it(corpus, tables, paths, cluster="document", *, clean=False):
    oracle = Oracle(corpus.path, paths, cluster, clean=clean)
    for table, has in HAS.items():
        for row in tables.frames()[table].to_dicts():
            assert_row(oracle, row, has(row), of_source(row) if table == "gap" else EVERY)
    frames = {name: frame.filter(model="less") for name, frame in tables.frames().items()}
    sources = ["ALL", *sorted(oracle.tokens["source"].unique())]
    assert frames["gap"].select("source", "slice").rows() == [
        (source, name) for source in sources for name in SLICES
    ]
    for name in ("by_count", "by_match", "by_position", "by_partition", "by_document"):
        assert frames[name]["tokens"].sum() == len(oracle.tokens), "no token is missing"
    assert frames["by_distance"]["tokens"].sum() == oracle.tokens["repeated"].sum()
    by_document = oracle.tokens.group_by("document", "source", maintain_order=True).agg(
        pl.len(),
        pl.col("ar_hit", "nll_0", "nll_1").sum(),
        pl.col("nll_0", "nll_1").filter("ar_hit").sum().name.prefix("ar_"),
    )
    found = frames["by_document"].drop("reference", "model").rows()
    assert found == [(*row[:2], *map(pytest.approx, row[2:])) for row in by_document.rows()]


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("clean", [False, True])
def test_every_figure_of_every_table_is_the_oracles(tmp_path, monkeypatch, cluster, clean):
    corpus = random_corpus(tmp_path, 1, sequences=60)
    paths = scored(corpus, 2)
    tables = attributed(corpus, paths, cluster=cluster, clean=clean)
    assert_as_the_oracle_has_it(corpus, tables, paths, cluster, clean=clean)
    hits = tables.gap.filter(source="ALL", slice="ar_hit").row(0, named=True)
    assert (hits["retained_ci_low"] is None) == (cluster == "source"), "three sources are too few"
    again = attributed(corpus, paths, cluster=cluster, clean=clean)
    assert all(frame.equals(again.frames()[name]) for name, frame in tables.frames().items()), (
        "bit for bit"
    )
    monkeypatch.setattr(labelled, "_BATCH_ROWS", 100)
    in_parts = attributed(corpus, paths, cluster=cluster, clean=clean).frames()
    for name, frame in tables.frames().items():
        assert frame.select(~cs.float()).equals(in_parts[name].select(~cs.float()))
        numbers = (of.select(cs.float()).to_numpy() for of in (frame, in_parts[name]))
        np.testing.assert_allclose(
            *numbers, rtol=1e-12, err_msg="batches change the order of sums alone"
        )


def test_models_that_are_not_read_side_by_side_are_still_judged_together(tmp_path, monkeypatch):
    """One of them leaves out positions, which are then left out of all; Holm's procedure is over
    all."""
    corpus = random_corpus(tmp_path, 1, sequences=60)
    rng = np.random.default_rng(3)
    nll = rng.gamma(1.2, 2, len(corpus.rows))
    noise = rng.normal(0, 1, (6, len(nll)))
    facts = {5: {"read_exactly": 2}}
    paths = [
        corpus.score(f"m{place}", 9 + nll + 0.02 * place + of, **facts.get(place, {}))
        for place, of in enumerate(noise)
    ]
    together = attributed(corpus, paths).frames()
    assert together["gap"]["is_distinct"].n_unique() > 1
    assert together["by_document"].filter(model="m1")["tokens"].sum() < len(nll)
    monkeypatch.setattr(tables, "MOST_AT_ONCE", 2)
    apart = attributed(corpus, paths).frames()
    assert all(frame.equals(apart[name]) for name, frame in together.items())


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(2, 9))
def test_so_is_every_figure_of_any_small_text(tmp_path_factory, seed, sequences, length):
    corpus = random_corpus(
        tmp_path_factory.mktemp("small"), seed, sequences=sequences, length=length
    )
    paths = scored(corpus, seed)
    assert_as_the_oracle_has_it(corpus, attributed(corpus, paths), paths)


# ------------------------------------------------------------------------------------- what is void


FEW, NO_MORE = (
    "effectively {:.1f} documents; 5 are needed".format,
    "the overall gap cannot be distinguished from zero",
)
# Nats above the reference on the first token of each document and on its second, an AR hit, in even
# documents and in odd ones;
# documents; those with an AR hit; the notes on AR hits and on the other tokens.
NOTES = {
    "ordinary": ((1, 1), (0.5, 0.5), 10, 10, "", ""),
    "a lead": ((-1, -1), (-0.5, -0.5), 10, 10, "", ""),
    "above 100 %": ((3, 3), (-1, -1), 10, 10, "", ""),
    "no gap": ((0, 0), (0, 0), 10, 10, shares.NO_GAP, shares.NO_GAP),
    "cancels": ((1, 1), (-1, -1), 10, 10, shares.NO_GAP, shares.NO_GAP),
    "may be zero": ((3, -2), (3, -2), 10, 10, NO_MORE, NO_MORE),
    "few documents": (
        (1, 1),
        (2, 2),
        4,
        4,
        f"all tokens come from {FEW(4)}",
        f"all tokens come from {FEW(4)}",
    ),
    "hits of few": ((1, 1), (1, 1), 20, 2, f"AR hits come from {FEW(2)}", ""),
    "no hits": ((1, 1), (1, 1), 10, 0, shares.NO_HITS, shares.ALL_TOKENS),
    "like a guess": ((9, 9), (9, 9), 10, 10, shares.MODEL_LIKE_UNIFORM, shares.MODEL_LIKE_UNIFORM),
}


@pytest.mark.parametrize("case", NOTES)
def test_why_a_share_is_void(tmp_path, case):
    hits, others, documents, with_hits, of_hits, of_others = NOTES[case]
    back = [None, 1]
    tokens = [
        (d, p + 1, "web", back[p] if d < with_hits else None, 5)
        for d in range(documents)
        for p in (0, 1)
    ]
    corpus = Corpus(tmp_path, tokens, tokenizer=TOKENIZER | {"vocab_size": 10_000})
    model = [5.0 + (others, hits)[p][d % 2] for d in range(documents) for p in (0, 1)]
    paths = corpus.score("reference", [5.0] * 2 * documents), corpus.score("model", model)
    tables = attribute_gap(corpus.path, paths[0], paths[1:], num_resamples=100)
    rows = {row["slice"]: row for row in tables.gap.filter(source="ALL").to_dicts()}
    assert (rows["ar_hit"]["note"], rows["other"]["note"]) == (of_hits, of_others)
    assert [row["void"] for row in rows.values()] == [bool(row["note"]) for row in rows.values()]
    assert [shares.is_void(row) for row in rows.values()] == [row["void"] for row in rows.values()]
    assert tables.by_threshold.filter(threshold=1250)["note"].to_list() == [of_hits], (
        "of the same tokens"
    )


@pytest.mark.parametrize("unlike", [1, 2])
def test_a_share_that_few_documents_decide_may_be_that_of_the_others_or_of_these(tmp_path, unlike):
    # Of 50 documents, in so many nearly the whole gap is elsewhere, in the others half of it and
    # more is in AR hits: other
    # text may have none of them, or three times as many.
    tokens = [(d, p, "web", 1 if p == 2 else None, 5) for d in range(50) for p in (1, 2)]
    corpus, number = Corpus(tmp_path, tokens), np.arange(50)
    gaps = np.stack([np.where(number < unlike, 25, 0.2 * (number % 3)), np.ones(50)], axis=1)
    paths = corpus.score("reference", np.ones(100)), corpus.score("model", 1 + gaps)
    row = attribute_gap(corpus.path, paths[0], paths[1:]).gap.row(1, named=True)
    few, others = gaps[:unlike].sum(axis=0), gaps[unlike:].sum(axis=0)
    without, thrice = ((others + times * few)[1] / (others + times * few).sum() for times in (0, 3))
    assert (
        row["gap_share_ci_low"]
        < thrice
        < row["gap_share"]
        < without
        < row["gap_share_ci_high"] + 0.01
    )


def test_sources_beyond_the_largest_are_one_row_and_all_is_still_of_every_source(
    tmp_path, monkeypatch
):
    corpus = random_corpus(tmp_path, 1, sequences=60)
    paths = scored(corpus, 2)
    every = attributed(corpus, paths)
    monkeypatch.setattr("recallkit.measure.sums.MAX_RESAMPLED_SOURCES", 1)
    few = attributed(corpus, paths)
    assert few.gap["source"].unique(maintain_order=True).to_list() == ["ALL", "a", "other sources"]
    others = pl.col("source") != "a"
    for row in few.gap.filter(source="other sources").to_dicts():
        assert_row(Oracle(corpus.path, paths), row, SLICES[row["slice"]] & others, others)
    own = pl.col("source").is_in(["ALL", "a"])
    assert few.gap.filter(own).drop("is_distinct").equals(every.gap.filter(own).drop("is_distinct"))


def test_thresholds_have_those_of_the_papers_and_of_the_labels_and_end_above_the_largest_count(
    tmp_path,
):
    tokens = [(0, 1, "web", None, 0), (0, 2, "web", 1, 5)]
    for max_count, last in ((40, 1250), (2**51 + 1, 2**53 + 4), (2**64, 2**63 - 1)):
        corpus = Corpus(tmp_path / str(max_count), tokens, max_count=max_count)
        paths = corpus.score("reference", [1, 2]), corpus.score("model", [2, 1000])
        tables = attribute_gap(corpus.path, paths[0], paths[1:], num_resamples=0)
        assert tables.by_threshold.select("threshold", "tokens").rows()[-1] == (last, 1)
        if max_count == 40:
            assert tables.by_threshold["threshold"].to_list() == [
                0,
                1,
                2,
                4,
                8,
                10,
                20,
                40,
                80,
                160,
                1250,
            ]
            assert tables.by_threshold["tokens"].to_list() == [0] * 4 + [1] * 7
    assert tables.gap["ppl_model"].to_list()[1] == math.inf
    assert tables.gap["retained_ci_low"].null_count() == tables.gap.height


def test_bits_per_byte_are_counted_by_hand(tmp_path):
    tokens = [
        (0, 1, "web", None, 5),
        (0, 2, "web", 1, 5),
        (1, 1, "code", None, 5),
        (1, 2, "code", 1, 5),
    ]
    corpus = Corpus(tmp_path, tokens, num_bytes=[["ALL", 40, 10], ["web", 30, 5]])
    paths = corpus.score("reference", [1, 2, 3, 4]), corpus.score("model", [2, 3, 3, 4])
    gap = attribute_gap(corpus.path, paths[0], paths[1:], num_resamples=0).gap
    rows = {
        (row["source"], row["slice"]): (row["bytes"], row["bpb_reference"], row["bpb_model"])
        for row in gap.to_dicts()
    }
    bit = pytest.approx(1 / math.log(2))
    assert rows["ALL", "all"] == (40, 10 / 40 * bit.expected, pytest.approx(12 / 40 * bit.expected))
    assert rows["ALL", "ar_hit"] == (
        10,
        pytest.approx(6 / 10 * bit.expected),
        pytest.approx(7 / 10 * bit.expected),
    )
    assert rows["web", "other"] == (
        25,
        pytest.approx(1 / 25 * bit.expected),
        pytest.approx(2 / 25 * bit.expected),
    )
    assert rows["ALL", "repeated"] == rows["code", "all"] == (None, None, None), (
        "whose bytes were not counted"
    )


# ---------------------------------------------------------------------------- files that do not fit


def test_what_does_not_fit_is_refused_and_named(tmp_path):
    tokens = [(0, 1, "web", None, 5), (0, 2, "web", 1, 5)]
    corpus = Corpus(tmp_path / "a", tokens)
    reference, model = corpus.score("reference", [1, 2]), corpus.score("model", [2, 3])
    others = corpus.score("others", [2, 3], sequences_digest="other")
    infinite = corpus.score("infinite", [math.nan, 3])
    empty = Corpus(tmp_path / "c", [])
    for labels, models, problem in (
        (corpus.path, [others], r"others.parquet: scores of other sequences.*recallkit score"),
        (corpus.path, [infinite], r"infinite.parquet: contains NLLs that are not finite numbers"),
        (corpus.path, [corpus.path], "a table of tokens, not of scores"),
        (corpus.path, [model, model], "model: given twice"),
        (corpus.path, [], "no model to compare"),
        (model, [model], "a table of scores, not of tokens"),
        (empty.path, [model], "contains no tokens"),
        (tmp_path / "absent.parquet", [model], "no such table"),
    ):
        with pytest.raises(UserError, match=problem):
            attribute_gap(labels, reference, models)
    with pytest.raises(UserError, match="every token is in the training text"):
        attribute_gap(
            Corpus(tmp_path / "d", tokens, in_training=[13, 50]).path,
            reference,
            [model],
            clean=True,
        )
    for options in ({"clean": True}, {"slices": parse_slices(["new=in_training = 0"])}):
        with pytest.raises(
            UserError,
            match=r"no hashes of n-grams.*count the training text again with --force, then slice again",
        ):
            attribute_gap(corpus.path, reference, [model], **options)
