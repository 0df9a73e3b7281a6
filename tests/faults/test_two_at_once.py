"""Two processes with one output: the second is told so, or waits; tables of two runs are never
taken for one."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, fields
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from recallkit import attribution, scoring
from recallkit.attribution.comparison import read_comparison
from recallkit.attribution.tables import GapTables
from recallkit.errors import UserError
from recallkit.storage import parquet_files, schemas
from recallkit.storage.journal import Journal
from recallkit.storage.result import read_tables
from tests.faults.conftest import visible

MODELS = ("control:recall", "control:bigram")


@dataclass(frozen=True)
class Tables:
    """Four tables that belong together if their numbers are the same."""

    a: object
    b: object
    c: object
    d: object


def write_often(folder: str, number: int, seconds: float) -> None:
    import polars as pl

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        table = pl.DataFrame({"number": [number] * 1000})
        parquet_files.write_frames(
            Tables(table, table, table, table), Path(folder), {"the": "same"}
        )


def test_a_reader_never_sees_tables_of_two_runs(warm: ForkServerContext, tmp_path, monkeypatch):
    monkeypatch.setattr(schemas, "LAYOUTS", {f"/{field.name}": {} for field in fields(Tables)})
    writers = [
        warm.Process(target=write_often, args=(str(tmp_path), number, 0.7)) for number in range(3)
    ]
    for writer in writers:
        writer.start()
    while not (tmp_path / "d.parquet").exists():
        time.sleep(0.01)
    seen, refused = set(), []
    while any(writer.exitcode is None for writer in writers):
        try:
            tables = read_tables(Tables, tmp_path)
        except (
            UserError
        ) as error:  # members that are missing, or were replaced meanwhile: never two runs mixed
            refused.append(error.problem)
            continue
        numbers = {getattr(tables, field.name)["number"][0] for field in fields(Tables)}
        assert len(numbers) == 1
        seen |= numbers
    assert len(seen) > 1
    assert all("\n" not in problem for problem in refused), (
        "members that are missing, or that were replaced meanwhile, in one line"
    )
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["gap", "by_count"])
def test_tables_of_a_run_that_was_killed_are_told_from_those_of_another(
    small_slices, tmp_path, name
):
    """Also where both were asked the same: the numbers of scores made on another device are not the
    same."""
    attribution.gap(MODELS[0], MODELS[1:], small_slices, tmp_path / "gap")
    read_comparison(tmp_path / "gap")
    path = tmp_path / "gap" / f"{name}.parquet"
    tables = read_comparison(tmp_path / "gap").tables
    manifest = parquet_files.read_manifest(path)
    others = GapTables(**{table: frame.head(1) for table, frame in tables.frames().items()})
    parquet_files.write_frames(
        others,
        tmp_path / "other",
        {key: value for key, value in manifest.items() if key != "tables"},
    )
    shutil.copy(tmp_path / "other" / path.name, path)
    with pytest.raises(UserError, match="changed since it was written"):
        read_comparison(tmp_path / "gap")


@pytest.mark.parametrize("name", ["count", "score"])
def test_the_second_process_is_told_and_the_first_is_not_disturbed(
    run, text, small_slices, tmp_path, name
):
    shutil.copytree(
        small_slices, tmp_path / "slices", ignore=shutil.ignore_patterns("scores", "gap")
    )
    commands = {
        "count": ([text, "-o", tmp_path / "c.duckdb"], tmp_path / "c.duckdb"),
        "score": (
            ["control:bigram", "--slices", tmp_path / "slices"],
            scoring.score_path(tmp_path / "slices", "control:bigram"),
        ),
    }
    arguments, target = commands[name]
    with Journal(target, {"first": "of two"}) as first:
        first.commit({"hours": "of work"})
        before = visible(tmp_path)
        done = run(name, *arguments, "--force")
        assert done.returncode == 1, done.stderr
        assert done.stderr.splitlines()[-1] == (
            f"recallkit: {target}: another recallkit process is writing this (process "
            f"{os.getpid()}); wait for it, or choose another output"
        )
        assert visible(tmp_path) == before
    with Journal(target, {"first": "of two"}) as first:
        assert first.state == {"hours": "of work"}


def test_of_two_imports_of_one_table_one_waits(start, small_slices, tmp_path):
    counts = tmp_path / "b.parquet"
    first = start(
        "count",
        small_slices.parent / "valid.jsonl",
        "-o",
        tmp_path / "c.duckdb",
        "--export",
        counts,
    )
    first.join(120)
    both = [start("count", "--import", counts, "-o", tmp_path / "n.duckdb") for _ in range(2)]
    for process in both:
        process.join(120)
    assert [process.exitcode for process in (first, *both)] == [0, 0, 0], [
        process.err.read_text() for process in both
    ]


COMPARES_MEANWHILE = """
from pathlib import Path

import torch

from recallkit import attribution


def load(request):
    attribution.gap("control:recall", ["control:unigram"], Path({slices!r}), Path({out!r}))
    return torch.nn.Embedding(request.vocab_size, request.vocab_size)
"""


def test_of_two_comparisons_in_one_folder_the_later_is_refused_and_its_scores_stay(
    run, small_slices, tmp_path
):
    slices, out = (
        shutil.copytree(small_slices, tmp_path / "slices", ignore=shutil.ignore_patterns("gap")),
        tmp_path / "g",
    )
    (tmp_path / "mine.py").write_text(COMPARES_MEANWHILE.format(slices=str(slices), out=str(out)))
    model = f"{tmp_path / 'mine.py'}:load"
    done = run("gap", "control:recall", model, "--slices", slices, "-o", out)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"recallkit: {out / 'gap.parquet'}: already made with other options (differs in models)"
    )
    assert read_comparison(out).models == ["control:unigram"]
    scored = scoring.score_path(slices, model).stat().st_mtime_ns
    again = run("gap", "control:recall", model, "--slices", slices, "-o", tmp_path / "other")
    assert again.returncode == 0, again.stderr
    assert scoring.score_path(slices, model).stat().st_mtime_ns == scored
