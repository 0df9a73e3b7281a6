"""The notebook in examples/: executed as committed, and once more from nothing, with the same kinds
of output."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import ROOT

NOTEBOOK = ROOT / "examples/09_notebook.ipynb"


def outputs(notebook: dict[str, Any]) -> list[list[list[str]]]:
    """For each cell of code the kinds of what it shows, without what a run says on stderr."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [
        [sorted(each.get("data", [])) for each in cell["outputs"] if each.get("name") != "stderr"]
        for cell in cells
    ]


def test_the_notebook_is_executed_small_and_of_no_machine():
    text = NOTEBOOK.read_text(encoding="utf-8")
    notebook = json.loads(text)
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert not [
        each
        for cell in notebook["cells"]
        for each in cell.get("outputs", [])
        if each["output_type"] == "error"
    ]
    assert len(text) < 200_000
    assert not [place for place in ("/tmp/", "/home/", "/root/") if place in text]
    shown = [kind for cell in outputs(notebook) for each in cell for kind in each]
    assert shown.count("image/svg+xml") == 3
    assert shown.count("text/html") == 4
    html = "".join(
        "".join(each["data"].get("text/html", ""))
        for cell in notebook["cells"]
        for each in cell.get("outputs", [])
        if "data" in each
    )
    assert html.count('class="recallkit-result"') == 2


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    nbformat, nbclient = (
        pytest.importorskip(name, reason="pip install nbclient ipykernel nbformat")
        for name in ("nbformat", "nbclient")
    )
    pytest.importorskip("ipykernel", reason="pip install nbclient ipykernel nbformat")
    monkeypatch.setenv("RECALLKIT_HOME", str(tmp_path / "home"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    before = outputs(notebook)
    nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    assert outputs(notebook) == before
    assert (tmp_path / "by_count.svg").read_text().startswith("<svg")
