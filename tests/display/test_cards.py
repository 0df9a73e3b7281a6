"""`--export card`: the hub's own parser reads the figures of each model's card, which are those of
the tables."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from huggingface_hub import ModelCard

from recallkit.display.cards import write_cards
from recallkit.display.views import Measured, ResultView


def read(path: Path) -> tuple[str, dict[tuple[str, str, str], float], str]:
    """The model, its figures by type, name and data set, and the text; the hub's parser raises
    ValueError for what is no model-index."""
    card = ModelCard(path.read_text(encoding="utf-8"), ignore_metadata_errors=False)
    assert {each.task_type for each in card.data.eval_results} == {"text-generation"}
    found = {
        (each.metric_type, each.metric_name, each.dataset_type): each.metric_value
        for each in card.data.eval_results
    }
    assert len(found) == len(card.data.eval_results)
    return card.data.model_name, found, card.text


def test_cards_of_a_comparison(run, few_slices, tmp_path):
    done = run(
        "gap",
        "control:recall",
        "control:bigram",
        "--slices",
        few_slices,
        "-o",
        tmp_path,
        "--price",
        "--export",
        "card",
    )
    assert done.returncode == 0, done.stderr
    assert f"2 files written to {tmp_path}" in done.stdout
    rows = {
        row["slice"]: row
        for row in pl.read_parquet(tmp_path / "gap.parquet").filter(source="ALL").to_dicts()
    }
    text = ", ".join(
        Path(name).name for name in json.loads((few_slices / "manifest.json").read_text())["names"]
    )
    cards = {model: (found, shown) for model, found, shown in map(read, tmp_path.glob("card-*.md"))}
    for model, side in (("control:recall", "reference"), ("control:bigram", "model")):
        found, shown = cards[model]
        hits = rows["ar_hit"]
        gain, retained = (
            hits[f"gain_{side}"],
            {"Retained of the recall of control:recall": hits["retained"]},
        )
        expected = {
            ("perplexity", "Perplexity", text): rows["all"][f"ppl_{side}"],
            ("perplexity", "Perplexity of AR hits", text): hits[f"ppl_{side}"],
            ("recall_gain", "Recall gain on AR hits", text): gain,
            **{
                ("recall_retained", name, text): share
                for name, share in retained.items()
                if side == "model"
            },
        }
        assert found == pytest.approx(expected, rel=1e-5)
        lines = [
            f"- Perplexity: {rows['all'][f'ppl_{side}']:,.2f}",
            f"- Perplexity of AR hits: {hits[f'ppl_{side}']:,.2f}",
            f"- Recall gain on AR hits: {100 * gain:z.1f} points",
            *(
                f"- {name}: {100 * share:z.1f} %"
                for name, share in retained.items()
                if side == "model"
            ),
        ]
        of_model = "\n".join(lines)
        assert f"## Associative recall\n\n{model}:\n\n{of_model}\n" in shown, (
            "what is of this model comes first"
        )
        assert "| control:recall |" in shown
        assert "| control:bigram |" in shown
    assert run("verify", tmp_path).returncode == 0


def test_a_card_has_no_name_that_turns_text_around(tmp_path):
    measured = Measured("a\u202eb", "perplexity", "Perplexity", 1.5, "text\u2066\x1b.jsonl")

    class View(ResultView):
        kind, display_tables = "gap", {}

        def measured(self):
            return [measured]

    [path] = write_cards(View(tmp_path, {}))
    text = path.read_text(encoding="utf-8")
    assert read(path)[0] == "a\\x202eb"
    assert all(character.isprintable() for character in text.replace("\n", "")), ascii(text)


def test_cards_of_recall_from_documents(run, tmp_path):
    asked = (
        "--tasks",
        "niah_single_1,niah_multikey_1",
        "--lengths",
        "256",
        "--samples",
        "11",
        "-o",
        tmp_path,
    )
    done = run(
        "eval-recall", "control:copy", "control:unigram", *asked, "--export", "card", "--json"
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert len(printed["files"]) == 2
    for path in map(Path, printed["files"]):
        model, found, shown = read(path)
        rows = [row for row in printed["recall"] if row["model"] == model]
        assert {name.partition(":")[0]: value for (_, name, _), value in found.items()} == {
            row["task"]: row["accuracy"] for row in rows
        }
        assert "    recallkit eval-recall control:copy control:unigram" in shown


def test_what_has_no_figures_for_a_card_says_so(run, few_slices, tmp_path):
    done = run("profile", "--slices", few_slices, "-o", tmp_path / "profile", "--export", "card")
    assert (done.returncode, "`gap` and `eval-recall` have some" in done.stderr) == (2, True)
