"""Devices, precisions and memory: what a name means, and how large a batch fits."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h: how much may be free at the heap's end, and from which size on a block is mapped apart from the heap, in bytes."""


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


@functools.cache
def _keep_freed_memory() -> None:
    """Has glibc keep up to 1 GiB of what torch frees on the CPU, where it would give blocks back to the system at once.

    The next operation would get them as new pages, which the system clears first: a Mamba took 1.6 times as long to read so
    (docs/benchmarks.md). Changes nothing where the environment configures glibc's allocator, or with another C library.
    """
    is_configured = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    mallopt = None if is_configured else getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 256 << 20)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def choose_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:1`; on the CPU freed memory is kept from then on.

    Raises UserError for a GPU that is missing, or an unknown value of RECALLKIT_KERNELS.
    """
    import torch

    from recallkit.kernels.choice import IMPLS

    kernels = os.environ.get("RECALLKIT_KERNELS", "auto")
    if kernels not in IMPLS:
        raise UserError("no such implementation", where=f"RECALLKIT_KERNELS={kernels}", remedy=f"use {', '.join(IMPLS)}")
    try:
        device = torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    except RuntimeError as error:
        raise UserError("no such device", where=name, remedy="use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA GPU that this torch can use", where=name, remedy="use --device cpu, or install a CUDA build of torch")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"no such GPU, there are {torch.cuda.device_count()}", where=name, remedy="use a smaller number")
    if device.type == "cpu":
        _keep_freed_memory()
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
