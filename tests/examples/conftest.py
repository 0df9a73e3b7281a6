"""Loads the examples, whose names are no module names, and stops their runs where a test wants
it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="package")
def load():
    """load(NAME) is the module of examples/NAME.py; what it imports from beside it is found as when
    it is run."""
    sys.path.insert(0, str(EXAMPLES))
    loaded = {}

    def load(name):
        if name not in loaded:
            spec = importlib.util.spec_from_file_location(
                f"example_{name}", EXAMPLES / f"{name}.py"
            )
            loaded[name] = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded[name])
        return loaded[name]

    yield load
    sys.path.remove(str(EXAMPLES))
