"""A model to be evaluated: its identity, its tokenizer, and the model itself, loaded when first needed."""

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
    identify_tokenizer,
    load_unchanged,
    on_its_device,
    tokenizer_name,
    usual_tokenizer,
)
from recallkit.models.protocol import ModelFacts, ModelRequest
from recallkit.models.recorded import needs_model
from recallkit.models.spec import list_models, one_model
from recallkit.storage import artifacts
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
Made = TypeVar("Made")

_USUAL_DTYPE = "float32"
_SPARE_ENTRIES = 256
"""Entries that a model's vocabulary may have beyond its tokenizer's: rounding up, and tokens that were never used."""


def open_models(
    models: Sequence[str | ModelSpec], options: EvaluationOptions, make: Callable[[ModelSpec], Evaluated]
) -> dict[str, Evaluated]:
    """What `make` makes of each model, by the names that results show; none is loaded.

    Raises UserError for a model that does not exist or is named twice, and where the table of counts that is named is none.
    """
    if options.counts is not None:
        from recallkit.counting.table import read_meta

        read_meta(path(options.counts))
    return {spec.shown: make(spec) for spec in list_models(models)}


def missing_results(models: Mapping[str, EvaluatedModel], results: Mapping[tuple[str, Any], Result]) -> list[tuple[str, Any]]:
    """The models and questions whose results are to be made. Raises UserError for what is wrong with these models, before one is loaded."""
    missing = [key for key, result in results.items() if not result.is_complete()]
    for model in dict.fromkeys(model for model, _ in missing):
        _ = models[model].facts
    return missing


def make_missing(
    models: Mapping[str, Evaluated], results: Mapping[tuple[str, Any], Result], make: Callable[[Evaluated, Any, Result], Made]
) -> dict[tuple[str, Any], Made]:
    """Makes the results that are not complete, one model after the other, so that one is in memory at a time: what `make` returns of each.

    If that ends with a UserError, a note says how many are complete.
    """
    made = {}
    try:
        for name, model in one_after_another(list(models.items())):
            with model.in_use():
                for (of, question), result in results.items():
                    if of == name and not result.is_complete():
                        made[of, question] = make(model, question, result)
    except UserError:
        done = sum(result.path.exists() for result in results.values())
        if done:
            console.note(f"{done} of {len(results)} tables are complete, and are reused once the rest is fixed")
        raise
    return made


def check_named_once(kind: str, names: Sequence[str]) -> None:
    """Raises UserError if a name of this kind is given twice."""
    if len(set(names)) < len(names):
        raise UserError(f"a {kind} is named twice", where=" ".join(names), remedy="name each once")


