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
from recallkit.scoring import plan_scores, score_path
from recallkit.scoring.identity import as_scored
from recallkit.scoring.run import note_prefixes
from recallkit.slicing.pack import write_pack
from recallkit.slicing.words import make_words, needed_columns
from recallkit.storage import artifacts, records
from recallkit.storage.result import Question, folder_of, read_result, words_of
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.measure.labelled import LabelledTokens
    from recallkit.models.spec import ModelSpec
    from recallkit.parallel.parts import Share
    from recallkit.scoring.run import ScoringPlan

    Manifests = dict[str, dict[str, Any]]  # by model


def _identity(models: Sequence[ModelSpec], options: InterventionOptions) -> dict[str, Any]:
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
    usual, words = InterventionOptions(), words_of([spec.shown for spec in models])
    if options.slice is not None:
        words += [slice_.name for slice_ in sampled_slices(options)]
    for name in ("samples", "seed"):
        if (value := getattr(options, name)) != getattr(usual, name):
            words.append(f"{name} {value}")
    words += [options.design] if options.design != usual.design else []
    words += [options.changes] if options.changes != usual.changes else []
    return folder_of(slices / "intervene", words, _identity(models, options))


def finished_intervention(slices: Path, models: Sequence[ModelSpec]) -> InterveneTables | None:
    """What `intervene` measured of these models with its usual options, or None, also where that
    cannot be read.

    A result of other labels or scores than there are now is left out, with a note.
    """
    scores = {spec.shown: artifacts.manifest_options(score_path(slices, spec)) for spec in models}
    state = {"slices": open_tokens(slices / "tokens.parquet", needs_counts=False).facts, "scores": scores}
    for samples in (None, BUILTIN_SAMPLES):
        folder = intervention_path(slices, models, InterventionOptions(samples=samples))
        with contextlib.suppress(UserError):
            manifest, tables = read_result(records.Intervene, InterveneTables, folder)
            if state.items() <= manifest.items():
                return tables
            console.note(f"{folder} is of other labels or scores and not shown: run `recallkit intervene` again")
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
    out = out or intervention_path(slices, specs, options)
    identity = _identity(specs, options)
    question = Question("intervene", InterveneTables, out, identity, options.force)
    question.check()  # a result of another question is not replaced
    tokens, timings = open_tokens(slices / "tokens.parquet"), Timings()
    changed, manifests, _ = _score(specs, tokens, options, scoring, timings)
    about = artifacts.read_manifest(changed / "samples.parquet", records.Samples)
    facts: dict[str, Any] = {
        "models": [spec.shown for spec in specs],
        "scores": {model: manifest["options"] for model, manifest in manifests.items()},
        "slices": tokens.facts,
        "changed_text": changed.name,
        "excluded": about["excluded"],
        "changed_tokens": about["changed_tokens"],
    }
    files = {spec.shown: (score_path(slices, spec), score_path(changed, spec)) for spec in specs}
    inputs = [tokens.path, changed / "samples.parquet", *chain(*files.values())]
    facts["inputs"] = artifacts.digest_inputs([identity, facts], inputs)
    if (answer := question.answered(facts["inputs"])) is not None:
        return answer
    with timings.stage("measuring"):
        tables = measure(tokens, changed, files, sampled_slices(options))
    question.write(tables, facts, timings)
    return tables


def score_share(
    models: Sequence[str | ModelSpec],
    slices: Path,
    options: InterventionOptions,
    scoring: ScoringOptions,
    share: Share,
) -> Manifests:
    """Scores a share of the text and of the changed text; returns how far all shares of each are
    together, by model."""
    tokens = open_tokens(slices / "tokens.parquet")
    _, of_text, of_changed = _score(
        list_models(list(models)),
        tokens,
        options,
        scoring,
        Timings(),
        share,
    )
    return of_text | {f"{model}, changed text": manifest for model, manifest in of_changed.items()}


def _score(
    specs: Sequence[ModelSpec],
    tokens: LabelledTokens,
    options: InterventionOptions,
    scoring: ScoringOptions,
    timings: Timings,
    share: Share | None = None,
) -> tuple[Path, Manifests, Manifests]:
    """Makes the changed text and scores text and changed text where that is not done: what the
    plans of both return."""
    slices = tokens.path.parent
    if needed_columns(sampled_slices(options)):
        make_words(slices)
    plans = plan_scores(specs, slices, scoring, share=share)
    note_prefixes(plans)
    changed = make_changed_text(tokens, options, path(scoring.counts), timings)
    _check_recorded(specs, changed)
    of_text = {plan.model.shown: plan.run() for plan in one_after_another(plans)}
    alike = [
        _plan_alike(
            plan.model,
            changed,
            scoring,
            plan.result.options,
            share,
        )
        for plan in plans
    ]
    return changed, of_text, {plan.model.shown: plan.run() for plan in one_after_another(alike)}


def _check_recorded(specs: Sequence[ModelSpec], changed: Path) -> None:
    """Raises UserError for recorded NLLs of the text without such of the changed text, whose pack is
    written."""
    for spec in specs:
        if kind_of(spec.location).name != "recorded":
            continue
        pack, file = write_pack(changed), file_for(spec.location, changed)
        if not Path(file).is_file():
            problem = "recorded NLLs of the text, but none of the changed text"
            remedy = f"record those of {pack / 'ids.npy'} in {file}"
            raise UserError(problem, where=spec.shown, remedy=remedy)


def _plan_alike(
    spec: ModelSpec,
    changed: Path,
    scoring: ScoringOptions,
    of_text: Mapping[str, Any],
    share: Share | None,
) -> ScoringPlan:
    """The plan of the changed text, read as the text was, whose scores have these options: scores
    that are not alike are made again."""
    of_changed = artifacts.manifest_options(score_path(changed, spec), force=True) or of_text
    # One job of an array must not remove what another has scored.
    force = share is None and {**of_changed, "sequences_digest": None} != {
        **of_text,
        "sequences_digest": None,
    }
    alike = as_scored(scoring, of_text)
    return plan_scores([spec], changed, alike, share=share, force=force, quiet=True)[0]
