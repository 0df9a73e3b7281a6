"""Files are whole or absent; manifests tell what a file is and refuse what it is not; journals guard unfinished work."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recallkit import artifacts, config
from recallkit.errors import UserError
from recallkit.journal import Journal, forget_finished


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), artifacts.replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_manifest_comes_back(tmp_path):
    table = pa.table({"a": [1]})
    written = artifacts.write_parquet(tmp_path / "t.parquet", [table, table], table.schema, lambda: {"kind": "x"})
    assert artifacts.read_manifest(tmp_path / "t.parquet") == written == {"kind": "x", "schema_version": config.SCHEMA_VERSION}
    assert pq.read_metadata(tmp_path / "t.parquet").num_row_groups == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "no such table"),
        (lambda p: p.write_bytes(b"PAR1 not really"), "not a readable Parquet file"),
        (lambda p: pq.write_table(pa.table({"a": [1]}), p), "without recallkit's manifest"),
        (lambda p: artifacts.write_parquet(p, [], pa.schema([("a", pa.int8())]), {"schema_version": 999}), "schema 999"),
    ],
)
def test_what_is_no_table_of_ours_is_one_line(tmp_path, make, message):
    path = tmp_path / "t.parquet"
    make(path)
    with pytest.raises(UserError, match=message) as caught:
        artifacts.read_manifest(path)
    assert "t.parquet" in caught.value.line()
    assert "\n" not in caught.value.line()


def test_digests_see_content_order_and_boundaries():
    assert artifacts.digest_bytes(b"ab", b"c") != artifacts.digest_bytes(b"a", b"bc")
    assert artifacts.digest_json({"a": 1, "b": 2}) == artifacts.digest_json({"b": 2, "a": 1})
    one, two = np.arange(10, dtype=np.uint32), np.arange(10, dtype=np.int32)
    assert artifacts.digest_arrays(one) != artifacts.digest_arrays(two)
    assert artifacts.digest_arrays(one, one[:0]) != artifacts.digest_arrays(one[:5], one[5:])


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
        seen.add(artifacts.digest_sample(path))
    assert len(seen) == 4


def test_error_lines_are_one_printable_line():
    line = UserError("bad\nthing \x1b[31m", where="a\x07b", remedy="do\tthis").line()
    assert line == "a\\x07b: bad thing \\x1b[31m; do this"


@pytest.mark.parametrize(("text", "amount"), [("1250", 1250), ("10M", 10**7), ("1.5b", 1_500_000_000), ("16_000", 16_000), ("2k", 2000)])
def test_amounts_are_read_as_people_write_them(text, amount):
    assert config.parse_amount(text) == amount


@pytest.mark.parametrize("text", ["", "x", "-3", "0", "1.5", "nan", "1e400"])
def test_amounts_that_are_none(text):
    with pytest.raises(ValueError):
        config.parse_amount(text)


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
    with pytest.raises(UserError, match=r"differs in b.*--force"), Journal(target, {"a": 1, "b": 3}):
        pass
    with Journal(target, {"a": 1, "b": 2}) as journal:
        assert journal.state == {"hours": "of work"}
    with Journal(target, {"a": 1, "b": 3}, force=True) as journal:
        assert not journal.resumed


def test_two_processes_never_write_one_output(tmp_path):
    target = tmp_path / "out"
    with Journal(target, {}):
        program = "import sys; from pathlib import Path; from recallkit.journal import Journal; Journal(Path(sys.argv[1]), {}).__enter__()"
        second = subprocess.run([sys.executable, "-c", program, str(target)], capture_output=True, text=True, check=False)
    assert "another recallkit process is writing this" in second.stderr


def test_what_a_killed_process_left_is_swept_away(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    path = tmp_path / "file"
    with artifacts.replacing(path) as temporary:
        temporary.write_text("one")
        mine = temporary.name
    for name in (mine.replace(str(os.getpid()), str(dead.pid)), mine.replace(str(os.getpid()), str(dead.pid)) + ".wal"):
        (tmp_path / name).write_text("left behind")
    running = mine.replace(str(os.getpid()), "1")
    (tmp_path / running).write_text("somebody is writing")
    with artifacts.replacing(path) as temporary:
        temporary.write_text("two")
    assert {p.name for p in tmp_path.iterdir()} == {"file", running}


def test_the_journal_of_finished_work_is_forgotten(tmp_path):
    with Journal(tmp_path / "out", {"a": 1, "b": 2}) as journal:
        journal.commit({})
    forget_finished(tmp_path / "out", {"a": 9})
    assert list(tmp_path.iterdir()), "the journal of other work went, too"
    for _ in range(2):
        forget_finished(tmp_path / "out", {"a": 1})
    assert list(tmp_path.iterdir()) == []


def test_forced_work_that_was_interrupted_goes_on(tmp_path):
    target = tmp_path / "out"
    with Journal(target, {"a": 1}, force=True) as journal:
        journal.commit({"at": 7})
    with Journal(target, {"a": 1}, force=True) as journal:
        assert journal.state == {"at": 7}
    (journal.folder / "state.json").write_text("{ half")
    with pytest.raises(UserError, match="not a readable JSON"), Journal(target, {"a": 1}):
        pass
    with Journal(target, {"a": 1}, force=True) as journal:
        assert not journal.resumed


def test_a_run_that_failed_before_its_first_part_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), Journal(tmp_path / "out", {}):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_not_ours_are_never_replaced(tmp_path):
    text = tmp_path / "text.jsonl"
    text.write_text("precious")
    with pytest.raises(UserError, match="did not write"):
        artifacts.check_replaceable(text, b"PAR1")
    with pytest.raises(UserError, match="a directory"):
        artifacts.check_replaceable(tmp_path, b"PAR1")
    text.write_bytes(b"PAR1 whatever")
    artifacts.check_replaceable(text, b"PAR1")
    artifacts.check_replaceable(tmp_path / "new", b"PAR1")
