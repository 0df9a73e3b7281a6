"""Local corpora: what is found in which order, re-entry at every position, bad input, memory."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import tracemalloc
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit import config
from recallkit.errors import UserError
from recallkit.text import readers
from recallkit.text.corpus import CorpusOptions, open_corpus
from recallkit.text.records import Position

STRICT = CorpusOptions()
SKIPPING = CorpusOptions(skip_bad=True)


def zst(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(content)


ENCODERS = {".jsonl": bytes, ".jsonl.zst": zst, ".jsonl.gz": gzip.compress}


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def read(*arguments: object, options: CorpusOptions = STRICT) -> list[str]:
    corpus = open_corpus(list(map(str, arguments)), options)
    return [document.text for document in corpus.documents()]


def fails(path: Path | str, options: CorpusOptions = STRICT) -> tuple[list[str], str]:
    """The texts before the error, and its line."""
    texts = []
    with pytest.raises(UserError) as caught:
        texts.extend(document.text for document in open_corpus([str(path)], options).documents())
    line = caught.value.line()
    assert "\n" not in line
    assert caught.value.remedy
    return texts, line


# ------------------------------------------------------------------------------------------ formats


@pytest.mark.parametrize("suffix", ENCODERS)
def test_json_lines_in_every_compression(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"wiki{suffix}"
    path.write_bytes(
        ENCODERS[suffix](
            lines({"text": "a\nb é 漢"}, {"text": ""}) + b'\r\n{"text": "last, without an end"}',
        )
    )
    documents = list(open_corpus([str(path)]).documents())
    assert [d.text for d in documents] == ["a\nb é 漢", "", "last, without an end"]
    assert [d.position for d in documents] == [Position(0, 0), Position(0, 1), Position(0, 3)]
    assert {d.source for d in documents} == {"wiki"}
    assert [d.id for d in documents] == [f"{path}:0", f"{path}:1", f"{path}:3"]


def test_every_frame_and_member_is_read(tmp_path: Path) -> None:
    first, second = lines({"text": "one"}), lines({"text": "two"})
    skippable = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    (tmp_path / "a.jsonl.zst").write_bytes(
        zst(first) + skippable + zst(second[:5]) + zst(second[5:]),
    )
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(first) + gzip.compress(second))
    assert read(tmp_path) == ["one", "two", "one", "two"]


def test_text_files_are_documents(tmp_path: Path) -> None:
    folder = tmp_path / "books"
    (folder / "deep").mkdir(parents=True)
    (folder / "b.txt").write_bytes(b"\xef\xbb\xbfemma\r\n")
    (folder / "deep" / "a.TXT").write_text("persuasion")
    assert [(d.text, d.source) for d in open_corpus([str(folder)]).documents()] == [
        ("emma\r\n", "books"),
        ("persuasion", "deep"),
    ]
    assert [d.source for d in open_corpus([str(folder / "b.txt")]).documents()] == ["b"]


# ------------------------------------------------------------------------------------------- fields


@pytest.mark.parametrize(
    ("record", "source"),
    [
        ({"meta": {"pile_set_name": "ArXiv", "source": "x"}}, "ArXiv"),
        ({"meta": '{"pile_set_name": "ArXiv"}'}, "ArXiv"),
        ({"meta": '{"url": "u"}', "red_pajama_subset": "arxiv"}, "arxiv"),
        ({"meta": {"redpajama_set_name": "RedPajamaC4"}}, "RedPajamaC4"),
        ({"meta": {"source": 7}}, "7"),
        ({"source": "s", "meta": "not JSON"}, "s"),
        ({"source": None, "meta": {"source": ["no", "label"]}}, "shard-00"),
        ({"source": ""}, "shard-00"),
    ],
)
def test_source_is_found(tmp_path: Path, record: dict[str, object], source: str) -> None:
    (tmp_path / "shard-00.jsonl").write_bytes(lines({"text": "t", **record}))
    assert next(open_corpus([str(tmp_path)]).documents()).source == source


def test_text_and_id_are_found_record_by_record(tmp_path: Path) -> None:
    records = [
        {"content": "c", "doc_id": 5},
        {"raw_content": "r", "meta": {"id": "m"}},
        {"text": "t", "content": "c", "id": "i"},
    ]
    (tmp_path / "a.jsonl").write_bytes(lines(*records))
    assert [(d.text, d.id) for d in open_corpus([str(tmp_path)]).documents()] == [
        ("c", "5"),
        ("r", "m"),
        ("t", "i"),
    ]


def test_given_fields_replace_the_usual_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        lines(
            {"text": "no", "source": "no", "doc": {"body": "yes"}, "tag": '{"name": "wiki"}'},
            {"text": "no", "doc": {"body": "b"}},
        )
    )
    options = CorpusOptions(text_field="doc.body", source_field="tag.name")
    documents = open_corpus([str(path)], options).documents()
    first = next(documents)
    assert (first.text, first.source) == ("yes", "wiki")
    with pytest.raises(UserError, match=r"line 2: no source in tag\.name"):
        next(documents)


def test_a_name_with_dots_is_a_field_where_there_is_one_else_the_way_to_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    flat = {
        "doc.body": "flat",
        "doc": {"body": "nested"},
        "meta.pile_set_name": "ArXiv",
        "meta": {"pile_set_name": "Github"},
    }
    nested = {"doc": '{"body": "nested", "score": NaN}', "meta": {"pile_set_name": "Github"}}
    path.write_bytes(lines(flat, nested, {"doc.body": None, "doc": {"body": "nested"}}))
    documents = open_corpus([str(path)], CorpusOptions(text_field="doc.body")).documents()
    assert [(d.text, d.source) for d in (next(documents), next(documents))] == [
        ("flat", "ArXiv"),
        ("nested", "Github"),
    ]
    with pytest.raises(UserError, match=r"line 3: its doc\.body is null; fill it in"):
        next(documents)
    pq.write_table(
        pa.table({"doc.body": ["flat"], "a.b": [{"c": "part"}], "more": [1]}),
        tmp_path / "a.parquet",
    )
    for field, text in (("doc.body", "flat"), ("a.b.c", "part")):
        assert read(tmp_path / "a.parquet", options=CorpusOptions(text_field=field)) == [text]


def test_shards_of_a_folder_are_one_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("arxiv/0", "arxiv/1", "github/0", "hf/a/train/0", "hf/b/train/0"):
        Path(f"{name}.jsonl").parent.mkdir(parents=True, exist_ok=True)
        Path(f"{name}.jsonl").write_bytes(lines({"text": name}))

    def names(*arguments: str) -> list[str]:
        return [document.source for document in open_corpus(arguments).documents()]

    assert names("arxiv/0.jsonl") == ["0"]
    assert (
        names("arxiv")
        == names("arxiv/*.jsonl")
        == names("arxiv/0.jsonl", "arxiv/1.jsonl")
        == ["arxiv", "arxiv"]
    )
    assert names("arxiv", "github") == ["arxiv", "arxiv", "github"]
    assert names("*/*.jsonl") == ["arxiv", "arxiv", "github"]
    assert names("arxiv/0.jsonl", "github/0.jsonl") == ["arxiv", "github"]
    assert names("hf") == ["a/train", "b/train"]


# -------------------------------------------------------------------- what is found, in which order


def make_tree(root: Path) -> None:
    for name in (
        "b/1.jsonl",
        "a.jsonl",
        "b-0.jsonl",
        "b/0/2.jsonl",
        ".cache/x.jsonl",
        "b/.2.jsonl",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(lines({"text": name}))
    (root / "README.md").write_text("not a shard")


def test_folders_are_read_by_relative_path(tmp_path: Path) -> None:
    make_tree(tmp_path)
    assert read(tmp_path) == ["a.jsonl", "b-0.jsonl", "b/0/2.jsonl", "b/1.jsonl"]
    assert open_corpus([f"{tmp_path}/"]).shards[0].name == f"{tmp_path}/a.jsonl"


def test_a_file_is_read_once_for_one_argument(tmp_path: Path) -> None:
    make_tree(tmp_path)
    (tmp_path / "c.jsonl").symlink_to(tmp_path / "a.jsonl")
    assert read(tmp_path) == ["a.jsonl", "b-0.jsonl", "b/0/2.jsonl", "b/1.jsonl"]
    assert sorted(read(tmp_path / "b*")) == ["b-0.jsonl", "b/0/2.jsonl", "b/1.jsonl"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("missing.jsonl", "missing.jsonl: no such file"),
        ("*.parquet", "matches no file"),
        (
            "notes.md",
            (
                "not a supported kind of file; give .jsonl, .ndjson, .json, .csv, .tsv, .txt, .fa "
                "(also .gz, .zst), .parquet, .arrow"
            ),
        ),
        ("*.md", "not a supported kind of file"),
        (
            "empty",
            "no file of text in this folder; name the folder that contains the shards: .jsonl,",
        ),
        ("away.jsonl", "no such file; it is a broken link"),
        ("*.jsonl", "no such file; it is a broken link"),
        ("piles", "did you mean pile?"),
        ("pile:dev", "choose pile:train or pile:validation or pile:test"),
        ("redpajama:test", "choose redpajama:train"),
        ("demo:test", "choose demo:train, demo:validation"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argument: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "away.jsonl").symlink_to("nowhere.jsonl")
    with pytest.raises(UserError) as caught:
        open_corpus([argument])
    assert message in caught.value.line()


def test_presets_and_hub_ids_take_the_default_split() -> None:
    corpus = open_corpus(
        ["pile", "slimpajama:test", "owner/name", "owner/name:dev", "demo"],
        default_split="validation",
    )
    assert [shard.name for shard in corpus.shards] == [
        "pile:validation",
        "slimpajama:test",
        "owner/name:validation",
        "owner/name:dev",
        "demo:validation",
    ]
    assert len(set(corpus.digests())) == 5


def test_a_digest_changes_with_content(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines({"text": "a"}))
    corpus = open_corpus([str(path)])
    before = corpus.digests()
    path.write_bytes(lines({"text": "b"}))
    assert corpus.shards[0].name == str(path)
    assert before != corpus.digests()
    path.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        corpus.digests()


# ----------------------------------------------------------------------------------------- re-entry

json_line = st.one_of(
    st.text(max_size=12).map(lambda text: json.dumps({"text": text}).encode()),
    st.text(st.characters(codec="utf-8"), max_size=12).map(
        lambda text: json.dumps({"text": text}, ensure_ascii=False).encode(),
    ),
    st.sampled_from(
        [
            b"",
            b"  ",
            b"{",
            b"[]",
            b'{"no": 1}',
            b'{"text": null}',
            b"\xff",
            b'{"text": "' + b"x" * 40 + b'"}',
        ]
    ),
)


def assert_reenters(folder: Path) -> None:
    corpus = open_corpus([str(folder)], SKIPPING)
    documents = list(corpus.documents())
    assert corpus.report.num_documents == len(documents)
    for index in range(len(corpus.shards) + 1):
        for record in range(max((d.position.record for d in documents), default=0) + 2):
            start = Position(index, record)
            assert list(corpus.documents(start)) == [d for d in documents if d.position >= start]


@settings(max_examples=30)
@given(
    st.lists(st.lists(json_line, max_size=8), min_size=1, max_size=2),
    st.sampled_from(list(ENCODERS)),
    st.integers(4, 30),
    st.booleans(),
)
def test_lines_are_reentered_at_every_position(
    shards: list[list[bytes]],
    suffix: str,
    block_bytes: int,
    ends_open: bool,
) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(readers, "BLOCK_BYTES", block_bytes),
        mock.patch.object(config, "MAX_RECORD_BYTES", 50),
    ):
        for index, content in enumerate(shards):
            all_lines = [b'{"text": "first"}', *content, b'{"text": "last"}']
            Path(name, f"{index}{suffix}").write_bytes(
                ENCODERS[suffix](b"\n".join(all_lines) + (b"" if ends_open else b"\n")),
            )
        assert_reenters(Path(name))
        texts = read(name, options=SKIPPING)
        assert texts == [
            text for content in shards for text in ["first", *expected_texts(content), "last"]
        ]


def expected_texts(content: list[bytes]) -> list[str]:
    """What Python's own JSON makes of the lines."""
    texts = []
    for line in content:
        try:
            record = json.loads(line.decode())
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("text"), str) and len(line) <= 50:
            texts.append(record["text"])
    return texts


