"""The work of `gap`: scores what is not scored yet, attributes the gap to slices, writes its
tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from recallkit.attribution.tables import GapTables
from recallkit.display import console
from recallkit.display.progress import one_after_another
from recallkit.models.spec import list_models
from recallkit.options import ScoringOptions
from recallkit.scoring.identity import count_inexact, score_path
from recallkit.scoring.run import make_scores, plan_scores
from recallkit.storage import hashing
from recallkit.storage.result import Question, folder_of, words_of
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.measure.labelled import LabelledTokens
    from recallkit.models.spec import ModelSpec
    from recallkit.scoring.windows import LastIds
    from recallkit.slicing.definitions import Slice

    Manifests = Mapping[str, Mapping[str, Any]]
    """Those of score files, by model."""


@dataclass(frozen=True, slots=True)
class GapQuestion:
    """What a comparison asks besides recall and the gap.

    slices: further ones than AR hits and other tokens. cluster: what intervals resample, one of
    CLUSTERS. clean: tokens that are known to be in the training text are left out. context_gain:
    every model is also scored with these last ids alone, for `by_context`. price: what state costs,
    for `by_price`. divergence: every model also reads beside the reference, for `by_divergence`.
    placebo: earlier checkpoints of the reference, for `by_placebo`.
    """

    slices: Sequence[Slice] = ()
    cluster: str = "document"
    clean: bool = False
    context_gain: Sequence[LastIds] = ()
    price: bool = False
    divergence: bool = False
    placebo: Sequence[ModelSpec] = ()

    @property
    def needs_counts(self) -> bool:
        """Whether it is about AR hits, which training counts tell from other repeated bigrams."""
        parts = (self.clean, self.context_gain, self.price, self.divergence, self.placebo)
        return any(parts)

    def options(self) -> dict[str, Any]:
        """What a manifest records of it: only what differs from the usual question."""
        return {name: value for name, value in self.every_option().items() if value}

    def every_option(self) -> dict[str, Any]:
        """The same with empty lists and False."""
        return {
            "slice": [slice_.option for slice_ in self.slices],
            "clean": self.clean,
            "context_gain": [[last.ids, last.stride] for last in self.context_gain],
            "price": self.price,
            "divergence": self.divergence,
            "placebo": [spec.key for spec in self.placebo],
        }


def gap_path(
    slices: Path,
    reference: str | ModelSpec,
    models: Sequence[str | ModelSpec],
    question: GapQuestion = GapQuestion(),
) -> Path:
    """Default folder of the gap between these models, such as `gap/attention-vs-mamba-clean`: each
    question has a folder of its own."""
    first, *others = list_models(reference, list(models))
    words = [first.shown, "vs", *words_of([spec.shown for spec in others])]
    words += [slice_.name for slice_ in question.slices]
    words += [f"context {last.ids}" for last in question.context_gain]
    for name in ("clean", "price", "divergence", "placebo"):
        words += [name] if getattr(question, name) else []
    # What is not asked tells it from a question of more words, which the end of a long name omits.
    options = {name: value or None for name, value in question.every_option().items()}
    return folder_of(slices / "gap", words, _models([first, *others]) | options)


def _models(specs: Sequence[ModelSpec]) -> dict[str, Any]:
    keys = [spec.key for spec in specs]
    return {"reference": keys[0], "models": keys[1:]}


def gap(
    reference: str | ModelSpec,
    models: Sequence[str | ModelSpec],
    slices: Path,
    out: Path | None = None,
    options: ScoringOptions = ScoringOptions(),
    question: GapQuestion = GapQuestion(),
    *,
    force: bool = False,
) -> GapTables:
    """Attributes the gap between `reference` (the attention model) and each model; scores what is
    not scored yet.

    Writes `gap.parquet` and the `by_*` tables to `out` (default `gap_path`). Raises UserError for
    everything a user can correct. `force` applies to these tables only: scores may have taken days,
    and are made again by `score --force` alone.
    """
    from recallkit.measure.labelled import open_tokens
    from recallkit.slicing.words import make_needed_words

    specs = list_models([reference], list(models))
    identity = _models(specs) | question.options()
    folder = out or gap_path(slices, specs[0], specs[1:], question)
    comparison = Question("gap", GapTables, folder, identity, force)
    comparison.check()  # one of other models is not replaced
    # Labels that cannot answer the question are reported before hours of scoring.
    tokens = open_tokens(slices / "tokens.parquet", needs_counts=question.needs_counts)
    tokens.check_known(question.slices, clean=question.clean)
    words = make_needed_words(slices, question.slices)
    scores = _score(specs, slices, options, question)
    _note_other_readings(scores)
    files = _ScoreFiles.answering(specs, slices, question)
    states = _about_states(specs, scores)
    facts = identity | _facts(specs, scores, files, tokens, question)
    inputs = [tokens.path, *words, *files.paths()]
    facts["inputs"] = hashing.digest_inputs([facts, states], inputs)
    if (answer := comparison.answered(facts["inputs"])) is not None:
        return answer
    timings = Timings()
    with timings.stage("attributing") as stage:
        tables, more = _attribute(tokens.path, files, states, question)
        stage.amounts["tokens"] = tokens.num_rows * len(specs)
    comparison.write(tables, facts | more, timings)
    return tables


@dataclass(frozen=True, slots=True)
class _ScoreFiles:
    """The score files of a comparison: of the models by name, the reference first, and of what else
    is asked."""

    scores: Mapping[str, Path]
    checkpoints: Mapping[str, Path]
    by_last: Mapping[LastIds, Sequence[Path]]
    divergences: Mapping[str, Path]

    @classmethod
    def answering(
        cls, specs: Sequence[ModelSpec], slices: Path, question: GapQuestion
    ) -> _ScoreFiles:
        """Those that answer a question about these models."""
        reference, *others = specs
        checkpoints = list_models(list(specs), list(question.placebo))[len(specs) :]
        diverging = others if question.divergence else []
        by_last = {}
        for last in question.context_gain:
            by_last[last] = [score_path(slices, spec, last) for spec in specs]
        return cls(
            {spec.shown: score_path(slices, spec) for spec in specs},
            {spec.shown: score_path(slices, spec) for spec in checkpoints},
            by_last,
            {spec.shown: score_path(slices, spec, against=reference) for spec in diverging},
        )

    def paths(self) -> list[Path]:
        """All of them."""
        last = chain(*self.by_last.values())
        return [
            *self.scores.values(),
            *last,
            *self.divergences.values(),
            *self.checkpoints.values(),
        ]


def _score(
    specs: Sequence[ModelSpec],
    slices: Path,
    options: ScoringOptions,
    question: GapQuestion,
) -> Manifests:
    """Scores what the question needs and is not scored yet; the manifests of the models' scores."""
    plans = plan_scores(list_models(list(specs), list(question.placebo)), slices, options)
    compared = plans[: len(specs)]
    reference, *others = compared
    pairs = [plan.against(reference) for plan in others] if question.divergence else []
    shorter = [plan.from_last(last) for last in question.context_gain for plan in compared]
    # Pairs first: what they read is scored on the way.
    runs = [*pairs, *plans, *shorter]
    manifests = [make_scores(plan) for plan in one_after_another(runs)]
    names = [spec.shown for spec in specs]
    return dict(zip(names, manifests[len(pairs) :], strict=False))


