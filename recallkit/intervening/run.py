"""The work of `intervene`: changes the text, scores text and changed text, and reports what models lose by the change.

And what models recall by association in AR hits, for commands that ask it of every model that they score: two of the changes.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.declarations import path
from recallkit.display import console
from recallkit.display.progress import one_after_another
from recallkit.errors import UserError
from recallkit.intervening.changed_text import ChangedText, asked_slices, make_changed_text, that_repeat
from recallkit.intervening.changes import BY_ASSOCIATION, CHANGES
from recallkit.intervening.tables import InterveneTables, measure, read_nlls
from recallkit.measure.intervals import NUM_RESAMPLES, effective_number, freedom_of, group_numbers, resample_totals
from recallkit.measure.labelled import open_tokens
from recallkit.models.spec import list_models
from recallkit.options import BUILTIN_SAMPLES, InterventionOptions, ScoringOptions
from recallkit.scoring import plan_scores, score_path
from recallkit.scoring.identity import as_scored
from recallkit.slicing.definitions import SLICES, parse_slices
from recallkit.slicing.words import make_words, needed_columns, words_path
from recallkit.storage import artifacts
from recallkit.storage.result import Result, read_tables, table_files
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.measure.labelled import LabelledTokens
    from recallkit.models.spec import ModelSpec
    from recallkit.parallel.parts import Share
    from recallkit.scoring.run import ScoringPlan


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
    kept = result.finished()  # a result of another question is not replaced
    tokens = open_tokens(slices / "tokens.parquet")
    timings, changes = Timings(), _changes_of(options)
    changed, manifests, _ = _score(specs, tokens, options, scoring, timings)
    counted = ("tokens_of_slices", "excluded", "num_far", "changed_tokens")
    facts = {
        **question,
        "models": [spec.shown for spec in specs],
        "scores": {model: manifest["options"] for model, manifest in manifests.items()},
        "changed_text": changed.folder.name,
        **{name: changed.manifest[name] for name in counted},
        "slices": {name: tokens.manifest[name] for name in _LABELS},
    }
    files = {spec.shown: (score_path(slices, spec), score_path(changed.folder, spec)) for spec in specs}
    words = [words_path(tokens.path)] if needed_columns(asked) else []
    read = [tokens.path, *words, changed.folder / "samples.parquet", *(path for paths in files.values() for path in paths)]
    facts["inputs"] = artifacts.digest_inputs(facts, read)
    if kept is not None and kept.get("inputs") == facts["inputs"]:
        return read_tables(InterveneTables, out)
    with timings.stage("measuring"):
        tables = measure(tokens, changed, files, asked, changes)
    result.write_tables(tables, facts, timings)
    return tables


def score_share(
    models: Sequence[str | ModelSpec], slices: Path, options: InterventionOptions, scoring: ScoringOptions, share: Share
) -> dict[str, dict[str, Any]]:
    """Scores a share of the text and of the changed text; returns how far all shares of each are together, by model."""
    tokens = open_tokens(slices / "tokens.parquet")
    _, of_text, of_changed = _score(list_models(list(models)), tokens, options, scoring, Timings(), share)
    return of_text | {f"{model}, changed text": of for model, of in of_changed.items()}


def _changes_of(options: InterventionOptions) -> tuple[str, ...]:
    return BY_ASSOCIATION if options.changes == "moved" else tuple(CHANGES)


def _score(
    specs: Sequence[ModelSpec],
    tokens: LabelledTokens,
    options: InterventionOptions,
    scoring: ScoringOptions,
    timings: Timings,
    share: Share | None = None,
) -> tuple[ChangedText, dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Makes the changed text and scores text and changed text where that is not done: what the plans of both return, by model."""
    slices, asked = tokens.path.parent, asked_slices(options)
    if needed_columns(asked):
        make_words(slices)
    plans = plan_scores(specs, slices, scoring, share=share)
    changed = make_changed_text(tokens, asked, options, path(scoring.counts), timings, _changes_of(options))
    of_text = {plan.model.shown: plan.run() for plan in one_after_another(plans)}
    alike = [_plan_alike(plan.model, changed.folder, scoring, plan.result.options, share=share) for plan in plans]
    return changed, of_text, {plan.model.shown: plan.run() for plan in one_after_another(alike)}


