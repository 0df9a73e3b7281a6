"""Devices, precisions and memory: what a name means, and whether a model and a batch fit."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


CPU_IDS = 1 << 11
"""Ids of a batch on a CPU: more are hardly faster, with some models slower (docs/benchmarks.md)."""

_LOGIT_BYTES = 12
"""What one logit of a batch takes, with copies of it."""

_BALANCED = re.compile(r"balanced(?::(\d+(?:\.\d+)?)GB)?")
_CGROUPS = Path("/sys/fs/cgroup")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h: how much may be free at the heap's end, and from which size on a block is
mapped apart from the heap, in bytes."""


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
    """Gives the memory of objects that are no longer in use back to other processes.

    Modules and the hooks of a device map refer to each other: only the collector frees them.
    """
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if (malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        malloc_trim(0)


@functools.cache
def _keep_freed_memory() -> None:
    """Has glibc keep up to 1 GiB of what torch frees on the CPU, where it would give blocks back to
    the system at once.

    The next operation would get them as new pages, which the system clears first: a Mamba took 1.6
    times as long to read so (docs/benchmarks.md). Changes nothing where the environment configures
    glibc's allocator, or with another C library.
    """
    variables = [name for name in os.environ if name.startswith("MALLOC_")]
    is_configured = bool(variables) or "GLIBC_TUNABLES" in os.environ
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
        raise UserError(
            "no such implementation",
            where=f"RECALLKIT_KERNELS={kernels}",
            remedy=f"use {', '.join(IMPLS)}",
        )
    try:
        device = torch.device(
            name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu",
        )
    except RuntimeError as error:
        raise UserError(
            "no such device",
            where=name,
            remedy="use auto, cpu, cuda or cuda:N",
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "no CUDA GPU that this torch can use",
            where=name,
            remedy="use --device cpu, or install a CUDA build of torch",
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"no such GPU, there are {torch.cuda.device_count()}",
            where=name,
            remedy="use a smaller number",
        )
    if device.type == "cpu":
        _keep_freed_memory()
    return device


def is_balanced(name: str) -> bool:
    """Whether a device is `balanced`: weights over all GPUs, then the CPU, then a disk."""
    return name.partition(":")[0] == "balanced"


def main_device(name: str) -> torch.device:
    """The device of a model's inputs: of `balanced` the first GPU or the CPU, else the device."""
    if is_balanced(name):
        most_weights(name)
        name = "auto"
    return choose_device(name)


def most_weights(name: str) -> dict[int | str, int] | None:
    """Bytes of weights that each GPU and the CPU may have: 5 * 10^8 with `balanced:0.5GB`.

    None for `balanced`, which leaves it to accelerate. Raises UserError for anything else.
    """
    import torch

    limit = _BALANCED.fullmatch(name)
    if limit is None:
        remedy = "write device=balanced, or a limit: device=balanced:0.5GB"
        raise UserError("not an amount of memory", where=f"device={name}", remedy=remedy)
    if limit[1] is None:
        return None
    return dict.fromkeys([*range(torch.cuda.device_count()), "cpu"], int(float(limit[1]) * 1e9))


def batch_ids(vocab_size: int) -> int:
    """Ids of a batch on a CPU, whose logits take an eighth of its memory at most.

    Beyond its memory the system would end the process, where a GPU has an error.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(CPU_IDS, memory // 8 // (_LOGIT_BYTES * vocab_size))


def check_fits(
    name: str,
    device: str,
    dtype: str,
    num_weights: int | None,
    vocab_size: int | None,
    *,
    can_balance: bool,
) -> None:
    """Raises UserError where a model's weights and a batch's logits exceed the free memory.

    It is that of the CPU, which reads the weights, and of the device. Nothing is checked where the
    numbers are not known, or weights may go to a disk. `can_balance`: whether they could. `name`:
    of the model.
    """
    if num_weights is None or vocab_size is None or is_balanced(device):
        return
    width = choose_dtype(dtype).itemsize
    batch = batch_ids(vocab_size) * vocab_size * _LOGIT_BYTES
    for place in ("cpu", str(choose_device(device))):
        if width * num_weights + batch > free_memory(place):
            empty_cache()
        free = free_memory(place)
        if width * num_weights + batch > free:
            weights = f"{gigabytes(width * num_weights)} of weights in {dtype}"
            needed = f"{weights} and {gigabytes(batch)} for a batch"
            is_half_enough = width > 2 and 2 * num_weights + batch <= free
            choices = [f"dtype=bfloat16 ({gigabytes(2 * num_weights)})"] * is_half_enough
            choices += ["device=balanced"] * can_balance
            raise UserError(
                f"{needed}, but {place} has {gigabytes(free)} free",
                where=name,
                remedy=f"give {', '.join([*choices, 'or '])}a smaller model"
                if choices
                else "give a smaller model",
            )


def free_memory(device: str) -> int:
    """Bytes that this process may still allocate on the CPU or a GPU."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    available = int(psutil.virtual_memory().available)
    return min(available, memory_limit() or available)


def memory_limit() -> int | None:
    """Bytes that the cgroup of the process, or one above it, allows; None without a limit."""
    sizes = (int(text) for text in cgroup_limits("memory.max") if text.isdigit())
    return min(sizes, default=None)


def cgroup_limits(name: str) -> list[str]:
    """What this file of the cgroup of the process, and of all above it, says."""
    of_process = Path("/proc/self/cgroup")
    if not of_process.exists():
        return []
    folder = _CGROUPS / of_process.read_text(encoding="utf-8").strip().rpartition(":")[2].lstrip(
        "/",
    )
    files = [place / name for place in (folder, *folder.parents) if place.is_relative_to(_CGROUPS)]
    return [file.read_text(encoding="utf-8").strip() for file in files if file.is_file()]


def gigabytes(size: int) -> str:
    """Bytes in units of 10^9."""
    return f"{size / 1e9:.1f} GB"


def describe_device(device: torch.device) -> str:
    """The GPU, or the processor and the number of threads."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor()}, threads: {torch.get_num_threads()}"


def processor() -> str:
    """The processor's model, or else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.exists() else ""
    lines = text.splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def check_device(name: str) -> None:
    """Raises UserError as `main_device` does, where results are reused, too."""
    if name not in ("auto", "cpu"):  # which are always there, and torch takes a second to import
        main_device(name)


def choose_dtype(name: str) -> torch.dtype:
    """The torch dtype of `float32`, `bfloat16`, `float16` or `float64`."""
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype
