"""The demo text: which texts it holds, how it is split, and that it reads the same every time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from recallkit import config
from recallkit.text import demo_text
from recallkit.text.corpus import open_corpus
from recallkit.text.records import Position

HALVES = ("train", "validation")
"""The splits of all text; the sample is of the second."""


def test_the_split_is_fixed() -> None:
    """Names whose side every release must keep: models of the zoo were trained on the other one."""
    assert [
        name for name in ("argparse", "asyncio", "statistics", "json", "os", "typing", "rich", "numpy") if demo_text.is_validation(name)
    ] == [
        "argparse",
        "asyncio",
        "statistics",
        "rich",
    ]


def test_about_a_tenth_of_every_source_is_validation() -> None:
    num_bytes: Counter[tuple[str, str]] = Counter()
    for split in HALVES:
        for document in open_corpus([f"demo:{split}"]).documents():
            num_bytes[document.source, split] += len(document.text.encode())
    for source in ("stdlib", "pydoc"):  # READMEs depend on what is installed
        share = num_bytes[source, "validation"] / (num_bytes[source, "validation"] + num_bytes[source, "train"])
        assert 0.05 < share < 0.15
    assert num_bytes["readme", "train"] > 0


def test_ids_are_unique_and_leave_out_what_is_no_library() -> None:
    texts = demo_text.demo_texts("train") + demo_text.demo_texts("validation")
    ids = [(t.source, t.id) for t in texts]
    assert len(set(ids)) == len(ids)
    modules = {t.id for t in texts if t.source == "stdlib"}
    assert {"json", "json.decoder", "os"} <= modules
    assert not any({"test", "tests", "idle_test", "pydoc_data"} & set(module.split(".")) for module in modules)
    assert not any("site-packages" in str(t.content) for t in texts if isinstance(t.content, Path))
    projects = {t.id for t in texts if t.source == "readme"}
    assert "hypothesis" in projects
    assert config.DISTRIBUTION not in projects


def test_the_sample_is_a_passage_of_every_document() -> None:
    """In the same order, of whole lines, all of one length but for a last line; what is shorter is whole."""
    documents = {(t.source, t.id): t.text() for t in demo_text.demo_texts("validation")}
    passages = {(t.source, t.id): t.text() for t in demo_text.demo_texts("sample")}
    assert list(passages) == list(documents)
    assert {source for source, _ in passages} == {"stdlib", "pydoc", "readme"}
    cut = {name: text for name, text in passages.items() if text != documents[name]}
    length = min(map(len, cut.values()))
    assert 10 < len(cut) < len(passages)
    assert max(len(text) for name, text in passages.items() if name not in cut) <= length
    for name, text in cut.items():
        whole = documents[name]
        start = whole.index(text)
        assert start == 0 or whole[start - 1] == "\n"
        assert text[-1] == "\n" or whole.endswith(text)
        assert len(text) - len(text.splitlines(keepends=True)[-1]) < length, "not a line more than it takes"
    assert sum(map(len, passages.values())) == pytest.approx(demo_text.SAMPLE_CHARACTERS, rel=0.05)
    starts = [documents[name].index(text) / (len(documents[name]) - len(text) or 1) for name, text in cut.items()]
    assert min(starts) < 0.2 < 0.8 < max(starts), "not their beginnings"
    assert open_corpus(["demo:sample"]).digests() == open_corpus(["demo:sample"]).digests() != open_corpus(["demo:validation"]).digests()


def test_readmes_of_copies_and_broken_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, metadata in {
        "My_Pkg-1.0.dist-info": "Metadata-Version: 2.1\nName: My_Pkg\nVersion: 1.0\n\nold",
        "my.pkg-2.0.dist-info": "Metadata-Version: 2.1\nName: my.pkg\nVersion: 2.0\n\nnew é\n\nwith a second paragraph\n",
        "unknown-1.dist-info": "Metadata-Version: 2.1\nName: unknown\nVersion: 1\n\nUNKNOWN\n",
        "bare-1.dist-info": "Metadata-Version: 2.1\nName: bare\nVersion: 1\n",
        "nameless-1.dist-info": "Metadata-Version: 2.1\n\ntext",
    }.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "METADATA").write_text(metadata, encoding="utf-8")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert {each.name: each.description for each in demo_text.installed_projects()} == {
        "my-pkg": "new é\n\nwith a second paragraph",
        "unknown": "",
        "bare": "",
    }


def test_reentry_and_digest() -> None:
    corpus = open_corpus(["demo:validation"])
    documents = list(corpus.documents())
    for index in (0, 1, len(documents) - 1):
        start = documents[index].position
        assert list(corpus.documents(start)) == documents[index:]
    assert list(corpus.documents(Position(1, 0))) == []
    digests = [open_corpus([f"demo:{split}"]).digests()[0] for split in ("validation", "validation", "train")]
    assert digests[0] == digests[1] != digests[2]
