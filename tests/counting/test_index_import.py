"""`count --import` of an index gives the table of `count` on the same documents, whose bigrams its package counts alike."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recallkit import counting
from recallkit.counting.table import open_counts, read_meta
from recallkit.errors import UserError
from recallkit.options import TextOptions
from recallkit.text import token_files
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import made_up_texts, write_jsonl
from tests.indexes_made import build_infini_gram, build_tokengrams, write_infini_gram, write_tokengrams

TEXTS = [*made_up_texts(40, 60, seed=5), "", "naïve café 中文", "the end"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    load_tokenizer(None).backend.save(str(path))
    return path


def documents(tokenizer: Path | str) -> list[list[int]]:
    ids, offsets = load_tokenizer(str(tokenizer)).encode(TEXTS)
    return [part.tolist() for part in np.split(ids, offsets[1:-1])]


def end_of(tokenizer: Path | str) -> int:
    return load_tokenizer(str(tokenizer)).end_token_id


def counted(folder: Path, tokenizer: Path | str, boundary: str) -> dict:
    """What `count` gives for the texts."""
    shard = write_jsonl(folder / "texts.jsonl", TEXTS)
    return counting.count(TextOptions([str(shard)], "train", tokenizer=str(tokenizer), boundary=boundary), folder / "own.duckdb")


def imported(place: Path, folder: Path, tokenizer: Path | str, boundary: str = "pack", **options) -> dict:
    given = {"num_tokens": None, "force": False, **options}
    return counting.import_counts(place, folder / "imported.duckdb", tokenizer=str(tokenizer), boundary=boundary, **given)


FACTS = ("id", "num_tokens", "num_documents", "num_bigrams", "unseen", "boundary", "tokenizer", "only")


def check_same(one: dict, other: dict) -> None:
    assert {name: one[name] for name in FACTS} == {name: other[name] for name in FACTS}


@pytest.mark.parametrize("boundary", ["pack", "document"])
@pytest.mark.parametrize("kind", ["tokengrams", "tokengrams of 4 bytes", "infini-gram", "infini-gram reversed"])
def test_the_table_is_that_of_our_own_count(tmp_path, tokenizer, kind, boundary, capsys):
    texts, width = documents(tokenizer), 4 if "4" in kind else 2
    if kind.startswith("tokengrams"):
        place = write_tokengrams(tmp_path / "train.bin", [i for d in texts for i in (*d, end_of(tokenizer))], width)
    else:
        stored = [d[::-1] if "reversed" in kind else d for d in texts]
        place = write_infini_gram(tmp_path / "index", [stored[::2], stored[1::2]])
    meta = imported(place, tmp_path, tokenizer, boundary)
    check_same(counted(tmp_path, tokenizer, boundary), meta)
    assert meta["unseen"]["documents"] > 40
    assert meta["index"]["reversed"] == ("reversed" in kind) == ("documents are reversed" in capsys.readouterr().err)
    assert meta["index"]["token_bytes"] == width


def test_text_without_end_tokens_is_counted_as_it_stands(tmp_path, tokenizer, capsys):
    ids = [i for document in documents(tokenizer) for i in document]
    meta = imported(write_tokengrams(tmp_path / "a.bin", ids), tmp_path, tokenizer)
    table = open_counts(tmp_path / "imported.duckdb")
    assert (meta["num_tokens"], meta["num_documents"], int(table.counts.sum())) == (len(ids), 1, len(ids) - 1)
    assert table.token_counts.sum() == len(ids)
    assert meta["unseen"] is None, "without documents nothing is held out"
    assert "cross from each document into the next" in capsys.readouterr().err


def test_a_wrong_tokenizer_is_told(tmp_path, tokenizer, capsys):
    ids = np.random.default_rng(0).integers(300, 4000, 2000).tolist()
    imported(write_tokengrams(tmp_path / "a.bin", ids), tmp_path, tokenizer)
    assert "is tokenizer.json its tokenizer?" in capsys.readouterr().err


def test_a_finished_import_is_found_and_another_one_refused(tmp_path, tokenizer, run, capsys):
    place = write_infini_gram(tmp_path / "index", [documents(tokenizer)])
    done = run("count", "--import", place, "--tokenizer", tokenizer, "-o", tmp_path / "imported.duckdb", "--json")
    assert done.returncode == 0, done.stderr
    meta = read_meta(tmp_path / "imported.duckdb")
    assert json.loads(done.stdout)["id"] == meta["id"]
    assert imported(place, tmp_path, tokenizer) == {**meta, "reused": True}
    assert "is complete: reused" in capsys.readouterr().err
    with pytest.raises(UserError, match="differs in boundary"):
        imported(place, tmp_path, tokenizer, "document")
    write_infini_gram(place, [documents(tokenizer)[1:]])
    with pytest.raises(UserError, match="differs in imported"):
        imported(place, tmp_path, tokenizer)
    assert imported(place, tmp_path, tokenizer, force=True)["num_documents"] == meta["num_documents"] - 1


BROKEN = {
    "no offsets": (".", lambda f: (f / "offset.0").unlink(), r"offset\.0.*missing"),
    "a shard missing": (".", lambda f: (f / "tokenized.0").unlink(), r"tokenized\.0 is not there"),
    "ids cut": (".", lambda f: cut(f / "tokenized.0", 2), "do not match each other"),
    "places beyond the end": (".", lambda f: np.array([0, 800], "<u8").tofile(f / "offset.0"), "do not match each other"),
    "no ids": ("a.bin", lambda f: (f / "a.bin").unlink(), r"a\.bin.*missing"),
    "tokengrams' ids cut": ("a.bin", lambda f: cut(f / "a.bin", 2), r"a\.bin: 8 bytes do not match the 5 entries"),
    "of Megatron": ("a.bin", lambda f: (f / "a.idx").write_bytes(b"MMIDIDX\x00\x00" + bytes(31)), "Megatron"),
    "an id too large": ("a.bin", lambda f: write_tokengrams(f / "a.bin", [1, 2, 4097]), r"4,097, not one of the 4,096"),
}


def cut(file: Path, by: int) -> None:
    file.write_bytes(file.read_bytes()[:-by])


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_index_is_one_line(tmp_path, tokenizer, name):
    place, damage, said = BROKEN[name]
    write_infini_gram(tmp_path, [[[1, 2], [3]], [[7]]])
    write_tokengrams(tmp_path / "a.bin", [1, 2, 0, 3, 0])
    damage(tmp_path)
    with pytest.raises(UserError, match=said):
        imported(tmp_path / place, tmp_path, tokenizer)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("index", {"tokenizer": None}, "index: .*need their tokenizer.*--tokenizer"),
        ("index", {"tokenizer": "bytes"}, r"tokenized\.0, document .* not one of the 256 of bytes.*--tokenizer"),
        ("index", {"num_tokens": 5}, "--training-tokens: .*contains its number"),
        ("nothing.bin", {}, r"nothing\.bin: .*missing"),
        ("folder", {}, "folder: .*without an index"),
        ("empty", {}, "contains no record"),
    ],
)
def test_mistakes_are_told_and_leave_nothing(tmp_path, tokenizer, name, options, said):
    write_infini_gram(tmp_path / "index", [documents(tokenizer)])
    write_infini_gram(tmp_path / "empty", [[]], table=False)
    (tmp_path / "folder").mkdir()
    given = {"tokenizer": str(tokenizer), "num_tokens": None, "boundary": "pack", "force": False, **options}
    with pytest.raises(UserError, match=said):
        counting.import_counts(tmp_path / name, tmp_path / "c.duckdb", **given)
    assert not list(tmp_path.glob("*.duckdb*"))


def test_files_of_different_widths_and_ids_too_narrow_are_refused(tmp_path, tokenizer):
    write_tokengrams(tmp_path / "a.bin", [1, 2], 2)
    write_tokengrams(tmp_path / "b.bin", [1, 2], 4)
    with pytest.raises(UserError, match="2 bytes in one file and of 4"):
        imported(tmp_path, tmp_path, tokenizer)
    with pytest.raises(UserError, match=r"ids of 8 bits.*4,096 entries"):
        imported(write_infini_gram(tmp_path / "index", [[[1, 2]]], 1), tmp_path, tokenizer)


@pytest.mark.parametrize("boundary", ["pack", "document"])
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=5),
    last_has_end=st.booleans(),
    files=st.integers(1, 3),
    block=st.integers(1, 5),
)
def test_tokengrams_gives_the_ids_as_they_are_or_their_documents(tmp_path_factory, tokenizer, boundary, texts, last_has_end, files, block):
    """Wherever blocks are cut, and files follow one another."""
    folder, ids = tmp_path_factory.mktemp("tokengrams"), [i for text in texts for i in (*text, 0)]
    ids = ids if last_has_end else ids[:-1]
    if len(ids) < files + 1:
        return
    for number, part in enumerate(np.array_split(np.array(ids), files)):
        write_tokengrams(folder / f"part-{number}.bin", part.tolist())
    with mock.patch.object(token_files, "_BLOCK_IDS", block):
        meta = imported(folder, folder, tokenizer, boundary)
    table = open_counts(folder / "imported.duckdb")
    if boundary == "pack":
        assert meta["num_tokens"] == len(ids)
        expected = Counter(pairwise(ids))
    else:
        inner = texts[1:] if ids[0] == 0 else texts if last_has_end or texts[-1] else texts[:-1]
        expected = Counter(pair for text in inner for pair in pairwise([0, *text]))
    assert dict(zip(table.keys.tolist(), table.counts.tolist(), strict=True)) == {(a << 32) + b: n for (a, b), n in expected.items()}


# ------------------------------------------------------------------------------------- with the packages themselves


def test_counts_of_tokengrams_files_that_follow_one_another_are_its_own(tmp_path, tokenizer):
    ids = np.array([i for d in documents(tokenizer) for i in (*d, end_of(tokenizer))], "<u4")
    (tmp_path / "index").mkdir()
    for number, part in enumerate(np.split(ids, [len(ids) // 3, len(ids) // 2])):
        build_tokengrams(tmp_path / "index" / f"part-{number}.bin", part, 70_000)
    meta = imported(tmp_path / "index", tmp_path, tokenizer)
    check_same(counted(tmp_path, tokenizer, "pack"), meta)
    import tokengrams

    whole = tokengrams.MemmapIndex(str(build_tokengrams(tmp_path / "whole.bin", ids, 70_000)), str(tmp_path / "whole.idx"), 70_000)
    assert_counts(tmp_path / "imported.duckdb", lambda bigram: whole.count(bigram))


@pytest.mark.parametrize("boundary", ["pack", "document"])
@pytest.mark.parametrize("version", [4, 5])
def test_counts_of_an_infini_gram_index_are_its_own(tmp_path, tokenizer, version, boundary):
    texts = tmp_path / "texts"
    texts.mkdir()
    own = counted(texts, tokenizer, boundary)
    (texts / "own.duckdb").unlink()
    meta = imported(build_infini_gram(tmp_path / "index", texts, tokenizer, version=version), tmp_path, tokenizer, boundary)
    check_same(own, meta)
    assert meta["index"]["reversed"] == (version == 5)
    from infini_gram.engine import InfiniGramEngine

    engine = InfiniGramEngine(index_dir=str(tmp_path / "index"), eos_token_id=0, vocab_size=65_535, token_dtype="u16")
    turn, end = (-1 if version == 5 else 1), end_of(tokenizer)
    assert_counts(tmp_path / "imported.duckdb", lambda pair: engine.count(input_ids=pair[::turn])["count"], lambda pair: end not in pair)


def assert_counts(path: Path, count, is_asked=lambda _: True) -> None:
    """Some bigrams of the table have the counts that the package gives."""
    table = open_counts(path)
    rows = [(int(key) >> 32, int(key) & 0xFFFFFFFF) for key in table.keys[:: max(1, len(table.keys) // 200)]]
    asked = [pair for pair in rows if is_asked(pair)]
    assert len(asked) > 50
    assert table.lookup(*np.array(asked, np.uint32).T).tolist() == [count(list(pair)) for pair in asked]
