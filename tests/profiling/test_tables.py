"""Profiles equal a count by the definitions, however the stream is cut; intervals cover what they should."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.attribution.bootstrap import expanded_interval
from recallkit.counting.table import CountsTable
from recallkit.errors import UserError
from recallkit.profiling import histogram_kernels
from recallkit.profiling import tables as stage
from recallkit.profiling.histogram_kernels import KIND_CONTENT, KIND_REPEATED
from recallkit.profiling.tables import (
    FEW_DISTANCES,
    FEW_DOCUMENTS,
    NUM_GROUPS,
    OTHER_SOURCES,
    LabelledRows,
    Labeller,
    ProfileSums,
    ProfileTables,
    content_mask,
    make_tables,
)

VOCAB = 6


@pytest.fixture(scope="module", autouse=True)
def fewer_resamples() -> Iterator[None]:
    before, stage._NUM_RESAMPLES = stage._NUM_RESAMPLES, 300
    yield
    stage._NUM_RESAMPLES = before


def counts_table(counts: dict[tuple[int, int], int]) -> CountsTable:
    keys = sorted(counts)
    packed = np.array([first << 32 | second for first, second in keys], np.uint64)
    found = np.array([counts[key] for key in keys], np.uint64)
    return CountsTable(Path("made-up"), {"num_tokens": 1000}, packed, found, np.arange(VOCAB, dtype=np.uint32), np.ones(VOCAB, np.uint64))


class Case:
    """Sequences of (id, document), a content mask, training counts: and what they hold, counted by the definitions."""

    def __init__(
        self, seq_len: int, sequences: list[list[tuple[int, int]]], mask: list[bool], counts: dict[tuple[int, int], int], largest: int
    ):
        self.seq_len, self.sequences, self.mask, self.largest = seq_len, sequences, mask, largest
        self.labeller = Labeller(np.array(mask), counts_table(counts), largest)
        self.figures: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.distances: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        self.places: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        self.documents: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for sequence in sequences:
            self._count(sequence, counts)

    def _count(self, sequence: list[tuple[int, int]], counts: dict[tuple[int, int], int]) -> None:
        seen: dict[tuple[int, int], list[int]] = {}
        for position in range(1, len(sequence)):
            bigram = (sequence[position - 1][0], sequence[position][0])
            earlier = seen.setdefault(bigram, [])
            content = self.mask[bigram[0]] and self.mask[bigram[1]]
            facts = {"tokens": True, "content_tokens": content, "repeated": bool(earlier), "content_repeated": bool(earlier) and content}
            facts["ar_hits"] = bool(earlier) and counts.get(bigram, 0) <= self.largest
            facts["distinct"] = facts["content_repeated"] and len(earlier) == 1
            true = [name for name, holds in facts.items() if holds]
            bucket = (position - 1) * 32 // self.seq_len
            for source in ("ALL", source_of(sequence[position][1])):
                self.documents[source][sequence[position][1]] += 1
                self.figures[source].update(true)
                self.places[source, bucket].update(true)
                if earlier:
                    self.distances[source, position - earlier[-1]].update(true)
            earlier.append(position)

    def blocks(self, sizes: list[int]) -> list[LabelledRows]:
        """The sequences labelled a block at a time, blocks of `sizes` in turn."""
        labelled, start = [], 0
        while start < len(self.sequences):
            block = self.sequences[start : start + sizes[len(labelled) % len(sizes)]]
            start += len(block)
            flat = [entry for sequence in block for entry in sequence]
            documents = np.array([document for _, document in flat], np.int32)
            sources = {int(document): source_of(document) for document in set(documents.tolist())}
            offsets = np.cumsum([0, *map(len, block)])
            labelled.append(self.labeller.label(np.array([i for i, _ in flat], np.uint16), offsets, documents, sources))
        return labelled


def source_of(document: int) -> str:
    return f"source {document % 3}"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    seq_len = draw(st.integers(1, 70))
    lengths = draw(st.lists(st.integers(2, seq_len + 1), min_size=1, max_size=6))
    document, sequences = draw(st.integers(0, 5)), []
    for length in lengths:
        steps = draw(st.lists(st.sampled_from([0, 0, 0, 0, 1, 2]), min_size=length, max_size=length))
        sequence = []
        for token, step in zip(draw(st.lists(st.integers(0, VOCAB - 1), min_size=length, max_size=length)), steps, strict=True):
            document += step
            sequence.append((token, document))
        sequences.append(sequence)
    mask = draw(st.lists(st.booleans(), min_size=VOCAB, max_size=VOCAB))
    bigram = st.tuples(st.integers(0, VOCAB - 1), st.integers(0, VOCAB - 1))
    return Case(seq_len, sequences, mask, draw(st.dictionaries(bigram, st.integers(1, 9), min_size=1)), draw(st.integers(0, 9)))


def summed(case: Case, sizes: list[int]) -> ProfileSums:
    sums = ProfileSums(case.seq_len)
    for rows in case.blocks(sizes):
        sums.add(rows)
    return sums


@settings(max_examples=40)
@given(case=cases(), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_tables_equal_a_count_by_the_definitions(case, sizes):
    tables = make_tables(summed(case, sizes), knows_hits=True)
    by_source = {row["source"]: row for row in tables.profile.iter_rows(named=True)}
    assert by_source.keys() == case.figures.keys()
    for source, figures in case.figures.items():
        row = by_source[source]
        for name in ("tokens", "content_tokens", "repeated", "content_repeated", "ar_hits"):
            assert row[name] == figures[name], (source, name)
        sizes = case.documents[source].values()
        assert (row["documents"], row["effective_documents"]) == (len(sizes), sum(sizes) ** 2 / sum(n * n for n in sizes))
        assert row["repeated_bigrams"] == pytest.approx(figures["content_repeated"] / figures["tokens"] * case.seq_len)
        assert row["distinct_bigrams"] == pytest.approx(figures["distinct"] / figures["tokens"] * case.seq_len)
        assert row["repeated_share"] == pytest.approx(figures["repeated"] / figures["tokens"])
        assert row["ar_hit_share"] == pytest.approx(figures["ar_hits"] / figures["tokens"])
    found = {(r["source"], r["distance"]): (r["repeated"], r["content"], r["ar_hits"]) for r in tables.distances.iter_rows(named=True)}
    assert found == {k: (v["repeated"], v["content_repeated"], v["ar_hits"]) for k, v in case.distances.items()}
    placed = ("tokens", "content_tokens", "repeated", "content_repeated", "ar_hits")
    for row in tables.positions.iter_rows(named=True):
        bucket = (row["low"] - 1) * 32 // case.seq_len
        assert (row["high"] - 1) * 32 // case.seq_len == bucket < row["high"] * 32 // case.seq_len
        assert [row[name] for name in placed] == [case.places[row["source"], bucket][name] for name in placed]
        assert row["repeated_share"] == pytest.approx(row["repeated"] / row["tokens"])
    assert len(tables.positions) == len(case.places)


@settings(max_examples=25)
@given(case=cases(), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3), cut=st.integers(0, 6), data=st.data())
def test_where_a_stream_is_cut_does_not_matter(case, sizes, cut, data, tmp_path_factory):
    whole = summed(case, [len(case.sequences)])
    part, state, resumed = tmp_path_factory.getbasetemp() / "part", {}, ProfileSums(case.seq_len)
    blocks = case.blocks(sizes)
    for number, rows in enumerate(blocks):
        if number == min(cut, len(blocks) - 1):
            state = resumed.save(part)
            resumed = ProfileSums(case.seq_len)
            resumed.restore(part, state)
        resumed.add(rows)
    assert same(make_tables(whole, knows_hits=True), make_tables(resumed, knows_hits=True))


def same(one: ProfileTables, other: ProfileTables) -> bool:
    names = ("distances", "positions", "fits", "profile")
    return all(getattr(one, name).equals(getattr(other, name)) for name in names)


def synthetic(rng: np.random.Generator, num_documents: int, length: int, source: str = "made up", *, seq_len: int = 128) -> LabelledRows:
    """Documents of a sequence each, whose share of repeated tokens is their own (Beta(2, 6)), and distances 1..seq_len - 1."""
    rates = np.repeat(rng.beta(2, 6, num_documents), length)
    repeated = rng.random(len(rates)) < rates
    p = np.arange(1, seq_len) ** -1.3
    distances = rng.choice(np.arange(1, seq_len), len(rates), p=p / p.sum())
    return LabelledRows(
        names=[source],
        source=np.zeros(len(rates), np.int32),
        document=np.repeat(np.arange(num_documents, dtype=np.int32), length),
        position=np.tile(np.arange(1, length + 1), num_documents).astype(np.int32),
        content=np.ones(len(rates), bool),
        distance=np.where(repeated, distances, -1).astype(np.int32),
        occurrences=repeated.astype(np.int32),
        ar_hit=np.zeros(len(rates), bool),
    )


def test_intervals_cover():
    rng, covered, num_trials = np.random.default_rng(3), Counter(), 80
    for _ in range(num_trials):
        sums = ProfileSums(128, 1)
        sums.add(synthetic(rng, 200, 40))
        tables = make_tables(sums, knows_hits=False, x_min=1)
        row, fit = tables.profile.row(0, named=True), tables.fits.filter(pl.col("kind") == "content").row(0, named=True)
        covered["share"] += row["repeated_share_ci_low"] <= 0.25 <= row["repeated_share_ci_high"]
        covered["bigrams"] += row["repeated_bigrams_ci_low"] <= 0.25 * 128 <= row["repeated_bigrams_ci_high"]
        covered["alpha"] += fit["alpha_ci_low"] <= 1.3 <= fit["alpha_ci_high"]
        assert fit["alpha_ci_low"] < fit["alpha"] < fit["alpha_ci_high"]
    # Of 80 trials of 95 % fewer than 69 cover once in thousands; the bootstrap may fall a little short.
    assert all(number >= 69 for number in covered.values()), covered
    assert all(number < num_trials for number in covered.values()), covered


def test_intervals_of_few_documents_cover():
    """Of the fewest that have one, too: the plain percentile interval of 8 documents covers nine times in ten."""
    rng, covered, num_trials = np.random.default_rng(4), 0, 120
    for _ in range(num_trials):
        sums = ProfileSums(16)
        sums.add(synthetic(rng, 5, 15, seq_len=16))
        row = make_tables(sums, knows_hits=False).profile.row(0, named=True)
        covered += row["repeated_share_ci_low"] <= 0.25 <= row["repeated_share_ci_high"]
    assert 0.88 < covered / num_trials < 0.995


def test_documents_not_tokens_are_resampled():
    """Tokens that a document shares its rate with are no independent draws: the interval must be that of documents."""
    sums = ProfileSums(128)
    sums.add(synthetic(np.random.default_rng(4), 256, 120))
    row = make_tables(sums, knows_hits=False).profile.row(0, named=True)
    width = row["repeated_share_ci_high"] - row["repeated_share_ci_low"]
    between_documents = 2 * 1.96 * math.sqrt(2 * 6 / (8**2 * 9) / 256)
    between_tokens = 2 * 1.96 * math.sqrt(0.25 * 0.75 / (256 * 120))
    assert width == pytest.approx(between_documents, rel=0.35)
    assert width > 3 * between_tokens


def test_of_few_documents_each_is_drawn_by_itself():
    """Of 20 documents 20 are drawn, as a plain bootstrap draws them, and not groups of which most are empty or hold several."""
    sums, rows = ProfileSums(128), synthetic(np.random.default_rng(10), 20, 30)
    sums.add(rows)
    row = make_tables(sums, knows_hits=False).profile.row(0, named=True)
    repeated = (rows.distance > 0).reshape(20, 30).sum(axis=1)
    draws = np.random.Generator(np.random.PCG64(0)).integers(0, 20, size=(stage._NUM_RESAMPLES, 20))
    bounds = expanded_interval(repeated[draws].sum(axis=1) / (20 * 30), 20, 19)
    assert (row["repeated_share_ci_low"], row["repeated_share_ci_high"]) == pytest.approx(tuple(bounds))
    assert (row["documents"], row["effective_documents"]) == (20, pytest.approx(20))


def test_each_token_is_of_its_own_document():
    """A sequence's tokens are drawn with their documents, not with the one in which the sequence begins."""
    sums, rows = ProfileSums(128), synthetic(np.random.default_rng(10), 12, 30)
    shifted = replace(rows, document=np.concatenate([rows.document[:15], rows.document[:-15]]))
    sums.add(shifted)
    [_, counts] = sums.named()[1].counts
    for document in range(12):
        own = shifted.document == document
        assert counts[document, histogram_kernels.TOKENS] == own.sum()
        assert counts[document, histogram_kernels.REPEATED] == (shifted.distance[own] > 0).sum()


