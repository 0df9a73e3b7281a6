"""Copies of training text are found where they are, across sequences and row groups; with a sample,
as often as its fraction says."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit import counting, slicing
from recallkit.counting.ngram_hash import ngram_hash
from recallkit.counting.run import CountingOptions
from recallkit.counting.table import NgramHashes
from recallkit.options import TextOptions
from recallkit.slicing.copies import CopyFinder
from tests.conftest import made_up_texts, write_jsonl
from tests.slicing.references import copies_reference

EVERYTHING = 2**64 - 1


def known_of(ngrams: set[tuple[int, ...]], size: int, largest: int = EVERYTHING) -> NgramHashes:
    return NgramHashes(
        size,
        np.array(sorted(h for h in map(ngram_hash, ngrams) if h <= largest), np.uint64),
        largest,
    )


def ngrams_of(texts: list[list[int]], size: int) -> set[tuple[int, ...]]:
    return {tuple(ids[at : at + size]) for ids in texts for at in range(len(ids) - size + 1)}


def as_groups(
    documents: list[list[int]],
    boundary: str,
    seq_len: int,
    per_group: int,
) -> list[pa.Table]:
    """The ids of documents as row groups of `sequences.parquet`, as far as they are read."""
    numbered = [
        list(zip(ids, itertools.repeat(n), strict=False)) for n, ids in enumerate(documents)
    ]
    streams = numbered if boundary == "document" else [list(itertools.chain(*numbered))]
    rows = []
    for stream in streams:
        for at in range(0, len(stream) - 1, seq_len):
            tokens, numbers = zip(*stream[at : at + seq_len + 1], strict=True)
            rows.append({"tokens": tokens, "span_documents": list(dict.fromkeys(numbers))})
    schema = pa.schema(
        [("tokens", pa.list_(pa.uint32())), ("span_documents", pa.list_(pa.int32()))],
    )
    return [
        pa.Table.from_pylist(rows[at : at + per_group], schema=schema)
        for at in range(0, len(rows), per_group)
    ]


@pytest.mark.parametrize("boundary", ["pack", "document"])
@settings(max_examples=60)
@given(
    documents=st.lists(
        st.lists(st.integers(0, 2), min_size=1, max_size=40),
        min_size=1,
        max_size=6,
    ),
    seq_len=st.integers(1, 9),
    per_group=st.integers(1, 3),
    trained=st.lists(st.lists(st.integers(0, 2), max_size=30), max_size=3),
    largest=st.sampled_from([EVERYTHING, EVERYTHING // 3]),
)
def test_marks_are_those_of_the_definition(
    boundary,
    documents,
    seq_len,
    per_group,
    trained,
    largest,
):
    sizes = (3, 8)
    in_training = {size: ngrams_of(trained, size) for size in sizes}
    streams = documents if boundary == "document" else [list(itertools.chain(*documents))]
    wanted = [copies_reference(stream, in_training, largest) for stream in streams]
    finder = CopyFinder([known_of(in_training[size], size, largest) for size in sizes])
    marks = [
        mark
        for _, marked in finder.marked(as_groups(documents, boundary, seq_len, per_group))
        for mark in marked.tolist()
    ]
    assert marks == [mark for of_stream, _ in wanted for mark in of_stream[1:]]
    # Only streams of two ids or more are sequences.
    for size in sizes:
        counted = [
            counts[size]
            for stream, (_, counts) in zip(streams, wanted, strict=True)
            if len(stream) > 1
        ]
        of_size = finder.summary()["ngrams"][str(size)]
        assert (of_size["sampled"], of_size["found"]) == tuple(
            map(sum, zip((0, 0), *counted, strict=True)),
        )


@pytest.mark.parametrize("fraction", [0.02, 0.1])
def test_planted_copies_are_found_as_often_as_their_length_says(fraction):
    """A copy of L ids has L - 12 n-grams, each of which is sampled or not: it is missed with
    probability (1 - fraction)^(L - 12)."""
    rng = np.random.default_rng(7)
    largest = int(fraction * 2**64)
    for length in (13, 30, 60):
        copies = rng.integers(0, 50_000, (3000, length))
        ngrams = {tuple(row[i : i + 13]) for row in copies.tolist() for i in range(length - 12)}
        between = rng.integers(0, 50_000, (3000, 20))
        text = np.concatenate([between, copies], axis=1).ravel().tolist()
        finder = CopyFinder([known_of(ngrams, 13, largest)])
        marks = np.concatenate(
            [marked for _, marked in finder.marked(as_groups([text], "pack", 512, 16))],
        )
        per_copy = np.concatenate([[0], marks]).reshape(3000, -1) > 0
        assert not per_copy[:, :20].any(), "what was not copied is marked"
        expected = 1 - (1 - fraction) ** (length - 12)
        error = np.sqrt(expected * (1 - expected) / 3000)
        assert abs(per_copy.any(axis=1).mean() - expected) < 4 * error
        summary = finder.summary()["ngrams"]["13"]
        # of the n-grams, these are in training: an estimate that needs no more than the sample
        share = (length - 12) / (length + 20)
        assert summary["found"] / summary["sampled"] == pytest.approx(
            share,
            abs=4 * np.sqrt(share * (1 - share) / summary["sampled"]),
        )


def sliced(tmp_path, train: list[str], valid: list[str], **options) -> tuple[pl.DataFrame, dict]:
    paths = {
        name: str(write_jsonl(tmp_path / f"{name}.jsonl", texts))
        for name, texts in (("train", train), ("valid", valid))
    }
    text = TextOptions([paths["train"]], "train")
    counting.count(text, tmp_path / "counts.duckdb", options=CountingOptions(**options), force=True)
    text = TextOptions([paths["valid"]], "validation")
    manifest = slicing.slice_text(
        text,
        tmp_path / "slices",
        counts=tmp_path / "counts.duckdb",
        seq_len=64,
        force=True,
    )
    return pl.read_parquet(tmp_path / "slices" / "tokens.parquet"), manifest


def test_a_copied_document_among_others_is_marked_from_end_to_end(tmp_path):
    train, valid = made_up_texts(10, 300, seed=1), made_up_texts(10, 300, seed=2)
    tokens, _ = sliced(tmp_path, train, [*valid[:4], train[3], *valid[4:]])
    copied = tokens.filter(pl.col("document") == 4)["in_training"].to_list()
    assert set(copied[:-1]) == {50}  # its end token is followed by another document, in both texts
    assert set(tokens.filter(~pl.col("document").is_in([3, 4, 5]))["in_training"]) == {0}


def test_without_hashes_nothing_is_known_of_copies(tmp_path):
    texts = made_up_texts(5, 100, seed=1)
    tokens, manifest = sliced(tmp_path, texts, texts, hashes=0)
    assert tokens["in_training"].null_count() == len(tokens)
    assert manifest["in_training"] is None
    again, manifest = sliced(tmp_path, texts, texts)
    assert again["in_training"].null_count() == 0
    assert again.drop("in_training").equals(tokens.drop("in_training"))
