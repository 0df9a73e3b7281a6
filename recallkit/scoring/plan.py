"""The scores of a slice directory under one model, as a plan: everything that decides them, in one
value, which workers get."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from recallkit.config import SEQUENCES_PER_PART, sequences_per_row_group
from recallkit.declarations import amount, path
from recallkit.errors import UserError
from recallkit.models.devices import main_device
from recallkit.models.kinds import ModelKind, kind_of
from recallkit.models.loading import (
    check_model,
    identify_model,
    identify_tokenizer,
    load_unchanged,
    on_its_device,
    tokenizer_name,
)
from recallkit.models.plan import ModelPlan
from recallkit.models.recorded import file_for
from recallkit.scoring.identity import score_facts, score_path, sequences_of
from recallkit.scoring.windows import ContextWindow, LastIds, check_context, longest_sequence
from recallkit.storage import parquet_files, records
from recallkit.storage.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from recallkit.models.spec import ModelSpec
    from recallkit.options import ScoringOptions
    from recallkit.parallel.job import WorkerSlot
    from recallkit.parallel.parts import Share
    from recallkit.scoring.scorer import Scorer
    from recallkit.scoring.scores import SequenceReader
    from recallkit.storage.journal import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringPlan(ModelPlan):
    """One model's scores, finished or to be made. See `parallel.parts.PartsJob` for what workers
    need of it."""

    slices: Path
    sequences: Mapping[str, Any]
    """The manifest of the sequences, with the `counts` of their labels."""
    options: ScoringOptions
    """Those of the command, for all of its models."""
    result: Result
    window: ContextWindow = ContextWindow()
    tokenizer_option: str | None = None
    """The model's tokenizer as the user names it."""
    own_tokenizer: str | None = None
    """The name of the model's own tokenizer, if it is not that of the slices."""
    share: Share | None = None
    pair: tuple[ScoringPlan, ScoringPlan] | None = None
    """Of a divergence: the plans of the model's own scores and of the reference's, see
    `against`."""
    sequences_per_part: int = 0
    """Sequences that are scored and stored together."""
    parts: Parts | None = None
    """Where unfinished work is, once it is begun."""

    unit: ClassVar[str] = "tokens"
    doing: ClassVar[str] = "scoring"
    remedy: ClassVar[str] = "give fewer --workers or a smaller --batch-tokens"
    max_items_per_task: ClassVar[int] = 8

    @classmethod
    def of_slices(
        cls,
        spec: ModelSpec,
        slices: Path,
        options: ScoringOptions,
        scored: Mapping[str, Any],
    ) -> Self:
        """The plan of a model whose options are its own, else the command's, else those of existing
        scores (`scored`, empty if there are none); it is not identified yet.

        Raises UserError for options that such a model does not have.
        """
        sequences = sequences_of(slices)
        # Counts of the labels are those of control models, too, unless others are named.
        counts = sequences["counts"] if options.counts is None else None
        dtype = spec.dtype or options.dtype or ("auto" if spec.is_live else scored.get("dtype"))
        plan = cls.with_options(
            spec,
            options,
            vocab_size=sequences["tokenizer"]["vocab_size"],
            largest_id=sequences["largest_id"],
            tokenizer=sequences["tokenizer"],
            counts=path(counts["path"] if counts else options.counts),
            counts_id=counts["id"] if counts else None,
            dtype=dtype or "float32",
            slices=slices,
            sequences=sequences,
            options=options,
            result=Result(score_path(slices, spec), "scores", {}),
            sequences_per_part=min(
                SEQUENCES_PER_PART,
                sequences_per_row_group(sequences["seq_len"]),
            ),
        )
        if plan.kind.name == "recorded":
            _check_recorded(spec)
            return plan
        tokenizer = options.model_tokenizer if spec.tokenizer is None else spec.tokenizer
        before = (scored.get("tokenizer") or {}).get("given")
        plan = replace(
            plan,
            window=_window(spec, options, scored),
            tokenizer_option=tokenizer_name(tokenizer) or before,
        )
        if not plan.kind.is_run and (plan.tokenizer_option or plan.window.carry):
            problem = f"{plan.kind.called} is of the slices' own tokens and keeps no state"
            remedy = "leave out --model-tokenizer and --carry-state"
            raise UserError(problem, where=plan.location, remedy=remedy)
        return plan

    @property
    def location(self) -> str:
        """See `ModelPlan.location`; of changed text, recorded NLLs have a file of their own."""
        location = self.spec.location
        is_recorded = kind_of(location).name == "recorded"
        return file_for(location, self.slices) if is_recorded else location

    @property
    def kind(self) -> ModelKind:
        """The model's kind."""
        return kind_of(self.location)

    def identity(self) -> dict[str, Any]:
        """Everything that determines the numbers; options with their usual values are left out."""
        optional = {
            "tokenizer": identify_tokenizer(self.location, self.tokenizer_option),
            "prefix": list(self.prefix.ids) or None,
            "context": self.window.context,
            "stride": self.window.stride,
            "carry_state": self.window.carry or None,
        }
        return {
            "model_digest": self.digest,
            "sequences_digest": self.sequences["sequences_digest"],
            "dtype": self.dtype if self.kind.is_run else None,
            **{name: value for name, value in optional.items() if value is not None},
        }

    def facts(self) -> dict[str, Any]:
        """What the manifest has on the model, and on how it reads."""
        num_rows = self.sequences["num_rows"]
        facts = score_facts(self.result, self.name, self.location, self.prefix, num_rows)
        return facts | {"typed": None if self.spec.is_live else self.spec.typed()}

    @property
    def main_device(self) -> str | None:
        """Where the model is computed; None where that is not chosen here: by formulas, by a
        server, by the program of a live model."""
        if not self.kind.has_logits or self.spec.is_live:
            return None
        return str(main_device(self.device))

    # --------------------------------------------------------------------- plans of other scores

    def from_last(self, last: LastIds) -> ScoringPlan:
        """The plan of the same model's scores from its `last` ids alone, filed beside these.

        Raises UserError where windows would contain whole sequences, and for a model that cannot
        read so, or other ids than the slices'.
        """
        if self.kind.name == "recorded":
            problem = f"{self.kind.called} has no scores from the last ids alone"
            remedy = "give the model itself, or leave out the context gain"
            raise UserError(problem, where=self.name, remedy=remedy)
        if self._reads_other_ids():
            problem = "another tokenizer, so its last ids cover other text than the reference's"
            remedy = "compare models of the slices' tokenizer"
            raise UserError(problem, where=self.name, remedy=remedy)
        seq_len = self.sequences["seq_len"]
        if last.most >= seq_len:
            sequences = f"whole sequences of {seq_len:,} predictions"
            problem = f"windows of {last.most:,} ids contain {sequences}"
            remedy = "give fewer ids, or slice with a larger --seq-len"
            raise UserError(problem, where=f"the last {last.ids:,} ids", remedy=remedy)
        windows = ("context", "stride", "carry_state")
        options = {k: value for k, value in self.result.options.items() if k not in windows}
        result = Result(
            score_path(self.slices, self.spec, last),
            "scores",
            {**options, "last": last.ids, "stride": last.stride},
            force=self.result.force,
            remedy="delete this file",
        )
        plan = replace(self, result=result, window=last.window)
        if result.finished() is None:
            plan.check_context(check_model(self).max_length)
        return plan

    def against(self, reference: ScoringPlan) -> ScoringPlan:
        """The plan of the divergence of this model's predictions from a reference's, filed beside
        its scores.

        The two read the text side by side, so that the scores of each are made, too, where they are
        missing. Raises UserError for a model that gives no predictions over the whole vocabulary,
        and for two that read other ids, or in other windows.
        """
        for plan in (self, reference):
            if not plan.kind.has_logits:
                lacking = "gives no predictions over the whole vocabulary"
                problem = f"{plan.kind.called} {lacking}, which a divergence needs"
                remedy = "leave out this model, or the divergence"
                raise UserError(problem, where=plan.name, remedy=remedy)
            if plan._reads_other_ids():
                vocabularies = "predictions over different vocabularies have no divergence"
                remedy = "compare models of the slices' tokenizer, or leave out the divergence"
                raise UserError(
                    f"another tokenizer: {vocabularies}", where=plan.name, remedy=remedy
                )
        if self._effective_window() != reference._effective_window():
            problem = f"it and {reference.name} read sequences in different windows"
            remedy = "give both the same --context and --stride"
            raise UserError(problem, where=self.name, remedy=remedy)
        options = {**self.result.options, "reference": reference.result.options}
        file = score_path(self.slices, self.spec, against=reference.spec)
        result = Result(file, "divergence", options, remedy="delete this file")
        return replace(self, result=result, pair=(self, reference))

    def _reads_other_ids(self) -> bool:
        """Whether its tokenizer is not that of the slices, by the plan or by finished scores."""
        finished = self.result.finished() or {}
        return self.own_tokenizer is not None or finished.get("tokenizer") is not None

    def _effective_window(self) -> ContextWindow:
        """How the longest sequence is read: at once, whatever the options, or in these windows."""
        if self.window.carry:
            return self.window
        longest, limit = longest_sequence(self.slices), check_model(self).max_length
        context = check_context(self.name, limit, self.window, longest, self.prefix.ids)
        return ContextWindow() if context is None else replace(self.window, context=context)

    def check_context(self, max_length: int | None) -> None:
        """Raises UserError if a sequence is longer than a known context, as scoring it would, and
        where a variant is not read so."""
        variant = self.variant
        if variant is not None and variant.reads_in_chunks and self.window.carry:
            problem = "a variant carries its compressed state already"
            raise UserError(problem, where=self.name, remedy="leave out --carry-state")
        once = None if variant is None else variant.once
        if once is not None and self.own_tokenizer is not None:
            counted = "protocol=once counts ids of the slices' tokenizer"
            problem = f"{counted}, and the model has another"
            raise UserError(problem, where=self.name, remedy="leave it out")
        if self.own_tokenizer is not None or self.window.carry:
            return
        longest = longest_sequence(self.slices)
        context = check_context(self.name, max_length, self.window, longest, self.prefix.ids)
        if once is None:
            return
        if context is not None:
            needs = "protocol=once needs sequences that are read at once"
            problem = f"{needs}, but these are read in windows of {context:,} ids"
            remedy = "leave it out, or slice with a smaller --seq-len"
            raise UserError(problem, where=self.name, remedy=remedy)
        seq_len = self.sequences["seq_len"]
        if once >= seq_len:
            sequences = f"sequences of {seq_len:,} predictions"
            problem = f"{sequences} have none after their first {once:,} ids"
            remedy = "give a smaller once:K, or slice with a larger --seq-len"
            raise UserError(problem, where=self.name, remedy=remedy)

    def intact(self) -> ScoringPlan:
        """The plan of the model with all of its mixers."""
        plan = replace(self, spec=replace(self.spec, ablate=None, name=None, shown=""))
        return replace(plan, digest=identify_model(plan))

    # ------------------------------------------------------------------------- what workers need

    @property
    def where(self) -> str:
        """The model, and how much of its context it reads if that is not all."""
        sentence = self.name
        if self.pair is not None:
            sentence += f" against {self.pair[1].name}"
        window = self.window
        if window.in_steps and window.context and window.stride:
            sentence += f", last {window.context - window.stride + 1:,} ids"
        return sentence

    @property
    def sides(self) -> tuple[ScoringPlan, ...]:
        """The models that are loaded: this one, and the reference beside it."""
        return (self,) if self.pair is None else (self, self.pair[1])

    @property
    def prefers_gpu(self) -> bool:
        """Whether a GPU would be used."""
        return all(side.device != "cpu" for side in self.sides)

    def begun(self, parts: Parts) -> ScoringPlan:
        """The same work with its parts, as it goes to processes that run elsewhere."""
        parts = replace(parts, folder=parts.folder.resolve())
        return replace(self, slices=self.slices.resolve(), parts=parts)

    def open(self, slot: WorkerSlot | None = None) -> Scorer:
        """Loads the model, onto the slot's GPU if there is one. See `Job.open`.

        Raises UserError if the model's files or the sequences have changed since this was planned.
        """
        from recallkit.scoring.alignment import open_translator
        from recallkit.scoring.scorer import Scorer

        assert self.parts is not None, "begun"
        own, end_token = self.own_tokenizer, self.tokenizer.get("end_token")
        translator = None if own is None else open_translator(self.slices, own, end_token)
        models = {}
        for side in self.sides:
            placed = side if slot is None else on_its_device(side, slot)
            models[side.name] = load_unchanged(placed)
        return Scorer(
            models,
            self.reader(),
            self.parts,
            translator=translator,
            num_entries=self.vocab_size,
            window=self.window,
            seq_len=self.sequences["seq_len"],
            batch_tokens=amount(self.options.batch_tokens),
        )

    def reader(self) -> SequenceReader:
        """A reader of the sequences by part."""
        from recallkit.scoring.scores import SequenceReader

        digest = self.sequences["sequences_digest"]
        return SequenceReader(self.slices / "sequences.parquet", self.sequences_per_part, digest)

    @property
    def numbers(self) -> range:
        """The parts."""
        return range(self.reader().num_parts())

    @property
    def total(self) -> int:
        """Predicted tokens."""
        return int(
            parquet_files.read_manifest(self.slices / "sequences.parquet", records.Sequences)[
                "num_rows"
            ]
        )

    def amount_done(self) -> int:
        """The predicted tokens whose scores are on disk, of parts that are complete or begun."""
        from recallkit.scoring.begun import tokens_saved
        from recallkit.scoring.scores import part_rows

        assert self.parts is not None, "begun"
        complete = self.parts.done()
        tokens = 0
        for number in self.numbers:
            if number in complete:
                tokens += part_rows(self.parts.path(number))
            else:
                tokens += tokens_saved(self.parts.begun_path(number))
        return tokens


def _window(
    spec: ModelSpec,
    options: ScoringOptions,
    scored: Mapping[str, Any],
) -> ContextWindow:
    """How a model reads: as its own options say, else the command's, else as it was scored. Raises
    UsageError for two ways to read a long sequence."""
    own = {name: getattr(spec, name) for name in ("context", "stride")}
    chosen = replace(options, **{name: value for name, value in own.items() if value is not None})
    window = ContextWindow(chosen.context, chosen.stride, chosen.carry_state)
    if not window.is_usual:
        return window
    return ContextWindow(
        scored.get("context"),
        scored.get("stride"),
        scored.get("carry_state", False),
    )


def _check_recorded(spec: ModelSpec) -> None:
    """Raises UserError for recorded NLLs with options of a model that is run."""
    for name in ("tokenizer", "dtype", "context", "stride", "device"):
        if getattr(spec, name) is not None:
            problem = f"{name}= is of a model that is run, and these are recorded NLLs"
            raise UserError(problem, where=spec.shown, remedy="leave it out")
