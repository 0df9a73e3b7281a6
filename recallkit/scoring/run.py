"""Scores of a slice directory, by one process or by many: finished results are reused, interrupted
runs resumed.

A score file is identified by everything that decides its numbers (`ScoringPlan.identity`): the
model's weights and precision, its tokenizer, the sequences, and how those that are longer than the
model's context are read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recallkit.counting.table import read_meta
from recallkit.declarations import amount, path
from recallkit.display import console
from recallkit.display.progress import progress
from recallkit.errors import AbsentError
from recallkit.models import zoo
from recallkit.models.devices import check_device
from recallkit.models.live import check_alone
from recallkit.models.loading import (
    check_memory,
    check_model,
    choose_prefix,
    find_precision,
    identify_model,
    warn_remote_code,
)
from recallkit.models.prefix import other_prefixes, prefix_notes
from recallkit.models.spec import ModelSpec, list_models
from recallkit.options import ScoringOptions
from recallkit.parallel.parts import JOINED, make_parts
from recallkit.scoring.identity import score_path
from recallkit.scoring.own_tokenizer import read_tokenizer
from recallkit.scoring.plan import ScoringPlan
from recallkit.scoring.recording import prefix_of
from recallkit.storage import parquet_files
from recallkit.storage.result import Result
from recallkit.storage.timings import Timings
from recallkit.text.special_tokens import Prefix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.parallel.parts import Share
    from recallkit.scoring.own_tokenizer import ReadTokenizer
    from recallkit.scoring.scores import Which


def score(
    model: str | ModelSpec,
    slices: Path,
    options: ScoringOptions = ScoringOptions(),
    *,
    force: bool = False,
) -> dict[str, Any]:
    """Scores every predicted token of a slice directory with one model; returns the score file's
    manifest.

    Done once for a model and a set of sequences: a finished file is reused unless with `force`, an
    interrupted run resumed. Raises UserError for everything a user can correct.
    """
    return make_scores(plan_scores([model], slices, options, force=force)[0])


# ----------------------------------------------------------------------------------------- planning


def plan_scores(
    models: Sequence[str | ModelSpec],
    slices: Path,
    options: ScoringOptions = ScoringOptions(),
    *,
    force: bool = False,
    share: Share | None = None,
    quiet: bool = False,
    like: Mapping[str, Any] | None = None,
) -> list[ScoringPlan]:
    """Finds models, tokenizers and finished scores, and checks what can be checked before a weight
    is read.

    So what is wrong with the last model is reported before hours of work with the first. `share`:
    only these parts are made, and nothing is joined. `quiet`: no note where a model without a
    tokenizer is assumed to read the ids of the slices, nor on what is read before every sequence.
    `like`: the options of scores that these are to be compared with, for what is not chosen. Raises
    UserError for everything a user can correct.
    """
    if options.counts is not None:
        read_meta(path(options.counts))
    prefixes: dict[str, Prefix] = {}
    specs, plans = list_models(models), list[ScoringPlan]()
    with progress("checking", total=len(specs), unit="models") as show:
        for spec in specs:
            check_alone(spec, options)
            plan, tokenizer = _identified(spec, slices, options, force=force, like=like)
            plan = replace(plan, share=share)
            if plan.result.finished() is None:
                plan = _checked(plan, tokenizer, quiet=quiet)
                if tokenizer is not None:
                    prefixes[plan.name] = plan.prefix
            plans.append(plan)
            show(len(plans))
    if not quiet:
        for line in prefix_notes(prefixes):
            console.note(line)
    return plans


def note_prefixes(plans: Sequence[ScoringPlan]) -> None:
    """Says so where models read different tokens before every sequence."""
    known = [plan for plan in plans if plan.kind.is_run or plan.prefix.reason]
    for line in other_prefixes({plan.name: plan.prefix.token for plan in known}):
        console.note(line)


def _identified(
    spec: ModelSpec,
    slices: Path,
    options: ScoringOptions,
    *,
    force: bool,
    like: Mapping[str, Any] | None,
) -> tuple[ScoringPlan, ReadTokenizer | None]:
    """The plan of one model with its result; and the tokenizer that it reads, None where that need
    not be known."""
    file = score_path(slices, spec)
    Result(file, "scores", {}).check_replaceable()
    scored = parquet_files.manifest_options(file, force=force)
    before = like or ({} if force else scored or {})
    plan = ScoringPlan.of_slices(spec, slices, options, before)
    check_device(plan.device)
    plan = replace(plan, dtype=find_precision(plan))
    remedy = _remedy(plan)
    tokenizer = None
    try:
        # It says where there is no such model, before its tokenizer is looked for.
        plan = replace(plan, digest=identify_model(plan))
        if not plan.kind.is_control:
            tokenizer = read_tokenizer(plan)
            plan = replace(plan, prefix=_prefix(plan, tokenizer))
            if force or not scored:  # else sequences are read as they were
                plan = _in_windows(plan, tokenizer)
        identity = plan.identity()
        if plan.kind.name == "recorded" and _has_changed(plan):
            console.note(f"{plan.location} has changed, and is read again")
            force = True
    except AbsentError:  # scored on another machine: all is checked but the weights
        if not scored or force:
            raise
        console.note(f"{plan.name}: not on this machine; its existing scores are used")
        digest = plan.sequences["sequences_digest"]
        dtype = plan.dtype if plan.kind.is_run else None
        identity = {**scored, "sequences_digest": digest, "dtype": dtype}
        plan = replace(plan, prefix=Prefix(**parquet_files.read_manifest(file)["prefix"]))
    result = Result(file, "scores", identity, force=force, remedy=remedy)
    return replace(plan, result=result), tokenizer


def _checked(plan: ScoringPlan, tokenizer: ReadTokenizer | None, *, quiet: bool) -> ScoringPlan:
    """The plan of scores that are to be made. Raises UserError for what can be known to be
    wrong."""
    if tokenizer is not None:
        plan = tokenizer.applied(plan)
        if tokenizer.doubt and not quiet:
            console.note(tokenizer.doubt)
        _say_what_is_read(plan)
    facts = check_model(plan)
    plan.check_context(facts.max_length)
    check_memory(plan, facts)
    return plan


def _remedy(plan: ScoringPlan) -> str:
    """What to do about finished scores of another model, or made with other options than these."""
    spec, window = plan.spec, plan.window
    if spec.is_live:
        return "give this model another name, or score it again with force=True"
    options = {
        "--dtype": plan.dtype if plan.dtype != "float32" else None,
        "--model-tokenizer": plan.tokenizer_option,
        "--context": window.context,
        "--stride": window.stride,
    }
    words = ["recallkit score", spec.typed()]
    words += [f"{option} {value}" for option, value in options.items() if value is not None]
    words += ["--carry-state"] if window.carry else []
    words += ["--trust-remote-code"] if plan.trust_remote_code else []
    words += [f"--slices {plan.slices} --force"]
    again = f"score it again: {' '.join(words)}"
    return f"give this model another name, or {again}" if spec.name else again


def _prefix(plan: ScoringPlan, tokenizer: ReadTokenizer) -> Prefix:
    """What the model reads before every sequence."""
    if plan.kind.name == "recorded" and plan.spec.bos is None:
        return prefix_of(plan, tokenizer.tokenizer)
    return choose_prefix(plan, tokenizer.tokenizer)


def _has_changed(plan: ScoringPlan) -> bool:
    """Whether a score file is of the same recorded NLLs, as they were before."""
    file = plan.result.path
    if not file.is_file():
        return False
    manifest = parquet_files.read_manifest(file)
    is_same_file = manifest["source"] == plan.location
    return bool(is_same_file and manifest["options"]["model_digest"] != plan.digest)


def _in_windows(plan: ScoringPlan, tokenizer: ReadTokenizer) -> ScoringPlan:
    """The plan; without any option on windows a model reads in them what its context may not hold.

    That is text of another tokenizer, whose sequences have an unknown number of the model's own
    ids, and for a model of the zoo longer sequences of its own tokenizer, too.
    """
    if not plan.window.is_usual:
        return plan
    reading = tokenizer.applied(plan)
    is_long = plan.kind.name == "zoo" and plan.sequences["seq_len"] > zoo.CONTEXT
    context = _context(reading) if is_long or reading.own_tokenizer is not None else None
    if context is None:
        return plan
    return replace(plan, window=replace(plan.window, stride=max(1, context // 2)))


def _context(plan: ScoringPlan) -> int | None:
    """Ids of text that a model reads at once, None where no limit is known."""
    return zoo.CONTEXT if plan.kind.name == "zoo" else check_model(plan).max_length


def _say_what_is_read(plan: ScoringPlan) -> None:
    """Notes on another tokenizer than the slices', and on windows that were chosen."""
    if plan.own_tokenizer is not None:
        used, own = plan.sequences["tokenizer"]["name"], plan.tokenizer["name"]
        reads = f"another tokenizer ({own}), so it reads the same bytes"
        console.note(f"{plan.name}: {reads}, and its NLLs are aligned with tokens of {used}")
    elif plan.kind.name != "zoo":
        return
    context = _context(plan)
    if context is not None and plan.window.stride == context // 2:
        windows = f"{context:,} ids, its context, that advance by {plan.window.stride:,}"
        console.note(f"{plan.name}: reads longer sequences in windows of {windows}")


