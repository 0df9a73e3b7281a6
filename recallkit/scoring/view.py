"""Prints scores: means, progress of shared work, the comparison with float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.display.cells import percent
from recallkit.display.console import print_timings
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


def scores_table(slices: Path, manifests: Mapping[ModelSpec, Mapping[str, Any]]) -> Table:
    """One row per model."""
    from recallkit.scoring.files import score_path
    from recallkit.scoring.scores import summarise_scores

    rows = []
    for model, manifest in manifests.items():
        means = summarise_scores(score_path(slices, model)).row(0, named=True)
        rows.append(
            [model.shown, f"{manifest['num_rows']:,}", f"{means['nll_nats']:.4f}", f"{means['ppl']:.2f}", percent(means["accuracy"])]
        )
    return Table("Scores of every predicted token", ["model", "tokens", "NLL (nats)", "ppl", "argmax right"], rows)


def print_scores(slices: Path, manifests: Mapping[ModelSpec, Mapping[str, Any]]) -> None:
    """The table, the time that a single model took, where the scores are."""
    from recallkit.scoring.files import score_timings

    console.print_table(scores_table(slices, manifests))
    if len(manifests) == 1:  # for several models these would be many lines: --json has them
        print_timings(score_timings(slices, next(iter(manifests))))
    console.print_line(f"Scores (Parquet): {slices / 'scores'}", is_path=True)


def print_shares(manifests: Mapping[ModelSpec, Mapping[str, Any]]) -> None:
    """The progress of all shares together."""
    for model, manifest in manifests.items():
        done, total = manifest["parts_done"], manifest["num_parts"]
        rest = "joined" if manifest["joined"] else "run it without --share to join them" if done == total else "other shares are not done"
        console.print_line(f"{model.shown}: {done:,} of {total:,} parts are there, {rest}")


def print_checks(checks: Mapping[ModelSpec, Mapping[str, Any]]) -> None:
    """How far the scores are from a float64 computation."""
    rows = [
        [
            model.shown,
            f"{check['tokens']:,}",
            f"{check['largest']:.2e}",
            f"{check['mean']:.2e}",
            percent(check["same_argmax"], 2),
        ]
        for model, check in checks.items()
    ]
    console.print_table(
        Table(
            "Difference to a float64 computation on CPU, in nats per token",
            ["model", "tokens", "largest", "mean", "same argmax"],
            rows,
            caption="The largest: "
            + ", ".join(f"sequence {check['sequence']}, position {check['position']} ({model.shown})" for model, check in checks.items()),
        )
    )
