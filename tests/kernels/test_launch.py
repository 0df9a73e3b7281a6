"""Every kernel's launcher: its configurations fit the kernel, tuning depends on no length, the
usual configuration is the first."""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace

import pytest
import torch
import triton

from recallkit.kernels import launch
from recallkit.kernels.launch import OPTIONS, Launcher, operand_type
from tests.conftest import ROOT

LENGTHS = {
    "b",
    "n",
    "t",
    "num_rows",
    "num_tokens",
    "num_chunks",
    "num_tiles",
    "length",
    "batch",
    "num_queries",
    "num_keys",
}
"""What varies from batch to batch: tuning that depends on it is done again and again."""
WIDTHS = {"selective_scan": {"n"}}
"""Letters that are no length in an operation: there, numbers of state a channel."""


def launchers() -> list[tuple[str, Launcher]]:
    results = []
    for path in sorted((ROOT / "kernels").glob("*/triton_impl.py")):
        module = importlib.import_module(f"recallkit.kernels.{path.parent.name}.triton_impl")
        results += [
            (f"{path.parent.name}.{name}", value)
            for name, value in vars(module).items()
            if isinstance(value, Launcher)
        ]
    return results


LAUNCHERS = launchers()


def test_there_are_launchers():
    assert len(LAUNCHERS) >= 10


@pytest.mark.parametrize(("name", "launcher"), LAUNCHERS, ids=[name for name, _ in LAUNCHERS])
def test_configurations_fit_the_kernel_and_tuning_depends_on_no_length(name, launcher):
    function = getattr(launcher.kernel, "fn", launcher.kernel)
    arguments = inspect.signature(function).parameters
    constants = {
        argument
        for argument, parameter in arguments.items()
        if "constexpr" in str(parameter.annotation)
    }
    for config in launcher.configs:
        assert set(config.kwargs) <= constants, f"{config} names what is no constant of the kernel"
    assert set(launcher.key) <= set(arguments)
    assert "DOT" not in launcher.key, (
        "Triton writes the key as JSON, which has no types; those of tensors it adds itself"
    )
    lengths = LENGTHS - WIDTHS.get(name.split(".")[0], set())
    assert not set(launcher.key) & lengths
    assert all(name.isupper() for name in constants), (
        "constants of a kernel are written in capitals"
    )
    assert not constants & {length.upper() for length in lengths}, (
        "a length is no constant: every text would compile anew"
    )


def test_the_first_configuration_is_taken_unless_one_is_named():
    taken = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *tensors, **values: taken.append(values)

    launcher = Launcher(
        Kernel(),
        [triton.Config({"BLOCK": 8}, num_warps=1), triton.Config({"BLOCK": 32}, num_warps=2)],
        ["d"],
    )
    x = torch.zeros(1)
    launcher(lambda meta: (1,), x, d=4)
    launcher(lambda meta: (1,), x, d=4, config=1)
    assert [(values["BLOCK"], values["num_warps"], values["d"]) for values in taken] == [
        (8, 1, 4),
        (32, 2, 4),
    ]
    assert all(values["enable_fp_fusion"] is True for values in taken), (
        "what is not said differs between versions of Triton"
    )


def test_tuning_is_asked_for_by_the_environment_and_made_once(monkeypatch):
    actual = []

    def autotune(**options):
        actual.append(options)
        return lambda kernel: kernel

    ran = []
    kernel = type(
        "Kernel",
        (),
        {"__getitem__": lambda self, grid: lambda *tensors, **values: ran.append(values)},
    )()
    monkeypatch.setattr(launch, "triton", SimpleNamespace(autotune=autotune))
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    monkeypatch.setenv("RECALLKIT_AUTOTUNE", "1")
    configs = [triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 32})]
    launcher = Launcher(kernel, configs, ["d"])
    for length in (10, 20):
        launcher(lambda meta: (1,), torch.zeros(1), t=length, d=4)
    assert [(options["configs"], options["key"]) for options in actual] == [(configs, ["d"])]
    assert ran == [{"t": 10, "d": 4, **OPTIONS}, {"t": 20, "d": 4, **OPTIONS}]


def test_interpreted_products_are_made_in_float32(monkeypatch):
    import triton.language as tl

    monkeypatch.setattr(launch, "interpreted", lambda: True)
    assert {operand_type(dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32)} == {
        tl.float32,
    }
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    assert [operand_type(dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32)] == [
        tl.bfloat16,
        tl.float16,
        tl.float32,
    ]
