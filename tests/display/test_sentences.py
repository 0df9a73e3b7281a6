"""Parts of the sentences that answer a question."""

from __future__ import annotations

from recallkit.display.cells import difference_phrase, interval_phrase, nearest_and_farthest


def test_intervals_and_differences_in_words():
    assert interval_phrase(0.07, 0.08) == "95 % interval 7.0 to 8.0 %"
    assert interval_phrase(None, 0.08) == interval_phrase(0.07, None) == "no interval"
    assert difference_phrase(-0.3, -0.4, -0.2) == "30.0 points fewer, 95 % interval 20.0 to 40.0"
    assert difference_phrase(0.3, 0.2, 0.4) == "30.0 points more, 95 % interval 20.0 to 40.0"
    assert difference_phrase(0.3, None, None) == "30.0 points more, no interval"
    for low, high in ((-0.4, 0.0), (0.0, 0.4), (-0.4, 0.2)):
        told = difference_phrase(-0.3, low, high)
        assert told == f"30.0 points fewer, which may be none: 95 % interval {100 * low:+.1f} to {100 * high:+.1f}"


def test_of_many_models_the_nearest_and_the_farthest_are_named():
    rows = [{"name": name, "gap": gap} for name, gap in (("a", -0.3), ("b", 0.1), ("c", 0.2), ("d", -0.9))]
    assert [row["name"] for row in nearest_and_farthest(rows, "gap")] == ["b", "d"]
    assert [row["name"] for row in nearest_and_farthest(rows[:2], "gap")] == ["b", "a"]
    assert nearest_and_farthest([], "gap") == []
