"""What each tracker has of a comparison, and in a program's own run, read from its files."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import recallkit
from recallkit import cli
from recallkit.errors import UserError

MODELS = ("control:bigram", "control:recall", "control:unigram")
SCORES = ("accuracy", "nll_nats", "ppl")
PNG = b"\x89PNG\r\n\x1a\n"

Rows = list[dict[str, Any]]


@dataclass
class Run:
    """What a tracker has of a run; of TensorBoard tables are Markdown."""

    name: str
    config: dict[str, Any]
    numbers: dict[str, float]
    tables: dict[str, Any]
    figures: dict[str, bytes]
    notes: tuple[str, ...] = ()
    """What the line says where it is."""


def below(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """Those of the names that begin so, without it."""
    names = [name for name in values if name.startswith(prefix)]
    return {name.removeprefix(prefix): values[name] for name in names}


# ---------------------------------------------------------------------------------------- trackio


def trackio_rows(project: str) -> tuple[list[str], Rows, Rows]:
    """Names, configs and logged rows of a project."""
    from trackio.utils import TRACKIO_DIR

    with sqlite3.connect(TRACKIO_DIR / f"{project}.db") as connection:
        configs = connection.execute("SELECT run_name, config FROM configs").fetchall()
        rows = connection.execute("SELECT metrics FROM metrics ORDER BY id").fetchall()
    names, texts = zip(*configs, strict=True)
    return list(names), [*map(json.loads, texts)], [json.loads(row) for (row,) in rows]


def read_trackio() -> Run:
    from trackio.utils import TRACKIO_DIR

    [name], [config], [row] = trackio_rows("team")
    tables = {key: table["_value"] for key, table in below("tables/", row).items()}
    figures = {}
    for key, image in below("figures/", row).items():
        figures[key] = (TRACKIO_DIR / "media" / image["file_path"]).read_bytes()
    numbers = {key: value for key, value in row.items() if key.startswith("gap/")}
    return Run(name, config, numbers, tables, figures, ("trackio show --project team",))


def own_run_of_trackio(log: Callable[[], None]) -> list[set[str]]:
    import trackio

    trackio.init("training", name="mine", embed=False, auto_log_cpu=False, auto_log_gpu=False)
    trackio.log({"loss": 1.0})
    log()
    trackio.log({"loss": 0.5})
    trackio.finish()
    names, _, rows = trackio_rows("training")
    assert names == ["mine"]
    return [set(row) for row in rows]


# ------------------------------------------------------------------------------------------ W&B

_BLOCK = 1 << 15


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: LevelDB's log format, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, record = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # all of a record, or the last part of one
            yield Record.FromString(record)
            record = b""


def wandb_run() -> tuple[Path, Any, Rows, list[int]]:
    """The folder of the only run, how it began, its rows and exit codes."""
    sys.modules["wandb"].teardown()  # which writes everything, and forgets the folder
    [folder] = Path("wandb").glob("offline-run-*")
    [file] = folder.glob("*.wandb")
    begun, history, exits = None, [], []
    for record in wandb_records(file):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            begun = record.run
        elif kind == "exit":
            exits.append(record.exit.exit_code)
        elif kind == "history":
            row = {}
            for item in record.history.item:
                row[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
            history.append(row)
    return folder, begun, history, exits


def wandb_media(folder: Path) -> dict[str, Path]:
    """NAME -> file: W&B adds the step and a digest to names."""
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            files[str(path.relative_to(folder)).rpartition("_")[0].rpartition("_")[0]] = path
    return files


def read_wandb() -> Run:
    folder, begun, [row], exits = wandb_run()
    assert (begun.entity, begun.project, begun.job_type, exits) == ("", "team", "gap", [0])
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    tables = {}
    for name, path in wandb_media(folder / "files/media/table/tables").items():
        tables[name] = as_rows(json.loads(path.read_text()))
    images = wandb_media(folder / "files/media/images/figures")
    figures = {name: path.read_bytes() for name, path in images.items()}
    numbers = {name: value for name, value in row.items() if name.startswith("gap/")}
    return Run(begun.display_name, config, numbers, tables, figures, (str(folder),))


def as_rows(content: dict[str, Any]) -> Rows:
    return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


def own_run_of_wandb(log: Callable[[], None]) -> list[set[str]]:
    import wandb

    with wandb.init(project="training", name="mine") as run:
        run.log({"loss": 1.0})
        log()
        run.log({"loss": 0.5})
    _, begun, history, _ = wandb_run()
    assert (begun.project, begun.display_name) == ("training", "mine")
    return [{name for name in row if not name.startswith("_")} for row in history]


# ---------------------------------------------------------------------------------------- MLflow


def read_mlflow() -> Run:
    import mlflow

    [run] = mlflow.search_runs(experiment_names=["team"], output_format="list")
    assert run.info.status == "FINISHED"
    assert run.data.params["models"] == str(list(MODELS[1:]))
    client = mlflow.MlflowClient()

    def files(folder: str) -> dict[str, Path]:
        paths = [file.path for file in client.list_artifacts(run.info.run_id, folder)]
        copies = [Path(client.download_artifacts(run.info.run_id, path)) for path in paths]
        return {path.stem: path for path in copies}

    tables, figures = {}, {}
    for name, path in files("tables/gap").items():
        tables[f"gap/{name}"] = as_rows(json.loads(path.read_text()))
    for name, path in files("figures/gap").items():
        figures[f"gap/{name}"] = path.read_bytes()
    tagged = json.loads(run.data.tags["mlflow.loggedArtifacts"])
    assert {entry["path"] for entry in tagged} == {f"tables/{name}.json" for name in tables}
    config = json.loads(Path(client.download_artifacts(run.info.run_id, "gap.json")).read_text())
    return Run(run.info.run_name, config, run.data.metrics, tables, figures, (run.info.run_id,))


def own_run_of_mlflow(log: Callable[[], None]) -> list[set[str]]:
    import mlflow

    with mlflow.start_run(run_name="mine") as run:
        mlflow.log_metric("loss", 1.0)
        log()
        assert mlflow.active_run().info.run_id == run.info.run_id
    data = mlflow.get_run(run.info.run_id).data
    assert data.params == {}, "they could not be changed"
    return [set(data.metrics)]


# ----------------------------------------------------------------------------------- TensorBoard


def read_tensorboard(folder: str = "team") -> Run:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [run] = Path(folder).iterdir()
    events = EventAccumulator(str(run))
    events.Reload()
    tags = events.Tags()
    numbers = {tag: events.Scalars(tag)[0].value for tag in tags["scalars"]}
    texts, figures = {}, {}
    for tag in tags["tensors"]:
        [text] = events.Tensors(tag)[0].tensor_proto.string_val
        texts[tag.removesuffix("/text_summary")] = text.decode()
    for tag in tags["images"]:
        figures[tag.removeprefix("figures/")] = events.Images(tag)[0].encoded_image_string
    [config] = below("config/", texts).values()
    config = json.loads(config.removeprefix("```json\n").removesuffix("\n```"))
    name = "-".join(run.name.split("-")[:-3])  # without date, time and microseconds
    return Run(name, config, numbers, below("tables/", texts), figures, (str(run),))


# --------------------------------------------------------------------------------------- all four

READERS = {
    "trackio": read_trackio,
    "wandb": read_wandb,
    "mlflow": read_mlflow,
    "tensorboard": read_tensorboard,
}
OWN_RUNS = {"trackio": own_run_of_trackio, "wandb": own_run_of_wandb, "mlflow": own_run_of_mlflow}


@pytest.fixture(scope="session")
def gap_folder(tmp_path_factory):
    """Where the comparison is written: a name that is the same in every run."""
    return tmp_path_factory.mktemp("compared") / "mine"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder that all trackers write to, without a network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # read once, when it is imported
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'store.db'}")
    for name in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def installed(request, here):
    """A tracker's name; its tests are skipped where it is not installed."""
    pytest.importorskip(request.param, reason=f"needs {request.param}: pip install {request.param}")
    return request.param


