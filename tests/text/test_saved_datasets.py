"""Folders that the package `datasets` saved itself."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

from recallkit.errors import UserError
from recallkit.text.corpus import open_corpus
from recallkit.text.records import Position
from tests.conftest import made_up_texts

ROWS = [
    {"text": text, "meta": {"pile_set_name": f"set {i % 2}"}}
    for i, text in enumerate(made_up_texts(60, 100))
]


@pytest.fixture(autouse=True)
def quietly() -> None:
    datasets.disable_progress_bars()


def saved(path: Path, rows: list[dict[str, object]] = ROWS, num_shards: int = 3) -> Path:
    datasets.Dataset.from_list(rows).save_to_disk(path, num_shards=num_shards)
    return path


def texts(*arguments: object, split: str = "train") -> list[str]:
    return [
        document.text
        for document in open_corpus(list(map(str, arguments)), default_split=split).documents()
    ]


def test_rows_come_in_their_order(tmp_path: Path) -> None:
    corpus = open_corpus([str(saved(tmp_path / "data", num_shards=12))])
    documents = list(corpus.documents())
    assert [d.text for d in documents] == [row["text"] for row in ROWS]
    assert [d.source for d in documents[:2]] == ["set 0", "set 1"]
    assert len(corpus.shards) == 12
    for start in (Position(0, 3), Position(5, 0), Position(11, 4)):
        assert list(corpus.documents(start)) == [d for d in documents if d.position >= start]


def test_splits_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    splits = {name: datasets.Dataset.from_dict({"text": [name]}) for name in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk("data")
    assert texts("data") == ["train"]
    assert texts("data:test", tmp_path / "data" / "train") == ["test", "train"]
    with pytest.raises(
        UserError,
        match="data: no split validation; choose data:train or data:test",
    ):
        texts("data", split="validation")
    saved(tmp_path / "one")
    with pytest.raises(UserError, match="one:test: no such file"):
        texts("one:test")


def test_damage_is_told(tmp_path: Path) -> None:
    state = saved(tmp_path / "data") / "state.json"
    description = json.loads(state.read_text())
    for damaged in (
        "{",
        "[]",
        "{}",
        '{"_data_files": []}',
        '{"_data_files": [{"filename": "../a.arrow"}]}',
        '{"_data_files": [{"filename": 3}]}',
    ):
        state.write_text(damaged)
        with pytest.raises(
            UserError,
            match="not in the form that save_to_disk writes; save the data set again",
        ):
            texts(tmp_path / "data")
    state.write_text(json.dumps(description))
    gone = tmp_path / "data" / description["_data_files"][1]["filename"]
    gone.unlink()
    with pytest.raises(UserError, match=r"00001-of-00003\.arrow: no such file"):
        texts(tmp_path / "data")
