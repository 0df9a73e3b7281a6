"""Arrow files and CSV (Parquet: test_corpus.py): what is read, re-entry at every row, bad input, memory."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit import config
from recallkit.text.corpus import open_corpus
from recallkit.text.records import Position
from tests.text.test_corpus import SKIPPING, assert_reenters, fails, read, zst


def write_arrow(path: Path, table: pa.Table, rows: int = 3, *, stream: bool = True) -> None:
    with pa.OSFile(str(path), "w") as file, (pa.ipc.new_stream if stream else pa.ipc.new_file)(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


@pytest.mark.parametrize("stream", [True, False])
def test_arrow_reads_the_columns_it_needs(tmp_path: Path, stream: bool) -> None:
    rows = [{"text": f"t{i}", "meta": {"pile_set_name": "ArXiv" if i % 2 else "Github"}, "vector": [0.5]} for i in range(10)]
    write_arrow(tmp_path / "a.arrow", pa.Table.from_pylist(rows), stream=stream)
    shard = open_corpus([str(tmp_path)]).shards[0]
    assert next(shard.records(4, pytest.fail)) == (4, {"text": "t4", "meta": {"pile_set_name": "Github"}})
    documents = list(open_corpus([str(tmp_path)]).documents())
    assert [d.text for d in documents] == [f"t{i}" for i in range(10)]
    assert [d.source for d in documents[:2]] == ["Github", "ArXiv"]


@settings(max_examples=30)
@given(st.lists(st.none() | st.text(max_size=5), min_size=1, max_size=12), st.integers(1, 5), st.booleans())
def test_arrow_is_reentered_at_every_position(texts: list[str | None], rows: int, stream: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        for shard in ("a", "b"):
            write_arrow(Path(name, f"{shard}.arrow"), pa.table({"text": pa.array(texts, pa.string())}), rows, stream=stream)
        assert_reenters(Path(name))
        assert read(name, options=SKIPPING) == [text for text in texts if text is not None] * 2


def test_bad_arrow(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write_arrow(path, pa.table({"text": ["x" * 100] * 50}))
    whole = path.read_bytes()
    for damaged in (b"no table", whole[: len(whole) // 2], b"ARROW1\0\0no more"):
        path.write_bytes(damaged)
        assert "cannot be read further" in fails(path, SKIPPING)[1]
    write_arrow(path, pa.table({"body": ["x"], "n": [1]}))
    assert f"{path}: no text in text or content or raw_content (the record has: body, n)" in fails(path, SKIPPING)[1]
    write_arrow(path, pa.table({"text": pa.array([], pa.string())}))
    assert "contains no record" in fails(path)[1]


def test_offsets_that_lie_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write_arrow(path, pa.table({"text": ["ab", "cde"]}))
    honest, lying = (np.array([0, 2, last], np.int32).tobytes() for last in (5, 1 << 30))
    assert path.read_bytes().count(honest) == 1
    path.write_bytes(path.read_bytes().replace(honest, lying))
    assert "cannot be read further" in fails(path)[1]


def test_csv_in_every_compression(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbfid,text,meta\r\n7,"two\r\nlines, ""quoted"" \xc3\xa9","{""pile_set_name"": ""ArXiv""}"\r\n\r\n8,,x\n'
    for suffix, compress in {".csv": bytes, ".csv.gz": gzip.compress, ".csv.zst": zst}.items():
        path = tmp_path / f"wiki{suffix}"
        path.write_bytes(compress(content))
        documents = list(open_corpus([str(path)]).documents())
        assert [(d.text, d.source, d.id, d.position.record) for d in documents] == [
            ('two\r\nlines, "quoted" é', "ArXiv", "7", 0),
            ("", "wiki", "8", 1),
        ]
    (tmp_path / "a.tsv").write_text("n\ttext\n1\ta, b\n")
    assert read(tmp_path / "a.tsv") == ["a, b"]


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8), st.text('a,"\n\r ', max_size=6)), min_size=1
    )
)
def test_csv_is_what_python_wrote(rows: list[tuple[str, str]]) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows([("source", "text"), *rows])
    with tempfile.TemporaryDirectory() as name:
        Path(name, "a.csv").write_text(written.getvalue(), encoding="utf-8", newline="")
        corpus = open_corpus([name])
        documents = list(corpus.documents())
        assert [(d.source, d.text) for d in documents] == [(source or "a", text) for source, text in rows]
        for record in range(len(rows) + 1):
            assert list(corpus.documents(Position(0, record))) == documents[record:]


@pytest.mark.parametrize(
    ("content", "message", "kept"),
    [
        (b"n,text\n1,a\n2,b,c\n3,d\n", "row 1: 3 values under 2 names", ["a", "d"]),
        (b"text\na\n\xff\nd\n", "row 1: invalid UTF-8", ["a", "d"]),
        (b'text\na\n"b"c\n', "row 1: not CSV", None),
        (b'text\na\n"never closed\n', "row 1: not CSV", None),
        (b"body,n\nx,1\n", "no text in text or content or raw_content (the record has: body, n)", None),
        (b"text\n", "contains no record", None),
        (b"", "contains no record", None),
    ],
)
def test_bad_csv(tmp_path: Path, content: bytes, message: str, kept: list[str] | None) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    assert message in fails(path)[1]
    if kept is None:
        assert message in fails(path, SKIPPING)[1]
    else:
        assert read(path, options=SKIPPING) == kept


def test_long_lines_of_csv_are_never_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "MAX_RECORD_BYTES", 2_000_000)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"text\n" + b"x" * 40_000_000))
    tracemalloc.start()
    try:
        assert "a line of more than 2,000,000 bytes" in fails(tmp_path / "a.csv.gz")[1]
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()


def test_real_text_is_the_same_in_every_format(tmp_path: Path, test_data: Path) -> None:
    source = test_data / "corpus" / "valid.jsonl.zst"
    documents = list(open_corpus([str(source)]).documents())[:300]
    rows = [{"text": d.text, "meta": json.dumps({"pile_set_name": d.source})} for d in documents]
    write_arrow(tmp_path / "a.arrow", pa.Table.from_pylist(rows), 100)
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["text", "meta"])
        writer.writeheader()
        writer.writerows(rows)
    for name in ("a.arrow", "a.json", "a.csv"):
        found = list(open_corpus([str(tmp_path / name)]).documents())
        assert [(d.text, d.source) for d in found] == [(d.text, d.source) for d in documents], name


LONG = "ab " * 300_000
"""0.9 MB: 300 rows of it are 270 MB."""


def write_repeated(path: Path) -> None:
    """A file of a few kilobytes with 300 rows of 0.9 MB."""
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 300, pa.int32()), pa.array([LONG]))
    if path.suffix == ".arrow":
        write_arrow(path, pa.table({"text": repeated}), rows=300)
    else:
        pq.write_table(pa.table({"text": repeated}), path, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_long_text_in_many_rows_is_decoded_a_few_at_a_time(tmp_path: Path, name: str) -> None:
    write_repeated(tmp_path / name)
    assert (tmp_path / name).stat().st_size < 4_000_000
    pa.default_memory_pool().release_unused()
    most, before, num_documents = 0, pa.total_allocated_bytes(), 0
    for document in open_corpus([str(tmp_path / name)]).documents():
        num_documents += 1
        most = max(most, pa.total_allocated_bytes() - before)
        assert len(document.text) == len(LONG)
    assert num_documents == 300
    assert most < 150_000_000
