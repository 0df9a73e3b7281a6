"""What a table must hold: whichever column is missing, twice there, of another type or out of bounds, one line names it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from recallkit.errors import UserError
from recallkit.storage.schemas import check_schema

WHOLE = ("sequence", "position", "argmax", "rank", "context")
NUMBERS = {name: pa.array([0, 1], pa.int32()) for name in WHOLE}
TABLE = pa.table({**NUMBERS, "nll": pa.array([0.5, 1.0], pa.float32()), "exact": pa.array([True, False])})
PATH = Path("scores.parquet")


def changed(name: str, values: list[object], kind: pa.DataType) -> pa.Table:
    return TABLE.set_column(TABLE.column_names.index(name), name, pa.array(values, kind))


def test_a_table_as_it_should_be_is_taken():
    check_schema(TABLE.schema, "scores", PATH)
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
