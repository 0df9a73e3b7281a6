"""Token ids in place of text: results are those of the text that they are of, in every form;
hostile and mistaken files."""

from __future__ import annotations

import io
import json
import re
import struct
import tempfile
import warnings
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recallkit
from recallkit.errors import UserError
from recallkit.text import token_files
from recallkit.text.corpus import Corpus, CorpusOptions, open_corpus, open_texts
from recallkit.text.records import Position, Vocabulary
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import ROOT, made_up_texts
from tests.text.test_corpus import lines

END = 0
SMALL = CorpusOptions(vocabulary=Vocabulary("small", 100, END, end_is_text=False))

Ids = list[np.ndarray]


def ids_in(source: object, options: CorpusOptions = SMALL) -> list[list[int]]:
    """The documents of a file or folder."""
    return [document.ids.tolist() for document in open_corpus([str(source)], options).documents()]


def llm_c(ids: np.ndarray, magic: int, version: int) -> bytes:
    """A file as dev/data/data_common.py of llm.c writes it."""
    header = np.zeros(256, np.int32)
    header[:3] = magic, version, len(ids)
    return header.tobytes() + ids.tobytes()


def megatron_index(
    code: int,
    lengths: list[int],
    documents: list[int] | None = None,
    width: int = 2,
) -> bytes:
    """An .idx as megatron/core/datasets/indexed_dataset.py writes it; `documents` are numbers of
    sequences."""
    ends = np.cumsum([0, *lengths]) * width
    firsts = list(range(len(lengths) + 1)) if documents is None else documents
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(firsts))
    arrays = (np.array(lengths, "<i4"), ends[:-1].astype("<i8"), np.array(firsts, "<i8"))
    return head + b"".join(array.tobytes() for array in arrays)


# ---------------------------------------------------------------------------------------- documents


def documents_of(ids: list[int]) -> list[tuple[int, list[int]]]:
    """The documents of a flat stream, one id after the other: where each begins, and its ids."""
    result, begun, document = [], 0, []
    for place, token in enumerate([*ids, END]):
        if token != END:
            document.append(token)
            continue
        if document:
            result.append((begun, document))
        begun, document = place + 1, []
    return result


