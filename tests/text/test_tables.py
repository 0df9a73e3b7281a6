"""Arrow files and CSV (Parquet: test_corpus.py): what is read, re-entry at every row, bad input,
memory."""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.text import tables
from recallkit.text.corpus import open_corpus
from recallkit.text.records import Position
from tests.text.test_corpus import SKIPPING, assert_reenters, fails, read, zst


def write_arrow(path: Path, table: pa.Table, rows: int = 3, *, stream: bool = True) -> None:
    with (
        pa.OSFile(str(path), "w") as file,
        (pa.ipc.new_stream if stream else pa.ipc.new_file)(file, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=rows)


WRITERS = {
    "a.arrow": write_arrow,
    "file.arrow": partial(write_arrow, stream=False),
    "a.parquet": lambda path, table, rows=3: pq.write_table(table, path, row_group_size=rows),
}


@pytest.mark.parametrize("name", WRITERS)
def test_tables_are_read_in_the_columns_that_are_needed(tmp_path: Path, name: str) -> None:
    rows = [
        {
            "text": f"t{i}",
            "meta": {"pile_set_name": "ArXiv" if i % 2 else "Github"},
            "vector": [0.5],
        }
        for i in range(10)
    ]
    WRITERS[name](tmp_path / name, pa.Table.from_pylist(rows))
    shard = open_corpus([str(tmp_path)]).shards[0]
    assert next(shard.records(4, pytest.fail)) == (
        4,
        {"text": "t4", "meta": {"pile_set_name": "Github"}},
    )
    documents = list(open_corpus([str(tmp_path)]).documents())
    assert [d.text for d in documents] == [f"t{i}" for i in range(10)]
    assert [d.source for d in documents[:2]] == ["Github", "ArXiv"]


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=15)
@given(
    texts=st.lists(st.none() | st.text(max_size=5), min_size=1, max_size=12),
    rows=st.integers(1, 5),
    batch=st.integers(1, 4),
)
def test_tables_are_reentered_at_every_position(
    name: str,
    texts: list[str | None],
    rows: int,
    batch: int,
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(tables, "_MAX_BATCH_ROWS", batch),
    ):
        for shard in ("a", "b"):
            WRITERS[name](
                Path(folder, shard + name),
                pa.table({"text": pa.array(texts, pa.string())}),
                rows,
            )
        assert_reenters(Path(folder))
        assert read(folder, options=SKIPPING) == [text for text in texts if text is not None] * 2


def test_bad_arrow(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write_arrow(path, pa.table({"text": ["x" * 100] * 50}))
    complete = path.read_bytes()
    for damaged in (b"no table", complete[: len(complete) // 2], b"ARROW1\0\0no more"):
        path.write_bytes(damaged)
        assert "cannot be read further" in fails(path, SKIPPING)[1]
    write_arrow(path, pa.table({"body": ["x"], "n": [1]}))
    assert (
        f"{path}: no text in text or content or raw_content (the record has: body, n)"
        in fails(path, SKIPPING)[1]
    )
    write_arrow(path, pa.table({"text": pa.array([], pa.string())}))
    assert "contains no record" in fails(path)[1]


def test_offsets_that_lie_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write_arrow(path, pa.table({"text": ["ab", "cde"]}))
    honest, lying = (np.array([0, 2, last], np.int32).tobytes() for last in (5, 1 << 30))
    assert path.read_bytes().count(honest) == 1
    path.write_bytes(path.read_bytes().replace(honest, lying))
    assert "cannot be read further" in fails(path)[1]


@pytest.mark.parametrize("name", WRITERS)
def test_text_stored_as_bytes_is_decoded(tmp_path: Path, name: str) -> None:
    for kind in (pa.binary(), pa.large_binary()):
        columns = {
            "text": [b"one \xc3\xa9", b"\xff", b"two"],
            "source": [b"s", b"s", b"\xff"],
            "id": [b"i", None, None],
        }
        WRITERS[name](
            tmp_path / name,
            pa.table({field: pa.array(values, kind) for field, values in columns.items()}),
        )
        texts, line = fails(tmp_path / name)
        assert texts == ["one é"]
        assert "row 1: invalid UTF-8 at byte 1 of text; write it again from valid text" in line
        documents = open_corpus([str(tmp_path / name)], SKIPPING).documents()
        assert [(d.text, d.source, d.id) for d in documents] == [
            ("one é", "s", "i"),
            ("two", "\ufffd", f"{tmp_path / name}:2"),
        ]


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
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
            st.text('a,"\n\r ', max_size=6),
        ),
        min_size=1,
    )
)
def test_csv_is_what_python_wrote(rows: list[tuple[str, str]]) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows([("source", "text"), *rows])
    with tempfile.TemporaryDirectory() as name:
        Path(name, "a.csv").write_text(written.getvalue(), encoding="utf-8", newline="")
        corpus = open_corpus([name])
        documents = list(corpus.documents())
        assert [(d.source, d.text) for d in documents] == [
            (source or "a", text) for source, text in rows
        ]
        for record in range(len(rows) + 1):
            assert list(corpus.documents(Position(0, record))) == documents[record:]


@pytest.mark.parametrize(
    ("content", "message", "expected"),
    [
        (b"n,text\n1,a\n2,b,c\n3,d\n", "row 1: 3 values under 2 names", ["a", "d"]),
        (b"text\na\n\xff\nd\n", "row 1: invalid UTF-8", ["a", "d"]),
        (b'text\na\n"b"c\n', "row 1: not CSV", None),
        (b'text\na\n"never closed\n', "row 1: not CSV", None),
        (
            b"body,n\nx,1\n",
            "no text in text or content or raw_content (the record has: body, n)",
            None,
        ),
        (b"text\n", "contains no record", None),
        (b"", "contains no record", None),
    ],
)
def test_bad_csv(tmp_path: Path, content: bytes, message: str, expected: list[str] | None) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    assert message in fails(path)[1]
    if expected is None:
        assert message in fails(path, SKIPPING)[1]
    else:
        assert read(path, options=SKIPPING) == expected
