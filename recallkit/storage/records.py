"""Records: what the manifest of each kind of result says, checked once, where it is read.

A digest shows that a manifest was not damaged, not that this program wrote it: a folder may come
from a stranger. `parquet_files.read_manifest(path, Gap)` returns a `Gap`, all of whose declared
fields are there and of their types. Fields that are not declared are kept as they are; nothing
reads them.
"""

from __future__ import annotations

import builtins
import json
import textwrap
import types
import typing
from functools import cache
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NewType, NotRequired, TypedDict

from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_MOST = 1 << 64
"""Whole numbers of a manifest are not larger, as those of tables are."""

FileName = NewType("FileName", str)
"""The name of a file without a folder."""

# ------------------------------------------------------------------------ what several kinds record


class Member(TypedDict):
    """A file in a list: bytes, the digest of its content, and what it is if a user named it."""

    size: int
    sha256: str
    kind: NotRequired[str]


class Stage(TypedDict):
    """How long a stage took."""

    seconds: float


class Timings(TypedDict):
    """How long a result took."""

    seconds: float
    resumed: bool
    stages: dict[str, Stage]
    ended: NotRequired[str]
    device: NotRequired[str | None]
    command: NotRequired[str | None]


class Manifest(TypedDict):
    """What any list, and any table's footer, may say."""

    kind: NotRequired[str]
    recallkit_version: NotRequired[str]
    schema_version: NotRequired[int]
    typed: NotRequired[str | None]
    members: NotRequired[dict[FileName, Member]]
    timings: NotRequired[Timings]


class Tokenizer(TypedDict):
    """See `text.tokenizers.TextTokenizer.describe`."""

    name: str
    digest: str
    vocab_size: int
    end_token: str
    end_token_id: int
    begin_token: NotRequired[str]


class Share(TypedDict):
    """The share of bigrams that the counts do not have."""

    share: float
    bigrams: int
    documents: int
    standard_error: NotRequired[float | None]


class Counts(TypedDict):
    """See `counting.table.CountsTable.describe`."""

    id: str
    path: str
    num_tokens: int
    num_bigrams: int
    boundary: str | None
    unseen: Share | None
    repeated_only: NotRequired[bool]
    hashes: NotRequired[str]


class Threshold(TypedDict):
    """The rule by which a bigram is rare."""

    rule: str
    rate: float | None


Ngrams = TypedDict("Ngrams", {"fraction": float, "sampled": int, "found": int})  # noqa: UP013
"""Sampled n-grams of the text, and how many of them are in the training text."""


NgramsBySize = TypedDict("NgramsBySize", {"13": Ngrams, "50": NotRequired[Ngrams]})


class InTraining(TypedDict):
    """Tokens in n-grams of the training text."""

    tokens: int
    ar_hits: int
    of_ar_hits: int
    ngrams: NgramsBySize


class Drawn(TypedDict):
    """A sample of documents."""

    tokens: int
    seed: int
    documents: int
    sources: int
    of_documents: int
    of_sources: int
    of_tokens: int
    left_out: list[str]


class Prefix(TypedDict):
    """Ids that are read before every text."""

    ids: list[int]
    token: str
    reason: str


class Labels(TypedDict):
    """What a result records of the labels that it is made of."""

    sequences_digest: str
    num_rows: int
    num_sequences: int
    seq_len: int
    boundary: str
    max_count: int | None
    counts: Counts | None
    tokenizer: Tokenizer
    threshold: Threshold | None
    in_training: InTraining | None
    unseen: Share | None
    names: list[str] | None
    read_exactly: NotRequired[int]


class ScoreOptions(TypedDict):
    """What determines scores; options of the model's reading besides."""

    model_digest: str
    sequences_digest: str
    dtype: str | None


# -------------------------------------------------------------------------------------------- kinds


class NgramHashes(TypedDict):
    """Hashes of a training text's n-grams: how many of each size at most, their number by size."""

    most: int
    num: dict[str, int]
    digest: str


class CountsMeta(Manifest):
    """A counts table."""

    id: str
    options: NotRequired[dict[str, Any]]
    tokenizer: NotRequired[Tokenizer | None]
    boundary: NotRequired[str | None]
    only: NotRequired[str | None]
    num_tokens: int
    num_documents: int
    num_bigrams: int
    unseen: Share | None
    ngram_hashes: NotRequired[NgramHashes]
    repeated_only: NotRequired[bool]


