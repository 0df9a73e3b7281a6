"""The work of `ablate`: scores a model as it is and without each set of its mixers, and tells what is lost by slice.

On AR hits, on rare tokens whose bigram is new, and elsewhere, and what is no longer recalled. Losses are made of the same sums as a gap's
tables, with the model itself as the reference: the NLL without the mixers less the NLL with them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.declarations import path
from recallkit.display import console
from recallkit.display.notebook import Shown
from recallkit.display.progress import one_after_another
from recallkit.errors import UsageError, UserError
from recallkit.intervening.run import SAMPLES, AskedHits
from recallkit.measure.intervals import estimates, number_or_none
from recallkit.measure.labelled import open_scores, open_tokens
from recallkit.measure.shares import WholeGap, excess_losses, gap_intervals, gap_rows
from recallkit.measure.sums import add_up
from recallkit.models.ablation import NONE, Ablation, choose_mixers, heads_of
from recallkit.models.spec import list_models, one_model
from recallkit.options import ScoringOptions
from recallkit.scoring import plan_scores, score_path
from recallkit.slicing.definitions import SLICES
from recallkit.storage import artifacts
from recallkit.storage.result import Result, read_tables, table_files
from recallkit.storage.schemas import frame_of
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.measure.labelled import LabelledTokens
    from recallkit.models.ablation import By, PlacedMixer
    from recallkit.models.spec import ModelSpec

PARTS = ("ar_hit", "first_rare", "repeated_frequent", "first_frequent")
"""Slices that partition the tokens: the bigram is in the context already or not, and rare in training or not."""

LEAST = 0.05
"""What is lost without mixers that are needed, by its interval: of what is recalled; of heads, also of the largest excess of a group."""

_RENAMED = {
    "nll_reference": "nll",
    "nll_model": "nll_ablated",
    "delta_nll": "loss",
    "delta_ci_low": "loss_ci_low",
    "delta_ci_high": "loss_ci_high",
    "gap_share": "share",
    "ci_low": "share_ci_low",
    "ci_high": "share_ci_high",
}
"""Columns of a gap between the model as it is and without mixers, and what they are called here."""


@dataclass(frozen=True, slots=True)
class AblatedSet:
    """Mixers or heads that are replaced together: as they are named, their layer if they are in one, their kind (several joined with +)."""

    mixers: str
    kind: str
    layer: int | None
    num_heads: int = 0
    """Of heads of mixers how many."""


@dataclass(frozen=True, slots=True, repr=False)
class AblationTables(Shown):
    """What ablations of a model lose. NLLs and losses are in nats per token, positive where the model is worse without the mixers.

    ablation: set of mixers x slice (all, ar_hit, first_rare, repeated_frequent, first_frequent; the last four partition the tokens).
    `loss` = `nll_ablated` - `nll`; `share`: the slice's share of the whole loss; `share_of_tokens`: of the tokens. `void`: the share
    means nothing (`measure.shares.WholeGap`).
    mixers: a row per set, the largest `recall_lost` first; of heads, groups whose `excess` is shown to be above 0 come first, of them the
    smaller ones. `excess`: the loss on AR hits less that on all other tokens. `recall`: what the model as it is recalls by association,
    nats per AR hit (docs/causal.md), of so many `effective_documents`; `recall_lost`: that less what it recalls without the mixers.

    `*_ci_*`: 95 % intervals (`measure.intervals.expanded_interval`), of losses and shares over clusters, of recall over documents, from the
    same resamples for all sets: they are paired.
    """

    ablation: pl.DataFrame
    mixers: pl.DataFrame


def measure_losses(
    tokens: Path,
    intact: Path,
    ablated: Sequence[Path],
    sets: Sequence[AblatedSet],
    *,
    model: str,
    recalled: np.ndarray,
    hits: AskedHits,
    cluster: str = "document",
    clean: bool = False,
) -> AblationTables:
    """The losses of each of `sets`, from labels and the score files of the model as it is (`intact`) and `ablated` in the same order.

    `recalled` (n, 1 + m): nats of each of the asked `hits`, by the model as it is and without each of m sets. `cluster`: what the
    intervals of losses resample. `clean`: without tokens that are known to be in the training text. Raises UserError where files
    are damaged, or of other sequences.
    """
    labelled = open_tokens(tokens)
    scores = [open_scores(path, labelled) for path in (intact, *ablated)]
    found = add_up(labelled, scores, [SLICES[name] for name in PARTS[1:]], cluster, clean=clean, every_table=False)
    names, table = found.rows["slices"].keys["slice"], found.tables["slices"]
    sums = table.at(np.array([list(names).index(name) for name in ("all", *PARTS)]))
    intervals, recall = gap_intervals({"slices": sums}, {})["slices"], _recall(recalled, hits)
    excess = excess_losses(sums.at(np.arange(2)))
    slices, mixers = [], []
    for number, of_set in enumerate(sets):
        common = {"model": model, "mixers": of_set.mixers, "kind": of_set.kind, "layer": of_set.layer, "cluster": cluster}
        rows = gap_rows({"slice": ("all", *PARTS)}, sums, sums.totals[:, :1], 1 + number, intervals)
        # Only the model as it is is compared with a guess: that one without a mixer predicts nothing is what an ablation may find.
        whole = WholeGap.of({**rows[0], "nll_model": -np.inf}, labelled.vocab_size)
        for row in rows:
            why = whole.why_void(share_of_tokens=row["share_of_tokens"], effective=row["effective_clusters"])
            row |= {new: row[name] for name, new in _RENAMED.items()}
            row["void"] = row["share"] is None or row["slice"] == "all" or bool(why)
            if row["share"] is None or row["slice"] == "all":
                row |= dict.fromkeys(("share", "share_ci_low", "share_ci_high"))
        slices += [{**common, **row} for row in rows]
        every, of_hits, first = (row["loss"] for row in rows[:3])
        lost = {"loss": every, "loss_ar_hit": of_hits, "loss_first_rare": first}
        mixers.append({**common, **lost, **excess[number], **recall[number]})
    mixers.sort(key=_head_rank if any(each.num_heads for each in sets) else lambda row: -row["recall_lost"])
    return AblationTables(frame_of("ablation/ablation", slices), frame_of("ablation/mixers", mixers))


def _recall(recalled: np.ndarray, hits: AskedHits) -> list[dict[str, float | None]]:
    """The columns `recall` and `recall_lost` of each of m sets, with intervals."""
    means, (_, effective, freedom) = hits.means(recalled), hits.documents
    lost = means[:, :1] - means[:, 1:]
    whole = estimates("recall", means[0, 0], means[1:, 0], effective, freedom)
    found = [whole | estimates("recall_lost", of[0], of[1:], effective, freedom) for of in lost.T]
    return [{name: number_or_none(float(value)) for name, value in of.items()} | {"effective_documents": effective} for of in found]


EACH = "each"
"""Every mixer by itself, and every kind of mixers as a whole where there are several kinds."""


def ablation_path(
    slices: Path,
    model: ModelSpec,
    asked: Sequence[str] = (EACH,),
    by: By = "zero",
    *,
    heads: bool = False,
    clean: bool = False,
    samples: int = SAMPLES,
) -> Path:
    """Default folder of the ablations of a model: each question has a folder of its own."""
    of_samples = "" if samples == SAMPLES else f" {samples}"
    which = ("" if list(asked) == [EACH] else f" {','.join(asked)}") + " heads" * heads
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
    heads: bool = False,
    cluster: str = "document",
    clean: bool = False,
    samples: int = SAMPLES,
) -> AblationTables:
    """What `model` loses without its mixers, set by set; scores what is not scored yet.

    `asked`: the sets, each as `Ablation.parse` reads it, or `each`. `heads`: not the mixers that are asked for, but their heads: those of a
    mixer together, then halves of every group without which AR hits are shown to lose more than other tokens (by `LEAST` of what they do
    without the group that matters most), down to single ones.
    Writes `ablation.parquet` and `mixers.parquet` to `out` (default `ablation_path`). Raises UserError for everything a user can correct.
    """
    spec = one_model(model)
    if spec.ablate is not None:
        raise UsageError("it is ablated already", where=spec.typed(), remedy="give the model as it is, and name mixers with --mixers")
    if heads and by == "mean":
        raise UsageError("heads are replaced by zero alone", where="--by mean", remedy="leave out --heads or --by")
    out = out or ablation_path(slices, spec, asked, by, heads=heads, clean=clean, samples=samples)
    beside = table_files(AblationTables, out)
    Result(out / "ablation.parquet", "ablation", {}, beside=beside).check_replaceable()
    [intact] = plan_scores([spec], slices, options)
    question = {"model": spec.key, "mixers": list(asked), "by": by, "heads": heads, "cluster": cluster, "clean": clean, "samples": samples}
    question |= {"scores": intact.result.options}
    result = Result(out / "ablation.parquet", "ablation", question, force=force, beside=beside)
    if result.reused() is not None:
        return read_tables(AblationTables, out)
    placed = intact.mixers()
    sets = groups_of_heads(placed, asked, spec.shown) if heads else choose_sets(placed, asked, by, spec.shown)
    labels = open_tokens(slices / "tokens.parquet")
    hits = AskedHits.of(labels, path(options.counts), samples, clean=clean)
    length = 1 + hits.changed.manifest["changed_tokens"] / labels.num_rows
    passes, most = 1 + len(sets), 1 + sum(2 * _num_heads(each) - 1 for each in sets)
    of = f"of {len(sets)} {'groups of heads' if heads else 'sets of mixers'}"
    then = f"; then halves of the groups that recall needs, at most {most} passes in all" if heads and most > passes else ""
    tokens = f"{labels.num_rows * length:,.0f} tokens, {length:.1f} times the text"
    console.note(f"{spec.shown}: {passes} passes over {tokens}, one with each {of} replaced{then}")
    specs, todo, largest = [spec], list(sets), 0.0
    while todo:
        now = list_models([spec, *(spec.ablated(each) for each in todo)])
        for each, plan in zip(now, one_after_another(plan_scores(now, slices, options)), strict=True):
            if each != spec or len(specs) == 1:
                hits.score(each, options, plan.run())
        specs += now[1:]
        losses = _excess(labels, [score_path(slices, each) for each in now], cluster, clean=clean) if heads else []
        largest = max([largest, *(row["excess"] or 0.0 for row in losses)])
        needed = [(row["excess_ci_low"] or 0.0) > LEAST * largest for row in losses]
        todo = [half for each, is_needed in zip(todo, needed, strict=heads) if is_needed for half in _halves(each)]
        sets += todo
        if todo:
            console.note(f"{spec.shown}: {len(todo)} passes, one without each half of {len(todo) // 2} groups")
    timings = Timings()
    with timings.stage("measuring") as stage:
        scores = [score_path(slices, each) for each in specs]
        named = [AblatedSet("+".join(each.named), *_where(choose_mixers(placed, each, spec.shown)), _num_heads(each)) for each in sets]
        recalled = hits.recalled(scores, [hits.path(each) for each in specs])
        tables = measure_losses(
            labels.path, scores[0], scores[1:], named, model=spec.shown, recalled=recalled, hits=hits, cluster=cluster, clean=clean
        )
        stage.amounts["tokens"] = labels.num_rows * len(specs)
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


# ---------------------------------------------------------------------------------------------------------------- heads


def groups_of_heads(placed: Sequence[PlacedMixer], asked: Sequence[str], where: str) -> list[Ablation]:
    """All heads of each mixer that is asked for, with which a search begins. Raises UserError where none has heads."""
    wanted = [part for each in choose_sets(placed, asked, "zero", where) for part in choose_mixers(placed, each, where)]
    groups = [_group(mixer.name, 0, mixer.num_heads - 1) for mixer in wanted if mixer.num_heads and mixer.heads is None]
    if not groups:
        kinds = ", ".join(dict.fromkeys(mixer.kind for mixer in wanted))
        problem = f"no heads of {kinds} can be replaced: what its last matrix reads is not divided into heads"
        raise UserError(problem, where=where, remedy="leave out --heads, or name others with --mixers")
    return list(dict.fromkeys(groups))


def _num_heads(ablation: Ablation) -> int:
    """Of how many heads it is; 0 of whole mixers."""
    ends = [heads_of(name) for name in ablation.named]
    return sum(last - first + 1 for _, first, last in filter(None, ends))


def _halves(group: Ablation) -> list[Ablation]:
    """`2.h0-2` -> `2.h0-1`, `2.h2`; none of a single head."""
    [(mixer, first, last)] = filter(None, map(heads_of, group.named))
    middle = (first + last) // 2
    return [] if first == last else [_group(mixer, first, middle), _group(mixer, middle + 1, last)]


def _group(mixer: str, first: int, last: int) -> Ablation:
    return Ablation.parse(f"{mixer}.h{first}" if first == last else f"{mixer}.h{first}-{last}")


def _excess(labels: LabelledTokens, paths: Sequence[Path], cluster: str, *, clean: bool) -> list[dict[str, float | None]]:
    """`excess_losses` of each model after the first."""
    found = add_up(labels, [open_scores(path, labels) for path in paths], [], cluster, clean=clean, every_table=False)
    names = list(found.rows["slices"].keys["slice"])
    return excess_losses(found.tables["slices"].at(np.array([names.index("all"), names.index("ar_hit")])))


def _head_rank(row: Mapping[str, Any]) -> tuple[bool, int, float]:
    return not (row["excess_ci_low"] or 0) > 0, _num_heads(Ablation.parse(row["mixers"])), -(row["excess"] or 0)
