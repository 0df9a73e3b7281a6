"""The slice directory on which `gap` compares models: one that is there, the built-in one, or one
that is made here of a text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.declarations import File, Options, amount, names, option, path
from recallkit.errors import UserError
from recallkit.options import CountingOptions, ScoringOptions, TextOptions

if TYPE_CHECKING:
    from recallkit.models.spec import ModelSpec
    from recallkit.text.sample import Sample

SAMPLE, ALL = "200k", "all"
COUNTS = "counts.duckdb"

_OTHER_FOLDER = "choose another folder with --slices DIR"
"""Nothing is replaced in a slice directory: scores in it may have taken days."""

AnyText = Any
"""Text as a user has it: the name of a source, or in Python texts themselves (a `datasets.Dataset`,
mappings with text and source)."""


def _sample(size: Any) -> Any:
    return ALL if size == ALL else amount(size)


@dataclass(frozen=True, kw_only=True)
class ComparedText(Options):
    """On which text models are compared: labelled already, or labelled first."""

    text: AnyText | Sequence[Any] | None = option(
        (
            "Compare on this text, a SOURCE of `recallkit slice`: label it in a slice directory, "
            "and write a page. May be repeated."
        ),
        metavar="SOURCE",
    )
    train: AnyText | Sequence[Any] | None = option(
        (
            "With --text: training text, whose bigrams are counted. Repeated bigrams that are rare "
            "in it are AR hits. May be repeated."
        ),
        metavar="SOURCE",
        needs="text",
        excludes=("counts",),
    )
    sample: int | str | None = option(
        (
            "With --text: draw whole documents at random, about N tokens in all, or read the whole "
            "text."
        ),
        metavar="N|all",
        parse=_sample,
        needs="text",
        default=SAMPLE,
    )
    slices: File | None = option(
        "With --text the slice directory to make, else the one to read.",
        metavar="DIR",
        default="slices with --text, else the built-in one",
    )

    @property
    def drawn(self) -> "Sample | None":
        """The sample of the text; None for all of it."""
        from recallkit.text.sample import Sample

        tokens = amount(SAMPLE) if self.sample is None else self.sample
        return None if tokens == ALL else Sample(int(tokens or 0), seed=0)


@dataclass(frozen=True, kw_only=True)
class ComparedTextOptions(ScoringOptions, ComparedText):
    """The same, with how models are run that read it."""


def slices_of(options: ComparedTextOptions, models: "Sequence[ModelSpec]") -> Path:
    """The slice directory on which these models are compared, the reference first; made where a
    text is named.

    Raises UserError for everything a user can correct, before text is counted where that is
    possible.
    """
    from recallkit import builtin
    from recallkit.storage.result import REPLACE

    if options.text is None:
        return builtin.named_slices(options.slices, models)
    try:
        return _make_slices(options, models)
    except UserError as error:
        if "--force" not in (error.remedy or ""):
            raise
        remedy = _OTHER_FOLDER if error.remedy == REPLACE else f"delete it, or {_OTHER_FOLDER}"
        raise UserError(error.problem, where=error.where, remedy=remedy) from error


def _make_slices(options: ComparedTextOptions, models: "Sequence[ModelSpec]") -> Path:
    """Counts the training text, if it is named, and labels the text for these models.

    Labels with training counts are reused where none are named.
    """
    from recallkit import counting, slicing
    from recallkit.display import console
    from recallkit.models.loading import sequences_for, usual_tokenizer
    from recallkit.storage import parquet_files

    counts, sample = path(options.counts), options.drawn
    folder = path(options.slices) or Path("slices")
    tokenizer = usual_tokenizer(models[0].location, models[0].tokenizer or options.model_tokenizer)
    tokenizer, seq_len = sequences_for(models, tokenizer, options=options)
    text = _text_options(options.text, tokenizer, "validation")
    earlier = parquet_files.manifest_options(folder / "sequences.parquet")
    if earlier is not None:  # shorter sequences, made for other models, are read by these, too
        seq_len = min(seq_len, earlier["seq_len"])
    _note_choices(options, models, tokenizer, seq_len, folder)
    sequences = slicing.check_sequences(text, folder, seq_len=seq_len, sample=sample)
    if options.train is not None:
        counts = folder / COUNTS
        workers = CountingOptions(
            workers=options.workers, engine=options.engine, address=options.address
        )
        counting.count(_text_options(options.train, tokenizer, "train"), counts, options=workers)
    elif counts is None:
        labels = parquet_files.manifest_options(folder / "tokens.parquet") or {}
        are_same = (
            sequences is not None
            and labels.get("sequences_digest") == sequences["sequences_digest"]
        )
        if are_same and labels.get("counts_id") is not None:
            console.note(f"training counts as in the labels of {folder}, made by an earlier run")
            return folder
        if (folder / COUNTS).is_file():
            counts = folder / COUNTS
    slicing.slice_text(text, folder, counts=counts, seq_len=seq_len, sample=sample)
    return folder


def _text_options(text: AnyText | Sequence[Any], tokenizer: str | None, split: str) -> TextOptions:
    """The text, by its names or as it is; what can be read only once is kept, for it is read
    again."""
    text = list(text) if isinstance(text, Iterator) else text
    try:
        return TextOptions(names(text), default_split=split, tokenizer=tokenizer)
    except TypeError:
        return TextOptions(texts=text, default_split=split, tokenizer=tokenizer)


def _note_choices(
    options: ComparedTextOptions,
    models: "Sequence[ModelSpec]",
    tokenizer: str | None,
    seq_len: int,
    folder: Path,
) -> None:
    """A note on what the user did not choose."""
    from recallkit.display import console
    from recallkit.display.cells import abbreviate
    from recallkit.models.devices import main_device

    sample = options.drawn
    drawn = (
        "all of the text"
        if sample is None
        else f"a sample of at most {abbreviate(sample.tokens)} tokens"
    )
    owner = "the built-in" if tokenizer is None else f"{models[0].shown}'s"
    devices = sorted({str(main_device(spec.device or options.device)) for spec in models})
    console.note(
        f"{drawn}, in sequences of {seq_len:,} tokens of {owner} tokenizer, on "
        f"{' and '.join(devices)}; everything is written to {folder}"
    )


def rest_of_text(slices: Path, models: "Sequence[ModelSpec]") -> list[str]:
    """A line on what was drawn, how much more text there is, and how long all of it would take;
    none where all of it was read."""
    from recallkit.display.cells import abbreviate
    from recallkit.scoring.identity import score_timings
    from recallkit.slicing.view import what_is_drawn
    from recallkit.storage import parquet_files
    from recallkit.storage.artifacts import MANIFEST
    from recallkit.storage.timings import read_timings

    manifest = parquet_files.read_manifest(slices / "tokens.parquet")
    drawn = manifest.get("drawn")
    if drawn is None or drawn["documents"] == drawn["of_documents"]:
        return []
    total = drawn["of_tokens"]
    line = f"{what_is_drawn(manifest)} --sample all reads all of about {abbreviate(total)} tokens"
    timings = [read_timings(slices / MANIFEST), *(score_timings(slices, model) for model in models)]
    if any(timing is None or timing["resumed"] for timing in timings):
        return [line]
    seconds = (
        sum(timing["seconds"] for timing in timings if timing is not None)
        * total
        / manifest["num_rows"]
    )
    size, unit = next((size, unit) for size, unit in _UNITS if seconds >= 2 * size or size == 1)
    return [f"{line}, in about {seconds / size:.0f} {unit} here"]


_UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))