@settings(max_examples=80)
@given(st.lists(st.sampled_from([END, END, 1, 2, 99]), min_size=1, max_size=14), st.integers(1, 4))
def test_a_stream_is_divided_and_reentered_at_every_position(ids: list[int], block: int) -> None:
    expected = documents_of(ids)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(token_files, "_BLOCK_IDS", block),
    ):
        np.array(ids, "<u2").tofile(Path(folder, "a.bin"))
        np.save(Path(folder, "b.npy"), np.array(ids, np.int64))
        for name in ("a.bin:uint16", "b.npy"):
            corpus = open_corpus([f"{folder}/{name}"], SMALL)
            if not expected:
                with pytest.raises(UserError, match="contains no record"):
                    list(corpus.documents())
                continue
            result = list(corpus.documents())
            assert [(d.position.record, d.ids.tolist()) for d in result] == expected
            for record in range(1, len(ids) + 2):
                again = corpus.documents(Position(0, record))
                assert [d.position for d in again] == [
                    d.position for d in result if d.position.record >= record
                ]


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from([END, 1, 2]), min_size=1, max_size=14),
    st.integers(2, 6),
    st.integers(1, 4),
)
def test_pieces_have_the_same_documents(ids: list[int], most: int, block: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(token_files, "PIECE_BYTES", 4),
        mock.patch.object(token_files, "_BLOCK_IDS", block),
    ):
        np.array(ids, "<u2").tofile(Path(folder, "a.bin"))
        shard = open_corpus([f"{folder}/a.bin:uint16"], SMALL).shards[0]
        pieces = shard.pieces(most)
        assert len(pieces) == max(1, min(most, len(ids) // 2))
        assert sum(piece.size() for piece in pieces) == shard.size() == 2 * len(ids)
        assert {piece.digest() for piece in pieces} == {shard.digest()}
        expected = documents_of(ids)
        if len(pieces) > 1 or expected:
            corpus = Corpus(pieces, SMALL)
            result = list(corpus.documents())
            assert [(d.position.record, d.ids.tolist()) for d in result] == expected
            for document in result:
                again = list(
                    corpus.documents(
                        Position(document.position.shard, document.position.record + 1),
                    )
                )
                assert [d.position for d in again] == [
                    d.position for d in result if d.position > document.position
                ]


def test_a_stream_without_end_tokens_is_a_document_of_bounded_length(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    np.arange(1, 90, dtype=np.uint16).tofile(tmp_path / "a.bin")
    assert [len(d.ids) for d in open_corpus([str(tmp_path)], SMALL).documents()] == [89]
    monkeypatch.setattr(token_files, "LONGEST_DOCUMENT", 50)
    with pytest.raises(
        UserError,
        match=r"a\.bin, document from id 0: no end token \(id 0\) among 50 ids; name .* --end-token",
    ):
        ids_in(tmp_path)


@pytest.mark.parametrize("form", ["bin", "npy", "LITPKDS"])
def test_a_stream_whose_documents_only_begin_is_refused(tmp_path: Path, form: str) -> None:
    begin, path = 50, tmp_path / f"a.{'npy' if form == 'npy' else 'bin'}"

    def read(ids: list[int], end: int = END) -> list[list[int]]:
        vocabulary = Vocabulary("small", 100, end, end_is_text=False, frame_ids=(begin,))
        array, saved = np.array(ids, "<u2"), io.BytesIO()
        np.save(saved, array)
        head = b"LITPKDS" + struct.pack("<QBQ", 1, 8, len(ids))
        content = {"bin": array, "npy": saved.getvalue(), "LITPKDS": head + array.tobytes()}[form]
        options, dtype = CorpusOptions(vocabulary=vocabulary), ":uint16" if form == "bin" else ""
        return read_ids(path, content, options, dtype)

    stream = [begin, 5, 6, begin, 7, begin, 8]
    message = r"no end token \(id 0\), but 3 times id 50; name it with --end-token"
    with pytest.raises(UserError, match=message):
        read(stream)
    assert read(stream, end=begin) == [[5, 6], [7], [8]]
    assert read([begin, 5, 6, begin, begin]) == [[5, 6]]
    assert read([begin, 5, 6, END, begin, 7]) == [[5, 6], [7]]


def test_a_rows_last_end_token_is_ours(tmp_path: Path) -> None:
    rows = [[1, 2, END], [1, END, 2], [END], [], [3, END, END]]
    (tmp_path / "a.jsonl").write_bytes(lines(*({"input_ids": row} for row in rows)))
    expected = [[1, 2], [1, END, 2], [], [], [3]]
    assert ids_in(tmp_path) == expected
    bytes_vocabulary = CorpusOptions(
        vocabulary=load_tokenizer("bytes", end_token="<0x00>").vocabulary,
    )
    assert ids_in(tmp_path, bytes_vocabulary) == rows  # there it may be text


# ---------------------------------------------------------------------- the same results as of text


def write_jsonl_ids(folder: Path, ids: Ids, sources: list[str]) -> str:
    rows = (
        {"input_ids": row_ids.tolist(), "source": source}
        for row_ids, source in zip(ids, sources, strict=True)
    )
    (folder / "ids.jsonl").write_bytes(lines(*rows))
    return "ids.jsonl"


def write_parquet_ids(folder: Path, ids: Ids, sources: list[str]) -> str:
    kind = pa.list_(pa.int32())
    column = pa.array([row.astype(np.int32) for row in ids], kind)
    mask = pa.array([np.ones(len(row), np.int32) for row in ids], kind)
    pq.write_table(
        pa.table({"input_ids": column, "attention_mask": mask, "source": sources}),
        folder / "ids.parquet",
        row_group_size=7,
    )
    return "ids.parquet"


def write_saved_ids(folder: Path, ids: Ids, sources: list[str]) -> str:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"input_ids": ids, "source": sources}).save_to_disk(
        folder / "saved",
        num_shards=2,
    )
    return "saved"


def joined(ids: Ids, end: int, dtype: str, *, end_first: bool = False) -> np.ndarray:
    pieces = [
        [np.array([end]), row_ids] if end_first else [row_ids, np.array([end])] for row_ids in ids
    ]
    return np.concatenate([part for piece in pieces for part in piece]).astype(dtype)


FLAT: dict[str, Callable[[Path, Ids, int], str]] = {}


def flat(write: Callable[[Path, Ids, int], str]) -> Callable[[Path, Ids, int], str]:
    FLAT[write.__name__] = write
    return write


@flat
def nanogpt(folder: Path, ids: Ids, end: int) -> str:
    joined(ids, end, "<u2").tofile(folder / "train.bin")
    return "train.bin"


@flat
def of_a_given_type(folder: Path, ids: Ids, end: int) -> str:
    joined(ids, end, "<u4").tofile(folder / "wide.bin")
    return "wide.bin:uint32"


@flat
def llm_c_file(folder: Path, ids: Ids, end: int) -> str:
    (folder / "fineweb_val_000000.bin").write_bytes(
        llm_c(joined(ids, end, "<u2", end_first=True), 20240520, 1),
    )
    return "fineweb_val_000000.bin"


@flat
def megatron(folder: Path, ids: Ids, end: int) -> str:
    joined(ids, end, "<i4").tofile(folder / "text_document.bin")
    (folder / "text_document.idx").write_bytes(
        megatron_index(4, [len(row_ids) + 1 for row_ids in ids], width=4),
    )
    return "text_document.bin"


@flat
def array_of_rows(folder: Path, ids: Ids, end: int) -> str:
    stream = joined(ids, end, "<i8")
    np.save(
        folder / "rows.npy",
        stream[: len(stream) // 2 * 2].reshape(2, -1) if len(stream) % 2 == 0 else stream,
    )
    return "rows.npy"


def results(out: Path, **text: object) -> list[pl.DataFrame]:
    """Labels, sequences and counts of a text."""
    recallkit.count(**text, out=out / "counts.duckdb")
    recallkit.slice(**text, out=out / "slices", counts=out / "counts.duckdb", seq_len=256)
    labelled = [
        pl.read_parquet(out / "slices" / f"{name}.parquet") for name in ("tokens", "sequences")
    ]
    return [*labelled, recallkit.bigrams(out / "counts.duckdb")]


def test_ids_give_what_their_text_gives(tmp_path: Path) -> None:
    """Rows; a flat file, too, which knows no sources."""
    tokenizer, file = load_tokenizer(None), ROOT / "recallkit/data/tokenizer.json"
    texts, sources = made_up_texts(20, 60), ["a", "b"] * 10
    encoded, offsets = tokenizer.encode(texts)
    ids = [encoded[start:stop] for start, stop in pairwise(offsets)]
    rows = [{"text": text, "source": source} for text, source in zip(texts, sources, strict=True)]
    expected = results(tmp_path / "text", tokenizer=file, texts=rows)
    for name in (
        write_parquet_ids(tmp_path, ids, sources),
        nanogpt(tmp_path, ids, tokenizer.end_token_id),
    ):
        tables = results(tmp_path / "of" / name, tokenizer=file, sources=f"{tmp_path}/{name}")
        for table, wanted in zip(tables, expected, strict=True):
            has_sources = name.endswith(".parquet")
            columns = [c for c in wanted.columns if has_sources or "source" not in c]
            assert table.select(columns).equals(wanted.select(columns)), name


def test_every_form_has_the_same_ids(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids, sources = (
        [rng.integers(1, 100, size).astype(np.uint32) for size in (5, 1, 40, 9)],
        ["a", "b", "a", "a"],
    )
    options = CorpusOptions(vocabulary=Vocabulary("small", 100, END, end_is_text=False))
    files = [
        write(tmp_path, ids, sources)
        for write in (write_jsonl_ids, write_parquet_ids, write_saved_ids)
    ]
    for name in [*files, *(write(tmp_path, ids, END) for write in FLAT.values())]:
        result = ids_in(f"{tmp_path}/{name}", options)
        assert result == [row_ids.tolist() for row_ids in ids], name


# ------------------------------------------------------------------------------------------- fields


def test_text_comes_before_ids_unless_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        lines({"text": "t", "input_ids": [1]}, {"text": None, "input_ids": [2]}),
    )
    assert [(d.text, d.ids) for d in open_corpus([str(tmp_path)], SMALL).documents()] == [
        ("t", None),
        ("", np.array([2])),
    ]
    by_field = CorpusOptions(text_field="input_ids", vocabulary=SMALL.vocabulary)
    assert ids_in(tmp_path, by_field) == [
        [1],
        [2],
    ]
    table = pa.table({"text": ["t"], "input_ids": pa.array([[1, 2]], pa.list_(pa.uint16()))})
    pq.write_table(table, tmp_path / "b.parquet")
    assert [d.text for d in open_corpus([str(tmp_path / "b.parquet")], SMALL).documents()] == ["t"]
    assert ids_in(tmp_path / "b.parquet", by_field) == [[1, 2]]


@pytest.mark.parametrize(
    "ids",
    [[1.5], ["a"], [[1], [2]], [[1], 2], [True], [1, None], 5, "1 2", {"a": 1}, [2**70]],
)
def test_what_is_no_list_of_ids(tmp_path: Path, ids: object) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"input_ids": [1]}, {"input_ids": ids}]))
    with pytest.raises(
        UserError,
        match=r"record 2: (input_ids is not a list of whole numbers|not JSON)",
    ):
        ids_in(tmp_path)


