"""The measurements, one per row: the same rows are printed, written as Parquet or JSON, and drawn."""

from __future__ import annotations

import math
import platform
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

OURS = "recallkit"
TOKENS = "tokens/ms"


@dataclass(frozen=True, slots=True)
class Row:
    """One implementation of an operation, or one model, at one size."""

    benchmark: str
    """The operation, or the task of a model: "scoring", "prefill", "generation"."""
    size: dict[str, int]
    """The sizes, by their usual letters."""
    implementation: str
    """`recallkit (triton)`, a public library, or a model's name."""
    seconds: float = math.nan
    """Of one call, the median."""
    fastest: float = math.nan
    slowest: float = math.nan
    rate: float | None = None
    unit: str | None = None
    """The unit of `rate`: FLOP/s, B/s or tokens/ms."""
    share: float | None = None
    """`rate` as a fraction of the measured ceiling."""
    ratio: float | None = None
    """Its time relative to recallkit's: above 1 where ours is faster."""
    problem: str | None = None
    """Why it was not measured."""

    @property
    def is_ours_and_failed(self) -> bool:
        """Whether our own code failed for another reason than memory."""
        ours = self.implementation.startswith(OURS) or self.unit == TOKENS
        return ours and self.problem is not None and self.problem.startswith("failed")

    @property
    def size_text(self) -> str:
        """`b=16 n=4,096`."""
        return " ".join(f"{name}={value:,}" for name, value in self.size.items())

    def to_json(self) -> dict[str, Any]:
        """With null where nothing was measured."""
        return {name: _known(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Results:
    """All rows, and the machine."""

    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    """One line per target: wanted and reached."""

    def to_json(self) -> dict[str, Any]:
        """`machine`, `rows`, `targets`."""
        return {"machine": self.machine, "rows": [row.to_json() for row in self.rows], "targets": self.verdicts}

    def failure_line(self) -> str | None:
        """Which measurements of our own code failed; None if none did."""
        failed = dict.fromkeys(f"{row.implementation}, {row.benchmark}" for row in self.rows if row.is_ours_and_failed)
        return f"failed: {'; '.join(failed)}; the reason is given with each" if failed else None

    @staticmethod
    def from_json(saved: dict[str, Any]) -> Results:
        """The inverse of `to_json`."""
        rows = [Row(**{name: value for name, value in row.items() if value is not None}) for row in saved["rows"]]
        return Results(saved["machine"], rows, saved["targets"])


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def describe_machine(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Device, precision and versions."""
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, threads: {torch.get_num_threads()}"
    versions = {"torch": torch.__version__, "triton": _triton_version()}
    return {"device": device.type, "name": name, "dtype": str(dtype).removeprefix("torch."), **versions}


def _triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def duration(seconds: float) -> str:
    """0.000123 -> 123 us: to three digits."""
    if not math.isfinite(seconds):
        return "–"
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def si(number: float, unit: str) -> str:
    """6.2e10, "FLOP/s" -> 62 GFLOP/s: to three digits."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


COLUMNS = ("", "time", "rate", "share", "x ours")
MODEL_COLUMNS = ("model, tokens/ms", "scoring", "prefill", "generation")


def operation_lines(rows: list[Row]) -> list[tuple[str, ...]]:
    """Rows of operations as text, in the order of `COLUMNS`, each operation and size under a line of its own."""
    lines: list[tuple[str, ...]] = []
    before = ""
    for row in rows:
        if row.unit == TOKENS:
            continue
        title = f"{row.benchmark} {row.size_text}"
        lines += [(title, "", "", "", "")] if title != before else []
        lines.append((f"· {row.implementation}", *_figures(row)))
        before = title
    return lines


def _figures(row: Row) -> tuple[str, str, str, str]:
    if row.problem is not None:
        return row.problem, "", "", ""
    rate = "" if row.rate is None or row.unit is None else si(row.rate, row.unit)
    share = "" if row.share is None else f"{100 * row.share:.0f} %"
    return duration(row.seconds), rate, share, "" if row.ratio is None else f"{row.ratio:.2f}"


def model_lines(rows: list[Row]) -> list[tuple[str, ...]]:
    """Rows of models as text, in the order of `MODEL_COLUMNS`: one per model."""
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        if row.unit == TOKENS:
            found.setdefault(row.implementation, {})[row.benchmark] = row.problem or f"{row.rate:.3g}"
    return [(name, *(rates.get(column, "") for column in MODEL_COLUMNS[1:])) for name, rates in found.items()]


def model_sizes(rows: list[Row]) -> str:
    """The workload of the models, in words."""
    return "; ".join(dict.fromkeys(f"{row.benchmark}: {row.size_text}" for row in rows if row.unit == TOKENS))
