"""Groups of options, each declared once: how text is read, how models are run, what is measured,
what is written.

A command's options derive from the groups that it takes, and its instance is handed on as such a
group. What a package below the commands does not need as a whole is declared with its command.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Literal

from recallkit import config
from recallkit.declarations import (
    OUTPUT,
    File,
    Options,
    amount,
    argument,
    length,
    names,
    option,
    text,
)
from recallkit.errors import UsageError

TEXT, LOADING, PROMPTS, LONG_SEQUENCES, MANY_DEVICES = (
    "Text",
    "Models",
    "Prompts",
    "Long sequences",
    "Many devices",
)
NEEDLES, SWEEPS = "Needles in a haystack", "Sweeps, with --task"
"""Groups of options in the help; what a command is mainly asked with has none."""

# ------------------------------------------------------------------------------------- declarations

Texts = Iterable[str | Mapping[str, Any]] | None
"""Only in Python: the text itself instead of sources."""

slice_option = partial(
    option,
    "Also report this slice: a name (first_rare, rare_word, copy:kN ...), the filters of a paper "
    "(paper:2606.20936), or 'NAME=EXPRESSION' over columns of tokens.parquet and words.parquet, "
    "such as 'far=distance > 100' (docs/slices.md). May be repeated.",
    metavar="NAME",
)
slices_option = partial(
    option, "A directory made by `recallkit slice`. Default: the built-in one.", metavar="DIR"
)
counts_option = partial(
    option,
    "A table made by `recallkit count`, or its URL (https://, hf://OWNER/NAME/FILE).",
    metavar="FILE",
)
tokenizer_option = partial(
    option,
    (
        "A tokenizer.json, model directory, GGUF file or hub id, or `bytes`. Default: the built-in "
        "BPE of 4,096 entries."
    ),
    metavar="TOKENIZER",
    panel=TEXT,
)
device_option = partial(
    option,
    "auto, cpu, cuda, cuda:N, or balanced: over GPUs, CPU and disk.",
    "auto",
    metavar="DEVICE",
    panel=LOADING,
)


AnyModel = Any
"""A model as `recallkit.models.spec.list_models` takes it: a path or name, a torch.nn.Module, a
ModelSpec; several as {NAME: model}."""
AnyModels = AnyModel | Sequence[Any]
MODEL_SYNTAX = (
    "PATH or NAME=PATH, then its options after commas: NAME=PATH,dtype=bfloat16,context=2048 "
    "(docs/models.md)"
)

models_option = partial(
    argument,
    (
        f"Models to score (see `recallkit models`): {MODEL_SYNTAX}. Default: the trained models of "
        "the zoo."
    ),
    metavar="MODEL",
)
Precision = Literal["float32", "bfloat16", "float16"]
_AUTO = "auto: the checkpoint's precision on a GPU, float32 on CPU."


def out_option(
    what: str = "The directory to write.",
    default: str | None = None,
    *,
    value: Any = None,
    metavar: str = "DIR",
) -> Any:
    """`-o`, `--out`: where a command writes."""
    return option(
        what, value, flags=("-o", "--out"), metavar=metavar, default=default, panel=OUTPUT
    )


def _destination(value: Any) -> Any:
    """A tracker to log to, such as `wandb:PROJECT`. Raises ValueError for an unknown one."""
    from recallkit.trackers import parse_destination

    return value if isinstance(value, tuple) else parse_destination(value)


# ---------------------------------------------------------------------------------- what is written


@dataclass(frozen=True, kw_only=True)
class ForceOptions(Options):
    """Whether what is there already is replaced."""

    force: bool = option(
        "Redo finished work, and discard unfinished work made with other options.",
        False,
        panel=OUTPUT,
    )


@dataclass(frozen=True, kw_only=True)
class LogOptions(Options):
    """Where a result is logged."""

    log_to: str | Sequence[str] | None = option(
        "Also log the result to trackio, wandb, mlflow or tensorboard, as NAME or NAME:PROJECT "
        "(tensorboard: a folder). May be repeated "
        "(docs/track.md).",
        metavar="NAME",
        parse=_destination,
        panel=OUTPUT,
    )


@dataclass(frozen=True, kw_only=True)
class WritingOptions(ForceOptions, LogOptions):
    """What is done with a result that is written."""


# --------------------------------------------------------------------------------- how text is read


@dataclass(frozen=True)
class TextOptions(Options):
    """Which text, and how it becomes a stream of token ids.

    `texts`, if given, are the text. `default_split` is read of a dataset whose name says none.
    Without sources it is the built-in text.
    """

    sources: File | Sequence[File] | None = argument(
        (
            "Files, globs, directories, URLs, hub ids or presets (see `recallkit sources`). "
            "Default: the built-in text."
        ),
        metavar="SOURCE",
        excludes=("texts",),
    )
    default_split: str = "validation"
    _: KW_ONLY
    tokenizer: File | None = tokenizer_option()
    end_token: str | None = option(
        "The token that separates documents. Default: detected from the tokenizer.",
        metavar="TOKEN",
        panel=TEXT,
    )
    boundary: Literal["pack", "document"] = option(
        (
            "pack: context runs across documents, as in the papers; document: context is reset at "
            "each document."
        ),
        "pack",
        panel=TEXT,
    )
    limit_tokens: int | str | None = option(
        "Stop after N tokens, such as 10M (Zoology) or 16M (Based).",
        metavar="N",
        parse=amount,
        panel=TEXT,
    )
    text_field: str | None = option(
        "Field that contains the text, such as meta.body. Default: detected.",
        metavar="FIELD",
        panel=TEXT,
    )
    source_field: str | None = option(
        "Field that names the source, such as meta.pile_set_name. Default: detected.",
        metavar="FIELD",
        panel=TEXT,
    )
    skip_bad: bool = option(
        "Skip records that cannot be read and count them, instead of stopping.", False, panel=TEXT
    )
    texts: Texts = None

    def __post_init__(self) -> None:
        """Raises UsageError also for what names no text."""
        super().__post_init__()
        if self.sources is not None and not self.source_names:
            raise UsageError(
                "no source is named",
                where="SOURCE",
                remedy="name one, or leave it out for the built-in text",
            )

    @property
    def source_names(self) -> tuple[str, ...]:
        """What the text is called; empty for the built-in one."""
        try:
            return ("texts",) if self.texts is not None else tuple(names(self.sources))
        except TypeError as error:
            remedy = "name files, or give texts themselves as texts="
            raise UsageError(
                f"of type {type(self.sources).__name__}, not the name of a file",
                where="SOURCE",
                remedy=remedy,
            ) from error

    @property
    def tokenizer_name(self) -> str | None:
        """The tokenizer as `load_tokenizer` takes it."""
        return text(self.tokenizer)

    @property
    def most_tokens(self) -> int | None:
        """`limit_tokens` as a number."""
        return amount(self.limit_tokens)


@dataclass(frozen=True, kw_only=True)
class LabelOptions(Options):
    """How tokens are labelled: in which sequences, and what counts as rare."""

    counts: File | None = option(
        (
            "A table made by `recallkit count`, its URL (https://, hf://OWNER/NAME/FILE), or "
            "infini-gram:INDEX (docs/corpus.md)."
        ),
        metavar="FILE",
    )
    max_count: int | None = option(
        "Highest training count of a rare bigram.",
        least=0,
        most=config.MOST,
        default="by rate, at least 5",
    )
    max_rate: float | None = option(
        "The same limit, as occurrences per billion training tokens.",
        least=0,
        most=config.MOST,
        default="the papers' 125",
        excludes=("max_count",),
    )
    seq_len: int | None = option(
        "Predictions in a sequence.",
        least=1,
        most=config.LONGEST,
        default=f"{config.SEQ_LEN}; {config.BUILTIN_SEQ_LEN} without SOURCE and --tokenizer",
    )


@dataclass(frozen=True)
class LabelledTextOptions(LabelOptions, TextOptions):
    """A text, and how its tokens are labelled: what `slice` and `profile` have in common."""

    default_split: str = field(default="validation", init=False)


# ------------------------------------------------------------------------------- how work is shared


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Options):
    """How many processes share the work, and where."""

    workers: int = option(
        (
            "Processes (with --engine ray: actors) that share the work, assigned to GPUs in turn. "
            "Results do not change."
        ),
        1,
        least=1,
        most=1024,
        panel=MANY_DEVICES,
    )
    engine: Literal["local", "ray"] = option(
        "local: this machine; ray: a Ray cluster (extra `ray`) that shares the storage.",
        "local",
        panel=MANY_DEVICES,
    )
    address: str | None = option(
        (
            "With --engine ray: the cluster, `auto` or ray://HOST:PORT. Default: a new one on this "
            "machine."
        ),
        metavar="ADDRESS",
        needs="engine",
        panel=MANY_DEVICES,
    )


def _share(value: Any) -> tuple[int, int]:
    """`3/16`: the third of 16. Raises ValueError for anything else."""
    if isinstance(value, tuple):
        return value
    place, _, shares = value.partition("/")
    if not (
        place.isdecimal()
        and shares.isdecimal()
        and 1 <= int(place) <= int(shares) <= config.LONGEST
    ):
        raise ValueError(f"{value!r} is not a share; give one such as 3/16, from 1/16 to 16/16")
    return int(place), int(shares)


@dataclass(frozen=True, kw_only=True)
class ShareOptions(WorkerOptions, WritingOptions):
    """One of many jobs, started by a scheduler: options of the command line only."""

    share: tuple[int, int] | None = option(
        "Do only share K of N, for N jobs at once. A run without this option joins the shares.",
        metavar="K/N",
        parse=_share,
        excludes=("force", "engine", "log_to"),  # they need all parts
        panel=MANY_DEVICES,
    )


@dataclass(frozen=True, kw_only=True)
class CountingOptions(WorkerOptions):
    """How a text is counted. `hashes` of a count of some bigrams only are none."""

    hashes: int = option(
        "Hashes of 13-grams to keep, and as many of 50-grams, at 8 bytes each: with them `slice` "
        "finds text copied from training. "
        "None are kept with --only or --import.",
        config.NUM_HASHES,
        least=0,
        most=1 << 30,
    )


# ------------------------------------------------------------------------------- how models are run


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """How models are loaded. What a model's own `ModelSpec` says comes first; None means its
    own."""

    counts: File | None = counts_option()
    device: str = device_option()
    model_tokenizer: Any = option(
        "The model's tokenizer, if it brings none: as for --tokenizer, or `bytes`.",
        metavar="TOKENIZER",
        panel=LOADING,
    )
    trust_remote_code: bool = option(
        "Run the Python code that comes with a checkpoint. Read it first.", False, panel=LOADING
    )
    no_cuda_graphs: bool = option(
        (
            "On a GPU, launch every kernel from Python. By default, passes of small models and "
            "short texts are replayed as CUDA graphs."
        ),
        False,
        panel=LOADING,
    )


batch_tokens_option = partial(
    option, "Tokens per batch. Default: chosen for speed.", metavar="N", parse=amount, panel=LOADING
)
context_option = partial(
    option,
    "Longest context, in tokens. Default: the model's limit.",
    least=1,
    most=config.LONGEST,
    panel=LONG_SEQUENCES,
)


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(WorkerOptions, ModelOptions):
    """How models are run that score a slice directory: every command that scores has all of these.

    None means: as in the existing scores, else float32, a batch chosen from the model and the
    machine's memory, the model's own tokenizer and context.
    """

    dtype: Literal[Precision, "auto"] | None = option(
        f"Precision of the weights; logits are reduced in float32. {_AUTO}",
        default="float32, or as scored",
        panel=LOADING,
    )
    batch_tokens: int | str | None = batch_tokens_option()
    model_tokenizer: Any = option(
        "The model's tokenizer, if it brings none: as for --tokenizer, or `bytes`. If it differs "
        "from the slices' tokenizer, the model "
        "reads the same bytes and its NLLs are aligned to the slices' tokens.",
        metavar="TOKENIZER",
        panel=LOADING,
    )
    context: int | None = context_option()
    stride: int | None = option(
        "Score sequences longer than the context in overlapping windows that advance by N tokens.",
        least=1,
        most=config.LONGEST,
        panel=LONG_SEQUENCES,
    )
    carry_state: bool = option(
        (
            "Score a recurrent model in chunks of --context tokens, carrying its state from one to "
            "the next."
        ),
        False,
        panel=LONG_SEQUENCES,
    )

    def __post_init__(self) -> None:
        """Raises UsageError also for two ways to read a long sequence."""
        super().__post_init__()
        if self.stride is not None and self.carry_state:
            raise UsageError(
                "two ways to read a long sequence",
                where="--stride and --carry-state",
                remedy="give one of them",
            )


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(ModelOptions, ForceOptions):
    """How models are run that generate answers."""

    dtype: Literal[Precision, "auto"] = option(
        f"Precision of the weights. {_AUTO}", "float32", panel=LOADING
    )
    context: int | None = context_option()


@dataclass(frozen=True, kw_only=True)
class PromptOptions(WorkerOptions, EvaluationOptions):
    """How models are run that answer prompts: the first `limit` rows of each task, or all."""

    limit: int | None = option("Use only the first N rows of each task.", least=1, most=config.MOST)
    batch_size: int | None = option(
        "Prompts that generate together. Default: 8 on CPU, 32 on a GPU.",
        least=1,
        most=4096,
        panel=LOADING,
    )


# ------------------------------------------------------------------------------------ what is asked

CENTRED_TOKENS = 950
"""Tokens kept around the answer by the answer-centred cut: a context of 1,000 less 50 for the
answer (JRT, arXiv 2407.05483)."""


@dataclass(frozen=True, kw_only=True)
class RecallOptions(PromptOptions):
    """Which facts of documents models are to recall, and how they are run."""

    data: File | None = option(
        "Local rows instead of the hub's: a file or a folder of TASK.jsonl (JSONL or Parquet "
        "with text, value, key, doc_id, answers; or "
        "context, question, answers). For needles: the text of the haystack, as for `count`.",
        metavar="PATH",
    )
    task_version: int = option(
        (
            "1 strips white space from texts and values, as lm-eval does today; 0 leaves them "
            "unchanged, as in the published figures."
        ),
        1,
        least=0,
        most=1,
        panel=PROMPTS,
    )
    prompt: Literal["standard", "once", "twice"] = option(
        (
            "standard: the document, then the query, as in lm-eval; once, twice: the document once "
            "or twice, as in JRT."
        ),
        "standard",
        panel=PROMPTS,
    )
    cut: Literal["left", "answer"] = option(
        (
            "left: prompts are cut on the left to fit the context; answer: documents are cut to "
            "--cut-tokens around the answer (JRT)."
        ),
        "left",
        panel=PROMPTS,
    )
    cut_tokens: int | None = option(
        "With --cut answer: tokens to keep of each document.",
        least=2,
        most=config.LONGEST,
        default="950, a context of 1,000 less 50 for the answer",
        needs="cut",
        panel=PROMPTS,
    )
    lengths: int | str | Sequence[int | str] | None = option(
        "Lengths in ids of a prompt with its answer, joined with commas; 4k is 4,096.",
        metavar="NUMBERS",
        default="those of 1k,2k,4k,8k that all models can read, else the longest they can",
        parse=length,
        joined=True,
        panel=NEEDLES,
    )
    samples: int | None = option(
        "Prompts of each length, spread evenly over 11 depths.",
        least=1,
        most=config.LONGEST,
        default="110",
        panel=NEEDLES,
    )
    seed: int = option(
        "Seed of keys, values and passages.", 0, least=0, most=config.MOST, panel=NEEDLES
    )

    @property
    def every_length(self) -> list[int]:
        """`lengths` in their order, each once; none if they are not given."""
        return (
            sorted({length(size) for size in self.lengths})
            if isinstance(self.lengths, list)
            else []
        )

    @property
    def kept_tokens(self) -> int:
        """Tokens of a document that are kept around the answer."""
        return self.cut_tokens or CENTRED_TOKENS


@dataclass(frozen=True, kw_only=True)
class MqarOptions(EvaluationOptions):
    """Which made-up pairs models are to recall, and how they are run: sequences are batched by
    tokens, and never cut."""

    context: int | None = field(default=None, init=False)
    task: str = option(
        (
            "A synthetic task (see `recallkit tasks`), with its options as in "
            "overwriting,updates=8; or FILE.py:FUNCTION."
        ),
        "mqar",
        metavar="TASK",
    )
    seq_len: int | None = option(
        "Ids of a sequence.", least=4, most=config.LONGEST, default="1024; 256 for the zoo"
    )
    pairs: int | Sequence[int] | None = option(
        "Numbers of key-value pairs, joined with commas.",
        metavar="NUMBERS",
        default="those of 16,32,64,128,256 (zoo: 4,8,16,32,64) that the task allows",
        least=1,
        most=config.LONGEST,
        joined=True,
    )
    samples: int | None = option(
        "Sequences for each number of pairs.",
        least=1,
        most=config.LONGEST,
        default="1000; 50 for the zoo",
    )
    power: float | None = option(
        (
            "Exponent of the power law of query positions: 0.01 is near the pairs (Zoology's code; "
            "F.1 trains with 0.1), 1 is uniform."
        ),
        default="0.01",
    )
    seed: int = option("Seed of keys, values and their positions.", 0, least=0, most=config.MOST)
    batch_tokens: int | str | None = batch_tokens_option()

    @property
    def length(self) -> int:
        """Ids of a sequence."""
        return self.seq_len or 1024

    @property
    def num_samples(self) -> int:
        """Sequences for each number of pairs."""
        return self.samples or 1000


_AS_PRESET, _OF_RECIPE = "as in the preset", "of the recipe"
Sizes = int | Sequence[int] | None
_sizes = partial(
    option,
    metavar="NUMBERS",
    default=_AS_PRESET,
    least=1,
    most=1 << 16,
    joined=True,
    needs="task",
    panel=SWEEPS,
)
_joined = partial(option, default=_AS_PRESET, joined=True, needs="task", panel=SWEEPS)
_number = partial(option, least=1, most=config.MOST, default=_AS_PRESET, needs="task", panel=SWEEPS)


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(Options):
    """What differs from a recipe, of a model on text as of a sweep."""

    seq_len: int | None = option(
        "Ids of a training sequence.", least=1, most=config.LONGEST, default=_OF_RECIPE
    )
    batch: int | None = option("Sequences per step.", least=1, most=config.MOST, default=_OF_RECIPE)
    learning_rates: float | Sequence[float] | None = option(
        "One for a model; with --task, several are tried and the best counts.",
        metavar="NUMBERS",
        default=_OF_RECIPE,
        least=1e-9,
        most=10,
        joined=True,
    )
    seed: int = option("Seed of examples, weights and their order.", 0, least=0, most=1 << 19)


@dataclass(frozen=True, kw_only=True)
class TextTrainingOptions(RecipeOptions):
    """How much text a model reads, and how."""

    tokens: int | str | None = option(
        "Predictions to train on, such as 30M, each once. Default: the whole text.",
        metavar="N",
        parse=amount,
    )
    checkpoint_every: int | str | None = option(
        "Also write a checkpoint after every N tokens, such as 10M. Default: only one at the end.",
        metavar="N",
        parse=amount,
    )
    no_lists: bool = option(
        "Train zoo:NAME on text alone; by default it learns key-value lists first (docs/zoo.md).",
        False,
    )
    micro_batch: int | None = option(
        "Sequences that a GPU computes at once; gradients are accumulated.",
        least=1,
        default="a whole batch",
    )
    compiled: bool = option("Compile the model with torch.compile.", False, flags=("--compile",))


@dataclass(frozen=True, kw_only=True)
class SweepOptions(RecipeOptions):
    """What differs from a preset."""

    mixers: str | Sequence[str] | None = _joined(
        (
            "Mixers to train, of the preset or any others; A+B alternates them (see `recallkit "
            "models --describe`)."
        ),
        metavar="NAMES",
    )
    widths: Sizes = _sizes("Widths of the models.")
    mixer_options: str | Sequence[str] | None = _joined(
        (
            "Options for the mixers that have them, in every combination: "
            "feature_dim=4,8,window=16. short_conv=0 removes short convolutions."
        ),
        metavar="NAME=VALUES",
    )
    pairs: Sizes = _sizes("Numbers of pairs in training, with equally many sequences for each.")
    test_seq_len: int | None = _number("Ids of a test sequence.", most=config.LONGEST)
    test_pairs: Sizes = _sizes("Numbers of pairs in the tests.")
    examples: int | None = _number("Training sequences.")
    test_examples: int | None = _number("Test sequences.")
    vocab: int | None = _number("Ids of the vocabulary.", most=1 << 20)
    steps: int | None = _number("Most steps of a run; it may end early.")
    layers: int | None = _number("Layers of a model.", most=64)


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(Options):
    """Of which tokens models are compared, and what intervals resample."""

    cluster: Literal["document", "sequence", "source"] = option(
        "The independent unit that intervals resample: documents, sequences or whole sources.",
        "document",
    )
    clean: bool = option(
        "Leave out tokens known to be in the training text (column in_training).", False
    )
    out: File | None = out_option(
        "Directory of the result tables.", default="a folder in the slices"
    )


@dataclass(frozen=True, kw_only=True)
class FarContextOptions(Options):
    """How much context is far."""

    context_gain: int | Sequence[int] | None = option(
        "Also score with only the last N tokens as context, and measure the gain from context "
        "before them: one N, or several joined with "
        "commas, such as 8,32,128 (docs/context.md). Each costs about five times as much as "
        "scoring.",
        metavar="NUMBERS",
        least=1,
        most=config.LONGEST,
        joined=True,
    )
    context_stride: int | None = option(
        (
            "With --context-gain, a stride S: each prediction sees N to N + S - 1 ids, at a cost "
            "of (N + S - 1) / S passes; 1 is exact."
        ),
        metavar="NUMBER",
        least=1,
        most=config.LONGEST,
        default="N / 4",
        needs="context_gain",
    )


SAMPLES, BUILTIN_SAMPLES = 2000, 300
"""Tokens that `intervene` samples from each slice; fewer for the built-in models, because there are
ten."""


@dataclass(frozen=True, kw_only=True)
class InterventionOptions(ForceOptions):
    """Which tokens are sampled, and how the text before them is changed."""

    slice: str | Sequence[str] | None = option(
        "A slice to measure, by name or as 'NAME=EXPRESSION'. May be repeated.",
        metavar="NAME",
        default="ar_hit, repeated_frequent, first_rare",
    )
    samples: int | None = option(
        "Tokens to sample from each slice.",
        least=1,
        most=config.LONGEST,
        default="2000; 300 for the built-in models",
    )
    design: Literal["joint", "exact"] = option(
        (
            "joint: many changes in one sequence; exact: one sequence per change, which takes "
            "several times as long."
        ),
        "joint",
    )
    changes: Literal["all", "moved"] = option(
        (
            "moved: measure recall by association; all: also what other changes to the occurrences "
            "cost, in 2.5 times the time."
        ),
        "moved",
    )
    seed: int = option("Seed of samples and replacements.", 0, least=0, most=config.MOST)

    @property
    def num_samples(self) -> int:
        """Tokens to sample from each slice."""
        return self.samples or SAMPLES


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(ForceOptions):
    """What is counted of a text."""

    stop_words: str = option(
        (
            "Words whose bigrams are left out: ours, nltk (needs its data), none, or a file with "
            "one word per line."
        ),
        "ours",
        metavar="LIST",
    )
    x_min: int | None = option(
        "Distance at which the power law begins. Default: the best fit.",
        least=1,
        most=config.LONGEST,
    )


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """What a page shows besides the results of a folder."""

    slices: File | None = option(
        "The slice directory of the comparison, with its scores, if the comparison lies elsewhere.",
        metavar="DIR",
    )
    more: File | Sequence[File] | None = option(
        "Also show the results in this folder. May be repeated.", flags=("--with",), metavar="DIR"
    )
    sequence: int | Sequence[int] | None = option(
        "Also show this sequence of the text. May be repeated.", least=0
    )
    document: int | Sequence[int] | None = option(
        "Also show all sequences of this document. May be repeated.", least=0
    )