# ----------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("bad", [100, -100, 2**40])
def test_ids_out_of_the_vocabulary_are_refused(tmp_path: Path, bad: int) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"input_ids": [1]}, {"input_ids": [1, 2, bad]}))
    np.save(tmp_path / "a.npy", np.array([1, 0, 5, 6, bad, 7]))
    for name, place, number in (("a.jsonl", "line 2", 2), ("a.npy", "document from id 2", 2)):
        for skip_bad in (False, True):
            options = CorpusOptions(skip_bad=skip_bad, vocabulary=SMALL.vocabulary)
            message = rf"{name}, {place}: number {number} of its ids \(from 0\) is {bad:,}, not one of the 100 of small; name their own "
            with pytest.raises(UserError, match=message):
                ids_in(tmp_path / name, options)
    with pytest.raises(UserError, match=r"texts\[0\]: number 0 of its ids"):
        list(open_texts([{"input_ids": [bad]}], SMALL).documents())


def test_ids_need_their_tokenizer(tmp_path: Path, home: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"input_ids": [1, 2]}))
    np.save(tmp_path / "a.npy", np.array([1, 2]))
    (tmp_path / "a.bin").write_bytes(b"\1\0\2\0")
    for name in ("a.jsonl", "a.npy", "a.bin"):
        with pytest.raises(
            UserError,
            match=rf"{name}.*: token ids, and no tokenizer is named; name theirs with --tokenizer",
        ):
            recallkit.slice(tmp_path / name, tmp_path / "slices")


