"""Finished scores beside the same computation in float64."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.models.loading import choose_prefix, identify_model
from recallkit.models.spec import ModelSpec, one_model
from recallkit.options import ScoringOptions
from recallkit.scoring.identity import score_path
from recallkit.scoring.own_tokenizer import read_tokenizer
from recallkit.scoring.plan import ScoringPlan
from recallkit.storage import parquet_files
from recallkit.storage.journal import Parts

if TYPE_CHECKING:
    import polars as pl

    from recallkit.scoring.scorer import Scorer

_CHECKED_SEQUENCES = 4


def check_scores(
    model: str | ModelSpec,
    slices: Path,
    options: ScoringOptions = ScoringOptions(),
) -> dict[str, Any]:
    """Compares finished scores of a few evenly spaced sequences with the same computation in
    float64 on CPU.

    Returns `tokens`, the `largest` and `mean` absolute difference of NLLs (nats), the place of the
    largest (`sequence`, `position`), and the share of tokens with the `same_argmax` (None if
    argmaxes cannot be compared).
    """
    import polars as pl

    plan = _plan_in_float64(one_model(model), slices, options)
    number = plan.sequences["num_sequences"]
    places = range(_CHECKED_SEQUENCES)
    sequences = sorted({number * place // _CHECKED_SEQUENCES for place in places})
    with tempfile.TemporaryDirectory() as folder:
        scorer = plan.begun(Parts(Path(folder), "check")).open()
        table = pl.concat([_compare(plan, scorer, sequence) for sequence in sequences])
    worst = table.row(int(table["difference"].arg_max() or 0), named=True)
    return {
        "tokens": len(table),
        "largest": worst["difference"],
        "mean": table["difference"].mean(),
        "sequence": worst["sequence"],
        "position": worst["position"],
        "same_argmax": table["same_argmax"].mean() if plan.own_tokenizer is None else None,
    }


def _plan_in_float64(spec: ModelSpec, slices: Path, options: ScoringOptions) -> ScoringPlan:
    """The plan of finished scores in float64, a sequence at a time."""
    one_by_one = replace(options, batch_tokens=1)
    file = score_path(slices, spec)
    manifest = parquet_files.read_manifest(file)
    plan = ScoringPlan.of_slices(spec, slices, one_by_one, manifest["options"])
    plan = replace(plan, device="cpu", dtype="float64")
    tokenizer = read_tokenizer(plan)
    plan = replace(plan, prefix=choose_prefix(plan, tokenizer.tokenizer))
    before = manifest["prefix"]
    if list(plan.prefix.ids) != before["ids"]:
        scored, now = before["token"] or "nothing", plan.prefix.token or "nothing"
        problem = f"scored with {scored} before every sequence, but now it reads {now}"
        remedy = f"write bos={before['token'] or 'none'} after the model"
        raise UserError(problem, where=file, remedy=remedy)
    plan = tokenizer.applied(plan)
    return replace(plan, digest=identify_model(plan))


def _compare(plan: ScoringPlan, scorer: Scorer, number: int) -> pl.DataFrame:
    """The stored scores of one sequence beside those of `scorer`."""
    import numpy as np
    import polars as pl

    first, ids, offsets = scorer.reader.read(number // plan.sequences_per_part)
    row = number - first
    exact = scorer.score_sequence(ids[offsets[row] : offsets[row + 1]])
    columns = ["sequence", "position", "nll", "argmax"]
    scores = pl.read_parquet(plan.result.path, glob=False, columns=columns)
    nll = pl.Series(exact.nll.astype(np.float64))
    return scores.filter(pl.col("sequence") == number).select(
        "sequence",
        "position",
        difference=(pl.col("nll").cast(pl.Float64) - nll).abs(),
        same_argmax=pl.col("argmax") == pl.Series(exact.argmax),
    )
