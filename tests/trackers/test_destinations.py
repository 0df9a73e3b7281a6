"""How a tracker is named; what is said where one is missing; which commands have `--log-to`."""

import tomllib
from importlib.util import find_spec

import pytest

import recallkit
from recallkit.commands import COMMANDS
from recallkit.commands.app import declared
from recallkit.errors import UserError
from recallkit.trackers import Destination, parse_destination
from recallkit.trackers.packages import TRACKERS, import_package
from tests.conftest import ROOT


def test_a_tracker_is_a_name_and_perhaps_a_project():
    assert parse_destination("wandb") == Destination("wandb", None)
    assert parse_destination("wandb:team/project") == Destination("wandb", "team/project")
    assert parse_destination("tensorboard:a:b") == Destination("tensorboard", "a:b")
    for wrong in ("neptune", "", "wandb:", "wandb: ", "Wandb", ":p", 3):
        with pytest.raises(ValueError, match="give one of trackio, wandb, mlflow, tensorboard"):
            parse_destination(wrong)


def test_every_tracker_has_an_extra_of_its_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in TRACKERS:
        extra = project["optional-dependencies"][name]
        assert any(requirement.startswith(f"{name}>=") for requirement in extra)


def test_a_missing_package_is_one_line_before_any_work(home, tmp_path):
    missing = next((name for name in TRACKERS if find_spec(name) is None), None)
    if missing is None:
        pytest.skip("needs an environment without one of the trackers' packages")
    with pytest.raises(UserError) as refused:
        recallkit.gap("a", "b", slices=tmp_path / "none", log_to=[missing])
    assert (
        f'{missing} is not installed; pip install "recallkit-lm[{missing}]"' in refused.value.line()
    )


def test_a_folder_of_a_package_name_is_no_package_and_a_broken_one_is_named(tmp_path, monkeypatch):
    """`wandb` writes a folder of that name, which Python would import."""
    (tmp_path / "nothing_here").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/__init__.py").write_text("raise ImportError('no such symbol')")
    (tmp_path / "broken-1.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n"
    (tmp_path / "broken-1.0.dist-info/METADATA").write_text(metadata)
    monkeypatch.syspath_prepend(tmp_path)
    for names, problem in {
        ("nothing_here",): "nothing_here is not installed",
        ("broken",): r"cannot be imported \(no such symbol\)",
        ("pytest", "no_such_companion"): "no_such_companion is not installed",
    }.items():
        with pytest.raises(UserError, match=problem):
            import_package(*names)


WRITING = "slice profile score gap published track intervene ablate eval-recall mqar train".split()


def test_every_command_that_writes_results_can_log_them():
    names = []
    for command in COMMANDS:
        options = [parameter.name for parameter in declared(command).parameters]
        names += [command] * ("log_to" in options)
    assert sorted(names) == sorted(WRITING)
