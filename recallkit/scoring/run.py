"""Scores of a slice directory, by one process or by many: finished results are reused, interrupted runs resumed.

A score file is identified by everything that decides its numbers (`identity`): the model's weights and precision, its tokenizer, the
sequences, and how sequences longer than the model's context are read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.counting.table import read_meta
from recallkit.declarations import amount, path
from recallkit.display import console
from recallkit.display.progress import progress
from recallkit.errors import AbsentError, UserError
from recallkit.models import zoo
from recallkit.models.devices import check_device, main_device
from recallkit.models.kinds import kind_of
from recallkit.models.live import check_alone
from recallkit.models.loading import (
    check_memory,
    check_model,
    choose_prefix,
    find_precision,
    identify_model,
)
from recallkit.models.prefix import other_prefixes, prefix_notes
from recallkit.models.spec import ModelSpec, list_models
from recallkit.options import ScoringOptions
from recallkit.parallel.parts import JOINED, make_parts
from recallkit.scoring.identity import (
    as_recorded,
    as_scored,
    identity_of,
    of_model,
    read_tokenizer,
    remedy,
    request_of,
    score_facts,
    score_path,
    sequences_of,
    with_tokenizer,
)
from recallkit.scoring.recording import prefix_of
from recallkit.storage import artifacts
from recallkit.storage.result import Result
from recallkit.storage.timings import Timings
from recallkit.text.special_tokens import Prefix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.models.ablation import PlacedMixer
    from recallkit.models.protocol import ModelRequest
    from recallkit.parallel.parts import Share
    from recallkit.scoring.identity import ReadTokenizer
    from recallkit.scoring.mixer_means import MixerMeans
    from recallkit.scoring.scores import ContextWindow, LastIds, Which
    from recallkit.scoring.worker import ScoringJob
    from recallkit.storage.journal import Parts
    from recallkit.text.tokenizers import TextTokenizer


def score(model: str | ModelSpec, slices: Path, options: ScoringOptions = ScoringOptions(), *, force: bool = False) -> dict[str, Any]:
    """Scores every predicted token of a slice directory with one model; returns the score file's manifest.

    Done once for a model and a set of sequences: a finished file is reused unless with `force`, an interrupted run resumed.
    Raises UserError for everything a user can correct.
    """
    return plan_scores([model], slices, options, force=force)[0].run()


def plan_scores(
    models: Sequence[str | ModelSpec],
    slices: Path,
    options: ScoringOptions = ScoringOptions(),
    *,
    force: bool = False,
    share: Share | None = None,
    quiet: bool = False,
) -> list[ScoringPlan]:
    """Finds models, tokenizers and finished scores, and checks what can be checked before a weight
    is read.

    So what is wrong with the last model is reported before hours of work with the first. `share`:
    only these parts are made, and nothing is joined. `quiet`: no note where a model without a
    tokenizer is assumed to read the ids of the slices, nor on what is read before every sequence.
    Raises UserError for everything a user can correct.
    """
    if options.counts is not None:
        read_meta(path(options.counts))
    reading: dict[str, Prefix] = {}
    specs, plans = list_models(models), list[ScoringPlan]()
    with progress("checking", total=len(specs), unit="models") as show:
        for spec in specs:
            plans.append(_plan(spec, slices, options, force=force, share=share, quiet=quiet, reading=reading))
            show(len(plans))
    for line in () if quiet else prefix_notes(reading):
        console.note(line)
    return plans


def note_prefixes(plans: Sequence[ScoringPlan]) -> None:
    """Says so where models read different tokens before every sequence."""
    models = [plan for plan in plans if kind_of(plan.request.spec).is_run or plan.request.prefix.reason]
    for line in other_prefixes({plan.model.shown: plan.request.prefix.token for plan in models}):
        console.note(line)


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """One model's scores, finished or to be made."""

    model: ModelSpec
    request: ModelRequest
    slices: Path
    options: ScoringOptions
    sequences: Mapping[str, Any]
    result: Result
    tokenizer: tuple[str, TextTokenizer] | None = None
    """The model's own tokenizer with its name, if it is not that of the slices."""
    last: LastIds | None = None
    """If every prediction is made from its last ids alone."""
    share: Share | None = None
    pair: tuple[ScoringPlan, ScoringPlan] | None = None
    """Of a divergence: the plans of the model's own scores and of the reference's, see `against`."""

    def from_last(self, last: LastIds) -> ScoringPlan:
        """The plan of the same model's scores from its `last` ids alone, kept beside these.

        Raises UserError where windows would contain whole sequences, and for a model that cannot read so, or other ids than the slices'.
        """
        kind = kind_of(self.request.spec)
        if kind.name == "recorded":
            problem = f"{kind.called} has no scores from the last ids alone"
            raise UserError(problem, where=self.model.shown, remedy="give the model itself, or leave out the context gain")
        finished = self.result.finished()
        if self.tokenizer is not None or (finished or {}).get("tokenizer") is not None:
            problem = "another tokenizer, so its last ids cover other text than the reference's"
            raise UserError(problem, where=self.model.shown, remedy="compare models of the slices' tokenizer")
        if last.most >= self.sequences["seq_len"]:
            problem = f"windows of {last.most:,} ids contain whole sequences of {self.sequences['seq_len']:,} predictions"
            raise UserError(problem, where=f"the last {last.ids:,} ids", remedy="give fewer ids, or slice with a larger --seq-len")
        full = {name: value for name, value in self.result.options.items() if name not in ("context", "stride", "carry_state")}
        options = {**full, "last": last.ids, "stride": last.stride}
        path = score_path(self.slices, self.model, last)
        result = Result(path, "scores", options, force=self.result.force, remedy="delete this file")
        plan = replace(self, result=result, last=last)
        if plan.result.finished() is None:
            _check_context(plan, check_model(self.request).max_length)
        return plan

    def against(self, reference: ScoringPlan) -> ScoringPlan:
        """The plan of the divergence of this model's predictions from a reference's, kept beside its scores.

        The two read the text side by side, so that the scores of each are made, too, where they are missing. Raises UserError for a
        model that gives no predictions over the whole vocabulary, and for two that read other ids, or in other windows.
        """

        for plan in (self, reference):
            kind = kind_of(plan.request.spec)
            if not kind.has_logits:
                problem = f"{kind.called} gives no predictions over the whole vocabulary, which a divergence needs"
                raise UserError(problem, where=plan.model.shown, remedy="leave out this model, or the divergence")
            if plan.tokenizer is not None or (plan.result.finished() or {}).get("tokenizer") is not None:
                problem = "another tokenizer: predictions over different vocabularies have no divergence"
                raise UserError(
                    problem, where=plan.model.shown, remedy="compare models of the slices' tokenizer, or leave out the divergence"
                )
        if self._effective_window() != reference._effective_window():
            problem = f"it and {reference.model.shown} read sequences in different windows"
            raise UserError(problem, where=self.model.shown, remedy="give both the same --context and --stride")
        options = {**self.result.options, "reference": reference.result.options}
        path = score_path(self.slices, self.model, against=reference.model)
        return replace(self, result=Result(path, "divergence", options, remedy="delete this file"), pair=(self, reference))

    def _effective_window(self) -> ContextWindow:
        """How the longest sequence is read: whole, whatever the options, or in these windows."""
        from recallkit.scoring.scores import ContextWindow, check_context, longest_sequence

        if self.window.carry:
            return self.window
        request, longest = self.request, longest_sequence(self.slices)
        most = check_model(request).max_length
        at_once = check_context(request.name, most, self.window, longest, request.prefix.ids)
        return ContextWindow() if at_once is None else replace(self.window, context=at_once)

    @property
    def window(self) -> ContextWindow:
        """How sequences are read."""
        from recallkit.scoring.scores import ContextWindow

        options = self.options
        return ContextWindow(options.context, options.stride, options.carry_state) if self.last is None else self.last.window

    @property
    def sequences_per_part(self) -> int:
        """Sequences that are scored and kept together."""
        from recallkit.scoring.scores import SEQUENCES_PER_PART

        return min(SEQUENCES_PER_PART, config.sequences_per_row_group(self.sequences["seq_len"]))

    def run(self) -> dict[str, Any]:
        """Makes what is missing; returns the manifest, with `reused` if nothing was, or of a share the progress of all (`parts_done` of
        `num_parts`).
        """
        from recallkit.models.live import evaluating

        options, result = self.options, self.result
        progress = {} if self.share is None else JOINED
        if (manifest := result.finished()) is not None:
            return {**manifest, **progress, "reused": True}
        if kind_of(self.request.spec).name == "recorded":
            from recallkit.scoring.recorded import record

            manifest = record(result, self.slices, self.request, self.facts(), Timings(None))
            return {**manifest, **progress}
        cut: dict[str, Any] = {"batch_tokens": amount(options.batch_tokens), "sequences_per_part": self.sequences_per_part}
        plans = self.pair or (self,)
        means = [plan.means() for plan in plans]
        cut |= {f"means{'_reference' * place}": of.digest for place, of in enumerate(means) if of is not None}
        modules = (plan.request.module for plan in plans)
        with result.parts(shared=self.share is not None, **cut) as journal, evaluating(*modules):
            job = self.job(journal.parts)
            for name, of in zip(("request", "reference"), means, strict=False):
                job = job if of is None else replace(job, **{name: replace(getattr(job, name), means=of.by_mixer)})
            timings = Timings(self.device())
            of_shares = make_parts(job, journal, options, timings, self.share)
            if self.share is not None:
                return {**result.options, **of_shares}
            joined = [_join(plan, job, timings, which) for plan, which in self._files()]
            journal.finish()
        return joined[-1]

    def _files(self) -> list[tuple[ScoringPlan, Which]]:
        """What is made of the parts: these scores, or of a pair the scores of both where they are missing, and their divergence at last."""
        if self.pair is None:
            return [(self, "scores")]
        sides: list[tuple[ScoringPlan, Which]] = list(zip(self.pair, ("scores", "reference"), strict=True))
        return [*(side for side in sides if side[0].result.finished() is None), (self, "divergence")]

    def facts(self) -> dict[str, Any]:
        """What its manifest has on the model, and on how it reads."""
        request = self.request
        facts = score_facts(self.result, request.name, request.spec, request.prefix, self.sequences["num_rows"])
        return facts | {"typed": None if self.model.is_live else self.model.typed()}

    def device(self) -> str | None:
        """Where the model is computed; None where that is not chosen here: by formulas, by a server, by the program of a live model."""
        kind = kind_of(self.request.spec)
        if not kind.has_logits or self.model.is_live:
            return None
        return str(main_device(self.request.device))

    def means(self) -> MixerMeans | None:
        """The means of the mixers' outputs, made where they are missing; None where no ablation needs them."""
        if self.request.ablation is None or not self.request.ablation.needs_means:
            return None
        from recallkit.models.live import evaluating
        from recallkit.scoring.mixer_means import mixer_means

        shown = replace(self.model, ablate=None, name=None, shown="").shown
        intact = replace(self, request=replace(self.request, ablation=None, shown=shown))
        with evaluating(self.request.module):
            return mixer_means(
                score_path(self.slices, self.model).parent / "means", identity_of(intact.request, self.sequences, self.options), intact.job
            )

    def mixers(self, *, with_caches: bool = False) -> list[PlacedMixer]:
        """The mixers of the model, which is loaded to find them, on request with the bytes of their caches.

        Raises UserError for one that has none that can be replaced.
        """
        from recallkit.models import ablation
        from recallkit.models.live import evaluating
        from recallkit.models.loading import load_model, warn_remote_code
        from recallkit.models.torch_model import TorchModel
        from recallkit.scoring.scores import longest_sequence

        warn_remote_code(self.request, console.note)
        with evaluating(self.request.module):  # its vocabulary is checked where it is scored
            model = load_model(replace(self.request, vocab_size=1))
            mixers = [replace(mixer, module=None, block=None) for mixer in ablation.find_mixers(model)]
            if not with_caches or not isinstance(model, TorchModel):
                return mixers
            limits = [limit for limit in (model.max_length, self.window.context) if limit]
            caches = model.cache_bytes(min([longest_sequence(self.slices), *limits]))
        return mixers if caches is None else ablation.with_caches(mixers, caches)

    def job(self, parts: Parts) -> ScoringJob:
        """The work as processes take it."""
        from recallkit.models.loading import warn_remote_code
        from recallkit.scoring.worker import ScoringJob

        options, request = self.options, self.request
        warn_remote_code(request, console.note)
        model_digest = identify_model(request)
        tokenizer, end_token = None, None
        if self.tokenizer is not None:
            request = with_tokenizer(request, self.tokenizer[1])
            tokenizer, end_token = self.tokenizer[0], self.tokenizer[1].end_token
        return ScoringJob(
            request,
            model_digest,
            self.slices.resolve(),
            self.sequences["sequences_digest"],
            replace(parts, folder=parts.folder.resolve()),
            self.sequences["seq_len"],
            tokenizer,
            end_token,
            amount(options.batch_tokens),
            self.window,
            self.sequences_per_part,
            *(() if self.pair is None else (self.pair[1].request, identify_model(self.pair[1].request))),
        )


