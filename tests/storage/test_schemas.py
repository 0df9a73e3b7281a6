"""What a table must have: a column that is missing is named in one line; its rows are in the types that are declared."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from recallkit.errors import UserError
from recallkit.storage.artifacts import write_parquet
from recallkit.storage.schemas import LAYOUTS, arrow_schema, check_schema, frame_of, read_frame

PATH = Path("scores.parquet")


def test_a_column_that_is_missing_is_named_and_more_are_allowed():
    schema = arrow_schema("scores")
    check_schema(schema.append(pa.field("more", pa.string())), "scores", PATH)
    without = schema.remove(schema.get_field_index("nll"))
    check_schema(without, "scores", PATH, columns=["rank"])
    with pytest.raises(UserError, match="no column nll") as caught:
        check_schema(without, "scores", PATH)
    assert caught.value.where == str(PATH)


def test_a_small_table_is_read_in_its_columns_and_types(tmp_path):
    path = tmp_path / "means.parquet"
    table = pa.table({"mean": pa.array([[1.5], [2.0]], pa.list_(pa.float32())), "mixer": ["0.a", "1.b"], "more": [1, 2]})
    write_parquet(path, [table], table.schema, {"kind": "mixer means"})
    assert read_frame(path, "mixer means").columns == ["mean", "mixer", "more"]
    exact = read_frame(path, "mixer means", exact=True)
    assert exact.to_dicts() == [{"mixer": "0.a", "mean": [1.5]}, {"mixer": "1.b", "mean": [2.0]}]
    assert exact.to_arrow().schema.field("mean").type.value_type == pa.float64()
    row = dict.fromkeys(LAYOUTS["mqar/by_distance"], 1) | {"model": "m", "accuracy": 0.5}
    frame = frame_of("mqar/by_distance", [row | {"not asked for": 3}])
    assert frame.columns == list(LAYOUTS["mqar/by_distance"])
    assert frame.row(0)[:2] == ("m", 1)
