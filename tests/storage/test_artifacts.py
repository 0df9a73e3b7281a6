"""Files are whole or absent; manifests tell what a file is and refuse what it is not; journals
guard unfinished work."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recallkit import config
from recallkit.errors import UserError
from recallkit.storage import (
    artifacts,
    hashing,
    parquet_files,
    records,
    schemas,
    whole_files,
)
from recallkit.storage.journal import Journal, PartsJournal
from recallkit.verification.run import verify
from tests.conftest import made_up_texts, write_jsonl
from tests.fuzz.harness import assert_manners, invoke


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), whole_files.replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_manifest_comes_back(tmp_path):
    table = pa.table({"a": [1]})
    written = parquet_files.write_parquet(
        tmp_path / "t.parquet", [table, table], table.schema, lambda: {"kind": "x"}
    )
    assert (
        parquet_files.read_manifest(tmp_path / "t.parquet")
        == written
        == {"kind": "x", "schema_version": config.SCHEMA_VERSION}
    )
    assert pq.read_metadata(tmp_path / "t.parquet").num_row_groups == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "no such table"),
        (lambda p: p.write_bytes(b"PAR1 not really"), "not a readable Parquet file"),
        (lambda p: pq.write_table(pa.table({"a": [1]}), p), "without recallkit's manifest"),
        (
            lambda p: parquet_files.write_parquet(
                p, [], pa.schema([("a", pa.int8())]), {"schema_version": 999}
            ),
            "schema 999",
        ),
    ],
)
def test_what_is_no_table_of_ours_is_one_line(tmp_path, make, message):
    path = tmp_path / "t.parquet"
    make(path)
    with pytest.raises(UserError, match=message) as caught:
        parquet_files.read_manifest(path)
    assert "t.parquet" in caught.value.line()
    assert "\n" not in caught.value.line()


def test_a_sampled_digest_sees_the_length_and_both_ends(tmp_path):
    path = tmp_path / "shard"
    content = bytearray(np.random.default_rng(0).bytes(3 << 20))
    seen = set()
    for change in (None, 0, len(content) - 1, "longer"):
        now = bytearray(content)
        if isinstance(change, int):
            now[change] ^= 1
        if change == "longer":
            now += b"x"
        path.write_bytes(now)
        seen.add(hashing.digest_sample(path))
    assert len(seen) == 4


def test_a_journal_goes_on_and_ends(tmp_path):
    target = tmp_path / "out"
    with Journal(target, {"a": 1}) as journal:
        assert not journal.resumed
        journal.commit({"at": 5})
    with Journal(target, {"a": 1}) as journal:
        assert (journal.num_parts, journal.state) == (1, {"at": 5})
        journal.finish()
    assert list(tmp_path.iterdir()) == []


def test_unfinished_work_with_other_options_is_kept_unless_forced(tmp_path):
    target = tmp_path / "out"
    with Journal(target, {"a": 1, "b": 2}) as journal:
        journal.commit({"hours": "of work"})
    with (
        pytest.raises(UserError, match=r"differs in b.*--force"),
        Journal(target, {"a": 1, "b": 3}),
    ):
        pass
    with Journal(target, {"a": 1, "b": 2}) as journal:
        assert journal.state == {"hours": "of work"}
    with Journal(target, {"a": 1, "b": 3}, force=True) as journal:
        assert not journal.resumed
        assert not (journal.folder / "state.json").exists(), (
            "a run with the former options would take parts of this one for its own"
        )


def test_a_damaged_state_of_unfinished_work_is_refused_unless_forced(tmp_path):
    target = tmp_path / "out"
    with Journal(target, {"a": 1}) as journal:
        journal.commit({})
    state = journal.folder / "state.json"
    artifacts.write_json(state, {**artifacts.read_json(state), "num_parts": -1})
    with (
        pytest.raises(
            UserError, match=r"the state of unfinished work is damaged; begin again with --force"
        ),
        Journal(target, {"a": 1}),
    ):
        pass
    assert state.exists()
    with Journal(target, {"a": 1}, force=True) as journal:
        assert (journal.num_parts, journal.state) == (0, {})


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda part: part.write_bytes(b""),
        lambda part: part.write_bytes(part.read_bytes()[:-9]),
    ],
)
def test_where_a_part_is_missing_or_damaged_work_begins_anew(tmp_path, damage):
    """Later parts go on from it: none of them is taken."""
    table = pa.table({"a": [1, 2, 3]})
    with Journal(tmp_path / "out", {"a": 1}) as journal:
        for number in range(2):
            parquet_files.write_parquet(journal.part(number), [table], table.schema, {})
            journal.commit({"at": number})
    with Journal(tmp_path / "out", {"a": 1}) as journal:
        assert journal.read(1, table.schema).equals(table)
        damage(journal.part(0))
        with pytest.raises(
            UserError,
            match=r"a part of unfinished work is missing or damaged.*run the same command again",
        ):
            journal.read(0, table.schema)
    with Journal(tmp_path / "out", {"a": 1}) as journal:
        assert (journal.num_parts, journal.state) == (0, {})


def test_of_two_that_write_one_output_the_second_is_told_whose_the_first_is(tmp_path):
    with (
        Journal(tmp_path / "out", {}),
        pytest.raises(
            UserError, match=rf"another recallkit process is writing this \(process {os.getpid()}\)"
        ),
    ):
        Journal(tmp_path / "out", {}).__enter__()


def test_files_that_are_not_ours_are_never_replaced(tmp_path):
    text = tmp_path / "text.jsonl"
    text.write_text("precious")
    with pytest.raises(UserError, match="did not write"):
        artifacts.check_replaceable(text)
    with pytest.raises(UserError, match="a directory"):
        artifacts.check_replaceable(tmp_path)
    artifacts.check_replaceable(tmp_path / "new")


# ------------------------------------------------------------------------------- digests of weights


@pytest.fixture
def digest_home(tmp_path, monkeypatch):
    """A cache folder of its own, and files that count as large and settled as soon as they are
    written."""
    monkeypatch.setenv("RECALLKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(hashing, "_REMEMBERED_BYTES", 8)
    monkeypatch.setattr(hashing, "_SETTLING_NS", -1)
    return tmp_path / "home"


@pytest.mark.parametrize(
    "change", ["bytes", "bytes, with the old time", "another file in its place"]
)
def test_changed_weights_are_noticed_even_with_the_old_length_and_time(
    digest_home, tmp_path, change
):
    weights = tmp_path / "weights"
    weights.write_bytes(b"0123456789")
    hashing.digest_weights(weights)
    before = weights.stat()
    # beyond the grain of the system's file times, as _SETTLING_NS sees to in earnest
    time.sleep(0.05)
    if change.startswith("another"):
        (tmp_path / "other").write_bytes(b"012345678x")
        (tmp_path / "other").replace(weights)
    else:
        weights.write_bytes(b"012345678x")
    if change != "bytes":
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert hashing.digest_weights(weights) == hashing.digest_file(weights)


# ----------------------------------------------------------------------------------------- journals


def test_independent_parts_are_shared_by_those_who_say_so(tmp_path):
    key = {"a": 1}
    with (
        PartsJournal(tmp_path / "out", key, shared=True) as one,
        PartsJournal(tmp_path / "out", key, shared=True) as other,
    ):
        one.parts.path(3).write_text("x")
        assert other.parts.done() == {3}
        assert [one.parts.settle("batch", lambda: 7), other.parts.settle("batch", lambda: 9)] == [
            7,
            7,
        ]
        with (
            pytest.raises(UserError, match="another recallkit process"),
            PartsJournal(tmp_path / "out", key),
        ):
            pass
        with (
            pytest.raises(UserError, match="differs in a"),
            PartsJournal(tmp_path / "out", {"a": 2}, shared=True),
        ):
            pass
    with PartsJournal(tmp_path / "out", {"a": 2}, force=True) as discarding:
        assert discarding.parts.done() == set(), "parts made under another key are not taken"
        assert discarding.parts.settle("batch", lambda: 5) == 5
    assert not discarding.folder.exists(), "a journal without parts leaves nothing"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_where_a_file_system_has_no_locks_slice_and_count_go_on(
    tmp_path, home, monkeypatch, number
):
    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    text = write_jsonl(tmp_path / "text.jsonl", made_up_texts(12, 60))
    for command in (
        ("count", text, "-o", tmp_path / "c.duckdb"),
        ("slice", text, "-o", tmp_path / "s", "--seq-len", 32),
    ):
        outcome = assert_manners(invoke(*command))
        assert outcome.status == 0, outcome.err
    assert verify(tmp_path).is_sound


def test_equal_results_have_equal_digests_whatever_time_they_took(tmp_path):
    table = pl.DataFrame({"a": [1]})
    tables = dataclasses.make_dataclass("Tables", ["gap"])(table)
    timings = [{"seconds": seconds, "stages": {}} for seconds in (1.0, 2.0)]
    for name, took in zip("xy", timings, strict=True):
        parquet_files.write_frames(tables, tmp_path / name, {"kind": "numbers"}, took)
    x, y = (artifacts.read_json(tmp_path / name / "manifest.json") for name in "xy")
    assert (x.pop("timings"), y.pop("timings")) == tuple(timings)
    assert x == y
    digests = {
        json.loads((tmp_path / name / "manifest.json").read_text())["digest"] for name in "xy"
    }
    assert len(digests) == 1


def test_a_list_whose_facts_were_edited_is_refused(tmp_path):
    """Also where every member is as it was."""
    table = tmp_path / "table.parquet"
    parquet_files.write_parquet(
        table, [pa.table({"a": [1]})], pa.schema({"a": pa.int64()}), {"n": 1}
    )
    listing = tmp_path / "table.json"
    listing.write_text(listing.read_text().replace('"n": 1', '"n": 2'))
    with pytest.raises(UserError, match="changed since it was written"):
        parquet_files.read_manifest(table)


def test_a_record_has_its_kind_and_all_of_its_fields(tmp_path):
    """Also where every digest fits, as in a folder of a stranger."""
    words = {"kind": "words", "options": {}, "num_rows": 1}
    table = tmp_path / "words.parquet"

    def written(manifest):
        schema = schemas.arrow_schema("words")
        parquet_files.write_parquet(table, [schema.empty_table()], schema, manifest)
        return parquet_files.read_manifest(table, records.Words)

    assert written(words).items() >= words.items()
    for wrong, problem in (
        ({**words, "kind": "tokens"}, "the manifest field"),
        ({**words, "kind": "others"}, "a table of others, not of words; make one with"),
        ({**words, "num_rows": "1"}, r'the manifest field num_rows has a wrong value \("1"\)'),
        ({"kind": "words", "options": {}}, "the manifest field num_rows is missing"),
    ):
        with pytest.raises(UserError, match=problem):
            written(wrong)


def test_a_member_is_replaced_by_one_of_its_kind_alone(tmp_path):
    for text in ("first", "second"):
        with artifacts.adding(tmp_path / "page.html", "page") as path:
            path.write_text(text)
    with (
        pytest.raises(UserError, match=r"a file \(page\) that such a command did not write"),
        artifacts.adding(tmp_path / "page.html", "figures"),
    ):
        pass
    assert (tmp_path / "page.html").read_text() == "second"


def test_a_table_of_a_result_that_is_replaced_and_an_export_beside_it(tmp_path):
    """Tables that the new result has no more are removed; exports, other members, stay; what no
    list names is never replaced."""
    tables = dataclasses.make_dataclass("Tables", ["gap", "by_overlap"])
    frame = pl.DataFrame({"a": [1]})
    parquet_files.write_frames(tables(frame, frame), tmp_path, {"kind": "numbers"})
    with artifacts.adding_members(tmp_path, ["gap.md"]) as new:
        (new / "gap.md").write_text("a table")
    parquet_files.write_frames(tables(frame, None), tmp_path, {"kind": "numbers"})
    assert {path.name for path in tmp_path.iterdir()} == {"gap.parquet", "gap.md", "manifest.json"}
    assert set(artifacts.members(tmp_path / "manifest.json")) == {"gap.parquet", "gap.md"}
    (tmp_path / "gap.tex").write_text("mine")
    with (
        pytest.raises(UserError, match="did not write"),
        artifacts.adding_members(tmp_path, ["gap.md", "gap.tex"]),
    ):
        pass
    assert (tmp_path / "gap.tex").read_text() == "mine"


def test_what_was_just_written_is_read_again(tmp_path, monkeypatch):
    """Clocks of file systems tick every few milliseconds: two contents of one moment look alike."""
    path, now = tmp_path / "table", time.time_ns()
    monkeypatch.setattr(artifacts, "file_state", lambda state: (1, now, now, 1, 1))
    path.write_bytes(b"a")
    first = hashing.describe(path)
    path.write_bytes(b"b")
    assert hashing.describe(path) != first


@pytest.mark.parametrize("kind", [Journal, PartsJournal])
def test_unfinished_work_is_not_kept_in_a_folder_of_somebody_else(tmp_path, kind):
    folder = tmp_path / ".out.partial"
    folder.mkdir()
    (folder / "part-0").write_text("precious")
    with pytest.raises(UserError, match="not made by recallkit"), kind(tmp_path / "out", {"a": 1}):
        pass
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("part-0", "precious")]