class EvaluatedModel:
    """A model as the user named it, loaded when first needed; its own options come before those of all.

    `spec` is where it is, `shown` what results call it, `key` what they are filed under; `default_counts` gives the counts of a control
    model for which none are named. Raises UserError if it does not exist.
    """

    takes: ClassVar[tuple[str, ...]] = ("tokenizer", "bos", "dtype", "context", "device")
    """The options that it may have of its own."""

    def __init__(self, model: str | ModelSpec, options: EvaluationOptions, default_counts: Callable[[], Path]) -> None:
        model = one_model(model)
        if kind_of(model.location).name == "recorded":
            raise needs_model(model.shown)
        for name in ("context", "stride"):
            if name not in self.takes and getattr(model, name) is not None:
                raise UserError(f"{name} is not an option of a model here", where=model.shown, remedy="leave it out")
        own = {name: value for name in self.takes if name not in ("tokenizer", "bos") and (value := getattr(model, name)) is not None}
        if model.is_live and options.dtype == _USUAL_DTYPE:
            own.setdefault("dtype", "auto")  # the precision that it has
        options = replace(options, **own)
        check_device(options.device)
        self.spec, self.shown, self.key = model.location, model.shown, model.key
        self._bos = model.bos
        self._module, self._ablation, self._variant = model.path if model.is_live else None, model.ablation, model.variant
        replaced = "evaluate it again with force=True" if model.is_live else REPLACE
        self.remedy = f"give this model another name, or {replaced}" if model.is_live or model.name else replaced
        tokenizer = options.model_tokenizer if model.tokenizer is None else model.tokenizer
        self.options = replace(options, model_tokenizer=tokenizer_name(tokenizer))
        self._default_counts = default_counts

    @property
    def copies_text(self) -> bool:
        """Whether it is the text control."""
        return self.spec == COPY_CONTROL

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What determines its answers, found without loading it."""
        from recallkit.models.loading import identify_model

        options = self.options
        if self.copies_text:
            return {"model_digest": artifacts.digest_json([self.spec, VERSION]), "tokenizer": self.tokenizer.digest}
        context = {} if options.context is None else {"context": options.context}
        if self.is_control:
            return {"model_digest": identify_model(self._request), "tokenizer": self.tokenizer.digest, **context}
        tokenizer = identify_tokenizer(self.spec, options.model_tokenizer)
        ends = Path(self.spec) / "generation_config.json"  # the ids at which it stops
        prefix = list(self.prefix.ids) or None
        known = {"tokenizer": tokenizer, "prefix": prefix, "generation_config": artifacts.digest_file(ends) if ends.is_file() else None}
        kept = {name: value for name, value in known.items() if value is not None}
        return {"model_digest": identify_model(self._bare_request), "dtype": self._dtype, **kept, **context}

    @cached_property
    def _dtype(self) -> str:
        """The precision, `auto` resolved."""
        return find_precision(ModelRequest(self.spec, 0, device=self.options.device, dtype=self.options.dtype, module=self._module))

    @cached_property
    def facts(self) -> ModelFacts:
        """What is known of it before its weights are read. Raises UserError for everything that can be known to be wrong by then."""
        if self.copies_text:
            return ModelFacts()
        facts = check_model(self._request)
        if facts.vocab_size is not None:
            self._check_vocabulary(facts.vocab_size)
        check_memory(self._bare_request, facts)
        return facts

    @property
    def is_control(self) -> bool:
        """Whether it is made of counts, or copies text."""
        return kind_of(self.spec).is_control

    @cached_property
    def _named_tokenizer(self) -> str | None:
        """The tokenizer that the user names, or that comes with the model; for the zoo, the built-in one."""
        return usual_tokenizer(self.spec, self.options.model_tokenizer)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """Its own tokenizer, or the one that the user names; the built-in one if neither is known."""
        from recallkit.text.tokenizers import BUILTIN, load_tokenizer

        name = self._named_tokenizer
        if name is None and not self.is_control:
            console.note(f"{self.shown}: no tokenizer beside it; {BUILTIN} is assumed (to name its own: PATH,tokenizer=...)")
        try:
            return load_tokenizer(name)
        except UserError as error:
            remedy = (
                "give another --model-tokenizer" if self.options.model_tokenizer else "give the model's tokenizer with --model-tokenizer"
            )
            raise UserError(f"its tokenizer cannot be read ({error.problem})", where=name, remedy=remedy) from error

    @cached_property
    def prefix(self) -> Prefix:
        """What it reads before every text."""
        return NO_PREFIX if self.is_control else choose_prefix(self._bare_request, self.tokenizer, self._bos)

    @property
    def _request(self) -> ModelRequest:
        """The request with the tokenizer in use and, for control models, the counts: the default ones unless others are given."""
        counts = path(self.options.counts)
        if counts is None and self.is_control:
            counts = self._default_counts()
        tokenizer = self.tokenizer
        read = replace(self._bare_request, vocab_size=tokenizer.vocab_size, prefix=self.prefix)
        return replace(read, tokenizer=tokenizer.describe(), counts=counts)

    @property
    def _bare_request(self) -> ModelRequest:
        """The request without tokenizer and counts."""
        return ModelRequest(
            self.spec,
            0,
            device=self.options.device,
            dtype="float32" if self.is_control else self._dtype,
            trust_remote_code=self.options.trust_remote_code,
            cuda_graphs=not self.options.no_cuda_graphs,
            shown=self.shown,
            module=self._module,
            ablation=self._ablation,
            variant=self._variant,
        )

    @cached_property
    def model(self) -> ScoringModel:
        """The model, loaded. Raises UserError if it does not load, or its vocabulary is not its tokenizer's."""
        from recallkit.models.loading import load_model, warn_remote_code

        warn_remote_code(self._request, console.note)
        model = load_model(self._request)
        self._check_vocabulary(model.vocab_size)
        if model.vocab_size > 2 * self.tokenizer.vocab_size:
            console.note(
                f"{self.shown}: {model.vocab_size:,} entries, but {self.tokenizer.name} has {self.tokenizer.vocab_size:,}: "
                "is this the right tokenizer?"
            )
        return model

    def _check_vocabulary(self, vocab_size: int) -> None:
        """Raises UserError where a tokenizer that was only supposed has far fewer entries than the model."""
        spare = vocab_size - self.tokenizer.vocab_size
        if self._named_tokenizer is None and not self.is_control and spare > _SPARE_ENTRIES:
            problem = f"no tokenizer beside it, and its vocabulary of {vocab_size:,} entries is not that of {self.tokenizer.name}"
            raise UserError(problem, where=self.spec, remedy="name its own with --model-tokenizer")

    def load_in(self, slot: WorkerSlot) -> ScoringModel:
        """The model, loaded for a worker. Raises UserError if its files have changed since this was sent there."""
        return load_unchanged(on_its_device(self._request, slot), self.identity["model_digest"])

    def __getstate__(self) -> dict[str, Any]:
        """What goes to workers: all but the model, whose identity is known there."""
        _ = self.identity
        return {name: value for name, value in self.__dict__.items() if name != "model"}

    def unload(self) -> None:
        """Frees the memory of the model, which is loaded again when it is needed."""
        if self.__dict__.pop("model", None) is not None:
            empty_cache()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """A block in which it is loaded when it is needed; at its end its memory is free for the next, and a live model as it was."""
        from recallkit.models.live import evaluating

        with evaluating(self._module):
            try:
                yield
            finally:
                self.unload()
