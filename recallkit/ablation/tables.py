"""The work of `ablate`: scores a model as it is and without each set of its mixers, and tells what
of its recall is retained.

And what is lost, by slice. Both are figures of a gap with the model itself as the reference: its
NLL without the mixers less that with them, and its recall gain without them over that with them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display import console
from recallkit.display.cells import counted
from recallkit.display.notebook import Shown
from recallkit.display.progress import one_after_another
from recallkit.errors import UsageError, UserError
from recallkit.measure.labelled import open_scores, open_tokens
from recallkit.measure.ratio import are_distinct, ratio
from recallkit.measure.shares import WholeGap, gap_figures
from recallkit.measure.sums import add_up
from recallkit.models.ablation import NONE, Ablation, choose_mixers, heads_of
from recallkit.models.spec import one_model
from recallkit.options import ScoringOptions
from recallkit.scoring import plan_scores, score_path
from recallkit.slicing.definitions import SLICES
from recallkit.storage.result import Question, folder_of
from recallkit.storage.schemas import frame_of_columns
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.models.ablation import By, PlacedMixer
    from recallkit.models.spec import ModelSpec

PARTS = ("ar_hit", "first_rare", "repeated_frequent", "first_frequent")
"""Slices that partition the tokens: the bigram is in the context already or not, and rare in
training or not."""

LEAST = 0.05
"""How much of the recall gain is lost without mixers that are needed, by the interval: of that of
the model as it is; in a search of heads, of what is lost without the group that matters most."""

EACH = "each"
"""Every mixer by itself, and every kind of mixers as a whole where there are several kinds; of a
budget, every mixer that has a cache."""

_RENAMED = {
    "delta_nll": "loss",
    "gap_share": "loss_share",
    "gain_reference": "gain",
    "nll_reference": "nll",
    "nll_model": "nll_ablated",
}
"""Figures of a gap between the model as it is and without mixers, and what they are called here."""


@dataclass(frozen=True, slots=True)
class AblatedSet:
    """Mixers or heads that are replaced together.

    mixers: as they are named. kind: theirs, several joined with +. layer: theirs if they are in
    one. parts: each mixer or head, separated by blanks. layers: of a budget the mixers that are
    left, joined with +, and the bytes of their caches.
    """

    mixers: str
    kind: str
    layer: int | None
    parts: str
    layers: str | None = None
    cache_bytes: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class AblationTables(Shown):
    """What a model retains of its recall without mixers, and what it loses. Losses are in nats per
    token, positive where it is worse.

    mixers: a row per set, the largest `gain_lost` first. `gain`: the model's recall gain on AR hits
    as it is, a fraction; `gain_lost`: that less its gain without the mixers; `retained`: its gain
    without them over that as it is, null where its recall is not significant. `loss` of all
    tokens, `loss_ar_hit` of AR hits, which are `share_of_tokens` and have `loss_share` of the whole
    loss.
    ablation: set of one mixer or more x slice (all, ar_hit, first_rare, repeated_frequent,
    first_frequent; the last four partition the tokens). `loss` = `nll_ablated` - `nll`;
    `loss_share`: the slice's share of the whole loss; `share_of_tokens`: of the tokens.

    With a budget the rows of `mixers` are the path of backward elimination, from `none` down to the
    budget: `layers` are the mixers that are left, joined with +, and `cache_bytes` of one sequence
    those of their caches; else null.

    `void`: the share of the loss means nothing, which `note` explains (`measure.shares.WholeGap`).
    `*_ci_*`: 95 % intervals (`measure.ratio.ratio`) over `clusters`, from the same resamples for
    all sets: they are paired.
    """

    ablation: pl.DataFrame
    mixers: pl.DataFrame


def measure_losses(
    tokens: Path,
    files: Sequence[Path],
    sets: Sequence[AblatedSet],
    model: str,
    cluster: str = "document",
    *,
    clean: bool = False,
) -> AblationTables:
    """What is lost without each of `sets`, from labels and score files: of the model as it is, then
    without each set.

    `cluster`: what intervals resample. `clean`: without tokens that are known to be in the training
    text. Raises UserError where files are damaged, or of other sequences.
    """
    import polars as pl

    labels = open_tokens(tokens)
    scores = [open_scores(file, labels) for file in files]
    slices = [SLICES[name] for name in PARTS[1:]]
    sums = add_up(labels, scores, slices, cluster, clean=clean, every_table=False)
    table = sums.tables["slices"].slice("all", *PARTS)
    every, hits = table.slice("all"), table.slice("ar_hit")
    numbers = range(1, len(files))
    distinct = are_distinct([ratio(every.gap(number), every["tokens"]) for number in numbers])
    by_slice, by_set = [], []
    for number, ablated, is_distinct in zip(numbers, sets, distinct[:, 0], strict=True):
        names = {"model": model, "cluster": cluster, **asdict(ablated)}
        figures = gap_figures(table, every, number)
        columns = {_renamed(name): values for name, values in figures.items()}
        columns |= _notes(figures, is_distinct, labels.vocab_size, cluster)
        if ablated.parts:
            by_slice.append(frame_of_columns("ablation/ablation", table.keys, names | columns))
        of_hits = {name: values[1:2] for name, values in columns.items()}
        of_hits |= {"loss": columns["loss"][:1], "loss_ar_hit": of_hits["loss"]}
        of_hits |= ratio(hits.gain(0) - hits.gain(number), hits["tokens"]).columns("gain_lost")
        by_set.append(frame_of_columns("ablation/mixers", hits.keys, names | of_hits))
    return AblationTables(pl.concat(by_slice), pl.concat(by_set))


def _renamed(name: str) -> str:
    """`delta_nll_ci_low` -> `loss_ci_low`."""
    figure, end, which = name.partition("_ci_")
    return _RENAMED.get(figure, figure) + end + which


def _notes(
    figures: Mapping[str, np.ndarray],
    is_distinct: float,
    vocab_size: int | None,
    cluster: str,
) -> dict[str, np.ndarray]:
    """The columns `note` and `void` of all tokens and PARTS."""
    import polars as pl

    rows = pl.DataFrame(figures).to_dicts()
    # The ablated model is not compared with a guess: that it predicts nothing may be the finding.
    judged = {"nll_model": -np.inf, "is_distinct": is_distinct == 1 or np.isnan(is_distinct)}
    whole = WholeGap.of(rows[0] | judged, vocab_size, cluster)
    notes = [whole.why_void(row, name) for name, row in zip(("all", *PARTS), rows, strict=True)]
    return {"note": np.array(notes), "void": np.array(notes) != ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationQuestion:
    """Which mixers are replaced, by what, and on which tokens.

    mixers: sets, each as `Ablation.parse` reads it, or `each`. heads: not these mixers, but their
    heads: those of a mixer together, then halves of every group without which recall is shown to
    be lost (by `LEAST` of what is lost without the group that matters most), down to single ones.
    budget: not each of these sets, but all of their mixers except so many, with which most of the
    recall gain is retained; with `each` the mixers that have a cache, which grows with the text.
    clean: without tokens that are known to be in the training text.
    """

    mixers: Sequence[str] = (EACH,)
    by: By = "zero"
    heads: bool = False
    budget: int | None = None
    clean: bool = False

    def identity(self, model: ModelSpec) -> dict[str, Any]:
        """What tells the answer from others."""
        return {"model": model.key, **asdict(self), "mixers": list(self.mixers)}


def ablation_path(slices: Path, model: ModelSpec, question: AblationQuestion = AblationQuestion()) -> Path:
    """Default folder of the ablations of a model, such as `ablation/hybrid-attention-mean`: each
    question has a folder of its own."""
    words = [model.shown, *(word for word in question.mixers if word != EACH)]
    words += [question.by] * (question.by != "zero") + ["heads"] * question.heads
    words += [] if question.budget is None else [f"budget {question.budget}"]
    words += ["clean"] * question.clean
    return folder_of(slices / "ablation", words, question.identity(model))


def ablate(
    model: str | ModelSpec,
    slices: Path,
    out: Path | None = None,
    options: ScoringOptions = ScoringOptions(),
    question: AblationQuestion = AblationQuestion(),
    *,
    cluster: str = "document",
    force: bool = False,
) -> AblationTables:
    """What `model` retains of its recall, and loses, without its mixers, set by set; scores what is
    not scored yet.

    Writes `ablation.parquet` and `mixers.parquet` to `out` (default `ablation_path`). Raises
    UserError for everything a user can correct.
    """
    spec = one_model(model)
    _check(spec, question)
    out = out or ablation_path(slices, spec, question)
    [intact] = plan_scores([spec], slices, options)
    decisive = question.identity(spec) | {"cluster": cluster, "scores": intact.result.options}
    answer = Question("ablation", AblationTables, out, decisive, force)
    if (tables := answer.reused()) is not None:
        return tables
    placed = intact.mixers(with_caches=question.budget is not None)
    tokens = slices / "tokens.parquet"
    timings, labels = Timings(), open_tokens(tokens)

    def losses(ablations: Sequence[Ablation], left: Sequence[PlacedMixer] = ()) -> AblationTables:
        """Of these sets, whose scores are made where they are missing, `left` of a budget."""
        models = [spec if one.named == (NONE,) else spec.ablated(one) for one in ablations]
        once = list(dict.fromkeys([spec, *models]))
        for plan in one_after_another(plan_scores(once, slices, options)):
            plan.run()
        files = [score_path(slices, one) for one in [spec, *models]]
        sets = [_describe(one, placed, spec.shown, left) for one in ablations]
        clean = question.clean
        return measure_losses(tokens, files, sets, spec.shown, cluster, clean=clean)

    left: Sequence[PlacedMixer] = ()
    passes = f"passes over {labels.num_rows:,} tokens"
    if question.heads:
        sets = _search_heads(groups_of_heads(placed, question.mixers, spec.shown), losses)
    elif question.budget is not None:
        left = _candidates(placed, question, spec.shown)
        sizes = range(question.budget + 1, len(left) + 1)
        console.note(f"{spec.shown}: {1 + sum(sizes)} {passes}")
        sets = _eliminate(left, question, losses)
    else:
        sets = choose_sets(placed, question.mixers, question.by, spec.shown)
        console.note(f"{spec.shown}: {1 + len(sets)} {passes}")
    tables = losses(sets, left)
    if not left:
        order = tables.mixers.sort("gain_lost", descending=True, nulls_last=True)
        tables = replace(tables, mixers=order)
    answer.write(tables, {"model": spec.shown, "slices": labels.facts}, timings)
    return tables


def _check(spec: ModelSpec, question: AblationQuestion) -> None:
    """Raises UsageError for a model, and for parts of a question, that do not go together."""
    if spec.ablate is not None:
        raise UsageError(
            "it is ablated already",
            where=spec.typed(),
            remedy="give the unchanged model, and name mixers with --mixers",
        )
    if question.heads and (question.by == "mean" or question.budget is not None):
        raise UsageError(
            "heads are searched by halves, and can only be replaced by zero",
            where="--heads",
            remedy="leave it out, or --by and --budget",
        )


def choose_sets(
    placed: Sequence[PlacedMixer],
    mixers: Sequence[str],
    by: By,
    where: str,
) -> list[Ablation]:
    """The ablations that are asked for, each once. Raises UsageError for what names no mixers,
    UserError for one that is not there."""
    kinds = Counter(mixer.kind for mixer in placed)
    several = [kind for kind, number in kinds.items() if number > 1] if len(kinds) > 1 else []
    every = [*(mixer.name for mixer in placed), *several]
    names = [name for word in mixers for name in (every if word == EACH else [word])]
    sets = list(dict.fromkeys(replace(Ablation.parse(name), by=by) for name in names))
    if not sets or any(":" in name or name == NONE for name in mixers):
        remedy = "give each, or layers and kinds such as 0,3,attention or 1+3, by their mean with --by"
        raise UsageError(f"no sets of mixers: {','.join(mixers)}", where="--mixers", remedy=remedy)
    for ablation in sets:
        choose_mixers(placed, ablation, where)
    return sets


def _named_mixers(
    placed: Sequence[PlacedMixer],
    mixers: Sequence[str],
    where: str,
) -> list[PlacedMixer]:
    """Those of all sets that are asked for, each once, in the order of the layers. Raises
    UsageError for heads."""
    sets = choose_sets(placed, mixers, "zero", where)
    parts = [mixer for one in sets for mixer in choose_mixers(placed, one, where)]
    if any(part.heads for part in parts):
        raise UsageError("heads are named", where="--mixers", remedy="name layers or kinds")
    keys = {part.key for part in parts}
    return [mixer for mixer in placed if mixer.key in keys]


def _describe(
    ablation: Ablation,
    placed: Sequence[PlacedMixer],
    where: str,
    left: Sequence[PlacedMixer],
) -> AblatedSet:
    """The set in words; `left`: of a budget, its mixers, without those of the set."""
    mixers = choose_mixers(placed, ablation, where)
    parts, layers = list[str](), {mixer.layer for mixer in mixers}
    for mixer in mixers:
        first, last = mixer.heads or (0, -1)
        parts += [f"{mixer.key}.h{head}" for head in range(first, last + 1)] or [mixer.key]
    kinds = dict.fromkeys(mixer.kind for mixer in mixers)
    layer = layers.pop() if len(layers) == 1 else None
    described = AblatedSet("+".join(ablation.named), "+".join(kinds), layer, " ".join(parts))
    if not left:
        return described
    others = [mixer for mixer in left if mixer.name not in ablation.named]
    cache = sum(mixer.cache_bytes or 0 for mixer in others)
    return replace(described, layers="+".join(mixer.name for mixer in others), cache_bytes=cache)


# ---------------------------------------------------------------------------------------- budget


def _candidates(placed: Sequence[PlacedMixer], question: AblationQuestion, where: str) -> list[PlacedMixer]:
    """The mixers of a budget: those that are named, or every one that has a cache. Raises UserError
    where these are not known, UsageError where the budget has room for all."""
    if placed[0].cache_bytes is None:
        raise UserError(
            "the bytes of its caches are not known layer by layer",
            where=where,
            remedy="leave out --budget",
        )
    is_every = tuple(question.mixers) == (EACH,)
    named = _named_mixers(placed, question.mixers, where)
    mixers = [mixer for mixer in named if mixer.cache_bytes or not is_every]
    if (question.budget or 0) >= len(mixers):
        which = "whose cache grows with the text" if is_every else "that --mixers names"
        raise UsageError(
            f"it has {counted(len(mixers), 'mixer')} {which}, and a budget has to be smaller",
            where=f"--budget {question.budget}",
            remedy="name more mixers with --mixers, or give a smaller one",
        )
    return mixers


def _eliminate(
    mixers: Sequence[PlacedMixer],
    question: AblationQuestion,
    losses: Callable[[Sequence[Ablation]], AblationTables],
) -> list[Ablation]:
    """Backward elimination: the sets that are removed, from none on, each one mixer larger.

    It begins with all mixers, because recall takes layers that work together: added to none, a
    layer would not show what it is worth. It ends at the budget, or with the first mixer of a model
    that recalls nothing.
    """
    path = [Ablation((NONE,), question.by)]
    for removed in range(len(mixers) - (question.budget or 0)):
        before = path[-1].named if removed else ()
        names = ["+".join([*before, one.name]) for one in mixers if one.name not in before]
        sets = [replace(Ablation.parse(name), by=question.by) for name in names]
        rows = losses(sets).mixers
        path.append(sets[rows["gain_lost"].arg_min() or 0])
        if rows["retained"].null_count():
            break
    return path


# ---------------------------------------------------------------------------------------- heads


def groups_of_heads(
    placed: Sequence[PlacedMixer],
    mixers: Sequence[str],
    where: str,
) -> list[Ablation]:
    """All heads of each mixer that is asked for, with which a search begins. Raises UserError where
    none has heads."""
    chosen = _named_mixers(placed, mixers, where)
    groups = [_group(mixer.name, 0, mixer.num_heads - 1) for mixer in chosen if mixer.num_heads]
    if not groups:
        kinds = ", ".join(dict.fromkeys(mixer.kind for mixer in chosen))
        why = "the input of its last matrix is not divided into heads"
        remedy = "leave out --heads, or name others with --mixers"
        raise UserError(f"no heads of {kinds} can be replaced: {why}", where=where, remedy=remedy)
    return groups


def _search_heads(
    groups: Sequence[Ablation],
    losses: Callable[[Sequence[Ablation]], AblationTables],
) -> list[Ablation]:
    """The groups, then halves of every one without which recall is lost, down to single heads."""
    searched, largest = list[Ablation](), 0.0
    while groups:
        number = counted(len(groups), "group")
        console.note(f"{number} of heads; those that recall needs are split")
        searched += groups
        lost = losses(groups).mixers
        largest = max([largest, *lost["gain_lost"].drop_nulls()])
        needed = set(lost.filter(lost["gain_lost_ci_low"] > LEAST * largest)["mixers"])
        groups = [half for group in groups if str(group) in needed for half in _halves(group)]
    return searched


def _halves(group: Ablation) -> list[Ablation]:
    """`2.h0-2` -> `2.h0-1`, `2.h2`; none of a single head."""
    [(mixer, first, last)] = filter(None, map(heads_of, group.named))
    if first == last:
        return []
    middle = (first + last) // 2
    return [_group(mixer, first, middle), _group(mixer, middle + 1, last)]


def _group(mixer: str, first: int, last: int) -> Ablation:
    return Ablation.parse(f"{mixer}.h{first}" if first == last else f"{mixer}.h{first}-{last}")