def _plan(
    model: ModelSpec,
    slices: Path,
    options: ScoringOptions,
    *,
    force: bool,
    share: Share | None,
    quiet: bool,
    reading: dict[str, Prefix],
) -> ScoringPlan:
    """The plan of one model, checked; where it is to be scored, its prefix is added to `reading`.

    Raises UserError for everything a user can correct.
    """
    check_alone(model, options)
    file = score_path(slices, model)
    Result(file, "scores", {}).check_replaceable()
    found = artifacts.manifest_options(file, force=force)
    options = as_scored(of_model(options, model), {} if force else found or {})
    options = as_recorded(options, model) if kind_of(model.location).name == "recorded" else options
    sequences = sequences_of(slices)
    request = request_of(model, slices, sequences, options)
    check_device(request.device)
    request = replace(request, dtype=find_precision(request))
    again = remedy(model, slices, options, request.dtype)
    read = None
    try:
        if not kind_of(request.spec).is_control:
            identify_model(request)  # says where there is no such model, before its tokenizer is looked for
            read = read_tokenizer(request, options.model_tokenizer, slices, sequences["tokenizer"])
            prefix = choose_prefix(request, read.tokenizer, model.bos)
            if kind_of(request.spec).name == "recorded" and model.bos is None:
                prefix = prefix_of(request, read.tokenizer)
            request = replace(request, prefix=prefix)
            if force or not found:  # else they are read as they were
                options = _in_windows(options, request, read, slices, sequences)
        identity = identity_of(request, sequences, options)
        if kind_of(request.spec).name == "recorded" and _has_changed(file, request, identity):
            console.note(f"{request.spec} has changed, and is read again")
            force = True
    except AbsentError:  # scored on another machine: all is checked but the weights
        if not found or force:
            raise
        console.note(f"{model.shown}: not on this machine; its existing scores are used")
        dtype = request.dtype if kind_of(request.spec).is_run else None
        identity = {**found, "sequences_digest": sequences["sequences_digest"], "dtype": dtype}
        request = replace(request, prefix=Prefix(**artifacts.read_manifest(file)["prefix"]))
    result = Result(file, "scores", identity, force=force, remedy=again)
    plan = ScoringPlan(model, request, slices, options, sequences, result, share=share)
    if result.finished() is not None:
        return plan
    if read is not None:
        plan = replace(plan, tokenizer=read.other(slices, sequences["tokenizer"]))
        _say_what_is_read(plan, read, quiet=quiet)
        reading[request.name] = request.prefix
    facts = check_model(request if plan.tokenizer is None else with_tokenizer(request, plan.tokenizer[1]))
    _check_context(plan, facts.max_length)
    check_memory(request, facts)
    return plan


