"""Readers of indexes: every document once, wherever blocks are cut, and hostile files told in one line."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.counting import indexes
from recallkit.errors import UserError
from recallkit.text.records import Position
from tests.indexes_made import write_infini_gram, write_tokengrams

END, VOCAB = 9, 300
BEGINNING = Position()

documents_strategy = st.lists(st.lists(st.sampled_from([0, 1, 2, 8, 255, 256, 299]), max_size=9), min_size=1, max_size=12)


def documents_of(stream: indexes.IndexStream, start: Position = BEGINNING) -> list[tuple[list[int], Position]]:
    """Documents with their positions."""
    found = []
    for encoded in stream.batches(start):
        assert encoded.offsets[0] == 0
        assert encoded.offsets[-1] == len(encoded.ids)
        assert encoded.ids.dtype in (np.uint16, np.uint32)
        assert len(encoded.sources) == len(encoded.positions) == len(encoded.offsets) - 1
        found += [(encoded.ids[a:b].tolist(), p) for (a, b), p in zip(pairwise(encoded.offsets.tolist()), encoded.positions, strict=True)]
    return found


def check_restarts(stream: indexes.IndexStream) -> None:
    """A stream entered behind any position goes on with what follows it."""
    whole = documents_of(stream)
    for number, (_, position) in enumerate(whole):
        assert documents_of(stream, Position(position.shard, position.record + 1)) == whole[number + 1 :]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(indexes, "BLOCK_IDS", 5)
    monkeypatch.setattr(indexes, "_OFFSETS_PER_BATCH", 2)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("width", [2, 4])
@settings(max_examples=60)
@given(documents=documents_strategy, last_has_end=st.booleans(), files=st.integers(1, 3))
def test_tokengrams_gives_documents_and_the_packed_text(tmp_path_factory, width, documents, last_has_end, files):
    folder = tmp_path_factory.mktemp("tokengrams")
    ids = [i for document in documents for i in (*document, END)]
    ids = ids if last_has_end or not documents[-1] else ids[:-1]
    if END not in ids or len(ids) < files:
        return
    for number, part in enumerate(np.array_split(np.array(ids), files)):
        write_tokengrams(folder / f"part-{number}.bin", part.tolist(), width)
    index = indexes.open_index(folder, VOCAB)
    assert (index.num_ids, index.token_bytes) == (len(ids), width)
    by_document = index.stream("document", END)
    begins_with_end = ids[0] == END and ids[-1] != END
    assert [document for document, _ in documents_of(by_document)] == documents[begins_with_end:]
    check_restarts(by_document)
    packed = index.stream("pack", END)
    joined = [i for piece, _ in documents_of(packed) for i in (*piece, packed.end_token_id)]
    assert joined[: packed.limit_tokens] == ids
    assert len(joined) - len(ids) <= 1
    check_restarts(packed)


def test_end_tokens_in_front_make_no_empty_document(tmp_path):
    index = indexes.open_index(write_tokengrams(tmp_path / "a.bin", [END, 1, 2, END, 3]), VOCAB)
    assert [document for document, _ in documents_of(index.stream("document", END))] == [[1, 2], [3]]


def test_text_without_end_tokens_is_packed_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(indexes, "BLOCK_IDS", 4)
    index = indexes.open_index(write_tokengrams(tmp_path / "a.bin", [1, 2, 3] * 20), VOCAB)
    assert len(documents_of(index.stream("pack", END))) > 5
    with pytest.raises(UserError, match=r"end token 9 is not among its ids.*--boundary pack"):
        documents_of(index.stream("document", END))
    monkeypatch.setattr(indexes, "LONGEST_DOCUMENT", 16)
    with pytest.raises(UserError, match="not within 16 of them"):
        documents_of(index.stream("document", END))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("width", "table"), [(1, True), (2, True), (4, True), (2, False), (4, False)])
@settings(max_examples=40)
@given(documents=documents_strategy, shards=st.integers(1, 3))
def test_infini_gram_gives_its_documents(tmp_path_factory, width, table, documents, shards):
    vocab = {1: 255, 2: VOCAB, 4: 1 << 17}[width]
    documents = [[min(i, vocab - 1) for i in document] for document in documents]
    parts = [documents[number::shards] for number in range(shards)]
    folder = write_infini_gram(tmp_path_factory.mktemp("infini-gram"), parts, width, table=table)
    index = indexes.open_index(folder, vocab)
    assert (index.token_bytes, index.num_ids) == (width, sum(len(document) + 1 for document in documents))
    for boundary in ("pack", "document"):
        stream = index.stream(boundary, END)
        assert [document for document, _ in documents_of(stream)] == [document for part in parts for document in part]
        check_restarts(stream)
    index.is_reversed = True
    assert [d for d, _ in documents_of(index.stream("pack", END))] == [document[::-1] for part in parts for document in part]
    assert all(ids.tolist() in [document[::-1] for document in parts[0]] for ids in index.sample())


def test_one_shard_without_a_number_is_read(tmp_path):
    index = indexes.open_index(write_infini_gram(tmp_path, [[[1, 2], [3]]], numbered=False), VOCAB)
    assert [document for document, _ in documents_of(index.stream("pack", END))] == [[1, 2], [3]]


def test_the_separator_may_be_a_token_where_it_separates_nothing(tmp_path):
    index = indexes.open_index(write_infini_gram(tmp_path, [[[1, 65535, 2], [65535]]]), 65536)
    assert [document for document, _ in documents_of(index.stream("pack", END))] == [[1, 65535, 2], [65535]]


def cut(file, by: int):
    file.write_bytes(file.read_bytes()[:-by])


def damage_offsets(folder, places):
    np.array(places, "<u8").tofile(folder / "offset.0")


BROKEN_INFINI_GRAM = {
    "no offsets": (lambda f: (f / "offset.0").unlink(), r"offset\.0.*missing"),
    "no table of one": (lambda f: (f / "table.1").unlink(), r"table\.1.*missing"),
    "a shard missing": (lambda f: (f / "tokenized.0").unlink(), r"tokenized\.0 is not there"),
    "a strange file": (lambda f: (f / "tokenized.x").touch(), r"tokenized\.2 is not there"),
    "ids cut in an id": (lambda f: cut(f / "tokenized.0", 1), "do not match each other"),
    "ids cut": (lambda f: cut(f / "tokenized.0", 2), "do not match each other"),
    "table cut": (lambda f: cut(f / "table.0", 1), "do not match each other"),
    "offsets cut in a place": (lambda f: cut(f / "offset.0", 3), "does not match offset"),
    "offsets empty": (lambda f: (f / "offset.0").write_bytes(b""), "does not match offset"),
    "offsets cut": (lambda f: cut(f / "offset.0", 8), r"id 65535 .*300 entries"),
    "places beyond the end": (lambda f: damage_offsets(f, [0, 800]), r"offset\.0.*do not match tokenized\.0"),
    "places beyond 2^63": (lambda f: damage_offsets(f, [0, 2**64 - 2]), r"offset\.0.*do not match"),
    "places that fall": (lambda f: damage_offsets(f, [0, 12, 6]), r"offset\.0.*do not match"),
    "places off ids": (lambda f: damage_offsets(f, [0, 7]), r"offset\.0.*do not match"),
    "a text before the first": (lambda f: damage_offsets(f, [2, 6]), r"offset\.0.*do not match"),
    "places not of separators": (lambda f: damage_offsets(f, [0, 2]), "do not point at separators"),
    "an id too large": (lambda f: write_infini_gram(f, [[[1, 2], [300]], [[7]]]), r"id 300 .*300 entries.*--tokenizer"),
}


@pytest.mark.parametrize("name", BROKEN_INFINI_GRAM)
def test_a_broken_infini_gram_index_is_one_line(tmp_path, name):
    damage, said = BROKEN_INFINI_GRAM[name]
    write_infini_gram(tmp_path, [[[1, 2], [3]], [[7]]])
    damage(tmp_path)
    with pytest.raises(UserError, match=said):
        documents_of(indexes.open_index(tmp_path, VOCAB).stream("pack", END))


BROKEN_TOKENGRAMS = {
    "no places": (lambda f: f.with_suffix(".idx").unlink(), r"a\.idx.*missing"),
    "no ids": (lambda f: f.unlink(), r"a\.bin.*missing"),
    "ids cut": (lambda f: cut(f, 2), r"a\.bin: 8 bytes do not match the 5 entries"),
    "places cut in a place": (lambda f: cut(f.with_suffix(".idx"), 3), r"a\.idx: 37 bytes are no whole"),
    "places cut": (lambda f: cut(f.with_suffix(".idx"), 8), r"10 bytes do not match the 4 entries"),
    "empty": (lambda f: (f.write_bytes(b""), f.with_suffix(".idx").write_bytes(b"")), "0 bytes do not match"),
    "of Megatron": (lambda f: f.with_suffix(".idx").write_bytes(b"MMIDIDX\x00\x00" + bytes(31)), "Megatron"),
    "an id too large": (lambda f: write_tokengrams(f, [1, 2, 300]), r"id 300 \(near position 2\).*300 entries.*--tokenizer"),
}


@pytest.mark.parametrize("name", BROKEN_TOKENGRAMS)
def test_a_broken_tokengrams_index_is_one_line(tmp_path, name):
    damage, said = BROKEN_TOKENGRAMS[name]
    damage(write_tokengrams(tmp_path / "a.bin", [1, 2, END, 3, END]))
    with pytest.raises(UserError, match=said):
        documents_of(indexes.open_index(tmp_path / "a.bin", VOCAB).stream("pack", END))


def test_files_of_different_widths_are_refused(tmp_path):
    write_tokengrams(tmp_path / "a.bin", [1, 2], 2)
    write_tokengrams(tmp_path / "b.bin", [1, 2], 4)
    with pytest.raises(UserError, match="2 bytes in one file and of 4"):
        indexes.open_index(tmp_path, VOCAB)


def test_a_vocabulary_too_large_for_the_ids_is_refused(tmp_path):
    write_tokengrams(tmp_path / "a.bin", [1, 2], 2)
    with pytest.raises(UserError, match=r"ids of 16 bits.*100,000 entries"):
        indexes.open_index(tmp_path, 100_000)


def test_a_directory_without_an_index_is_refused(tmp_path):
    with pytest.raises(UserError, match="without an index"):
        indexes.open_index(tmp_path, VOCAB)


def test_a_file_cut_while_it_is_read_is_told(tmp_path):
    index = indexes.open_index(write_tokengrams(tmp_path / "a.bin", [1, 2, END, 3, END]), VOCAB)
    stream = index.stream("document", END)
    cut(tmp_path / "a.bin", 2)
    with pytest.raises(UserError, match=r"a\.bin: ended too early"):
        documents_of(stream)


def test_agreement_tells_direction_and_tokenizer():
    def texts(sequences):
        return ["".join(map(chr, ids)) for ids in sequences]

    def encode(strings):  # "ab" is one token in the text, and is taken as 7
        encoded = [[7 if c == "\x01" else ord(c) for c in s.replace("ab", "\x01")] for s in strings]
        return np.array([i for ids in encoded for i in ids]), np.cumsum([0, *map(len, encoded)])

    assert indexes.agreement([np.array([100, 101, 102])], texts, encode) == 1.0
    assert indexes.agreement([np.array([97, 98, 97, 98])], texts, encode) == 0.0
