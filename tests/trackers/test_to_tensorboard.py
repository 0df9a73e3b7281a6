"""TensorBoard: event files, read back by TensorBoard's own reader."""

import json
from pathlib import Path

import pytest

import recallkit
from recallkit import cli
from recallkit.errors import UserError
from tests.trackers.conftest import MODELS, PNG

pytest.importorskip("tensorboard", reason="needs TensorBoard: pip install tensorboard")


def read(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [run] = folder.iterdir()
    events = EventAccumulator(str(run))
    events.Reload()
    tags = events.Tags()
    numbers = {tag: events.Scalars(tag)[0].value for tag in tags["scalars"]}
    texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in tags["tensors"]}
    images = {tag.removeprefix("figures/"): events.Images(tag)[0].encoded_image_string for tag in tags["images"]}
    return run.name, numbers, {tag.removesuffix("/text_summary"): text for tag, text in texts.items()}, images


def test_a_comparison_is_in_the_event_file(log_gap, gap_folder, tmp_path):
    status, found, err = log_gap(f"tensorboard:{tmp_path / 'runs'}")
    assert status == 0
    name, numbers, texts, images = read(tmp_path / "runs")
    assert name.startswith("gap-mine-")
    assert name in err
    rows = {(row["model"], row["slice"]): row for row in found["gap"] if row["source"] == "ALL"}
    assert numbers["gap/control:recall/ar_hit/delta_nll"] == pytest.approx(rows["control:recall", "ar_hit"]["delta_nll"], rel=1e-6)
    assert "gap/control:recall/all/gap_share" not in numbers, "100 % by definition"
    assert "| control:unigram |" in texts["tables/gap/gap"]
    config = json.loads(texts["config/gap"].removeprefix("```json\n").removesuffix("\n```"))
    assert config["options"]["models"] == list(MODELS[1:])
    assert config["manifest"]["slices"]["seq_len"] == 64
    assert all(image.startswith(PNG) for image in images.values())
    assert {"gap/recall", "gap/by_count", "gap/by_threshold"} <= set(images)


def test_a_function_logs_what_it_returns_in_a_folder_a_call(home, small_slices, tmp_path):
    where = f"tensorboard:{tmp_path / 'runs'}"
    found = recallkit.score("control:bigram", slices=small_slices, log_to=[where, where])
    _, numbers, texts, _ = read(tmp_path / "runs")
    row = found.frame.row(0, named=True)
    assert numbers == pytest.approx({f"scores/control:bigram/{name}": row[name] for name in ("nll_nats", "ppl", "accuracy")}, rel=1e-6)
    assert '"models": "control:bigram"' in texts["config/score"]
    recallkit.score("control:bigram", slices=small_slices, log_to=where)
    assert len(list((tmp_path / "runs").iterdir())) == 2
    sliced = recallkit.slice(texts=["one and one and one"], out=tmp_path / "own", log_to=f"tensorboard:{tmp_path / 'sliced'}")
    repeated = sliced.frame["repeated_share"][0]
    assert read(tmp_path / "sliced")[1] == pytest.approx({"by_source/ALL/repeated_share": repeated}, rel=1e-6)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, a folder in which none can be made")
def test_a_tracker_that_fails_costs_one_line_and_never_the_result(home, small_slices, tmp_path, capsys):
    words = ["score", "control:bigram", "--slices", str(small_slices), "--json"]
    with pytest.raises(SystemExit) as stopped:
        cli.run([*words, "--log-to", "tensorboard:/proc/none", "--log-to", f"tensorboard:{tmp_path / 'good'}"])
    told = capsys.readouterr()
    assert (stopped.value.code, json.loads(told.out)[0]["model"]) == (1, "control:bigram")
    failed, logged = told.err.splitlines()[-2:]
    assert failed.startswith("recallkit: --log-to tensorboard:/proc/none: not logged (")
    assert "the same command logs them again" in failed
    assert logged.startswith("recallkit: logged to tensorboard: ")
    assert len(list((tmp_path / "good").iterdir())) == 1
    tables = recallkit.score("control:bigram", slices=small_slices, log_to="tensorboard:/proc/none")
    assert tables.frame["model"].to_list() == ["control:bigram"]
    assert "not logged" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["file", "file/runs"])
def test_a_file_where_a_folder_is_to_be_is_refused_before_the_work(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="not a directory"):
        recallkit.score("control:bigram", slices=tmp_path / "none", log_to=f"tensorboard:{tmp_path / place}")
