"""A model to be evaluated: its identity, its tokenizer, and the model itself, loaded when first
needed."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from recallkit.config import VERSION
from recallkit.declarations import path
from recallkit.display import console
from recallkit.display.progress import one_after_another
from recallkit.errors import UserError
from recallkit.models.devices import check_device, empty_cache
from recallkit.models.kinds import COPY_CONTROL, kind_of
from recallkit.models.loading import (
    check_memory,
    check_model,
    choose_prefix,
    find_precision,
    identify_model,
    identify_tokenizer,
    load_model,
    load_unchanged,
    on_its_device,
    tokenizer_name,
    tokenizer_remedy,
    usual_tokenizer,
    warn_remote_code,
)
from recallkit.models.plan import ModelPlan
from recallkit.models.protocol import ModelFacts
from recallkit.models.recorded import needs_model
from recallkit.models.spec import list_models, one_model
from recallkit.storage import hashing
from recallkit.storage.result import REPLACE
from recallkit.text.special_tokens import NO_PREFIX, Prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from recallkit.models.protocol import ScoringModel
    from recallkit.models.spec import ModelSpec
    from recallkit.options import EvaluationOptions
    from recallkit.parallel.job import WorkerSlot
    from recallkit.storage.result import Result
    from recallkit.text.tokenizers import TextTokenizer


Evaluated = TypeVar("Evaluated", bound="EvaluatedModel")
Answer = TypeVar("Answer")

_USUAL_DTYPE = "float32"
_SPARE_ENTRIES = 256
"""Entries that a model's vocabulary may have beyond its tokenizer's: rounding up, and tokens that
were never used."""


def open_models(
    models: Sequence[str | ModelSpec],
    options: EvaluationOptions,
    make: Callable[[ModelSpec], Evaluated],
) -> dict[str, Evaluated]:
    """What `make` makes of each model, by the names that results show; none is loaded.

    Raises UserError for a model that does not exist or is named twice, and where the table of
    counts that is named is none.
    """
    if options.counts is not None:
        from recallkit.counting.table import read_meta

        read_meta(path(options.counts))
    return {spec.shown: make(spec) for spec in list_models(models)}


def missing_results(
    models: Mapping[str, EvaluatedModel],
    results: Mapping[tuple[str, Any], Result],
) -> list[tuple[str, Any]]:
    """The models and questions whose results are to be made. Raises UserError for what is wrong
    with these models, before one is loaded."""
    missing = [key for key, result in results.items() if not result.is_complete()]
    for model in dict.fromkeys(model for model, _ in missing):
        _ = models[model].facts
    return missing


def make_missing(
    models: Mapping[str, Evaluated],
    results: Mapping[tuple[str, Any], Result],
    make: Callable[[Evaluated, Any, Result], Answer],
) -> dict[tuple[str, Any], Answer]:
    """Makes the results that are not complete, one model after the other, so that one is in memory
    at a time: what `make` returns of each.

    If that ends with a UserError, a note says how many are complete.
    """
    answers = {}
    try:
        for name, model in one_after_another(list(models.items())):
            questions = [question for owner, question in results if owner == name]
            with model.in_use():
                for question in questions:
                    result = results[name, question]
                    if not result.is_complete():
                        answers[name, question] = make(model, question, result)
    except UserError:
        done = sum(result.path.exists() for result in results.values())
        if done:
            tables = f"{done} of {len(results)} tables are complete"
            console.note(f"{tables}, and are reused once the rest is fixed")
        raise
    return answers


def check_named_once(kind: str, names: Sequence[str]) -> None:
    """Raises UserError if a name of this kind is given twice."""
    if len(set(names)) < len(names):
        problem = f"a {kind} is named twice"
        raise UserError(problem, where=" ".join(names), remedy="name each once")


class EvaluatedModel:
    """A model that is evaluated, identified and loaded when that is first needed.

    `spec` is what the user named; `context` the most ids that it reads, as the user says;
    `default_counts` gives the counts of a control model for which none are named. Raises UserError
    if it does not exist.
    """

    takes_context: ClassVar[bool] = True
    """Whether it may have a context of its own."""

    def __init__(
        self,
        model: str | ModelSpec,
        options: EvaluationOptions,
        default_counts: Callable[[], Path],
    ) -> None:
        spec = one_model(model)
        if kind_of(spec.location).name == "recorded":
            raise needs_model(spec.shown)
        refused = ("stride",) if self.takes_context else ("context", "stride")
        for name in refused:
            if getattr(spec, name) is not None:
                problem = f"{name} is not an option of a model here"
                raise UserError(problem, where=spec.shown, remedy="leave it out")
        check_device(spec.device or options.device)
        self.spec = spec
        self.context = options.context if spec.context is None else spec.context
        replaced = "evaluate it again with force=True" if spec.is_live else REPLACE
        renamed = f"give this model another name, or {replaced}"
        self.remedy = renamed if spec.is_live or spec.name else replaced
        own = spec.tokenizer
        self._tokenizer_option = tokenizer_name(options.model_tokenizer if own is None else own)
        self._options, self._default_counts = options, default_counts

    @property
    def location(self) -> str:
        """Where it is."""
        return self.spec.location

    @property
    def shown(self) -> str:
        """What results call it."""
        return self.spec.shown

    @property
    def key(self) -> str:
        """What its results are filed under."""
        return self.spec.key

    @property
    def copies_text(self) -> bool:
        """Whether it is the text control."""
        return self.location == COPY_CONTROL

    @property
    def is_control(self) -> bool:
        """Whether it is made of counts, or copies text."""
        return kind_of(self.location).is_control

    @cached_property
    def plan(self) -> ModelPlan:
        """Everything that is needed to load it, found without doing so. Counts of a control model
        are the default ones unless others are named."""
        options, spec, tokenizer = self._options, self.spec, self.tokenizer
        counts = path(options.counts)
        dtype = spec.dtype or options.dtype
        if spec.is_live and dtype == _USUAL_DTYPE:
            dtype = "auto"  # the precision that it has
        if self.is_control:
            dtype = _USUAL_DTYPE
            counts = counts or self._default_counts()
        plan = ModelPlan.with_options(
            spec,
            options,
            vocab_size=tokenizer.vocab_size,
            tokenizer=tokenizer.describe(),
            counts=counts,
            dtype=dtype,
        )
        plan = replace(plan, dtype=find_precision(plan), prefix=self.prefix)
        return replace(plan, digest=identify_model(plan))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What determines its answers, found without loading it."""
        if self.copies_text:
            digest = hashing.digest_json([self.location, VERSION])
            return {"model_digest": digest, "tokenizer": self.tokenizer.digest}
        context = {} if self.context is None else {"context": self.context}
        digest = self.plan.digest
        if self.is_control:
            return {"model_digest": digest, "tokenizer": self.tokenizer.digest, **context}
        ends = Path(self.location) / "generation_config.json"  # the ids at which it stops
        optional = {
            "tokenizer": identify_tokenizer(self.location, self._tokenizer_option),
            "prefix": list(self.prefix.ids) or None,
            "generation_config": hashing.digest_file(ends) if ends.is_file() else None,
        }
        known = {name: value for name, value in optional.items() if value is not None}
        return {"model_digest": digest, "dtype": self.plan.dtype, **known, **context}

    @cached_property
    def facts(self) -> ModelFacts:
        """What is known of it before its weights are read. Raises UserError for everything that can
        be known to be wrong by then."""
        if self.copies_text:
            return ModelFacts()
        facts = check_model(self.plan)
        if facts.vocab_size is not None:
            self._check_vocabulary(facts.vocab_size)
        check_memory(self.plan, facts)
        return facts

    @cached_property
    def _named_tokenizer(self) -> str | None:
        """The tokenizer that the user names, or that comes with the model; for the zoo, the
        built-in one."""
        return usual_tokenizer(self.location, self._tokenizer_option)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """Its own tokenizer, or the one that the user names; the built-in one if neither is
        known."""
        from recallkit.text.tokenizers import BUILTIN, load_tokenizer

        name = self._named_tokenizer
        if name is None and not self.is_control:
            assumed = f"{BUILTIN} is assumed (to name its own: PATH,tokenizer=...)"
            console.note(f"{self.shown}: no tokenizer beside it; {assumed}")
        try:
            return load_tokenizer(name)
        except UserError as error:
            problem = f"its tokenizer cannot be read ({error.problem})"
            remedy = tokenizer_remedy(self._tokenizer_option)
            raise UserError(problem, where=name, remedy=remedy) from error

    @cached_property
    def prefix(self) -> Prefix:
        """What it reads before every text."""
        if self.is_control:
            return NO_PREFIX
        return choose_prefix(ModelPlan(self.spec), self.tokenizer)

    @cached_property
    def model(self) -> ScoringModel:
        """The model, loaded. Raises UserError if it does not load, or its vocabulary is not its
        tokenizer's."""
        warn_remote_code(self.plan, console.note)
        model = load_model(self.plan)
        self._check_vocabulary(model.vocab_size)
        if model.vocab_size > 2 * self.tokenizer.vocab_size:
            entries = f"{model.vocab_size:,} entries"
            fewer = f"{self.tokenizer.name} has {self.tokenizer.vocab_size:,}"
            console.note(f"{self.shown}: {entries}, but {fewer}: is this the right tokenizer?")
        return model

    def _check_vocabulary(self, vocab_size: int) -> None:
        """Raises UserError where a tokenizer that was only supposed has far fewer entries than the
        model."""
        spare = vocab_size - self.tokenizer.vocab_size
        if self._named_tokenizer is None and not self.is_control and spare > _SPARE_ENTRIES:
            vocabulary = f"its vocabulary of {vocab_size:,} entries"
            problem = (
                f"no tokenizer beside it, and {vocabulary} is not that of {self.tokenizer.name}"
            )
            remedy = "name its own with --model-tokenizer"
            raise UserError(problem, where=self.location, remedy=remedy)

    def load_in(self, slot: WorkerSlot) -> ScoringModel:
        """The model, loaded for a worker. Raises UserError if its files have changed since this was
        sent there."""
        return load_unchanged(on_its_device(self.plan, slot))

    def __getstate__(self) -> dict[str, Any]:
        """What goes to workers: all but the model, whose identity is known there."""
        _ = self.plan
        return {name: value for name, value in self.__dict__.items() if name != "model"}

    def unload(self) -> None:
        """Frees the memory of the model, which is loaded again when it is needed."""
        if self.__dict__.pop("model", None) is not None:
            empty_cache()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """A block in which it is loaded when it is needed; at its end its memory is free for the
        next, and a live model as it was."""
        from recallkit.models.live import evaluating

        with evaluating(self.spec.path if self.spec.is_live else None):
            try:
                yield
            finally:
                self.unload()
