"""recallkit: where the gap between an efficient language model and an attention model lies, in
associative recall or elsewhere.

The stages are functions here, with the names and the options of the command line (docs/python.md):

    import recallkit

    recallkit.slice("valid.jsonl.zst", counts="counts.duckdb", out="slices")
    tables = recallkit.gap("path/to/attention", ["path/to/mamba"], slices="slices")

Nothing but this file, `config` and `errors` is imported before a function is used: the command line
and every process that scores import this package, too.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from recallkit.config import VERSION as __version__  # noqa: N811 - the name that Python expects
from recallkit.errors import UserError

if "OMP_WAIT_POLICY" not in os.environ:
    # How often OpenMP's threads, torch's among them, look for work before they sleep; read when
    # torch is imported. Their own 300,000 times keep a core busy that other programs need: scoring
    # then takes three times as much CPU time (docs/benchmarks.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from recallkit.ablation.tables import AblationTables
    from recallkit.attribution.comparison import Comparison
    from recallkit.attribution.tables import GapTables
    from recallkit.commands.causal import ablate, intervene
    from recallkit.commands.gap import gap, paper_table, published, read_comparison, track
    from recallkit.commands.recall import build_rows, eval_mqar, eval_recall, eval_stock
    from recallkit.commands.results import figures, token_texts, tokens, verify, write_report
    from recallkit.commands.score import check_scores, score
    from recallkit.commands.text import bigrams, count, profile, zoo_counts
    from recallkit.commands.text import slice_ as slice  # noqa: A004  (a name of this package, not of any module's own scope)
    from recallkit.commands.train import train
    from recallkit.display.notebook import Summary
    from recallkit.intervening.tables import InterveneTables
    from recallkit.models.spec import ModelSpec
    from recallkit.mqar.tables import MqarTables
    from recallkit.papers.arithmetic import PublishedGap
    from recallkit.profiling.tables import ProfileTables
    from recallkit.recall.tables import RecallTables
    from recallkit.tracking.live import Tracker
    from recallkit.tracking.tables import TrackTables
    from recallkit.training.tables import TradeoffTables, TrainingTables

__all__ = [
    "AblationTables",
    "Comparison",
    "GapTables",
    "InterveneTables",
    "ModelSpec",
    "MqarTables",
    "ProfileTables",
    "PublishedGap",
    "RecallTables",
    "Summary",
    "TrackTables",
    "Tracker",
    "TradeoffTables",
    "TrainingTables",
    "UserError",
    "__version__",
    "ablate",
    "bigrams",
    "build_rows",
    "check_scores",
    "count",
    "eval_mqar",
    "eval_recall",
    "eval_stock",
    "figures",
    "gap",
    "intervene",
    "paper_table",
    "profile",
    "published",
    "read_comparison",
    "score",
    "slice",
    "token_texts",
    "tokens",
    "track",
    "train",
    "verify",
    "write_report",
    "zoo_counts",
]

_PLACES = {
    "recallkit.ablation.tables": ("AblationTables",),
    "recallkit.attribution.comparison": ("Comparison",),
    "recallkit.papers.arithmetic": ("PublishedGap",),
    "recallkit.attribution.tables": ("GapTables",),
    "recallkit.commands.causal": ("ablate", "intervene"),
    "recallkit.commands.gap": ("gap", "paper_table", "published", "read_comparison", "track"),
    "recallkit.commands.recall": ("build_rows", "eval_mqar", "eval_recall", "eval_stock"),
    "recallkit.commands.results": ("figures", "token_texts", "tokens", "verify", "write_report"),
    "recallkit.commands.score": ("check_scores", "score"),
    "recallkit.commands.text": ("bigrams", "count", "profile", "slice", "zoo_counts"),
    "recallkit.commands.train": ("train",),
    "recallkit.display.notebook": ("Summary",),
    "recallkit.intervening.tables": ("InterveneTables",),
    "recallkit.models.spec": ("ModelSpec",),
    "recallkit.mqar.tables": ("MqarTables",),
    "recallkit.profiling.tables": ("ProfileTables",),
    "recallkit.recall.tables": ("RecallTables",),
    "recallkit.tracking.live": ("Tracker",),
    "recallkit.tracking.tables": ("TrackTables",),
    "recallkit.training.tables": ("TradeoffTables", "TrainingTables"),
}
"""Where each public name is defined."""

_MODULES = {name: module for module, names in _PLACES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would conclude from it that every name exists

    def __getattr__(name: str) -> object:
        """The names in `__all__`, imported when they are first used."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(
            import_module(_MODULES[name]), "slice_" if name == "slice" else name
        )
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
