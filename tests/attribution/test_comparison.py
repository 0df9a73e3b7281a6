"""Comparisons read back: the right tables of the right slices, or one line that says what is
wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

from recallkit import attribution
from recallkit.attribution.comparison import find_comparison, read_comparison
from recallkit.errors import UserError
from recallkit.storage import parquet_files

MODELS = ("control:bigram", "control:unigram")


@pytest.fixture(scope="module")
def once(small_slices, tmp_path_factory) -> Path:
    """A slice directory with a comparison."""
    ignored = shutil.ignore_patterns("scores", "gap", "intervene", "ablation", "track")
    folder = Path(
        shutil.copytree(small_slices, tmp_path_factory.mktemp("once") / "slices", ignore=ignored)
    )
    attribution.gap("control:recall", MODELS[::-1], folder)
    return folder


@pytest.fixture
def slices(once, tmp_path) -> Path:
    """A copy of one's own."""
    return Path(shutil.copytree(once, tmp_path / "slices"))


@pytest.fixture
def compared(slices) -> Path:
    """The folder of the comparison in it."""
    return attribution.gap_path(slices, "control:recall", MODELS[::-1])


def change_manifest(path: Path, **facts: object) -> None:
    table = pl.read_parquet(path).to_arrow()
    parquet_files.write_parquet(
        path, [table], table.schema, {**parquet_files.read_manifest(path), **facts}
    )


def test_a_comparison_is_what_was_written(compared, slices):
    for folder in (compared, slices):
        comparison = read_comparison(folder)
        assert (comparison.folder, comparison.slices) == (compared, slices)
        assert comparison.reference == "control:recall"
        assert comparison.models == list(MODELS), "the best first, however they were named"
        frames = comparison.tables.frames()
        assert set(frames) == {path.stem for path in compared.glob("*.parquet")}
        assert all(
            frame.equals(pl.read_parquet(compared / f"{name}.parquet"))
            for name, frame in frames.items()
        )
    totals = comparison.totals
    assert set(totals) == {
        (model, kind) for model in MODELS for kind in ("all", "ar_hit", "other", "repeated")
    }
    assert all(row["source"] == "ALL" for row in totals.values())


def test_tables_are_made_again_only_of_other_scores_or_where_asked(compared, slices):
    def made(**how: object) -> bool:
        """Whether the tables are written again; they are those in the folder either way."""
        before = (compared / "gap.parquet").stat().st_mtime_ns
        tables = attribution.gap("control:recall", MODELS[::-1], slices, **how)
        for name, frame in tables.frames().items():
            assert frame.equals(pl.read_parquet(compared / f"{name}.parquet"))
            assert frame.schema == read_comparison(compared).tables.frames()[name].schema
        return (compared / "gap.parquet").stat().st_mtime_ns != before

    assert not made()
    assert made(force=True)
    by_source = attribution.GapQuestion(cluster="source")
    assert made(question=by_source)
    assert not made(question=by_source)
    [scores] = slices.glob("scores/control-bigram*.parquet")
    manifest, table = (
        parquet_files.read_manifest(scores),
        pl.read_parquet(scores).with_columns(pl.col("nll") + 0.5).to_arrow(),
    )
    scores.with_suffix(".json").unlink()  # the list, whose digest is of the former scores
    parquet_files.write_parquet(scores, [table], table.schema, manifest)
    assert made(question=by_source), "other NLLs of the same model"


def test_missing_and_damaged_tables_are_one_line(compared):
    for name in (path.stem for path in sorted(compared.glob("*.parquet"))):
        path = compared / f"{name}.parquet"
        content = path.read_bytes()
        path.write_bytes(content[:30] + bytes(30) + content[60:])
        with pytest.raises(UserError, match=f"{name}.parquet"):
            read_comparison(compared)
        path.unlink()
        with pytest.raises(UserError, match=rf"{name}.parquet(: no such table| is missing)"):
            read_comparison(compared)
        path.write_bytes(content)


def test_of_several_comparisons_one_is_to_be_named(compared, slices, tmp_path):
    attribution.gap("control:recall", ["control:bigram"], slices)
    with pytest.raises(UserError, match=r"2 comparisons here \(.*control-bigram.*name the folder"):
        find_comparison(slices)
    assert find_comparison(compared) == compared
    for empty in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError, match="recallkit gap REFERENCE"):
            find_comparison(empty)


def test_slices_are_the_ones_around_it_or_those_that_are_named(
    compared, slices, small_slices, tmp_path
):
    away = Path(shutil.move(compared, tmp_path / "away"))
    assert read_comparison(away).slices is None
    assert read_comparison(away, slices).slices == slices
    assert read_comparison(away, small_slices).slices == small_slices, "the same labels elsewhere"
    with pytest.raises(UserError, match="no such table"):
        read_comparison(away, tmp_path / "nowhere")


def test_labels_of_another_threshold_are_others(compared, slices):
    manifest = parquet_files.read_manifest(slices / "tokens.parquet")
    counts = manifest["counts"]
    change_manifest(slices / "tokens.parquet", counts={**counts, "path": "/moved/elsewhere.duckdb"})
    assert read_comparison(compared).slices == slices, "counts may move"
    for facts in (
        {"max_count": 3},
        {"counts": {**counts, "id": "other"}},
        {"counts": None},
        {"sequences_digest": "other"},
    ):
        change_manifest(slices / "tokens.parquet", **{**manifest, **facts})
        assert read_comparison(compared).slices is None
        with pytest.raises(UserError, match="not the slices that were compared"):
            read_comparison(compared, slices)
