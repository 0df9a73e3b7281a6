"""The work of `ablate`: scores a model as it is and without each set of its mixers, and writes what is lost by slice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recallkit.ablation.tables import AblatedSet, AblationTables, measure_losses
from recallkit.declarations import path
from recallkit.display import console
from recallkit.display.progress import one_after_another
from recallkit.errors import UsageError
from recallkit.intervening.association import SAMPLES, AskedHits
from recallkit.measure.labelled import open_tokens
from recallkit.models.ablation import NONE, Ablation, choose_mixers
from recallkit.models.spec import list_models, one_model
from recallkit.options import ScoringOptions
from recallkit.scoring import plan_scores, score_path
from recallkit.storage import artifacts
from recallkit.storage.result import Result, read_tables, table_files
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recallkit.models.ablation import By, PlacedMixer
    from recallkit.models.spec import ModelSpec

EACH = "each"
"""Every mixer by itself, and every kind of mixers as a whole where there are several kinds."""


def ablation_path(
    slices: Path, model: ModelSpec, asked: Sequence[str] = (EACH,), by: By = "zero", *, clean: bool = False, samples: int = SAMPLES
) -> Path:
    """Default folder of the ablations of a model: each question has a folder of its own."""
    of_samples = "" if samples == SAMPLES else f" {samples}"
    which = "" if list(asked) == [EACH] else f" {','.join(asked)}"
    return slices / "ablation" / artifacts.file_slug(f"{model.key}{which}{' by mean' * (by == 'mean')}{' clean' * clean}{of_samples}")


def ablate(
    model: str | ModelSpec,
    slices: Path,
    out: Path | None = None,
    options: ScoringOptions = ScoringOptions(),
    *,
    force: bool = False,
    asked: Sequence[str] = (EACH,),
    by: By = "zero",
    cluster: str = "document",
    clean: bool = False,
    samples: int = SAMPLES,
) -> AblationTables:
    """What `model` loses without its mixers, set by set; scores what is not scored yet.

    `asked`: the sets, each as `Ablation.parse` reads it, or `each`. Writes `ablation.parquet` and `mixers.parquet` to `out` (default
    `ablation_path`). Raises UserError for everything a user can correct.
    """
    spec = one_model(model)
    if spec.ablate is not None:
        raise UsageError("it is ablated already", where=spec.typed(), remedy="give the model as it is, and name mixers with --mixers")
    out = out or ablation_path(slices, spec, asked, by, clean=clean)
    beside = table_files(AblationTables, out)
    Result(out / "ablation.parquet", "ablation", {}, beside=beside).check_replaceable()
    [intact] = plan_scores([spec], slices, options)
    question = {"model": spec.key, "mixers": list(asked), "by": by, "cluster": cluster, "clean": clean, "samples": samples}
    question |= {"scores": intact.result.options}
    result = Result(out / "ablation.parquet", "ablation", question, force=force, beside=beside)
    if result.reused() is not None:
        return read_tables(AblationTables, out)
    placed = intact.mixers()
    sets = choose_sets(placed, asked, by, spec.shown)
    specs = list_models([spec, *(spec.ablated(each) for each in sets)])
    labels = open_tokens(slices / "tokens.parquet")
    hits = AskedHits.of(labels, path(options.counts), samples, clean=clean)
    length = 1 + hits.changed.manifest["changed_tokens"] / labels.num_rows
    console.note(
        f"{spec.shown}: {len(specs)} passes over {length:.1f} times the text, one with each of {len(sets)} sets of mixers replaced"
    )
    plans = plan_scores(specs, slices, options)
    manifests = [plan.run() for plan in one_after_another(plans)]
    for each, manifest in zip(specs, manifests, strict=True):
        hits.score(each, options, manifest)
    timings = Timings()
    with timings.stage("measuring") as stage:
        scores = [score_path(slices, each) for each in specs]
        named = [AblatedSet("+".join(each.named), *_where(choose_mixers(placed, each, spec.shown))) for each in sets]
        recalled = hits.recalled(scores, [hits.path(each) for each in specs])
        tables = measure_losses(
            labels.path, scores[0], scores[1:], named, model=spec.shown, recalled=recalled, hits=hits, cluster=cluster, clean=clean
        )
        stage.amounts["tokens"] = manifests[0]["num_rows"] * len(specs)
    facts: dict[str, Any] = {
        "model": spec.shown,
        "by": by,
        "placed": [[mixer.layer, mixer.kind] for mixer in placed],
        "score_files": {each.shown: path.name for each, path in zip(specs, scores, strict=True)},
        "asked": len(hits.asked),
        "slices": labels.facts,
    }
    result.write_tables(tables, facts, timings)
    return tables


def choose_sets(placed: Sequence[PlacedMixer], asked: Sequence[str], by: By, where: str) -> list[Ablation]:
    """The ablations that are asked for, each once. Raises UsageError for what names no mixers, UserError for one that is not there."""
    named: list[str] = []
    for name in asked:
        named += _one_by_one(placed) if name == EACH else [name]
    sets = list(dict.fromkeys(replace(Ablation.parse(name), by=by) for name in named))
    if not sets or any(":" in name or name == NONE for name in asked):
        remedy = "give each, or layers and kinds such as 0,3,attention or 1+3; their mean with --by mean"
        raise UsageError(f"no sets of mixers: {','.join(asked)}", where="--mixers", remedy=remedy)
    for each in sets:
        choose_mixers(placed, each, where)
    return sets


def _one_by_one(placed: Sequence[PlacedMixer]) -> list[str]:
    """Every mixer, then the kinds of more than one mixer, where there are several kinds."""
    kinds = Counter(mixer.kind for mixer in placed)
    whole = [kind for kind, number in kinds.items() if number > 1] if len(kinds) > 1 else []
    return [*(mixer.name for mixer in placed), *whole]


def _where(chosen: Sequence[PlacedMixer]) -> tuple[str, int | None]:
    """The kind of mixers, and their layer if they are in one."""
    layers = {mixer.layer for mixer in chosen}
    return "+".join(dict.fromkeys(mixer.kind for mixer in chosen)), layers.pop() if len(layers) == 1 else None