LARGE = CorpusOptions(vocabulary=Vocabulary("large", 130_000, END, end_is_text=False))
MANY = [*range(1, 100), END] * 2
"""Enough different ids to tell types by."""


def read_ids(
    path: Path,
    content: np.ndarray | bytes,
    options: CorpusOptions = SMALL,
    dtype: str = "",
) -> list[list[int]]:
    """The documents of a file with this content, whose type is named as `:uint16`."""
    path.write_bytes(content if isinstance(content, bytes) else content.tobytes())
    return ids_in(f"{path}{dtype}", options)


def refused(
    path: Path,
    content: np.ndarray | bytes,
    options: CorpusOptions = SMALL,
    dtype: str = "",
) -> str:
    with pytest.raises(UserError) as caught:
        read_ids(path, content, options, dtype)
    assert caught.value.remedy
    return caught.value.line()


@pytest.mark.parametrize("dtype", ["<u2", "<i2", "<u4", "<i4", "<u8", "<i8"])
@pytest.mark.parametrize("largest", [99, 129_999])
def test_the_type_of_a_file_without_a_header_is_the_one_that_its_ids_have(
    tmp_path: Path,
    dtype: str,
    largest: int,
) -> None:
    """Whatever is named: another type is refused, with the right one."""
    options, path = SMALL if largest == 99 else LARGE, tmp_path / "a.bin"
    if dtype.endswith("2") and options is LARGE:
        # 16 bits have no room for such ids
        assert "name their own --tokenizer" in refused(
            path,
            np.array(MANY, dtype),
            options,
        )
        return
    expected, name = [[*range(1, 99), largest]] * 2, np.dtype(dtype).name
    stream = np.array([token for row in expected for token in (*row, END)], dtype)
    assert (
        read_ids(path, stream, options) == read_ids(path, stream, options, f":{name}") == expected
    )
    assert "name their own --tokenizer" in refused(path, stream + 90, options)
    right = np.dtype(dtype).itemsize * 8
    for other in ("uint8", "uint16", "int32", "uint64"):
        if not other.endswith(str(right)):
            assert refused(path, stream, options, f":{other}").endswith(f"int{right}")
    raw = tmp_path / "raw.npy"
    message = rf"no header, and its ids fit the .* as (u?int{right}); name their type: {raw}:\1"
    assert re.search(message, refused(raw, stream, options))
    assert read_ids(raw, stream, options, f":{name}") == expected


