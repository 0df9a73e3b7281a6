"""The one syntax for a model: what a string means, the names that results show, and what is refused
in one line."""

from __future__ import annotations

import pytest
import torch

from recallkit import registry
from recallkit.errors import UsageError, UserError
from recallkit.models.kinds import kind_of
from recallkit.models.spec import ModelSpec, list_models, parse_model

MEANINGS = {
    "path/to/mamba": ModelSpec("path/to/mamba"),
    "zoo:attention": ModelSpec("zoo:attention"),
    "code/model.py:load": ModelSpec("code/model.py:load"),
    "mamba=path/to/model": ModelSpec("path/to/model", "mamba"),
    "My model 2=zoo:mamba": ModelSpec("zoo:mamba", "My model 2"),
    "path,dtype=bfloat16": ModelSpec("path", dtype="bfloat16"),
    "a=path,tokenizer=t.json,dtype=auto,context=2048,stride=512,device=cuda:1": ModelSpec(
        "path",
        "a",
        tokenizer="t.json",
        dtype="auto",
        context=2048,
        stride=512,
        device="cuda:1",
    ),
    "a=owner/name,revision=step-10": ModelSpec("owner/name", "a", revision="step-10"),
    "owner/name@step-10": ModelSpec("owner/name@step-10"),
    "runs/lr=0.1/last": ModelSpec("runs/lr=0.1/last"),
    "./lr=0.1": ModelSpec("./lr=0.1"),
    "best=runs/lr=0.1,wd=0/last".replace(",wd=0", ""): ModelSpec("runs/lr=0.1/last", "best"),
    "path,with,commas": ModelSpec("path,with,commas"),
    "path,tokenizer=a,b.json": ModelSpec("path", tokenizer="a,b.json"),
    "server:http://localhost:8000/v1?key=x": ModelSpec("server:http://localhost:8000/v1?key=x"),
}


@pytest.mark.parametrize(("text", "meaning"), MEANINGS.items(), ids=MEANINGS)
def test_a_string_means_one_model(text, meaning):
    assert parse_model(text) == meaning


@pytest.mark.parametrize("name", ["lr=0.1", "a,b", "a,unknown=1"])
def test_a_path_that_exists_is_taken_as_it_is(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    (tmp_path / name / "model.py").touch()
    assert parse_model(name) == ModelSpec(name)
    assert parse_model(f"x={name}") == ModelSpec(name, "x")
    assert parse_model(f"x={name},stride=4") == ModelSpec(name, "x", stride=4)
    assert parse_model(f"{name}/model.py:load,stride=4") == ModelSpec(
        f"{name}/model.py:load",
        stride=4,
    )


WRONG = {
    "": "an empty name of a model",
    "a=": "an empty name of a model",
    "=path": "'' cannot be a model's name",
    "a,b=path": "a model has no option b",
    ".hidden=path": "'.hidden' cannot be a model's name",
    "path,dtpye=float32": "a model has no option dtpye; did you mean dtype\\?",
    "path,dtype=float32,contxt=4": (
        "dtype=float32,contxt=4 is not one of|no option contxt; did you mean context"
    ),
    "path,dtype=int8": "dtype=int8 is not one of float32, bfloat16, float16, auto",
    "path,context=many": "context=many is not a number of tokens",
    "path,stride=0": "stride=0 is not a number of tokens",
    "path,context=4,context=5": "context is given twice",
    "zoo:attention,revision=main": "only models of the hub have a revision",
    "owner/name@one,revision=two": "only models of the hub have a revision",
}


@pytest.mark.parametrize(("text", "problem"), WRONG.items(), ids=WRONG)
def test_what_is_wrong_is_said_in_one_line(text, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        parse_model(text)
    assert "\n" not in caught.value.line()


@pytest.mark.parametrize("option", ["ablate", "cache", "protocol"])
def test_an_option_that_is_no_string_is_refused(option):
    with pytest.raises(UsageError, match=f"^path: {option}=4 is not a string; write {option}='4'"):
        ModelSpec("path", **{option: 4})


@pytest.mark.parametrize("name", ["", " a", "a/b", "-flag", "x" * 81, "a\nb", 3])
def test_a_name_is_no_path_and_can_be_typed(name):
    with pytest.raises(UsageError, match="cannot be a model's name"):
        list_models({name: "path"})


SHOWN = [
    (["runs/a/model"], ["model"]),
    (["/data/runs/a/model/", "zoo:mamba"], ["model", "zoo:mamba"]),
    (["runs/a/model", "runs/b/model"], ["a/model", "b/model"]),
    (["runs/a/last/hf", "runs/b/last/hf", "runs/c/hf"], ["a/last/hf", "b/last/hf", "c/hf"]),
    (["model=x/one", "y/model"], ["model", "y/model"]),
    (["code/net.py:small", "code/net.py:large"], ["net.py:small", "net.py:large"]),
    (["owner/name@main", "owner/name@step-10"], ["name@main", "name@step-10"]),
    (["m/x", "a=m/x", "b=m/x,dtype=bfloat16"], ["x", "a", "b"]),
    (["m/x", "m/x,cache=int4", "m/x,cache=int8"], ["x", "x cache int4", "x cache int8"]),
    (["a/x", "b/x,cache=int4"], ["a/x", "b/x cache int4"]),
    (["x=a/y", "b/x,ablate=1"], ["x", "b/x without 1"]),
    (["x", "b/x,cache=int4", "x,cache=int4"], ["x", "b/x cache int4", "x cache int4"]),
]


@pytest.mark.parametrize(("operands", "shown"), SHOWN)
def test_results_show_short_names_that_are_unique(operands, shown):
    assert [spec.shown for spec in list_models(operands)] == shown
    assert [spec.shown for spec in list_models(list_models(operands))] == shown, "the same again"


@pytest.mark.parametrize(
    ("operands", "problem"),
    [
        (["a/m", "a/m"], "a model is named twice; name each once"),
        (["a/m", "./a/m"], "a model is named twice; give each a name"),
        (["a/m", "a/m,dtype=bfloat16"], "a model is named twice; give each a name: a=PATH"),
        (["x=a", "x=b"], "x: two models have this name"),
        (["x=a", "x"], "x: two models have this name"),
    ],
)
def test_models_that_results_could_not_tell_apart_are_refused(operands, problem):
    with pytest.raises(UserError, match=problem):
        list_models(operands)


def test_python_gives_the_same_models_in_other_forms(tmp_path):
    module = torch.nn.Linear(2, 2)
    listed = list_models(
        {
            "one": "a/b,stride=4",
            "two": ModelSpec("c", dtype="float16"),
            "three": tmp_path,
            "four": module,
        },
    )
    assert listed == (
        ModelSpec("a/b", "one", stride=4),
        ModelSpec("c", "two", dtype="float16"),
        ModelSpec(str(tmp_path), "three"),
        ModelSpec(module, "four"),
    )
    assert listed == list_models(
        ["one=a/b,stride=4"],
        ["two=c,dtype=float16", {"three": tmp_path}],
        {"four": module},
    )
    assert [spec.key for spec in list_models(["a/b", module])] == ["a/b", "live:Linear"]
    with pytest.raises(UsageError, match="an object of int is not a model"):
        list_models([3])
    with pytest.raises(UsageError, match="one and two name the same model"):
        list_models({"two": "one=a"})


@pytest.mark.parametrize("name", ["hazyresearch/based-360m", "state-spaces/mamba-130m-hf"])
def test_a_revision_changes_no_kind(name):
    assert kind_of(f"{name}@abc") is kind_of(name)
    assert registry.split_revision(f"{name}@abc/def") == (name, "abc/def")
