"""Prints scores: means, progress of shared work, the comparison with float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.display.cells import made_earlier, timings_lines
from recallkit.display.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from recallkit.models.spec import ModelSpec


def scores_json(
    slices: Path,
    model: ModelSpec,
    manifest: Mapping[str, Any],
    check: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What was scored, the path, the mean NLL, and the comparison with float64 if one was made."""
    from recallkit.scoring.identity import score_path, score_timings
    from recallkit.scoring.scores import summarise_scores

    path = score_path(slices, model)
    return {
        "model": model.shown,
        "path": str(path),
        **summarise_scores(slices, path),
        **{k: manifest[k] for k in ("num_rows", "model_digest", "dtype", "batch_tokens")},
        **{k: manifest[k] for k in _WHERE_KNOWN if manifest.get(k) is not None},
        "timings": score_timings(slices, model),
        **({} if check is None else {"check": dict(check)}),
    }


_WHERE_KNOWN = (
    *("tokenizer", "context", "stride", "carry_state", "num_inexact"),
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


def scores_table(slices: Path, manifests: Mapping[ModelSpec, Mapping[str, Any]]) -> Table:
    """One row per model."""
    from recallkit.scoring.identity import score_path
    from recallkit.scoring.scores import summarise_scores

    rows = [
        {
            **summarise_scores(slices, score_path(slices, model)),
            "model": model.shown,
            "num_rows": manifest["num_rows"],
        }
        for model, manifest in manifests.items()
    ]
    return Table.from_rows("Scores of every predicted token", _MEANS, rows)


def print_scores(
    slices: Path,
    manifests: Mapping[ModelSpec, Mapping[str, Any]],
    checks: Mapping[ModelSpec, Mapping[str, Any]],
) -> None:
    """The perplexities, the table, which scores were reused, where they are; first how far they
    are from float64 if that was `checks`."""
    table = scores_table(slices, manifests)
    tables = [checks_table(checks), table] if checks else [table]
    console.print_answer(
        _answer(table, manifests),
        tables,
        _notes(slices, manifests),
        full=True,
        places={"scores": slices / "scores"},
    )


def _answer(table: Table, manifests: Mapping[ModelSpec, Mapping[str, Any]]) -> str:
    """The perplexity of one model, or the least and the greatest of several."""
    tokens = f"{next(iter(manifests.values()))['num_rows']:,} tokens"
    perplexity = table.headers.index("ppl")
    placed = [f"{row[perplexity]} ({row[0]})" for row in sorted(table.rows, key=lambda row: float(row[perplexity].replace(",", "")))]
    if len(placed) == 1:
        return f"{table.rows[0][0]}: perplexity {table.rows[0][perplexity]} on {tokens}."
    return f"{len(placed)} models on {tokens}: perplexity {placed[0]} to {placed[-1]}."


def _notes(slices: Path, manifests: Mapping[ModelSpec, Mapping[str, Any]]) -> list[str]:
    """How long a single model took, or which were reused, and when they were scored."""
    from recallkit.scoring.identity import score_timings

    timings = {model: score_timings(slices, model) for model in manifests}
    if len(manifests) == 1:
        [(model, manifest)] = manifests.items()
        return timings_lines(timings[model], "scored", is_reused=manifest.get("reused", False))
    reused: dict[str, list[str]] = {}
    for model, manifest in manifests.items():
        if manifest.get("reused"):
            reused.setdefault(made_earlier(timings[model] or {}, "scored"), []).append(model.shown)
    return [f"Reused{when}: {'all' if len(names) == len(manifests) else ', '.join(names)}." for when, names in reused.items()]


def checks_table(checks: Mapping[ModelSpec, Mapping[str, Any]]) -> Table:
    """How far the scores are from a float64 computation."""
    places = [f"sequence {check['sequence']}, position {check['position']} ({model.shown})" for model, check in checks.items()]
    title, rows = (
        "Difference from a float64 computation on CPU, in nats per token",
        [{**c, "model": m.shown} for m, c in checks.items()],
    )
    return Table.from_rows(title, _CHECKED, rows, f"The largest: {', '.join(places)}")
