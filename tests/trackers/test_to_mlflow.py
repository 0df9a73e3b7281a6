"""MLflow: a run in a SQLite store, read back by its client."""

import json
from pathlib import Path

import pytest

pytest.importorskip("mlflow", reason="needs MLflow: pip install mlflow")

from tests.trackers.conftest import MODELS, PNG

SCORES = ("accuracy", "nll_nats", "ppl")


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'store.db'}")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    import mlflow

    return mlflow


def test_a_comparison_is_in_the_store(log_gap, is_logged, store, tmp_path):
    status, _, err = log_gap("mlflow:recall")
    assert status == 0
    assert err.count("\n") == 1, "MLflow's own lines are not ours"
    [run] = store.search_runs(experiment_names=["recall"], output_format="list")
    assert run.info.run_id in err
    assert (run.info.run_name, run.info.status) == ("gap-mine", "FINISHED")
    assert run.data.params["models"] == str(list(MODELS[1:]))
    client = store.MlflowClient()

    def files(folder):
        found = client.list_artifacts(run.info.run_id, folder)
        return {Path(file.path).stem: Path(client.download_artifacts(run.info.run_id, file.path)) for file in found}

    tables = {}
    for name, path in files("tables/gap").items():
        content = json.loads(path.read_text())
        tables[f"gap/{name}"] = [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]
    figures = {f"gap/{name}": path for name, path in files("figures/gap").items()}
    assert all(path.read_bytes().startswith(PNG) for path in figures.values())
    is_logged(run.data.metrics, tables, figures)
    shown = [each["path"] for each in json.loads(run.data.tags["mlflow.loggedArtifacts"]) if each["type"] == "table"]
    assert sorted(shown) == sorted(f"tables/{name}.json" for name in tables)
    config = json.loads(Path(client.download_artifacts(run.info.run_id, "gap.json")).read_text())
    assert config["manifest"]["slices"]["seq_len"] == 64


def test_a_run_that_a_program_has_begun_gets_the_result_and_goes_on(home, small_slices, store):
    import recallkit

    with store.start_run(run_name="mine") as run:
        recallkit.score({"my model*": "control:bigram"}, slices=small_slices, log_to="mlflow")
        recallkit.score("control:bigram", slices=small_slices, log_to="mlflow")
        assert store.active_run().info.run_id == run.info.run_id
    data = store.get_run(run.info.run_id).data
    assert sorted(data.metrics) == [f"scores/{model}/{name}" for model in ("control:bigram", "my model_") for name in SCORES]
    assert data.params == {}, "they could not be changed"


def test_a_store_that_cannot_be_opened_is_refused_before_the_work(tmp_path, monkeypatch, log_gap):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "no-such-kind://here")
    status, found, err = log_gap("mlflow")
    assert (status, found) == (1, None)
    assert "MLFLOW_TRACKING_URI" in err
    assert err.count("\n") == 1
