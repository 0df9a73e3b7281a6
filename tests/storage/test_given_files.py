"""Pipes, devices and huge files where a user's file is read: refused in a line, at once."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from recallkit.errors import UserError
from recallkit.storage import artifacts, given_files, parquet_files


def pipe(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


READERS = [given_files.check_file, parquet_files.read_manifest]


KINDS = [
    (pipe, "a pipe"),
    (zeros, "a device"),
    (Path.mkdir, "a directory"),
    (listening, "a socket"),
]


@pytest.mark.parametrize(("make", "kind"), KINDS)
def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path, monkeypatch, make, kind):
    monkeypatch.chdir(tmp_path)
    make(Path("x.json"))
    for reader in READERS if kind == "a socket" else [*READERS, given_files.read_file]:
        with pytest.raises(
            UserError, match=f"x.json: {kind}, but a file is expected; give a regular file"
        ):
            reader(Path("x.json"))


def test_a_file_of_more_bytes_than_it_may_have(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert given_files.read_file(path, 5) == b"12345"
    for reader in (given_files.read_file, given_files.check_file):
        with pytest.raises(
            UserError, match="a file of 5 bytes, more than the 4 that such a file may have"
        ):
            reader(path, 4)
    os.truncate(path, given_files.MAX_JSON_BYTES + 1)
    assert given_files.check_file(path) == path
    with pytest.raises(UserError, match="67,108,865 bytes"):
        artifacts.json_object(path)


def test_a_missing_file_is_for_its_reader_to_tell(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("nothing", "link"):
        assert given_files.check_file(tmp_path / name) == tmp_path / name
        assert artifacts.json_object(tmp_path / name) == {}
        with pytest.raises(FileNotFoundError):
            given_files.read_file(tmp_path / name)


def test_a_folder_whose_files_a_library_reads(tmp_path):
    """Links to files, as the hub's cache has, and logs of any length are let by."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "blob").write_text("{}")
    (tmp_path / "config.json").symlink_to("blob")
    (tmp_path / "trainer_state.json").touch()
    os.truncate(tmp_path / "trainer_state.json", 1 << 40)
    given_files.check_files_in(tmp_path)
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer.json"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 1 << 40)
        with pytest.raises(UserError, match=f"{name}: a file of 1,099,511,627,776 bytes"):
            given_files.check_files_in(tmp_path)
        (tmp_path / name).unlink()
    pipe(tmp_path / "anything")
    with pytest.raises(UserError, match="anything: a pipe"):
        given_files.check_files_in(tmp_path)
