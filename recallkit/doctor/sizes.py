"""What an installation takes on disk, part by part: each required distribution with the packages that it adds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from recallkit.config import DISTRIBUTION
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

PURPOSES = {
    "accelerate": "transformers loads .gguf files with it",
    "altair": "describes the figures",
    "backports-zstd": "reads the hub's .zst files, before Python 3.14",
    "datasets": "streams text and tasks from the hub",
    "duckdb": "the table of counts, and queries",
    "fsspec": "reads remote files",
    "gguf": "transformers reads .gguf files with it",
    "gigatoken": "the extra `fast`: encodes text many times faster",
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
    required = _required(DISTRIBUTION, ())
    if not required:
        raise UserError("recallkit is not installed here, so nothing says what it needs", where=DISTRIBUTION, remedy="install it with pip")
    parts, before = [], set[str]()
    for name, extras in required:
        added = tuple(sorted(_needed([(name, extras)]) - before))
        before.update(added)
        parts.append(Part(name, PURPOSES.get(name, ""), added, sum(map(_size, added))))
    return sorted(parts, key=lambda part: -part.size)


def _needed(required: Iterable[tuple[str, tuple[str, ...]]]) -> set[str]:
    """Everything that some distributions, each with its extras, need, themselves included."""
    found: set[tuple[str, tuple[str, ...]]] = set()
    waiting = list(required)
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += _required(*each)
    return {name for name, _ in found}


@cache
def _required(name: str, extras: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """The installed distributions that one requires here, each with the extras asked of it."""
    from packaging.requirements import Requirement

    asked = [Requirement(line) for line in (_installed()[name].requires or ())] if name in _installed() else []
    wanted = [each for each in asked if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))]
    return [(_normal(each.name), tuple(sorted(each.extras))) for each in wanted if _normal(each.name) in _installed()]


@cache
def _installed() -> dict[str, metadata.Distribution]:
    return {_normal(each.metadata["Name"]): each for each in metadata.distributions() if each.metadata["Name"]}


@cache
def _size(name: str) -> int:
    """Bytes of a distribution's files, as far as they are there; without what Python compiles."""
    listed = _installed()[name].files or ()
    paths = [path for path in (each.locate() for each in listed if each.suffix != ".pyc") if path.is_file()]
    return sum(path.stat().st_size for path in paths)


def _normal(name: str) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)
