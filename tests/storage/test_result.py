"""A result is found when it is whole and of the same options, refused when of others, and resumed
from its own journal."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from recallkit.errors import UserError
from recallkit.storage import parquet_files, records, schemas
from recallkit.storage.result import MANIFEST, Question, Result, folder_of, read_tables
from recallkit.storage.timings import Timings

TABLE = pa.table({"a": [1]})


@pytest.fixture(autouse=True)
def _kinds_without_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "KINDS", {})
    monkeypatch.setattr(schemas, "LAYOUTS", {})


def write(result: Result) -> None:
    for path in (*result.others, result.path):
        parquet_files.write_parquet(path, [TABLE], TABLE.schema, result.stamp())


@pytest.fixture
def result(tmp_path) -> Result:
    return Result(
        tmp_path / "out.parquet",
        "scores",
        {"seed": 1, "of": [1, 2]},
        others=[tmp_path / "first.parquet"],
    )


def test_it_is_found_by_its_options(result, capsys):
    assert result.finished() is None
    assert not result.is_complete()
    write(result)
    assert result.is_complete()
    assert capsys.readouterr().err == ""
    assert result.reused() == {**result.stamp(), "reused": True}
    assert (
        capsys.readouterr().err
        == f"recallkit: {result.path} is complete: reused (--force makes it again)\n"
    )


def test_one_of_other_options_is_refused_unless_forced(result):
    write(result)
    other = dataclasses.replace(
        result, options={"seed": 2, "of": [1, 2], "new": None}, remedy="take another"
    )
    with pytest.raises(
        UserError, match=r"already made with other options \(differs in seed\)"
    ) as caught:
        other.finished()
    assert (caught.value.where, caught.value.remedy) == (str(result.path), "take another")
    assert dataclasses.replace(other, force=True).finished() is None


@pytest.mark.parametrize("kept", [slice(0), slice(-1)])
def test_a_damaged_one_is_told_unless_forced(result, kept):
    write(result)
    result.path.write_bytes(result.path.read_bytes()[kept])
    with pytest.raises(UserError, match="changed since it was written"):
        result.finished()
    assert dataclasses.replace(result, force=True).finished() is None


def test_it_is_made_again_where_one_of_its_files_is_missing_or_of_another_run(result):
    write(result)
    parquet_files.write_parquet(result.others[0], [TABLE], TABLE.schema, {"options": {"seed": 2}})
    assert result.finished() is None
    result.others[0].unlink()
    assert result.finished() is None


def test_it_is_made_again_where_a_member_of_its_list_is_missing(tmp_path):
    """As after a kill between the renaming of a list and of its members."""
    path, further = tmp_path / "profile.parquet", tmp_path / "fits.parquet"
    result = Result(path, "profile", {"seed": 1}, beside=[further])
    with result.writing(result.stamp(), Timings()) as new:
        for name in (path.name, further.name):
            parquet_files.write_parquet(new / name, [TABLE], TABLE.schema, result.stamp())
    assert result.is_complete()
    further.unlink()
    assert not result.is_complete()
    with pytest.raises(UserError, match=r"this list belongs to another result \(profile\)"):
        Result(tmp_path / "track.parquet", "track", {}).finished()


@pytest.mark.parametrize("force", [False, True])
def test_a_file_in_the_place_of_its_folder_is_told_before_work(tmp_path, force):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="a file, but a directory is expected"):
        Result(tmp_path / "file" / "out.parquet", "scores", {}, force).finished()


def test_an_interrupted_run_is_resumed_by_the_same_options_alone(result, capsys):
    with pytest.raises(KeyboardInterrupt), result.parts(batch=8) as journal:
        journal.note_resumed(len(journal.parts.done()), "parts")
        journal.parts.path(0).write_text("done")
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "", "nothing was there"
    with result.parts(batch=8) as journal:
        journal.note_resumed(len(journal.parts.done()), "parts")
        saved = json.loads((journal.folder / "state.json").read_text())
    assert saved["key"] == {**result.options, "batch": 8}
    assert (
        capsys.readouterr().err
        == f"recallkit: {result.path}: resuming after 1 parts of an interrupted run\n"
    )
    for refused in (
        result.parts(batch=9),
        result.journal(),
        dataclasses.replace(result, options={"seed": 2}).parts(batch=8),
    ):
        with pytest.raises(UserError, match="an unfinished run with other options"), refused:
            pass
    write(result)
    assert result.is_complete()
    assert not journal.folder.exists(), "a run was killed between its last byte and tidying up"


def test_tables_of_several_frames_are_whole_together(tmp_path, monkeypatch):
    import polars as pl

    from recallkit.storage import schemas

    @dataclasses.dataclass
    class OwnTables:
        first: pl.DataFrame
        last: pl.DataFrame

    monkeypatch.setattr(schemas, "LAYOUTS", {"last/first": {}, "last/last": {}})
    made = OwnTables(pl.DataFrame({"a": [1]}), pl.DataFrame({"a": [2]}))
    question = Question("last", OwnTables, tmp_path, {"x": 1})
    question.write(made, {"x": 1}, Timings())
    assert question.check() is not None
    read = read_tables(OwnTables, tmp_path)
    assert (read.first["a"].to_list(), read.last["a"].to_list()) == ([1], [2])
    beside = json.loads((tmp_path / MANIFEST).read_text())
    assert {name: beside[name] for name in ("kind", "x", "options")} == {
        "kind": "last",
        "x": 1,
        "options": {"x": 1},
    }
    other = dataclasses.replace(question, folder=tmp_path / "other")
    other.write(OwnTables(made.last, made.first), {"x": 1}, Timings())
    (tmp_path / "other" / "first.parquet").replace(tmp_path / "first.parquet")
    with pytest.raises(UserError, match="changed since it was written"):
        read_tables(OwnTables, tmp_path)


@dataclasses.dataclass
class _Tables:
    profile: pl.DataFrame


def _answer(folder: Path, question: dict) -> None:
    tables = _Tables(pl.DataFrame({"a": [1]}))
    Question("profile", _Tables, folder, question).write(tables, {}, Timings())


def test_two_questions_of_one_name_have_a_folder_each_and_find_it_again(tmp_path):
    questions = [{"models": [place], "last": (32, 8)} for place in ("a/mamba", "b/mamba")]
    plain, words = tmp_path / "mamba-context-32", ["zoo:mamba", "context 32"]
    folders = []
    for question in questions:
        folders.append(folder_of(tmp_path, words, question))
        _answer(folders[-1], question)
    assert folders[0] == plain
    assert re.fullmatch(rf"{plain.name}\.[0-9a-f]{{8}}", folders[1].name)
    assert [folder_of(tmp_path, words, question) for question in questions] == folders
    shutil.rmtree(plain)
    assert folder_of(tmp_path, words, questions[1]) == folders[1], "it keeps its name"


def test_options_that_are_not_ours_are_another_question(tmp_path):
    (tmp_path / "mamba").mkdir()
    (tmp_path / "mamba" / MANIFEST).write_text('{"options": [1]}')
    assert folder_of(tmp_path, ["mamba"], {"models": ["a"]}) != tmp_path / "mamba"


@pytest.mark.parametrize("work", ["parts", "journal"])
def test_work_does_not_begin_where_a_result_came_meanwhile(result, work):
    """The second of two commands at once asks before the first is done, and begins when it is."""
    other = dataclasses.replace(result, options={"seed": 2, "of": [1, 2]})
    assert other.finished() is None
    write(result)
    with (
        pytest.raises(UserError, match=r"already made with other options \(differs in seed\)"),
        getattr(other, work)(),
    ):
        pytest.fail("it began")
    assert result.is_complete()
    assert not [path for path in result.path.parent.iterdir() if path.name.startswith(".")]
    with getattr(dataclasses.replace(other, force=True), work)():
        pass


def test_a_result_that_came_meanwhile_is_not_replaced(tmp_path):
    """Two commands at once choose one name: the second to end is refused."""
    first, second = ({"models": [place]} for place in ("a/mamba", "b/mamba"))
    folder = folder_of(tmp_path, ["mamba"], second)
    _answer(folder_of(tmp_path, ["mamba"], first), first)
    with pytest.raises(UserError, match="already made with other options"):
        _answer(folder, second)
    assert parquet_files.manifest_options(folder / "profile.parquet") == first
    assert folder_of(tmp_path, ["mamba"], second) != folder
