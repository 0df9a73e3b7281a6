"""Which bigrams are rare: the papers' rate where the counts resolve it, given counts and rates, and
the warning about common ones."""

from __future__ import annotations

import json
from types import SimpleNamespace

import polars as pl
import pytest

from recallkit import counting
from recallkit.errors import UserError
from recallkit.options import TextOptions
from recallkit.slicing.threshold import (
    LEAST_COUNT,
    RareCount,
    Threshold,
    counts_warning,
    small_counts_note,
)
from recallkit.slicing.view import what_is_rare
from recallkit.storage import parquet_files
from tests.conftest import made_up_texts, write_jsonl


def counts_of(num_tokens: int) -> SimpleNamespace:
    return SimpleNamespace(num_tokens=num_tokens)


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [
        (10_000_000_000, Threshold(1250, "papers", 125.0)),  # Zoology's own
        (1_000_000_000, Threshold(125, "papers", 125.0)),
        (40_000_000, Threshold(5, "papers", 125.0)),
        (39_999_999, Threshold(5, "fallback", 125.0)),
    ],
)
def test_the_papers_rate_where_it_is_resolved(num_tokens, expected):
    assert RareCount().resolve(counts_of(num_tokens)) == expected


def test_what_is_given_is_kept():
    assert RareCount(0).resolve(counts_of(10**10)) == Threshold(0, "count")
    assert RareCount(max_rate=200.0).resolve(counts_of(3 * 10**7)) == Threshold(6, "rate", 200.0)
    assert RareCount(max_rate=1.0).resolve(counts_of(10**9)) == Threshold(1, "rate", 1.0)
    assert RareCount().resolve(None).facts() is None
    assert RareCount(3).resolve(None) == Threshold(3)


@pytest.mark.parametrize(("rate", "num_tokens"), [(125.0, 7_999_999), (0.0, 10**10), (0.99, 10**9)])
def test_a_rate_of_less_than_one_occurrence_is_no_threshold(rate, num_tokens):
    with pytest.raises(UserError, match="less than one") as raised:
        RareCount(max_rate=rate).resolve(counts_of(num_tokens))
    assert raised.value.where == "--max-rate"
    assert "count more text" in raised.value.remedy
    assert "--max-count" in raised.value.remedy


@pytest.mark.parametrize(
    ("rare", "num_tokens", "is_told"),
    [
        (RareCount(), 10**10, False),
        (RareCount(), 3 * 10**6, True),
        (RareCount(max_rate=1000.0), 3 * 10**6, True),
        (RareCount(max_rate=2000.0), 3 * 10**6, False),
        (RareCount(1), 3 * 10**6, False),
    ],
)
def test_it_is_said_where_counts_are_too_small_for_a_rate(rare, num_tokens, is_told):
    chosen = rare.resolve(counts_of(num_tokens))
    assert (
        small_counts_note({"max_count": chosen.max_count, "threshold": chosen.facts()}) is not None
    ) == is_told


@pytest.mark.parametrize(
    ("threshold", "shown"),
    [
        (None, "(1.67k per billion)."),
        ({"rule": "count", "rate": None}, "(1.67k per billion, as given)."),
        ({"rule": "rate", "rate": 1700.0}, "(1.67k per billion, as given)."),
        ({"rule": "papers", "rate": 125.0}, "(1.67k per billion, the papers' rate)."),
        ({"rule": "fallback", "rate": 125.0}, "(the papers' rate would allow less than one)."),
        ({"rule": "of a later version"}, "(1.67k per billion)."),
    ],
)
def test_the_rule_stands_beside_the_threshold(threshold, shown):
    facts = {"counts": {"num_tokens": 3_000_000}, "max_count": 5}
    assert what_is_rare(facts if threshold is None else {**facts, "threshold": threshold}).endswith(
        shown,
    )


SHARES = [(0, 0.01), (1, 0.03), (2, 0.055), (4, 0.08), (7, 0.064), (8, 0.14), (16, 0.3)]


@pytest.mark.parametrize(
    ("share", "shares", "shown"),
    [
        (None, SHARES, None),
        (0.15, SHARES, None),
        # log(6.4 / 5.5) < log(8 / 6.4); 7 is no power of two
        (
            0.151,
            SHARES,
            "--max-count 2 (2k per billion) gives 5.5 %",
        ),
        # by ratio, not by difference
        (
            0.3,
            [(0, 0.0), (1, 0.03), (2, 0.14)],
            "--max-count 1 (1k per billion) gives 3.0 %",
        ),
        (0.3, [(0, 0.149), (1, 0.2)], "--max-count 0 (0 per billion) gives 14.9 %"),
        (0.3, [(0, 0.2), (1, 0.3)], "Count more training text"),
        (0.3, [(0, 0.0), (1, 0.3)], "Count more training text"),
    ],
)
def test_common_bigrams_called_rare_are_warned_of(share, shares, shown):
    warning = counts_warning({"counts": {"num_tokens": 10**6}}, share, shares)
    assert (warning is None) == (shown is None)
    if shown is not None:
        assert f"AR hits are {100 * share:.1f} % of tokens (6.4 % in Zoology)" in warning
        assert shown in warning
        assert "\n" not in warning


# --------------------------------------------------------------------------------- with real labels


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """A text that repeats itself and counts of little text: every repeated bigram is rare."""
    folder = tmp_path_factory.mktemp("common")
    write_jsonl(folder / "text.jsonl", made_up_texts(30, 100, seed=5))
    train = write_jsonl(folder / "train.jsonl", made_up_texts(4, 30, seed=6))
    counting.count(TextOptions([str(train)], "train"), folder / "counts.duckdb")
    return folder


def slice_into(counted, name, *arguments):
    counts = "--counts", counted / "counts.duckdb"
    return (
        "slice",
        counted / "text.jsonl",
        *counts,
        "--seq-len",
        512,
        "-o",
        counted / name,
        *arguments,
    )


def test_the_default_is_recorded_reused_and_warned_of(run, counted):
    done = run(*slice_into(counted, "slices"), "--json")
    assert done.returncode == 0
    expected, manifest = (
        json.loads(done.stdout),
        parquet_files.read_manifest(counted / "slices" / "tokens.parquet"),
    )
    assert manifest["max_count"] == expected["max_count"] == LEAST_COUNT
    assert manifest["threshold"] == expected["threshold"] == {"rule": "fallback", "rate": 125.0}
    assert expected["by_source"][0]["ar_hit_share"] > 0.15
    tokens = pl.read_parquet(counted / "slices" / "tokens.parquet")
    proposed = int(expected["warning"].split("--max-count ")[1].split()[0])
    share = (tokens["repeated"] & (tokens["train_count"] <= proposed)).mean()
    assert f"gives {100 * share:.1f} %" in expected["warning"]
    made_at = (counted / "slices" / "tokens.parquet").stat().st_mtime_ns
    again = run(*slice_into(counted, "slices", "--max-count", LEAST_COUNT))
    assert "reused" in again.stderr, "the same threshold, however it was chosen, is the same result"
    assert (counted / "slices" / "tokens.parquet").stat().st_mtime_ns == made_at
    assert expected["warning"] in " ".join(again.stdout.split())
