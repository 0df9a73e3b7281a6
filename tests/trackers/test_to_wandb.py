"""Weights & Biases, offline: what its own format on the disk contains."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("wandb", reason="needs W&B: pip install wandb pillow")

from tests.trackers.conftest import MODELS, PNG

_BLOCK = 1 << 15


def records(path: Path):
    """The records of a .wandb file: LevelDB's log format, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(whole)
            whole = b""


def read(run: Path):
    [file] = run.glob("*.wandb")
    found = list(records(file))
    [begun] = [record.run for record in found if record.WhichOneof("record_type") == "run"]
    history = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in found
        if record.WhichOneof("record_type") == "history"
    ]
    exits = [record.exit.exit_code for record in found if record.WhichOneof("record_type") == "exit"]
    return begun, history, exits


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    yield tmp_path / "wandb"
    import wandb

    wandb.teardown()  # it would keep the folder of the first test


def media(run: Path, folder: str) -> dict[str, Path]:
    """NAME -> file: W&B adds the step and a digest to names."""
    root = run / "files/media" / folder
    return {str(path.relative_to(root)).rpartition("_")[0].rpartition("_")[0]: path for path in root.rglob("*") if path.is_file()}


def test_a_comparison_is_in_the_run(log_gap, is_logged, gap_folder, offline):
    status, _, err = log_gap("wandb:team/recall")
    assert status == 0
    [run] = offline.glob("offline-run-*")
    assert str(run) in err
    begun, [history], exits = read(run)
    assert (begun.entity, begun.project, begun.display_name, begun.job_type, exits) == ("team", "recall", "gap-mine", "gap", [0])
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config["options"]["models"] == list(MODELS[1:])
    assert config["manifest"]["slices"]["seq_len"] == 64
    tables = {}
    for name, path in media(run, "table/tables").items():
        content = json.loads(path.read_text())
        tables[name] = [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]
    images = media(run, "images/figures")
    assert all(path.read_bytes().startswith(PNG) for path in images.values())
    numbers = {name: value for name, value in history.items() if name.startswith("gap/")}
    is_logged(numbers, tables, images)


def test_a_run_that_a_program_has_begun_gets_the_result_and_goes_on(home, small_slices, offline):
    import wandb

    import recallkit

    with wandb.init(project="training", name="mine", config={"lr": 1}) as run:
        run.log({"loss": 1.0})
        recallkit.score("control:bigram", slices=small_slices, log_to="wandb:ignored")
        run.log({"loss": 0.5})
    [folder] = offline.glob("offline-run-*")
    begun, history, _ = read(folder)
    assert (begun.project, begun.display_name) == ("training", "mine")
    assert [sorted(name for name in row if not name.startswith(("_", "tables/"))) for row in history] == [
        ["loss"],
        [f"scores/control:bigram/{name}" for name in ("accuracy", "nll_nats", "ppl")],
        ["loss"],
    ]


def test_without_a_login_nothing_is_begun(offline, tmp_path):
    """In a process of its own: W&B keeps what it knows of a login."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none"), "WANDB_CONFIG_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "recallkit", "gap", "--slices", "none", "a", "b", "--log-to", "wandb"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, stdin=subprocess.DEVNULL)
    assert done.returncode == 1
    assert "WANDB_MODE=offline" in done.stderr
    assert "none" not in done.stderr
    assert done.stderr.count("\n") == 1
