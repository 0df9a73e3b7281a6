"""Options of more than one command, each declared once, and the conversion of their values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, overload

from recallkit import config
from recallkit.commands.adapter import FIGURES, OUTPUT, Argument, File, Option
from recallkit.errors import UsageError

if TYPE_CHECKING:
    from recallkit.models.spec import ModelSpec
    from recallkit.text.open_text import TextOptions

TEXT, LOADING, PROMPTS, LONG_SEQUENCES, MANY_DEVICES = "Text", "Models", "Prompts", "Long sequences", "Many devices"
"""Groups of options in the help; what a command is mainly asked with has none."""


# -------------------------------------------------------------------------------------------------------------- values


@overload
def path(given: File) -> Path: ...
@overload
def path(given: None) -> None: ...
@overload
def path(given: File | None) -> Path | None: ...
def path(given: File | None) -> Path | None:
    """A file or folder as a Path."""
    return None if given is None else Path(fspath(given))


def text(given: File | None) -> str | None:
    """A path, or the name of something else, as a string."""
    return None if given is None else fspath(given)


def names(given: File | Sequence[File] | None) -> list[str]:
    """One name or many as a list: a string is one name, not a sequence of letters."""
    return [] if given is None else [fspath(given)] if isinstance(given, str | PathLike) else [fspath(each) for each in given]


def numbers(given: int | Sequence[int] | None) -> list[int]:
    """One number or many as a list."""
    return [] if given is None else list(given) if isinstance(given, Sequence) else [given]


def amount(given: int | str | None) -> int | None:
    """A number of tokens, such as 10M. Raises ValueError for anything else."""
    try:
        return None if given is None else config.parse_amount(str(given))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{given!r} is no number of tokens; give a whole number such as 1250, 10M or 1.5B") from error


def destination(given: Any) -> Any:
    """A tracker to log to, such as `wandb:PROJECT`. Raises ValueError for an unknown one."""
    from recallkit.trackers import parse_destination

    return given if isinstance(given, tuple) else parse_destination(given)


def text_options(
    sources: File | Sequence[File] | None,
    tokenizer: File | None,
    end_token: str | None,
    boundary: Literal["pack", "document"],
    limit_tokens: int | str | None,
    text_field: str | None,
    source_field: str | None,
    *,
    skip_bad: bool,
    texts: "Texts" = None,
) -> "TextOptions":
    """The requested text; without sources the built-in one, to which `builtin` adds its split."""
    from recallkit.text.open_text import TextOptions

    if sources is not None and texts is not None:
        raise UsageError("sources and texts", where="texts", remedy="give one of them")
    named = ("texts",) if texts is not None else tuple(_source_names(sources))
    if sources is not None and not named:
        raise UsageError("no source is named", where="SOURCE", remedy="name one, or leave it out for the built-in text")
    read = TextOptions(named, "validation", text(tokenizer), end_token, boundary, amount(limit_tokens), text_field, source_field, skip_bad)
    return read if texts is None else replace(read, texts=texts)


def _source_names(sources: Any) -> list[str]:
    try:
        return names(sources)
    except TypeError as error:
        remedy = "name files, or give texts themselves as texts="
        raise UsageError(f"of type {type(sources).__name__}, not the name of a file", where="SOURCE", remedy=remedy) from error


def models(given: "AnyModels | None", default: Sequence[str] = ()) -> "tuple[ModelSpec, ...]":
    """The models that are named, else those of `default`. Raises UsageError if there are none, and for what is no model."""
    from recallkit.models.spec import list_models

    found = list_models(list(default) if given is None else given)
    if not found:
        raise UsageError("no model is named", where="MODEL", remedy="name one, or leave it out for the built-in ones")
    return found


def nothing_given(*values: Any) -> bool:
    """Whether each option was omitted: None, a flag that is not set, or False for "as usual"."""
    return all(value is None or value is False for value in values)


# ------------------------------------------------------------------------------------------------------- text and labels

Sources = Annotated[
    File | Sequence[File] | None,
    Argument("Files, globs, directories, URLs, hub ids or presets (see `recallkit sources`); the built-in text if none.", metavar="SOURCE"),
]
Texts = Iterable[str | Mapping[str, Any]] | None
"""Python's only: the text itself in place of sources."""


def out(what: str = "The directory to write.", default: str | None = None, *, metavar: str = "DIR") -> Option:
    """`-o`, `--out`: where a command writes."""
    return Option(what, ("-o", "--out"), metavar=metavar, default=default, panel=OUTPUT)


