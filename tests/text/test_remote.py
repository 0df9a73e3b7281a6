"""Files elsewhere: a server of this machine that speaks HTTP, fsspec's file systems in memory and
of local files."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from recallkit.errors import UserError
from recallkit.text.corpus import open_corpus
from recallkit.text.records import Position
from tests.conftest import made_up_texts
from tests.text.web import files_of, serving


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def texts(*arguments: str) -> list[str]:
    return [document.text for document in open_corpus(arguments).documents()]


def error_of(*arguments: str) -> str:
    with pytest.raises(UserError) as caught:
        texts(*arguments)
    assert caught.value.remedy
    return caught.value.line()


@pytest.mark.parametrize("ranges", [True, False])
def test_a_server_gives_what_the_disk_does(tmp_path: Path, ranges: bool) -> None:
    written = made_up_texts(300, 400)
    table = pa.table({"text": written, "more": ["x" * 1000] * len(written)})
    (tmp_path / "a.jsonl").write_bytes(lines(*written))
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.compress(lines(*written)))
    (tmp_path / "c.json").write_text(json.dumps(written))
    pq.write_table(table, tmp_path / "d.parquet", row_group_size=7)
    with pa.ipc.new_file(str(tmp_path / "e.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    with serving(files_of(tmp_path, ranges=ranges)) as server:
        for path in sorted(tmp_path.iterdir()):
            corpus = open_corpus([f"{server.url}/{path.name}?key=v"])
            documents = list(corpus.documents())
            assert [document.text for document in documents] == written
            assert documents[0].source == path.name.partition(".")[0]
            assert list(corpus.documents(Position(0, 295))) == documents[295:]
            assert corpus.shards[0].size() == path.stat().st_size


def test_a_folder_and_a_pattern(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe(
        {
            f"/bucket/{name}": lines(name)
            for name in ("b/1.jsonl", "a.jsonl", "b/0.jsonl", ".hidden/x.jsonl", "README.md")
        }
    )
    memory.pipe("/other/z.jsonl", gzip.compress(lines("compressed")))
    assert texts("memory://other/z.jsonl") == ["compressed"]
    assert texts("memory://bucket") == ["a.jsonl", "b/0.jsonl", "b/1.jsonl"]
    assert texts("memory://bucket/b/*.jsonl", "memory://bucket/a.jsonl") == [
        "b/0.jsonl",
        "b/1.jsonl",
        "a.jsonl",
    ]
    sources = [
        document.source
        for document in open_corpus(["memory://bucket", "memory://other/z.jsonl"]).documents()
    ]
    assert sources == ["bucket", "b", "b", "z"]
    assert "matches no file" in error_of("memory://bucket/*.txt")
    assert "no file of text" in error_of("memory://nothing")
    assert "memory://bucket/c.jsonl: cannot be read" in error_of("memory://bucket/c.jsonl")


def test_a_saved_data_set_elsewhere(memory: fsspec.AbstractFileSystem) -> None:
    import datasets

    splits = {}
    for name in ("train", "test"):
        rows = [f"{name} {i}" for i in range(5)]
        splits[name] = datasets.Dataset.from_dict({"text": rows})
    datasets.disable_progress_bars()
    datasets.DatasetDict(splits).save_to_disk("memory://data")
    assert texts("memory://data") == [f"train {i}" for i in range(5)]
    assert texts("memory://data:test") == [f"test {i}" for i in range(5)]
    assert "no split dev; choose memory://data:train or memory://data:test" in error_of(
        "memory://data:dev",
    )


def test_a_changed_file_is_noticed(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    def write(text: str) -> None:
        (tmp_path / "a.jsonl").write_bytes(lines(text))
        memory.pipe("/a.jsonl", lines(text))

    write("one")
    with serving(files_of(tmp_path)) as server:
        corpus = open_corpus([f"{server.url}/a.jsonl", "memory://a.jsonl"])
        before = corpus.digests()
        assert before == corpus.digests()
        write("two")
        assert [a != b for a, b in zip(before, corpus.digests(), strict=True)] == [True, True]
        (tmp_path / "a.jsonl").unlink()
        with pytest.raises(UserError, match=r"a\.jsonl: cannot be read"):
            corpus.digests()


def test_errors_are_one_line_with_a_remedy(tmp_path: Path) -> None:
    with serving(files_of(tmp_path)) as server:
        line = error_of(f"{server.url}/none.jsonl")
        assert f"{server.url}/none.jsonl: cannot be read" in line
        assert "no file of text" in error_of(f"{server.url}/a.exe")
    assert "unknown protocol" in error_of("nonsense://bucket/a.jsonl")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    line = error_of("s3://bucket/a.jsonl")
    assert "s3://bucket/a.jsonl: s3:// needs a package that is not installed" in line
    assert "pip install s3fs" in line
