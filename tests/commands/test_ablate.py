"""`recallkit ablate` and `recallkit.ablate`: from a command line to tables, JSON, files for a paper
and the page."""

from __future__ import annotations

import json

import recallkit
from recallkit.ablation.tables import AblationTables
from recallkit.storage.result import read_tables


def page_of(run, folder, page):
    assert run("report", folder, "-o", page).returncode == 0
    return page.read_text(encoding="utf-8")


def test_one_command_makes_tables_files_and_a_part_of_the_page(
    run, tiny_model, few_slices, tmp_path
):
    model, out = tiny_model("llama"), tmp_path / "ablated"
    command = (
        "ablate",
        model,
        "--slices",
        few_slices,
        "--mixers",
        "1,0+1",
        "--device",
        "cpu",
        "-o",
        out,
    )
    done = run(*command, "--export", "csv,md", "--figures", tmp_path / "figures")
    assert done.returncode == 0, done.stderr
    assert "Recall retained without mixers" in done.stdout
    files = {path.name for path in (*out.iterdir(), *(tmp_path / "figures").iterdir())}
    assert {
        "ablation.parquet",
        "mixers.parquet",
        "manifest.json",
        "ablation.csv",
        "mixers.md",
        "ablation.svg",
        "ablation.png",
    } <= files
    assert {row["mixers"] for row in json.loads(run(*command, "--json").stdout)["ablation"]} == {
        "1",
        "0+1",
    }
    text = page_of(run, out, tmp_path / "page.html")
    assert "What each mixer is worth" in text
    assert f"<span>ablate</span> <span>{model.name}</span>" in text
    assert str(model.parent) not in text
    tables = recallkit.ablate(model, slices=few_slices, mixers="1,0+1", device="cpu", out=out)
    assert tables.ablation.equals(read_tables(AblationTables, out).ablation)
    assert str(few_slices / "ablation") in run(*command[:-2]).stdout


def test_heads_of_a_layer_are_searched(run, tiny_model, few_slices, tmp_path):
    """On random weights no group is needed: the search ends with the first."""
    command = (
        "ablate",
        tiny_model("llama"),
        "--slices",
        few_slices,
        "--mixers",
        "1",
        "--heads",
        "--device",
        "cpu",
        "-o",
        tmp_path / "heads",
    )
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert "1 attention h0-3" in done.stdout
    assert {row["mixers"] for row in json.loads(run(*command, "--json").stdout)["mixers"]} == {
        "1.h0-3"
    }
    assert run(*command, "--by", "mean").returncode == 2


def test_a_budget_has_a_folder_and_a_path_of_its_own(run, tiny_model, few_slices, tmp_path):
    model = tiny_model("llama")
    command = ("ablate", model, "--slices", few_slices, "--budget", "1", "--device", "cpu")
    done = run(*command, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["mixers"]
    assert [row["layers"] for row in rows] in (["0+1", "1"], ["0+1", "0"])
    assert rows[0]["cache_bytes"] == 2 * rows[1]["cache_bytes"] > 0
    text = page_of(run, few_slices / "ablation" / f"{model.name}-budget-1", tmp_path / "page.html")
    assert "Recall retained with fewer layers" in text
    assert "<span>--budget</span> <span>1</span>" in text or "--budget 1" in text
    assert run(*command, "--heads").returncode == 2
