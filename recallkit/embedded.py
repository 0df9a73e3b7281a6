"""The embedded default: text that every Python installation holds, sliced once in the user's cache folder, and models for it.

What `count`, `slice`, `score`, `gap` and `demo` use when they are given nothing, so that each answers with nothing
downloaded and nothing prepared. Counts are those of the very tokens that the models of the zoo were trained on.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import distributions
from typing import TYPE_CHECKING

from recallkit import __version__, artifacts, config, pipeline
from recallkit.models import zoo
from recallkit.stages.tokens import EMBEDDED
from recallkit.texts import TextOptions

if TYPE_CHECKING:
    from pathlib import Path

TRAINING_TEXT = TextOptions(("demo:train",), "train")
WHOLE_VALIDATION_TEXT = TextOptions(("demo:validation",), "validation")
VALIDATION_TEXT = replace(WHOLE_VALIDATION_TEXT, limit_tokens=100_000)
"""A sample, for the documents of the demo text come in the order of a hash: soon scored by all models of the zoo."""

MODELS = tuple(f"{zoo.PREFIX}{name}" for name in zoo.ARCHITECTURES)
"""The reference first: what `gap` compares when no model is named."""

RECALL_MODELS = ("control:copy", "control:recall", "control:unigram")
"""What `eval-recall` compares when no model is named: one that copies, one that completes bigrams, one that sees no context."""

RARE = pipeline.RareCount(5)
"""5 occurrences in the 3 million tokens of the zoo's training, 1,667 a billion. The papers' 125 a billion would be none."""


def folder() -> Path:
    """Where it lies: a folder of its own for every set of installed packages, whose READMEs are part of the text."""
    installed = sorted({(d.metadata["Name"] or "", d.version or "") for d in distributions()})
    shipped = artifacts.digest_file(zoo.TRAINING_BIGRAMS)
    return config.home() / "demo" / artifacts.digest_json([__version__, config.SCHEMA_VERSION, sys.version, installed, shipped])[:12]


def counts(*, force: bool = False) -> Path:
    """The counts table of the zoo's training tokens, made if it is not there, or with `force`."""
    path = folder() / "zoo-counts.duckdb"
    if force or not path.exists():
        pipeline.import_counts(zoo.TRAINING_BIGRAMS, path, tokenizer=EMBEDDED, num_tokens=None, boundary="pack", force=force)
    return path


def slices(*, force: bool = False) -> Path:
    """The slice directory of the validation text, made if it is not there, or with `force`."""
    path = folder() / "slices"
    if force or not (path / "tokens.parquet").exists():
        pipeline.slice_text(VALIDATION_TEXT, path, counts=counts(force=force), rare=RARE, seq_len=config.EMBEDDED_SEQ_LEN, force=force)
    return path
