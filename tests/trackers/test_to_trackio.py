"""trackio: its SQLite file, read back."""

import json
import sqlite3

import pytest

from tests.trackers.conftest import MODELS, PNG


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # read when it is imported: before the first test only
    trackio = pytest.importorskip("trackio", reason="needs trackio: pip install trackio")
    from trackio.utils import TRACKIO_DIR

    monkeypatch.chdir(tmp_path)
    assert trackio
    return TRACKIO_DIR


def rows(folder, project):
    with sqlite3.connect(folder / f"{project}.db") as connection:
        metrics = [json.loads(text) for (text,) in connection.execute("SELECT metrics FROM metrics ORDER BY id")]
        configs = [json.loads(text) for (text,) in connection.execute("SELECT config FROM configs")]
        names = [name for (name,) in connection.execute("SELECT run_name FROM configs")]
    return names, configs, metrics


def test_a_comparison_is_in_the_file(log_gap, is_logged, folder):
    status, _, err = log_gap("trackio:recall")
    assert status == 0
    assert "trackio show --project recall" in err
    [name], [config], [logged] = rows(folder, "recall")
    assert name == "gap-mine"
    assert config["options"]["models"] == list(MODELS[1:])
    assert config["manifest"]["slices"]["seq_len"] == 64
    tables = {key.removeprefix("tables/"): value["_value"] for key, value in logged.items() if key.startswith("tables/")}
    figures = {key.removeprefix("figures/"): value["file_path"] for key, value in logged.items() if key.startswith("figures/")}
    assert all((folder / "media" / path).read_bytes().startswith(PNG) for path in figures.values())
    is_logged({key: value for key, value in logged.items() if key.startswith("gap/")}, tables, figures)


def test_a_run_that_a_program_has_begun_gets_the_result_and_goes_on(home, small_slices, folder):
    import trackio

    import recallkit

    trackio.init("training", name="mine", embed=False, auto_log_cpu=False, auto_log_gpu=False)
    trackio.log({"loss": 1.0})
    recallkit.score("control:bigram", slices=small_slices, log_to="trackio")
    trackio.log({"loss": 0.5})
    trackio.finish()
    names, _, metrics = rows(folder, "training")
    assert names == ["mine"]
    assert [sorted(key for key in row if not key.startswith("tables/")) for row in metrics] == [
        ["loss"],
        [f"scores/control:bigram/{name}" for name in ("accuracy", "nll_nats", "ppl")],
        ["loss"],
    ]
