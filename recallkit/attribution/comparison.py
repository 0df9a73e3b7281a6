"""The work of `gap`: scores what is not scored yet, attributes the gap to slices, and writes its tables; and a comparison read back.

Its tables are found in their folder and checked to belong together.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from recallkit.attribution.tables import GapTables, has_counts, hit_of, rows_by_slice
from recallkit.display import console
from recallkit.display.notebook import Shown
from recallkit.display.progress import one_after_another
from recallkit.errors import UserError
from recallkit.measure.rows import count_cuts
from recallkit.models.spec import list_models
from recallkit.options import ScoringOptions
from recallkit.scoring.identity import count_inexact, score_path
from recallkit.scoring.run import plan_scores
from recallkit.slicing.definitions import parse_slices
from recallkit.storage import artifacts, records
from recallkit.storage.artifacts import DamagedError
from recallkit.storage.result import Question, folder_of, read_result, words_of
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.models.spec import ModelSpec
    from recallkit.scoring.scores import LastIds
    from recallkit.slicing.definitions import Slice

_REMEDY = "make the tables with `recallkit gap REFERENCE MODEL... --slices DIR`"
_MOST_NAMED = 5


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Models compared with a reference, as `recallkit gap` wrote them. `models` are sorted by overall perplexity, the best first.

    `given` are the slices requested besides those of every comparison.

    `slices` is the slice directory of the comparison, if it is available: it contains labels, text and scores.
    """

    folder: Path
    reference: str
    models: list[str]
    tables: GapTables
    manifest: Mapping[str, Any]
    slices: Path | None = None
    given: Sequence[Slice] = ()

    @cached_property
    def totals(self) -> dict[tuple[str, str], dict[str, Any]]:
        """(model, slice) -> row of the gap table, all sources together."""
        rows = rows_by_slice(self.tables.gap)
        return {(model, name): row for (model, source, name), row in rows.items() if source == "ALL"}

    @property
    def has_counts(self) -> bool:
        """See `tables.has_counts`."""
        return has_counts(self.manifest["slices"])

    @property
    def hit(self) -> str:
        """See `tables.hit_of`."""
        return hit_of(self.manifest["slices"])

    def source_rows(self, model: str) -> list[dict[str, Any]]:
        """Rows of the gap table of one model and single sources, whatever these are called."""
        rows = self.tables.gap.filter(model=model).to_dicts()
        wholes = [place for place, row in enumerate(rows) if row["slice"] == "all"]  # the first row of each source; the totals come first
        return rows[wholes[1] :] if len(wholes) > 1 else []


def find_comparison(folder: Path) -> Path:
    """The folder of a comparison: `folder` itself, or the only one in the slice directory `folder`.

    Raises UserError if there is none, or more than one.
    """
    if (folder / "gap.parquet").is_file():
        return folder
    found = sorted(path.parent for path in (folder / "gap").glob("*/gap.parquet"))
    if not found:
        raise UserError("no tables of a comparison here (gap.parquet is missing)", where=folder, remedy=_REMEDY)
    if len(found) > 1:
        named = ", ".join(path.name for path in found[:_MOST_NAMED]) + (" ..." if len(found) > _MOST_NAMED else "")
        raise UserError(f"{len(found)} comparisons here ({named})", where=folder / "gap", remedy="name the folder of one of them")
    return found[0]


def read_comparison(folder: Path, slices: Path | None = None) -> Comparison:
    """Reads the comparison in `folder` (see `find_comparison`).

    `slices` names its slice directory; by default it is the one that contains `folder`, if it is the right one.
    Raises UserError if tables are missing or damaged, or if `slices` are others.
    """
    import polars as pl

    folder = find_comparison(folder)
    manifest, tables = read_result(records.Gap, GapTables, folder)
    totals = tables.gap.filter((pl.col("source") == "ALL") & (pl.col("slice") == "all")).unique("model", keep="first", maintain_order=True)
    labels, is_known = manifest["slices"], True
    if has_counts(labels):
        most = count_cuts(labels["max_count"] or 0)["most"]
        is_known = most in tables.by_threshold["threshold"].to_list()
    if {*totals["reference"], *totals["model"]} != {*manifest["scores"]} or not is_known:
        problem = "its manifest is of other models or labels than its tables"
        raise UserError(problem, where=folder, remedy="make it again with --force")
    return Comparison(
        folder=folder,
        reference=manifest["reference"],
        models=totals.sort("nll_model", "model")["model"].to_list(),
        tables=tables,
        manifest=manifest,
        slices=_slices_of(folder, manifest, slices),
        given=parse_slices(manifest.get("slice", ())),
    )


