"""The mixers of a model that is scored, and the mean output of each over the text: what an ablation
by the mean puts in its place.

Means are of one pass with the model as it is, and stay beside its scores. Each sequence is read
alone, so that no mean is of padding; of a sequence that is longer than the model's context, ids
that several windows read count in each.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recallkit.display import console
from recallkit.display.progress import progress
from recallkit.models import ablation
from recallkit.models.live import evaluating
from recallkit.models.loading import load_model, warn_remote_code
from recallkit.scoring.identity import score_path
from recallkit.scoring.windows import longest_sequence
from recallkit.storage import hashing, parquet_files, schemas
from recallkit.storage.journal import Parts
from recallkit.storage.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recallkit.models.ablation import PlacedMixer
    from recallkit.scoring.plan import ScoringPlan

_LAYOUT = "mixer means"


@dataclass(frozen=True, slots=True)
class MixerMeans:
    """`by_mixer`: `PlacedMixer.key` -> float64 (d,). `digest`: of all of them."""

    by_mixer: Mapping[str, np.ndarray]
    digest: str


def find_mixers(plan: ScoringPlan, *, with_caches: bool = False) -> list[PlacedMixer]:
    """The mixers of a model, which is loaded to find them, on request with the bytes of their
    caches.

    Raises UserError for one that has none that can be replaced.
    """
    from recallkit.models.torch_model import TorchModel

    warn_remote_code(plan, console.note)
    with evaluating(plan.module):
        # Its vocabulary is checked where the model is scored.
        model = load_model(replace(plan, vocab_size=1, largest_id=None))
        placed = ablation.find_mixers(model)
        mixers = [replace(mixer, module=None, block=None) for mixer in placed]
        if not with_caches or not isinstance(model, TorchModel):
            return mixers
        limits = (longest_sequence(plan.slices), model.max_length, plan.window.context)
        caches = model.cache_bytes(min(limit for limit in limits if limit))
    return mixers if caches is None else ablation.with_caches(mixers, caches)


def mixer_means(plan: ScoringPlan) -> MixerMeans | None:
    """The means of the mixers' outputs, made where they are missing; None where no ablation needs
    them.

    Raises UserError for a model without mixers, and as scoring does.
    """
    if plan.ablation is None or not plan.ablation.needs_means:
        return None
    intact = plan.intact()
    folder = score_path(plan.slices, plan.spec).parent / "means"
    identity = intact.identity()
    path = folder / f"{hashing.digest_json(identity)}.parquet"
    result = Result(path, _LAYOUT, identity)
    if not result.is_complete():
        with evaluating(plan.module):
            _make(intact, result)
    rows = schemas.read_frame(path).to_dicts()
    means = {row["mixer"]: np.array(row["mean"], np.float64) for row in rows}
    digests = [[name, hashing.digest_arrays(mean)] for name, mean in means.items()]
    return MixerMeans(means, hashing.digest_json(digests))


def _make(plan: ScoringPlan, result: Result) -> None:
    import pyarrow as pa

    warn_remote_code(plan, console.note)
    with tempfile.TemporaryDirectory() as folder:
        scorer = plan.begun(Parts(Path(folder), "means")).open()
        parts = scorer.reader.num_parts()
        with (
            ablation.observe_means(scorer.model) as means,
            progress(f"means of {plan.where}", total=parts, unit="parts") as show,
        ):
            for part in range(parts):
                _, ids, offsets = scorer.reader.read(part)
                for start, stop in itertools.pairwise(offsets):
                    scorer.score_sequence(ids[start:stop])
                show(part + 1)
            rows = [{"mixer": name, "mean": mean.tolist()} for name, mean in means().items()]
    schema = schemas.arrow_schema(_LAYOUT)
    table = pa.Table.from_pylist(rows, schema)
    facts = {**result.stamp(), "model": plan.name}
    parquet_files.write_parquet(result.path, [table], schema, facts)