# ---------------------------------------------------------------------------------------- bad input

GOOD = lines({"text": "good"})
BAD_LINES = {
    b"{not json": "not JSON (",
    b'"a string"': "not a JSON object",
    b'{"body": "x", "title": "y"}': (
        "no text in text or content or raw_content (the record has: body, title)"
    ),
    b"{}": "the record is empty",
    b'{"text": null}': "its text is null",
    b'{"text": ["a"]}': "text is a list, not text",
    b'{"text": 5}': "text is a number, not text",
    b'{"text": "\xff"}': "invalid UTF-8 at byte 11 of the line",
    b'{"text": "\xed\xa0\x80"}': "invalid UTF-8",
    b'{"text": "\\ud800"}': "surrogate",
}


@pytest.mark.parametrize(("line", "message"), BAD_LINES.items())
def test_a_bad_line_stops_or_is_counted(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD + b"\n" + line + b"\n" + GOOD)
    texts, error = fails(path)
    assert texts == ["good"]
    assert f"{path}, line 3: " in error
    assert message in error
    assert "--skip-bad" in error
    corpus = open_corpus([str(path)], SKIPPING)
    assert [d.position.record for d in corpus.documents()] == [0, 3]
    assert (corpus.report.num_documents, corpus.report.num_skipped) == (2, 1)
    assert f"{path}, line 3: " in corpus.report.first_skipped[0]


