"""Rows of a table are in the columns and types that are declared."""

from __future__ import annotations

from recallkit.storage.schemas import LAYOUTS, frame_of


def test_rows_are_in_the_declared_columns_and_types():
    row = dict.fromkeys(LAYOUTS["mqar/by_distance"], 1) | {"model": "m", "accuracy": 0.5}
    frame = frame_of("mqar/by_distance", [row | {"not asked for": 3}])
    assert frame.columns == list(LAYOUTS["mqar/by_distance"])
    assert frame.row(0)[:2] == ("m", 1)
