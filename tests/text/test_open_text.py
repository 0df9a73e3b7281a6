"""How much of a text has been read, and how many tokens it has about."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recallkit.options import TextOptions
from recallkit.text import encoding, readers, tables, token_files, tokenizers
from recallkit.text.fields import FieldFinder
from recallkit.text.open_text import OpenText
from recallkit.text.readers import Shard
from recallkit.text.records import Position
from tests.conftest import made_up_texts, write_jsonl

TEXTS = made_up_texts(120, 60)
NUM_BYTES = sum(map(len, TEXTS))


def ids_file(path: Path, texts: list[str]) -> None:
    tokenizer = tokenizers.load_tokenizer("bytes")
    ids, offsets = tokenizer.encode(texts)
    documents = [
        np.r_[ids[start:stop], tokenizer.end_token_id]
        for start, stop in itertools.pairwise(offsets)
    ]
    np.save(path, np.concatenate(documents).astype(np.uint16))


WRITERS = {
    "jsonl.gz": lambda path, texts: path.write_bytes(
        gzip.compress("".join(json.dumps({"text": t}) + "\n" for t in texts).encode()),
    ),
    "json": lambda path, texts: path.write_text(json.dumps([{"text": text} for text in texts])),
    "parquet": lambda path, texts: pq.write_table(
        pa.table({"text": texts}),
        path,
        row_group_size=5,
    ),
    "npy": ids_file,
}


@pytest.fixture
def in_small_steps(monkeypatch):
    """Files are read, and documents encoded, in steps of a small part of the text."""
    monkeypatch.setattr(readers, "BLOCK_BYTES", 512)
    monkeypatch.setattr(tables, "_MAX_BATCH_ROWS", 5)
    monkeypatch.setattr(token_files, "_BLOCK_IDS", 512)
    monkeypatch.setattr(encoding, "_BATCH_CHARACTERS", 1024)


@pytest.mark.parametrize("suffix", WRITERS)
def test_the_number_of_tokens_is_told_early_and_ever_better(suffix, tmp_path, in_small_steps):
    for number in range(3):
        WRITERS[suffix](tmp_path / f"{number}.{suffix}", TEXTS[40 * number : 40 * number + 40])
    opened = OpenText(TextOptions([str(tmp_path / f"*.{suffix}")], "train", tokenizer="bytes"))
    done, amounts = 0, []
    for encoded in opened.encoded(Position()):
        done += len(encoded.ids)
        amounts.append(opened.estimated_tokens(done))
    assert amounts[-1] == pytest.approx(done, rel=0.002)
    assert done == pytest.approx(NUM_BYTES, rel=0.01)
    assert len(amounts) >= 3
    assert amounts[len(amounts) // 2] == pytest.approx(done, rel=0.15)
    assert opened.bytes_read() == pytest.approx(opened.corpus.num_bytes(0, 3), rel=0.002)


def test_nothing_is_told_of_text_whose_size_is_not_known_or_that_has_a_limit(tmp_path):
    of_texts = OpenText(TextOptions(None, "train", tokenizer="bytes", texts=TEXTS))
    assert [of_texts.estimated_tokens(1000) for _ in of_texts.encoded(Position())] == [None]
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    limited = OpenText(TextOptions([str(path)], "train", tokenizer="bytes", limit_tokens=100))
    assert [limited.estimated_tokens(1000) for _ in limited.encoded(Position())] == [None]


def test_gigatoken_encodes_more_than_half_a_megabyte_and_gives_the_same_ids(tmp_path, capsys):
    """A tokenizer that gigatoken does not support tells whether it was asked."""
    pytest.importorskip("gigatoken", reason="the extra `fast` is not installed")
    settings = json.loads(tokenizers.load_tokenizer(None).backend.to_str())
    settings["added_tokens"].append(
        {**settings["added_tokens"][0], "id": 4096, "content": "x" * 1001},
    )
    (tmp_path / "long.json").write_text(json.dumps(settings))
    path, identities = write_jsonl(tmp_path / "a.jsonl", made_up_texts(1900, 100)), []
    for size in (2**19 - 1, 2**19, 2**19 + 1):
        path.write_bytes(path.read_bytes().rstrip().ljust(size, b"\n"))
        assert path.stat().st_size == size
        for tokenizer in (None, str(tmp_path / "long.json")):
            opened = OpenText(TextOptions([str(path)], "train", tokenizer=tokenizer))
            identities.append(
                np.concatenate([encoded.ids for encoded in opened.encoded(Position())]),
            )
        assert ("gigatoken does not support this tokenizer" in capsys.readouterr().err) == (
            size > 2**19
        )
    assert len(identities[0]) > 100_000
    assert all(np.array_equal(identities[0], other) for other in identities)


def test_a_manifest_has_no_password():
    shard = Shard("https://me:secret@host/text.jsonl", "text", FieldFinder())
    assert OpenText(TextOptions(texts=["a"])).of_shards([shard]).facts()["names"] == [
        "https://***@host/text.jsonl",
    ]


def test_of_many_shards_one_digest_is_their_identity_and_their_folder_their_name(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(1001):
        (folder / f"{number:04}.txt").write_text(f"text {number}")
    options = TextOptions([str(folder)])
    first = OpenText(options)
    [[digest, called]] = first.identity()["sources"]
    assert (called, first.facts()["names"]) == ("1,001 shards", [str(folder)])
    assert OpenText(options).identity() == first.identity()
    (folder / "0500.txt").write_text("text of another time")
    [[changed, _]] = OpenText(options).identity()["sources"]
    assert changed != digest
    (folder / "1000.txt").unlink()
    few = OpenText(options)
    assert len(few.identity()["sources"]) == len(few.facts()["names"]) == 1000
