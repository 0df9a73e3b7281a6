"""The work of `intervene`: changes the text, scores text and changed text, and reports what models
lose by the change."""

from __future__ import annotations

import contextlib
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.declarations import path
from recallkit.display import console
from recallkit.display.progress import one_after_another
from recallkit.errors import UserError
from recallkit.intervening.changed_text import make_changed_text
from recallkit.intervening.sampling import sampled_slices
from recallkit.intervening.tables import InterveneTables, measure
from recallkit.measure.labelled import open_tokens
from recallkit.models.kinds import kind_of
from recallkit.models.recorded import file_for
from recallkit.models.spec import list_models
from recallkit.options import BUILTIN_SAMPLES, InterventionOptions, ScoringOptions
from recallkit.scoring import make_scores, plan_scores, score_path
from recallkit.scoring.run import note_prefixes
from recallkit.slicing.pack import write_pack
from recallkit.slicing.words import make_words, needed_columns
from recallkit.storage import hashing, parquet_files, records
from recallkit.storage.result import Question, folder_of, read_result, words_of
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.measure.labelled import LabelledTokens
    from recallkit.models.spec import ModelSpec
    from recallkit.parallel.parts import Share
    from recallkit.scoring.plan import ScoringPlan

    Plans = list[ScoringPlan]


def _identity(
    models: Sequence[ModelSpec],
    options: InterventionOptions,
) -> records.InterveneOptions:
    """All that decides a result's numbers, besides labels and scores."""
    return {
        "models": [spec.key for spec in models],
        "slices": [slice_.option for slice_ in sampled_slices(options)],
        "samples": options.num_samples,
        "design": options.design,
        "changes": options.changes,
        "seed": options.seed,
    }


def intervention_path(
    slices: Path,
    models: Sequence[ModelSpec],
    options: InterventionOptions,
) -> Path:
    """Default folder of the result, such as `intervene/attention-mamba-samples-200`: each question
    has a folder of its own."""
    words, usual = words_of([spec.shown for spec in models]), InterventionOptions()
    if options.slice is not None:
        words += [slice_.name for slice_ in sampled_slices(options)]
    for name in ("samples", "seed", "design", "changes"):
        value = getattr(options, name)
        if value != getattr(usual, name):
            words.append(value if isinstance(value, str) else f"{name} {value}")
    return folder_of(slices / "intervene", words, _identity(models, options))


def finished_intervention(slices: Path, models: Sequence[ModelSpec]) -> InterveneTables | None:
    """What `intervene` measured of these models with its usual options, or None, also where that
    cannot be read.

    A result of other labels or scores than there are now is left out, with a note.
    """
    labels = open_tokens(slices / "tokens.parquet", needs_counts=False).facts
    scores = {
        spec.shown: parquet_files.manifest_options(score_path(slices, spec)) for spec in models
    }
    for samples in (None, BUILTIN_SAMPLES):
        folder = intervention_path(slices, models, InterventionOptions(samples=samples))
        with contextlib.suppress(UserError):
            manifest, tables = read_result(records.Intervene, InterveneTables, folder)
            if manifest["slices"] == labels and manifest["scores"] == scores:
                return tables
            problem = f"{folder} is of other labels or scores and not shown"
            console.note(f"{problem}: run `recallkit intervene` again")
    return None


