"""The installation: versions compared with those that recallkit requires, and whether packages work."""

from __future__ import annotations

import contextlib
import platform
import sys
from importlib import metadata
from typing import Any

from recallkit.config import DISTRIBUTION, VERSION, installing
from recallkit.doctor.checks import Check

_ESSENTIAL = ("torch", "numpy", "numba", "pyarrow", "polars", "duckdb", "tokenizers")
"""Without these no command works."""
NEEDED = (*_ESSENTIAL, "transformers", "lm-eval", "datasets")
"""Required distributions."""
OPTIONAL = {
    "triton": ("kernels", "pip install triton (Linux)"),
    "gigatoken": ("the fast tokenizer", installing("fast")),
    "ray": ("--engine ray", installing("ray")),
    **{name: (f"--log-to {name}", installing(name)) for name in ("trackio", "wandb", "mlflow", "tensorboard")},
    "peft": ("LoRA and other adapters", installing("peft")),
    "optimum-quanto": ("caches quantised by quanto", installing("cache")),
    "hqq": ("caches quantised by HQQ", installing("hqq")),
    "torchao": ("quantised weights", installing("weights")),
    "fla-core": ("flash-linear-attention, on a GPU", installing("gpu")),
    "flash-linear-attention": ("its models, on a GPU", installing("fla")),
}
"""Distribution -> its purpose, how to install it."""
_OLDEST_PYTHON = (3, 11)


def check_python() -> list[Check]:
    """recallkit, Python, the platform."""
    is_new, is_linux = sys.version_info[:2] >= _OLDEST_PYTHON, sys.platform == "linux"
    python = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    system = f"{platform.platform()}, {platform.machine()}"
    return [
        Check("recallkit", "ok", VERSION),
        Check("python", "ok" if is_new else "fail", python, None if is_new else "install Python 3.11 or newer"),
        Check("platform", "ok" if is_linux else "warn", system, None if is_linux else "recallkit is tested on Linux only"),
    ]


def check_versions() -> list[Check]:
    """Each distribution: installed, and new enough."""
    wanted = _requirements()
    return [_version(name, wanted.get(name)) for name in (*NEEDED, *OPTIONAL)]


def _version(name: str, wanted: Any) -> Check:
    version = installed(name)
    if version is None and name in OPTIONAL:
        what, how = OPTIONAL[name]
        return Check(name, "ok", f"not installed ({what}: {how})")
    if version is None:
        return Check(name, "fail" if name in _ESSENTIAL else "warn", "not installed", f'pip install "{name}"')
    if wanted is None or wanted.contains(version, prereleases=True):
        return Check(name, "ok", version)
    return Check(name, "warn", f"{version}, recallkit requires {wanted}", f'pip install "{name}{wanted}"')


def installed(name: str) -> str | None:
    """The version of a distribution, None where it is not installed. fla's core is in flash-linear-attention, too."""
    for known in (name, "flash-linear-attention") if name == "fla-core" else (name,):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(known)
    return None


def _requirements() -> dict[str, Any]:
    """Distribution -> the versions that recallkit requires; empty where recallkit runs without being installed."""
    try:
        from packaging.requirements import Requirement

        found = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    except (ImportError, ValueError, metadata.PackageNotFoundError):
        return {}
    return {requirement.name: requirement.specifier for requirement in found}


def check_tables() -> list[Check]:
    """Tables and SQL: whether the three libraries load and work together."""
    import duckdb
    import polars as pl

    table = pl.DataFrame({"x": [1, 2, 3]}).to_arrow()
    with duckdb.connect() as connection:
        connection.register("given", table)
        row = connection.execute("select sum(x) from given").fetchone()
    if row is None or row[0] != 6:
        raise ValueError("1 + 2 + 3 is not 6 in DuckDB")
    return [Check("tables at work", "ok", "polars, pyarrow and duckdb work together")]


def check_transformers() -> list[Check]:
    """Whether it loads."""
    from transformers import AutoConfig  # noqa: F401

    return [Check("transformers at work", "ok", "transformers loads")]