class Bigrams(Manifest):
    """An exported counts table."""

    counts_id: str
    unseen: Share | None


class OtherResult(Manifest):
    """A result of any other kind."""

    options: NotRequired[dict[str, Any]]


class Sequences(Manifest):
    """A text as sequences of ids."""

    options: dict[str, Any]
    sequences_digest: str
    num_rows: int
    num_sequences: int
    seq_len: int
    longest: int
    largest_id: int
    boundary: str
    tokenizer: Tokenizer
    sources: list[list[str]]
    names: list[str]
    limit_tokens: int | str | None
    drawn: NotRequired[Drawn]


class LabelOptions(TypedDict):
    """What determines labels."""

    sequences_digest: str
    counts_id: str | None
    max_count: int | None


class Tokens(Manifest, Labels):
    """The labelled tokens of a slice directory."""

    options: LabelOptions
    sources: list[list[str]]
    limit_tokens: int | str | None
    num_bytes: list[tuple[str, int, int | None]] | None
    drawn: NotRequired[Drawn]


class Words(Manifest):
    """The words of labelled tokens."""

    options: dict[str, Any]
    num_rows: int


class Samples(Manifest):
    """The sampled tokens of an intervention."""

    options: dict[str, Any]
    excluded: dict[str, int]
    changed_tokens: int


class Scores(Manifest):
    """A model's NLLs."""

    options: ScoreOptions
    model: str
    source: str
    sequences_digest: str
    model_digest: str
    dtype: str | None
    num_rows: int
    prefix: Prefix
    tokenizer: dict[str, Any] | None
    read_exactly: int | None
    batch_tokens: NotRequired[int | None]
    context: NotRequired[int | None]
    stride: NotRequired[int | None]
    carry_state: NotRequired[bool | None]
    num_inexact: NotRequired[int]
    state_bytes: NotRequired[int | None]
    state_ids: NotRequired[int | None]
    reading_max: NotRequired[float]
    reading_mean: NotRequired[float]


class Divergence(Scores):
    """How far a model's predictions are from those of another."""


class Pair(TypedDict):
    """The models of a result, by their keys."""

    reference: str
    models: list[str]


class InContext(TypedDict):
    """In-context-learning scores."""

    early: int
    late: int
    sequences: int
    models: dict[str, dict[str, float | None]]


class Gap(Manifest):
    """A comparison of models with a reference."""

    options: Pair
    reference: str
    models: list[str]
    score_files: dict[str, FileName]
    scores: dict[str, ScoreOptions]
    slices: Labels
    cluster: str
    prefixes: dict[str, str]
    inexact: dict[str, dict[str, float]]
    inputs: str
    reading: NotRequired[dict[str, tuple[float, float]]]
    in_context: NotRequired[InContext | None]
    slice: NotRequired[list[str]]
    context_gain: NotRequired[list[tuple[int, int]]]
    placebo: NotRequired[list[str]]
    clean: NotRequired[bool]
    price: NotRequired[bool]
    divergence: NotRequired[bool]


class InterveneOptions(TypedDict):
    """What determines an intervention."""

    models: list[str]
    slices: list[str]
    samples: int
    design: str
    changes: str
    seed: int


class Intervene(Manifest):
    """Causal recall of models."""

    options: InterveneOptions
    models: list[str]
    scores: dict[str, ScoreOptions]
    slices: Labels
    changed_text: FileName
    excluded: dict[str, int]
    changed_tokens: int
    inputs: str


class AblationOptions(TypedDict):
    """What determines an ablation."""

    mixers: list[str]
    by: str
    heads: bool
    budget: int | None
    clean: bool
    cluster: str


class Ablation(Manifest):
    """What each mixer of a model is worth."""

    options: AblationOptions
    model: str
    slices: Labels


class TrackOptions(TypedDict):
    """What determines a tracked run."""

    reference: str | None
    sequences_digest: str
    causal: bool
    slice: list[str]


class Track(Manifest):
    """The checkpoints of a run."""

    options: TrackOptions
    models: list[str]
    sources: list[str]
    score_files: list[FileName]
    scores: list[ScoreOptions]
    slices: Labels
    run: str | None


class Rows(TypedDict):
    """Where a task's rows come from."""

    origin: str
    digest: str
    note: str


