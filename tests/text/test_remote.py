"""Files elsewhere: a server of this machine that speaks HTTP, fsspec's file systems in memory and
of local files."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from recallkit.errors import UserError
from recallkit.text import connection
from recallkit.text.corpus import open_corpus
from recallkit.text.records import Position
from tests.conftest import made_up_texts


class FileHandler(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, whole or in ranges, with a tag that changes with their content, as stores
    of objects give them."""

    ranges = True
    cut = False

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        size, tag, part = len(content), f'"{hash(content)}"', self.headers.get("Range")
        if part and self.ranges:
            start, _, stop = part.removeprefix("bytes=").partition("-")
            content = content[int(start) : int(stop) + 1 if stop else size]
            self.send_response(206)
            self.send_header(
                "Content-Range",
                f"bytes {start}-{int(start) + len(content) - 1}/{size}",
            )
        else:
            self.send_response(200)
        if not self.ranges:
            self.send_header("Accept-Ranges", "none")
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body:
            self.wfile.write(content[: len(content) // 2] if self.cut else content)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(folder: Path, handler: type[FileHandler] = FileHandler) -> Iterator[str]:
    """The address of a server of the files in a folder."""
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0),
        partial(handler, directory=str(folder)),
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            FileHandler.ranges, FileHandler.cut = True, False


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a server of files, and their folder."""
    folder = tmp_path / "served"
    folder.mkdir()
    with serving(folder) as address:
        yield address, folder


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
def test_a_server_gives_what_the_disk_does(server: tuple[str, Path], ranges: bool) -> None:
    address, folder = server
    FileHandler.ranges = ranges
    written = made_up_texts(300, 400)
    (folder / "a.jsonl").write_bytes(lines(*written))
    (folder / "b.jsonl.zst").write_bytes(zstandard.compress(lines(*written)))
    (folder / "c.txt").write_text("plain")
    (folder / "d.json").write_text(json.dumps(written))
    assert texts(
        f"{address}/a.jsonl",
        f"{address}/b.jsonl.zst?key=v",
        f"{address}/c.txt",
        f"{address}/d.json",
    ) == [
        *written,
        *written,
        "plain",
        *written,
    ]
    corpus = open_corpus([f"{address}/a.jsonl"])
    documents = list(corpus.documents())
    assert documents[0].source == "a"
    assert list(corpus.documents(Position(0, 200))) == documents[200:]
    assert corpus.shards[0].size() == (folder / "a.jsonl").stat().st_size


def test_parquet_and_arrow_are_read_in_ranges(server: tuple[str, Path]) -> None:
    address, folder = server
    table = pa.table({"text": [f"t{i}" for i in range(100)], "more": ["x" * 1000] * 100})
    pq.write_table(table, folder / "a.parquet", row_group_size=7)
    with (
        pa.OSFile(str(folder / "a.arrow"), "w") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=9)
    assert texts(f"{address}/a.parquet", f"{address}/a.arrow") == [f"t{i}" for i in range(100)] * 2
    assert [d.text for d in open_corpus([f"{address}/a.parquet"]).documents(Position(0, 95))] == [f"t{i}" for i in range(95, 100)]


def test_a_folder_and_a_pattern(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe({f"/bucket/{name}": lines(name) for name in ("b/1.jsonl", "a.jsonl", "b/0.jsonl", ".hidden/x.jsonl", "README.md")})
    memory.pipe("/other/z.jsonl", gzip.compress(lines("compressed")))
    assert texts("memory://other/z.jsonl") == ["compressed"]
    assert texts("memory://bucket") == ["a.jsonl", "b/0.jsonl", "b/1.jsonl"]
    assert texts("memory://bucket/b/*.jsonl", "memory://bucket/a.jsonl") == [
        "b/0.jsonl",
        "b/1.jsonl",
        "a.jsonl",
    ]
    sources = [document.source for document in open_corpus(["memory://bucket", "memory://other/z.jsonl"]).documents()]
    assert sources == ["bucket", "b", "b", "z"]
    assert "matches no file" in error_of("memory://bucket/*.txt")
    assert "no file of text" in error_of("memory://nothing")
    assert "memory://bucket/c.jsonl: cannot be read" in error_of("memory://bucket/c.jsonl")


def test_a_saved_data_set_elsewhere(memory: fsspec.AbstractFileSystem) -> None:
    import datasets

    splits = {name: datasets.Dataset.from_dict({"text": [f"{name} {i}" for i in range(5)]}) for name in ("train", "test")}
    datasets.disable_progress_bars()
    datasets.DatasetDict(splits).save_to_disk("memory://data")
    assert texts("memory://data") == [f"train {i}" for i in range(5)]
    assert texts("memory://data:test") == [f"test {i}" for i in range(5)]
    assert "no split dev; choose memory://data:train or memory://data:test" in error_of(
        "memory://data:dev",
    )


def test_a_file_in_an_archive_elsewhere(server: tuple[str, Path]) -> None:
    import zipfile

    address, folder = server
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        archive.writestr("in/a.jsonl", lines("zipped"))
    assert texts(f"zip://in/a.jsonl::{address}/all.zip") == ["zipped"]


def test_a_changed_file_is_noticed(
    server: tuple[str, Path],
    memory: fsspec.AbstractFileSystem,
) -> None:
    address, folder = server
    (folder / "a.jsonl").write_bytes(lines("one"))
    memory.pipe("/a.jsonl", lines("one"))
    corpus = open_corpus([f"{address}/a.jsonl", "memory://a.jsonl"])
    before = corpus.digests()
    assert before == corpus.digests()
    (folder / "a.jsonl").write_bytes(lines("two"))
    memory.pipe("/a.jsonl", lines("two"))
    assert [a != b for a, b in zip(before, corpus.digests(), strict=True)] == [True, True]
    (folder / "a.jsonl").unlink()
    with pytest.raises(UserError, match=r"a\.jsonl: cannot be read"):
        corpus.digests()


def test_errors_are_one_line_with_a_remedy(
    server: tuple[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "sleep", lambda seconds: None)
    address, folder = server
    assert f"{address}/none.jsonl: cannot be read" in error_of(f"{address}/none.jsonl")
    assert "unknown protocol" in error_of("nonsense://bucket/a.jsonl")
    assert "no file of text" in error_of(f"{address}/a.exe")
    (folder / "a.jsonl").write_bytes(lines(*made_up_texts(200, 400)))
    FileHandler.cut = True
    line = error_of(f"{address}/a.jsonl")
    assert f"{address}/a.jsonl, line 1: cannot be read further" in line
    assert "check the network" in line


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    line = error_of("s3://bucket/a.jsonl")
    assert "s3://bucket/a.jsonl: s3:// needs a package that is not installed" in line
    assert "pip install s3fs" in line