# ----------------------------------------------------------------------------------------- the work


def make_scores(plan: ScoringPlan) -> dict[str, Any]:
    """Makes what is missing of a plan; returns the manifest, with `reused` if nothing was, or of a
    share the progress of all (`parts_done` of `num_parts`)."""
    from recallkit.models.live import evaluating
    from recallkit.scoring.mixers import mixer_means

    complete = {} if plan.share is None else JOINED
    manifest = plan.result.finished()
    if manifest is not None:
        return {**manifest, **complete, "reused": True}
    if plan.kind.name == "recorded":
        from recallkit.scoring.recorded import record

        return {**record(plan, Timings(None)), **complete}
    cut: dict[str, Any] = {
        "batch_tokens": amount(plan.options.batch_tokens),
        "sequences_per_part": plan.sequences_per_part,
    }
    own, reference = plan.pair or (plan, None)
    means = mixer_means(own)
    if means is not None:
        cut["means"] = means.digest
        plan = replace(plan, means=means.by_mixer)
    if reference is not None:
        means = mixer_means(reference)
        if means is not None:
            cut["means_reference"] = means.digest
            plan = replace(plan, pair=(own, replace(reference, means=means.by_mixer)))
    modules = [side.module for side in plan.sides]
    with plan.result.parts(shared=plan.share is not None, **cut) as journal, evaluating(*modules):
        warn_remote_code(plan, console.note)
        plan = plan.begun(journal.parts)
        timings = Timings(plan.main_device)
        of_shares = make_parts(plan, journal, plan.options, timings, plan.share)
        if plan.share is not None:
            return {**plan.result.options, **of_shares}
        manifest = _join(plan, timings)
        journal.finish()
    return manifest


