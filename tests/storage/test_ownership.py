"""Only files of ours are ever replaced, with --force or without; what is no regular file is never even opened."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recallkit.attribution.run import gap
from recallkit.counting.run import CountingOptions, count
from recallkit.counting.table import read_meta
from recallkit.errors import UserError
from recallkit.options import TextOptions
from recallkit.profiling.run import ProfileOptions, profile
from recallkit.scoring.run import score
from recallkit.slicing.run import slice_text
from recallkit.storage import artifacts, ownership
from recallkit.storage.ownership import DATABASE_MAGIC, JSON_MAGIC, PARQUET_MAGIC
from recallkit.storage.result import Result

TABLE = pa.table({"recallkit": ["recallkit_version"] * 100})


def foreign(path: Path) -> bytes:
    """Another program's file of the format that `path` has by its name, full of our words; returns its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(TABLE, path)
    elif path.suffix == ".duckdb":
        with duckdb.connect(str(path)) as connection:
            connection.execute("CREATE TABLE meta (key VARCHAR, value VARCHAR)")
            connection.execute("INSERT INTO meta VALUES ('num_tokens', '3'), ('made with', 'recallkit_version')")
    else:
        path.write_text('{"kind": null, "made with": "recallkit_version"}')
    return path.read_bytes()


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> TextOptions:
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    path.write_text("".join(json.dumps({"text": f"a b c {number} a b c d e"}) + "\n" for number in range(40)))
    return TextOptions((str(path),), "bytes")


@pytest.fixture(scope="module")
def made(text, tmp_path_factory) -> Path:
    """Counts, slices, scores and a gap, all in one folder."""
    folder = tmp_path_factory.mktemp("made")
    count(text, folder / "counts.duckdb")
    slice_text(text, folder / "slices", counts=folder / "counts.duckdb", seq_len=64, quiet=True)
    gap("control:recall", ["control:bigram"], folder / "slices", folder / "gap")
    return folder


def magic_of(path: Path) -> tuple[bytes, int]:
    return {".parquet": (PARQUET_MAGIC, 0), ".json": (JSON_MAGIC, 0), ".duckdb": (DATABASE_MAGIC, 8)}[path.suffix]


def test_everything_that_was_made_is_ours_and_foreign_files_are_not(made, tmp_path):
    files = [path for path in made.rglob("*") if path.is_file() and path.name != "tokenizer.json"]
    assert len(files) > 12
    for path in files:
        magic, at = magic_of(path)
        assert ownership.is_ours(path, magic, at=at), path
        artifacts.check_replaceable(path, magic, at=at)
    for suffix in ("parquet", "json", "duckdb"):
        path = tmp_path / f"theirs.{suffix}"
        foreign(path)
        magic, at = magic_of(path)
        assert not ownership.is_ours(path, magic, at=at), path


