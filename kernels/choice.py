"""Chooses the implementation of an operation: the readable reference, PyTorch's, or a GPU kernel.

Every operation of `kernels` is one function with `impl=`:

    reference   the formula, written out in the precision of its inputs: the oracle torch
    chunked PyTorch, differentiable unless the operation says otherwise; used on CPU triton      a
    kernel for CUDA GPUs, without a backward pass; on CPU through Triton's interpreter
    (TRITON_INTERPRET=1) auto        triton where it runs and nothing is differentiated, else torch

A named implementation runs or raises. The choice of `auto` and its reason are logged once to
`recallkit.kernels` at level INFO. With RECALLKIT_KERNELS=torch, or within `preferring("torch")`,
`auto` does not choose kernels.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Impl = Literal["auto", "reference", "torch", "triton"]
Chosen = Literal["reference", "torch", "triton"]

IMPLS: tuple[Impl, ...] = ("auto", "reference", "torch", "triton")
KERNEL_TYPES = (torch.float16, torch.bfloat16, torch.float32)

_HAS_TRITON = importlib.util.find_spec("triton") is not None
_log = logging.getLogger("recallkit.kernels")
_preferred: list[str] = [os.environ.get("RECALLKIT_KERNELS", "auto")]


def choose(
    op: str,
    impl: Impl,
    *tensors: Tensor | None,
    unsupported: str | None = None,
    slower: str | None = None,
) -> Chosen:
    """The implementation of `op` that runs on these tensors (None is skipped).

    `unsupported`: why the kernel cannot take these inputs; `slower`: why `auto` should not take it,
    though it can. Raises ValueError for an unknown `impl`, and where "triton" is named and cannot
    run.
    """
    if impl not in IMPLS:
        raise ValueError(f"{op}: impl must be one of {', '.join(IMPLS)}, not {impl!r}")
    if impl in ("reference", "torch"):
        return impl
    preferred = _preferred[-1]
    if preferred not in IMPLS:
        raise ValueError(f"RECALLKIT_KERNELS must be one of {', '.join(IMPLS)}, not {preferred!r}")
    if impl == "auto" and preferred in ("reference", "torch"):
        return preferred
    present = [tensor for tensor in tensors if tensor is not None]
    obstacle = _obstacle(present) or unsupported
    if impl == "triton":
        if obstacle:
            raise ValueError(f"{op}: impl='triton' cannot run: {obstacle}")
        return "triton"
    if preferred != "triton":
        # Interpreted kernels are for tests, and never chosen automatically.
        obstacle = obstacle or slower or (None if present[0].is_cuda else "the tensors are on CPU")
    chosen: Chosen = "torch" if obstacle else "triton"
    if not torch.compiler.is_compiling():
        say_once(
            op,
            chosen,
            obstacle
            or ("it is preferred" if preferred == "triton" else "the tensors are on a GPU"),
        )
    return chosen


def check_shapes(**shapes: tuple[Tensor | None, Sequence[int]]) -> None:
    """Raises ValueError, with the name, where a tensor does not have its shape; None is skipped."""
    for name, (tensor, shape) in shapes.items():
        if tensor is not None and tensor.shape != tuple(shape):
            raise ValueError(f"{name} must have shape {tuple(shape)}, not {tuple(tensor.shape)}")


def check_alike(axes: int, **tensors: Tensor) -> None:
    """Raises ValueError unless the tensors, such as q, k and v, have so many axes, one shape and
    one floating type."""
    first, *others = tensors.values()
    if first.ndim != axes or any(x.shape != first.shape for x in others):
        raise ValueError(
            f"{', '.join(tensors)} must be of one shape with {axes} axes: "
            f"{', '.join(str(tuple(x.shape)) for x in tensors.values())}"
        )
    if not first.is_floating_point() or any(x.dtype != first.dtype for x in others):
        raise ValueError(
            f"{', '.join(tensors)} must be of one floating type: "
            f"{', '.join(str(x.dtype) for x in tensors.values())}"
        )


@contextlib.contextmanager
def preferring(impl: Impl) -> Iterator[None]:
    """A context in which `auto` means `impl`, or "torch" where a kernel cannot run. Raises
    ValueError for an unknown name."""
    if impl not in IMPLS:
        raise ValueError(f"impl must be one of {', '.join(IMPLS)}, not {impl!r}")
    _preferred.append(impl)
    try:
        yield
    finally:
        _preferred.pop()


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, on CPU: TRITON_INTERPRET=1 since the start of
    the process."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _obstacle(tensors: list[Tensor]) -> str | None:
    """Why no kernel can run on these tensors; None where some may."""
    if not _HAS_TRITON:
        return "triton is not installed (pip install triton)"
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        return f"the tensors are on several devices: {', '.join(sorted(map(str, devices)))}"
    if not tensors[0].is_cuda and not interpreted():
        return (
            f"the tensors are on {tensors[0].device.type}; kernels need CUDA, or "
            "TRITON_INTERPRET=1 for tests"
        )
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return (
            "it has no backward pass, and gradients are required: use torch.no_grad() or "
            "impl='torch'"
        )
    strange = {
        tensor.dtype
        for tensor in tensors
        if tensor.dtype not in KERNEL_TYPES and tensor.is_floating_point()
    }
    if strange:
        return (
            "it takes float16, bfloat16 and float32, not "
            f"{', '.join(str(dtype)[6:] for dtype in strange)}"
        )
    return None


@functools.cache
def say_once(op: str, chosen: str, reason: str) -> None:
    """Logs a choice, the first time that it is made."""
    _log.info("%s: %s, because %s", op, chosen, reason)
