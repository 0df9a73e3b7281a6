"""The tables of a profile equal a count by the definitions; intervals cover what they should, and
are of documents."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.profiling import tables as stage
from recallkit.profiling.tables import OTHER_SOURCES, ProfileTables, make_tables
from recallkit.profiling.words import content_mask

VOCAB = 6


def source_of(document: int) -> str:
    return f"source {document % 3}"


class Case:
    """Sequences of (id, document), a content mask, training counts: and what they hold, counted by
    the definitions."""

    def __init__(
        self,
        seq_len: int,
        sequences: list[list[tuple[int, int]]],
        mask: list[bool],
        counts: dict[tuple[int, int], int],
        largest: int,
    ):
        self.seq_len, self.mask = seq_len, mask
        self.rows: list[dict] = []
        self.figures: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.distances: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        self.places: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        self.documents: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for sequence in sequences:
            self._count(sequence, counts, largest)

    def _count(
        self, sequence: list[tuple[int, int]], counts: dict[tuple[int, int], int], largest: int
    ) -> None:
        seen: dict[tuple[int, int], list[int]] = {}
        for position in range(1, len(sequence)):
            bigram = (sequence[position - 1][0], sequence[position][0])
            document = sequence[position][1]
            earlier = seen.setdefault(bigram, [])
            content, distance = (
                self.mask[bigram[0]] and self.mask[bigram[1]],
                position - earlier[-1] if earlier else None,
            )
            facts = {
                "tokens": True,
                "content_tokens": content,
                "repeated": bool(earlier),
                "content_repeated": bool(earlier) and content,
            }
            facts["ar_hits"] = bool(earlier) and counts.get(bigram, 0) <= largest
            facts["distinct"] = facts["content_repeated"] and len(earlier) == 1
            true = [name for name, holds in facts.items() if holds]
            self.rows.append(
                {
                    "source": source_of(document),
                    "document": document,
                    "position": position,
                    "prev_token": bigram[0],
                    "token": bigram[1],
                }
                | {
                    "distance": distance,
                    "occurrences": len(earlier),
                    "repeated": bool(earlier),
                    "ar_hit": facts["ar_hits"],
                }
            )
            for source in ("ALL", source_of(document)):
                self.documents[source][document] += 1
                self.figures[source].update(true)
                self.places[source, (position - 1) * 32 // self.seq_len].update(true)
                if distance is not None:
                    self.distances[source, distance].update(true)
            earlier.append(position)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    seq_len = draw(st.integers(1, 70))
    lengths = draw(st.lists(st.integers(2, seq_len + 1), min_size=1, max_size=6))
    document, sequences = draw(st.integers(0, 5)), []
    for length in lengths:
        steps = draw(
            st.lists(st.sampled_from([0, 0, 0, 0, 1, 2]), min_size=length, max_size=length)
        )
        sequence = []
        for token, step in zip(
            draw(st.lists(st.integers(0, VOCAB - 1), min_size=length, max_size=length)),
            steps,
            strict=True,
        ):
            document += step
            sequence.append((token, document))
        sequences.append(sequence)
    mask = draw(st.lists(st.booleans(), min_size=VOCAB, max_size=VOCAB))
    bigram = st.tuples(st.integers(0, VOCAB - 1), st.integers(0, VOCAB - 1))
    return Case(
        seq_len,
        sequences,
        mask,
        draw(st.dictionaries(bigram, st.integers(1, 9), min_size=1)),
        draw(st.integers(0, 9)),
    )


@settings(max_examples=12)
@given(case=cases())
def test_tables_equal_a_count_by_the_definitions(case):
    tables = tables_of(
        pl.DataFrame(case.rows, schema=SCHEMA), seq_len=case.seq_len, mask=tuple(case.mask)
    )
    by_source = {row["source"]: row for row in tables.profile.iter_rows(named=True)}
    assert by_source.keys() == case.figures.keys()
    for source, figures in case.figures.items():
        row = by_source[source]
        for name in ("tokens", "content_tokens", "repeated", "content_repeated", "ar_hits"):
            assert row[name] == figures[name], (source, name)
        sizes = case.documents[source].values()
        assert (row["documents"], row["effective_documents"]) == (
            len(sizes),
            sum(sizes) ** 2 / sum(n * n for n in sizes),
        )
        assert row["repeated_bigrams"] == pytest.approx(
            figures["content_repeated"] / figures["tokens"] * case.seq_len
        )
        assert row["distinct_bigrams"] == pytest.approx(
            figures["distinct"] / figures["tokens"] * case.seq_len
        )
        assert row["repeated_share"] == pytest.approx(figures["repeated"] / figures["tokens"])
        assert row["ar_hit_share"] == pytest.approx(figures["ar_hits"] / figures["tokens"])
    result = {
        (r["source"], r["distance"]): (r["repeated"], r["content"], r["ar_hits"])
        for r in tables.distances.iter_rows(named=True)
    }
    assert result == {
        k: (v["repeated"], v["content_repeated"], v["ar_hits"]) for k, v in case.distances.items()
    }
    placed = ("tokens", "content_tokens", "repeated", "content_repeated", "ar_hits")
    for row in tables.positions.iter_rows(named=True):
        part = (row["low"] - 1) * 32 // case.seq_len
        assert (row["high"] - 1) * 32 // case.seq_len == part < row["high"] * 32 // case.seq_len
        assert [row[name] for name in placed] == [
            case.places[row["source"], part][name] for name in placed
        ]
        assert row["repeated_share"] == pytest.approx(row["repeated"] / row["tokens"])
    assert len(tables.positions) == len(case.places)


SCHEMA = {
    "source": pl.String,
    **dict.fromkeys(
        ("document", "position", "prev_token", "token", "distance", "occurrences"), pl.Int32
    ),
    **dict.fromkeys(("repeated", "ar_hit"), pl.Boolean),
}


def tables_of(
    *parts: pl.DataFrame,
    seq_len: int = 128,
    mask: tuple[bool, ...] = (True,),
    knows_hits: bool = True,
    **more,
) -> ProfileTables:
    """The tables of made-up tokens; documents of each part follow those of the part before."""
    numbered, first = [], 0
    for rows in parts:
        numbered.append(rows.with_columns(pl.col("document") + first))
        first = numbered[-1]["document"].max() + 1
    return make_tables(
        pl.concat(numbered).to_arrow(), np.array(mask), seq_len, knows_hits=knows_hits, **more
    )


def synthetic(
    rng: np.random.Generator,
    num_documents: int,
    length: int,
    source: str = "made up",
    *,
    seq_len: int = 128,
) -> pl.DataFrame:
    """Documents of a sequence each, whose share of repeated tokens is their own (Beta(2, 6)), and
    distances 1..seq_len - 1.

    A third of the repeated tokens are AR hits.
    """
    rates = np.repeat(rng.beta(2, 6, num_documents), length)
    repeated = rng.random(len(rates)) < rates
    p = np.arange(1, seq_len) ** -1.3
    distances = rng.choice(np.arange(1, seq_len), len(rates), p=p / p.sum())
    number = np.arange(len(rates))
    columns = {
        "source": [source] * len(rates),
        "document": number // length,
        "position": number % length + 1,
        "prev_token": np.zeros(len(rates)),
        "token": np.zeros(len(rates)),
        "distance": distances,
        "occurrences": repeated,
        "repeated": repeated,
        "ar_hit": repeated & (number % 3 == 0),
    }
    frame = pl.DataFrame(columns).cast(SCHEMA)
    return frame.with_columns(distance=pl.when("repeated").then("distance"))


@pytest.mark.slow
def test_intervals_cover():
    rng, covered, num_trials = np.random.default_rng(3), Counter(), 40
    for _ in range(num_trials):
        tables = tables_of(synthetic(rng, 200, 40), x_min=1)
        row, fit = (
            tables.profile.row(0, named=True),
            tables.fits.filter(pl.col("kind") == "content").row(0, named=True),
        )
        covered["share"] += row["repeated_share_ci_low"] <= 0.25 <= row["repeated_share_ci_high"]
        covered["bigrams"] += (
            row["repeated_bigrams_ci_low"] <= 0.25 * 128 <= row["repeated_bigrams_ci_high"]
        )
        covered["alpha"] += fit["alpha_ci_low"] <= 1.3 <= fit["alpha_ci_high"]
        assert fit["alpha_ci_low"] < fit["alpha"] < fit["alpha_ci_high"]
    # Of 40 trials of 95 % fewer than 32 cover once in ten thousand; the bootstrap may fall a little
    # short.
    assert all(32 <= number <= num_trials for number in covered.values()), covered


def test_documents_not_tokens_are_resampled():
    """Tokens that a document shares its rate with are no independent draws: the interval must be
    that of documents."""
    row = tables_of(synthetic(np.random.default_rng(4), 256, 120)).profile.row(0, named=True)
    width = row["repeated_share_ci_high"] - row["repeated_share_ci_low"]
    between_documents = 2 * 1.96 * math.sqrt(2 * 6 / (8**2 * 9) / 256)
    between_tokens = 2 * 1.96 * math.sqrt(0.25 * 0.75 / (256 * 120))
    assert width == pytest.approx(between_documents, rel=0.35)
    assert width > 3 * between_tokens


def test_few_documents_have_no_interval():
    many, few = (
        synthetic(np.random.default_rng(5), 300, 40, "many"),
        synthetic(np.random.default_rng(6), 4, 120, "few"),
    )
    long = synthetic(np.random.default_rng(7), 4, 120, "one long")
    long = long.with_columns(
        document=pl.Series(np.repeat(np.arange(6), [400, 16, 16, 16, 16, 16]), dtype=pl.Int32)
    )
    tables = tables_of(many, few, long)
    rows = {row["source"]: row for row in tables.profile.iter_rows(named=True)}
    assert (rows["few"]["documents"], rows["one long"]["documents"]) == (4, 6)
    for source in ("few", "one long"):
        assert rows[source]["effective_documents"] < 5
        assert rows[source]["note"].startswith("its tokens come from effectively ")
        assert (
            rows[source]["repeated_share_ci_low"]
            is None
            is rows[source]["repeated_bigrams_ci_high"]
        )
    noted = tables.fits.filter(
        pl.col("note").str.starts_with("distances of the tail come from effectively ")
    )
    assert set(noted["source"]) == {"few"}
    assert noted["alpha"].is_not_null().all(), "a fit without an interval"
    assert (rows["many"]["documents"], rows["many"]["note"], rows["ALL"]["documents"]) == (
        300,
        "",
        310,
    )
    assert (
        rows["many"]["repeated_share_ci_low"]
        < rows["many"]["repeated_share"]
        < rows["many"]["repeated_share_ci_high"]
    )


@pytest.mark.parametrize("x_min", [3, None])
def test_fits_are_those_of_the_histograms(x_min):
    parts = [
        synthetic(np.random.default_rng(7), 300, 100, "one"),
        synthetic(np.random.default_rng(8), 100, 100, "two"),
    ]
    tables = tables_of(*parts, x_min=x_min, knows_hits=False)
    assert tables.fits["kind"].unique().sort().to_list() == ["content", "repeated"]
    for row in tables.fits.iter_rows(named=True):
        of_source = tables.distances.filter(pl.col("source") == row["source"])
        spread = np.repeat(of_source["distance"].to_numpy(), of_source["content"].to_numpy())
        assert row["distances"] == spread.size
        assert row["median_distance"] == sorted(spread)[(spread.size - 1) // 2]
        assert row["tail_tokens"] == np.count_nonzero(spread >= row["x_min"])
        assert row["tail_share"] == pytest.approx(np.mean(spread >= row["x_min"]))
        assert (row["x_min"] if x_min else None, row["x_max"]) == (x_min, 127)
        assert abs(row["alpha"] - 1.3) < 0.1
        assert row["alpha_ci_low"] < row["alpha"] < row["alpha_ci_high"]


def test_the_smallest_sources_are_one_row(monkeypatch):
    monkeypatch.setattr(stage, "MAX_RESAMPLED_SOURCES", 2)
    sources = [("c", 9), ("a", 12), ("b", 20), ("c", 2), ("b", 1), (OTHER_SOURCES, 3)]
    parts = [
        synthetic(np.random.default_rng(number), documents, 10, name)
        for number, (name, documents) in enumerate(sources)
    ]
    profile = tables_of(*parts).profile
    rows = list(zip(profile["source"], profile["tokens"], profile["documents"], strict=True))
    assert rows == [("ALL", 470, 47), ("b", 210, 21), ("a", 120, 12), (OTHER_SOURCES, 140, 14)]


def test_without_training_counts_nothing_is_said_of_hits():
    tables = tables_of(synthetic(np.random.default_rng(1), 100, 40), knows_hits=False)
    for frame in (tables.profile, tables.distances, tables.positions):
        assert all(frame.select(pl.selectors.starts_with("ar_hit").is_null().all()).row(0))
    assert "ar_hit" not in tables.fits["kind"].to_list()


def test_content_has_a_letter_or_digit_and_is_no_stop_word():
    texts = [
        "the",
        " The ",
        "theory",
        "\n\n",
        ".",
        " ),",
        "'s",
        "3",
        "é",
        "\ufffd",
        "",
        "_x",
        "中",
        "__",
        "<|endoftext|>",
        "’",
    ]
    mask = content_mask(texts, {"the", "'s"}, {14})
    wanted = [text for text, content in zip(texts, mask, strict=True) if content]
    assert wanted == ["theory", "3", "é", "_x", "中"]
    assert content_mask(texts, set()).sum() == len(wanted) + 4
