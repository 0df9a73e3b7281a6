"""Arrays of JSON, and compressed text files (JSON Lines: test_corpus.py)."""

from __future__ import annotations

import gzip
import json
import tempfile
import tracemalloc
from pathlib import Path
from unittest import mock

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit import config
from recallkit.text import readers
from recallkit.text.corpus import open_corpus
from recallkit.text.records import Position
from tests.text.test_corpus import SKIPPING, fails, lines, read, zst

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100)
@given(st.lists(values, max_size=6), st.integers(1, 12), st.booleans(), st.sampled_from([None, 2]))
def test_items_are_those_of_pythons_json(items: list[object], block: int, ascii_only: bool, indent: int | None) -> None:
    written = json.dumps(items, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    blocks = [written[start : start + block] for start in range(0, len(written), block)]
    found = [json.loads(item) for item in readers.array_items(blocks)]
    assert found == json.loads(written.decode("utf-8", "surrogateescape"))


def test_objects_texts_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "wiki.json"
    path.write_text(' \n[ {"text": "one", "source": "s"}, "two" ,\n{"content": "three"}]\n')
    documents = list(open_corpus([str(path)]).documents())
    assert [(d.text, d.source, d.id) for d in documents] == [
        ("one", "s", f"{path}:0"),
        ("two", "wiki", f"{path}:1"),
        ("three", "wiki", f"{path}:2"),
    ]
    assert list(open_corpus([str(path)]).documents(Position(0, 2))) == documents[2:]
    path.write_bytes(lines({"text": "lines"}, {"text": "in fact"}))
    assert read(path) == ["lines", "in fact"]


@settings(max_examples=30)
@given(st.lists(st.text(max_size=10), min_size=1, max_size=8), st.integers(1, 30))
def test_arrays_are_reentered_at_every_position(texts: list[str], block_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as name, mock.patch.object(readers, "BLOCK_BYTES", block_bytes):
        Path(name, "a.json").write_text(json.dumps([{"text": text} for text in texts]))
        corpus = open_corpus([name])
        documents = list(corpus.documents())
        assert [d.text for d in documents] == texts
        for record in range(len(texts) + 1):
            assert list(corpus.documents(Position(0, record))) == documents[record:]


@pytest.mark.parametrize(
    ("content", "message", "kept"),
    [
        (b'["a", 5, "b"]', "record 2: neither an object nor a text", ["a", "b"]),
        (b'["a", "\xff", "b"]', "record 2: not JSON", ["a", "b"]),
        (b'["a", "\\ud800", "b"]', "record 2: not JSON", ["a", "b"]),
        (b'["a", {"no": 1}, "b"]', "record 2: no text in", ["a", "b"]),
        (b'["a", {broken}, "b"]', "record 2: not JSON", None),
        (b'["a", "b"', "record 3: not JSON (the end in place of , or ])", None),
        (b'["a", "b', "record 2: not JSON", None),
        (b'["a"] ["b"]', "record 2: not JSON (text after the end", None),
        (b"[" * 100_000, "record 1: not JSON (nested too deeply", None),
        (b"[]", "contains no record", None),
        (b"", "contains no record", None),
    ],
)
def test_bad_arrays(tmp_path: Path, content: bytes, message: str, kept: list[str] | None) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    assert message in fails(path)[1]
    if kept is None:
        assert message in fails(path, SKIPPING)[1]
    else:
        assert read(path, options=SKIPPING) == kept


def test_an_endless_item_ends_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "MAX_RECORD_BYTES", 1_000_000)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'["' + b"x" * 50_000_000 + b'"]'))
    tracemalloc.start()
    try:
        assert "a record of more than 1,000,000 bytes" in fails(tmp_path / "a.json.gz")[1]
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_compressed_text_files(tmp_path: Path) -> None:
    for suffix, compress in {".gz": gzip.compress, ".zst": zst}.items():
        (tmp_path / f"emma.txt{suffix}").write_bytes(compress("\ufeffEmma é".encode()))
        documents = list(open_corpus([str(tmp_path / f"emma.txt{suffix}")]).documents())
        assert [(d.text, d.source) for d in documents] == [("Emma é", "emma")]
    (tmp_path / "emma.txt.gz").write_bytes(gzip.compress(b"x" * 1000)[:-5])
    assert "cannot be read further" in fails(tmp_path / "emma.txt.gz")[1]


def test_a_longer_window_of_zstd_is_named_with_its_remedy(tmp_path: Path) -> None:
    content = lines({"text": "one"}, {"text": "two"})
    for bits in (27, 28, 31):
        settings_of = zstandard.ZstdCompressionParameters.from_level(3, window_log=bits, enable_ldm=True)
        compressor = zstandard.ZstdCompressor(compression_params=settings_of).compressobj()
        path = tmp_path / f"{bits}.jsonl.zst"
        path.write_bytes(compressor.compress(content) + compressor.flush())
        if bits == 27:
            assert read(path) == ["one", "two"]
        else:
            said = fails(path)[1]
            assert f"{path}: compressed with a longer window than readers allow" in said
            assert f"zstd -dc --long=31 {path.name} | zstd -o OTHER.zst" in said
            assert "truncated" not in said
