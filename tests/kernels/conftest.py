"""What a kernel does not write stays NaN, or the largest integer, in every test of kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Else products on a GPU warn that they are not deterministic.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests of kernels `kernels`: continuous integration runs them where kernels/ changed;
    mixers' own tests run everywhere.

    Where a selection without pyproject.toml's default brings them, tests for a GPU are skipped
    where there is none.
    """
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.kernels)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Every uninitialised tensor is filled with NaN, or the largest integer: nothing that is read
    without being written stays hidden."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
