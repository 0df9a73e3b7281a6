"""Options of the command line: what they are called, what is said of them, what they take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from recallkit import config


class BoundaryChoice(StrEnum):
    """How documents meet."""

    pack = "pack"
    document = "document"


class EngineChoice(StrEnum):
    """Who does the work."""

    local = "local"
    ray = "ray"


class DtypeChoice(StrEnum):
    """Precision of the weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class PromptChoice(StrEnum):
    """What a recall prompt looks like."""

    standard = "standard"
    twice = "twice"


class CutChoice(StrEnum):
    """What of a document a recall prompt keeps."""

    left = "left"
    answer = "answer"


def amount(text: str) -> int:
    """A number of tokens, for typer: `config.parse_amount` with its mistakes as mistakes of usage."""
    try:
        return config.parse_amount(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: give a whole number such as 1250, 10M or 1.5B") from error


class Formats(tuple[str, ...]):
    """Formats of exports, each once."""


def formats(text: str) -> Formats:
    """`csv,tex`, for typer."""
    from recallkit.display.exports import parse_formats

    try:
        return Formats(parse_formats(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SOURCE]...",
        help="Files, globs, directories, hub ids or presets (see `recallkit sources`); the embedded text if none.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Redo finished work, discard unfinished work made with other options.")]
Export = Annotated[
    Formats | None,
    typer.Option(
        "--export",
        parser=formats,
        metavar="FORMATS",
        help="Also write the tables as csv or json, and what is printed as md or tex; joined with commas.",
        show_default=False,
    ),
]
Figures = Annotated[
    Path | None,
    typer.Option("--figures", metavar="DIR", help="Also write the pictures there, as SVG and PNG for a paper.", show_default=False),
]
LimitTokens = Annotated[
    int | None,
    typer.Option(metavar="N", parser=amount, help="Stop after N tokens, such as 10M (Zoology) or 16M (Based).", show_default=False),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        help="A tokenizer.json, model directory, GGUF file or hub id, or `bytes`; the embedded 4,096-entry BPE if not given.",
        show_default=False,
    ),
]
EndToken = Annotated[str | None, typer.Option(help="The token that separates documents; found if not given.", show_default=False)]
TextField = Annotated[str | None, typer.Option(help="Field of the text, dotted; found if not given.", show_default=False)]
SourceField = Annotated[
    str | None, typer.Option(help="Field of the source's name, such as meta.pile_set_name; found if not given.", show_default=False)
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip and count records that cannot be read instead of stopping.")]
Boundary = Annotated[
    BoundaryChoice, typer.Option(help="pack: context runs across documents, as in the papers; document: it is reset at each.")
]
Slices = Annotated[
    Path | None,
    typer.Option(
        "--slices", metavar="DIR", help="A directory made by `recallkit slice`; the embedded one if not given.", show_default=False
    ),
]
Counts = Annotated[Path | None, typer.Option("--counts", metavar="FILE", help="A table made by `recallkit count`.", show_default=False)]
MaxCount = Annotated[
    int | None,
    typer.Option(min=0, max=config.MOST, help=f"Largest count of a rare bigram.  \\[default: {config.MAX_COUNT}]", show_default=False),
]
MaxRate = Annotated[
    float | None,
    typer.Option(min=0, help="The same as occurrences a billion training tokens (the papers' 1250 of 10B is 125).", show_default=False),
]
SeqLen = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=config.LONGEST,
        help=f"Predictions in a sequence.  \\[default: {config.SEQ_LEN}; for the embedded text {config.BUILTIN_SEQ_LEN}]",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[
    DtypeChoice | None,
    typer.Option(help="Precision of the weights; logits are reduced in float32.  \\[default: float32, or as scored]", show_default=False),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(metavar="N", parser=amount, help="Tokens a batch; found by a probe if not given.", show_default=False),
]
Workers = Annotated[
    int,
    typer.Option(
        rich_help_panel="Many devices",
        min=1,
        max=1024,
        help="Processes that share the work, when scoring one a card in turn; with --engine ray, actors. The bytes are the same.",
    ),
]
Engine = Annotated[
    EngineChoice,
    typer.Option(rich_help_panel="Many devices", help="local: this machine; ray: a Ray cluster (extra `ray`) that shares the storage."),
]
Address = Annotated[
    str | None,
    typer.Option(
        rich_help_panel="Many devices",
        help="With --engine ray: the cluster, `auto` or ray://HOST:PORT; one of this machine if not given.",
        show_default=False,
    ),
]
Share = Annotated[
    str | None,
    typer.Option(
        rich_help_panel="Many devices",
        metavar="K/N",
        help="Score the K-th of N shares and join nothing, for N jobs at once; a run without it joins them.",
        show_default=False,
    ),
]
ModelTokenizer = Annotated[
    str | None,
    typer.Option(
        help="The model's tokenizer, where it brings none: as --tokenizer, or `bytes`. If it is not the slices' own, the model reads the "
        "same bytes and its NLLs are carried to their tokens.",
        show_default=False,
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        rich_help_panel="Long sequences",
        min=1,
        max=config.LONGEST,
        metavar="N",
        help="Most ids given at once; the model's own limit if not given.",
        show_default=False,
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        rich_help_panel="Long sequences",
        min=1,
        max=config.LONGEST,
        metavar="N",
        help="Read sequences that are longer than the context in windows, N predictions from each further one.",
        show_default=False,
    ),
]
CarryState = Annotated[
    bool,
    typer.Option(
        "--carry-state",
        rich_help_panel="Long sequences",
        help="A recurrent model reads --context ids at a time and keeps its state between them.",
    ),
]
EvaluatedTokenizer = Annotated[
    str | None,
    typer.Option("--model-tokenizer", help="The model's tokenizer, where it brings none: as --tokenizer, or `bytes`.", show_default=False),
]
EvaluatedDtype = Annotated[DtypeChoice, typer.Option(help="Precision of the weights.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the Python code that comes with a checkpoint. Read it first.")
]
Check = Annotated[
    bool,
    typer.Option(
        "--check", help="Compare a sample with a float64 computation on CPU and print the differences (control models are float64)."
    ),
]


TaskVersion = Annotated[
    int,
    typer.Option(
        rich_help_panel="Prompts",
        min=0,
        max=1,
        help="1 strips white space off texts and values, as lm-eval does today; 0 takes them as they are, as the published figures do.",
    ),
]
Prompt = Annotated[
    PromptChoice, typer.Option(rich_help_panel="Prompts", help="standard: the document, then the query; twice: the document twice (JRT).")
]
Cut = Annotated[
    CutChoice,
    typer.Option(
        rich_help_panel="Prompts",
        help="left: what does not fit the context is cut on the left; answer: documents are cut to 950 tokens around it (JRT).",
    ),
]
