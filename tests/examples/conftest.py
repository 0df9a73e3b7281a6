"""Loads the examples, whose names are no module names, and stops their runs where a test wants it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

import recallkit.training.loop

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="package")
def load():
    """load(NAME) is the module of examples/NAME.py; what it imports from beside it is found as when it is run."""
    sys.path.insert(0, str(EXAMPLES))
    loaded = {}

    def load(name):
        if name not in loaded:
            spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
            loaded[name] = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded[name])
        return loaded[name]

    yield load
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="package")
def train_zoo(load):
    """examples/train_zoo.py."""
    return load("train_zoo")


@pytest.fixture(scope="package")
def zoo_data(train_zoo):
    """examples/zoo_data.py, as the training has it."""
    return sys.modules["zoo_data"]


@pytest.fixture(scope="package")
def zoo_measures(train_zoo):
    """examples/zoo_measures.py, as the training has it."""
    return sys.modules["zoo_measures"]


@pytest.fixture
def shared():
    """What trainings on synthetic tasks share."""
    return recallkit.training.loop


@pytest.fixture
def call(monkeypatch):
    """call(example, *arguments) runs its command line."""

    def call(example, *arguments):
        monkeypatch.setattr("sys.argv", ["example.py", "--device", "cpu", "--threads", "1", *map(str, arguments)])
        example.main()

    return call


@pytest.fixture
def interrupted(shared, monkeypatch):
    """interrupted(n): Ctrl-C comes in the n-th step from now on; interrupted(None): no more."""
    real = shared.answer_loss

    def after(steps):
        left = [steps]

        def answer_loss(model, some):
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] = left[0] - 1 if left[0] is not None else None
            return real(model, some)

        monkeypatch.setattr(shared, "answer_loss", answer_loss)

    return after


def timeless(folder):
    """All that runs in a folder left, but for their times."""
    found = {path.name: json.loads(path.read_text()) for path in sorted((folder / "runs").glob("*.json"))}
    for run in found.values():
        del run["seconds"]
    return found
