"""`recallkit ablate` and `recallkit.ablate`: from a command line to tables, JSON, files for a paper and the page."""

from __future__ import annotations

import json

import pytest

import recallkit
from recallkit import cli
from recallkit.ablation.tables import AblationTables
from recallkit.storage.result import read_tables


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        cli.run([*map(str, arguments)])
    return caught.value.code, capsys.readouterr()


def test_one_command_makes_tables_files_and_a_part_of_the_page(tiny_model, few_slices, tmp_path, capsys):
    model, out = tiny_model("llama"), tmp_path / "ablated"
    arguments = ("ablate", model, "--slices", few_slices, "--mixers", "1,0+1", "--device", "cpu", "-o", out)
    status, shown = call(capsys, *arguments, "--export", "csv,md", "--figures", tmp_path / "figures")
    assert status == 0
    assert "Recall retained without mixers" in shown.out
    assert "1 attention" in shown.out
    made = {path.name for path in (*out.iterdir(), *(tmp_path / "figures").iterdir())}
    assert {"ablation.parquet", "mixers.parquet", "manifest.json", "ablation.csv", "mixers.md", "ablation.svg", "ablation.png"} <= made
    status, shown = call(capsys, *arguments, "--json")
    found = json.loads(shown.out)
    assert status == 0
    assert {row["mixers"] for row in found["ablation"]} == {"1", "0+1"}
    page = tmp_path / "page.html"
    assert call(capsys, "report", out, "-o", page)[0] == 0
    text = page.read_text(encoding="utf-8")
    assert "What each mixer is worth" in text
    assert f"<span>ablate</span> <span>{model.name}</span>" in text
    assert str(model.parent) not in text
    tables = recallkit.ablate(model, slices=few_slices, mixers="1,0+1", device="cpu", out=out)
    assert tables.ablation.equals(read_tables(AblationTables, out).ablation)
    status, shown = call(capsys, *arguments[:-2])
    assert status == 0, shown.err
    assert str(few_slices / "ablation") in shown.out


def test_heads_of_a_layer_are_searched(tiny_model, few_slices, tmp_path, capsys):
    """On random weights no group is needed: the search ends with the first."""
    model, out = tiny_model("llama"), tmp_path / "heads"
    arguments = ("ablate", model, "--slices", few_slices, "--mixers", "1", "--heads", "--device", "cpu", "-o", out)
    status, shown = call(capsys, *arguments)
    assert status == 0
    assert "Recall retained without mixers" in shown.out
    assert "1 attention h0-3" in shown.out
    assert max(len(line) for line in shown.out.splitlines() if str(out) not in line) <= 80
    status, shown = call(capsys, *arguments, "--json")
    assert {row["mixers"] for row in json.loads(shown.out)["mixers"]} == {"1.h0-3"}
    assert call(capsys, *arguments, "--by", "mean")[0] == 2


def test_a_budget_has_a_folder_and_a_path_of_its_own(tiny_model, few_slices, tmp_path, capsys):
    model = tiny_model("llama")
    arguments = ("ablate", model, "--slices", few_slices, "--budget", "1", "--device", "cpu")
    status, shown = call(capsys, *arguments, "--json")
    assert status == 0, shown.err
    rows = json.loads(shown.out)["mixers"]
    assert [row["layers"] for row in rows] in (["0+1", "1"], ["0+1", "0"])
    assert rows[0]["cache_bytes"] == 2 * rows[1]["cache_bytes"] > 0
    status, shown = call(capsys, *arguments)
    assert "Recall retained with fewer layers" in shown.out
    assert "By backward elimination" in shown.out
    folder = few_slices / "ablation" / f"{model.name}-budget-1"
    page = tmp_path / "page.html"
    assert call(capsys, "report", folder, "-o", page)[0] == 0
    text = page.read_text(encoding="utf-8")
    assert "Recall retained with fewer layers" in text
    assert "<span>--budget</span> <span>1</span>" in text or "--budget 1" in text
    assert call(capsys, *arguments, "--heads")[0] == 2