def _join(plan: ScoringPlan, timings: Timings) -> dict[str, Any]:
    """Makes the score file of its parts; of a pair the scores of both where they are missing, and
    their divergence at last. Returns the manifest of the last file."""
    if plan.pair is None:
        return _join_file(plan, plan, "scores", timings)
    own, reference = plan.pair
    if own.result.finished() is None:
        _join_file(plan, own, "scores", timings)
    if reference.result.finished() is None:
        _join_file(plan, reference, "reference", timings)
    return _join_file(plan, plan, "divergence", timings)


def _join_file(
    plan: ScoringPlan,
    side: ScoringPlan,
    which: Which,
    timings: Timings,
) -> dict[str, Any]:
    """Makes the file of the parts of a plan that `side` is the plan of."""
    from recallkit.scoring import scores

    assert plan.parts is not None, "begun"
    parts, result = plan.parts, side.result
    exact = [s.variant.once for s in side.sides if s.variant is not None and s.variant.once]
    facts = {
        **side.facts(),
        "batch_tokens": parts.settle("batch_tokens", lambda: amount(plan.options.batch_tokens)),
        "tokenizer": None if plan.own_tokenizer is None else plan.tokenizer,
        "read_exactly": max(exact, default=None),
    }
    files = [parts.path(number) for number in plan.numbers]
    seq_len = plan.sequences["seq_len"]
    manifest: dict[str, Any] = {}
    with (
        result.writing(manifest, timings) as new,
        timings.stage("joining", item=plan.where) as stage,
    ):
        file = new / result.path.name
        manifest |= scores.join_parts(files, plan.sequences_per_part, seq_len, file, facts, which)
        stage.amounts["tokens"] = plan.sequences["num_rows"]
    return manifest