def headlines(frame: pl.DataFrame) -> dict[str, float]:
    """The numbers of a comparison that trackers get."""
    columns = ("gap_share", "gap_share_ci_low", "gap_share_ci_high")
    recall = ("gain_model", "retained", "retained_ci_low", "retained_ci_high")
    numbers = {}
    for row in frame.filter(source="ALL").to_dicts():
        names = ["ppl_model", "delta_nll"]
        names += columns if row["slice"] != "all" and not row["void"] else ()
        names += recall if row["slice"] == "ar_hit" else ()
        for name in names:
            if row[name] is not None and math.isfinite(row[name]):
                numbers[f"gap/{row['model']}/{row['slice']}/{name}"] = row[name]
    return numbers


@pytest.mark.parametrize("installed", READERS, indirect=True)
def test_a_comparison_is_logged(home, small_slices, gap_folder, capsys, installed):
    words = ["gap", *MODELS, "--slices", str(small_slices), "-o", str(gap_folder), "--json"]
    with pytest.raises(SystemExit) as stopped:
        cli.run([*words, "--log-to", f"{installed}:team"])
    assert not stopped.value.code
    printed = capsys.readouterr()
    run = READERS[installed]()
    assert all(note in printed.err for note in run.notes)
    assert run.name == "gap-mine"
    assert run.config["options"]["models"] == list(MODELS[1:])
    assert run.config["manifest"]["slices"]["seq_len"] == 64
    frame = pl.read_parquet(gap_folder / "gap.parquet")
    expected = headlines(frame)
    assert len(expected) > 20
    assert run.numbers == pytest.approx(expected, rel=1e-6)
    assert {"gap/recall", "gap/by_count", "gap/by_threshold"} <= set(run.figures)
    assert all(image.startswith(PNG) for image in run.figures.values())
    if installed == "tensorboard":
        assert "| control:unigram |" in run.tables["gap/gap"]
    else:
        assert run.tables["gap/gap"] == json.loads(frame.write_json())
        written = {f"gap/{path.stem}" for path in gap_folder.glob("*.parquet")}
        assert set(run.tables) == written - {"gap/by_document"}


