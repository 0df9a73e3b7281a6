"""Steps in names, patterns, and checkpoints that are being written."""

from __future__ import annotations

import shutil
import threading

import pytest

from recallkit.errors import UserError
from recallkit.models.spec import list_models, parse_model
from recallkit.tracking.steps import Watch, by_step, expand_all, step_of

STEPS = {
    "run7/checkpoint-500/": 500,
    "runs/2b/step_0001000": 1000,
    "global_step250": 250,
    "iter=20.pth": 20,
    "pythia-70m-step3000": 3000,
    "EleutherAI/pythia-70m@step512": 512,
    "checkpoint-500/model": 500,
    "rwkv-2000.pth": 2000,
    "run7/mamba2-500": 500,
    "run/ck_10M_1000": 1000,
    "runs-3/250": 250,
    "rwkv-4-2000.pth": 2000,
    "mamba2-1000=control:bigram": 1000,
    "late-9=some/checkpoint-500": 9,
    "late=epoch 3/x": 3,
}


def test_a_step_is_read_from_a_name():
    assert {name: step_of(parse_model(name)) for name in STEPS} == STEPS
    for name in ("weights", "llama-2-7b", "pythia-1.4", "run7/weights", "step99999999999999999999"):
        with pytest.raises(UserError, match=r"name the checkpoint's step"):
            step_of(parse_model(name))


def test_checkpoints_are_sorted_as_numbers():
    assert list(by_step(list_models(["c/step-1000", "c/step-90", "c/step-9"]))) == [9, 90, 1000]
    with pytest.raises(UserError, match="step 90 of c/step-90, too; give one of them"):
        by_step(list_models(["c/step-90", "d/step_090"]))


def test_a_pattern_names_what_is_there(tmp_path):
    for name in ("checkpoint-2", "checkpoint-10", "other"):
        (tmp_path / name).mkdir()
    found = expand_all([parse_model(f"{tmp_path}/checkpoint-*")])
    assert list(by_step(found)) == [2, 10]
    assert sorted(spec.shown for spec in found) == ["checkpoint-10", "checkpoint-2"]
    with pytest.raises(UserError, match="no such checkpoints"):
        expand_all([parse_model(f"{tmp_path}/step-*")])
    with pytest.raises(UserError, match="one name for several"):
        expand_all([parse_model(f"mine={tmp_path}/checkpoint-*")])


def test_a_checkpoint_is_taken_once_it_is_settled_and_again_when_it_has_changed(tmp_path):
    watch = Watch([parse_model(str(tmp_path / "mamba2-*"))])

    def changed() -> list[int]:
        return [step_of(spec) for spec in watch.changed()]

    def write(name: str, content: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "weights").write_text(content)

    write("mamba2-1", "a")
    (tmp_path / "mamba2-3").mkdir()
    assert [changed(), changed(), changed()] == [[], [1], []], "an empty folder is no checkpoint yet"
    write("mamba2-20", "a")
    assert changed() == []
    write("mamba2-20", "ab")
    assert changed() == [], "it has grown since the last look"
    write("mamba2-1", "abc")
    assert [changed(), changed()] == [[20], [1]]


def test_what_is_no_checkpoint_is_passed_over_with_one_note(tmp_path, capsys):
    names = ("checkpoint-1", "checkpoint-1.tmp", "checkpoint-01", "checkpoint-last", "checkpoint-2", "checkpoint-3.partial")
    for name in (*names, "tmp-checkpoint-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").touch()
    watch = Watch([parse_model(str(tmp_path / "*checkpoint-*")), parse_model(str(tmp_path / "checkpoint-2/"))])
    looks = [[spec.shown for spec in watch.changed()] for _ in range(3)]
    assert looks == [[], ["checkpoint-01", "checkpoint-2"], []]
    notes = capsys.readouterr().err.splitlines()
    problems = {line.partition(f"{tmp_path}/")[2].partition(":")[0]: line.rpartition(": ")[2] for line in notes}
    assert len(notes) == len(problems)
    assert problems == {
        "checkpoint-1": f"step 1 of {tmp_path}/checkpoint-01, too (skipped)",
        "checkpoint-last": "no step in its name (skipped)",
        **dict.fromkeys(("checkpoint-1.tmp", "checkpoint-3.partial", "tmp-checkpoint-2"), "a temporary name (skipped)"),
    }


def test_checkpoints_are_removed_while_they_are_looked_at(tmp_path):
    watch, ended = Watch([parse_model(f"{tmp_path}/checkpoint-*")]), threading.Event()

    def train() -> None:
        while not ended.is_set():
            for step in range(5):
                (tmp_path / f"checkpoint-{step}" / "state").mkdir(parents=True)
                (tmp_path / f"checkpoint-{step}" / "weights").touch()
            for step in range(5):
                shutil.rmtree(tmp_path / f"checkpoint-{step}")

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        assert all({step_of(spec) for spec in watch.changed()} <= set(range(5)) for _ in range(500))
    finally:
        ended.set()
        trainer.join()