def test_groups_of_many_documents_are_drawn_by_lot():
    """Where sources alternate no group has one source alone, and each has about as many documents."""
    documents = np.arange(100 * NUM_GROUPS)
    groups = stage.group_of(documents)
    assert groups[:NUM_GROUPS].tolist() == list(range(NUM_GROUPS))
    sizes = np.bincount(groups, minlength=NUM_GROUPS)
    assert 50 < sizes.min() < 100 < sizes.max() < 150
    for period in (2, 3, NUM_GROUPS):
        assert sizes.std() / 2 < np.std([period * np.bincount(groups[::period], minlength=NUM_GROUPS)]) / np.sqrt(period) < 2 * sizes.std()


def test_alternating_sources_do_not_narrow_the_interval():
    """Documents of two kinds in turn, many times as many as groups: groups by number would be of one kind each, or of both equally."""
    rng, num_documents = np.random.default_rng(5), 8 * NUM_GROUPS
    kinds = np.arange(num_documents) % 2
    rows = synthetic(rng, num_documents, 40)
    repeated = rng.random(len(rows.distance)) < np.repeat(np.where(kinds, 0.05, 0.45), 40)
    rows = replace(rows, distance=np.where(repeated, 1, -1).astype(np.int32), occurrences=repeated.astype(np.int32))
    sums = ProfileSums(128)
    sums.add(rows)
    row = make_tables(sums, knows_hits=False).profile.row(0, named=True)
    of_document = repeated.reshape(num_documents, 40).mean(axis=1)
    width = 2 * 1.96 * of_document.std() / math.sqrt(num_documents)
    assert row["repeated_share_ci_high"] - row["repeated_share_ci_low"] == pytest.approx(width, rel=0.25)


