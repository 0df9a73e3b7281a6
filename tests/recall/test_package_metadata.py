"""The built-in recall task: which headers are asked for, the cut, the mixture, and this installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from recallkit import config
from recallkit.recall.package_metadata import KEYS
from recallkit.recall.prompts import split_query
from recallkit.recall.tasks import load_rows


def install(folder: Path, name: str, headers: str, description: str) -> None:
    (folder / f"{name}.dist-info").mkdir()
    (folder / f"{name}.dist-info" / "METADATA").write_text(f"Name: {name}\n{headers}\n{description}", encoding="utf-8")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path of installed packages, empty yet."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    return tmp_path


def asked() -> dict[str, str]:
    return {str(row.key): row.value for row in load_rows("metadata").rows}


def test_headers_become_rows(installed: Path) -> None:
    headers = (
        "Version: 2.0\nSummary: A  café \nAuthor: Ann\nAuthor: Bob\nMaintainer: X\nLicense: MIT\n  and more\nClassifier: Topic :: Text\n"
        f"Requires-Dist: other\nKeywords: {'k' * 101}\nHome-page: {'h' * 100}\n"
    )
    install(installed, "My_Pkg", headers, "What it is.\n")
    document = (
        "Name: My_Pkg\nVersion: 2.0\nSummary: A  café\nAuthor: Ann\nAuthor: Bob\nMaintainer: X\nClassifier: Topic :: Text\n"
        f"Requires-Dist: other\nKeywords: {'k' * 101}\nHome-page: {'h' * 100}\n\nWhat it is."
    )
    loaded = load_rows("metadata")
    assert {(row.doc_id, row.text) for row in loaded.rows} == {("my-pkg", f"{document}\n{row.key}:") for row in loaded.rows}
    assert asked() == {"Name": "My_Pkg", "Version": "2.0", "Summary": "A  café", "Home-page": "h" * 100}
    assert (loaded.num_dropped, loaded.origin) == (0, "METADATA of 1 installed packages")


def test_documents_are_cut_at_the_end_of_a_line(installed: Path) -> None:
    start = "Name: big\nVersion: 1.0\n"
    install(installed, "big", "Version: 1.0\n", f"{'a' * (4000 - len(start) - 1)}\nmore")
    install(installed, "long", "Version: 1.0\n", f"{'a' * 3000}\n{'b' * 3000}")
    install(installed, "deep", "".join(f"Classifier: {'c' * 90} {i}\n" for i in range(50)) + "Version: 1.0\n", "text")
    rows = load_rows("metadata").rows
    lengths = {row.doc_id: len(split_query(row)[0]) for row in rows}
    assert lengths == {"big": 4000, "long": len("Name: long\nVersion: 1.0\n\n") + 3000, "deep": lengths["deep"]}
    assert 3900 < lengths["deep"] <= 4000
    assert {row.key for row in rows if row.doc_id == "deep"} == {"Name"}, "the version is cut away"


def test_broken_metadata_and_copies(installed: Path) -> None:
    install(installed, "good", "Version: 1.0\n", "text")
    install(installed, config.DISTRIBUTION, "Version: 1.0\n", "text")
    for folder, content in {"bad.dist-info": b"Name: bad\n\n\xff", "none.dist-info": b"Version: 1.0\n\ntext"}.items():
        (installed / folder).mkdir()
        (installed / folder / "METADATA").write_bytes(content)
    (installed / "again-2.0.dist-info").mkdir()
    (installed / "again-2.0.dist-info" / "METADATA").write_text("Name: Good\nVersion: 2.0\n\ntext")
    assert asked() == {"Name": "Good", "Version": "2.0"}


def test_this_installation() -> None:
    loaded = load_rows("metadata")
    assert loaded == load_rows("metadata")
    assert len(loaded.rows) > 100
    for row in loaded.rows:
        document, query = split_query(row)
        assert query == f"{row.key}:"
        assert f"{row.key}: {row.value}" in document.split("\n")
        assert row.key in KEYS
    assert len({(row.doc_id, row.key) for row in loaded.rows}) == len(loaded.rows)
    assert config.DISTRIBUTION not in {row.doc_id for row in loaded.rows}
