"""Recall tables: buckets by hand, intervals of whole documents, models asked different things."""

from __future__ import annotations

import polars as pl
import pytest

from recallkit.recall.tables import compare_recall, write_documents
from recallkit.recall.view import answers_table, depth_tables
from tests.planted import TOKENIZER


def manifest(dropped: int) -> dict:
    facts = {"model": "m", "num_rows": 20, "num_dropped": dropped, "comparable": False}
    return {"kind": "recall documents", "options": ASKED, **facts, "tokenizer": TOKENIZER}


ASKED = {"task": "fda", "version": 1, "prompt": "standard", "cut": "left"}


def documents(model: str, contained: list[bool]) -> list[dict]:
    return [
        {
            "model": model,
            **ASKED,
            "row": number,
            "doc_id": f"doc-{number // 2}",
            "key": None,
            "value": f"v{number}",
            "length": None,
            "depth": None,
            "prompt_tokens": [1, 2, 3, 4, 5, 100][number % 6],
            "tokens_cut": 0,
            "truncated": False,
            "answer_cut": False,
            "generation": "",
            "contains": contains,
            "contains_any": None,
            "answer_nll": 0.5 * number,
            "answer_tokens": 2,
            "answer_distance": [None, 1, 2, 3, 4, 5][number % 6],
            "occurrences": number % 3,
            "prompt_text": "",
            "characters_cut": 0,
        }
        for number, contains in enumerate(contained)
    ]


@pytest.fixture
def files(tmp_path):
    def write(**models: list[bool]):
        for model, contained in models.items():
            write_documents(tmp_path / f"{model}.parquet", documents(model, contained), manifest(3))
        return {(model, "fda"): tmp_path / f"{model}.parquet" for model in models}

    return write


