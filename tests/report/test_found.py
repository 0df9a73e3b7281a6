"""Which results are found in a folder: by file name and manifest, three levels down, never two of a
kind."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from recallkit.errors import UserError
from recallkit.report.write import find_results
from recallkit.storage import records, schemas
from recallkit.storage.parquet_files import write_parquet


@pytest.fixture(autouse=True)
def _kinds_without_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "KINDS", {})
    monkeypatch.setattr(schemas, "LAYOUTS", {})


def put(folder: Path, kind: str, named: str | None = None) -> Path:
    table = pl.DataFrame({"x": [1]}).to_arrow()
    folder.mkdir(parents=True, exist_ok=True)
    write_parquet(folder / f"{kind}.parquet", [table], table.schema, {"kind": named or kind})
    return folder


def test_results_are_found_here_and_three_levels_below(tmp_path):
    places = {
        "gap": put(tmp_path / "slices" / "gap" / "a vs b", "gap"),
        "recall": put(tmp_path / "evals" / "compared" / "metadata", "recall"),
        "profile": put(tmp_path, "profile"),
    }
    put(tmp_path / "1" / "2" / "3" / "4", "mqar")
    assert find_results(tmp_path) == places
    assert find_results(tmp_path / "slices") == {"gap": places["gap"]}
    assert find_results(tmp_path / "1")["mqar"] == tmp_path / "1" / "2" / "3" / "4"


def test_hidden_unfinished_linked_and_foreign_folders_are_left_out(tmp_path):
    put(tmp_path / "a", "gap")
    put(tmp_path / ".hidden", "gap")
    put(tmp_path / ".b.partial", "gap")
    put(tmp_path / "c.partial", "gap")
    put(tmp_path / "d", "recall", named="documents")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "recall.parquet").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert find_results(tmp_path) == {"gap": tmp_path / "a"}


def test_several_of_a_kind_are_named_and_one_may_be_chosen(tmp_path):
    for number in range(7):
        put(tmp_path / "gap" / f"g{number}", "gap")
    with pytest.raises(
        UserError,
        match=r"7 comparisons here \(gap/g0, gap/g1, gap/g2, gap/g3, gap/g4 \.\.\.\); name one of them, or",
    ):
        find_results(tmp_path)
    one = tmp_path / "gap" / "g3"
    assert find_results(one) == {"gap": one}
    assert find_results(tmp_path, [one]) == {"gap": one}, (
        "what is named with --with is what is meant"
    )
    with pytest.raises(UserError, match="2 comparisons here"):
        find_results(tmp_path, [one, tmp_path / "gap" / "g4"])
    assert find_results(one, [one, one / ".." / "g3"]) == {"gap": one}, (
        "the same folder twice is one"
    )
    recall = put(tmp_path / "b" / "compared" / "x", "recall")
    assert find_results(one, [tmp_path / "b"]) == {"gap": one, "recall": recall}, (
        "further folders add to it"
    )


def test_where_nothing_is_found_the_remedy_is_named(tmp_path):
    with pytest.raises(UserError, match="no such directory; name one"):
        find_results(tmp_path, [tmp_path / "nowhere"])
    with pytest.raises(UserError, match="no results here"):
        find_results(tmp_path)
