"""Installed versions compared with those that recallkit requires, and whether the essential packages work."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Any

from recallkit.config import DISTRIBUTION, VERSION, installing
from recallkit.doctor.checks import Check, ProbeError, Status, probe

_GROUP = "packages"
NEEDED = ("torch", "numpy", "numba", "pyarrow", "polars", "duckdb", "tokenizers", "transformers", "lm-eval", "datasets")
"""Required distributions; no command works without the first seven."""
_NUM_ESSENTIAL = 7
OPTIONAL = {
    "triton": ("kernels", "pip install triton (Linux)"),
    "gigatoken": ("the fast tokenizer", installing("fast")),
    "ray": ("--engine ray", installing("ray")),
    **{name: (f"--log-to {name}", installing(name)) for name in ("trackio", "wandb", "mlflow", "tensorboard")},
    "peft": ("LoRA and other adapters", installing("peft")),
    "fla-core": ("flash-linear-attention, on a GPU", installing("gpu")),
    "flash-linear-attention": ("its models, on a GPU", installing("fla")),
}
"""Distribution -> its purpose, how to install it."""
_OTHER_NAMES = {"fla-core": ("fla-core", "flash-linear-attention"), "lm-eval": ("lm-eval", "lm_eval")}
_OLDEST_PYTHON = (3, 11)


def check_python() -> list[Check]:
    """recallkit, Python, the platform."""
    facts = {"version": platform.python_version()}
    python = f"{platform.python_implementation()} {facts['version']}, {sys.executable}"
    is_new = sys.version_info[:2] >= _OLDEST_PYTHON
    system = f"{platform.platform()}, {platform.machine()}"
    is_linux = sys.platform == "linux"
    return [
        Check(_GROUP, "recallkit", "ok", VERSION, facts={"version": VERSION}),
        Check(_GROUP, "python", "ok" if is_new else "fail", python, None if is_new else "install Python 3.11 or newer", facts),
        Check(_GROUP, "platform", "ok" if is_linux else "warn", system, None if is_linux else "recallkit is tested on Linux only"),
    ]


def check_versions() -> list[Check]:
    """Each distribution: installed, and new enough."""
    absent: dict[str, tuple[Status, str, str | None]] = {name: ("fail", "not installed", f'pip install "{name}"') for name in NEEDED}
    absent |= {name: ("warn", *absent[name][1:]) for name in NEEDED[_NUM_ESSENTIAL:]}
    absent |= {name: ("ok", f"not installed ({what}: {how})", None) for name, (what, how) in OPTIONAL.items()}
    asked = _requirements()
    return [_version(name, if_absent, asked.get(name)) for name, if_absent in absent.items()]


def _version(name: str, if_absent: tuple[Status, str, str | None], wanted: Any) -> Check:
    version = installed(name)
    facts = {"version": version}
    if version is None:
        return Check(_GROUP, name, *if_absent, facts)
    if wanted is None or wanted.contains(version, prereleases=True):
        return Check(_GROUP, name, "ok", version, facts=facts)
    return Check(_GROUP, name, "warn", f"{version}, recallkit requires {wanted}", f'pip install "{name}{wanted}"', facts)


def installed(name: str) -> str | None:
    """The version of a distribution, None where it is not installed."""
    for known in _OTHER_NAMES.get(name, (name,)):
        try:
            return metadata.version(known)
        except metadata.PackageNotFoundError:
            continue
    return None


def _requirements() -> dict[str, Any]:
    """Distribution -> the versions that recallkit requires; empty where recallkit runs without being installed."""
    try:
        from packaging.requirements import Requirement

        found = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    except (ImportError, ValueError, metadata.PackageNotFoundError):
        return {}
    return {requirement.name: requirement.specifier for requirement in found}


WORKING: dict[str, tuple[str, bool, str]] = {
    "tables": ("polars, pyarrow and duckdb work together", True, "reinstall them: pip install --force-reinstall polars pyarrow duckdb"),
    "transformers": ("transformers loads", False, "reinstall it: pip install --force-reinstall transformers"),
}
"""Probe -> its finding, whether every command needs it, the remedy."""


def check_working(name: str, seconds: float) -> list[Check]:
    """Whether the installed packages work."""
    found, is_needed, remedy = WORKING[name]
    try:
        probe(name, seconds=seconds)
    except ProbeError as error:
        return [Check(_GROUP, f"{name} at work", "fail" if is_needed else "warn", str(error), remedy)]
    return [Check(_GROUP, f"{name} at work", "ok", found)]
