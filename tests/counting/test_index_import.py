"""`count --import` of an index gives the table of `count` on the same documents, whose bigrams its package counts alike."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from recallkit import counting
from recallkit.counting import indexes
from recallkit.counting.table import open_counts, read_meta
from recallkit.errors import UserError
from recallkit.options import TextOptions
from recallkit.text.records import Position
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


FACTS = ("id", "num_tokens", "num_documents", "num_bigrams", "boundary", "tokenizer", "only")


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
    assert meta["index"]["reversed"] == ("reversed" in kind) == ("documents are reversed" in capsys.readouterr().err)
    assert meta["index"]["token_bytes"] == width


def test_text_without_end_tokens_is_counted_as_it_stands(tmp_path, tokenizer, capsys):
    ids = [i for document in documents(tokenizer) for i in document]
    meta = imported(write_tokengrams(tmp_path / "a.bin", ids), tmp_path, tokenizer)
    table = open_counts(tmp_path / "imported.duckdb")
    assert (meta["num_tokens"], meta["num_documents"], int(table.counts.sum())) == (len(ids), 0, len(ids) - 1)
    assert table.token_counts.sum() == len(ids)
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
    assert imported(place, tmp_path, tokenizer) == meta
    assert "is complete: reused" in capsys.readouterr().err
    with pytest.raises(UserError, match="differs in boundary"):
        imported(place, tmp_path, tokenizer, "document")
    write_infini_gram(place, [documents(tokenizer)[1:]])
    with pytest.raises(UserError, match="differs in imported"):
        imported(place, tmp_path, tokenizer)
    assert imported(place, tmp_path, tokenizer, force=True)["num_documents"] == meta["num_documents"] - 1


def test_the_end_token_can_be_named(tmp_path, tokenizer):
    texts, comma = documents(tokenizer), load_tokenizer(str(tokenizer)).backend.token_to_id(",")
    meta = imported(write_infini_gram(tmp_path / "index", [texts]), tmp_path, tokenizer, end_token=",")
    assert meta["tokenizer"]["end_token_id"] == comma
    table = open_counts(tmp_path / "imported.duckdb")
    assert table.unigram_counts[comma] == len(texts) + sum(document.count(comma) for document in texts)


def test_an_interrupted_import_goes_on(tmp_path, tokenizer, monkeypatch):
    from recallkit.counting import bigrams

    monkeypatch.setattr(indexes, "BLOCK_IDS", 100)
    monkeypatch.setattr(bigrams, "SECONDS_PER_CHUNK", 0.0)
    place = write_infini_gram(tmp_path / "index", [documents(tokenizer)[::2], documents(tokenizer)[1::2]])
    read, calls = indexes._read_ids, iter(range(10**6))

    def until(*arguments):
        if next(calls) > 52:  # samples come first: of each document of the first shard, forwards and in reverse
            raise KeyboardInterrupt
        return read(*arguments)

    monkeypatch.setattr(indexes, "_read_ids", until)
    with pytest.raises(KeyboardInterrupt):
        imported(place, tmp_path, tokenizer)
    monkeypatch.setattr(indexes, "_read_ids", read)
    [state] = (tmp_path / ".imported.duckdb.partial").glob(".part-*.partial/state.json")
    assert json.loads(state.read_text())["num_parts"] > 3
    check_same(counted(tmp_path, tokenizer, "pack"), imported(place, tmp_path, tokenizer))


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("index", {"tokenizer": None}, "index: .*need their tokenizer.*--tokenizer"),
        ("index", {"tokenizer": "bytes"}, r"tokenized\.0: id .*256 entries.*--tokenizer"),
        ("index", {"num_tokens": 5}, "--training-tokens: .*holds its number"),
        ("nothing.bin", {}, r"nothing\.bin: .*missing"),
        ("folder", {}, "folder: .*without an index"),
        ("empty", {}, "empty: .*without text"),
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


def test_a_mistake_is_one_line(tmp_path, run):
    done = run("count", "--import", write_infini_gram(tmp_path / "index", [[[1, 2]]]), "-o", tmp_path / "c.duckdb")
    assert done.returncode == 1
    assert done.stderr == f"recallkit: {tmp_path / 'index'}: the ids of an index need their tokenizer; name it with --tokenizer\n"


def test_little_of_a_large_index_is_held_in_memory(tmp_path):
    """What reading takes at its peak does not grow with the files: two blocks of ids, or eight."""
    peaks = []
    for num_ids in (1 << 23, 1 << 25):
        np.tile(np.arange(1 << 12, dtype="<u2"), num_ids >> 12).tofile(tmp_path / "a.bin")
        with (tmp_path / "a.idx").open("wb") as handle:
            handle.truncate(8 * num_ids)
        stream = indexes.open_index(tmp_path / "a.bin", 4096).stream("document", 0)
        tracemalloc.start()
        assert sum(len(encoded.sources) for encoded in stream.batches(Position())) == num_ids >> 12
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] < 20 * 2 * indexes.BLOCK_IDS


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


def test_bytes_of_infini_gram_are_imported(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    own = counted(texts, "bytes", "document")
    meta = imported(build_infini_gram(tmp_path / "index", texts, None, shards=1), tmp_path, "bytes", "document")
    check_same(own, meta)
    assert meta["index"] == {"package": "infini-gram", "token_bytes": 1, "reversed": False}


def assert_counts(path: Path, count, is_asked=lambda _: True) -> None:
    """Some bigrams of the table have the counts that the package gives."""
    table = open_counts(path)
    rows = [(int(key) >> 32, int(key) & 0xFFFFFFFF) for key in table.keys[:: max(1, len(table.keys) // 200)]]
    asked = [pair for pair in rows if is_asked(pair)]
    assert len(asked) > 50
    assert table.lookup(*np.array(asked, np.uint32).T).tolist() == [count(list(pair)) for pair in asked]
