"""The built-in text: the shipped validation text is fixed, and training text has none of its
documents; both read the same every time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from recallkit import builtin
from recallkit.storage import hashing
from recallkit.text.corpus import open_corpus
from recallkit.text.demo_text import is_validation, library_texts
from recallkit.text.records import Position

SHIPPED = "07991f64dd770df95522ff6d53f39fc7"
"""Of the shipped documents: what has another digest is another text, of which README's and docs'
figures are not."""


def documents(split: str) -> list[dict[str, str]]:
    stream = open_corpus([f"demo:{split}"]).documents()
    return [
        {"source": document.source, "id": document.id, "text": document.text} for document in stream
    ]


def test_the_split_is_fixed() -> None:
    """Names whose side every release must keep: models of the zoo were trained on the other one."""
    assert [
        name
        for name in ("argparse", "asyncio", "statistics", "json", "os", "typing", "rich", "numpy")
        if is_validation(name)
    ] == [
        "argparse",
        "asyncio",
        "statistics",
        "rich",
    ]


def test_the_shipped_text_is_fixed_and_has_only_documents_that_no_model_of_the_zoo_read() -> None:
    shipped = documents("validation")
    assert hashing.digest_json(shipped) == SHIPPED
    assert Counter(document["source"] for document in shipped) == {"stdlib": 53, "pydoc": 7}
    assert all(is_validation(document["id"].split(".")[0]) for document in shipped)
    assert not {(document["source"], document["id"]) for document in shipped} & {
        (text.source, text.id) for text in library_texts("train")
    }


def test_the_built_in_text_and_its_results_do_not_depend_on_what_is_installed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def builtin_text() -> list[object]:
        return [
            builtin.folder(),
            *(open_corpus([f"demo:{split}"]).digests() for split in ("train", "validation")),
        ]

    before = builtin_text()
    for name in ("never-published", "rich"):  # of either split
        installed = tmp_path / f"{name}-1.0.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\n{'What it is.' * 1000}\n",
        )
    monkeypatch.syspath_prepend(tmp_path)
    assert builtin_text() == before
    monkeypatch.setattr("sys.version", "3.14.0")
    assert builtin.folder() == before[0]


def test_about_a_tenth_of_each_source_is_validation() -> None:
    """Of pydoc 18 % in Python 3.14, whose topic `types`, which is validation text, is nearly twice
    as long."""
    num_bytes: Counter[tuple[str, str]] = Counter()
    for split in ("train", "validation"):
        for text in library_texts(split):
            num_bytes[text.source, split] += len(text.text().encode())
    for source in ("stdlib", "pydoc"):
        share = num_bytes[source, "validation"] / (
            num_bytes[source, "validation"] + num_bytes[source, "train"]
        )
        assert 0.05 < share < 0.2


def test_ids_are_unique_and_leave_out_what_is_no_library() -> None:
    texts = library_texts("train") + library_texts("validation")
    ids = [(t.source, t.id) for t in texts]
    assert len(set(ids)) == len(ids)
    modules = {t.id for t in texts if t.source == "stdlib"}
    assert {"json", "json.decoder", "os"} <= modules
    assert not any(
        {"test", "tests", "idle_test", "pydoc_data"} & set(module.split(".")) for module in modules
    )
    assert not any("site-packages" in str(t.content) for t in texts if isinstance(t.content, Path))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_reentry(split: str) -> None:
    corpus = open_corpus([f"demo:{split}"])
    documents = list(corpus.documents())
    for index in (0, 1, len(documents) - 1):
        start = documents[index].position
        assert list(corpus.documents(start)) == documents[index:]
    assert list(corpus.documents(Position(1, 0))) == []
    assert corpus.digests() == open_corpus([f"demo:{split}"]).digests()