def test_few_documents_have_no_interval():
    sums = ProfileSums(128)
    many, few = synthetic(np.random.default_rng(5), 300, 40, "many"), synthetic(np.random.default_rng(6), 4, 120, "few")
    sums.add(many)
    sums.add(replace(few, document=few.document + 300))
    long = np.repeat(np.arange(304, 310, dtype=np.int32), [400, 16, 16, 16, 16, 16])
    sums.add(replace(synthetic(np.random.default_rng(7), 4, 120, "one long"), document=long))
    rows = {row["source"]: row for row in make_tables(sums, knows_hits=False).profile.iter_rows(named=True)}
    assert (rows["few"]["documents"], rows["one long"]["documents"]) == (4, 6)
    for source in ("few", "one long"):
        assert rows[source]["effective_documents"] < 5
        assert rows[source]["note"] == FEW_DOCUMENTS
        assert rows[source]["repeated_share_ci_low"] is None is rows[source]["repeated_bigrams_ci_high"]
    assert (rows["many"]["documents"], rows["many"]["note"], rows["ALL"]["documents"]) == (300, "", 310)
    assert rows["many"]["repeated_share_ci_low"] < rows["many"]["repeated_share"] < rows["many"]["repeated_share_ci_high"]


def test_fits_are_those_of_the_histograms():
    sums = ProfileSums(128, 3)
    sums.add(synthetic(np.random.default_rng(7), 300, 100, "one"))
    sums.add(synthetic(np.random.default_rng(8), 100, 100, "two"))
    tables = make_tables(sums, knows_hits=False, x_min=3)
    assert tables.fits["kind"].unique().sort().to_list() == ["content", "repeated"]
    for row in tables.fits.iter_rows(named=True):
        own = tables.distances.filter(pl.col("source") == row["source"])
        spread = np.repeat(own["distance"].to_numpy(), own["content"].to_numpy())
        assert row["distances"] == spread.size
        assert row["median_distance"] == sorted(spread)[(spread.size - 1) // 2]
        assert row["tail_tokens"] == np.count_nonzero(spread >= 3)
        assert row["tail_share"] == pytest.approx(np.mean(spread >= 3))
        assert (row["x_min"], row["x_max"]) == (3, 127)
        assert abs(row["alpha"] - 1.3) < 0.1
        assert row["alpha_ci_low"] < row["alpha"] < row["alpha_ci_high"]


def test_tail_sums_of_groups_are_those_of_the_histogram():
    sums = ProfileSums(128, 48)
    sums.add(synthetic(np.random.default_rng(9), 300, 100))
    [_, own], found = sums.named()
    assert own == "made up"
    for kind in (KIND_REPEATED, KIND_CONTENT):
        for cut, (low, high) in enumerate(zip(sums.cuts, [*sums.cuts[1:], 128], strict=True)):
            part = found.distances[1, kind, low:high]
            assert found.cut_counts[1, kind, :, cut].sum() == part.sum()
            assert found.cut_logs[1, kind, :, cut].sum() == pytest.approx(part @ np.log(np.arange(low, high)))
    assert 48 in sums.cuts


def test_sources_past_the_first_are_one_row(monkeypatch):
    monkeypatch.setattr(stage, "MAX_RESAMPLED_SOURCES", 2)
    sums = ProfileSums(128)
    for number, (name, documents) in enumerate([("c", 9), ("a", 12), ("b", 20), ("c", 2), ("b", 1), (OTHER_SOURCES, 3)]):
        sums.add(synthetic(np.random.default_rng(number), documents, 10, name))
    profile = make_tables(sums, knows_hits=False).profile
    rows = list(zip(profile["source"], profile["tokens"], strict=True))
    assert rows == [("ALL", 470), ("a", 120), ("c", 110), (OTHER_SOURCES, 240)]
    assert sums.has_others


def test_without_training_counts_nothing_is_said_of_hits():
    sums = ProfileSums(128)
    sums.add(synthetic(np.random.default_rng(1), 100, 40))
    tables = make_tables(sums, knows_hits=False)
    assert tables.profile["ar_hits"].null_count() == len(tables.profile) == tables.profile["ar_hit_share"].null_count()
    assert tables.distances["ar_hits"].null_count() == len(tables.distances)
    assert tables.positions["ar_hit_share"].null_count() == len(tables.positions)
    assert "ar_hit" not in tables.fits["kind"].to_list()


def test_no_fit_says_why():
    sums = ProfileSums(16)
    sums.add(synthetic(np.random.default_rng(1), 10, 10, seq_len=16))
    fits = make_tables(sums, knows_hits=True).fits
    assert fits["note"].to_list() == [FEW_DISTANCES] * len(fits)
    assert fits["alpha"].null_count() == len(fits)


@pytest.mark.parametrize("keep", [5, 300, 4000])
def test_a_part_cut_short_is_told(tmp_path, keep):
    sums = ProfileSums(16)
    state = sums.save(tmp_path / "part")
    (tmp_path / "part").write_bytes((tmp_path / "part").read_bytes()[:keep])
    with pytest.raises(UserError, match="damaged part"):
        ProfileSums(16).restore(tmp_path / "part", state)


@pytest.mark.parametrize("change", [{"distance": 128}, {"position": 129}, {"position": 0}, {"distance": -2}])
def test_what_does_not_fit_the_sequence_is_refused(change):
    rows = synthetic(np.random.default_rng(1), 3, 10)
    [(name, value)] = change.items()
    getattr(rows, name)[5] = value
    with pytest.raises(ValueError, match="beyond sequences"):
        ProfileSums(128).add(rows)


def test_a_damaged_part_is_told(tmp_path):
    (tmp_path / "part").write_bytes(b"PK\x03\x04 and nothing else")
    with pytest.raises(UserError, match="damaged part"):
        ProfileSums(16).restore(tmp_path / "part", {"sources": [], "num_tokens": 0, "has_others": False, "open": None})


def test_content():
    texts = ["the", " The ", "theory", "\n\n", ".", " ),", "'s", "3", "é", "\ufffd", "", "_x", "中", "__", "<|endoftext|>", "’"]
    mask = content_mask(texts, {"the", "'s"}, {14})
    kept = [text for text, content in zip(texts, mask, strict=True) if content]
    assert kept == ["theory", "3", "é", "_x", "中"]
    assert content_mask(texts, set()).sum() == len(kept) + 4


def test_each_token_has_a_source_of_its_own():
    """None of two hundred thousand is looked for among all tokens."""
    rows = synthetic(np.random.default_rng(11), 400, 500)
    number = np.arange(len(rows.source), dtype=np.int32)
    own = replace(rows, names=[f"source {code}" for code in number], source=number[::-1].copy())
    sums = ProfileSums(512)
    sums.add(own)  # took minutes
    assert sums.sources == [f"source {code}" for code in number[::-1][: stage.MAX_RESAMPLED_SOURCES]]
