"""The mean output of every mixer of a model over the text of a slice directory: what an ablation by the mean puts in its place.

One pass with the model as it is, kept beside its scores. Each sequence is read alone, so that no mean is of padding; of a sequence that is
longer than the model's context, ids that several windows read count in each.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display.progress import progress
from recallkit.models.ablation import observe_means
from recallkit.storage import artifacts, schemas
from recallkit.storage.journal import Parts
from recallkit.storage.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from recallkit.scoring.worker import ScoringJob

_LAYOUT = "mixer means"


@dataclass(frozen=True, slots=True)
class MixerMeans:
    """`by_mixer`: `PlacedMixer.key` -> float64 (d,). `digest`: of all of them."""

    by_mixer: Mapping[str, np.ndarray]
    digest: str


def mixer_means(folder: Path, identity: Mapping[str, Any], job: Callable[[Parts], ScoringJob]) -> MixerMeans:
    """The means of a model's mixers, made in `folder` where they are missing; `identity` and `job` are those of scoring it as it is.

    Raises UserError for a model without mixers, and as scoring does.
    """
    path = folder / f"{artifacts.digest_json(identity)}.parquet"
    result = Result(path, _LAYOUT, dict(identity))
    if not result.is_complete():
        _make(job, result)
    rows = schemas.read_frame(path).to_dicts()
    means = {row["mixer"]: np.array(row["mean"], np.float64) for row in rows}
    return MixerMeans(means, artifacts.digest_json([[name, artifacts.digest_arrays(mean)] for name, mean in means.items()]))


def _make(job: Callable[[Parts], ScoringJob], result: Result) -> None:
    import pyarrow as pa

    from recallkit.scoring.worker import Scorer

    with tempfile.TemporaryDirectory() as folder:
        scorer = Scorer(job(Parts(Path(folder), "means")))
        reader = scorer.job.reader()
        parts = reader.num_parts()
        with observe_means(scorer.model) as means, progress(f"means of {scorer.job.where}", total=parts, unit="parts") as show:
            for part in range(parts):
                _, ids, offsets = reader.read(part)
                for start, stop in itertools.pairwise(offsets):
                    scorer.score_sequences(ids[start:stop], np.array([0, stop - start]))
                show(part + 1)
            rows = [{"mixer": name, "mean": mean.tolist()} for name, mean in means().items()]
    schema = schemas.arrow_schema(_LAYOUT)
    artifacts.write_parquet(result.path, [pa.Table.from_pylist(rows, schema)], schema, {**result.stamp(), "model": scorer.job.request.name})
