"""Tables of multi-query associative recall: counted by hand, intervals of whole sequences, models
asked at other places."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from recallkit.mqar.sequences import MqarAnswers
from recallkit.mqar.tables import MqarFiles, compare_mqar, join_parts, write_part
from recallkit.recall.accuracy import compare_means, compare_shares
from tests.conftest import ROOT
from tests.planted import TOKENIZER

VOCABULARY = {"digest": "v", "num_ids": 9, "filler": 1, "filler_text": ".", "prefix": ""}
MANIFEST = {
    "task": "mqar",
    "length": 24,
    "power": 0.01,
    "num_samples": 3,
    "seed": 0,
    "pairs": 2,
    "tokenizer": TOKENIZER,
    "vocabulary": VOCABULARY,
    "options": {},
}
PLACES = np.array([[4, 8], [6, 4], [10, 20]])
DISTANCES = PLACES - np.array([0, 2])
CHOICES = np.array([[2, 4], [2, 4], [2, 5]])


def answers(
    right: list[list[bool]],
    nll: list[list[float]],
    filler: list[tuple[int, int, float]],
) -> MqarAnswers:
    tokens, filler_right, filler_nll = (np.array(column) for column in zip(*filler, strict=True))
    numbers = PLACES, DISTANCES, CHOICES
    places, distances, choices = (array.ravel().astype(np.int32) for array in numbers)
    is_right = np.array(right).ravel()
    ranks = np.where(is_right, 0, 3).astype(np.int32)
    of_queries = (places, distances, np.array(nll, np.float32).ravel(), ranks, is_right, choices)
    return MqarAnswers(
        np.full(3, 2),
        *of_queries,
        tokens,
        filler_right,
        filler_nll.astype(np.float64),
    )


GOOD = answers(
    [[True, True], [True, False], [True, True]],
    [[0.5, 0.25], [1.0, 2.0], [0.0, 0.75]],
    [(4, 4, 1.0), (4, 3, 2.0), (4, 2, 3.0)],
)
BAD = answers(
    [[False, True], [False, False], [False, True]],
    [[3.0, 1.0], [4.0, 5.0], [6.0, 2.0]],
    [(4, 0, 9.0), (4, 1, 8.0), (4, 2, 7.0)],
)
FULL = answers([[True, False]] * 3, [[1.0, 1.0]] * 3, [(0, 0, 0.0)] * 3)


@pytest.fixture
def keep(tmp_path):
    """Writes what a model answered, in parts of two sequences and the rest."""

    def write(model: str, written: MqarAnswers) -> MqarFiles:
        parts = []
        number = len(written.questions)
        for start, stop in ((0, 2), (2, number)):
            columns = {name: getattr(written, name) for name in MqarAnswers.__slots__}
            some = {
                name: all_[start:stop] if len(all_) == number else all_[2 * start : 2 * stop]
                for name, all_ in columns.items()
            }
            parts.append(tmp_path / f"{model}-{start}")
            write_part(parts[-1], range(start, stop), MqarAnswers(**some))
        files = MqarFiles(
            *(tmp_path / kind / model / "2.parquet" for kind in ("queries", "fillers")),
        )
        join_parts(parts, 2, files, {**MANIFEST, "model": model})
        return files

    return write


def test_what_is_kept_of_each_query_and_each_sequence(keep):
    files = keep("good", GOOD)
    queries = pl.read_parquet(files.queries)
    assert queries.columns == [
        "pairs",
        "sample",
        "place",
        "distance",
        "nll",
        "rank",
        "right",
        "choices",
    ]
    assert queries["choices"].to_list() == [2, 4, 2, 4, 2, 5]
    assert queries.drop("rank", "choices").rows() == [
        (2, 0, 4, 4, 0.5, True),
        (2, 0, 8, 6, 0.25, True),
        (2, 1, 6, 6, 1.0, True),
        (2, 1, 4, 2, 2.0, False),
        (2, 2, 10, 10, 0.0, True),
        (2, 2, 20, 18, 0.75, True),
    ]
    assert pl.read_parquet(files.fillers).rows() == [
        (2, 0, 4, 4, 1.0),
        (2, 1, 4, 3, 2.0),
        (2, 2, 4, 2, 3.0),
    ]


def test_models_side_by_side(keep):
    tables = compare_mqar({("zeta", 2): keep("zeta", GOOD), ("alpha", 2): keep("alpha", BAD)})
    good, bad = tables.mqar.to_dicts()
    assert (good["model"], bad["model"], bad["reference"]) == ("zeta", "alpha", "zeta"), (
        "in the order of the command"
    )
    assert (good["num_samples"], good["ar_tokens"], good["filler_tokens"], good["length"]) == (
        3,
        6,
        12,
        24,
    )
    assert (good["accuracy"], bad["accuracy"]) == (5 / 6, 2 / 6)
    assert good["guess"] == bad["guess"] == pytest.approx((3 / 2 + 2 / 4 + 1 / 5) / 6)
    assert (good["ar_nll"], bad["ar_nll"]) == (4.5 / 6, 21 / 6)
    assert (good["ar_ppl"], bad["filler_ppl"]) == (
        pytest.approx(math.exp(0.75)),
        pytest.approx(math.exp(2)),
    )
    assert (good["filler_accuracy"], bad["filler_accuracy"]) == (9 / 12, 3 / 12)
    assert (good["filler_nll"], bad["filler_nll"]) == (0.5, 2.0)
    assert bad["accuracy_difference"] == pytest.approx(-0.5)
    assert bad["accuracy_difference_low"] < -0.5 < bad["accuracy_difference_high"], (
        "where all sequences differ by as much, too"
    )
    assert good["accuracy_difference_low"] is None, "a model does not differ from itself"
    assert bad["ar_nll_difference"] == pytest.approx(16.5 / 6)
    distances = (
        tables.by_distance.filter(pl.col("model") == "zeta")
        .select("low", "high", "num_queries", "accuracy", "ar_nll")
        .rows()
    )
    assert distances == [
        (2, 2, 1, 0.0, 2.0),
        (3, 4, 1, 1.0, 0.5),
        (5, 8, 2, 1.0, 0.625),
        (9, 16, 1, 1.0, 0.0),
        (17, 32, 1, 1.0, 0.75),
    ]


def twice(answers: MqarAnswers) -> MqarAnswers:
    """The same answers to three further sequences."""
    return MqarAnswers(*(np.tile(getattr(answers, name), 2) for name in MqarAnswers.__slots__))


def test_intervals_are_of_whole_sequences_and_paired(keep):
    good, bad = twice(GOOD), twice(BAD)
    rows = compare_mqar(
        {("one", 2): keep("one", good), ("two", 2): keep("two", bad)},
    ).mqar.to_dicts()
    right = np.column_stack([model.right.reshape(6, 2).sum(axis=1) for model in (good, bad)])
    nats = np.column_stack([model.nll.reshape(6, 2).sum(axis=1) for model in (good, bad)])
    expected = {
        "accuracy": compare_shares(right, np.full((6, 2), 2.0)),
        "ar_nll": compare_means(nats, np.full((6, 2), 2.0)),
    }
    for name, figures in expected.items():
        for place, row in enumerate(rows):
            assert [row[f"{name}_low"], row[f"{name}_high"]] == pytest.approx(
                figures.bounds[:, place],
            )
        ends = [rows[1][f"{name}_difference_low"], rows[1][f"{name}_difference_high"]]
        assert ends == pytest.approx(figures.difference_bounds[:, 1])
        assert (rows[0][f"{name}_difference"], rows[0][f"{name}_difference_low"]) == (0, None), (
            "a model does not differ from itself"
        )


def test_a_sequence_without_filler(keep):
    [row] = compare_mqar({("full", 2): keep("full", FULL)}).mqar.to_dicts()
    assert row["filler_tokens"] == 0
    assert [
        value
        for name, value in row.items()
        if name.startswith("filler_") and name != "filler_tokens"
    ] == [None] * 13
    assert row["accuracy"] == 0.5
    assert row["accuracy_low"] < 0.5 < row["accuracy_high"], "where all sequences agree, too"


def test_every_column_is_documented(keep):
    page = (ROOT / "docs" / "mqar.md").read_text(encoding="utf-8")
    files = keep("good", GOOD)
    tables = compare_mqar({("good", 2): files})
    columns = {*tables.mqar.columns, *tables.by_distance.columns}
    for path in (files.queries, files.fillers):
        columns |= set(pl.read_parquet(path).columns)
    spread = ("_difference_low", "_difference_high", "_difference", "_low", "_high")
    for end in spread:
        columns = {column.removesuffix(end) for column in columns}
    assert not [name for name in sorted(columns) if f"`{name}`" not in page]
    assert all(f"`NAME{end}`" in page for end in spread)