def _slices_of(folder: Path, manifest: Mapping[str, Any], named: Path | None) -> Path | None:
    """The slice directory of a comparison: the one that is named, or the one that contains it; None if it is not a slice directory."""
    if named is not None:
        if not _is_labelled_alike(manifest, artifacts.read_manifest(named / "tokens.parquet", records.Tokens)):
            raise UserError("not the slices that were compared", where=named, remedy="name the directory that `recallkit gap` was given")
        return named
    # Both the path as written and the resolved path: slices/gap may be a link to another disk, and so may the folder.
    for around in dict.fromkeys([folder.absolute().parent.parent, folder.resolve().parent.parent]):
        try:
            found = artifacts.read_manifest(around / "tokens.parquet", records.Tokens)
        except DamagedError:
            raise
        except UserError:
            continue
        if _is_labelled_alike(manifest, found):
            return around
    return None


def _is_labelled_alike(manifest: Mapping[str, Any], tokens: Mapping[str, Any]) -> bool:
    """Whether labels are those of a comparison: of the same sequences, counts (wherever they are) and threshold."""
    return labels_identity(manifest["slices"]) == labels_identity(tokens)


def labels_identity(facts: Mapping[str, Any]) -> list[Any]:
    """Sequences, counts and threshold: what decides the labels; of the facts of the slices in a manifest."""
    counts = facts.get("counts")
    return [facts.get("sequences_digest"), counts and counts.get("id"), facts.get("max_count")]


