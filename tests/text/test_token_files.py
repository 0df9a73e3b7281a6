"""Token ids in place of text: results are those of the text that they are of, in every form; hostile and mistaken files."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from itertools import pairwise
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


def llm_c(ids: np.ndarray, magic: int, version: int) -> bytes:
    """A file as dev/data/data_common.py of llm.c writes it."""
    header = np.zeros(256, np.int32)
    header[:3] = magic, version, len(ids)
    return header.tobytes() + ids.tobytes()


def megatron_index(code: int, lengths: list[int]) -> bytes:
    """An .idx as megatron/core/datasets/indexed_dataset.py writes it, up to the lengths."""
    head = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([code])
    return head + len(lengths).to_bytes(8, "little") + (len(lengths) + 1).to_bytes(8, "little") + np.array(lengths, np.int32).tobytes()


# --- documents --------------------------------------------------------------------------------------------------------


def documents_of(ids: list[int]) -> list[tuple[int, list[int]]]:
    """The documents of a flat stream, one id after the other: where each begins, and its ids."""
    found, begun, document = [], 0, []
    for place, token in enumerate(ids):
        if token != END:
            document.append(token)
        elif place:
            found.append((begun, document))
        if token == END:
            begun, document = place + 1, []
    return [*found, (begun, document)] if document else found


@settings(max_examples=80)
@given(st.lists(st.sampled_from([END, END, 1, 2, 99]), min_size=1, max_size=14), st.integers(1, 4))
def test_a_stream_is_divided_and_reentered_at_every_position(ids: list[int], block: int) -> None:
    expected = documents_of(ids)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(token_files, "_BLOCK_IDS", block):
        np.array(ids, "<u2").tofile(Path(folder, "a.bin"))
        np.save(Path(folder, "b.npy"), np.array(ids, np.int64))
        for name in ("a.bin:uint16", "b.npy"):
            corpus = open_corpus([f"{folder}/{name}"], SMALL)
            if not expected:
                with pytest.raises(UserError, match="contains no record"):
                    list(corpus.documents())
                continue
            found = list(corpus.documents())
            assert [(d.position.record, d.ids.tolist()) for d in found] == expected
            for record in range(1, len(ids) + 2):
                again = corpus.documents(Position(0, record))
                assert [d.position for d in again] == [d.position for d in found if d.position.record >= record]


@settings(max_examples=50)
@given(st.lists(st.sampled_from([END, 1, 2]), min_size=1, max_size=14), st.integers(2, 6), st.integers(1, 4))
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
            found = list(corpus.documents())
            assert [(d.position.record, d.ids.tolist()) for d in found] == expected
            for document in found:
                again = list(corpus.documents(Position(document.position.shard, document.position.record + 1)))
                assert [d.position for d in again] == [d.position for d in found if d.position > document.position]


def test_a_stream_without_end_tokens_is_a_document_of_bounded_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.arange(1, 90, dtype=np.uint16).tofile(tmp_path / "a.bin")
    assert [len(d.ids) for d in open_corpus([str(tmp_path)], SMALL).documents()] == [89]
    monkeypatch.setattr(token_files, "LONGEST_DOCUMENT", 50)
    with pytest.raises(UserError, match=r"a\.bin, document from id 0: no end token \(id 0\) among 50 ids; name .* --end-token"):
        list(open_corpus([str(tmp_path)], SMALL).documents())


def test_a_rows_last_end_token_is_ours(tmp_path: Path) -> None:
    rows = [[1, 2, END], [1, END, 2], [END], [], [3, END, END]]
    (tmp_path / "a.jsonl").write_bytes(lines(*({"input_ids": row} for row in rows)))
    expected = [[1, 2], [1, END, 2], [], [], [3, END]]
    assert [d.ids.tolist() for d in open_corpus([str(tmp_path)], SMALL).documents()] == expected
    bytes_vocabulary = CorpusOptions(vocabulary=load_tokenizer("bytes", end_token="<0x00>").vocabulary)
    assert [d.ids.tolist() for d in open_corpus([str(tmp_path)], bytes_vocabulary).documents()] == rows  # there it may be text


# --- the same results as of text --------------------------------------------------------------------------------------


def write_jsonl_ids(folder: Path, ids: Ids, sources: list[str]) -> str:
    rows = ({"input_ids": each.tolist(), "source": source} for each, source in zip(ids, sources, strict=True))
    (folder / "ids.jsonl").write_bytes(lines(*rows))
    return "ids.jsonl"


def write_parquet_ids(folder: Path, ids: Ids, sources: list[str]) -> str:
    column = pa.array([each.astype(np.int32) for each in ids], pa.list_(pa.int32()))
    pq.write_table(pa.table({"input_ids": column, "attention_mask": column, "source": sources}), folder / "ids.parquet", row_group_size=7)
    return "ids.parquet"


def write_saved_ids(folder: Path, ids: Ids, sources: list[str]) -> str:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"input_ids": ids, "source": sources}).save_to_disk(folder / "saved", num_shards=2)
    return "saved"


def joined(ids: Ids, end: int, dtype: str, *, end_first: bool = False) -> np.ndarray:
    pieces = [[np.array([end]), each] if end_first else [each, np.array([end])] for each in ids]
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
    (folder / "fineweb_val_000000.bin").write_bytes(llm_c(joined(ids, end, "<u2", end_first=True), 20240520, 1))
    return "fineweb_val_000000.bin"


@flat
def megatron(folder: Path, ids: Ids, end: int) -> str:
    joined(ids, end, "<i4").tofile(folder / "text_document.bin")
    (folder / "text_document.idx").write_bytes(megatron_index(4, [len(each) + 1 for each in ids]))
    return "text_document.bin"


@flat
def array_of_rows(folder: Path, ids: Ids, end: int) -> str:
    stream = joined(ids, end, "<i8")
    np.save(folder / "rows.npy", stream[: len(stream) // 2 * 2].reshape(2, -1) if len(stream) % 2 == 0 else stream)
    return "rows.npy"


def results(out: Path, **text: object) -> list[pl.DataFrame]:
    """Labels, sequences and counts of a text."""
    recallkit.count(**text, out=out / "counts.duckdb")
    recallkit.slice(**text, out=out / "slices", counts=out / "counts.duckdb", seq_len=256)
    labelled = [pl.read_parquet(out / "slices" / f"{name}.parquet") for name in ("tokens", "sequences")]
    return [*labelled, recallkit.bigrams(out / "counts.duckdb")]


def test_ids_give_what_their_text_gives(tmp_path: Path) -> None:
    tokenizer, file = load_tokenizer(None), ROOT / "recallkit/data/tokenizer.json"
    texts, sources = made_up_texts(20, 60), ["a", "b"] * 10
    encoded, offsets = tokenizer.encode(texts)
    ids = [encoded[start:stop] for start, stop in pairwise(offsets)]
    (tmp_path / "text.jsonl").write_bytes(lines(*({"text": text, "source": s} for text, s in zip(texts, sources, strict=True))))
    records = [{"input_ids": each, "source": source} for each, source in zip(ids, sources, strict=True)]
    expected = results(tmp_path / "text", tokenizer=file, sources=tmp_path / "text.jsonl")
    ways = {"parquet": {"sources": tmp_path / write_parquet_ids(tmp_path, ids, sources)}, "given": {"texts": records}}
    for name, text in ways.items():
        found = results(tmp_path / name, tokenizer=file, **text)
        assert [a.equals(b) for a, b in zip(found, expected, strict=True)] == [True] * 3, name
    flat_file = f"{tmp_path}/{nanogpt(tmp_path, ids, tokenizer.end_token_id)}"
    found = results(tmp_path / "flat", tokenizer=file, sources=flat_file)  # which knows no sources
    for a, b in zip(found, expected, strict=True):
        kept = [column for column in b.columns if "source" not in column]
        assert a.select(kept).equals(b.select(kept))


def test_every_form_has_the_same_ids(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids, sources = [rng.integers(1, 100, size).astype(np.uint32) for size in (5, 1, 40, 9)], ["a", "b", "a", "a"]
    options = CorpusOptions(vocabulary=Vocabulary("small", 100, END, end_is_text=False))
    files = [write(tmp_path, ids, sources) for write in (write_jsonl_ids, write_parquet_ids, write_saved_ids)]
    for name in [*files, *(write(tmp_path, ids, END) for write in FLAT.values())]:
        found = [document.ids.tolist() for document in open_corpus([f"{tmp_path}/{name}"], options).documents()]
        assert found == [each.tolist() for each in ids], name


# --- fields -----------------------------------------------------------------------------------------------------------


def test_text_comes_before_ids_unless_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"text": "t", "input_ids": [1]}, {"text": None, "input_ids": [2]}))
    assert [(d.text, d.ids) for d in open_corpus([str(tmp_path)], SMALL).documents()] == [("t", None), ("", np.array([2]))]
    named = CorpusOptions(text_field="input_ids", vocabulary=SMALL.vocabulary)
    assert [d.ids.tolist() for d in open_corpus([str(tmp_path)], named).documents()] == [[1], [2]]
    table = pa.table({"text": ["t"], "input_ids": pa.array([[1, 2]], pa.list_(pa.uint16()))})
    pq.write_table(table, tmp_path / "b.parquet")
    assert [d.text for d in open_corpus([str(tmp_path / "b.parquet")], SMALL).documents()] == ["t"]
    assert [d.ids.tolist() for d in open_corpus([str(tmp_path / "b.parquet")], named).documents()] == [[1, 2]]


@pytest.mark.parametrize("ids", [[1.5], ["a"], [[1], [2]], [[1], 2], [True], [1, None], 5, "1 2", {"a": 1}, [2**70]])
def test_what_is_no_list_of_ids(tmp_path: Path, ids: object) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"input_ids": [1]}, {"input_ids": ids}]))
    with pytest.raises(UserError, match=r"record 2: (input_ids is not a list of whole numbers|not JSON)"):
        list(open_corpus([str(tmp_path)], SMALL).documents())


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [100, -100, 2**40])
def test_ids_out_of_the_vocabulary_are_refused(tmp_path: Path, bad: int) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"input_ids": [1]}, {"input_ids": [1, 2, bad]}))
    np.save(tmp_path / "a.npy", np.array([1, 0, 5, 6, bad, 7]))
    for name, place, number in (("a.jsonl", "line 2", 2), ("a.npy", "document from id 2", 2)):
        for skip_bad in (False, True):
            options = CorpusOptions(skip_bad=skip_bad, vocabulary=SMALL.vocabulary)
            message = rf"{name}, {place}: number {number} of its ids \(from 0\) is {bad:,}, not one of the 100 of small; name their own "
            with pytest.raises(UserError, match=message):
                list(open_corpus([str(tmp_path / name)], options).documents())
    with pytest.raises(UserError, match=r"texts\[0\]: number 0 of its ids"):
        list(open_texts([{"input_ids": [bad]}], SMALL).documents())


def test_ids_need_their_tokenizer(tmp_path: Path, home: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"input_ids": [1, 2]}))
    np.save(tmp_path / "a.npy", np.array([1, 2]))
    (tmp_path / "a.bin").write_bytes(b"\1\0\2\0")
    for name in ("a.jsonl", "a.npy", "a.bin"):
        with pytest.raises(UserError, match=rf"{name}.*: token ids, and no tokenizer is named; name theirs with --tokenizer"):
            recallkit.slice(tmp_path / name, tmp_path / "slices")


def test_the_type_of_a_bin_file(tmp_path: Path) -> None:
    large = CorpusOptions(vocabulary=Vocabulary("large", 100_000, END, end_is_text=False))

    def read(content: np.ndarray | bytes, options: CorpusOptions = SMALL, dtype: str = "") -> list[int]:
        (tmp_path / "a.bin").write_bytes(content if isinstance(content, bytes) else content.tobytes())
        return [token for d in open_corpus([f"{tmp_path}/a.bin{dtype}"], options).documents() for token in d.ids.tolist()]

    narrow, wide = np.array([1, 2, 3, 4], "<u2"), np.array([1, 2, 3, 4], "<u4")
    assert read(narrow) == read(wide, large) == read(wide, dtype=":uint32") == read(wide, dtype=":INT32") == [1, 2, 3, 4]
    assert read(narrow, large, ":uint16") == [1, 2, 3, 4]
    with pytest.raises(UserError, match=r"every second of its 16-bit ids is 0.*; say what it is: .*a\.bin:uint32"):
        read(wide)
    with pytest.raises(UserError, match=r"is 131,073, not one of the 100,000 of large; .*FILE\.bin:uint32"):
        read(narrow, large)
    with pytest.raises(UserError, match="7 bytes are not whole ids of 2 bytes"):
        read(b"1234567")
    with pytest.raises(UserError, match="5 ids, where its header has 6; the file is truncated"):
        read(llm_c(np.array([1, 2, 3, 4, 5, 6], "<u2"), 20240520, 1)[:-2])
    with pytest.raises(UserError, match="contains no record"):
        read(b"")
    (tmp_path / "a.idx").write_bytes(megatron_index(6, [4]))
    with pytest.raises(UserError, match=r"a\.idx: ids of type 6; name their type"):
        read(narrow)
    assert read(narrow, dtype=":uint16") == [1, 2, 3, 4]


def test_documents_of_megatron_need_their_end_tokens(tmp_path: Path) -> None:
    np.array([1, 2, 3, 4], "<u2").tofile(tmp_path / "a.bin")
    (tmp_path / "a.idx").write_bytes(megatron_index(8, [2, 2]))
    with pytest.raises(UserError, match=r"a\.bin: no end token between its documents; .*--append-eod"):
        list(open_corpus([str(tmp_path)], SMALL).documents())
    (tmp_path / "a.idx").write_bytes(megatron_index(8, [4]))
    assert [d.ids.tolist() for d in open_corpus([str(tmp_path)], SMALL).documents()] == [[1, 2, 3, 4]]


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
        list(open_corpus([str(tmp_path)], SMALL).documents())


def test_pickles_and_damage_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(UserError, match="not an array that NumPy maps"):
        list(open_corpus([str(tmp_path)], SMALL).documents())
    np.save(tmp_path / "a.npy", np.arange(50))
    whole = (tmp_path / "a.npy").read_bytes()
    too_large = whole.replace(b"(50,), }" + b" " * 20, b"(4611686018427387904, 16), }")
    for damaged in (b"", whole[:20], whole[:-8], b"\x93NUMPY\x01\x00\xff\xff", b"no array at all", too_large):
        (tmp_path / "a.npy").write_bytes(damaged)
        with warnings.catch_warnings(record=True) as warned, pytest.raises(UserError, match=r"a\.npy"):
            warnings.simplefilter("always")
            list(open_corpus([str(tmp_path)], SMALL).documents())
        assert not warned


def test_in_a_folder_text_comes_first(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2]))
    assert [d.ids.tolist() for d in open_corpus([str(tmp_path)], SMALL).documents()] == [[1, 2]]
    (tmp_path / "b.json").write_text('["text"]')
    assert [d.text for d in open_corpus([str(tmp_path)], SMALL).documents()] == ["text"]
    (tmp_path / "c.txt").write_text("more")
    assert [d.text for d in open_corpus([str(tmp_path)], SMALL).documents()] == ["more"]
