"""The embedded default: text that every Python installation holds, counted and sliced once in the user's cache folder.

What `count`, `slice`, `score`, `gap` and `demo` use when they are given nothing, so that each answers with nothing
downloaded and nothing prepared.
"""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from typing import TYPE_CHECKING

from recallkit import __version__, artifacts, config, pipeline

if TYPE_CHECKING:
    from pathlib import Path

TRAINING_TEXT = pipeline.TextOptions(("demo:train",), "train")
VALIDATION_TEXT = pipeline.TextOptions(("demo:validation",), "validation")

MODELS = ("control:recall", "control:bigram", "control:unigram")
"""The reference first: what `gap` compares when no model is named."""

RECALL_MODELS = ("control:copy", "control:recall", "control:unigram")
"""What `eval-recall` compares when no model is named: one that copies, one that completes bigrams, one that sees no context."""

RARE = pipeline.RareCount(5)
"""5 occurrences in the 4 million tokens of the embedded training text: 1,250 a billion. The papers' 125 would be none."""


def folder() -> Path:
    """Where it lies: a folder of its own for every set of installed packages, whose READMEs are part of the text."""
    installed = sorted({(d.metadata["Name"] or "", d.version or "") for d in distributions()})
    return config.home() / "demo" / artifacts.digest_json([__version__, config.SCHEMA_VERSION, sys.version, installed])[:12]


def counts() -> Path:
    """The counts table of the training text, made if it is not there."""
    path = folder() / "counts.duckdb"
    if not path.exists():
        pipeline.count(TRAINING_TEXT, path)
    return path


def slices() -> Path:
    """The slice directory of the validation text, made if it is not there."""
    path = folder() / "slices"
    if not (path / "tokens.parquet").exists():
        pipeline.slice_text(VALIDATION_TEXT, path, counts=counts(), rare=RARE)
    return path
