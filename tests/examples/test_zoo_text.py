"""The shipped text is what its program makes of CPython: a passage of every validation document."""

from __future__ import annotations

import platform

import pytest

from recallkit.text.corpus import open_corpus
from recallkit.text.demo_text import SHIPPED, library_texts


@pytest.fixture(scope="module")
def zoo_text(load):
    return load("zoo_text")


def test_the_shipped_files_are_what_the_program_makes(zoo_text, monkeypatch, tmp_path):
    if platform.python_version() != zoo_text.VERSION:
        pytest.skip(f"the shipped text is of CPython {zoo_text.VERSION}")
    monkeypatch.setattr("sys.argv", ["zoo_text.py", "--to", str(tmp_path)])
    zoo_text.main()
    made, shipped = (
        [(each.source, each.id, each.text) for each in open_corpus([source]).documents()]
        for source in (str(tmp_path / SHIPPED.name), "demo:validation")
    )
    assert made == shipped
    assert (tmp_path / "LICENSE.txt").read_text() == (SHIPPED.parent / "LICENSE.txt").read_text()


def test_another_python_is_refused(zoo_text, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["zoo_text.py", "--to", str(tmp_path)])
    monkeypatch.setattr(platform, "python_version", lambda: "3.12.1")
    with pytest.raises(SystemExit, match=f"this is Python 3.12.1: run it by {zoo_text.VERSION}"):
        zoo_text.main()
    assert not list(tmp_path.iterdir())


def test_a_passage_of_every_document(zoo_text):
    """In the same order, of whole lines, all of one length but for a last line; what is shorter is
    whole."""
    documents = {
        (t.source, t.id): text
        for t in library_texts("validation")
        if t.id not in zoo_text.LEFT_OUT and (text := t.text()).strip()
    }
    passages = {
        (p["source"], p["id"]): p["text"]
        for p in zoo_text.passages(library_texts("validation"), 200_000)
    }
    assert list(passages) == list(documents)
    cut = {name: text for name, text in passages.items() if text != documents[name]}
    length = min(map(len, cut.values()))
    assert 10 < len(cut) < len(passages)
    assert max(len(text) for name, text in passages.items() if name not in cut) <= length
    for name, text in cut.items():
        whole = documents[name]
        start = whole.index(text)
        assert start == 0 or whole[start - 1] == "\n"
        assert text[-1] == "\n" or whole.endswith(text)
        assert len(text) - len(text.splitlines(keepends=True)[-1]) < length, (
            "not a line more than it takes"
        )
    assert sum(map(len, passages.values())) == pytest.approx(200_000, rel=0.05)
    starts = [
        documents[name].index(text) / (len(documents[name]) - len(text) or 1)
        for name, text in cut.items()
    ]
    assert min(starts) < 0.2 < 0.8 < max(starts), "not their beginnings"
