"""The machine: processor, memory, GPUs, disks and the capabilities of their file systems."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit import config
from recallkit.doctor.checks import Check, Status
from recallkit.models.devices import cgroup_limits, free_memory, gigabytes, memory_limit, processor

if TYPE_CHECKING:
    from collections.abc import Callable

_LITTLE_MEMORY = 2 * 10**9
_LITTLE_DISK = 10**9


def check_processor() -> list[Check]:
    """The processor's model, and how many cores this process may use."""
    import psutil

    cores = psutil.cpu_count() or 1
    allowed = len(psutil.Process().cpu_affinity())
    # "150000 100000": 150 ms of processors in each 100 ms; "max 100000": no quota
    pairs = [text.split() for text in cgroup_limits("cpu.max")]
    quota = min((int(time) / int(period) for time, period in pairs if time.isdigit()), default=None)
    limits = [f"{allowed} of {cores} cores allowed"] + ([f"a quota of {quota:g}"] if quota is not None else [])
    return [Check("processor", "ok", f"{processor()}, {', '.join(limits)}")]


def check_memory() -> list[Check]:
    """Total and available memory, and the limit of the cgroup."""
    import psutil

    memory = psutil.virtual_memory()
    limit = memory_limit()
    found = f"{gigabytes(memory.total)}, {gigabytes(memory.available)} available"
    found += "" if limit is None else f", limited to {gigabytes(limit)}"
    if free_memory("cpu") < _LITTLE_MEMORY:
        return [Check("memory", "warn", found, "models may not fit: close other programs, or give a smaller --batch-tokens")]
    return [Check("memory", "ok", found)]


def check_devices() -> list[Check]:
    """Threads, and each GPU."""
    import torch

    num_gpus, cuda, driver = torch.cuda.device_count() if torch.cuda.is_available() else 0, torch.version.cuda, _nvidia_driver()
    build = f"built for CUDA {cuda}" if cuda else "built for CPU"
    checks = [Check("devices", "ok", f"loads, {build}, {torch.get_num_threads()} threads")]
    for number in range(num_gpus):
        gpu, (free, total) = torch.cuda.get_device_properties(number), torch.cuda.mem_get_info(number)
        sizes = f"{gigabytes(total)}, {gigabytes(free)} free, driver {driver or 'unknown'}"
        kind = f"compute capability {gpu.major}.{gpu.minor}, {'bf16' if gpu.major >= 8 else 'no bf16'}"
        checks.append(Check(f"GPU {number}", "ok", f"{gpu.name}, {sizes}, {kind}"))
    if not num_gpus and driver is None:
        checks.append(Check("GPUs", "ok", "none: models run on the processor"))
    elif not num_gpus:
        remedy = "check that this driver is recent enough for that CUDA" if cuda else "install a CUDA build of torch"
        if (hidden := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            remedy += f"; CUDA_VISIBLE_DEVICES is {hidden!r}"
        found = f"an NVIDIA driver ({driver}), but torch sees no GPU"
        checks.append(Check("GPUs", "warn", found, remedy))
    return checks


def _nvidia_driver() -> str | None:
    """The version of the NVIDIA driver, None where none responds."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else None


# --------------------------------------------------------------------------------------------------------------- disks


FOLDERS: dict[str, tuple[Callable[[], Path | str], str]] = {
    "this folder": (Path.cwd, "write elsewhere with -o"),
    "cache": (config.home, "name another with RECALLKIT_HOME"),
    "temporary files": (tempfile.gettempdir, "name another with TMPDIR"),
}
"""The folders to check, and what to do where one cannot be written."""


def check_folder(name: str) -> list[Check]:
    """Whether files can be written, locked and replaced there as a journal requires, and the free space.

    A missing folder is judged by its nearest existing parent. Every command needs the one of temporary files.
    """
    find, remedy = FOLDERS[name]
    folder = Path(find()).absolute()
    place = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(place).free
    found = f"{folder}, {gigabytes(free)} free"
    try:
        has_locks = excludes_others(place)
    except OSError as error:
        status: Status = "fail" if name == "temporary files" else "warn"
        return [Check(name, status, f"{found}, not writable ({error.strerror})", remedy)]
    if not has_locks:
        return [Check(name, "warn", f"{found}, without locks (flock)", "write to a local disk (-o)")]
    if free < _LITTLE_DISK:
        return [Check(name, "warn", found, "free some space")]
    return [Check(name, "ok", f"{found}, locks files and replaces them atomically")]


def excludes_others(folder: Path) -> bool:
    """Whether the file system has exclusive locks. Raises OSError where files cannot be written, or replaced atomically."""
    with tempfile.TemporaryDirectory(prefix=".recallkit-doctor-", dir=folder) as made:
        first, second = Path(made) / "first", Path(made) / "second"
        first.write_bytes(b"1")
        second.write_bytes(b"2")
        first.replace(second)
        with second.open("rb") as one, second.open("rb") as other:
            try:
                fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                return error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
        return False