def _has_changed(file: Path, request: ModelRequest, identity: Mapping[str, Any]) -> bool:
    """Whether a score file is of the same recorded NLLs, as they were before."""
    if not file.is_file():
        return False
    manifest = artifacts.read_manifest(file)
    is_same_file = manifest["source"] == request.spec
    return bool(is_same_file and manifest["options"]["model_digest"] != identity["model_digest"])


def _in_windows(
    options: ScoringOptions,
    request: ModelRequest,
    read: ReadTokenizer,
    slices: Path,
    sequences: Mapping[str, Any],
) -> ScoringOptions:
    """The options; without any on windows a model reads in them what its context may not hold.

    That is text of another tokenizer, whose sequences have an unknown number of the model's own
    ids, and for a model of the zoo longer sequences of its own tokenizer, too.
    """
    is_chosen = options.stride is not None or options.context is not None or options.carry_state
    other = None if is_chosen else read.other(slices, sequences["tokenizer"])
    is_of_zoo = kind_of(request.spec).name == "zoo"
    if is_chosen or (other is None and not (is_of_zoo and sequences["seq_len"] > zoo.CONTEXT)):
        return options
    context = _context_of(request, other)
    return options if context is None else replace(options, stride=max(1, context // 2))


def _context_of(request: ModelRequest, other: tuple[str, TextTokenizer] | None) -> int | None:
    """Ids of text that a model of this tokenizer reads at once, None where no limit is known."""
    if kind_of(request.spec).name == "zoo":
        return zoo.CONTEXT
    return check_model(request if other is None else with_tokenizer(request, other[1])).max_length


def _say_what_is_read(plan: ScoringPlan, read: ReadTokenizer, *, quiet: bool) -> None:
    """Notes on the tokenizer that was chosen for a model."""
    if read.doubt and not quiet:
        console.note(read.doubt)
    if plan.tokenizer is not None:
        used = plan.sequences["tokenizer"]["name"]
        reads = f"another tokenizer ({read.tokenizer.name}), so it reads the same bytes"
        console.note(f"{plan.request.name}: {reads}, and its NLLs are aligned with tokens of {used}")
    is_of_zoo = kind_of(plan.request.spec).name == "zoo"
    context = _context_of(plan.request, plan.tokenizer) if is_of_zoo or plan.tokenizer else None
    if context is not None and plan.options.stride == context // 2:
        windows = f"{context:,} ids, its context, that advance by {plan.options.stride:,}"
        console.note(f"{plan.request.name}: reads longer sequences in windows of {windows}")


def _check_context(plan: ScoringPlan, max_length: int | None) -> None:
    """Raises UserError if a sequence is longer than a known context, as scoring it would, and where a variant is not read so."""
    from recallkit.scoring.scores import check_context, longest_sequence

    variant, where = plan.request.variant, plan.model.shown
    if variant is not None and variant.reads_in_chunks and plan.window.carry:
        raise UserError("a variant carries its compressed state already", where=where, remedy="leave out --carry-state")
    once = None if variant is None else variant.once
    if once is not None and plan.tokenizer is not None:
        raise UserError("protocol=once counts ids of the slices' tokenizer, and the model has another", where=where, remedy="leave it out")
    if plan.tokenizer is not None or plan.window.carry:
        return
    context = check_context(plan.request.name, max_length, plan.window, longest_sequence(plan.slices), plan.request.prefix.ids)
    if once is None:
        return
    if context is not None:
        problem = f"protocol=once needs sequences that are read at once, but these are read in windows of {context:,} ids"
        raise UserError(problem, where=where, remedy="leave it out, or slice with a smaller --seq-len")
    if once >= plan.sequences["seq_len"]:
        problem = f"sequences of {plan.sequences['seq_len']:,} predictions have none after their first {once:,} ids"
        raise UserError(problem, where=where, remedy="give a smaller once:K, or slice with a larger --seq-len")


# ------------------------------------------------------------------------------------------------------------ the work


def _join(plan: ScoringPlan, job: ScoringJob, timings: Timings, which: Which) -> dict[str, Any]:
    """Makes a file of the parts: the scores, or the divergence, that `plan` is of."""
    from recallkit.scoring import scores

    result, num_rows = plan.result, plan.sequences["num_rows"]
    variants = [side.request.variant for side in plan.pair or (plan,)]
    facts = {
        **plan.facts(),
        "batch_tokens": job.parts.settle("batch_tokens", lambda: job.batch_tokens),
        "tokenizer": job.request.tokenizer if job.tokenizer is not None else None,
        "read_exactly": max((variant.once or 0 for variant in variants if variant is not None), default=0) or None,
    }
    files = [job.parts.path(number) for number in job.numbers]
    manifest: dict[str, Any] = {}
    with result.writing(manifest, timings) as new, timings.stage("joining", item=job.where) as stage:
        manifest |= scores.join_parts(files, job.sequences_per_part, job.seq_len, new / result.path.name, facts, which)
        stage.amounts["tokens"] = num_rows
    return manifest
