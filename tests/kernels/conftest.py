"""Kernels run on the card where there is one, else through Triton's interpreter; what they do not write stays NaN."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Every uninitialised tensor is filled with NaN, or the largest integer: nothing that is read without being written stays hidden."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