class RecallIdentity(Pair):
    """What determines a comparison of answers."""

    tasks: list[str]


class Recall(Manifest):
    """A comparison of models by their answers."""

    options: RecallIdentity
    reference: str
    models: list[str]
    tasks: list[str]
    rows: dict[str, Rows]


class AnswerOptions(TypedDict):
    """What determines answers."""

    task: str
    version: int
    prompt: str
    cut: str


class RecallDocuments(Manifest):
    """A model's answers in one task."""

    options: AnswerOptions
    model: str
    tokenizer: Tokenizer
    num_rows: int
    num_dropped: int
    comparable: bool


class Vocabulary(TypedDict):
    """The ids of synthetic sequences."""

    digest: str
    num_ids: int
    filler: int
    filler_text: str
    prefix: str


class ModelIds(TypedDict):
    """The ids with which a model was tested."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary


class SyntheticTask(Manifest):
    """What determines synthetic sequences."""

    task: str
    power: float | None
    length: int
    num_samples: int
    seed: int


class Mqar(SyntheticTask):
    """A comparison of models in a synthetic task."""

    options: Pair
    reference: str
    models: list[str]
    pairs: list[int]
    of_models: dict[str, ModelIds]


class MqarQueries(SyntheticTask, ModelIds):
    """A model's answers in a synthetic task."""

    model: str
    pairs: int


class Recipe(TypedDict):
    """How a model is trained."""

    learning_rate: float
    batch: int
    decay: str
    lowest: float
    muon: float | None
    lists: Any


class TextIdentity(TypedDict):
    """What determines the text of a training."""

    limit_tokens: int | str | None


class TrainingOptions(TypedDict):
    """What determines a training."""

    model: str
    recipe: Recipe
    seed: int
    seq_len: int
    text: TextIdentity


class Training(Manifest):
    """A training on text."""

    options: TrainingOptions
    checkpoint_every: int | None
    names: list[str]
    parameters: int
    num_steps: int
    tokens: int
    machine: str


class RunTask(TypedDict):
    """The task of a run of a sweep."""

    vocab: int


class Run(TypedDict):
    """What determines a run of a sweep."""

    task: RunTask
    learning_rate: float
    seed: int


class RunOutcome(TypedDict):
    """What came of a run. `by_distance`: of each test the distances up to which, queries, right
    ones."""

    parameters: int
    state_bytes: int
    num_steps: int
    accuracy: float
    loss_nats: float
    by_distance: list[list[tuple[int, int, int]]]
    machine: str


class SweepOptions(TypedDict):
    """What determines a sweep."""

    preset: str
    runs: list[Run]


class Tradeoff(Manifest):
    """A sweep of trainings."""

    options: SweepOptions
    task: str
    machines: list[str]


class StopWords(TypedDict):
    """Words that do not count as content."""

    name: str
    digest: str
    num_words: int


class Profile(Manifest):
    """What a text repeats."""

    num_tokens: int
    num_sequences: int
    seq_len: int
    boundary: str
    tokenizer: Tokenizer
    counts: Counts | None
    max_count: int | None
    threshold: Threshold | None
    names: list[str]
    limit_tokens: int | str | None
    stop_words: StopWords
    x_min: int | None


KINDS: Mapping[str, type] = {
    "bigrams": Bigrams,
    "sequences": Sequences,
    "tokens": Tokens,
    "words": Words,
    "samples": Samples,
    "scores": Scores,
    "divergence": Divergence,
    "gap": Gap,
    "intervene": Intervene,
    "ablation": Ablation,
    "track": Track,
    "recall": Recall,
    "recall documents": RecallDocuments,
    "mqar": Mqar,
    "mqar queries": MqarQueries,
    "mqar fillers": MqarQueries,
    "training": Training,
    "tradeoff": Tradeoff,
    "profile": Profile,
}
"""Kind of a manifest -> its fields; of any other kind those of `OtherResult`."""

_OF_TRACK = ("models", "sources", "score_files", "scores")

_MODELS: Mapping[type, Callable[[Mapping[str, Any]], Sequence[Any]]] = {
    Gap: lambda facts: [
        {facts["reference"], *facts["models"]},
        {*facts["score_files"]},
        {*facts["scores"]},
    ],
    Track: lambda facts: [len(facts[name]) for name in _OF_TRACK],
    Intervene: lambda facts: [{*facts["models"]}, {*facts["scores"]}],
    Mqar: lambda facts: [{*facts["models"]}, {*facts["of_models"]}],
}
"""The models that the fields of a manifest are of, or their number: the same of each."""

