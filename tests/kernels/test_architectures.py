"""Whole models on kernels: architectures of the zoo that have all kernels, small, at once and in
pieces, beside the same in PyTorch."""

from __future__ import annotations

import logging

import pytest
import torch

from recallkit.kernels import choice
from recallkit.kernels.choice import preferring
from recallkit.models import zoo
from recallkit.models.language_model import LanguageModel
from tests.kernels.checks import DEVICE, relative_error

OPERATIONS = {
    "based": {"short_conv", "taylor_attention", "taylor_attention_step", "window_attention_step"},
    "hyena": {"short_conv", "long_conv"},
    "rwkv": {"rwkv4_attention"},
    "hybrid": {"short_conv", "selective_scan", "selective_scan_step"},
}
"""What must run on our own kernels; FlexAttention and flash-linear-attention have no
interpreter."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_model_on_kernels_is_the_model(name, monkeypatch, caplog):
    monkeypatch.setitem(zoo.SIZES, "tiny", zoo.Size(16, 2, 2, 1, 60_000, 50))
    torch.manual_seed(0)
    model = LanguageModel(zoo.architecture(name, "tiny", 16)).to(DEVICE).eval()
    ids = torch.randint(50, (2, 8), device=DEVICE)
    choice.say_once.cache_clear()
    with torch.no_grad(), preferring("torch"):
        wanted = model.hidden(ids)
    with (
        torch.no_grad(),
        preferring("triton"),
        caplog.at_level(logging.INFO, logger="recallkit.kernels"),
    ):
        at_once = model.hidden(ids)
        state, pieces = model.initial_state(2), []
        for part in ids.split([5, 1, 2], dim=1):
            states, state = model.read(part, state)
            pieces.append(states)
    choice.say_once.cache_clear()
    assert relative_error(at_once, wanted) < 1e-5
    assert relative_error(torch.cat(pieces, dim=1), wanted) < 1e-5
    on_kernels = {record.args[0] for record in caplog.records if record.args[1] == "triton"}
    assert OPERATIONS[name] <= on_kernels
