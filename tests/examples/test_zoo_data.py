"""The data of the zoo's training: windows of text, what is held out, counts, lists of keys and values, copied spans."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from recallkit import counting
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import write_jsonl

# ----------------------------------------------------------------------------------------------------------------- text


def numbered(first, num):
    """Texts of numbers that stand in no other one: every stretch of them is told from every other."""
    return [" ".join(str(1000 * i + j) for j in range(40)) for i in range(first, first + num)]


def test_a_stream_is_its_documents_each_behind_an_end_token(zoo_data):
    documents = [("books", "one two"), ("letters", ""), ("books", "<|endoftext|> is not the end"), ("letters", "three\\n")]
    stream, manifest = zoo_data.encoded_documents(documents)
    backend = load_tokenizer(None).backend
    end = backend.token_to_id("<|endoftext|>")
    wanted = [[end, *backend.encode(text, add_special_tokens=False).ids] for _, text in documents]
    assert stream.dtype == np.uint16
    assert stream.tolist() == list(itertools.chain.from_iterable(wanted))
    lengths = [len(ids) for ids in wanted]
    assert manifest["tokens_of_source"] == {"books": lengths[0] + lengths[2], "letters": lengths[1] + lengths[3]}
    assert manifest["tokenizer_digest"] == load_tokenizer(None).digest


@pytest.fixture
def prepare(train_zoo, zoo_data, tmp_path, monkeypatch):
    """Runs `prepare` on a demo text of ten documents and two sets in shards; gives its folder."""
    (tmp_path / "shards").mkdir()
    write_jsonl(tmp_path / "demo.jsonl", numbered(0, 10), "demo")
    write_jsonl(tmp_path / "shards" / "a.jsonl", numbered(100, 30), "kept")
    write_jsonl(tmp_path / "shards" / "b.jsonl", numbered(200, 30), "unwanted")
    monkeypatch.setattr(zoo_data, "DEMO", str(tmp_path / "demo.jsonl"))
    monkeypatch.setattr(zoo_data, "readmes", list)
    monkeypatch.setattr(zoo_data, "HELD_OUT", 4)

    def call(*arguments):
        data = tmp_path / f"data-{len(list(tmp_path.iterdir()))}"
        monkeypatch.setattr("sys.argv", ["train_zoo.py", "prepare", "--data", str(data), *arguments])
        train_zoo.main()
        return data

    call.shards = str(tmp_path / "shards")
    return call


def windows_in(folder):
    return np.load(folder / "windows.npy"), np.load(folder / "held_out.npy")


def test_every_token_is_predicted_once_and_what_is_held_out_is_not_trained_on(zoo_data, prepare):
    training, held_out = windows_in(prepare("--shards", prepare.shards, "--demo-share", "0.2"))
    assert training.dtype == held_out.dtype == np.uint16
    assert (training.shape[1], held_out.shape) == (257, (4, 257))
    documents = zoo_data.mixed(zoo_data.documents_of([zoo_data.DEMO]), zoo_data.documents_of([prepare.shards]), 0.2)
    stream, _ = zoo_data.encoded_documents(documents)
    wanted = [stream[start : start + 257].tolist() for start in range(0, len(stream) - 256, 256)]
    assert len(set(map(tuple, wanted))) == len(wanted) > 15
    assert held_out.tolist() == wanted[-4:]
    assert training.tolist() != wanted[:-4], "windows are shuffled"
    assert sorted(training.tolist()) == sorted(wanted[:-4])


def test_sets_that_are_left_out_leave_nothing_and_the_seed_fixes_the_rest(zoo_data, prepare, monkeypatch):
    arguments = ("--shards", prepare.shards, "--demo-share", "0.2", "--leave-out", "unwanted")
    data = prepare(*arguments)
    manifest = json.loads((data / "manifest.json").read_text())
    assert set(manifest["tokens_of_source"]) == {"demo", "kept"}
    texts = load_tokenizer(None).backend.decode_batch(np.concatenate(windows_in(data)).tolist(), skip_special_tokens=False)
    found = {int(number) // 1000 for text in texts for number in re.findall(r"(?<= )\d{6}(?= )", text)}
    assert found <= set(range(100, 130))
    assert len(found) > 20
    for before, after in zip(windows_in(data), windows_in(prepare(*arguments)), strict=True):
        assert np.array_equal(before, after)
    monkeypatch.setattr(zoo_data, "SEED", 1)
    assert not np.array_equal(windows_in(data)[0], windows_in(prepare(*arguments))[0])


def test_too_little_text_is_refused_in_one_line(prepare, zoo_data, monkeypatch):
    monkeypatch.setattr(zoo_data, "HELD_OUT", 1000)
    with pytest.raises(SystemExit, match="1000 are held out"):
        prepare()


def test_a_run_reads_at_least_its_tokens_of_text_and_every_sixteenth_row_is_a_list(zoo_data):
    windows = np.arange(100 * 257, dtype=np.uint32).reshape(100, 257)
    read, lists = [], 0
    for step in range(12):
        ids, asked = zoo_data.text_rows(windows, step, [2])
        assert ids.shape == (4, 257)
        is_text = asked.all(axis=1)
        assert is_text[:3].all()
        lists += int((~is_text).sum())
        read += ids[is_text].tolist()
        assert zoo_data.rows_before(step + 1) == len(read)
    assert lists == 3
    first, again, later = (zoo_data.text_rows(windows, step, [2]).ids[3] for step in (3, 3, 7))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, later), "lists differ from step to step"
    assert read == windows[:45].tolist()
    for tokens in (1, 4 * 256, 4 * 256 + 1, 15 * 256, 15 * 256 + 1, 3_000_000):
        steps = zoo_data.num_steps(tokens)
        assert zoo_data.rows_before(steps - 1) * 256 < tokens <= zoo_data.rows_before(steps) * 256


def test_counts_are_exact_and_of_text_alone_and_documents_are_held_out_whole(zoo_data, tmp_path):
    """Against plain loops over a text of documents, of which the training reads some windows."""
    rng = np.random.default_rng(0)
    text = np.minimum(rng.zipf(1.3, 40 * 256 + 1) + 1, 300)
    text[::97] = 0
    order = np.random.default_rng(zoo_data.SEED).permutation(40)
    np.save(tmp_path / "windows.npy", np.stack([text[256 * at : 256 * at + 257] for at in order]).astype(np.uint16))
    zoo_data.count(SimpleNamespace(data=tmp_path, to=tmp_path, tokens=15 * 256))
    wanted, documents = Counter(), defaultdict(Counter)
    for at in order[:15].tolist():
        for place in range(256 * at, 256 * at + 256):
            pair = int(text[place]), int(text[place + 1])
            wanted[pair] += 1
            if pair[0] != pair[1]:
                documents[place // 97][pair] += 1
    counts = pl.read_parquet(tmp_path / "training_bigrams.parquet", glob=False)
    assert {(first, second): n for first, second, n in counts.iter_rows()} == wanted
    given = {"tokenizer": None, "num_tokens": None, "boundary": "pack", "force": False}
    unseen = counting.import_counts(tmp_path / "training_bigrams.parquet", tmp_path / "counts.duckdb", **given)["unseen"]
    alone = sum(number for each in documents.values() for pair, number in each.items() if number == wanted[pair])
    total = sum(each.total() for each in documents.values())
    assert unseen == {"share": alone / total, "bigrams": total, "documents": len(documents)}


# ---------------------------------------------------------------------------------------------------------------- lists


@pytest.mark.parametrize(("length", "pairs"), [(255, [8]), (256, [1, 64])])
def test_lists_ask_for_the_values_of_keys_that_were_there(zoo_data, length, pairs):
    ids, asked = zoo_data.make_lists(np.random.default_rng(0), 20, length, pairs)
    assert (ids.shape, asked.shape) == ((20, length + 1), (20, length))
    found = set()
    for row, row_asked in zip(ids.tolist(), asked.tolist(), strict=True):
        value_of = {}
        for place in range(0, length, 2):
            key, value = row[place : place + 2]
            assert row_asked[place] == (key in value_of)
            assert value_of.setdefault(key, value) == value
            assert place + 1 >= length or not row_asked[place + 1], "keys are not asked for"
        found.add(len(value_of))
        assert len(set(value_of) | set(value_of.values())) == 2 * len(value_of)
        assert 0 not in row
    assert found == set(pairs)


def test_a_copy_repeats_what_was_before_and_is_asked_for_but_its_first_id(zoo_data):
    windows = np.random.default_rng(0).integers(0, 60_000, (50, 257))
    changed = windows.copy()
    asked = zoo_data.repeat_spans(changed)
    for before, after, places in zip(windows, changed, asked, strict=True):
        span = np.flatnonzero(before != after)
        first, last = span[0], span[-1]
        assert np.flatnonzero(places).tolist() == list(range(first, last)), "prediction i is of id i + 1"
        sources = np.flatnonzero(before == after[first])
        assert any(np.array_equal(before[s : s + last - first + 1], after[first : last + 1]) for s in sources if s < first)
