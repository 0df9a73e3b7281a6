"""What models recall by association in AR hits, for commands that ask it of every model that they score: two of `intervene`'s changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.intervening.changed_text import ChangedText, make_changed_text
from recallkit.intervening.changes import BY_ASSOCIATION
from recallkit.intervening.sampling import that_repeat
from recallkit.intervening.tables import read_nlls
from recallkit.measure.intervals import NUM_RESAMPLES, effective_number, freedom_of, group_numbers, resample_totals
from recallkit.options import InterventionOptions
from recallkit.scoring import plan_scores, score_path
from recallkit.slicing.definitions import SLICES, parse_slices
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.measure.labelled import LabelledTokens
    from recallkit.models.spec import ModelSpec
    from recallkit.options import ScoringOptions

SAMPLES = 500
"""AR hits that are sampled; the changed text is about as long as the built-in one."""

CLEAN_HITS = "clean_ar_hit=ar_hit AND in_training = 0"


def as_scored(scoring: ScoringOptions, found: Mapping[str, Any]) -> ScoringOptions:
    """The options by which changed text is read as the text was, whose scores have the options `found`."""
    window = {name: found[name] for name in ("context", "stride", "carry_state") if name in found}
    return replace(scoring, dtype=found.get("dtype") or scoring.dtype, **window)


@dataclass(frozen=True)
class AskedHits:
    """A sample of n AR hits of a text, and the changed text in which they are read again."""

    tokens: LabelledTokens
    changed: ChangedText
    asked: pl.DataFrame

    @classmethod
    def of(cls, tokens: LabelledTokens, counts: Path | None, samples: int = SAMPLES, *, clean: bool = False) -> AskedHits:
        """Makes the changed text, where there is none yet; `clean`: of hits that are not known to be in the training text.

        Raises UserError as `make_changed_text` does.
        """
        [hits] = parse_slices([CLEAN_HITS], without=()) if clean else [SLICES["ar_hit"]]
        changed = make_changed_text(tokens, [that_repeat(hits)], InterventionOptions(samples=samples), counts, Timings(), BY_ASSOCIATION)
        return cls(tokens, changed, changed.samples.filter(excluded=""))

    def score(
        self, spec: ModelSpec, scoring: ScoringOptions, manifest: Mapping[str, Any], *, force: bool = False, quiet: bool = False
    ) -> None:
        """Scores the changed text as the text was scored, whose scores have this manifest."""
        plan_scores([spec], self.changed.folder, as_scored(scoring, manifest["options"]), force=force, quiet=quiet)[0].run()

    def path(self, spec: ModelSpec) -> Path:
        """Where the scores of the changed text are."""
        return score_path(self.changed.folder, spec)

    def recalled(self, scores: Sequence[Path], of_changed: Sequence[Path]) -> np.ndarray:
        """The nats that each of m models recalls of each hit, float64 (n, m): what `moved` costs less what `moved_placebo` does."""
        _, after = read_nlls(self.asked, self.tokens, self.changed, list(zip(scores, of_changed, strict=True)), BY_ASSOCIATION)
        recalled: np.ndarray = after["moved"] - after["moved_placebo"]
        return recalled

    def means(self, recalled: np.ndarray, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> np.ndarray:
        """The weighted means of `recalled` (n, m), float64 (1 + r, m): of the sample, then of its resampled documents."""
        documents, place = np.unique(self.asked["document"].to_numpy(), return_inverse=True)
        group, weight = group_numbers(len(documents))[place], self.asked["weight"].to_numpy()[:, None]
        sums = np.zeros((group.max() + 1, 1 + recalled.shape[1]))
        np.add.at(sums, group, weight * np.column_stack([np.ones(len(recalled)), recalled]))
        totals = np.vstack([sums.sum(axis=0), *resample_totals([sums], num_resamples, seed)])
        found: np.ndarray = totals[:, 1:] / totals[:, :1]
        return found

    @property
    def documents(self) -> tuple[int, float, float]:
        """The documents with asked hits: their number, effective number and degrees of freedom (`measure.intervals`)."""
        _, place = np.unique(self.asked["document"].to_numpy(), return_inverse=True)
        sizes = np.bincount(place, self.asked["weight"].to_numpy())
        return len(sizes), float(effective_number(sizes)), float(freedom_of(sizes))
