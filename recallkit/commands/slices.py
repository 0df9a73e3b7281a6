"""The slice directory on which `gap` compares models: one that is there, the built-in one, or one
that is made here of a text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.declarations import File, Options, amount, names, option, path
from recallkit.errors import UsageError, UserError
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
        "Compare on this text, a SOURCE of `recallkit slice`: label it in a slice directory, and write a page. May be repeated.",
        metavar="SOURCE",
    )
    train: AnyText | Sequence[Any] | None = option(
        "With --text: training text, whose bigrams are counted. Repeated bigrams that are rare in it are AR hits. May be repeated.",
        metavar="SOURCE",
    )
    sample: int | str | None = option(
        "With --text: draw whole documents at random, about N tokens in all, or read the whole text.",
        metavar="N|all",
        parse=_sample,
        default=SAMPLE,
    )
    slices: File | None = option(
        "With --text the slice directory to make, else the one to read.",
        metavar="DIR",
        default="slices with --text, else the built-in one",
    )

    def __post_init__(self) -> None:
        """Raises UsageError also for what is said of a text that is not named."""
        super().__post_init__()
        for flag, value in (("--train", self.train), ("--sample", self.sample)):
            if value is not None and self.text is None:
                remedy = "name the text to compare on with --text"
                raise UsageError("goes with --text", where=flag, remedy=remedy)

    @property
    def drawn(self) -> "Sample | None":
        """The sample of the text; None for all of it."""
        from recallkit.text.sample import Sample

        tokens = amount(SAMPLE) if self.sample is None else self.sample
        return None if tokens == ALL else Sample(int(tokens or 0), seed=0)


@dataclass(frozen=True, kw_only=True)
class ComparedTextOptions(ScoringOptions, ComparedText):
    """The same, with how models are run that read it."""


def slices_of(asked: ComparedTextOptions, models: "Sequence[ModelSpec]") -> Path:
    """The slice directory on which these models are compared, the reference first; made where a
    text is named.

    Raises UserError for everything a user can correct, before text is counted where that is
    possible.
    """
    from recallkit import builtin

    if asked.text is None:
        return builtin.named_slices(asked.slices, models)
    return _make_slices(asked, models)


def _make_slices(asked: ComparedTextOptions, models: "Sequence[ModelSpec]") -> Path:
    """Counts the training text, if it is named, and labels the text for these models.

    Labels with training counts are reused where none are named.
    """
    from recallkit import counting, slicing
    from recallkit.display import console
    from recallkit.models.loading import sequences_for, usual_tokenizer
    from recallkit.storage import artifacts
    from recallkit.storage.result import REPLACE

    if asked.train is not None and asked.counts is not None:
        where = "--train and --counts"
        raise UsageError("two sources of counts", where=where, remedy="give one of them")
    folder = path(asked.slices) or Path("slices")
    tokenizer = usual_tokenizer(models[0].location, models[0].tokenizer or asked.model_tokenizer)
    tokenizer, seq_len = sequences_for(models, tokenizer, options=asked)
    text = _text_options(asked.text, tokenizer, "validation")
    counts = path(asked.counts)
    try:
        earlier = artifacts.manifest_options(folder / "sequences.parquet")
        if earlier is not None:  # shorter sequences, made for other models, are read by these, too
            seq_len = min(seq_len, earlier["seq_len"])
        _say_what_is_chosen(asked, models, tokenizer, seq_len, folder)
        sequences = slicing.check_sequences(text, folder, seq_len=seq_len, sample=asked.drawn)
        if asked.train is None and counts is None and sequences is not None:
            labels = artifacts.manifest_options(folder / "tokens.parquet") or {}
            has_counts = labels.get("counts_id") is not None
            if has_counts and labels.get("sequences_digest") == sequences["sequences_digest"]:
                console.note(f"training counts as in the labels of {folder}, made by an earlier run")
                return folder
        if asked.train is not None or (counts is None and (folder / COUNTS).is_file()):
            counts = folder / COUNTS
        if asked.train is not None:
            workers = CountingOptions(
                workers=asked.workers,
                engine=asked.engine,
                address=asked.address,
            )
            training = _text_options(asked.train, tokenizer, "train")
            counting.count(training, folder / COUNTS, options=workers)
        slicing.slice_text(text, folder, counts=counts, seq_len=seq_len, sample=asked.drawn)
    except UserError as error:
        if "--force" not in (error.remedy or ""):
            raise
        remedy = _OTHER_FOLDER if error.remedy == REPLACE else f"delete it, or {_OTHER_FOLDER}"
        raise UserError(error.problem, where=error.where, remedy=remedy) from error
    return folder


def _text_options(text: AnyText | Sequence[Any], tokenizer: str | None, split: str) -> TextOptions:
    """The text, by its names or as it is; what can be read only once is kept, for it is read
    again."""
    text = list(text) if isinstance(text, Iterator) else text
    try:
        return TextOptions(names(text), default_split=split, tokenizer=tokenizer)
    except TypeError:
        return TextOptions(texts=text, default_split=split, tokenizer=tokenizer)


def _say_what_is_chosen(
    asked: ComparedTextOptions,
    models: "Sequence[ModelSpec]",
    tokenizer: str | None,
    seq_len: int,
    folder: Path,
) -> None:
    """A line on what the user did not choose."""
    from recallkit.display import console
    from recallkit.display.cells import abbreviate
    from recallkit.models.devices import main_device

    drawn = "all of the text"
    if asked.drawn is not None:
        drawn = f"a sample of at most {abbreviate(asked.drawn.tokens)} tokens"
    whose = "the built-in" if tokenizer is None else f"{models[0].shown}'s"
    devices = {str(main_device(spec.device or asked.device)) for spec in models}
    console.note(
        f"{drawn}, in sequences of {seq_len:,} tokens of {whose} tokenizer, "
        f"on {' and '.join(sorted(devices))}; everything is written to {folder}"
    )


def rest_of_text(slices: Path, models: "Sequence[ModelSpec]") -> str | None:
    """What was drawn, how much more text there is, and how long all of it would take; None where
    all of it was read."""
    from recallkit.display.cells import abbreviate
    from recallkit.scoring.identity import score_timings
    from recallkit.slicing.view import what_is_drawn
    from recallkit.storage import artifacts
    from recallkit.storage.artifacts import MANIFEST
    from recallkit.storage.timings import read_timings

    manifest = artifacts.read_manifest(slices / "tokens.parquet")
    drawn = manifest.get("drawn")
    if drawn is None or drawn["documents"] == drawn["of_documents"]:
        return None
    timings = [read_timings(slices / MANIFEST), *(score_timings(slices, model) for model in models)]
    part = manifest["num_rows"] / drawn["of_tokens"]
    every = f"all of about {abbreviate(drawn['of_tokens'])} tokens"
    line = f"{what_is_drawn(manifest)} --sample all reads {every}"
    if any(timing is None or timing["resumed"] for timing in timings):
        return line
    seconds = sum(timing["seconds"] for timing in timings if timing is not None) / part
    size, unit = next((size, unit) for size, unit in _UNITS if seconds >= 2 * size or size == 1)
    return f"{line}, in about {seconds / size:.0f} {unit} here"


_UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))
