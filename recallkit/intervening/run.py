"""The work of `intervene`: changes the text, scores text and changed text, and reports what models lose by the change."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from recallkit.declarations import path
from recallkit.display import console
from recallkit.display.progress import one_after_another
from recallkit.errors import UserError
from recallkit.intervening.association import as_scored
from recallkit.intervening.changed_text import asked_slices, make_changed_text
from recallkit.intervening.changes import BY_ASSOCIATION, CHANGES
from recallkit.intervening.tables import InterveneTables, measure
from recallkit.measure.labelled import open_tokens
from recallkit.models.spec import list_models
from recallkit.options import BUILTIN_SAMPLES, InterventionOptions, ScoringOptions
from recallkit.scoring import plan_scores, score_path
from recallkit.slicing.words import make_words, needed_columns
from recallkit.storage import artifacts
from recallkit.storage.result import Result, read_tables, table_files
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recallkit.models.spec import ModelSpec


def intervention_path(slices: Path, models: Sequence[ModelSpec], options: InterventionOptions) -> Path:
    """Default folder of the result: each question has a folder of its own."""
    usual = InterventionOptions()
    deciding = {"samples": "num_samples", "design": "design", "changes": "changes", "seed": "seed"}
    changed = {name: value for name, of in deciding.items() if (value := getattr(options, of)) != getattr(usual, of)} | (
        {"slices": [slice_.given for slice_ in asked_slices(options)]} if options.slice else {}
    )
    more = f" {artifacts.digest_json(changed)[:8]}" if changed else ""
    first, *others = [spec.shown for spec in models]
    short = f"{first} and {len(others)} more" if len(others) > 1 else " ".join([first, *others])
    return slices / "intervene" / artifacts.file_slug(" ".join(spec.key for spec in models) + more, short + more)


_LABELS = ("sequences_digest", "num_rows", "seq_len", "max_count", "counts")
"""What results keep of the labels' manifest."""


def finished_intervention(slices: Path, models: Sequence[ModelSpec]) -> InterveneTables | None:
    """What `intervene` has found of these models in these labels with its usual options, or None, also where that cannot be read.

    A result of other scores than there are now is left out, with a note.
    """
    labels = open_tokens(slices / "tokens.parquet").manifest
    scores = {spec.shown: artifacts.manifest_options(score_path(slices, spec)) for spec in models}
    for samples in (None, BUILTIN_SAMPLES):
        folder = intervention_path(slices, models, InterventionOptions(samples=samples))
        with contextlib.suppress(UserError):
            manifest = artifacts.read_manifest(folder / "intervene.parquet")
            if manifest["slices"] != {name: labels[name] for name in _LABELS}:
                continue
            if manifest.get("scores") == scores:
                return read_tables(InterveneTables, folder)
            console.note(f"{folder} is of other scores, and left out: run `recallkit intervene` again")
    return None


def intervene(
    models: Sequence[str | ModelSpec],
    slices: Path,
    out: Path | None = None,
    options: InterventionOptions = InterventionOptions(),
    scoring: ScoringOptions = ScoringOptions(),
) -> InterveneTables:
    """What each model loses where the earlier occurrences of sampled tokens are changed; the first one is the reference.

    Scores what is not scored yet, of the text and of the changed text. Writes `intervene.parquet` and the tables beside it to `out`
    (default `intervention_path`). Raises UserError for everything a user can correct.
    """
    specs = list_models(list(models))
    keys, asked = [spec.key for spec in specs], asked_slices(options)
    out = out or intervention_path(slices, specs, options)
    question: dict[str, Any] = {
        "models": keys,
        "slices": [slice_.given for slice_ in asked],
        "samples": options.num_samples,
        "design": options.design,
        "changes": options.changes,
        "seed": options.seed,
    }
    beside = table_files(InterveneTables, out)
    result = Result(out / "intervene.parquet", "intervene", question, force=options.force, beside=beside)
    result.finished()  # a result of another question is not replaced; one of the same question takes seconds, and is made again
    tokens = open_tokens(slices / "tokens.parquet")
    if needed_columns(asked):
        make_words(slices)
    plans = plan_scores(specs, slices, scoring)
    timings = Timings()
    changes = BY_ASSOCIATION if options.changes == "moved" else tuple(CHANGES)
    changed = make_changed_text(tokens, asked, options, path(scoring.counts), timings, changes)
    manifests = {plan.model.shown: plan.run() for plan in one_after_another(plans)}
    alike = [plan_scores([spec], changed.folder, as_scored(scoring, manifests[spec.shown]["options"]))[0] for spec in specs]
    for plan in one_after_another(alike):
        plan.run()
    with timings.stage("measuring"):
        files = {spec.shown: (score_path(slices, spec), score_path(changed.folder, spec)) for spec in specs}
        tables = measure(tokens, changed, files, asked, changes)
    counted = ("tokens_of_slices", "excluded", "num_far", "changed_tokens")
    facts = {
        **question,
        "models": [spec.shown for spec in specs],
        "scores": {model: manifest["options"] for model, manifest in manifests.items()},
        "changed_text": changed.folder.name,
        **{name: changed.manifest[name] for name in counted},
        "slices": {name: tokens.manifest[name] for name in _LABELS},
    }
    result.write_tables(tables, facts, timings)
    return tables
