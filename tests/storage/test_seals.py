"""Seals: any changed bit of a table is noticed, wherever it is; nothing else is called damage."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recallkit.errors import UserError
from recallkit.storage import artifacts, seals
from recallkit.storage.journal import Journal
from recallkit.storage.seals import DamagedError

# As statistics in a footer and as a manifest, text that looks like a seal.
LIKE_A_SEAL = (b"\x18" + bytes([len(seals.KEY)]) + seals.KEY.encode() + b"\x18" + bytes([len(seals.EMPTY)])).decode() + seals.EMPTY
TABLE = pa.table({"a": list(range(200)), "text": [LIKE_A_SEAL] * 200})


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "t.parquet"
    artifacts.write_parquet(path, [TABLE, TABLE], TABLE.schema, {"kind": "x", "note": LIKE_A_SEAL})
    return path


def test_every_flipped_bit_is_refused(path):
    content = path.read_bytes()
    assert artifacts.read_manifest(path)["kind"] == "x"
    assert artifacts.read_parquet(path).equals(pa.concat_tables([TABLE, TABLE]))
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(UserError):
            artifacts.read_manifest(path)


def test_the_table_is_one_that_any_program_reads(path):
    assert pq.read_table(path).num_rows == 400
    metadata = pq.read_metadata(path)
    assert metadata.row_group(0).column(1).statistics.max == LIKE_A_SEAL
    assert metadata.metadata[seals.KEY.encode()] != seals.EMPTY.encode()


def test_a_table_is_sealed_once(path):
    with pytest.raises(ValueError, match="no empty seal"):
        seals.seal(path)


def test_the_checksum_is_that_of_all_blocks(path, monkeypatch):
    monkeypatch.setattr(seals, "_BLOCK", 100)
    assert seals.file_checksum(path) == f"{zlib.crc32(path.read_bytes()):08x}"


@pytest.mark.parametrize("length", [0, 3, 4, 100, -1])
def test_a_file_that_was_cut_is_damaged(path, length):
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedError):
        artifacts.read_manifest(path)


def test_a_table_without_a_seal_is_damaged(path):
    manifest = {artifacts.MANIFEST_KEY: pq.read_metadata(path).metadata[artifacts.MANIFEST_KEY]}
    pq.write_table(TABLE.replace_schema_metadata(manifest), path)
    with pytest.raises(DamagedError, match="its footer is not as it was written"):
        artifacts.read_manifest(path)


def test_a_file_is_read_once_while_nothing_about_it_changes(path, monkeypatch):
    monkeypatch.setattr(seals, "SETTLING_NS", -(10**18))
    read = []
    monkeypatch.setattr(seals, "_checksum", lambda file, length, real=seals._checksum: read.append(length) or real(file, length))
    for _ in range(3):
        artifacts.read_manifest(path)
    assert len(read) == 1
    path.write_bytes(path.read_bytes())
    artifacts.read_manifest(path)
    assert len(read) == 2


def test_the_checksum_of_a_whole_file_is_not_taken_for_that_of_its_content(path, monkeypatch):
    monkeypatch.setattr(seals, "SETTLING_NS", -(10**18))
    seals.file_checksum(path)
    assert path in seals._known
    assert artifacts.read_manifest(path)["kind"] == "x"


def test_a_file_that_changes_while_it_is_read_is_not_taken_as_known(path, monkeypatch):
    def changed(file, length, real=seals._checksum):
        found = real(file, length)
        path.write_bytes(path.read_bytes())
        return found

    monkeypatch.setattr(seals, "SETTLING_NS", -(10**18))
    monkeypatch.setattr(seals, "_checksum", changed)
    seals.file_checksum(path)
    assert path not in seals._known


def test_a_file_that_was_just_written_is_not_taken_as_known(path, monkeypatch):
    """A second write within the grain of the system's file times would go unnoticed."""
    monkeypatch.setattr(seals, "SETTLING_NS", 10**18)
    artifacts.read_manifest(path)
    assert path not in seals._known


def test_json_has_a_checksum(tmp_path):
    path = tmp_path / "x.json"
    artifacts.write_json(path, {"a": [1, "ü"], "b": None})
    assert artifacts.read_json(path) == {"a": [1, "ü"], "b": None}
    for changed in ('"a": [\n    2', '"c"'):
        path.write_text(path.read_text().replace('"a": [\n    1', changed).replace('"b"', changed) if changed == '"c"' else changed)
        with pytest.raises(UserError, match=r"readable JSON file|not as it was written"):
            artifacts.read_json(path)
    for other in ("{}", "[]", "3", '{"checksum": 3}', '{"a": 1}'):
        path.write_text(other)
        with pytest.raises(UserError, match=re.escape(str(path))):
            artifacts.read_json(path)


def read_of_a_journal(path):
    with Journal(path.parent / "out", {"a": 1}) as journal:
        journal.commit({})
        os.link(path, journal.part(0))
        with open_files(3):
            journal.read(0, TABLE.schema)


def read_manifest(path):
    with open_files(3):
        artifacts.read_manifest(path)


def finish_commit(path):
    (path.parent / artifacts.COMMITTED).mkdir()
    with open_files(3):
        artifacts.finish_commit(path.parent)


@contextlib.contextmanager
def open_files(most: int):
    """A block in which no more files can be open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("reader", [read_manifest, read_of_a_journal, finish_commit])
def test_where_no_file_can_be_opened_nothing_is_called_damaged(path, reader):
    with pytest.raises(OSError, match="Too many open files"):
        reader(path)


def test_a_part_with_a_flipped_bit_of_its_footer_makes_the_work_begin_anew(path):
    with pytest.raises(UserError, match="it begins anew"), Journal(path.parent / "out", {"a": 1}) as journal:
        journal.commit({})
        content = path.read_bytes()
        journal.part(0).write_bytes(content.replace(b'"kind": "x"', b'"kind": "y"'))
        journal.read(0, TABLE.schema)
    assert not (journal.folder / "state.json").exists()
