"""Prints scores: means, progress of shared work, the comparison with float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import cells, console
from recallkit.display.cells import timings_lines
from recallkit.display.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from recallkit.models.spec import ModelSpec


def scores_json(slices: Path, model: ModelSpec, manifest: Mapping[str, Any], check: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What was scored, the path, the mean NLL, and the comparison with float64 if one was made."""
    from recallkit.scoring.files import score_path, score_timings
    from recallkit.scoring.scores import summarise_scores

    path = score_path(slices, model)
    return {
        "model": model.shown,
        "path": str(path),
        **summarise_scores(path).row(0, named=True),
        **{k: manifest[k] for k in ("num_rows", "model_digest", "dtype", "batch_tokens")},
        **{k: manifest[k] for k in ("tokenizer", "context", "stride", "carry_state", "num_inexact") if manifest.get(k) is not None},
        "timings": score_timings(slices, model),
        **({} if check is None else {"check": dict(check)}),
    }


_MEANS = {
    "model": cells.name("model"),
    "tokens": cells.number("num_rows"),
    "NLL (nats)": cells.number("nll_nats", ".4f"),
    "ppl": cells.number("ppl", ".2f"),
    "argmax right": cells.share("accuracy"),
}
_CHECKED = {
    "model": cells.name("model"),
    "tokens": cells.number("tokens"),
    "largest": cells.number("largest", ".2e"),
    "mean": cells.number("mean", ".2e"),
    "same argmax": cells.share("same_argmax", 2),
}


def scores_table(slices: Path, manifests: Mapping[ModelSpec, Mapping[str, Any]]) -> Table:
    """One row per model."""
    from recallkit.scoring.files import score_path
    from recallkit.scoring.scores import summarise_scores

    rows = [
        {**summarise_scores(score_path(slices, model)).row(0, named=True), "model": model.shown, "num_rows": manifest["num_rows"]}
        for model, manifest in manifests.items()
    ]
    return Table.of("Scores of every predicted token", _MEANS, rows)


def print_scores(slices: Path, manifests: Mapping[ModelSpec, Mapping[str, Any]]) -> None:
    """The table, the time that a single model took, where the scores are."""
    from recallkit.scoring.files import score_timings

    # for several models these would be many lines: --json has them
    timings = score_timings(slices, next(iter(manifests))) if len(manifests) == 1 else None
    console.print_result([scores_table(slices, manifests)], *timings_lines(timings), scores=slices / "scores")


def print_shares(manifests: Mapping[ModelSpec, Mapping[str, Any]]) -> None:
    """The progress of all shares together."""
    for model, manifest in manifests.items():
        done, total = manifest["parts_done"], manifest["num_parts"]
        rest = "joined" if manifest["joined"] else "run it without --share to join them" if done == total else "other shares are not done"
        console.print_line(f"{model.shown}: {done:,} of {total:,} parts are there, {rest}")


def print_checks(checks: Mapping[ModelSpec, Mapping[str, Any]]) -> None:
    """How far the scores are from a float64 computation."""
    places = [f"sequence {check['sequence']}, position {check['position']} ({model.shown})" for model, check in checks.items()]
    title, rows = "Difference to a float64 computation on CPU, in nats per token", [{**c, "model": m.shown} for m, c in checks.items()]
    console.print_table(Table.of(title, _CHECKED, rows, f"The largest: {', '.join(places)}"))
