"""Steps in names, and patterns."""

from __future__ import annotations

import pytest

from recallkit.errors import UserError
from recallkit.models.spec import list_models, parse_model
from recallkit.tracking.steps import by_step, expand, step_of

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
    specs = expand([parse_model(f"{tmp_path}/checkpoint-*")])
    assert list(by_step(specs)) == [2, 10]
    assert [spec.shown for spec in list_models(specs)] == ["checkpoint-10", "checkpoint-2"]
    with pytest.raises(UserError, match="no such checkpoints"):
        expand([parse_model(f"{tmp_path}/step-*")])
    with pytest.raises(UserError, match="two models have this name"):
        list_models(expand([parse_model(f"mine={tmp_path}/checkpoint-*")]))
