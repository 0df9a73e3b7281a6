"""The embedded default: text that every Python installation holds, sliced once in the user's cache folder, and models for it.

What `count`, `slice`, `score`, `gap` and `demo` use when they are given nothing, so that each answers with nothing
downloaded and nothing prepared. Counts are those of the very tokens that the models of the zoo were trained on.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from recallkit import __version__, attribution, config, counting, slicing
from recallkit.errors import UsageError
from recallkit.models import zoo
from recallkit.storage import artifacts
from recallkit.text.open_text import TextOptions
from recallkit.text.tokenizers import BUILTIN

TRAINING_TEXT = TextOptions(("demo:train",), "train")
WHOLE_VALIDATION_TEXT = TextOptions(("demo:validation",), "validation")
VALIDATION_TEXT = replace(WHOLE_VALIDATION_TEXT, limit_tokens=100_000)
"""A sample, for the documents of the demo text come in the order of a hash: soon scored by all models of the zoo."""

MODELS = tuple(f"{zoo.PREFIX}{name}" for name in zoo.ARCHITECTURES)
"""The reference first: what `gap` compares when no model is named."""

RECALL_MODELS = ("control:copy", "control:recall", "control:unigram")
"""What `eval-recall` compares when no model is named: one that copies, one that completes bigrams, one that sees no context."""

LIKELIHOOD_MODELS = RECALL_MODELS[1:]
"""Those of them that give likelihoods, which lm-eval's own tasks need."""

RARE = slicing.RareCount(5)
"""5 occurrences in the 3 million tokens of the zoo's training, 1,667 a billion. The papers' 125 a billion would be none."""

_LAYOUT = 2
"""Of what is kept in the cache folder: 2, slices with `match_length`."""


def folder() -> Path:
    """Where it lies: a folder of its own for every set of installed packages, whose READMEs are part of the text."""
    installed = sorted({(d.metadata["Name"] or "", d.version or "") for d in distributions()})
    shipped = artifacts.digest_file(zoo.TRAINING_BIGRAMS)
    made_by = [__version__, config.SCHEMA_VERSION, _LAYOUT, sys.version]
    return config.home() / "demo" / artifacts.digest_json([*made_by, installed, shipped])[:12]


def counts(*, force: bool = False) -> Path:
    """The counts table of the zoo's training tokens, made if it is not there, or with `force`."""
    path = folder() / "zoo-counts.duckdb"
    if force or not path.exists():
        counting.import_counts(zoo.TRAINING_BIGRAMS, path, tokenizer=BUILTIN, num_tokens=None, boundary="pack", force=force)
    return path


def slices(*, force: bool = False) -> Path:
    """The slice directory of the validation text, made if it is not there, or with `force`."""
    path = folder() / "slices"
    if force or not (path / "tokens.parquet").exists():
        slicing.slice_text(VALIDATION_TEXT, path, counts=counts(force=force), rare=RARE, seq_len=config.BUILTIN_SEQ_LEN, force=force)
    return path


def comparison(slices_folder: Path | None = None) -> Path:
    """The folder of the comparison of the zoo's models, on the embedded slices unless others are given; made as far as it is not there."""
    compared_on = slices_folder or slices()
    attribution.gap(MODELS[0], MODELS[1:], compared_on)
    return attribution.gap_path(compared_on, MODELS[0], MODELS[1:])


# ------------------------------------------------------------------------------------- what is meant where nothing is said


def what_to_count(text: TextOptions, *, only: Path | None = None, out: Path | None = None) -> tuple[TextOptions, Path]:
    """The text that `count` reads and the file it writes; a text without sources is the embedded one.

    Without `out` the whole embedded text is counted in the cache folder, any other text here.
    """
    text = replace(text, sources=tuple(text.sources) or TRAINING_TEXT.sources, default_split=TRAINING_TEXT.default_split)
    is_embedded = text == TRAINING_TEXT and only is None
    return text, out or (folder() / "counts.duckdb" if is_embedded else Path("counts.duckdb"))


@dataclass(frozen=True, slots=True)
class Slicing:
    """What `slicing.slice_text` takes."""

    text: TextOptions
    out: Path
    counts: Path | None
    rare: slicing.RareCount
    seq_len: int

    def run(self, *, force: bool = False) -> dict[str, Any]:
        """Labels the text; returns the manifest of `tokens.parquet`. Raises UserError for everything a user can mend."""
        return slicing.slice_text(self.text, self.out, counts=self.counts, rare=self.rare, seq_len=self.seq_len, force=force)


def what_to_slice(
    text: TextOptions,
    *,
    out: Path | None = None,
    counts_file: Path | None = None,
    max_count: int | None = None,
    max_rate: float | None = None,
    seq_len: int | None = None,
    name: str = "slices",
    usual: bool = True,
) -> Slicing:
    """What `slice` (and `profile`, by its `name`) reads and writes; a text without sources is the embedded one.

    The embedded text in its own tokens is read as the zoo reads it: its sequences, the counts of its training, what is
    rare among those. With nothing else given (`usual`: nor any option that is not named here) it is the sample that the
    zoo is compared on, in the cache folder. Raises UserError where both a count and a rate are given, and for a rate that
    is no number.
    """
    if max_count is not None and max_rate is not None:
        raise UsageError("two thresholds", where="--max-count and --max-rate", remedy="give one of them")
    if max_rate is not None and not 0 <= max_rate < config.MOST:
        raise UsageError(f"{max_rate} occurrences a billion tokens", where="--max-rate", remedy="give a number of occurrences")
    is_ours = not text.sources and text.tokenizer is None
    text = replace(text, sources=tuple(text.sources) or VALIDATION_TEXT.sources, default_split=VALIDATION_TEXT.default_split)
    given = (counts_file, max_count, max_rate, seq_len)
    is_sample = usual and given == (None,) * len(given) and text == WHOLE_VALIDATION_TEXT
    rare = slicing.RareCount(config.MAX_COUNT if max_count is None else max_count, max_rate)
    if is_ours and given[:3] == (None, None, None):
        rare = RARE
    return Slicing(
        text=VALIDATION_TEXT if is_sample else text,
        out=out or (folder() / name if is_sample else Path(name)),
        counts=counts() if counts_file is None and is_ours else counts_file,
        rare=rare,
        seq_len=seq_len if seq_len is not None else config.BUILTIN_SEQ_LEN if is_ours or is_sample else config.SEQ_LEN,
    )


def results_folder(name: str, out: Path | None, *, is_embedded: bool) -> Path:
    """Where an evaluation writes: `out`, else `name` in the cache for the embedded tasks and models, else `name` here."""
    return out or (folder() / name if is_embedded else Path(name))
