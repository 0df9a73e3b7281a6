"""Texts that a program gives: the results are those of the same texts in a file."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import polars as pl
import pytest

import recallkit
from recallkit.errors import UsageError, UserError
from recallkit.text.corpus import CorpusOptions, open_texts
from recallkit.text.records import Position
from tests.conftest import made_up_texts, write_jsonl

TEXTS = made_up_texts(60, 120)
ROWS = [{"text": text, "meta": {"pile_set_name": f"set {i % 2}"}} for i, text in enumerate(TEXTS)]


START = Position()


def documents(texts: object, start: Position = START, **options: object) -> list[tuple[str, str]]:
    return [
        (d.text, d.source) for d in open_texts(texts, CorpusOptions(**options)).documents(start)
    ]


def test_strings_and_records() -> None:
    assert documents(["a", {"text": "b", "source": "s"}, {"content": ""}]) == [
        ("a", "texts"),
        ("b", "s"),
        ("", "texts"),
    ]
    assert (
        documents(iter(["a", "b"]))
        == documents(("a", "b"))
        == documents(np.array(["a", "b"]))
        == [("a", "texts"), ("b", "texts")]
    )
    assert documents([{"body": "x"}], text_field="body") == [("x", "texts")]
    assert documents(["a", "b", "c"], Position(0, 1)) == [("b", "texts"), ("c", "texts")]


def test_a_dataset_is_read_as_it_is_selected_and_formatted() -> None:
    dataset = datasets.Dataset.from_list([{**row, "vector": [0.5]} for row in ROWS])
    expected = [(row["text"], row["meta"]["pile_set_name"]) for row in ROWS]
    assert documents(dataset) == documents(dataset.with_format("numpy")) == expected
    chosen = dataset.shuffle(seed=3).select(range(7, 40))
    assert documents(chosen) == [(row["text"], row["meta"]["pile_set_name"]) for row in chosen]
    assert documents(chosen, Position(0, 30)) == documents(chosen)[30:]
    assert documents(dataset.to_iterable_dataset()) == expected


def test_the_digest_is_of_all_content() -> None:
    def digest(texts: object, **options: object) -> str:
        return open_texts(texts, CorpusOptions(**options)).digests()[0]

    dataset = datasets.Dataset.from_list(ROWS)
    assert (
        digest(ROWS) == digest(iter(ROWS)) == digest(dataset) == digest(dataset.select(range(60)))
    )
    others = [
        TEXTS,
        TEXTS[:-1],
        [*TEXTS[1:], TEXTS[0]],
        [TEXTS[0] + TEXTS[1], *TEXTS[2:]],
        ROWS,
        ROWS[::-1],
        [*ROWS[:-1], {"text": TEXTS[-1]}],
    ]
    # the last three are bad
    assert (
        len({digest(batch) for batch in [*others, [2**70], [2**71], [{"text": "\ud800"}]]})
        == len(others) + 2
    )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "of type str, not a list of texts"),
        (5, "of type int"),
        ({"train": ["a"]}, "a mapping, not a list of texts"),
        (pl.DataFrame({"text": ["a"]}), "a table, not a list of texts"),
        (
            datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)),
            "a mapping, not a list of texts; give one of its values",
        ),
    ],
)
def test_no_collection_of_texts(texts: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"texts: {message}"):
        recallkit.slice(texts=texts, out=tmp_path / "slices")


def test_bad_records() -> None:
    for bad, message in (
        (None, "of type NoneType, neither a string nor a mapping"),
        ("\ud800", "half a surrogate pair"),
        ({"text": "\ud800"}, "half a surrogate pair"),
        ({"body": "x"}, r"no text in text or content or raw_content \(the record has: body\)"),
    ):
        with pytest.raises(UserError, match=rf"texts\[1\]: {message}"):
            documents(["a", bad, "b"])
        assert documents(["a", bad, "b"], skip_bad=True) == [("a", "texts"), ("b", "texts")]
    with pytest.raises(UserError, match="no text was given"):
        documents([])
    with pytest.raises(UserError, match="texts: no text in"):
        documents(datasets.Dataset.from_dict({"body": ["x"]}))


def test_slices_and_counts_are_those_of_a_file(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS, "books")
    mappings = [{"text": text, "source": "books"} for text in TEXTS]
    ways = {
        "file": {"sources": path},
        "list": {"texts": iter(mappings)},
        "dataset": {"texts": datasets.Dataset.from_list(mappings)},
    }
    results = {}
    for way, text in ways.items():
        out = tmp_path / way
        workers = 2 if way == "list" else 1
        recallkit.count(**text, out=out / "counts.duckdb", workers=workers)
        text = {"texts": mappings} if way == "list" else text
        summary = recallkit.slice(**text, out=out, counts=out / "counts.duckdb", seq_len=64)
        tables = [pl.read_parquet(out / name) for name in ("tokens.parquet", "sequences.parquet")]
        results[way] = [summary.frame, recallkit.bigrams(out / "counts.duckdb"), *tables]
    for way in ("list", "dataset"):
        assert [a.equals(b) for a, b in zip(results["file"], results[way], strict=True)] == [
            True,
        ] * 4, way


def test_sources_that_are_texts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give texts themselves as texts="):
        recallkit.slice([{"text": "a"}], tmp_path / "slices")
    with pytest.raises(UserError, match="give texts themselves as texts="):
        recallkit.slice(["A text of many words that is no name of a file."], tmp_path / "slices")
    with pytest.raises(UsageError, match="SOURCE and texts: cannot be combined"):
        recallkit.slice("a.jsonl", tmp_path / "slices", texts=["a"])
    with pytest.raises(UsageError, match="--import and texts: cannot be combined"):
        recallkit.count(texts=["a"], out=tmp_path / "a.duckdb", import_file=tmp_path / "b")
