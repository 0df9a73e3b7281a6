"""Rows of a table are in the columns and types that are declared."""

from __future__ import annotations

from recallkit.storage.schemas import LAYOUTS, READ, chosen, declared, frame_of
from tests.conftest import ROOT


def test_rows_are_in_the_declared_columns_and_types():
    row = dict.fromkeys(LAYOUTS["mqar/by_distance"], 1) | {"model": "m", "accuracy": 0.5}
    frame = frame_of("mqar/by_distance", [row | {"not asked for": 3}])
    assert frame.columns == list(LAYOUTS["mqar/by_distance"])
    assert frame.row(0)[:2] == ("m", 1)


def test_columns_are_documented_as_they_are_declared():
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    by_unit: dict[str, list[str]] = {}
    for name in READ:
        column = declared(name)
        if column.meaning:
            unit = {"share": "%", "": "no unit"}.get(column.unit, column.unit)
            by_unit.setdefault(unit, []).append(f"`{name}` ({column.meaning})")
    lines = [f"- {unit}: {', '.join(columns)}" for unit, columns in by_unit.items()]
    assert "\n".join(["", *lines, ""]) in page
    assert len(by_unit) == 5


def test_a_table_chooses_declared_columns_and_may_relabel_them():
    first, second, third = chosen("model retained\n gain | gain,/points | z.0f")
    assert (first.label, first.form) == ("model", "")
    assert (second.label, second.form, second.scale) == ("retained, %", "z.0f ±", 100)
    assert (third.label, third.form, third.unit) == ("gain,\npoints", "z.0f", "points")
