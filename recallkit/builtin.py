"""The built-in default: the shipped text, sliced once in the user's cache folder, and models for
it.

`count`, `slice`, `score`, `gap` and `demo` use it when no input is given, so that each works with
nothing downloaded and nothing prepared. The counts are those of the same tokens that the models of
the zoo were trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit import config, counting, slicing
from recallkit.config import VERSION
from recallkit.counting.infini_gram import index_named
from recallkit.declarations import path
from recallkit.display import console
from recallkit.errors import UsageError
from recallkit.models import zoo
from recallkit.models.spec import list_models
from recallkit.options import LabelledTextOptions, TextOptions
from recallkit.storage import hashing
from recallkit.text import demo_text
from recallkit.text.tokenizers import BUILTIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.declarations import File
    from recallkit.models.spec import ModelSpec
    from recallkit.options import AnyModels

TRAINING_TEXT = TextOptions("demo:train")
VALIDATION_TEXT = TextOptions("demo:validation")

MODELS = tuple(f"{zoo.PREFIX}{name}" for name in zoo.shipped())
"""The models that `gap` compares by default, the reference first."""

RECALL_MODELS = ("control:copy", "control:recall", "control:unigram")
"""The models that `eval-recall` compares by default: one copies, one completes bigrams, one sees no
context."""

LIKELIHOOD_MODELS = RECALL_MODELS[1:]
"""Those of them that have likelihoods, which lm-eval's own tasks need."""

_LAYOUT = 3
"""Version of the cache folder's contents; since 2, slices have `match_length`, since 3 they are of
all documents."""


def folder() -> Path:
    """The cache folder of the built-in results: one per version of the program, of its schema, and
    of what is shipped."""
    shipped = [hashing.digest_file(path) for path in (zoo.TRAINING_BIGRAMS, demo_text.SHIPPED)]
    return (
        config.home()
        / "demo"
        / hashing.digest_json([VERSION, config.SCHEMA_VERSION, _LAYOUT, *shipped])[:12]
    )


def page() -> Path:
    """The page of the built-in comparison: under a short path, which people open."""
    return config.home() / "demo.html"


def counts(*, force: bool = False) -> Path:
    """The counts table of the zoo's training tokens, made if it is missing, or with `force`."""
    file = folder() / "zoo-counts.duckdb"
    if force or not file.exists():
        counting.import_counts(
            zoo.TRAINING_BIGRAMS,
            file,
            tokenizer=BUILTIN,
            num_tokens=None,
            boundary="pack",
            force=force,
        )
    return file


def slices(*, force: bool = False) -> Path:
    """The slice directory of the validation text, made if it is missing, or with `force`."""
    directory = folder() / "slices"
    if force or not (directory / "tokens.parquet").exists():
        slicing.slice_text(
            VALIDATION_TEXT,
            directory,
            counts=counts(force=force),
            seq_len=config.BUILTIN_SEQ_LEN,
            force=force,
        )
    return directory


def named_slices(directory: File | None, models: Sequence[ModelSpec] = ()) -> Path:
    """The slice directory that is named, else the built-in one, which is said where a model is not
    made for it."""
    if directory is None and not all(
        spec.location.startswith((zoo.PREFIX, "control:")) for spec in models
    ):
        console.note("no --slices: this is measured on the built-in text of 100k tokens")
    return path(directory) or slices()


def comparison_path() -> Path:
    """The folder of the comparison of the zoo's models on the built-in slices, whether it is there
    or not."""
    from recallkit import attribution

    return attribution.gap_path(folder() / "slices", MODELS[0], MODELS[1:])


def comparison() -> Path:
    """The same folder, which `demo` wrote. Raises UsageError where it has not: nothing is scored
    for it."""
    results = comparison_path()
    if not (results / "gap.parquet").is_file():
        remedy = "name a folder that `gap` wrote, such as slices, or run `recallkit demo` first"
        raise UsageError("no results are named", where="DIR", remedy=remedy)
    return results


# ------------------------------------------------------------------------- defaults of the commands


@dataclass(frozen=True, slots=True)
class Slicing:
    """The arguments of `slicing.slice_text`."""

    text: TextOptions
    out: Path
    counts: Path | str | None
    rare: slicing.RareCount
    seq_len: int


def resolve_slice_defaults(
    options: LabelledTextOptions, out: Path | None = None, *, is_builtin: bool, name: str = "slices"
) -> Slicing:
    """What `slice` (and `profile`, by its `name`) reads and writes; a text without sources is the
    built-in one.

    With its own tokenizer, the built-in text is read as the models of the zoo read it: in sequences
    of their length, with the counts of their training text. Without any option (`is_builtin`), the
    result is in the cache folder.
    """
    is_ours = not options.source_names and options.tokenizer is None
    usual_length = config.BUILTIN_SEQ_LEN if is_ours else config.SEQ_LEN
    return Slicing(
        text=or_builtin(options, VALIDATION_TEXT),
        out=results_folder(name, out, is_builtin=is_builtin),
        counts=counts()
        if options.counts is None and is_ours
        else index_named(options.counts) or path(options.counts),
        rare=slicing.RareCount(options.max_count, options.max_rate),
        seq_len=usual_length if options.seq_len is None else options.seq_len,
    )


def or_builtin(options: TextOptions, builtin: TextOptions) -> TextOptions:
    """The same text, or a built-in one where no source is named."""
    return options if options.source_names else replace(options, sources=builtin.sources)


def named_models(
    models: AnyModels | None, default: Sequence[str] = MODELS
) -> tuple[ModelSpec, ...]:
    """The models that are named, else those of `default`. Raises UsageError if there are none, and
    for what is not a model."""
    specs = list_models(list(default) if models is None else models)
    if not specs:
        raise UsageError(
            "no model is named",
            where="MODEL",
            remedy="name one, or leave it out for the built-in ones",
        )
    return specs


def results_folder(name: str, out: Path | None, *, is_builtin: bool) -> Path:
    """The folder of results: `out`, else `name` in the cache for built-in input, else `name`
    here."""
    return out or (folder() / name if is_builtin else Path(name))
