"""Corpus readers on damaged, huge and hostile files: documents or a UserError, in bounded
memory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recallkit.errors import UserError
from recallkit.text.corpus import CorpusOptions, open_corpus
from recallkit.text.records import Vocabulary
from tests.fuzz.harness import assert_refused, invoke
from tests.fuzz.mutations import COLUMN_TYPES, Damage, byte_damage, of_type

VOCABULARY = Vocabulary("small", 300, 0, end_is_text=False)
STRICT = CorpusOptions(vocabulary=VOCABULARY)
LENIENT = CorpusOptions(skip_bad=True, vocabulary=VOCABULARY)


def read(path: Path, options: CorpusOptions = LENIENT) -> list[str] | UserError:
    """The texts of a file, all of them text that can be encoded, or why it is not read."""
    try:
        texts = [document.text for document in open_corpus([str(path)], options).documents()]
    except UserError as error:
        return error
    for text in texts:
        text.encode()
    return texts


def good_file(path: Path) -> Path:
    records = [
        {"text": f"the cat {i} sat", "id": str(i), "meta": {"pile_set_name": "books"}}
        for i in range(50)
    ]
    content = "".join(json.dumps(record) + "\n" for record in records).encode()
    table = pa.Table.from_pylist(records)
    if path.name.endswith(".parquet"):
        pq.write_table(table, path, row_group_size=20)
    elif path.name.endswith(".arrow"):
        table = (
            table
            if "ids" not in path.name
            else table.drop_columns(["text"]).append_column("input_ids", [[[1, 2, 3]] * 50])
        )
        with pa.OSFile(str(path), "w") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=20)
    elif path.name.endswith(".npy"):
        np.save(path, np.arange(500) % 300)
    elif path.name.endswith(".bin"):
        header = (
            np.array([20240520, 1, 500, *[0] * 253], "<i4").tobytes()
            if "header" in path.name
            else b""
        )
        path.write_bytes(header + (np.arange(500, dtype="<u2") % 300).tobytes())
    elif path.name.endswith(".json"):
        path.write_text(json.dumps(records))
    elif path.name.endswith(".csv"):
        path.write_text(
            "id,text\n" + "".join(f'{record["id"]},"{record["text"]}"\n' for record in records),
        )
    elif path.name.endswith(".zst"):
        path.write_bytes(zstandard.compress(content))
    else:
        path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return path


SUFFIXES = [
    ".jsonl",
    ".jsonl.zst",
    ".jsonl.gz",
    ".parquet",
    ".txt",
    ".json",
    ".csv",
    ".arrow",
    "-ids.arrow",
    ".npy",
    ".bin",
    "-header.bin",
]


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(damage=byte_damage(), more=byte_damage())
@settings(max_examples=15, derandomize=True, suppress_health_check=list(HealthCheck))
def test_damaged_shards_are_read_or_refused(
    tmp_path: Path,
    suffix: str,
    damage: Damage,
    more: Damage,
) -> None:
    path = good_file(tmp_path / f"shard{suffix}")
    damage(path)
    read(path)
    more(path)
    read(path, STRICT)


ODD_COLUMNS = {
    **{str(kind): of_type(kind, 2) for kind in COLUMN_TYPES},
    "a time beyond Python's": pa.array([2**62, 2**62]).cast(pa.timestamp("us")),
    "a date beyond Python's": pa.array([2**30, 2**30], pa.int32()).cast(pa.date32()),
    "a duration beyond Python's": pa.array([2**62, 2**62]).cast(pa.duration("s")),
    "a time zone that is none": pa.array([1, 2]).cast(pa.timestamp("us", tz="Nowhere/At_all")),
    "a map of one key twice": pa.array(
        [[("a", "b"), ("a", "c")]] * 2,
        pa.map_(pa.string(), pa.string()),
    ),
    "a struct of one name twice": pa.StructArray.from_arrays(
        [pa.array(["x", "y"])] * 2,
        names=["a", "a"],
    ),
    "bytes in a list": pa.array([[b"\xff"], []]),
    "an infinite number": pa.array([np.inf, np.nan]),
}


@pytest.mark.parametrize("kind", ODD_COLUMNS)
def test_columns_of_every_type(tmp_path: Path, kind: str) -> None:
    """A text that is none is a bad record; a source or an id of an odd type is none, or what it is
    written as."""
    path, column = tmp_path / "odd.parquet", ODD_COLUMNS[kind]
    is_text = (
        pa.types.is_string(column.type)
        or pa.types.is_large_string(column.type)
        or pa.types.is_dictionary(column.type)
    )
    for name in ("text", "meta", "source", "id"):
        pq.write_table(pa.table({"text": pa.array(["a b", "c d"]), name: column}), path)
        texts = read(path)
        if name == "text" and not is_text:
            assert texts == [] or isinstance(texts, UserError)
            assert isinstance(read(path, CorpusOptions()), UserError)
        elif name != "text":
            assert texts in (["a b", "c d"], []) or isinstance(texts, UserError)


def test_names_of_columns_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "names.parquet"
    pq.write_table(pa.table({"text": ["a b"], "qqqq": [1]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"qqqq", b"qq\xff\xff"))
    assert isinstance(read(path), UserError)
    assert_refused(invoke("count", "--import", path, "-o", tmp_path / "c.duckdb"), "names.parquet")
    assert_refused(invoke("report", tmp_path, "--slices", tmp_path))


def deep(times: int = 100_000) -> str:
    return "[" * times + "]" * times


DEEP_RECORDS = [
    f'{{"text":"a b","meta":{deep()}}}',
    json.dumps({"text": "a b", "meta": deep()}),
    json.dumps({"text": "a b", "meta": '{"a":' * 100_000 + "}" * 100_000}),
]


def test_deep_records(tmp_path: Path) -> None:
    path = tmp_path / "deep.jsonl"
    for record in DEEP_RECORDS:
        path.write_text(record + '\n{"text":"c d"}\n')
        assert read(path) in (["a b", "c d"], ["c d"])


def test_halves_of_characters_and_zeros(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_bytes(
        b'{"text":"a \\ud800 b"}\n{"text":"a\\u0000b"}\n\0\0\0\n{"text":"c","meta":{"pile_set_name":"\\udfff"}}\n',
    )
    assert read(path) == ["a\x00b"]


@given(
    record=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["text", "meta", "pile_set_name", "source", "id", ""]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)
@settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_json_is_a_document_or_a_bad_record(tmp_path: Path, record: object) -> None:
    path = tmp_path / "any.jsonl"
    path.write_text(json.dumps(record) + '\n{"text":"last"}\n')
    texts = read(path)
    assert isinstance(texts, list)
    assert texts[-1] == "last"


# -------------------------------------------------------------------------------------------- bombs

MEASURED = """
import sys
from pathlib import Path
from recallkit.errors import UserError
from recallkit.text.corpus import CorpusOptions, open_corpus
from recallkit.text.records import Vocabulary
try:
    print(sum(len(d.text) for d in open_corpus([sys.argv[1]], CorpusOptions()).documents()))