@pytest.mark.parametrize("installed", OWN_RUNS, indirect=True)
def test_a_run_that_a_program_has_begun_gets_the_result_and_goes_on(home, small_slices, installed):
    def log() -> None:
        recallkit.score("control:bigram", slices=small_slices, log_to=f"{installed}:ignored")

    rows = OWN_RUNS[installed](log)
    names = {f"scores/control:bigram/{name}" for name in SCORES}
    for row in rows:
        for name in [name for name in row if name.startswith("tables/")]:
            row.remove(name)
    assert rows in ([{"loss"}, names, {"loss"}], [{"loss"} | names])  # MLflow has no rows


def test_a_function_logs_what_it_returns_in_a_folder_a_call(home, small_slices, here):
    pytest.importorskip("tensorboard")
    destination = "tensorboard:runs"
    twice = [destination, destination]
    scores = recallkit.score("control:bigram", slices=small_slices, log_to=twice)
    run, row = read_tensorboard("runs"), scores.frame.row(0, named=True)
    expected = {f"scores/control:bigram/{name}": row[name] for name in SCORES}
    assert run.numbers == pytest.approx(expected, rel=1e-6)
    assert run.config["options"]["models"] == "control:bigram"
    recallkit.score("control:bigram", slices=small_slices, log_to=destination)
    assert len(list(Path("runs").iterdir())) == 2
    slices = recallkit.slice(texts=["one and one and one"], out="own", log_to="tensorboard:sliced")
    repeated = slices.frame["repeated_share"][0]
    expected = {"by_source/ALL/repeated_share": repeated}
    assert read_tensorboard("sliced").numbers == pytest.approx(expected, rel=1e-6)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_tracker_that_fails_costs_one_line_and_never_the_result(home, small_slices, here, capsys):
    pytest.importorskip("tensorboard")
    words = ["score", "control:bigram", "--slices", str(small_slices), "--json"]
    destinations = ["--log-to", "tensorboard:/proc/none", "--log-to", "tensorboard:good"]
    with pytest.raises(SystemExit) as stopped:
        cli.run([*words, *destinations])
    printed = capsys.readouterr()
    assert (stopped.value.code, json.loads(printed.out)[0]["model"]) == (1, "control:bigram")
    failed, logged = printed.err.splitlines()[-2:]
    assert failed.startswith("recallkit: --log-to tensorboard:/proc/none: not logged (")
    assert "the same command logs them again" in failed
    assert logged.startswith("recallkit: logged to tensorboard: good")
    tables = recallkit.score("control:bigram", slices=small_slices, log_to="tensorboard:/proc/none")
    assert tables.frame["model"].to_list() == ["control:bigram"]
    assert "not logged" in capsys.readouterr().err


# ------------------------------------------------------------------------------ before any work


@pytest.mark.parametrize(
    ("installed", "project", "problem"),
    [
        ("tensorboard", "file", "not a directory"),
        ("tensorboard", "file/runs", "not a directory"),
        ("mlflow", "team", "MLFLOW_TRACKING_URI"),
    ],
    indirect=["installed"],
)
def test_what_cannot_be_logged_to_is_refused(monkeypatch, here, installed, project, problem):
    (here / "file").touch()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "no-such-kind://here")
    with pytest.raises(UserError) as refused:
        recallkit.score("control:bigram", slices="none", log_to=f"{installed}:{project}")
    assert problem in refused.value.line()
    assert "\n" not in refused.value.line()


@pytest.mark.parametrize("installed", ["wandb"], indirect=True)
def test_without_a_login_nothing_is_begun(here, installed):
    """In a process of its own: W&B keeps what it knows of a login."""
    environment = {name: value for name, value in os.environ.items() if "WANDB" not in name}
    environment |= {"HOME": str(here), "NETRC": str(here / "none"), "WANDB_CONFIG_DIR": str(here)}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    words = ["gap", "--slices", "none", "a", "b", "--log-to", installed]
    done = subprocess.run(
        [sys.executable, "-m", "recallkit", *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    assert "WANDB_MODE=offline" in done.stderr
    assert "none" not in done.stderr
    assert done.stderr.count("\n") == 1
