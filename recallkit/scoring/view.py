"""Scores as people see them: perplexities, what was reused, the comparison with float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.display.cells import made_earlier, timings_lines
from recallkit.display.tables import Table
from recallkit.scoring.identity import score_path, score_timings
from recallkit.scoring.scores import summarise_scores

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import polars as pl

    from recallkit.models.spec import ModelSpec

_FACTS = ("num_rows", "model_digest", "dtype")
_FACTS_OF_SOME = (
    *("batch_tokens", "tokenizer", "context", "stride", "carry_state", "num_inexact"),
    *("state_bytes", "state_ids", "reading_max", "reading_mean", "read_exactly"),
)
_MEANS = """
    model
    num_rows | tokens       | ,
    nll_nats | NLL (nats)   | .4f
    ppl      | ppl          | .2f
    accuracy | argmax right
"""
_CHECKED = """
    model tokens
    largest | largest | .2e
    mean    | mean    | .2e
    same_argmax
"""


@dataclass(frozen=True)
class ScoresView:
    """Score files of a slice directory, by model, and how far those are from float64 of which that
    was computed."""

    slices: Path
    manifests: Mapping[ModelSpec, Mapping[str, Any]]
    checks: Mapping[ModelSpec, Mapping[str, Any]]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One row per model: the means of its scores, and the facts of its manifest."""
        rows = []
        for model, manifest in self.manifests.items():
            path = score_path(self.slices, model)
            row = {"model": model.shown, "path": str(path), **summarise_scores(self.slices, path)}
            row |= {name: manifest[name] for name in _FACTS}
            facts = {name: manifest.get(name) for name in _FACTS_OF_SOME}
            row |= {name: value for name, value in facts.items() if value is not None}
            rows.append(row | {"timings": score_timings(self.slices, model)})
        return rows

    def frame(self) -> pl.DataFrame:
        """One row per model, as Python and exports have it."""
        import polars as pl

        names = ["model", "num_rows", "nll_nats", "ppl", "accuracy", "dtype", "path"]
        columns = {}
        for name in names:
            columns[name] = [row[name] for row in self.rows]
        frame = pl.DataFrame(columns, schema_overrides={"dtype": pl.String})
        return frame.rename({"num_rows": "tokens"})

    def json(self) -> list[dict[str, Any]]:
        """One object per model."""
        objects = [dict(row) for row in self.rows]
        for model, row in zip(self.manifests, objects, strict=True):
            if model in self.checks:
                row["check"] = dict(self.checks[model])
        return objects

    def table(self) -> Table:
        """One row per model."""
        return Table.from_rows("Scores of every predicted token", _MEANS, self.rows)

    def print(self) -> None:
        """The perplexities, the table, which scores were reused, where they are; first how far they
        are from float64, if that was computed."""
        tables = [checks_table(self.checks)] if self.checks else []
        console.print_answer(
            self._answer(),
            [*tables, self.table()],
            self._notes(),
            full=True,
            places={"scores": self.slices / "scores"},
        )

    def _answer(self) -> str:
        """The perplexity of one model, or the least and the greatest of several."""
        tokens = f"{self.rows[0]['num_rows']:,} tokens"
        if len(self.rows) == 1:
            return f"{self.rows[0]['model']}: perplexity {self.rows[0]['ppl']:.2f} on {tokens}."
        rows = sorted(self.rows, key=lambda row: float(row["ppl"]))
        least, greatest = (f"{row['ppl']:.2f} ({row['model']})" for row in (rows[0], rows[-1]))
        return f"{len(rows)} models on {tokens}: perplexity {least} to {greatest}."

    def _notes(self) -> list[str]:
        """How long a single model took, or which were reused, and when they were scored."""
        is_reused = [manifest.get("reused", False) for manifest in self.manifests.values()]
        if len(self.rows) == 1:
            return timings_lines(self.rows[0]["timings"], "scored", is_reused=is_reused[0])
        models: dict[str, list[str]] = {}
        for row, is_old in zip(self.rows, is_reused, strict=True):
            if is_old:
                when = made_earlier(row["timings"] or {}, "scored")
                models.setdefault(when, []).append(row["model"])
        everything = len(self.rows)
        lines = []
        for when, names in models.items():
            lines.append(
                f"Reused{when}: {'all' if len(names) == everything else ', '.join(names)}."
            )
        return lines


def checks_table(checks: Mapping[ModelSpec, Mapping[str, Any]]) -> Table:
    """How far the scores are from a float64 computation."""
    rows, places = [], []
    for model, check in checks.items():
        rows.append({**check, "model": model.shown})
        place = f"sequence {check['sequence']}, position {check['position']}"
        places.append(f"{place} ({model.shown})")
    title = "Difference from a float64 computation on CPU, in nats per token"
    return Table.from_rows(title, _CHECKED, rows, f"The largest: {', '.join(places)}")