def test_a_short_file_is_of_no_type_by_luck(tmp_path: Path) -> None:
    path, document = tmp_path / "a.bin", [1, 2, 3, 4]
    narrow, wide = np.array(document, "<u2"), np.array(document, "<u4")
    middle = CorpusOptions(vocabulary=Vocabulary("middle", 1000, END, end_is_text=False))
    assert read_ids(path, narrow, middle) == read_ids(path, wide, LARGE) == [document]
    assert read_ids(path, narrow, LARGE, ":uint16") == [document]
    assert read_ids(path, wide, middle, ":INT32") == [document]
    assert read_ids(path, wide, middle, ":uint16") == [[1], [2], [3], [4]]
    type_ = f"name their type: {path}:TYPE"
    assert f"as uint16 or uint32; {type_}" in refused(path, wide, middle)
    zeros = refused(path, np.zeros(40, "<u2"), LARGE)
    assert f"as uint16 or uint32 or int64; {type_}" in zeros
    cut = np.array(MANY, "<u4").tobytes()[:-2]
    assert "7 bytes are not a whole number" in refused(path, b"1234567", LARGE, ":uint16")
    assert "798 bytes are not a whole number of ids of 4 bytes" in refused(path, cut)
    assert "contains no record" in refused(path, b"")


@pytest.mark.parametrize("dtype", [">u2", ">i4", "<f4", "<f8"])
@pytest.mark.parametrize("size", [100, 50_257])
def test_what_no_type_fits_is_to_be_written_as_ids(tmp_path: Path, dtype: str, size: int) -> None:
    ids = np.random.default_rng(0).integers(1, size, 1000).astype(dtype)
    options = CorpusOptions(vocabulary=Vocabulary("gpt2", size, END, end_is_text=False))
    line = refused(tmp_path / "a.bin", ids, options)
    assert "as no type; name their own --tokenizer, or write them as little-endian whole" in line
    assert "without a header, or numpy.save's" in line


