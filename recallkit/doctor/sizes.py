"""What an installation takes on disk, part by part: each required distribution with the packages that it adds."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.config import DISTRIBUTION
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

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
    purpose: str
    packages: tuple[str, ...]
    size: int

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"name": self.name, "purpose": self.purpose, "packages": list(self.packages), "bytes": self.size}


def installed_parts() -> list[Part]:
    """The parts of this installation, largest first. Raises UserError where recallkit runs without being installed."""
    packages = _Packages()
    required = packages.required(DISTRIBUTION)
    if not required:
        raise UserError("recallkit is not installed here, so nothing says what it needs", where=DISTRIBUTION, remedy="install it with pip")
    added = {name: packages.added(name, extras) for name, extras in required}
    parts = [Part(name, PURPOSES.get(name, ""), tuple(sorted(new)), sum(map(packages.size, new))) for name, new in added.items()]
    return sorted(parts, key=lambda part: -part.size)


class _Packages:
    """What is installed, by normalised name, and which of it was met already."""

    def __init__(self) -> None:
        from packaging.utils import canonicalize_name

        self.normal: Callable[[str], str] = canonicalize_name
        self.installed: dict[str, metadata.Distribution] = {
            self.normal(each.metadata["Name"]): each for each in metadata.distributions() if each.metadata["Name"]
        }
        self.met: set[tuple[str, tuple[str, ...]]] = set()

    def required(self, name: str, extras: tuple[str, ...] = ()) -> list[tuple[str, tuple[str, ...]]]:
        """The installed distributions that one requires on this machine, each with the extras asked of it."""
        from packaging.requirements import Requirement

        lines = self.installed[name].requires or () if name in self.installed else ()
        asked = [each for each in map(Requirement, lines) if self.normal(each.name) in self.installed]
        wanted = [each for each in asked if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))]
        return [(self.normal(each.name), tuple(sorted(each.extras))) for each in wanted]

    def added(self, name: str, extras: tuple[str, ...]) -> set[str]:
        """A distribution and all that it requires, as far as nothing met before did."""
        before = {met for met, _ in self.met}
        waiting = [(name, extras)]
        while waiting:
            each = waiting.pop()
            if each not in self.met:
                self.met.add(each)
                waiting += self.required(*each)
        return {met for met, _ in self.met} - before

    def size(self, name: str) -> int:
        """Bytes of a distribution's files, as far as they are there; without what Python compiles."""
        paths = [Path(str(each.locate())) for each in self.installed[name].files or () if each.suffix != ".pyc"]
        return sum(path.stat().st_size for path in paths if path.is_file())