def test_models_side_by_side(files):
    tables = compare_recall(
        files(
            zeta=[True, True, False, True, True, True],
            alpha=[False, False, False, False, True, True],
        ),
    )
    first, second = tables.recall.to_dicts()
    assert (first["model"], second["model"], second["reference"]) == ("zeta", "alpha", "zeta"), (
        "in the order of the command"
    )
    assert (first["accuracy"], second["accuracy"], second["dropped"]) == (5 / 6, 2 / 6, 3)
    assert second["difference"] == pytest.approx(-0.5)
    assert second["difference_low"] < -0.5 < second["difference_high"] <= 1, (
        "documents differ by -1, -1/2 and 0"
    )
    assert (first["difference_low"], first["difference_error"]) == (None, None), (
        "a model does not differ from itself"
    )
    assert first["ci_low"] < 5 / 6 < first["ci_high"] < 1
    assert first["standard_error"] == pytest.approx(1 / 6), "documents of 1, 1/2 and 1"
    assert (first["num_documents"], first["answer_nll"], first["answer_nats"]) == (
        3,
        pytest.approx(1.25),
        pytest.approx(2.5),
    )
    distances = (
        tables.by_distance.filter(pl.col("model") == "zeta")
        .select("low", "high", "num_rows", "accuracy")
        .rows()
    )
    assert distances == [(1, 1, 1, 1.0), (2, 2, 1, 0.0), (3, 4, 2, 1.0), (5, 8, 1, 1.0)], (
        "a row without a distance is in no bucket"
    )
    lengths = (
        tables.by_length.filter(pl.col("model") == "zeta").select("low", "high", "num_rows").rows()
    )
    assert lengths == [(1, 1, 1), (2, 2, 1), (3, 4, 2), (5, 8, 1), (65, 128, 1)]
    assert tables.by_occurrences.filter(pl.col("model") == "alpha").select(
        "low",
        "num_rows",
    ).rows() == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("right", "more_nats", "said"),
    [
        (
            "fewer",
            0.0,
            (
                "a significantly lower accuracy than base, but no significantly different NLL of "
                "the answers"
            ),
        ),
        ("fewer", 2.0, None),
        (
            "fewer",
            -2.0,
            (
                "a significantly lower accuracy than base, but a significantly lower NLL of the "
                "answers"
            ),
        ),
        (
            "as many",
            2.0,
            (
                "no significantly different accuracy from base, but a significantly higher NLL of "
                "the answers"
            ),
        ),
        ("as many", 0.0, None),
        ("more", -2.0, None),
        (
            "more",
            0.0,
            (
                "a significantly higher accuracy than base, but no significantly different NLL of "
                "the answers"
            ),
        ),
        ("fewer", None, None),
    ],
)
def test_where_generation_and_likelihood_disagree_it_is_said(tmp_path, right, more_nats, said):
    """60 documents: the reference is right in half of them; NLLs of the other differ from its by
    `more_nats` and noise of mean 0."""
    often = {"fewer": 6, "as many": 2, "more": 1}[right]

    def rows(model: str, often: int, more: float | None) -> list[dict]:
        rows_of = documents(model, [number % often == 0 for number in range(60)])
        nlls = [
            None if more is None else 5.0 + (more + (number % 2 or -1) * (model != "base")) / 2
            for number in range(60)
        ]
        return [
            {
                **row,
                "doc_id": f"{row['row']}",
                "answer_nll": nll,
                "answer_tokens": None if nll is None else 2,
            }
            for row, nll in zip(rows_of, nlls, strict=True)
        ]

    models = {"base": rows("base", 2, 0.0), "changed": rows("changed", often, more_nats)}
    for model, rows_of in models.items():
        write_documents(tmp_path / f"{model}.parquet", rows_of, manifest(0))
    tables = compare_recall({(model, "fda"): tmp_path / f"{model}.parquet" for model in models})
    changed = tables.recall.filter(model="changed").row(0, named=True)
    if more_nats is not None:
        assert changed["answer_nats_difference"] == pytest.approx(more_nats)
        assert (
            changed["answer_nats_difference_low"]
            < more_nats
            < changed["answer_nats_difference_high"]
        )
    assert changed["disagree"] is (None if more_nats is None else said is not None)
    assert tables.recall["disagree"][0] is None
    assert answers_table(tables).headers.count("nats\n(95 % interval)") == (more_nats is not None)
    notes = [line for line in answers_table(tables).caption.splitlines() if "disagree" in line]
    assert notes == (
        [f"On fda, generation and likelihood disagree: changed has {said}."] if said else []
    )


def test_needles_are_averaged_by_length_and_depth(tmp_path):
    """Those of the second half of a context are found, in long ones only those at its end; rows
    without a depth are of other tasks."""
    places = [
        (length, depth) for length in (256, 1024) for depth in (0.0, 0.5, 1.0) for _ in range(2)
    ]
    rows = documents(
        "near",
        [depth == 1 or (length == 256 and depth > 0) for length, depth in places],
    )
    rows = [
        {**row, "length": length, "depth": depth, "answer_nll": 2 - depth}
        for row, (length, depth) in zip(rows, places, strict=True)
    ]
    write_documents(tmp_path / "near.parquet", [*rows, documents("near", [True])[0]], manifest(0))
    tables = compare_recall({("near", "fda"): tmp_path / "near.parquet"})
    cells = tables.by_depth.select("length", "depth", "num_rows", "accuracy", "answer_nll").rows()
    short = [(256, 0.0, 2, 0.0, 2.0), (256, 0.5, 2, 1.0, 1.5), (256, 1.0, 2, 1.0, 1.0)]
    assert cells == [
        *short,
        (1024, 0.0, 2, 0.0, 2.0),
        (1024, 0.5, 2, 0.0, 1.5),
        (1024, 1.0, 2, 1.0, 1.0),
    ]
    assert tables.by_length["num_rows"].to_list() == [1], "buckets are of other tasks"
    [table] = depth_tables(tables)
    assert (table.headers, table.rows) == (["model", "256", "1,024"], [["near", "▁██", "▁▁█"]])