Force = Annotated[bool, Option("Redo finished work, discard unfinished work made with other options.", panel=OUTPUT)]
Figures = FIGURES
LogTo = Annotated[
    str | Sequence[str] | None,
    Option(
        "Also log the result there: trackio, wandb, mlflow or tensorboard, or NAME:PROJECT (of tensorboard, a folder); may be repeated "
        "(docs/trackers.md).",
        metavar="NAME",
        parse=destination,
        panel=OUTPUT,
    ),
]
LimitTokens = Annotated[
    int | str | None, Option("Stop after N tokens, such as 10M (Zoology) or 16M (Based).", metavar="N", parse=amount, panel=TEXT)
]
Tokenizer = Annotated[
    File | None,
    Option(
        "A tokenizer.json, model directory, GGUF file or hub id, or `bytes`; the built-in 4,096-entry BPE if not given.",
        metavar="TOKENIZER",
        panel=TEXT,
    ),
]
EndToken = Annotated[str | None, Option("The token that separates documents; found if not given.", metavar="TOKEN", panel=TEXT)]
TextField = Annotated[str | None, Option("Field of the text, dotted; found if not given.", metavar="FIELD", panel=TEXT)]
SourceField = Annotated[
    str | None, Option("Field of the source's name, such as meta.pile_set_name; found if not given.", metavar="FIELD", panel=TEXT)
]
SkipBad = Annotated[bool, Option("Skip and count records that cannot be read instead of stopping.", panel=TEXT)]
Boundary = Annotated[
    Literal["pack", "document"], Option("pack: context runs across documents, as in the papers; document: it is reset at each.", panel=TEXT)
]
Slices = Annotated[File | None, Option("A directory made by `recallkit slice`; the built-in one if not given.", metavar="DIR")]
Counts = Annotated[File | None, Option("A table made by `recallkit count`.", metavar="FILE")]
MaxCount = Annotated[int | None, Option("Largest count of a rare bigram.", least=0, most=config.MOST, default="by rate, at least 5")]
MaxRate = Annotated[float | None, Option("The same as occurrences per billion training tokens.", least=0, default="the papers' 125")]
SeqLen = Annotated[
    int | None,
    Option(
        "Predictions in a sequence.",
        least=1,
        most=config.LONGEST,
        default=f"{config.SEQ_LEN}; for the built-in text {config.BUILTIN_SEQ_LEN}",
    ),
]

# --------------------------------------------------------------------------------------------------------------- models


class LiveModel(Protocol):
    """A torch.nn.Module, said without importing torch."""

    training: bool


class OneSpec(Protocol):
    """A `recallkit.ModelSpec`, said without importing it."""

    @property
    def location(self) -> str:
        """Where it is."""
        ...


AnyModel = File | LiveModel | OneSpec | Mapping[str, Any]
"""A model as `recallkit.models.spec.list_models` takes it; several of them as {NAME: model}."""
AnyModels = AnyModel | Sequence[Any]
MODEL_SYNTAX = "PATH or NAME=PATH, with options of its own: NAME=PATH,dtype=bfloat16,context=2048 (docs/models.md)"

Models = Annotated[
    AnyModels | None,
    Argument(f"Models to score (see `recallkit models`), {MODEL_SYNTAX}; the trained ones of the zoo if none.", metavar="MODEL"),
]
Device = Annotated[str, Option("auto, cpu, cuda or cuda:N.", metavar="DEVICE", panel=LOADING)]
Precision = Literal["float32", "bfloat16", "float16"]
_AUTO = "auto: that of the checkpoint on a GPU, float32 on CPU."
Dtype = Annotated[
    Literal[Precision, "auto"] | None,
    Option(f"Precision of the weights; logits are reduced in float32. {_AUTO}", default="float32, or as scored", panel=LOADING),
]
BatchTokens = Annotated[
    int | str | None, Option("Tokens per batch; found by a probe if not given.", metavar="N", parse=amount, panel=LOADING)
]
Workers = Annotated[
    int,
    Option(
        "Processes that share the work, when scoring one per GPU in turn; with --engine ray, actors. The bytes are the same.",
        least=1,
        most=1024,
        panel=MANY_DEVICES,
    ),
]
Engine = Annotated[
    Literal["local", "ray"],
    Option("local: this machine; ray: a Ray cluster (extra `ray`) that shares the storage.", panel=MANY_DEVICES),
]
Address = Annotated[
    str | None,
    Option(
        "With --engine ray: the cluster, `auto` or ray://HOST:PORT; one of this machine if not given.",
        metavar="ADDRESS",
        panel=MANY_DEVICES,
    ),
]
Context = Annotated[
    int | None,
    Option("Most ids given at once; the model's own limit if not given.", least=1, most=config.LONGEST, panel=LONG_SEQUENCES),
]
TrustRemoteCode = Annotated[bool, Option("Run the Python code that comes with a checkpoint. Read it first.", panel=LOADING)]
EvaluatedTokenizer = Annotated[
    Any, Option("The model's tokenizer, where it brings none: as --tokenizer, or `bytes`.", metavar="TOKENIZER", panel=LOADING)
]
EvaluatedDtype = Annotated[Literal[Precision, "auto"], Option(f"Precision of the weights. {_AUTO}", panel=LOADING)]
Limit = Annotated[int | None, Option("The first rows of each task only.", least=1, most=config.MOST)]
BatchSize = Annotated[
    int | None,
    Option("Prompts that generate together; 8 on CPU, 32 on a GPU if not given.", least=1, most=4096, panel=LOADING),
]
