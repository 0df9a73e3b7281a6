"""The seam to `datasets`, fed with real data sets in local folders: what the hub serves, without
the hub."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest

from recallkit.errors import UserError
from recallkit.text.corpus import Corpus, open_corpus
from recallkit.text.fields import FieldFinder
from recallkit.text.records import Position
from recallkit.text.rows import HubShard


def hub_shard(repo: Path | str, split: str, **options: str) -> HubShard:
    return HubShard(f"pile:{split}", "pile", FieldFinder(**options), str(repo), split)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A data set as hub users lay it out: a file a split."""
    for split, num_rows in (("train", 12), ("validation", 3)):
        rows = [
            {"text": f"{split} {i}", "meta": {"pile_set_name": f"set {i % 2}"}}
            for i in range(num_rows)
        ]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_splits_are_streamed_and_reentered(repo: Path) -> None:
    corpus = Corpus([hub_shard(repo, "train"), hub_shard(repo, "validation")])
    documents = list(corpus.documents())
    assert [d.text for d in documents] == [
        *(f"train {i}" for i in range(12)),
        *(f"validation {i}" for i in range(3)),
    ]
    assert (documents[1].source, documents[1].id, documents[1].position) == (
        "set 1",
        "pile:train:1",
        Position(0, 1),
    )
    assert corpus.report.num_documents == 15
    for start in (Position(0, 5), Position(1, 0), Position(1, 2), Position(1, 3)):
        assert list(corpus.documents(start)) == [d for d in documents if d.position >= start]


def test_pieces_hold_the_same_rows_in_order(repo: Path) -> None:
    for number in range(5):
        (repo / f"test-{number}.jsonl").write_text(
            "".join(json.dumps({"text": f"{number}.{row}"}) + "\n" for row in range(number + 1)),
        )
    undivided = hub_shard(repo, "test")
    texts = [document.text for document in Corpus([undivided]).documents()]
    assert len(texts) == 15
    for most, number in ((256, 5), (2, 2), (1, 1)):
        pieces = undivided.pieces(most)
        assert len(pieces) == number
        corpus = Corpus(pieces)
        assert [document.text for document in corpus.documents()] == texts
        assert [document.text for document in corpus.documents(Position(number - 1, 1))][
            -1
        ] == texts[-1]
    with pytest.raises(UserError, match=r"pile:test \(part 2 of 5\), row 0: no text"):
        next(
            Corpus(
                replace(undivided, finder=FieldFinder(text_field="body")).pieces(9)[1:],
            ).documents(),
        )
    with pytest.raises(UserError, match="cannot be streamed"):
        hub_shard(repo, "dev").pieces(9)


def test_failures_are_one_line_with_the_remedy(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError,
        match="pile:dev, row 0: cannot be streamed from the hub",
    ) as caught:
        next(Corpus([hub_shard(repo, "dev")]).documents())
    assert "local files" in caught.value.line()
    (repo / "train.jsonl").write_text('{"text": "good"}\n' * 3 + "{broken\n")
    with pytest.raises(UserError, match="cannot be streamed"):
        list(Corpus([hub_shard(repo, "train")]).documents())
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="owner/name:train, row 0: cannot be streamed"):
        next(open_corpus(["owner/name"]).documents())


def test_a_configuration_is_named(tmp_path: Path) -> None:
    described = "---\nconfigs:\n"
    for config in ("old", "new"):
        (tmp_path / f"{config}.jsonl").write_text(json.dumps({"text": config}) + "\n")
        described += (
            f"- config_name: {config}\n  data_files:\n  - split: test\n    path: {config}.jsonl\n"
        )
    (tmp_path / "README.md").write_text(described + "---\n")
    shard = hub_shard(tmp_path, "test")
    with pytest.raises(
        UserError,
        match=f"Config name is missing.*name one: {tmp_path}:CONFIG:test",
    ):
        list(Corpus([shard]).documents())
    assert [
        d.text
        for config in ("new", "old")
        for d in Corpus([replace(shard, config=config)]).documents()
    ] == ["new", "old"]
    assert len({replace(shard, config=config).digest() for config in (None, "new", "old")}) == 3


def test_ids_with_a_configuration() -> None:
    by_split = [
        "owner/name:c:dev",
        "owner/name:c:",
        "owner/name::dev",
        "wikitext:wikitext-2-raw-v1:test",
        "owner/name:dev",
        "owner/name",
    ]
    shards = open_corpus(by_split).shards
    assert [
        (shard.repo, shard.config, shard.split, shard.name, shard.source) for shard in shards
    ] == [
        ("owner/name", "c", "dev", "owner/name:c:dev", "name"),
        ("owner/name", "c", "train", "owner/name:c:train", "name"),
        ("owner/name", None, "dev", "owner/name:dev", "name"),
        ("wikitext", "wikitext-2-raw-v1", "test", "wikitext:wikitext-2-raw-v1:test", "wikitext"),
        ("owner/name", None, "dev", "owner/name:dev", "name"),
        ("owner/name", None, "train", "owner/name:train", "name"),
    ]
    for mistyped in ("wikitext", "wikitext:test", "wikitext::test"):
        with pytest.raises(UserError, match="no such file, folder or preset"):
            open_corpus([mistyped])