except UserError as error:
    print(error.line()[:300])
# The system's record for this program alone: getrusage carries over the peak of the process that
# started it.
print(int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024)
"""


def measured(path: Path) -> tuple[str, int]:
    """What a reader said of a file, and the most memory (MB) it took, all of its process."""
    command = [sys.executable, "-c", MEASURED, str(path)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    said, megabytes = done.stdout.splitlines()
    return said, int(megabytes)


def bomb(path: Path, block: bytes, megabytes: int) -> Path:
    """A small file of `megabytes` MB: `block`, a megabyte, again and again."""
    if path.suffix == ".gz":
        member = gzip.compress(block * 50)
        path.write_bytes(member * (megabytes // 50))
        return path
    frame = zstandard.compress(block * 100)
    path.write_bytes(frame * (megabytes // 100))
    return path


@pytest.mark.parametrize(("suffix", "megabytes"), [("zst", 2_000), ("gz", 500)])
def test_a_line_of_gigabytes_is_told_in_constant_memory(
    tmp_path: Path,
    suffix: str,
    megabytes: int,
) -> None:
    path = bomb(tmp_path / f"bomb.jsonl.{suffix}", bytes(1 << 20), megabytes)
    assert path.stat().st_size < 2_000_000
    said, most = measured(path)
    assert "more than 50,000,000 bytes" in said
    assert most < 300


@pytest.mark.slow
def test_gigabytes_of_newlines_end(tmp_path: Path) -> None:
    said, most = measured(bomb(tmp_path / "bomb.jsonl.zst", b"\n" * (1 << 20), 10_000))
    assert "empty lines in a row" in said
    assert most < 300


def test_a_parquet_cell_of_gigabytes_is_never_decoded(tmp_path: Path) -> None:
    """A footer tells the sizes of columns before they are decoded."""
    path = tmp_path / "bomb.parquet"
    zeros = pa.array([bytes(1 << 29)], pa.large_binary()).view(pa.large_string())
    pq.write_table(
        pa.table({"text": zeros}),
        path,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
    )
    del zeros
    assert path.stat().st_size < 200_000
    said, most = measured(path)
    assert "rows longer than any document" in said
    assert most < 400
