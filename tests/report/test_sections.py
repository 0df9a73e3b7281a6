"""Evaluations, MQAR and a profile beside a comparison, or alone; and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recallkit.errors import UserError
from recallkit.mqar.run import evaluate_mqar
from recallkit.mqar.tables import MqarTables
from recallkit.mqar.view import mqar_tables
from recallkit.options import MqarOptions
from recallkit.profiling.run import profile_slices
from recallkit.profiling.view import ProfileView
from recallkit.recall.tables import compare_recall, write_documents
from recallkit.recall.view import recall_tables
from recallkit.report.write import ReportOptions, write_report
from recallkit.storage import parquet_files
from recallkit.storage.result import read_tables
from tests.recall.test_tables import documents, manifest
from tests.report.conftest import MODELS, REFERENCE
from tests.report.reading import Page


@pytest.fixture(scope="module")
def evaluations(words, tmp_path_factory):
    """A folder with recall evaluations, MQAR and a profile, as the commands leave them; and their
    tables as they are printed."""
    folder = tmp_path_factory.mktemp("evaluations")
    contained = {REFERENCE: [True] * 20, MODELS[0]: [number % 3 == 0 for number in range(20)]}
    files = {}
    for number, (model, right) in enumerate(contained.items()):
        files[model, "fda"] = folder / "evals" / "documents" / f"{number}.parquet"
        write_documents(files[model, "fda"], documents(model, right), manifest(3))
    recall = compare_recall(files)
    named = {"reference": REFERENCE, "models": list(contained), "tasks": ["fda-v1"]}
    rows = {"fda": {"origin": "fda.jsonl", "digest": "d", "note": ""}}
    options = {"reference": "a", "models": ["a", "b"], "tasks": ["fda-v1"]}
    facts = {"kind": "recall", "options": options, **named, "rows": rows}
    parquet_files.write_frames(recall, folder / "evals" / "compared" / "fda-v1", facts)
    mqar, _ = evaluate_mqar(
        [REFERENCE, MODELS[0]],
        [4, 8],
        folder / "mqar",
        MqarOptions(seq_len=64, samples=12, batch_tokens=1024),
    )
    profile = profile_slices(words, folder / "profile")
    facts = parquet_files.read_manifest(folder / "profile" / "profile.parquet")
    return folder, [
        *recall_tables(recall).values(),
        *mqar_tables(mqar).values(),
        *ProfileView(folder, profile, facts).display_tables.values(),
    ]


@pytest.fixture(scope="module")
def written(words, evaluations, tmp_path_factory):
    """A page of all of them, and of a comparison."""
    folder, _ = evaluations
    return write_report(
        words, tmp_path_factory.mktemp("page") / "all.html", ReportOptions(more=[folder])
    )


def test_one_page_shows_all_results_with_their_printed_tables(evaluations, written):
    _, printed = evaluations
    page = Page.read(written.page)
    assert sorted(written.results) == ["gap", "mqar", "profile", "recall"]
    assert page.texts("h2") == [
        "What recall and the gap depend on",
        "Where each model loses most",
        "The text, token by token",
        "Recall from documents",
        "Prompts and generations",
        "Recall of made-up pairs (MQAR)",
        "What the text repeats",
        "Tables",
        "How it was measured",
    ]
    shown = page.tables()
    for table in printed:
        assert shown[table.title] == [
            [" ".join(header.split()) for header in table.headers],
            *(list(row) for row in table.rows),
        ]
        for line in (table.caption or "").splitlines():
            assert any(" ".join(line.split()) in text for text in page.texts("p")), line
    ids = [attributes["id"] for _, attributes, _, _ in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    drawn = [identifier for identifier in ids if identifier.startswith("figure-")]
    assert len(drawn) >= 12, "pictures of all four"


def test_without_a_comparison_there_is_a_page_of_the_rest(evaluations):
    folder, _ = evaluations
    written = write_report(folder / "mqar")
    page = Page.read(written.page)
    assert written.page.parent == folder / "mqar"
    assert page.texts("title") == page.texts("h2") == ["Recall of made-up pairs (MQAR)"]
    assert page.texts("h1") == ["How many made-up pairs do these models recall?"]
    first, *_ = page.texts("p")
    accuracy = read_tables(MqarTables, written.results["mqar"]).mqar.filter(
        pairs=8, model=MODELS[0]
    )["accuracy"][0]
    assert first.startswith(f"With the most pairs, 8 in 64 ids, {REFERENCE} recalls ")
    assert f"; {MODELS[0]} {100 * accuracy:.1f} % (" in first
    with pytest.raises(UserError, match="there is no comparison here, hence no text to show"):
        write_report(folder / "mqar", options=ReportOptions(sequence=[1]))


def test_the_command_writes_the_page_and_its_figures_and_opens_it(
    run, evaluations, tmp_path, monkeypatch
):
    folder, opened = evaluations[0] / "mqar", []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    out = tmp_path / "a page.html"
    done = run("report", folder, "-o", out, "--figures", tmp_path / "pictures", "--open", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["page"], report["bytes"]) == (str(out), out.stat().st_size)
    assert Path(report["results"]["mqar"]).is_relative_to(folder)
    drawn = [
        attributes["id"].removeprefix("figure-")
        for name, attributes, _, _ in Page.read(out).elements
        if name == "figure"
    ]
    files = {
        name
        for figure in drawn
        for name in (f"{figure}.svg", f"{figure}.png", f"{figure}.pdf", f"figure-{figure}.tex")
    }
    assert (
        files
        == {Path(path).name for path in report["files"]}
        <= {path.name for path in (tmp_path / "pictures").iterdir()}
    )
    assert opened == [out.as_uri()]

    done = run("report", folder, "-o", out)
    assert done.stdout.splitlines()[0] == f"Page: {out}", "a line of its own, whatever its length"
    failed = run("report", tmp_path / "nowhere")
    assert failed.returncode == 1
    assert failed.stderr.count("\n") == 1
    assert "no such directory" in failed.stderr


def test_the_command_that_was_typed_is_on_the_page_and_the_card_without_folders(
    run, few_slices, tmp_path
):
    typed = [
        *MODELS[:1],
        REFERENCE,
        "--slices",
        few_slices,
        "-o",
        tmp_path / "gap",
        "--export",
        "card",
    ]
    for command in (
        ["gap", *typed],
        ["mqar", REFERENCE, "--pairs", "4", "--samples", "9", "-o", tmp_path / "mqar"],
    ):
        done = run(*command)
        assert done.returncode == 0, done.stderr
    page = Page.read(
        write_report(tmp_path / "gap", options=ReportOptions(more=[tmp_path / "mqar"])).page
    )
    gap = f"recallkit gap {MODELS[0]} {REFERENCE} --slices {few_slices.name} -o gap --export card"
    assert gap in page.texts("pre")[0].splitlines()
    assert f"recallkit mqar {REFERENCE} --pairs 4 --samples 9 -o mqar" in page.texts("code")
    assert str(tmp_path) not in page.source
    [card, _] = (tmp_path / "gap").glob("card-*.md")
    assert f"    {gap}\n" in card.read_text()