def intervene(
    models: Sequence[str | ModelSpec],
    slices: Path,
    out: Path | None = None,
    options: InterventionOptions = InterventionOptions(),
    scoring: ScoringOptions = ScoringOptions(),
) -> InterveneTables:
    """What each model loses where the earlier occurrences of sampled tokens are changed; the first
    one is the reference.

    Scores what is not scored yet, of the text and of the changed text. Writes `intervene.parquet`
    and the tables beside it to `out` (default `intervention_path`). Raises UserError for everything
    a user can correct.
    """
    specs = list_models(list(models))
    names = [spec.shown for spec in specs]
    identity = _identity(specs, options)
    folder = out or intervention_path(slices, specs, options)
    question = Question("intervene", InterveneTables, folder, identity, options.force)
    question.check()  # a result of another question is not replaced
    tokens, timings = open_tokens(slices / "tokens.parquet"), Timings()
    plans = _plans(specs, tokens, options, scoring, timings)
    for plan in one_after_another(list(chain(*plans))):
        make_scores(plan)
    changed = plans[1][0].slices
    files = [(text.result.path, again.result.path) for text, again in zip(*plans, strict=True)]
    inputs = [tokens.path, changed / "samples.parquet", *chain(*files)]
    digest = hashing.digest_inputs([identity, names], inputs)
    if (answer := question.answered(digest)) is not None:
        return answer
    with timings.stage("measuring"):
        tables = measure(tokens, changed, names, files, sampled_slices(options))
    samples = parquet_files.read_manifest(changed / "samples.parquet", records.Samples)
    scores = [parquet_files.read_manifest(file, records.Scores)["options"] for file, _ in files]
    facts: records.Intervene = {
        "options": identity,
        "models": names,
        "scores": dict(zip(names, scores, strict=True)),
        "slices": tokens.facts,
        "changed_text": records.FileName(changed.name),
        "excluded": samples["excluded"],
        "changed_tokens": samples["changed_tokens"],
        "inputs": digest,
    }
    question.write(tables, facts, timings)
    return tables


def score_share(
    models: Sequence[str | ModelSpec],
    slices: Path,
    options: InterventionOptions,
    scoring: ScoringOptions,
    share: Share,
) -> dict[str, dict[str, Any]]:
    """Scores a share of the text and of the changed text; returns how far all shares of each are
    together, by model."""
    specs, tokens = list_models(list(models)), open_tokens(slices / "tokens.parquet")
    text, changed = _plans(specs, tokens, options, scoring, Timings(), share)
    shares = {plan.name: make_scores(plan) for plan in one_after_another(text)}
    for plan in one_after_another(changed):
        shares[f"{plan.name}, changed text"] = make_scores(plan)
    return shares


def _plans(
    specs: Sequence[ModelSpec],
    tokens: LabelledTokens,
    options: InterventionOptions,
    scoring: ScoringOptions,
    timings: Timings,
    share: Share | None = None,
) -> tuple[Plans, Plans]:
    """The plans of the scores of the text and of the changed text, which is made where it is
    missing."""
    slices = tokens.path.parent
    if needed_columns(sampled_slices(options)):
        make_words(slices)
    plans = plan_scores(specs, slices, scoring, share=share)
    note_prefixes(plans)
    changed = make_changed_text(tokens, options, path(scoring.counts), timings)
    _check_recorded(specs, changed)
    return plans, [_plan_alike(plan, changed, scoring) for plan in plans]


def _check_recorded(specs: Sequence[ModelSpec], changed: Path) -> None:
    """Raises UserError for recorded NLLs of the text without such of the changed text, whose pack
    is written."""
    for spec in specs:
        if kind_of(spec.location).name == "recorded":
            pack, file = write_pack(changed), file_for(spec.location, changed)
            if not Path(file).is_file():
                problem = "recorded NLLs of the text, but none of the changed text"
                remedy = f"record those of {pack / 'ids.npy'} in {file}"
                raise UserError(problem, where=spec.shown, remedy=remedy)


def _plan_alike(text: ScoringPlan, changed: Path, scoring: ScoringOptions) -> ScoringPlan:
    """The plan of the changed text, read as the text was: scores that are not alike are made
    again."""
    options, no_text = text.result.options, {"sequences_digest": None}
    existing = parquet_files.manifest_options(score_path(changed, text.spec), force=True)
    is_alike = existing is None or existing | no_text == options | no_text
    [plan] = plan_scores(
        [text.spec],
        changed,
        scoring,
        share=text.share,
        # One job of an array must not remove what another has scored.
        force=text.share is None and not is_alike,
        quiet=True,
        like=options,
    )
    return plan
