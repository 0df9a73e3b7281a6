"""An installation and its machine: versions, processor, memory, GPUs, folders, caches, settings."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit import config
from recallkit.errors import redacted
from recallkit.models.devices import cgroup_limits, gigabytes, memory_limit, processor

if TYPE_CHECKING:
    from collections.abc import Iterator

Rows = list[tuple[str, str]]
"""Names and values."""

_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "NUMBA_CACHE_DIR",
    "NUMBA_DISABLE_JIT",
    "OMP_NUM_THREADS",
    "TMPDIR",
    "TRANSFORMERS_OFFLINE",
    "TRITON_INTERPRET",
)
"""Environment variables of other packages that affect recallkit."""
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")
_TOOLS = ('extra == "dev"', 'extra == "docs"')
"""Ends of requirements that only contributors need."""


def describe_installation() -> Iterator[tuple[str, str]]:
    """All facts, one after the other; of a library that does not load it is the error.

    Those that load torch come last: where that ends the process, the others are known.
    """
    groups = {
        "program": describe_program,
        "versions": describe_versions,
        "machine": describe_machine,
        "folders": describe_folders,
        "variables": describe_variables,
        "GPUs": describe_gpus,
    }
    for name, describe in groups.items():
        try:
            yield from describe()
        except Exception as error:  # noqa: BLE001 - what is broken is the report's subject
            yield name, redacted(f"{type(error).__name__}: {error}")


def describe_program() -> Rows:
    """recallkit, Python, the platform."""
    python = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    system = f"{platform.platform()}, {platform.machine()}"
    return [("recallkit", config.VERSION), ("python", python), ("platform", system)]


def describe_versions() -> Rows:
    """Distributions that are required, and optional ones that are installed."""
    from packaging.requirements import Requirement

    rows = []
    for line in metadata.requires(config.DISTRIBUTION) or ():
        if line.endswith(_TOOLS):
            continue
        requirement = Requirement(line)
        name, wanted = requirement.name, requirement.specifier
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        version = installed(name)
        if version is None and is_needed:
            rows.append((name, f'not installed: pip install "{name}{wanted}"'))
        elif version is not None:
            is_fit = wanted.contains(version, prereleases=True)
            rows.append((name, version if is_fit else f"{version}, recallkit requires {wanted}"))
    return rows


def installed(name: str) -> str | None:
    """The version of a distribution; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def describe_machine() -> Rows:
    """The processor and its cores, memory, and what of them this process may use."""
    import psutil

    cores = psutil.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else cores
    # "150000 100000": 150 ms of processors in each 100 ms; "max 100000": no quota
    pairs = [text.split() for text in cgroup_limits("cpu.max")]
    quotas = [int(time) / int(period) for time, period in pairs if time.isdigit()]
    memory, limit = psutil.virtual_memory(), memory_limit()
    sizes = [gigabytes(memory.total), f"{gigabytes(memory.available)} available"]
    if limit is not None:
        sizes.append(f"limited to {gigabytes(limit)}")
    limits = [processor(), f"{allowed} of {cores} cores"]
    if quotas:
        limits.append(f"a quota of {min(quotas):g}")
    return [("processor", ", ".join(limits)), ("memory", ", ".join(sizes))]


def describe_gpus() -> Rows:
    """What torch was built for, and each GPU that it sees."""
    import torch

    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for CPU"
    rows = [("devices", f"{build}, {torch.get_num_threads()} threads")]
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        memory = f"{gigabytes(total)}, {gigabytes(free)} free"
        capability = f"compute capability {gpu.major}.{gpu.minor}"
        rows.append((f"GPU {number}", f"{gpu.name}, {memory}, {capability}"))
    return rows if len(rows) > 1 else [*rows, ("GPUs", "none")]


def describe_folders() -> Rows:
    """Where results, caches and temporary files go, and the free space there."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folders = {
        "this folder": Path.cwd(),
        "cache": config.home(),
        "cache of the hub": Path(HF_HUB_CACHE),
        "temporary files": Path(tempfile.gettempdir()),
    }
    return [(name, describe_folder(folder)) for name, folder in folders.items()]


def describe_folder(folder: Path) -> str:
    """Its place and the free space; a missing folder would be made in its nearest parent."""
    place = next(place for place in (folder, *folder.parents) if place.exists())
    facts = [str(folder), f"{gigabytes(shutil.disk_usage(place).free)} free"]
    if place != folder:
        facts.append("not there yet")
    if not os.access(place, os.W_OK):
        facts.append("not writable")
    return ", ".join(facts)


def describe_variables() -> Rows:
    """Environment variables that affect recallkit, without their secrets."""
    rows = []
    for name, value in sorted(os.environ.items()):
        if name.startswith("RECALLKIT_") or name in _VARIABLES:
            is_secret = any(word in name for word in _SECRET)
            rows.append((name, "(set)" if is_secret else redacted(value)))
    return rows
