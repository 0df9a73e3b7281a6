"""Packages that add models, mixers, slices, tasks and caches: the template of examples/plugin,
installed for real."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from recallkit import plugins

TEMPLATE = Path(__file__).parent.parent / "examples" / "plugin"


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """The folder in which the template is installed."""
    source = Path(shutil.copytree(TEMPLATE, tmp_path_factory.mktemp("plugin") / "source"))
    target = source.parent / "target"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(target),
        str(source),
    ]
    subprocess.run(command, check=True, timeout=300)
    return target


@pytest.fixture
def installed(package, tmp_path, monkeypatch):
    """The package where Python finds it, a copy for each test."""
    copy = Path(shutil.copytree(package, tmp_path / "installed"))
    monkeypatch.syspath_prepend(str(copy))
    plugins.installed.cache_clear()
    yield copy
    plugins.installed.cache_clear()
    sys.modules.pop("recallkit_example", None)


def answer(done) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_kind_is_listed_with_its_origin(installed, run):
    listed = {
        command: {row["name"]: row["description"] for row in answer(run(command, "--json"))}
        for command in ("models", "tasks")
    }
    of_package = {
        command: {
            name: what for name, what in rows.items() if name.startswith("recallkit-example.")
        }
        for command, rows in listed.items()
    }
    assert of_package["tasks"] == {
        "recallkit-example.last": "synthetic task of recallkit-example 1.0"
    }
    assert of_package["models"] == {
        "recallkit-example.halved": "cache of recallkit-example 1.0",
        "recallkit-example.mean": "mixer of recallkit-example 1.0",
        "recallkit-example.nearby": "slice of recallkit-example 1.0",
        "recallkit-example.uniform": "model of recallkit-example 1.0",
    }


def test_one_that_cannot_be_imported_is_a_note(installed, tmp_path, run):
    (installed / "recallkit_example.py").write_text("import nowhere_at_all\n")
    done = run("models")
    assert (done.returncode, "recallkit-example" in done.stdout) == (0, False)
    assert (
        "recallkit-example.mean: recallkit-example 1.0 raised ModuleNotFoundError: No module "
        "named 'nowhere_at_all'"
    ) in done.stderr
    done = run("train", "--task", "recallkit-example.last", "-o", tmp_path / "out")
    assert done.returncode == 1
    assert "nowhere_at_all" in done.stderr


def test_a_model_a_slice_and_a_cache(installed, small_slices, tiny_model, tmp_path, run):
    slices = shutil.copytree(small_slices, tmp_path / "slices")
    base = tiny_model("llama")
    models = [
        base,
        "recallkit-example.uniform",
        f"{base},cache=recallkit-example.halved",
        f"{base},cache=full",
    ]
    answer(
        run(
            "gap",
            *models,
            "--slices",
            slices,
            "--slice",
            "recallkit-example.nearby",
            "-o",
            tmp_path / "gap",
            "--json",
        )
    )
    gap = pl.read_parquet(tmp_path / "gap" / "gap.parquet").filter(source="ALL")
    nll = dict(gap.filter(slice="all").select("model", "nll_model").rows())
    assert nll["recallkit-example.uniform"] == pytest.approx(8.3178, abs=1e-3)  # ln 4096
    full, halved = (value for name, value in sorted(nll.items()) if "cache" in name)
    assert abs(full - halved) > 1e-3
    tokens = pl.read_parquet(slices / "tokens.parquet")
    expected = tokens.filter(pl.col("repeated") & (pl.col("distance") <= 32)).height
    assert set(gap.filter(slice="recallkit-example.nearby")["tokens"]) == {expected}


def test_a_mixer_and_a_task_are_trained(installed, tmp_path, run):
    sizes = (
        "--widths",
        16,
        "--steps",
        2,
        "--learning-rates",
        0.01,
        "--vocab",
        16,
        "--examples",
        96,
        "--test-examples",
        20,
        "--batch",
        8,
    )
    mixers = ("--mixers", "recallkit-example.mean,attention")
    answer(
        run(
            "train",
            "--task",
            "recallkit-example.last",
            *mixers,
            *sizes,
            "-o",
            tmp_path / "out",
            "--json",
        )
    )
    [table] = tmp_path.rglob("tradeoff.parquet")
    rows = pl.read_parquet(table)
    assert sorted(rows["model"]) == ["attention", "recallkit-example.mean"]
    # two layers: a sum of 16, and a count
    assert rows.filter(model="recallkit-example.mean")["state_bytes"].item() == 4 * 2 * 17


def test_a_mixer_whose_code_has_changed_makes_another_model_and_another_training(
    installed, small_slices, tmp_path, run
):
    config, out = tmp_path / "mean.toml", tmp_path / "run"
    config.write_text(
        '[model]\nd_model = 16\nlayers = [{mixer = "recallkit-example.mean"}]\n[recipe]\nbatch = '
        "4\n"
    )
    train = (
        "train",
        config,
        "demo:train",
        "--tokens",
        1024,
        "--seq-len",
        64,
        "--device",
        "cpu",
        "-o",
        out,
    )
    score = (
        "score",
        out / "checkpoint-4",
        "--slices",
        shutil.copytree(small_slices, tmp_path / "slices"),
        "--device",
        "cpu",
    )
    for command in (train, score):
        done, again = run(*command), run(*command)
        assert (done.returncode, again.returncode) == (0, 0), done.stderr
        assert "reused" in (again.stdout + again.stderr).lower()
    with (installed / "recallkit_example.py").open("a") as file:
        file.write("# changed\n")
    for command, said in ((train, "differs in config"), (score, "score it again")):
        done = run(*command)
        assert done.returncode == 1
        assert said in done.stderr
