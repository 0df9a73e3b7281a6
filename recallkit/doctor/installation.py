"""The installation: versions compared with those that recallkit requires, whether packages work, and what they take on disk."""

from __future__ import annotations

import contextlib
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.config import DISTRIBUTION, VERSION, installing
from recallkit.display import console
from recallkit.display.tables import Table
from recallkit.doctor.checks import Check
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_GROUP = "packages"
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
    version, is_linux = platform.python_version(), sys.platform == "linux"
    is_new, facts = sys.version_info[:2] >= _OLDEST_PYTHON, {"version": version}
    python, system = f"{platform.python_implementation()} {version}, {sys.executable}", f"{platform.platform()}, {platform.machine()}"
    return [
        Check(_GROUP, "recallkit", "ok", VERSION, facts={"version": VERSION}),
        Check(_GROUP, "python", "ok" if is_new else "fail", python, None if is_new else "install Python 3.11 or newer", facts),
        Check(_GROUP, "platform", "ok" if is_linux else "warn", system, None if is_linux else "recallkit is tested on Linux only"),
    ]


def check_versions() -> list[Check]:
    """Each distribution: installed, and new enough."""
    wanted = _requirements()
    return [_version(name, wanted.get(name)) for name in (*NEEDED, *OPTIONAL)]


def _version(name: str, wanted: Any) -> Check:
    version = installed(name)
    facts = {"version": version}
    if version is None and name in OPTIONAL:
        what, how = OPTIONAL[name]
        return Check(_GROUP, name, "ok", f"not installed ({what}: {how})", facts=facts)
    if version is None:
        return Check(_GROUP, name, "fail" if name in _ESSENTIAL else "warn", "not installed", f'pip install "{name}"', facts)
    if wanted is None or wanted.contains(version, prereleases=True):
        return Check(_GROUP, name, "ok", version, facts=facts)
    return Check(_GROUP, name, "warn", f"{version}, recallkit requires {wanted}", f'pip install "{name}{wanted}"', facts)


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
    return [Check(_GROUP, "tables at work", "ok", "polars, pyarrow and duckdb work together")]


def check_transformers() -> list[Check]:
    """Whether it loads."""
    from transformers import AutoConfig  # noqa: F401

    return [Check(_GROUP, "transformers at work", "ok", "transformers loads")]


# ---------------------------------------------------------------------------------------------------------- sizes on disk

PURPOSES = {
    "accelerate": "transformers loads .gguf files with it",
    "altair": "describes the figures",
    "backports-zstd": "reads the hub's .zst files, before Python 3.14",
    "datasets": "streams text and tasks from the hub",
    "duckdb": "the table of counts, and queries",
    "fsspec": "reads remote files",
    "gguf": "transformers reads .gguf files with it",
    "huggingface-hub": "finds and loads models and data of the hub",
    "lm-eval": "runs the recall tasks",
    "numba": "compiles labelling, counting and attribution",
    "numpy": "arrays",
    "orjson": "reads JSON Lines",
    "platformdirs": "finds the cache folder",
    "polars": "tables in Python",
    "psutil": "memory and cores, for `doctor`",
    "pyarrow": "Parquet files, compressed text",
    "rich": "tables and progress in the terminal",
    "safetensors": "weights",
    "scipy": "quantiles of Student's distribution; lm-eval needs it too",
    "snowballstemmer": "`rare_word` slices: folded forms of words",
    "threadpoolctl": "numbers of threads",
    "tokenizers": "encodes text",
    "torch": "models",
    "transformers": "public models",
    "triton": "kernels on a GPU",
    "typer": "the command line",
    "vl-convert-python": "draws figures without a browser",
}
"""What each required distribution is for."""


@dataclass(frozen=True)
class Part:
    """A required distribution: `packages` are what it adds to those required before it, itself included; `size` is their bytes on disk."""

    name: str
    packages: tuple[str, ...]
    size: int

    @property
    def purpose(self) -> str:
        """What it is for."""
        return PURPOSES.get(self.name, "")


def installed_parts() -> list[Part]:
    """The parts of this installation, largest first. Raises UserError where recallkit runs without being installed."""
    from packaging.utils import canonicalize_name

    there: dict[str, metadata.Distribution] = {
        canonicalize_name(each.metadata["Name"]): each for each in metadata.distributions() if each.metadata["Name"]
    }
    required = _required(DISTRIBUTION, (), there)
    if not required:
        raise UserError("recallkit is not installed here, so nothing says what it needs", where=DISTRIBUTION, remedy="install it with pip")
    parts, met = [], set[tuple[str, tuple[str, ...]]]()
    for asked in required:
        before, waiting = {name for name, _ in met}, [asked]
        while waiting:
            each = waiting.pop()
            if each not in met:
                met.add(each)
                waiting += _required(*each, there)
        added = sorted({name for name, _ in met} - before)
        parts.append(Part(asked[0], tuple(added), sum(_size(there[name]) for name in added)))
    return sorted(parts, key=lambda part: -part.size)


def _required(name: str, extras: tuple[str, ...], there: Mapping[str, metadata.Distribution]) -> list[tuple[str, tuple[str, ...]]]:
    """The installed distributions that one requires on this machine, each with the extras asked of it."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = [Requirement(line) for line in (there[name].requires if name in there else None) or ()]
    wanted = [each for each in lines if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))]
    found = [(canonicalize_name(each.name), tuple(sorted(each.extras))) for each in wanted]
    return [each for each in found if each[0] in there]


def _size(distribution: metadata.Distribution) -> int:
    """Bytes of those of a distribution's files that exist, without what Python compiles."""
    paths = [Path(str(each.locate())) for each in distribution.files or () if each.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())


def sizes_json(parts: Sequence[Part]) -> dict[str, Any]:
    """The whole, and each part."""
    rows = [{"name": part.name, "purpose": part.purpose, "packages": list(part.packages), "bytes": part.size} for part in parts]
    return {"bytes": sum(part.size for part in parts), "parts": rows}


def print_sizes(parts: Sequence[Part]) -> None:
    """Megabytes of each part, the largest first."""
    rows = [[part.name, f"{part.size / 1e6:,.1f}", f"{len(part.packages)}", part.purpose] for part in parts if part.packages]
    packages, size = sum(len(part.packages) for part in parts), sum(part.size for part in parts)
    besides = ", ".join(part.name for part in parts if not part.packages)
    caption = "Each with what it adds to those that pyproject.toml names before it. "
    caption += f"Required, and there because of them: {besides or 'none'}."
    said = f"The installation takes {size / 1e6:,.0f} MB in {packages} packages."
    console.print_found(said, [Table("What the installed packages take", ["", "MB", "packages", "for"], rows, caption)])
