"""The machine: processor, memory, GPUs, disks and the capabilities of their file systems."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from recallkit import config
from recallkit.doctor.checks import Check, ProbeError, probe

_GROUP = "machine"
_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
_LITTLE_MEMORY = 2 * 10**9
_LITTLE_DISK = 10**9


def check_processor() -> list[Check]:
    """The processor's model, and how many cores this process may use."""
    cores = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    quota = cpu_quota()
    limits = [f"{allowed} of {cores} cores allowed"] + ([f"a quota of {quota:g}"] if quota is not None else [])
    facts = {"model": _processor(), "cores": cores, "allowed": allowed, "quota": quota}
    return [Check(_GROUP, "processor", "ok", f"{facts['model']}, {', '.join(limits)}", facts=facts)]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def check_memory() -> list[Check]:
    """Total and available memory, and the limit of the cgroup."""
    total, available, limit = *memory(), memory_limit()
    left = min(available, limit) if limit is not None else available
    facts = {"total_bytes": total, "available_bytes": available, "limit_bytes": limit}
    found = f"{_gigabytes(total)}, {_gigabytes(available)} available" + ("" if limit is None else f", limited to {_gigabytes(limit)}")
    if left < _LITTLE_MEMORY:
        return [Check(_GROUP, "memory", "warn", found, "models may not fit: end other programs, or give a smaller --batch-tokens", facts)]
    return [Check(_GROUP, "memory", "ok", found, facts=facts)]


def memory() -> tuple[int, int]:
    """Total and available bytes."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    found = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if len(line.split()) > 1}
    return found["MemTotal"], found.get("MemAvailable", found.get("MemFree", 0))


def memory_limit() -> int | None:
    """The smallest memory limit of this process's cgroups, in bytes; None where there is none."""
    limits = [int(text) for text in _of_cgroups("memory.max", "memory/memory.limit_in_bytes") if text.isdigit()]
    limit = min(limits, default=_UNLIMITED)
    return limit if limit < _UNLIMITED else None


def cpu_quota() -> float | None:
    """The CPU quota of this process's cgroups, in cores; None where there is none."""
    pairs = [text.split() for text in _of_cgroups("cpu.max")]
    quotas = [int(quota) / int(period) for quota, period in (pair for pair in pairs if len(pair) == 2) if quota.isdigit() and int(period)]
    return min(quotas, default=None)


def _of_cgroups(name: str, version_1: str | None = None) -> list[str]:
    """The contents of this file in the cgroup of the process and in all above it."""
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8").strip().splitlines()[-1].rpartition(":")[2]
    except (OSError, IndexError):
        return []
    folder = _CGROUPS / own.lstrip("/")
    files = [place / name for place in (folder, *folder.parents) if place == _CGROUPS or _CGROUPS in place.parents]
    files += [_CGROUPS / version_1] if version_1 else []
    found = []
    for file in files:
        try:
            found.append(file.read_text(encoding="utf-8").strip())
        except OSError:
            continue
    return found


def check_torch(seconds: float) -> list[Check]:
    """Threads, and each GPU."""
    try:
        facts = probe("torch", seconds=seconds)
    except ProbeError as error:
        return [Check(_GROUP, "devices", "fail", str(error), "reinstall torch as pytorch.org says for this machine")]
    build = f"built for CUDA {facts['cuda']}" if facts["cuda"] else "built for CPU"
    checks = [Check(_GROUP, "devices", "ok", f"loads, {build}, {facts['threads']} threads", facts=facts)]
    driver = nvidia_driver()
    if not facts["gpus"]:
        return [*checks, _no_gpu(driver, facts["cuda"])]
    return checks + [_gpu(number, gpu, driver) for number, gpu in enumerate(facts["gpus"])]


def _no_gpu(driver: str | None, cuda: str | None) -> Check:
    if driver is None:
        return Check(_GROUP, "GPUs", "ok", "none: models run on the processor", facts={"driver": None})
    remedy = "check that this driver is new enough for that CUDA" if cuda else "install a CUDA build of torch"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    remedy = remedy if hidden is None else f"{remedy}; CUDA_VISIBLE_DEVICES is {hidden!r}"
    return Check(_GROUP, "GPUs", "warn", f"an NVIDIA driver ({driver}), but torch sees no GPU", remedy, {"driver": driver})


def _gpu(number: int, gpu: dict[str, Any], driver: str | None) -> Check:
    major, minor = gpu["capability"]
    bf16 = "bf16" if gpu["bf16"] else "no bf16"
    sizes = f"{_gigabytes(gpu['memory_bytes'])}, {_gigabytes(gpu['free_bytes'])} free"
    found = f"{gpu['name']}, {sizes}, driver {driver or 'unknown'}, compute capability {major}.{minor}, {bf16}"
    return Check(_GROUP, f"GPU {number}", "ok", found, facts={**gpu, "driver": driver})


def nvidia_driver() -> str | None:
    """The version of the NVIDIA driver, None where none responds."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else None


# --------------------------------------------------------------------------------------------------------------- disks


def check_folder(name: str, folder: Path, *, is_needed: bool = False) -> list[Check]:
    """Whether files can be written, locked and replaced there as a journal requires, and the free space.

    A missing folder is judged by its nearest existing parent.
    """
    place = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(place).free
    facts: dict[str, Any] = {"path": str(folder), "free_bytes": free}
    found = f"{folder}, {_gigabytes(free)} free"
    try:
        lacks = what_lacks(place)
    except OSError as error:
        reason = error.strerror or str(error)
        variables = {"cache": "RECALLKIT_HOME", "temporary files": "TMPDIR"}
        remedy = f"name another with {variables[name]}" if name in variables else "write elsewhere with -o"
        problem = f"{found}, not writable ({reason})"
        return [Check("folders", name, "fail" if is_needed else "warn", problem, remedy, {**facts, "writable": False})]
    facts |= {"writable": True, "lacks": lacks}
    if lacks:
        return [Check("folders", name, "warn", f"{found}, without {' and '.join(lacks)}", "write to a local disk (-o)", facts)]
    if free < _LITTLE_DISK:
        return [Check("folders", name, "warn", found, "free some space", facts)]
    return [Check("folders", name, "ok", f"{found}, locks files and replaces them atomically", facts=facts)]


def what_lacks(folder: Path) -> list[str]:
    """Which of exclusive locks and atomic replacement the file system lacks. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix=".recallkit-doctor-", dir=folder) as made:
        first, second = Path(made) / "first", Path(made) / "second"
        first.write_bytes(b"1")
        second.write_bytes(b"2")
        lacks = [] if _locks_exclude(first) else ["locks (flock)"]
        try:
            first.replace(second)
            is_replaced = second.read_bytes() == b"1" and not first.exists()
        except OSError:
            is_replaced = False
    return lacks if is_replaced else [*lacks, "atomic renames"]


def _locks_exclude(path: Path) -> bool:
    with path.open("rb") as one, path.open("rb") as other:
        try:
            fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    return False


def folders() -> dict[str, Path]:
    """The folders to check, by name."""
    return {"this folder": Path.cwd(), "cache": config.home(), "temporary files": Path(tempfile.gettempdir())}


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