def test_known_formats_are_told_by_their_magic(tmp_path: Path) -> None:
    path, ids = tmp_path / "a.bin", np.array(MANY, "<u2")
    lit_gpt = b"LITPKDS" + struct.pack("<QBQ", 1, 8, len(ids)) + ids.tobytes()
    saved, several, documents = io.BytesIO(), io.BytesIO(), [list(range(1, 100))] * 2
    np.save(saved, ids)
    for content in (lit_gpt, llm_c(ids, 20240520, 1), saved.getvalue()):
        assert read_ids(path, content) == read_ids(path, content, dtype=":uint16") == documents
        message = "its ids are uint16, by its header or index; leave out :int32"
        assert message in refused(path, content, dtype=":int32")
    for part in (ids, ids[:4]):
        np.save(several, part)
    items = [ids[:50].tobytes(), ids[50:].tobytes()]
    offsets = np.cumsum([16, *map(len, items)]).astype("<u4")
    version, code = struct.pack("<Q", 1), struct.pack("<QB", 1, 8)
    messages = {
        lit_gpt[:-2]: "199 ids, where its header has 200; copy it again",
        llm_c(ids, 20240520, 1)[:-2]: "199 ids, where its header has 200; copy it again",
        llm_c(ids, 20240520, 3): "unknown version 3 of llm.c's format",
        lit_gpt.replace(version, struct.pack("<Q", 2)): "unknown version 2 of lit-gpt's format",
        lit_gpt.replace(
            code,
            struct.pack("<QB", 1, 9),
        ): "unknown type 9 of ids; write ids as whole",
        lit_gpt[:20]: "its header is truncated; copy it again",
        several.getvalue(): "136 bytes after its array, as if several",
        struct.pack("<I", 2) + offsets.tobytes() + b"".join(items): "a chunk of litdata",
    }
    for content, message in messages.items():
        assert message in refused(path, content), message


def test_text_is_no_file_of_ids(tmp_path: Path) -> None:
    content = b"Text as ids of 16 bits: " * 40
    for dtype in ("", ":uint16"):
        assert "text, not ids; name it as text: .txt" in refused(
            tmp_path / "a.bin",
            content,
            LARGE,
            dtype,
        )
    of_bytes = CorpusOptions(vocabulary=load_tokenizer("bytes").vocabulary)
    assert read_ids(tmp_path / "a.bin", content, of_bytes) == [list(content)]


def test_padding_of_files_is_no_text(tmp_path: Path) -> None:
    stream = np.array(MANY, "<u2")
    ends, zeros = np.zeros(5000, "<u2"), np.full(5000, 7, "<u2")
    assert read_ids(tmp_path / "a.bin", np.concatenate([ends, stream, ends])) == read_ids(
        tmp_path / "a.bin",
        stream,
    )
    assert "its last 1,024 ids are all 7, as where it was filled up" in refused(
        tmp_path / "a.bin",
        np.concatenate([stream, zeros]),
    )


# ---------------------------------------------------------------------------- documents by an index


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=6), st.data())
def test_documents_are_those_of_the_index(sequences: list[list[int]], data: st.DataObject) -> None:
    """Whatever end tokens they contain; also of several sequences, in pieces, and from every record
    on."""
    firsts = sorted(
        {0, len(sequences), *data.draw(st.lists(st.integers(0, len(sequences)), max_size=4))},
    )
    expected = [list(chain(*sequences[at:stop])) for at, stop in pairwise(firsts)]
    flat = np.array(list(chain(*sequences)), "<u2")
    if not len(flat):
        return
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(token_files, "PIECE_BYTES", 4):
        flat.tofile(Path(folder, "a.bin"))
        Path(folder, "a.idx").write_bytes(megatron_index(8, list(map(len, sequences)), firsts))
        shard = open_corpus([folder], SMALL).shards[0]
        records = list(shard.records(0, pytest.fail))
        assert [(number, row["input_ids"].tolist()) for number, row in records] == list(
            enumerate(expected),
        )
        for first in range(len(expected) + 1):
            assert [number for number, _ in shard.records(first, pytest.fail)] == list(
                range(first, len(expected)),
            )
        pieces = shard.pieces(data.draw(st.integers(1, 5)))
        assert [number for piece in pieces for number, _ in piece.records(0, pytest.fail)] == list(
            range(len(expected)),
        )