def _plan_alike(
    spec: ModelSpec,
    changed: Path,
    scoring: ScoringOptions,
    of_text: Mapping[str, Any],
    *,
    share: Share | None = None,
    force: bool = False,
    quiet: bool = False,
) -> ScoringPlan:
    """The plan of the changed text, read as the text was, whose scores have these options: scores that are not alike are made again."""
    of_changed = artifacts.manifest_options(score_path(changed, spec), force=True) or {}
    is_old = bool(of_changed) and {**of_changed, "sequences_digest": None} != {**of_text, "sequences_digest": None}
    # One job of an array must not remove what another has scored.
    again = force or (is_old and share is None)
    return plan_scores([spec], changed, as_scored(scoring, of_text), share=share, force=again, quiet=quiet)[0]


SAMPLES = 500
"""AR hits that are sampled; the changed text is about as long as the built-in one."""

CLEAN_HITS = "clean_ar_hit=ar_hit AND in_training = 0"


@dataclass(frozen=True)
class AskedHits:
    """A sample of n AR hits of a text, and the changed text in which they are read again."""

    tokens: LabelledTokens
    changed: ChangedText
    asked: pl.DataFrame

    @classmethod
    def of(cls, tokens: LabelledTokens, counts: Path | None, samples: int = SAMPLES, *, clean: bool = False) -> AskedHits:
        """Makes the changed text, where there is none yet; `clean`: of hits that are not known to be in the training text.

        Raises UserError as `make_changed_text` does.
        """
        [hits] = parse_slices([CLEAN_HITS], without=()) if clean else [SLICES["ar_hit"]]
        changed = make_changed_text(tokens, [that_repeat(hits)], InterventionOptions(samples=samples), counts, Timings(), BY_ASSOCIATION)
        return cls(tokens, changed, changed.samples.filter(excluded=""))

    def score(
        self, spec: ModelSpec, scoring: ScoringOptions, manifest: Mapping[str, Any], *, force: bool = False, quiet: bool = False
    ) -> None:
        """Scores the changed text as the text was scored, whose scores have this manifest."""
        _plan_alike(spec, self.changed.folder, scoring, manifest["options"], force=force, quiet=quiet).run()

    def path(self, spec: ModelSpec) -> Path:
        """Where the scores of the changed text are."""
        return score_path(self.changed.folder, spec)

    def recalled(self, scores: Sequence[Path], of_changed: Sequence[Path]) -> np.ndarray:
        """The nats that each of m models recalls of each hit, float64 (n, m): what `moved` costs less what `moved_placebo` does."""
        _, after = read_nlls(self.asked, self.tokens, self.changed, list(zip(scores, of_changed, strict=True)), BY_ASSOCIATION)
        recalled: np.ndarray = after["moved"] - after["moved_placebo"]
        return recalled

    def means(self, recalled: np.ndarray, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> np.ndarray:
        """The weighted means of `recalled` (n, m), float64 (1 + r, m): of the sample, then of its resampled documents."""
        documents, place = np.unique(self.asked["document"].to_numpy(), return_inverse=True)
        group, weight = group_numbers(len(documents))[place], self.asked["weight"].to_numpy()[:, None]
        sums = np.zeros((group.max() + 1, 1 + recalled.shape[1]))
        np.add.at(sums, group, weight * np.column_stack([np.ones(len(recalled)), recalled]))
        totals = np.vstack([sums.sum(axis=0), *resample_totals([sums], num_resamples, seed)])
        found: np.ndarray = totals[:, 1:] / totals[:, :1]
        return found

    @property
    def documents(self) -> tuple[int, float, float]:
        """The documents with asked hits: their number, effective number and degrees of freedom (`measure.intervals`)."""
        _, place = np.unique(self.asked["document"].to_numpy(), return_inverse=True)
        sizes = np.bincount(place, self.asked["weight"].to_numpy())
        return len(sizes), float(effective_number(sizes)), float(freedom_of(sizes))
