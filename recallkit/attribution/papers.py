"""The tables that the papers print, as data: figures only, one CSV per table in `recallkit/data/papers`, with the digits as printed."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit.errors import UserError

if TYPE_CHECKING:
    import polars as pl

TABLES = {
    "zoology:1": "perplexity of AR hits and other tokens on the Pile, and the share of the gap, at 125M and 360M parameters",
    "zoology:2": "the same of BaseConv with attention at selected positions",
    "zoology:3": "the same of Liquid S4",
    "zoology:4": "the same of all models, at 70M, 125M and 360M parameters",
    "zoology:5": "the same at 1.4B parameters",
    "based:1": "throughput, perplexity of AR hits and other tokens on the Pile, recall and common-sense accuracy",
    "based:2": "common-sense tasks",
    "based:3": "SuperGLUE with 0, 1 and 5 examples",
    "based:4": "perplexity of DNA at three sequence lengths",
    "based:5": "classification of DNA",
    "based:6": "ablations of Based: perplexities and recall",
    "yun:1": "copying by sparse pattern and layers, in both directions",
    "yun:2": "the same, causal",
}
"""Paper and number -> what the table is of: Zoology (arXiv 2312.04927), Based (2402.18668), and Yun et al. 2020 (2006.04862)."""

_NAME = re.compile(r"(zoology|based|yun):\S+")


def is_name(text: str) -> bool:
    """Whether a text names a paper's table (`zoology:4`), not a file."""
    return _NAME.fullmatch(text) is not None


def table_path(name: str) -> Path:
    """The CSV of a table. Raises UserError for one that is not there."""
    if name not in TABLES:
        raise UserError("no such table", where=name, remedy=f"give one of {', '.join(TABLES)}, or a file")
    return Path(str(resources.files("recallkit"))) / "data" / "papers" / f"{name.replace(':', '-')}.csv"


def read_table(name: str) -> pl.DataFrame:
    """A table with figures as numbers: perplexities, accuracies and shares in percent, an empty field null.

    Raises UserError for one that is not there.
    """
    import polars as pl

    return pl.read_csv(table_path(name), infer_schema_length=None)
