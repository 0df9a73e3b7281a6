"""recallkit: where the gap between an efficient language model and an attention model lies, in associative recall or elsewhere.

The stages are functions here, with the names and the options of the command line (docs/python.md):

    import recallkit

    recallkit.slice("valid.jsonl.zst", counts="counts.duckdb", out="slices")
    tables = recallkit.gap("path/to/attention", ["path/to/mamba"], slices="slices")

Nothing but this file, `config` and `errors` is imported before a function is asked for: the command line and every process that
scores import this package, too.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from recallkit.config import VERSION as __version__  # noqa: N811 - the name that Python expects
from recallkit.errors import UserError

if "OMP_WAIT_POLICY" not in os.environ:
    # How often OpenMP's threads, torch's among them, look for work before they sleep; read when torch is imported. Their own 300,000
    # times keep a core busy that other programs need: scoring then takes three times as much CPU time (tests/benchmarks/waiting.py).
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from recallkit.ablation.tables import AblationTables
    from recallkit.attribution.comparison import Comparison
    from recallkit.attribution.published import PublishedGap
    from recallkit.attribution.tables import GapTables
    from recallkit.commands.ablate import ablate
    from recallkit.commands.build_rows import build_rows
    from recallkit.commands.count import bigrams, count, zoo_counts
    from recallkit.commands.eval_recall import eval_recall, eval_stock
    from recallkit.commands.gap import gap, read_comparison
    from recallkit.commands.intervene import intervene
    from recallkit.commands.mqar import eval_mqar
    from recallkit.commands.profile import profile
    from recallkit.commands.published import paper_table, published
    from recallkit.commands.report import figures, write_report
    from recallkit.commands.score import check_scores, score
    from recallkit.commands.slice import slice_ as slice  # noqa: A004  (a name of this package, not of any module's own scope)
    from recallkit.commands.tokens import token_texts, tokens
    from recallkit.commands.track import track
    from recallkit.commands.train_mqar import train_mqar
    from recallkit.commands.verify import verify
    from recallkit.intervening.tables import InterveneTables
    from recallkit.models.spec import ModelSpec
    from recallkit.mqar.tables import MqarTables
    from recallkit.profiling.tables import ProfileTables
    from recallkit.recall.tables import RecallTables
    from recallkit.tracking.live import Tracker
    from recallkit.tracking.tables import TrackTables
    from recallkit.training.tables import TradeoffTables

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
    "TrackTables",
    "Tracker",
    "TradeoffTables",
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
    "train_mqar",
    "verify",
    "write_report",
    "zoo_counts",
]

_PLACES = {
    "recallkit.ablation.tables": ("AblationTables",),
    "recallkit.attribution.comparison": ("Comparison",),
    "recallkit.attribution.published": ("PublishedGap",),
    "recallkit.attribution.tables": ("GapTables",),
    "recallkit.commands.ablate": ("ablate",),
    "recallkit.commands.count": ("bigrams", "count", "zoo_counts"),
    "recallkit.commands.eval_recall": ("eval_recall", "eval_stock"),
    "recallkit.commands.build_rows": ("build_rows",),
    "recallkit.commands.gap": ("gap", "read_comparison"),
    "recallkit.commands.intervene": ("intervene",),
    "recallkit.commands.mqar": ("eval_mqar",),
    "recallkit.commands.profile": ("profile",),
    "recallkit.commands.published": ("paper_table", "published"),
    "recallkit.commands.report": ("figures", "write_report"),
    "recallkit.commands.score": ("check_scores", "score"),
    "recallkit.commands.slice": ("slice",),
    "recallkit.commands.tokens": ("token_texts", "tokens"),
    "recallkit.commands.track": ("track",),
    "recallkit.commands.train_mqar": ("train_mqar",),
    "recallkit.commands.verify": ("verify",),
    "recallkit.intervening.tables": ("InterveneTables",),
    "recallkit.models.spec": ("ModelSpec",),
    "recallkit.mqar.tables": ("MqarTables",),
    "recallkit.profiling.tables": ("ProfileTables",),
    "recallkit.recall.tables": ("RecallTables",),
    "recallkit.tracking.live": ("Tracker",),
    "recallkit.tracking.tables": ("TrackTables",),
    "recallkit.training.tables": ("TradeoffTables",),
}
"""Where each public name is defined."""

_MODULES = {name: module for module, names in _PLACES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would conclude from it that every name exists

    def __getattr__(name: str) -> object:
        """The names in `__all__`, imported when they are first used."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found: object = getattr(import_module(_MODULES[name]), "slice_" if name == "slice" else name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
