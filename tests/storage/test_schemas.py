"""What a table must hold: whichever column is missing, twice there, of another type or out of bounds, one line names it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from recallkit.errors import UserError
from recallkit.storage.schemas import check_schema, check_sequences, check_values

WHOLE = ("sequence", "position", "argmax", "rank", "context")
NUMBERS = {name: pa.array([0, 1], pa.int32()) for name in WHOLE}
TABLE = pa.table({**NUMBERS, "nll": pa.array([0.5, 1.0], pa.float32()), "exact": pa.array([True, False])})
PATH = Path("scores.parquet")


def changed(name: str, values: list[object], kind: pa.DataType) -> pa.Table:
    return TABLE.set_column(TABLE.column_names.index(name), name, pa.array(values, kind))


def test_a_table_as_it_should_be_is_taken():
    check_schema(TABLE.schema, "scores", PATH)
    check_values(TABLE, "scores", PATH)
    check_values(changed("rank", [-1, 5], pa.int64()), "scores", PATH)
    check_schema(TABLE.append_column("more", pa.array(["a", "b"])).schema, "scores", PATH)
    check_schema(TABLE.drop_columns(["nll"]).schema, "scores", PATH, columns=["rank"])


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (TABLE.drop_columns(["nll"]), "no column nll"),
        (TABLE.append_column("nll", TABLE["nll"]), "2 columns nll"),
        (changed("sequence", [0, 1], pa.int16()), "column sequence holds int16, not whole numbers"),
        (changed("sequence", [0, 1], pa.float64()), "column sequence holds double, not whole numbers"),
        (changed("nll", [0, 1], pa.int64()), "column nll holds int64, not numbers"),
        (changed("nll", [0.5, 1.0], pa.float16()), "column nll holds halffloat, not numbers"),
        (changed("exact", [0, 1], pa.int32()), "column exact holds int32, not true or false"),
        (changed("exact", [None, None], pa.null()), "column exact holds null, not true or false"),
    ],
)
def test_columns_of_another_kind_are_named(table, problem):
    with pytest.raises(UserError, match=problem) as caught:
        check_schema(table.schema, "scores", PATH)
    assert caught.value.where == str(PATH)


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("nll", [0.5, None], "column nll misses values"),
        ("position", [-1, 1], "column position is not within 0"),
        ("rank", [-2, 1], "column rank is not within -1"),
        ("context", [0, 1 << 63], "column context is not within 0"),
    ],
)
def test_values_that_cannot_be_are_named(name, values, problem):
    kind = {"nll": pa.float32(), "context": pa.uint64()}.get(name, pa.int64())
    with pytest.raises(UserError, match=problem):
        check_values(changed(name, values, kind), "scores", PATH)
    with pytest.raises(UserError, match=r"position is not within 0\.\.0"):
        check_values(TABLE, "scores", PATH, most={"position": 0})


MANIFEST = {"seq_len": 3, "tokenizer": {"vocab_size": 10}}


def sequences(tokens: list[list[int | None]], starts: list[list[int]]) -> pa.Table:
    return pa.table(
        {
            "tokens": pa.array(tokens, pa.list_(pa.uint32())),
            "span_starts": pa.array(starts, pa.list_(pa.int32())),
            "span_documents": pa.array([list(range(len(spans))) for spans in starts], pa.list_(pa.int32())),
            "span_sources": pa.array([["a"] * len(spans) for spans in starts], pa.list_(pa.string())),
        }
    )


def test_sequences_as_they_should_be_are_taken():
    check_sequences(sequences([[1, 2], [9, 0, 3, 4]], [[0], [0, 2]]), MANIFEST, PATH)


@pytest.mark.parametrize(
    ("tokens", "starts", "problem"),
    [
        ([[1]], [[0]], "no sequences"),
        ([[1, 2, 3, 4, 5]], [[0]], "no sequences"),
        ([[1, 10]], [[0]], "no sequences"),
        ([[1, 2]], [[1]], "no sequences"),
        ([[1, 2]], [[0, 2]], "no sequences"),
        ([[1, 2], [3, 4]], [[0], []], "no sequences"),
        ([[1, 2, 3]], [[0, 2, 1]], "no sequences"),
        ([[1, None]], [[0]], "column tokens misses values"),
    ],
)
def test_rows_that_are_no_sequences_are_refused(tokens, starts, problem):
    with pytest.raises(UserError, match=problem):
        check_sequences(sequences(tokens, starts), MANIFEST, PATH)
