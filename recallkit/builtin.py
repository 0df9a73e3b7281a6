"""The built-in default: text that every Python installation contains, sliced once in the user's cache folder, and models for it.

`count`, `slice`, `score`, `gap` and `demo` use it when no input is given, so that each works with nothing downloaded
and nothing prepared. The counts are those of the same tokens that the models of the zoo were trained on.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from recallkit import config, counting, slicing
from recallkit.config import VERSION
from recallkit.errors import UsageError
from recallkit.models import zoo
from recallkit.storage import artifacts
from recallkit.text.open_text import TextOptions
from recallkit.text.tokenizers import BUILTIN

TRAINING_TEXT = TextOptions(("demo:train",), "train")
VALIDATION_TEXT = TextOptions(("demo:validation",), "validation")
SAMPLE_TEXT = TextOptions(("demo:sample",), "validation")
"""A passage of each document of the validation text, which all models of the zoo score quickly."""

MODELS = tuple(f"{zoo.PREFIX}{name}" for name in zoo.shipped())
"""The models that `gap` compares by default, the reference first."""

RECALL_MODELS = ("control:copy", "control:recall", "control:unigram")
"""The models that `eval-recall` compares by default: one copies, one completes bigrams, one sees no context."""

LIKELIHOOD_MODELS = RECALL_MODELS[1:]
"""Those of them that have likelihoods, which lm-eval's own tasks need."""

_LAYOUT = 3
"""Version of the cache folder's contents; since 2, slices have `match_length`, since 3 they are of all documents."""


def folder() -> Path:
    """The cache folder of the built-in results: one per set of installed packages, whose READMEs are part of the text."""
    installed = sorted(set(map(_name_and_version, distributions())))
    shipped = artifacts.digest_file(zoo.TRAINING_BIGRAMS)
    made_by = [VERSION, config.SCHEMA_VERSION, _LAYOUT, sys.version]
    return config.home() / "demo" / artifacts.digest_json([*made_by, installed, shipped])[:12]


def _name_and_version(distribution: Distribution) -> tuple[str, str]:
    """These two headers, empty where they are missing or broken: to parse all the metadata of a hundred packages takes 0.2 s."""
    try:
        text = next(filter(None, map(distribution.read_text, ("METADATA", "PKG-INFO", ""))), "")
    except (OSError, ValueError):
        return "", ""
    headers = text.partition("\n\n")[0]
    found = (re.search(rf"^{name}:[ \t]*(.*)$", headers, re.MULTILINE | re.IGNORECASE) for name in ("Name", "Version"))
    name, version = ("" if header is None else header[1] for header in found)
    return name, version


def page() -> Path:
    """The page of the built-in comparison: under a short path, which people open."""
    return config.home() / "demo.html"


def counts(*, force: bool = False) -> Path:
    """The counts table of the zoo's training tokens, made if it is missing, or with `force`."""
    path = folder() / "zoo-counts.duckdb"
    if force or not path.exists():
        counting.import_counts(zoo.TRAINING_BIGRAMS, path, tokenizer=BUILTIN, num_tokens=None, boundary="pack", force=force)
    return path


def slices(*, force: bool = False) -> Path:
    """The slice directory of the sample, made if it is missing, or with `force`."""
    path = folder() / "slices"
    if force or not (path / "tokens.parquet").exists():
        slicing.slice_text(SAMPLE_TEXT, path, counts=counts(force=force), seq_len=config.BUILTIN_SEQ_LEN, force=force, quiet=True)
    return path


def comparison(slices_folder: Path | None = None) -> Path:
    """The folder of the comparison of the zoo's models, on the built-in slices by default; makes what is missing."""
    from recallkit import attribution

    compared_on = slices_folder or slices()
    attribution.gap(MODELS[0], MODELS[1:], compared_on)
    return attribution.gap_path(compared_on, MODELS[0], MODELS[1:])


# ---------------------------------------------------------------------------------------------- defaults of the commands


def resolve_count_defaults(text: TextOptions, out: Path | None, *, is_builtin: bool) -> tuple[TextOptions, Path]:
    """The text that `count` reads and the file that it writes; a text without sources is the built-in one.

    Without `out` it is a file here, or, if nothing else is given (`is_builtin`), one in the cache folder.
    """
    text = replace(text, sources=tuple(text.sources) or TRAINING_TEXT.sources, default_split=TRAINING_TEXT.default_split)
    return text, results_folder("counts.duckdb", out, is_builtin=is_builtin)


@dataclass(frozen=True, slots=True)
class Slicing:
    """The arguments of `slicing.slice_text`."""

    text: TextOptions
    out: Path
    counts: Path | None
    rare: slicing.RareCount
    seq_len: int

    def run(self, *, force: bool = False) -> dict[str, Any]:
        """Labels the text; returns the manifest of `tokens.parquet`. Raises UserError for everything a user can correct."""
        return slicing.slice_text(self.text, self.out, counts=self.counts, rare=self.rare, seq_len=self.seq_len, force=force)


def resolve_slice_defaults(
    text: TextOptions,
    *,
    out: Path | None = None,
    counts_file: Path | None = None,
    max_count: int | None = None,
    max_rate: float | None = None,
    seq_len: int | None = None,
    is_sample: bool = False,
    name: str = "slices",
) -> Slicing:
    """What `slice` (and `profile`, by its `name`) reads and writes; a text without sources is the built-in one.

    With its own tokenizer, the built-in text is read as the models of the zoo read it: in sequences of their length, with the
    counts of their training text. If nothing at all was given (`is_sample`), it is the
    sample that the zoo is compared on, in the cache folder. Raises UsageError if both a count and a rate are given, and for
    a rate that is not a number.
    """
    if max_count is not None and max_rate is not None:
        raise UsageError("two thresholds", where="--max-count and --max-rate", remedy="give one of them")
    if max_rate is not None and not 0 <= max_rate < config.MOST:
        raise UsageError(f"{max_rate} occurrences per billion tokens", where="--max-rate", remedy="give a number of occurrences")
    is_ours = not text.sources and text.tokenizer is None
    text = replace(text, sources=tuple(text.sources) or VALIDATION_TEXT.sources, default_split=VALIDATION_TEXT.default_split)
    return Slicing(
        text=SAMPLE_TEXT if is_sample else text,
        out=results_folder(name, out, is_builtin=is_sample),
        counts=counts() if counts_file is None and is_ours else counts_file,
        rare=slicing.RareCount(max_count, max_rate),
        seq_len=seq_len if seq_len is not None else config.BUILTIN_SEQ_LEN if is_ours else config.SEQ_LEN,
    )


def results_folder(name: str, out: Path | None, *, is_builtin: bool) -> Path:
    """The folder of results: `out`, else `name` in the cache for built-in input, else `name` here."""
    return out or (folder() / name if is_builtin else Path(name))