COMMANDS = {
    "tokens": "slice",
    "sequences": "slice",
    "scores": "score",
    "divergence": "score",
    "recall": "eval-recall",
    "recall documents": "eval-recall",
    "words": "slice",
    "samples": "intervene",
    "ablation": "ablate",
    "training": "train",
    "tradeoff": "train",
    "mqar queries": "mqar",
}
"""Kind -> the command that makes it, where that has another name."""

# -------------------------------------------------------------------------------------------- check


def some(record: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The fields of a record that have these names, if they are there."""
    return {name: record[name] for name in names if name in record}


def kinds_of(record: type) -> list[str]:
    """The kinds of results that a record describes."""
    return [kind for kind, fields in KINDS.items() if fields is record]


def check_record(facts: Mapping[str, Any], path: Path, record: type | None = None) -> None:
    """Raises UserError, naming a field, unless the manifest in `path` has the fields of a record,
    by default that of its kind."""
    kind = facts.get("kind")
    fields = record or KINDS.get(kind if isinstance(kind, str) else "", OtherResult)
    for problem in chain(_problems(facts, fields, ""), _disagreements(facts, fields)):
        raise UserError(problem, where=path, remedy="make it again with --force")


def check_kind(facts: Mapping[str, Any], path: Path, record: type) -> None:
    """Raises UserError unless a manifest is of a kind that this record describes."""
    kinds = kinds_of(record)
    if kinds and facts.get("kind") not in kinds:
        problem = f"a table of {facts.get('kind')}, not of {' or '.join(kinds)}"
        command = COMMANDS.get(kinds[0], kinds[0])
        raise UserError(problem, where=path, remedy=f"make one with `recallkit {command}`")


def _disagreements(facts: Mapping[str, Any], fields: type) -> Iterator[str]:
    """Where fields that have their types contradict each other."""
    first, *others = _MODELS[fields](facts) if fields in _MODELS else [None]
    if any(other != first for other in others):
        yield "the manifest fields are of different models"


def _problems(value: Any, layout: Any, field: str) -> Iterator[str]:
    """What of a JSON value is not as its type says."""
    options = typing.get_args(layout)
    match typing.get_origin(layout) or layout, value:
        case ((types.UnionType | typing.Union), _):
            problems = [next(_problems(value, option, field), "") for option in options]
            if all(problems):
                yield problems[0]
        case record, dict() if typing.is_typeddict(record):
            for name, (part, is_needed) in _layouts(record).items():
                inner = f"{field}.{name}".lstrip(".")
                if name in value:
                    yield from _problems(value[name], part, inner)
                elif is_needed:
                    yield f"the manifest field {inner} is missing"
        case builtins.dict, dict():
            for name, part in value.items():
                yield from _problems(name, options[0], field)
                yield from _problems(part, options[1], f"{field}.{name}")
        case builtins.list, list():
            for part in value:
                yield from _problems(part, options[0], field)
        case builtins.tuple, list() if len(value) == len(options):
            for part, option in zip(value, options, strict=True):
                yield from _problems(part, option, field)
        case _ if not _is_plain(value, layout):
            shown = textwrap.shorten(json.dumps(value), 40, placeholder=" ...")
            yield f"the manifest field {field or 'itself'} has a wrong value ({shown})"


@cache
def _layouts(record: type) -> Mapping[str, tuple[Any, bool]]:
    """The type of each field, and whether it must be there."""
    hints = typing.get_type_hints(record, include_extras=True)
    optional = {name for name, layout in hints.items() if typing.get_origin(layout) is NotRequired}
    plain = typing.get_type_hints(record)
    return {name: (layout, name not in optional) for name, layout in plain.items()}


def _is_plain(value: Any, layout: Any) -> bool:
    """Whether a value that has no parts, or should have none, is of a type."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST
    if layout in (int, float):
        return is_whole or (layout is float and isinstance(value, float))
    if layout is FileName:
        is_name = isinstance(value, str) and value == PurePath(value).name
        return is_name and value not in ("", "..") and "\0" not in value
    return layout is Any or (layout in (str, bool, types.NoneType) and isinstance(value, layout))