def test_end_tokens_are_put_between_the_documents_of_an_index_once(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    (tmp_path / "a.idx").write_bytes(megatron_index(8, [3, 2, 1]))
    assert read_ids(path, np.array([1, 2, END, 3, END, 4], "<u2")) == [[1, 2], [3], [4]]
    assert "its ids are uint16, by its header or index; leave out :uint32" in refused(
        path,
        np.arange(6, dtype="<u2"),
        dtype=":uint32",
    )
    place = tmp_path / "b.bin"
    (tmp_path / "b.idx").write_bytes(megatron_index(8, [1, 1]))
    assert "b.bin, document 1: number 0 of its ids" in refused(place, np.array([1, 100], "<u2"))


def test_an_index_that_does_not_describe_its_file_is_refused(tmp_path: Path) -> None:
    path, index, ids = tmp_path / "a.bin", tmp_path / "a.idx", np.array([1, 2, 3, 4], "<u2")
    right = megatron_index(8, [2, 2])
    damaged = {
        megatron_index(8, [2, 3]): "do not fill its .bin",
        megatron_index(8, [2, 1]): "do not fill its .bin",
        megatron_index(8, [2, 2], [0, 1]): "do not fill its .bin",
        megatron_index(8, [2, 2], [1, 2]): "do not fill its .bin",
        megatron_index(8, [2, 2], [0, 2, 1, 2]): "do not fill its .bin",
        megatron_index(8, [4, -2, 2]): "do not fill its .bin",
        megatron_index(8, [2, 2], width=4): "do not fill its .bin",
        megatron_index(6, [2, 2]): "unknown type 6 of ids",
        right.replace(b"\x01", b"\x02", 1): "unknown version 2 of Megatron-LM's index",
        right[:-1]: "shorter or longer than its header says",
        right[:20]: "no index as Megatron-LM writes it",
        b"TNTIDX" + right[6:]: "no index as Megatron-LM writes it",
    }
    for content, message in damaged.items():
        index.write_bytes(content)
        said = refused(path, ids)
        assert "a.idx: " in said
        assert message in said
    index.write_bytes(right)
    before = open_corpus([str(path)], SMALL).digests()
    index.write_bytes(megatron_index(8, [1, 3]))
    assert open_corpus([str(path)], SMALL).digests() != before


# -------------------------------------------------------------------------------- masks and padding

PADDED = {
    "right": ([5, 6, END, END], [1, 1, 1, 0]),
    "left": ([END, END, 5, 6], [0, 0, 1, 1]),
    "with ids": ([7, 5, 6, 7], [0, 1, 1, 0]),
    "floats": ([5, 6, 7], [1.0, 1, 0]),
    "truths": ([5, 6, 7], [True, True, False]),
}


@pytest.mark.parametrize("row", PADDED)
def test_what_a_mask_leaves_out_is_not_read(tmp_path: Path, row: str) -> None:
    ids, mask = PADDED[row]
    records = [
        {"input_ids": ids, "attention_mask": mask},
        {"input_ids": ids, "attention_mask": [0] * len(ids)},
    ]
    (tmp_path / "a.jsonl").write_bytes(lines(*records))
    pq.write_table(
        pa.table({"input_ids": [ids], "attention_mask": [[float(value) for value in mask]]}),
        tmp_path / "a.parquet",
    )
    nested = [{"row": record} for record in records]
    ways = {
        "lines": open_corpus([str(tmp_path / "a.jsonl")], SMALL),
        "table": open_corpus([str(tmp_path / "a.parquet")], SMALL),
        "given": open_texts(records, SMALL),
        "nested": open_texts(
            nested,
            CorpusOptions(text_field="row.input_ids", vocabulary=SMALL.vocabulary),
        ),
    }
    for way, corpus in ways.items():
        assert [document.ids.tolist() for document in corpus.documents()] == [[5, 6]], way


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        ([1, 1], "has 2 values for 3 ids"),
        ([1, 2, 0], "has values other than 0 and 1"),
        ("1", "is not a flat list of numbers"),
        ([1, 1, None], "is not a flat list of numbers"),
        ([[1, 1], [0]], "is not a flat list of numbers"),
        ([[1, 1, 0]], "is not a flat list of numbers"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused_with_its_record(
    tmp_path: Path,
    mask: object,
    problem: str,
) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        lines({"input_ids": [1]}, {"input_ids": [1, 2, 3], "attention_mask": mask}),
    )
    with pytest.raises(UserError, match=f"line 2: attention_mask {problem}"):
        ids_in(tmp_path)


def test_runs_at_either_end_of_a_row_are_padding(tmp_path: Path) -> None:
    pad = 50
    options = CorpusOptions(
        vocabulary=Vocabulary("small", 100, END, end_is_text=False, frame_ids=(pad,)),
    )
    rows = [[1, 2, END, END, END], [pad, pad, END, 3], [pad, 4, END, pad], [5, END, END, 6]]
    rows += [[END], [pad, END], [END, END], [pad, pad, END]]  # the first two are empty texts
    documents = open_texts([{"input_ids": row} for row in rows], options).documents()
    assert [d.ids.tolist() for d in documents] == [
        [1, 2],
        [3],
        [4],
        [5, END, END, 6],
        [],
        [],
    ]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([1.5]), "an array of float64"),
        (np.asfortranarray(np.ones((3, 4), np.int64)), "an array of int64"),
        (np.array([], np.int64), "contains no record|not an array that NumPy maps"),
    ],
)
def test_arrays_that_are_no_stream_of_ids(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(UserError, match=message):
        ids_in(tmp_path)


def test_pickles_and_damage_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(UserError, match="not an array that NumPy maps"):
        ids_in(tmp_path)
    np.save(tmp_path / "a.npy", np.arange(50))
    complete = (tmp_path / "a.npy").read_bytes()
    too_large = complete.replace(b"(50,), }" + b" " * 20, b"(4611686018427387904, 16), }")
    for damaged in (
        b"",
        complete[:20],
        complete[:-8],
        b"\x93NUMPY\x01\x00\xff\xff",
        b"no array at all",
        too_large,
    ):
        (tmp_path / "a.npy").write_bytes(damaged)
        with (
            warnings.catch_warnings(record=True) as warned,
            pytest.raises(UserError, match=r"a\.npy"),
        ):
            warnings.simplefilter("always")
            ids_in(tmp_path)
        assert not warned


def test_in_a_folder_text_comes_first(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2]))
    assert ids_in(tmp_path) == [[1, 2]]
    (tmp_path / "b.json").write_text('["text"]')
    # .json mostly describes
    assert ids_in(tmp_path) == [
        [1, 2],
    ]
    (tmp_path / "c.txt").write_text("more")
    assert [d.text for d in open_corpus([str(tmp_path)], SMALL).documents()] == ["more"]


