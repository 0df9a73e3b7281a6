"""Finished scores beside the same computation in float64."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.models.loading import choose_prefix
from recallkit.models.spec import ModelSpec, one_model
from recallkit.options import ScoringOptions
from recallkit.scoring.identity import as_scored, of_model, read_tokenizer, request_of, score_path, sequences_of
from recallkit.scoring.run import ScoringPlan
from recallkit.storage import artifacts
from recallkit.storage.journal import Parts
from recallkit.storage.result import Result

if TYPE_CHECKING:
    import polars as pl

    from recallkit.scoring.scores import SequenceReader
    from recallkit.scoring.worker import Scorer

_CHECKED_SEQUENCES = 4


def check_scores(model: str | ModelSpec, slices: Path, options: ScoringOptions = ScoringOptions()) -> dict[str, Any]:
    """Compares finished scores of a few evenly spaced sequences with the same computation in float64 on CPU.

    Returns `tokens`, the `largest` and `mean` absolute difference of NLLs (nats), the place of the largest (`sequence`,
    `position`), and the share of tokens with the `same_argmax` (None if argmaxes cannot be compared).
    """
    import polars as pl

    from recallkit.scoring.worker import Scorer

    model = one_model(model)
    file = score_path(slices, model)
    manifest = artifacts.read_manifest(file)
    options = as_scored(replace(of_model(options, model), dtype=None), manifest["options"])
    sequences = sequences_of(slices)
    options = replace(options, batch_tokens=1)
    request = replace(request_of(model, slices, sequences, options), device="cpu", dtype="float64")
    read = read_tokenizer(request, options.model_tokenizer, slices, sequences["tokenizer"])
    request = replace(request, prefix=choose_prefix(request, read.tokenizer, model.bos))
    if list(request.prefix.ids) != manifest["prefix"]["ids"]:
        before, now = (token or "nothing" for token in (manifest["prefix"]["token"], request.prefix.token))
        problem = f"scored with {before} before every sequence, but now it reads {now}"
        raise UserError(problem, where=file, remedy=f"write bos={before if before != 'nothing' else 'none'} after the model")
    other = read.other(slices, sequences["tokenizer"])
    plan = ScoringPlan(model, request, slices, options, sequences, Result(file, "scores", manifest["options"]), other)
    with tempfile.TemporaryDirectory() as folder:
        job = plan.job(Parts(Path(folder), "check"))
        scorer, reader = Scorer(job), job.reader()
        checked = sorted({sequences["num_sequences"] * place // _CHECKED_SEQUENCES for place in range(_CHECKED_SEQUENCES)})
        compared = [_compare(scorer, reader, file, number) for number in checked]
    table = pl.concat(compared)
    worst = table.row(int(table["difference"].arg_max() or 0), named=True)
    return {
        "tokens": len(table),
        "largest": worst["difference"],
        "mean": table["difference"].mean(),
        "sequence": worst["sequence"],
        "position": worst["position"],
        "same_argmax": table["same_argmax"].mean() if job.tokenizer is None else None,
    }


def _compare(scorer: Scorer, reader: SequenceReader, file: Path, number: int) -> pl.DataFrame:
    """The stored scores of one sequence beside those of `scorer`."""
    import numpy as np
    import polars as pl

    first, ids, offsets = reader.read(number // scorer.job.sequences_per_part)
    chosen = ids[offsets[number - first] : offsets[number - first + 1]]
    exact = scorer.score_sequences(chosen, np.array([0, len(chosen)]))
    stored = pl.read_parquet(file, glob=False, columns=["sequence", "position", "nll", "argmax"]).filter(pl.col("sequence") == number)
    return stored.select(
        "sequence",
        "position",
        difference=(pl.col("nll").cast(pl.Float64) - pl.Series(exact.nll.astype(np.float64))).abs(),
        same_argmax=pl.col("argmax") == pl.Series(exact.argmax),
    )
