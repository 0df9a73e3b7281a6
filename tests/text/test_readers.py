"""Arrays of JSON, and compressed text files (JSON Lines: test_corpus.py)."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from recallkit import config
from recallkit.errors import UserError
from recallkit.text import readers, sources
from recallkit.text.corpus import CorpusOptions, open_corpus
from recallkit.text.records import Position
from tests.text.test_corpus import SKIPPING, fails, lines, read, zst


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


@pytest.mark.parametrize(
    ("content", "message", "texts"),
    [
        (b'["a", 5, "b"]', "record 2: neither an object nor a text", ["a", "b"]),
        (b'["a", {"no": 1}, "b"]', "record 2: no text in", ["a", "b"]),
        (b'["a", "%b"]' % (b"x" * 2000), "record 2: a record of more than 1,000 bytes", ["a"]),
        (b'["a", "\xff", "b"]', "a.json: invalid UTF-8 at byte 8", None),
        (b'["a",\n {broken}, "b"]', "a.json: not JSON", None),
        (b'["a", "b"', "a.json: not JSON", None),
        (b'["a"] ["b"]', "a.json: not JSON", None),
        (b"[" * 100_000, "a.json: not JSON", None),
        (
            b"[" + b"1," * 2000 + b"1]",
            "a.json: an array of more than 4,000 bytes; write it as JSON Lines",
            None,
        ),
        (b"[]", "a.json: contains no record", None),
        (b"", "a.json: contains no record", None),
    ],
)
def test_bad_arrays(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    message: str,
    texts: list[str] | None,
) -> None:
    monkeypatch.setattr(config, "MAX_RECORD_BYTES", 1000)
    monkeypatch.setattr(readers, "MAX_JSON_BYTES", 4000 if content.endswith(b"1]") else 1 << 20)
    path = tmp_path / "a.json"
    path.write_bytes(content)
    assert message in fails(path)[1]
    if texts is None:
        assert message in fails(path, SKIPPING)[1]
    else:
        assert read(path, options=SKIPPING) == texts


def test_a_name_that_is_too_long_is_refused_with_what_helps(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines({"text": "one", "source": "x" * 5000, "kind": "k"}))
    assert "its source has 5,000 characters" in fails(path)[1]
    assert "name another field with --source-field" in fails(path)[1]
    assert read(path, options=CorpusOptions(source_field="kind")) == ["one"]
    path.write_bytes(lines({"text": "one", "id": "x" * 5000}))
    assert "shorten it" in fails(path)[1]
    assert "--source-field" not in fails(path)[1]


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
        settings_of = zstandard.ZstdCompressionParameters.from_level(
            3,
            window_log=bits,
            enable_ldm=True,
        )
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


# ------------------------------------------------------------ what a file is, whatever it is called

ONE, TWO = lines({"text": "one"}), lines({"text": "two"})


@pytest.mark.parametrize(
    "name",
    [
        "a.jsonl",
        "a.jsonl.gz",
        "a.jsonl.zst",
        "a.ndjson",
        "a.ndjson.zstd",
        "a.jsonl.gzip",
        "a.json.zst",
    ],
)
@pytest.mark.parametrize("compress", [bytes, gzip.compress, zst])
def test_compression_is_told_by_the_first_bytes(
    tmp_path: Path,
    name: str,
    compress: Callable[[bytes], bytes],
) -> None:
    (tmp_path / name).write_bytes(compress(ONE + TWO))
    assert read(tmp_path / name) == ["one", "two"]


def test_zeros_after_gzip_are_passed_over_and_nothing_else(tmp_path: Path) -> None:
    path, first, second = tmp_path / "a.jsonl.gz", gzip.compress(ONE), gzip.compress(TWO)
    path.write_bytes(first + bytes(700) + second + bytes(3))
    assert read(path) == ["one", "two"]
    for damaged in (first + bytes(9) + b"more", first + second[:-9], first + bytes(5) + second[:5]):
        path.write_bytes(damaged)
        assert "cannot be read further" in fails(path, SKIPPING)[1]


NAN = rb'"score": NaN, "all": [-Infinity, {"NaN": Infinity}]'


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_numbers_that_json_does_not_have(tmp_path: Path, name: str) -> None:
    """As Python's json writes them, beside the text; not in it."""
    path, text = (
        tmp_path / name,
        b'{"text": "NaN, \\"NaN\\": Infinity \\\\", "meta": "{\\"source\\": \\"s\\", \\"x\\": NaN}", %s}',
    )
    path.write_bytes(text % NAN if name == "a.jsonl" else b"[%s]" % (text % NAN))
    [document] = open_corpus([str(path)]).documents()
    assert (document.text, document.source) == ('NaN, "NaN": Infinity \\', "s")
    path.write_bytes(b'{"text": "t", %s,}' % NAN)
    assert "not JSON" in fails(path)[1]
    path.write_bytes(b'{"text": "\\ud800", %s}' % NAN)
    assert "not JSON" in fails(path)[1]


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed, too; it can be read again, and its copy is gone at the end."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(ONE + TWO))))
    sources._spooled.cache_clear()
    corpus = open_corpus(["-"])
    assert (
        [d.text for d in corpus.documents()]
        == [d.text for d in corpus.documents()]
        == ["one", "two"]
    )
    assert {d.source for d in corpus.documents()} == {"stdin"}
    assert corpus.digests() == open_corpus(["-"]).digests()
    sources._spooled.cache_clear()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"no JSON\n")))
    assert "standard input, line 1: not JSON" in fails("-")[1]
    with pytest.raises(UserError, match="-: standard input is read once; name it once"):
        open_corpus(["-", "-"])
    sources._spooled.cache_clear()