def test_what_ids_are_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = load_tokenizer(None)
    ids, _ = tokenizer.encode(["The river meets another river.\nA second line"])
    stream = np.array([*ids, tokenizer.end_token_id] * 30, "<u2")
    (tmp_path / "ids").mkdir()
    for name in ("0.bin", "1.bin"):
        stream.tofile(tmp_path / "ids" / name)
    rows = [{"input_ids": [*ids.tolist(), *[tokenizer.end_token_id] * 3]}] * 2
    text = {"sources": tmp_path / "ids", "tokenizer": ROOT / "recallkit/data/tokenizer.json"}
    text_of_ids = "the first: The river meets another river. A second line"
    note = f"{tmp_path}/ids/0.bin: token ids (uint16), 30 documents, {text_of_ids}"
    for act in (recallkit.count, recallkit.slice, recallkit.profile):
        act(**text, out=tmp_path / f"out/{act.__name__}")
        assert note in " ".join(capsys.readouterr().err.split())
    recallkit.count(texts=rows, out=tmp_path / "out/rows.duckdb", tokenizer=text["tokenizer"])
    assert "texts: token ids (int64), 2 documents, the first: The" in capsys.readouterr().err
    with pytest.raises(UserError, match="not one of the 4,096"):
        bad = [*rows, {"input_ids": [5000]}]
        recallkit.count(texts=bad, out=tmp_path / "out/bad", tokenizer=text["tokenizer"])
    assert "at least 2 documents, the first: The" in capsys.readouterr().err
    recallkit.count(texts=["a text"], out=tmp_path / "out/text.duckdb")
    assert "token ids" not in capsys.readouterr().err
