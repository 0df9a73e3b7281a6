"""Devices, precisions and memory: what a name means, and how large a batch fits."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Raises MemoryError for torch's out-of-memory errors."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise MemoryError from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error) or "not enough memory" in str(error):
            raise MemoryError from error
        raise


def empty_cache() -> None:
    """Gives the memory that torch keeps on a GPU for later back to other processes."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def choose_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:1`. Raises UserError for a GPU that is missing, or an unknown value of RECALLKIT_KERNELS."""
    import torch

    from recallkit.kernels.choice import IMPLS

    kernels = os.environ.get("RECALLKIT_KERNELS", "auto")
    if kernels not in IMPLS:
        raise UserError("no such implementation", where=f"RECALLKIT_KERNELS={kernels}", remedy=f"use {', '.join(IMPLS)}")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError("no such device", where=name, remedy="use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA GPU that this torch can use", where=name, remedy="use --device cpu, or install a CUDA build of torch")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"no such GPU, there are {torch.cuda.device_count()}", where=name, remedy="use a smaller number")
    return device


def describe_device(device: torch.device) -> str:
    """The GPU, or the processor and the number of threads."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{processor()}, threads: {torch.get_num_threads()}"


def processor() -> str:
    """The processor's model, or else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def check_device(name: str) -> None:
    """Raises UserError as `choose_device` does, for a device that is named: also where results are reused, and nothing is computed."""
    if name not in ("auto", "cpu"):  # which are always there, and torch takes a second to import
        choose_device(name)


def choose_dtype(name: str) -> torch.dtype:
    """The torch dtype of `float32`, `bfloat16`, `float16` or `float64`."""
    import torch

    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}[name]