@pytest.mark.parametrize("name", ["slices/tokens.parquet", "slices/manifest.json", "counts.duckdb"])
def test_a_damaged_file_is_ours_as_long_as_its_mark_is_in_it(made, tmp_path, name):
    content = bytearray((made / name).read_bytes())
    path = tmp_path / Path(name).name
    magic, at = magic_of(path)
    damaged = content.copy()
    if path.suffix == ".parquet":
        damaged[-8:-4] = b"\xff" * 4  # the length of the footer
    elif path.suffix == ".json":
        damaged[-3:] = b"   "
    else:
        damaged[4096 * 2 : 4096 * 4] = bytes(4096 * 2)  # the headers of both checkpoints
        damaged[4096 : 4096 * 2] = b"\xff" * 4096
    path.write_bytes(damaged)
    artifacts.check_replaceable(path, magic, at=at)
    path.write_bytes(content[: len(content) // 4])
    with pytest.raises(UserError, match="did not write") as refused:
        artifacts.check_replaceable(path, magic, at=at)
    assert "--force" not in refused.value.line()


def irregular(path: Path, kind: str) -> socket.socket | None:
    """A pipe, a socket or a device of our own (one that nothing is behind) at `path`."""
    if kind == "socket":
        made = socket.socket(socket.AF_UNIX)
        made.bind(os.path.relpath(path))
        return made
    if kind == "pipe":
        os.mkfifo(path)
        return None
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(240, 7))
    except PermissionError:
        pytest.skip("only root makes devices")
    return None


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_regular_file_is_neither_opened_nor_replaced(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    path = tmp_path / "out.parquet"
    kept = irregular(path, kind)
    before = path.stat()
    with pytest.raises(UserError, match="a device, pipe or socket"):
        artifacts.check_replaceable(path, PARQUET_MAGIC)
    with pytest.raises(UserError, match="a device, pipe or socket"), artifacts.replacing(path):
        pass
    for force in (False, True):
        with pytest.raises(UserError, match="a device, pipe or socket"):
            Result(path, "tokens", {}, force).finished()
    (tmp_path / "link.parquet").symlink_to(path)
    with pytest.raises(UserError, match="a device, pipe or socket"):
        artifacts.check_replaceable(tmp_path / "link.parquet", PARQUET_MAGIC)
    assert os.path.samestat(before, path.stat())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.parquet", "out.parquet"]
    if kept:
        kept.close()


@pytest.mark.parametrize("name", ["tokens.parquet", "sequences.parquet", "manifest.json", "tokenizer.json"])
def test_slice_replaces_nothing_foreign(text, tmp_path, name):
    theirs = foreign(tmp_path / name)
    for force in (False, True):
        with pytest.raises(UserError, match="did not write") as refused:
            slice_text(text, tmp_path, counts=None, seq_len=64, force=force, quiet=True)
        assert "--force" not in refused.value.line()
    assert (tmp_path / name).read_bytes() == theirs
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["gap.parquet", "by_position.parquet", "by_context.parquet", "manifest.json"])
def test_gap_replaces_nothing_foreign(made, tmp_path, name):
    theirs = foreign(tmp_path / name)
    for force in (False, True):
        with pytest.raises(UserError, match="did not write") as refused:
            gap("control:recall", ["control:bigram"], made / "slices", tmp_path, force=force)
        assert "--force" not in refused.value.line()
    assert (tmp_path / name).read_bytes() == theirs
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("suffix", [".parquet", ".json"])
def test_score_replaces_nothing_foreign(made, suffix):
    path = made / "slices" / "scores" / f"control-unigram{suffix}"
    model = "control:unigram"
    from recallkit.scoring.run import score_path

    path = score_path(made / "slices", model).with_suffix(suffix)
    theirs = foreign(path)
    for force in (False, True):
        with pytest.raises(UserError, match="did not write") as refused:
            score(model, made / "slices", force=force)
        assert "--force" not in refused.value.line()
    assert path.read_bytes() == theirs
    path.unlink()


@pytest.mark.parametrize("name", ["profile.parquet", "fits.parquet", "manifest.json"])
def test_profile_replaces_nothing_foreign(text, tmp_path, name):
    theirs = foreign(tmp_path / name)
    for force in (False, True):
        with pytest.raises(UserError, match="did not write") as refused:
            profile(text, tmp_path, seq_len=64, options=ProfileOptions(force=force))
        assert "--force" not in refused.value.line()
    assert (tmp_path / name).read_bytes() == theirs


def test_count_replaces_no_foreign_database_and_none_is_said_to_be_mended_by_force(text, tmp_path):
    path = tmp_path / "counts.duckdb"
    theirs = foreign(path)
    for force in (False, True):
        with pytest.raises(UserError, match="did not write") as refused:
            count(text, path, force=force, options=CountingOptions())
        assert "--force" not in refused.value.line()
    assert path.read_bytes() == theirs
    with duckdb.connect(str(path)) as connection:
        connection.execute("DROP TABLE meta")
    with pytest.raises(UserError, match="not a readable counts table") as refused:
        read_meta(path)
    assert "--force" not in refused.value.line()


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE other AS SELECT 1", "CREATE VIEW meta AS SELECT 'recallkit_version' AS key, '1' AS value"]
)
def test_a_database_without_our_table_is_not_ours(tmp_path, statement):
    path = tmp_path / "other.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(statement)
    assert not ownership.is_ours(path, DATABASE_MAGIC, at=8)