@pytest.mark.parametrize("options", [STRICT, SKIPPING])
@pytest.mark.parametrize("suffix", [".jsonl.zst", ".jsonl.gz"])
def test_cut_off_and_corrupt_shards_stop(
    tmp_path: Path,
    suffix: str,
    options: CorpusOptions,
) -> None:
    complete = ENCODERS[suffix](lines(*({"text": os.urandom(500).hex()} for _ in range(3000))))
    path = tmp_path / f"a{suffix}"
    middle = len(complete) // 2
    for damaged in (complete[:middle], complete[:-3], complete + b"trailing", b"never\0compressed"):
        path.write_bytes(damaged)
        texts, error = fails(path, options)
        assert f"{path}, line {len(texts) + 1}: cannot be read further" in error
        assert all(len(text) == 1000 for text in texts)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "a.jsonl.gz", "a.parquet", "a.txt"])
def test_an_empty_shard_stops(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    else:
        path.write_bytes(ENCODERS.get(name[1:], bytes)(b"" if name == "a.txt" else b"\n \n"))
    assert "contains no record" in fails(path, SKIPPING)[1]
    path.write_bytes(b"")
    assert str(path) in fails(path, SKIPPING)[1]


def test_bad_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 no more PAR1")
    assert "cannot be read further" in fails(path, SKIPPING)[1]
    pq.write_table(pa.table({"body": ["x"], "n": [1]}), path)
    assert (
        f"{path}: no text in text or content or raw_content (the record has: body, n)"
        in fails(path, SKIPPING)[1]
    )
    not_text = pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary())
    pq.write_table(
        pa.table({"text": pa.StringArray.from_buffers(3, *not_text.buffers()[1:])}),
        path,
    )
    assert fails(path) == (
        ["good"],
        (
            f"{path}, row 1: invalid UTF-8; write the file again from valid text, or leave bad "
            "records out with --skip-bad"
        ),
    )
    assert read(path, options=SKIPPING) == ["good", "fine"]