def _facts(
    specs: Sequence[ModelSpec],
    scores: Manifests,
    files: _ScoreFiles,
    tokens: LabelledTokens,
    question: GapQuestion,
) -> dict[str, Any]:
    """The fields of the manifest besides the question and what the tables are made of."""
    slices = tokens.path.parent
    reference, *models = scores
    exactly = max(manifest.get("read_exactly") or 0 for manifest in scores.values())
    inexact = {spec.shown: count_inexact(spec, slices) for spec in specs}
    reading = {
        name: [manifest["reading_max"], manifest["reading_mean"]]
        for name, manifest in scores.items()
        if "reading_max" in manifest
    }
    return {
        "reference": reference,
        "models": models,
        "score_files": {name: path.name for name, path in files.scores.items()},
        "cluster": question.cluster,
        "slices": {**tokens.facts, "read_exactly": exactly},
        "scores": {name: manifest["options"] for name, manifest in scores.items()},
        # Of control models there is none, and of recorded NLLs it may not be stated.
        "prefixes": {
            name: manifest["prefix"]["token"]
            for name, manifest in scores.items()
            if manifest["options"]["dtype"] is not None or manifest["prefix"]["reason"]
        },
        "inexact": {name: share for name, share in inexact.items() if share is not None},
        **({"reading": reading} if reading else {}),
    }


def _attribute(
    tokens: Path,
    files: _ScoreFiles,
    states: Mapping[str, Mapping[str, Any]],
    question: GapQuestion,
) -> tuple[GapTables, dict[str, Any]]:
    """The tables of a comparison, and further facts of its manifest."""
    from recallkit.attribution.context_gain import context_gains, in_context_scores
    from recallkit.attribution.divergence import divergences
    from recallkit.attribution.placebo import placebos
    from recallkit.attribution.price import prices
    from recallkit.attribution.tables import attribute_gap

    usual: dict[str, Any] = {"cluster": question.cluster, "clean": question.clean}
    scores, slices = files.scores, question.slices
    names, (reference, *models) = list(scores), scores.values()
    tables = attribute_gap(tokens, reference, models, names=names, slices=slices, **usual)
    further: dict[str, pl.DataFrame] = {}
    facts: dict[str, Any] = {}
    if question.context_gain:
        further["by_context"] = context_gains(tokens, scores, files.by_last, **usual)
        facts["in_context"] = in_context_scores(tokens, scores, **usual)
    if question.price:
        further["by_price"] = prices(tokens, scores, states, **usual)
    if question.placebo:
        further["by_placebo"] = placebos(tokens, scores, files.checkpoints, **usual)
    if question.divergence:
        pairs = files.divergences
        further["by_divergence"] = divergences(tokens, names[0], pairs, slices=slices, **usual)
    return replace(tables, **further), facts


def _about_states(specs: Sequence[ModelSpec], scores: Manifests) -> dict[str, dict[str, Any]]:
    """Of each model that of which it is a variant, and the bytes of its state and after how many
    ids, where the scores have them."""
    # The model itself names a family if it is among them, else one with all of its mixers, else one
    # of its variants: the last one of a location in this order remains.
    order = sorted(specs, key=lambda spec: (spec.variant is None, spec.ablation is None))
    family = {spec.location: spec.shown for spec in order}
    states = {}
    for spec in specs:
        manifest = scores[spec.shown]
        size = {name: manifest.get(name) for name in ("state_bytes", "state_ids")}
        states[spec.shown] = {"family": family[spec.location], **size}
    return states


def _note_other_readings(scores: Manifests) -> None:
    """Reports models that were scored in another precision or context: part of their gap is due to
    that."""
    options = {model: manifest["options"] for model, manifest in scores.items()}
    if all(option["dtype"] is None for option in options.values()):  # none of them was run
        return
    for name in ("dtype", "context", "stride", "carry_state"):
        values = {model: option.get(name) for model, option in options.items()}
        if name == "dtype":
            values = {model: value for model, value in values.items() if value is not None}
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{model} {value or 'default'}" for model, value in values.items())
            console.note(f"scored with different {name}: {listed}")
