"""Standard errors and paired differences of accuracies: percentile bootstrap over documents.

Several rows may query one document and are then dependent, so documents are resampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recallkit.attribution.bootstrap import percentile_interval, resample_totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


@dataclass(frozen=True, slots=True)
class AccuracyIntervals:
    """Accuracies of m models, the first of which is the reference: float64 (m,), bounds (2, m) of 95 % percentile intervals.

    Accuracies are fractions of rows. NaN if resampling is uninformative: for one document, or if all resamples agree.
    """

    standard_error: np.ndarray
    bounds: np.ndarray
    difference_error: np.ndarray
    difference_bounds: np.ndarray


def accuracy_intervals(contains: np.ndarray, documents: Sequence[str], num_resamples: int = 2000, seed: int = 0) -> AccuracyIntervals:
    """Intervals of the share of true values in each column of `contains` bool (n, m), row i being of `documents[i]`.

    One set of resamples serves all models, so that differences to the first column are paired.
    """
    import numpy as np

    _, places = np.unique(np.array(documents), return_inverse=True)
    rows = np.column_stack([np.ones(len(places)), contains.astype(np.float64)])
    sums = np.zeros((places.max(initial=-1) + 1, rows.shape[1]))
    np.add.at(sums, places, rows)
    totals = resample_totals(sums, num_resamples, seed)
    accuracies = totals[:, 1:] / totals[:, :1]
    differences = accuracies - accuracies[:, :1]
    return AccuracyIntervals(*spread(accuracies), *spread(differences))


def spread(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviation (m,) and bounds (2, m) of the columns of samples (num_resamples, m); NaN if all are equal."""
    import numpy as np

    known = np.where(np.ptp(samples, axis=0) > 1e-12, 1.0, np.nan)
    return samples.std(axis=0, ddof=1) * known, np.stack(percentile_interval(samples)) * known
