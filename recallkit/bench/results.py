"""What `bench` measured: rows as they are written, the tables and pictures of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from recallkit.display.cells import abbreviate
from recallkit.display.charts import Figure, line_chart, log_number
from recallkit.display.tables import Table
from recallkit.papers.arithmetic import read_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.bench.timing import Timing

    Row = dict[str, Any]

_MOST_TOGETHER = 4
"""Columns of a table that has several tasks."""
_AXES = {"scoring": ("n", "tokens of a text"), "prefill": ("n", "tokens of a prompt"), "generation": ("b", "rows that generate together")}
_AXES["gemm"] = ("n", "side of the matrices")


def make_row(task: str, label: str, size: dict[str, int], timing: Timing, repeats: int) -> Row:
    """A measurement: seconds of one call, and the rate that follows from their mean; null where nothing was measured.

    Columns: benchmark, model; b rows of n ids, or with `new` ids each; repeats; mean, median, fastest, slowest; rate and its unit; problem.
    """
    b, n, new = (size.get(name) for name in ("b", "n", "new"))
    unit = "TFLOP/s" if task == "gemm" else "tokens/ms"
    work = 2 * size["b"] * size["n"] ** 3 / 1e9 if task == "gemm" else size["b"] * (n or new or 0)
    times = timing.samples
    seconds = (timing.mean, timing.median, min(times), max(times), work / timing.mean / 1e3) if times else (None,) * 5
    measured = dict(zip(("mean", "median", "fastest", "slowest", "rate"), seconds, strict=True))
    named = {"benchmark": task, "model": label, "b": b, "n": n, "new": new, "repeats": repeats}
    return {**named, **measured, "unit": unit, "problem": timing.problem}


def _size(row: Row) -> str:
    """`b=16 n=4,096`."""
    return " ".join(f"{name}={row[name]:,}" for name in ("b", "n", "new") if row[name] is not None)


@dataclass(frozen=True, slots=True)
class Results:
    """All rows, see `make_row`, and the machine."""

    machine: dict[str, Any]
    rows: list[Row]

    def to_json(self) -> dict[str, Any]:
        """`machine`, `rows`."""
        return {"machine": self.machine, "rows": self.rows}

    def frame(self) -> pl.DataFrame:
        """The rows, the content of bench.parquet."""
        texts, counts = ("benchmark", "model", "unit", "problem"), ("b", "n", "new", "repeats")
        kinds = {**dict.fromkeys(texts, pl.String), **dict.fromkeys(counts, pl.Int64)}
        names = ("benchmark", "model", *counts, "mean", "median", "fastest", "slowest", "rate", "unit", "problem")
        return pl.DataFrame(self.rows, schema={name: kinds.get(name, pl.Float64) for name in names})

    def failure_line(self) -> str | None:
        """Which measurements failed for another reason than memory; None if none did."""
        failed = dict.fromkeys(f"{row['model']}, {row['benchmark']}" for row in self.rows if (row["problem"] or "").startswith("failed"))
        return f"failed: {'; '.join(failed)}; the reason is given with each" if failed else None

    def answer(self) -> str:
        """Tokens per second of the fastest model in each task; of products how large they can be at little cost."""
        ran = sorted((row for row in self.rows if row["rate"] is not None), key=lambda row: row["rate"])
        fastest = {row["benchmark"]: f"{row['benchmark']} {abbreviate(1000 * row['rate'])} ({row['model']})" for row in ran}
        if not fastest:
            return "Nothing could be timed."
        if "gemm" not in fastest:
            return f"Fastest, in tokens/s: {', '.join(fastest.values())}."
        near = [row["n"] for row in ran if row["mean"] <= 2 * min(row["mean"] for row in ran)]
        return f"Products of matrices of up to {max(near)} x {max(near)} take at most twice the time of the fastest."

    def tables(self) -> dict[str, Table]:
        """Of few sizes one table with a row for each model, of a sweep one for each task with a row for each size; Table 1 beside it."""
        cells = {(row["benchmark"], _size(row), row["model"]): row["problem"] or f"{row['rate']:.3g}" for row in self.rows}
        tasks, models = (list(dict.fromkeys(place[end] for place in cells)) for end in (0, 2))
        sizes, of, unit = list(dict.fromkeys(place[:2] for place in cells)), self.machine, self.rows[0]["unit"]
        caption = f"b rows of n tokens, or of `new` generated ones, random weights; {of['name']}, {of['dtype']}, torch {of['torch']}."
        found = {}
        if len(sizes) <= _MOST_TOGETHER:
            rows = [[model, *(cells.get((*size, model), "") for size in sizes)] for model in models]
            found["models"] = Table(f"Throughput, {unit}", ["", *map("\n".join, sizes)], rows, caption)
        else:
            headers = ["", *("-\n".join(model.rsplit("-", 1)) for model in models)]
            for task in tasks:
                rows = [[size, *(cells.get((of_task, size, model), "") for model in models)] for of_task, size in sizes if of_task == task]
                found[task] = Table(f"{task.capitalize()}, {unit}", headers, rows, caption)
        if beside := self._beside_print():
            headers = ["model", "", "size", "here", "printed", "ratio"]
            found["printed"] = Table("Beside Based's Table 1 (one H100), tokens/ms", headers, beside)
        return found

    def _beside_print(self) -> list[list[str]]:
        """Rows of models and sizes that are in Table 1, whose generation 6.2 ascribes to 1,024 tokens, its caption to 2,048."""
        published = read_table("based:1").filter(pl.col("tokens") == "10b").to_dicts()
        known = {f"{row['model']}-{row['group'].partition(',')[0]}".lower(): row for row in published}
        found = []
        for row in self.rows:
            task, prompt = row["benchmark"], 16_384 if row["model"].endswith("360m") else 4096
            places = {("prefill", 2, prompt, None), ("generation", 128, None, 1024), ("generation", 128, None, 2048)}
            if row["model"] in known and row["rate"] and (task, row["b"], row["n"], row["new"]) in places:
                printed = known[row["model"]]["prefill_per_ms" if task == "prefill" else "generate_per_ms"]
                found.append([row["model"], task, _size(row), f"{row['rate']:.4g}", f"{printed}", f"{row['rate'] / printed:.2f}"])
        return found

    def figures(self, models: Sequence[str] = ()) -> list[Figure]:
        """Milliseconds by length of the prompt and by rows, Based's Figure 4; by side of the matrices, its Figure 1, left."""
        found = []
        for task, (column, axis) in _AXES.items():
            rows = [row for row in self.rows if row["benchmark"] == task and row["mean"] and (not models or row["model"] in models)]
            if len({row[column] for row in rows}) > 1:
                points = [{**_described(row), "x": row[column], "y": 1e3 * row["mean"]} for row in rows]
                x = log_number("x", axis, (point["x"] for point in points), base=2)
                y = log_number("y", "milliseconds", (point["y"] for point in points), format="~g")
                names = list(dict.fromkeys(row["model"] for row in rows))
                found.append(Figure(task, f"Time of {task}", f"Milliseconds of {task} by {axis}.", line_chart(points, names, x, y), names))
        return found


def _described(row: Row) -> Row:
    return {"model": row["model"], "at": _size(row), "shown": f"{row['rate']:.3g} {row['unit']}"}
