"""`recallkit train --task TASK` and `recallkit.train(task=...)`: tables, pictures, the page;
stopped runs end in the same bytes."""

from __future__ import annotations

import json
from collections import Counter

import pytest

import recallkit
from recallkit.commands.app import declared
from recallkit.commands.train import Train
from recallkit.errors import UserError
from recallkit.storage.result import read_tables
from recallkit.training.loop import Trainer
from recallkit.training.presets import PRESETS
from recallkit.training.tables import TradeoffTables

TINY = {
    "seq_len": 16,
    "pairs": [2, 3],
    "test_seq_len": 32,
    "vocab": 64,
    "widths": 16,
    "examples": 64,
    "test_examples": 32,
    "batch": 8,
}
TINY |= {"steps": 6, "mixers": ["attention", "linear_attention"], "mixer_options": "feature_dim=4"}
TINY |= {"test_pairs": [2, 8], "learning_rates": [1e-3, 1e-2]}


def words(options):
    for name, value in options.items():
        yield f"--{name.replace('_', '-')}"
        yield ",".join(map(str, value)) if isinstance(value, list) else str(value)


@pytest.fixture
def train(run):
    """Trains on MQAR: what `run` gives."""
    return lambda *arguments: run("train", "--task", "mqar", "--device", "cpu", *arguments)


def files_of(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))
    }


def test_one_command_makes_tables_pictures_and_a_part_of_the_page(run, train, tmp_path):
    out, figures = tmp_path / "out", tmp_path / "figures"
    done = train(*words(TINY), "-o", out, "--figures", figures, "--export", "md")
    assert done.returncode == 0, done.stderr
    assert "accuracy at the best learning rate" in " ".join(done.stdout.split())
    assert {path.stem for path in figures.glob("*.pdf")} == {
        "tradeoff",
        "tradeoff_by_pairs",
        "tradeoff_by_distance",
    }
    (folder,) = (out / "sweeps").iterdir()
    assert {"pairs.md", "distance.md"} <= {path.name for path in folder.iterdir()}
    result = json.loads(train(*words(TINY), "-o", out, "--json").stdout)
    assert [row["model"] for row in result["tradeoff"]] == ["attention", "linear_attention"]
    assert len(result["by_rate"]) == 4
    queries = Counter()
    for row in result["by_distance"]:
        queries[row["model"], row["pairs"]] += row["num_queries"]
    assert list(queries.values()) == [32, 128, 32, 128], "by model and pairs"
    assert [row["state_bytes"] for row in result["tradeoff"]] == [
        4 * 2 * 2 * 16 * 32,
        4 * 2 * 17 * (1 + 6 + 8),
    ]
    tables = recallkit.train(task="mqar", **TINY, out=out, device="cpu")
    saved = read_tables(TradeoffTables, folder)
    assert all(
        getattr(tables, name).equals(getattr(saved, name))
        for name in ("tradeoff", "by_rate", "by_distance")
    )
    run("report", folder, "-o", tmp_path / "page.html")
    assert "Recall against bytes of state" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_stopped_sweep_resumes_run_by_run_and_ends_in_the_same_bytes(
    train, tmp_path, monkeypatch
):
    assert train(*words(TINY), "-o", tmp_path / "whole").returncode == 0
    real, left = Trainer.step, [15]

    def step(self, *arguments):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(Trainer, "step", step)
    parts = (*words(TINY), "-o", tmp_path / "parts")
    assert train(*parts).returncode == 130
    assert len(list((tmp_path / "parts" / "runs").glob("*[0-9a-f].json"))) == 2, "no half a file"
    assert not (tmp_path / "parts" / "sweeps").exists()
    left[0] = 12
    assert train(*parts).returncode == 0, "no step more than those that were left"
    assert left[0] == 0
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")
    assert "reused" in train(*parts).stderr
    left[0] = 24
    assert train(*parts, "--force").returncode == 0
    assert left[0] == 0


def test_of_several_processes_the_first_one_logs(monkeypatch):
    for rank, number in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        assert len(Train(task="mqar", log_to="wandb").log_to or ()) == number


def test_the_presets_are_those_that_there_are():
    [preset] = [
        parameter for parameter in declared("train").parameters if parameter.name == "preset"
    ]
    assert preset.choices == tuple(PRESETS)


def test_every_task_with_its_options_and_mixers_in_turn_is_a_sweep(tmp_path):
    """Of tasks with other shapes of questions too, and a rate alone."""
    sizes = {
        **TINY,
        "mixers": "linear_attention+sliding_window",
        "mixer_options": "feature_dim=4,window=8,short_conv=0",
        "layers": 4,
        "learning_rates": 0.01,
    } | {"seq_len": 24, "test_seq_len": 48}
    for task, said in (
        ("mqar,filler=random,power=0.01", "mqar, filler random, power 0.01: trained on 24"),
        ("overwriting", "overwriting: trained on"),
        ("two_hops", "two_hops: trained on"),
    ):
        found = recallkit.train(task=task, **sizes, out=tmp_path, device="cpu").tradeoff
        assert found["task"].item().startswith(said.partition(":")[0]), task
        assert found["size"].item() == "feature_dim 4, window 8, short_conv 0"
        assert found["model"].item() == "linear_attention+sliding_window"


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("mqra", "mqar"),
        ("mqar,fill=random", "did you mean filler"),
        ("mqar,filler", "is not an option with its value; mqar has power, filler"),
    ],
)
def test_a_task_that_there_is_not_and_options_that_it_has_not_are_one_line(tmp_path, task, said):
    with pytest.raises(UserError, match=said) as caught:
        recallkit.train(task=task, **TINY, out=tmp_path, device="cpu")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
