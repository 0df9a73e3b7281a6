"""`choose`: a named implementation runs or raises, and what `auto` picks is said."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from recallkit.kernels import choice
from recallkit.kernels.choice import choose, preferring
from recallkit.kernels.token_nll.api import token_nll


def test_a_named_implementation_is_taken():
    x = torch.zeros(2)
    assert [choose("op", impl, x) for impl in ("reference", "torch")] == ["reference", "torch"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU auto takes kernels")
def test_on_cpu_auto_takes_torch_and_says_why(caplog):
    choice.say_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="recallkit.kernels"):
        assert choose("some op", "auto", torch.zeros(2)) == "torch"
        assert choose("some op", "auto", torch.zeros(2)) == "torch"
    assert [record.getMessage() for record in caplog.records] == [
        "some op: torch, because the tensors are on CPU",
    ]


@pytest.mark.parametrize(
    ("tensor", "unsupported", "message"),
    [
        (
            torch.zeros(2, dtype=torch.float64),
            None,
            "op: impl='triton' cannot run: it takes float16, bfloat16 and float32, not float64",
        ),
        (torch.zeros(2, requires_grad=True), None, "gradients are required"),
        (torch.zeros(2), "widths beyond 128", "widths beyond 128"),
    ],
)
def test_a_kernel_that_cannot_run_raises(tensor, unsupported, message):
    with pytest.raises(ValueError, match=message):
        choose(
            "op",
            "triton",
            tensor.to("cuda" if torch.cuda.is_available() else "cpu"),
            unsupported=unsupported,
        )


def test_without_the_interpreter_a_kernel_on_cpu_raises(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="kernels need CUDA"):
        token_nll(
            torch.zeros(1, 2),
            torch.zeros(3, 2),
            torch.zeros(1, dtype=torch.int64),
            impl="triton",
        )


def test_no_grad_lets_a_kernel_run_on_parameters():
    with torch.no_grad():
        assert (
            choose(
                "op",
                "triton",
                torch.nn.Parameter(
                    torch.zeros(2, device="cuda" if torch.cuda.is_available() else "cpu"),
                ),
            )
            == "triton"
        )


def test_an_unknown_name_raises():
    with pytest.raises(
        ValueError,
        match="op: impl must be one of auto, reference, torch, triton, not 'fast'",
    ):
        choose("op", "fast", torch.zeros(1))  # type: ignore[arg-type]


def test_while_one_is_preferred_auto_means_it_where_it_runs():
    x, wide = (
        torch.zeros(2, dtype=dtype, device="cuda" if torch.cuda.is_available() else "cpu")
        for dtype in (torch.float32, torch.float64)
    )
    with preferring("triton"):
        assert choose("op", "auto", x, slower="of something") == "triton"
        assert choose("op", "auto", wide) == "torch"
        with preferring("reference"):
            assert choose("op", "auto", x) == "reference"
            assert choose("op", "torch", x) == "torch"
    assert choose("op", "auto", x.cpu()) == "torch"
    with pytest.raises(ValueError, match="not 'fast'"), preferring("fast"):  # type: ignore[arg-type]
        pass


def test_the_environment_turns_kernels_off_and_its_mistakes_are_told(monkeypatch):
    for value in ("reference", "torch"):
        # What RECALLKIT_KERNELS was when the module was imported.
        monkeypatch.setattr(choice, "_preferred", [value])
        assert choose("op", "auto", torch.zeros(1)) == value
    monkeypatch.setattr(choice, "_preferred", ["fast"])
    with pytest.raises(
        ValueError,
        match="RECALLKIT_KERNELS must be one of auto, reference, torch, triton",
    ):
        choose("op", "auto", torch.zeros(1))


def test_on_a_gpu_auto_takes_the_kernel_unless_it_cannot_run_or_is_slower():
    """`choose` asks a tensor for no more than this."""
    x = SimpleNamespace(
        device=torch.device("cuda", 0),
        is_cuda=True,
        requires_grad=False,
        dtype=torch.bfloat16,
    )
    assert choose("op", "auto", x) == "triton"
    assert choose("op", "auto", x, slower="of something") == "torch"
    assert choose("op", "auto", x, unsupported="so wide") == "torch"
    assert choose("op", "triton", x, slower="of something") == "triton"
    trained = SimpleNamespace(**{**vars(x), "requires_grad": True})
    assert choose("op", "auto", x, trained) == "torch"
    elsewhere = SimpleNamespace(**{**vars(x), "device": torch.device("cuda", 1)})
    with pytest.raises(ValueError, match="several devices: cuda:0, cuda:1"):
        choose("op", "triton", x, elsewhere)