@pytest.mark.parametrize("suffix", [*ENCODERS, ".parquet", ".txt"])
def test_records_over_the_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
) -> None:
    monkeypatch.setattr(config, "MAX_RECORD_BYTES", 1000)
    path, long = tmp_path / f"a{suffix}", "é" * 600
    if suffix == ".parquet":
        pq.write_table(pa.table({"text": ["good", long, "good"]}), path)
    elif suffix == ".txt":
        path.write_text(long)
    else:
        path.write_bytes(
            ENCODERS[suffix](
                GOOD + json.dumps({"text": long}, ensure_ascii=False).encode() + b"\n" + GOOD,
            )
        )
    expected = [] if suffix == ".txt" else ["good"]
    texts, error = fails(path)
    assert texts == expected
    assert "a record of more than 1,000 bytes" in error
    assert read(path, options=SKIPPING) == expected * 2


AROUND_EMPTY_LINES = {
    ".jsonl": (b"", GOOD),
    ".jsonl.gz": (GOOD, GOOD),
    ".json": (b"", b'["good"]'),
    ".csv": (b"text\ngood\n", b"good"),
    ".fasta": (b">a\nA\n", b"C"),
}


@pytest.mark.parametrize("suffix", AROUND_EMPTY_LINES)
def test_more_empty_lines_than_bytes_of_a_record_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
) -> None:
    """A small compressed file can contain hours of them."""
    monkeypatch.setattr(readers, "_MOST_EMPTY_BYTES", 100)
    path, encode, (first, last) = (
        tmp_path / f"a{suffix}",
        gzip.compress if suffix.endswith(".gz") else bytes,
        AROUND_EMPTY_LINES[suffix],
    )
    path.write_bytes(encode(first + b" \r\n" * 30 + last + b"\n" * 60))
    assert read(path)
    path.write_bytes(encode(first + b" \r\n" * 34 + last + b"\n"))
    assert (
        "a" + suffix + ": more than 100 bytes of empty lines in a row" in fails(path, SKIPPING)[1]
    )


# ------------------------------------------------------------------------------------------- memory


def write_zst(path: Path, block: bytes, times: int) -> None:
    with path.open("wb") as file, zstandard.ZstdCompressor(level=1).stream_writer(file) as writer:
        for _ in range(times):
            writer.write(block)


@pytest.mark.parametrize("options", [STRICT, SKIPPING])
def test_an_endless_line_is_never_held(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: CorpusOptions,
) -> None:
    monkeypatch.setattr(config, "MAX_RECORD_BYTES", 2_000_000)
    path = tmp_path / "a.jsonl.zst"
    write_zst(path, b"x" * 1_000_000, 100)
    tracemalloc.start()
    try:
        if options.skip_bad:
            assert read(path, options=options) == []
        else:
            assert "line 1: a record of more than 2,000,000 bytes" in fails(path)[1]
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