@dataclass(frozen=True, slots=True)
class GapQuestion:
    """What a comparison asks besides recall and the gap.

    slices: further ones than AR hits and other tokens. cluster: what intervals resample, one of CLUSTERS. clean: tokens
    that are known to be in the training text are left out. context_gain: every model is also scored with these last
    ids alone, for `by_context`. price: what state costs, for `by_price`. divergence: every model also reads beside the
    reference, for `by_divergence`. placebo: earlier checkpoints of the reference, for `by_placebo`.
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
        return bool(self.clean or self.context_gain or self.price or self.divergence or self.placebo)

    def options(self) -> dict[str, Any]:
        """What a manifest records of it: only what is asked."""
        return {name: value for name, value in self.every_option().items() if value}

    def every_option(self) -> dict[str, Any]:
        """The same with what is not asked: empty lists and False."""
        return {
            "slice": [slice_.given for slice_ in self.slices],
            "clean": self.clean,
            "context_gain": [[last.ids, last.stride] for last in self.context_gain],
            "price": self.price,
            "divergence": self.divergence,
            "placebo": [spec.key for spec in self.placebo],
        }


def gap_path(slices: Path, reference: str | ModelSpec, models: Sequence[str | ModelSpec], question: GapQuestion = GapQuestion()) -> Path:
    """Default folder of the gap between these models, such as `gap/attention-vs-mamba-clean`: each
    question has a folder of its own."""
    first, *others = list_models(reference, list(models))
    words = [first.shown, "vs", *words_of([spec.shown for spec in others])]
    words += [slice_.name for slice_ in question.slices]
    words += [f"context {last.ids}" for last in question.context_gain]
    for name in ("clean", "price", "divergence", "placebo"):
        words += [name] if getattr(question, name) else []
    keys = [spec.key for spec in others]
    # What is not asked tells it from a question of more words, which the end of a long name leaves out.
    identity = {name: value or None for name, value in question.every_option().items()}
    return folder_of(slices / "gap", words, {"reference": first.key, "models": keys, **identity})


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
    """Attributes the gap between `reference` (the attention model) and each model; scores what is not scored yet.

    Writes `gap.parquet` and the `by_*` tables to `out` (default `gap_path`). Raises UserError for everything a user can correct.
    """
    from recallkit.measure.labelled import open_tokens
    from recallkit.slicing.words import make_words, needed_columns, words_path

    specs = list_models([reference], list(models))
    names, keys = [spec.shown for spec in specs], [spec.key for spec in specs]
    out = out or gap_path(slices, specs[0], specs[1:], question)
    identity = {"reference": keys[0], "models": keys[1:], **question.options()}
    comparison = Question("gap", GapTables, out, identity, force)
    comparison.check()  # one of other models is not replaced
    # Labels that cannot answer the question are reported before hours of scoring.
    tokens = open_tokens(slices / "tokens.parquet", needs_counts=question.needs_counts)
    tokens.check_known(question.slices, clean=question.clean)
    needs_words = bool(needed_columns(question.slices))
    if needs_words:
        make_words(slices)
    # `force` applies to these tables only: scores may have taken days, and are made again by `score --force` alone.
    every = list_models(specs, list(question.placebo))
    plans = plan_scores(every, slices, options)
    compared = plans[: len(specs)]
    pairs = [plan.against(plans[0]) for plan in compared[1:]] if question.divergence else []
    shorter = [plan.from_last(last) for last in question.context_gain for plan in compared]
    # Pairs first: what they read is scored on the way.
    scored = [plan.run() for plan in one_after_another([*pairs, *plans, *shorter])]
    manifests = dict(zip(names, scored[len(pairs) :], strict=False))
    _note_other_readings(manifests)
    files = _ScoreFiles(
        {spec.shown: score_path(slices, spec) for spec in specs},
        {spec.shown: score_path(slices, spec) for spec in every[len(specs) :]},
        {last: [score_path(slices, spec, last) for spec in specs] for last in question.context_gain},
        {spec.shown: score_path(slices, spec, against=specs[0]) for spec in specs[1:]} if question.divergence else {},
    )
    readings = {name: [made["reading_max"], made["reading_mean"]] for name, made in manifests.items() if "reading_max" in made}
    states = _about_states(specs, manifests)
    facts = {
        **identity,
        "reference": names[0],
        "models": names[1:],
        "score_files": {name: path.name for name, path in files.scores.items()},
        "cluster": question.cluster,
        "slices": {**tokens.facts, "read_exactly": max(made.get("read_exactly") or 0 for made in manifests.values())},
        "scores": {name: manifests[name]["options"] for name in names},
        "prefixes": {
            name: manifests[name]["prefix"]["token"]
            for name in names
            # Of control models there is none, and of recorded NLLs it may not be stated.
            if manifests[name]["options"]["dtype"] is not None or manifests[name]["prefix"]["reason"]
        },
        **({"reading": readings} if readings else {}),
        "inexact": {spec.shown: share for spec in specs if (share := count_inexact(spec, slices)) is not None},
    }
    inputs = [tokens.path, *([words_path(tokens.path)] if needs_words else []), *files.paths()]
    facts["inputs"] = artifacts.digest_inputs([facts, states], inputs)
    if (answer := comparison.answered(facts["inputs"])) is not None:
        return answer
    timings = Timings()
    with timings.stage("attributing") as stage:
        tables, more = _attribute(tokens.path, files, states, question)
        stage.amounts["tokens"] = manifests[names[0]]["num_rows"] * len(names)
    comparison.write(tables, facts | more, timings)
    return tables


@dataclass(frozen=True, slots=True)
class _ScoreFiles:
    """The score files of a comparison: of the models by name, the reference first, and of what else is asked."""

    scores: Mapping[str, Path]
    checkpoints: Mapping[str, Path]
    by_last: Mapping[LastIds, Sequence[Path]]
    divergences: Mapping[str, Path]

    def paths(self) -> list[Path]:
        """All of them."""
        of_last = itertools.chain(*self.by_last.values())
        return [*self.scores.values(), *of_last, *self.divergences.values(), *self.checkpoints.values()]


def _attribute(
    tokens: Path, files: _ScoreFiles, states: Mapping[str, Mapping[str, Any]], question: GapQuestion
) -> tuple[GapTables, dict[str, Any]]:
    """The tables of a comparison, and further facts of its manifest."""
    from recallkit.attribution.context_gain import context_gains, in_context_scores
    from recallkit.attribution.divergence import divergences
    from recallkit.attribution.placebo import placebos
    from recallkit.attribution.price import prices
    from recallkit.attribution.tables import attribute_gap

    usual: dict[str, Any] = {"cluster": question.cluster, "clean": question.clean}
    names, (reference, *others) = list(files.scores), files.scores.values()
    tables = attribute_gap(tokens, reference, others, names=names, slices=question.slices, **usual)
    further: dict[str, pl.DataFrame] = {}
    facts: dict[str, Any] = {}
    if question.context_gain:
        further["by_context"] = context_gains(tokens, files.scores, files.by_last, **usual)
        facts["in_context"] = in_context_scores(tokens, files.scores, **usual)
    if question.price:
        further["by_price"] = prices(tokens, files.scores, states, **usual)
    if question.placebo:
        further["by_placebo"] = placebos(tokens, files.scores, files.checkpoints, **usual)
    if question.divergence:
        further["by_divergence"] = divergences(tokens, names[0], files.divergences, slices=question.slices, **usual)
    return replace(tables, **further), facts


def _about_states(specs: Sequence[ModelSpec], manifests: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each model that of which it is a variant, and the bytes of its state and after how many ids, where the scores have them."""
    # The model itself names a family if it is among them, else one with all of its mixers, else one of its variants.
    plain = {spec.location: spec.shown for spec in sorted(specs, key=lambda spec: (spec.variant is None, spec.ablation is None))}
    known = ("state_bytes", "state_ids")
    return {spec.shown: {"family": plain[spec.location], **{name: manifests[spec.shown].get(name) for name in known}} for spec in specs}


def _note_other_readings(manifests: Mapping[str, Mapping[str, Any]]) -> None:
    """Reports models that were scored in another precision or context: part of their gap is due to that."""
    for name in ("dtype", "context", "stride", "carry_state"):
        values = {model: m["options"].get(name) for model, m in manifests.items() if not (name == "dtype" and m["options"][name] is None)}
        if len(set(values.values())) > 1 and any(m["options"]["dtype"] is not None for m in manifests.values()):
            console.note(f"scored with different {name}: " + ", ".join(f"{model} {value or 'default'}" for model, value in values.items()))
